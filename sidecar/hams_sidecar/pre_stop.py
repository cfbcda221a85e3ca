"""The preStop hook of a proxy's container: it tells the proxy to leave.

The kubelet runs it when the pod has to end. Only then does the proxy begin to hand its role over, so the
hook imports nothing but the standard library. Never: waits for the proxy.
"""

import os
import signal
import sys


def main(pid_file: str) -> None:
    """`pid_file`: what the proxy has written by its `--pid-file`. Raises OSError if there is no such file or
    process, and ValueError if it holds no number; the kubelet reports that and ends the container all the
    same."""
    with open(pid_file, encoding="ascii") as file:
        pid = int(file.read())
    os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
