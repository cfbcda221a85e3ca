"""What `hams profile` runs in a pod: it asks the proxy there what it has learnt, has all forget it, or reads
or gives what is stored.

As of `in_pod`, its source is sent to `python3 -c` as it stands: it imports the standard library only. How
etcd and the proxy are reached stands on the proxy's own command line.
"""

import http.client
import os
import sys


def proxy_in(folder: str) -> list[str]:
    """The command line of the pod's proxy, from what looks like /proc; empty: there is none."""
    for pid in filter(str.isdigit, os.listdir(folder)):
        if int(pid) == os.getpid():
            continue  # all the words that are looked for stand on its own command line
        try:
            with open(f"{folder}/{pid}/cmdline", encoding="utf-8", errors="replace") as line:
                words = line.read().split("\0")
        except OSError:
            continue
        if "hams_sidecar.proxy" in words:
            return words
    return []


def option(words: list[str], name: str) -> str:
    """What follows an option on a command line; empty if it is not there."""
    return words[words.index(name) + 1] if name in words[:-1] else ""


def show(words: list[str]) -> int:
    """Print what the proxy has learnt. The exit code."""
    headers, tls = {}, option(words, "--tls")
    if tls:
        with open(f"{tls}/probe-token", encoding="ascii") as token:
            headers["Authorization"] = f"Bearer {token.read().strip()}"
    connection = http.client.HTTPConnection("127.0.0.1", int(option(words, "--probe-port")), timeout=2)
    connection.request("GET", "/profile", headers=headers)
    answer = connection.getresponse()
    print(answer.read().decode(), file=sys.stdout if answer.status == 200 else sys.stderr)
    return 0 if answer.status in (200, 404) else 1


def on_key(words: list[str], action: str, *more: str) -> list[str]:
    """The command that reads or writes what is stored of this operator's times."""
    named = [(name, option(words, name)) for name in ("--graph", "--etcd", "--operator", "--tls")]
    return [
        words[0],
        "-m",
        "hams_sidecar.profile_key",
        action,
        *(word for name, value in named if value for word in (name, value)),
        *more,
    ]


def main(what: str, folder: str = "/proc", characters: str = "") -> int:
    """`what`: show, forget, read, or give what comes on stdin in so many characters. The exit code."""
    words = proxy_in(folder)
    if not words:
        print("no proxy runs in this pod", file=sys.stderr)
        return 1
    if what == "show":
        return show(words)
    command = on_key(words, what, *(("--characters", characters) if characters else ()))
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
