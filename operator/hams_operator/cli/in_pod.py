"""What `hams kill` runs in a pod, whose containers share their processes: it signals an instance's.

Its source is sent to `python3 -c` as it stands. So it imports the standard library only, and the image in the
pod may be of another version.
"""

import json
import os
import signal
import sys


def process_of(command: list[str]) -> str:
    """Which of an instance's processes has this command line: model, proxy or process; "": none."""
    line = " ".join(command)
    if "hams_sidecar.proxy" in command:
        return "proxy"
    if "hams_sidecar.frontend" in command or "hams_operator.manager.process" in command:
        return "process"
    serves = "hams-model serve" in line or ("hams_sdk" in line and "serve" in command)
    return "model" if serves else ""


def processes_in(folder: str) -> dict[str, int]:
    """The processes of a pod by what they are, from what looks like /proc."""
    pids = {}
    for pid in filter(str.isdigit, os.listdir(folder)):
        if int(pid) == os.getpid():
            continue  # all the words that are looked for stand on its own command line
        try:
            with open(f"{folder}/{pid}/cmdline", encoding="utf-8", errors="replace") as line:
                pids[process_of(line.read().split("\0"))] = int(pid)
        except OSError:
            continue
    return {name: pids[name] for name in ("model", "proxy", "process") if name in pids}


def strike(pids: dict[str, int], number: signal.Signals) -> None:
    """Signal them and say which. To kill both, the proxy is stopped first: else it may notice its model's end
    and leave in order."""
    if number is signal.SIGKILL and len(pids) > 1:
        os.kill(pids["proxy"], signal.SIGSTOP)
    last = next(reversed(pids), "")
    for name, pid in pids.items():
        if name == last:  # the first process of this container, which takes everything along when it ends
            print(json.dumps(pids), flush=True)
        os.kill(pid, number)
    if not pids:
        print("{}")


def main(wanted: str, number: str, folder: str = "/proc") -> None:
    """`wanted`: model, proxy or both. A frontend or manager is one process, whatever is wanted."""
    pids = {
        name: pid
        for name, pid in processes_in(folder).items()
        if wanted in (name, "both") or name == "process"
    }
    strike(pids, signal.Signals[f"SIG{number}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
