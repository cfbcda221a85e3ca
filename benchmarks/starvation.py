"""A graph that gets almost no CPU: is it slow, or does it forget?

The `hello` graph starts with all the CPU it wants. Then, for five minutes, it runs in a CPU quota
(`--share 0.08`: 8 % of one core for all its processes together, its etcd included), or beside busy loops
(`--loops 50`), each in a control group of its own, so that the whole graph weighs as much as one of them. One
client goes on asking all the while and sends the same key again until it is answered. Then the graph gets its
CPU back. What is judged: no state is lost, few instances are replaced, every state has its backup again soon,
every key stands for one reply, and the count of the state lies between what was acknowledged and what was
sent.

Needs to be allowed to make CPU control groups (cgroup v2 `cpu.max`, else v1 `cpu.cfs_quota_us`). Exit code 1:
something was lost, or a goal missed. `python -m benchmarks.starvation [--share 0.2 | --loops 50] [--seconds
300]`.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import seconds

PERIOD_US = 100_000
"""A quota is given per this long, as Kubernetes does."""
REPLACED_MAX = 3
"""Goal: instances replaced at most while the graph starves."""
IN_SYNC_S = 30.0
"""Goal: every state has its backup again so long after the graph has its CPU back."""
GIVE_UP_S = 180.0
"""After this long the measurement waits no longer for that."""
REQUEST_S = 20.0
"""A client waits this long for an answer before it sends its key again."""
PAUSE_S = 0.5
"""Between two requests."""

V1 = Path("/sys/fs/cgroup/cpu")
V2 = Path("/sys/fs/cgroup")


class ControlGroup:
    """A CPU control group of its own. `kind`: the version of the interface."""

    def __init__(self, name: str) -> None:
        self.kind = "v2 cpu.max" if (V2 / "cgroup.controllers").is_file() else "v1 cpu.cfs_quota_us"
        self.folder = (V2 if self.kind.startswith("v2") else V1) / f"hams-{os.getpid()}-{name}"
        self.folder.mkdir()

    def limit(self, share: float) -> None:
        """So much of one core from now on; 0: as much as there is."""
        quota = str(round(share * PERIOD_US)) if share else ""
        if self.kind.startswith("v2"):
            (self.folder / "cpu.max").write_text(f"{quota or 'max'} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(quota or "-1")

    def start(self, *words: str, **rest: Any) -> subprocess.Popen[str]:
        """A process that begins its life in the group; so do all its children."""
        inside = f'echo $$ > "{self.folder}/cgroup.procs"; exec "$@"'
        return subprocess.Popen(["sh", "-c", inside, "sh", *words], text=True, **rest)

    def throttled_s(self) -> float:
        """How long processes of the group wanted CPU and did not get it, by their quota."""
        stat = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return int(stat.get("throttled_time", 0)) / 1e9 + int(stat.get("throttled_usec", 0)) / 1e6

    def close(self) -> None:
        """Gone, once the last process in it has ended."""
        for _ in range(200):
            try:
                self.folder.rmdir()
            except OSError:
                time.sleep(0.05)
            else:
                return


class Asking(threading.Thread):
    """One client: a key after the other, each sent again until it is answered."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.replies: dict[str, dict[str, Any]] = {}
        self.sent = 0
        self.trouble: dict[str, int] = {}
        self.slowest_s = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(PAUSE_S):
            self.sent += 1
            began = time.monotonic()
            key = f"row-{self.sent}"
            while (answer := self.ask(key)) is None:
                if self.over.wait(PAUSE_S):
                    return
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.replies[key] = answer

    def ask(self, key: str) -> dict[str, Any] | None:
        """The outputs, by name; None if there was no answer, which is noted."""
        body = {"inputs": [{"name": "value", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            connection.request("POST", "/v2/models/hello/infer", json.dumps(body), {"Idempotency-Key": key})
            answer = connection.getresponse()
            reply = json.loads(answer.read())
            if answer.status == 200:
                return {item["name"]: item["data"][0] for item in reply["outputs"]}
            why = f"{answer.status} {reply.get('error', '')}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = type(error).__name__
        finally:
            connection.close()
        self.trouble[why] = self.trouble.get(why, 0) + 1
        return None


def hams(*words: str) -> subprocess.CompletedProcess[str]:
    """One `hams` command, and what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "hams_operator.cli.main", *words], text=True, capture_output=True, check=False
    )


def conditions() -> dict[str, str]:
    """The conditions as `hams status` tells them; none if it does not answer."""
    status = hams("status", "--output", "json")
    with contextlib.suppress(ValueError, KeyError):
        return {
            item["type"]: f"{item['status']}: {item['message']}"
            for item in json.loads(status.stdout)["conditions"]
        }
    return {}


def instances(logs: Path) -> int:
    """How many instances were ever started: each has a log, and a number in its name."""
    matches = [re.match(r"[a-z]+-(\d+)-", path.name) for path in logs.glob("*.log")]
    return max((int(item.group(1)) for item in matches if item), default=0)


def starve(
    graph: ControlGroup, share: float, loops: int, seconds: float, sleep: Callable[[float], None]
) -> None:
    """The graph starves for so long."""
    if share:
        graph.limit(share)
        sleep(seconds)
        graph.limit(0.0)
        return
    groups = [ControlGroup(f"loop-{number}") for number in range(loops)]
    busy = [group.start("sh", "-c", "while :; do :; done") for group in groups]
    try:
        sleep(seconds)
    finally:
        for process in busy:
            process.kill()
            process.wait()
        for group in groups:
            group.close()


def until_in_sync() -> tuple[dict[str, str], float]:
    """The conditions of the graph once it is ready and redundant, or after GIVE_UP_S, and the seconds."""
    since = time.monotonic()
    while True:
        present = conditions()
        if all(present.get(kind, "").startswith("True") for kind in ("Ready", "Redundant")):
            break
        if time.monotonic() > since + GIVE_UP_S:
            break
        time.sleep(0.5)
    return present, time.monotonic() - since


def lost_lines(history: Path) -> list[dict[str, Any]]:
    """The lines of a history that say that a state or a fan-out was lost."""
    return [
        line
        for path in history.glob("*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
        if line.get("t") == "lost" or line.get("kind") == "lost"
    ]


def measure(share: float, loops: int, seconds: float, port: int, folder: Path) -> dict[str, Any]:
    """One run; see the top of this file."""
    os.environ["HAMS_HOME"] = str(folder / "home")
    logs, history = folder / "home" / "hello" / "logs", folder / "history"
    subprocess.run(
        [sys.executable, "-m", "hams_operator.cli.main", "init", str(folder / "hello")], check=True
    )
    group = ControlGroup("graph")
    graph = str(folder / "hello" / "graph.yaml")
    options = ("--port", str(port), "--detach", "--history", str(history))
    asking = Asking(port)
    try:
        began = group.start(sys.executable, "-m", "hams_operator.cli.main", "up", graph, *options)
        if began.wait():
            raise SystemExit("hams up did not start the graph")
        started = instances(logs)
        asking.start()
        time.sleep(5)
        starve(group, share, loops, seconds, time.sleep)
        replaced = instances(logs) - started
        present, in_sync_s = until_in_sync()
        asking.over.set()
        asking.join()
        wrong = [
            key
            for key, reply in list(asking.replies.items())[:: max(1, len(asking.replies) // 20)]
            if asking.ask(key) not in (reply, None)
        ]
        last = asking.ask("the last")
        throttled_s = group.throttled_s()
        later = instances(logs) - started - replaced
    finally:
        hams("down", "--graph", "hello")
        group.close()
    count = -1 if last is None else int(last["count"]) - 1
    acknowledged = len(asking.replies)
    counts = sorted(int(reply["count"]) for reply in asking.replies.values())
    return {
        "form": f"quota of {share:.0%} of a core, {group.kind}" if share else f"beside {loops} busy loops",
        "seconds": seconds,
        "replaced": replaced,
        "replaced later": later,
        "in sync after s": round(in_sync_s, 1),
        "conditions": present,
        "lost": lost_lines(history),
        "acknowledged": acknowledged,
        "sent": asking.sent,
        "counted": count,
        "answered otherwise": wrong,
        "counts twice": len(counts) - len(set(counts)),
        "slowest request s": round(asking.slowest_s, 1),
        "trouble": asking.trouble,
        "throttled s": round(throttled_s, 1),
    }


def judge(result: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    odd = []
    if result["lost"] or "lost" in result["conditions"].get("Ready", ""):
        odd.append("a state was lost")
    if not result["acknowledged"] <= result["counted"] <= result["sent"]:
        odd.append(
            f"the state has counted {result['counted']}, {result['acknowledged']} were acknowledged, "
            f"{result['sent']} sent"
        )
    if result["answered otherwise"] or result["counts twice"]:
        odd.append("a key has two replies, or two keys have one count")
    if result["replaced"] > REPLACED_MAX:
        odd.append(f"{result['replaced']} instances were replaced; the goal is {REPLACED_MAX}")
    if result["in sync after s"] > IN_SYNC_S:
        odd.append(f"in sync after {result['in sync after s']} s; the goal is {IN_SYNC_S:g} s")
    return odd


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser("python -m benchmarks.starvation", description=__doc__)
    parser.add_argument("--share", type=float, default=0.0, help="of one core, for the whole graph")
    parser.add_argument("--loops", type=int, default=0, help="busy loops beside it")
    parser.add_argument("--port", type=int, default=18477, help="and the next one")
    parser.add_argument("--seconds", type=seconds, default=300.0)
    parser.add_argument("--keep", action="store_true", help="leave logs and history where they are")
    given = parser.parse_args()
    if bool(given.share) == bool(given.loops):
        parser.error("expected --share or --loops")
    folder = Path(tempfile.mkdtemp(prefix="hams-starvation-"))
    result = measure(given.share, given.loops, given.seconds, given.port, folder)
    odd = judge(result)
    print(json.dumps({**result, "odd": odd, "folder": str(folder) if given.keep else ""}, indent=1))
    if not given.keep:
        shutil.rmtree(folder)
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
