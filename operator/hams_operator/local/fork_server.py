"""A warmed process that forks others: imports are paid once, not once per process.

It imports what its children need, then reads requests from a socket, one JSON object per line, forks, and
reports exits. It never runs an event loop or a thread of its own, so that a fork is safe. Children die with
it, and it dies with the process that started it (PR_SET_PDEATHSIG): nothing is ever left behind.

Request: `{"id": n, "module": "a.b", "arguments": [...], "environment": {...}, "folder": path, "log":
path}`: the child calls `a.b.main(arguments)` and ends with what that returns. Answers: `{"id": n, "pid":
pid}`; `{"pid": pid, "status": exit status, negative for a signal}`.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback

from hams_operator.local.parent_death_signal import die_with_parent


def main() -> None:
    """`python -m hams_operator.local.fork_server FD MODULE...`: warm up, then serve until the socket
    closes."""
    descriptor, *modules = sys.argv[1:]
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(descriptor))
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            sys.stderr.write(f"not warmed: {error}\n")
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    channel.sendall(b'{"warm": true}\n')
    _serve(channel, wake_read)


def _serve(channel: socket.socket, wake: int) -> None:
    received = b""
    while True:
        ready, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        _reap(channel)
        if channel.fileno() not in ready:
            continue
        data = channel.recv(1 << 16)
        if not data:
            os._exit(0)
        received += data
        *lines, received = received.split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = _fork(request, channel)
            channel.sendall(json.dumps({"id": request["id"], "pid": pid}).encode() + b"\n")


def _reap(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.sendall(
            json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}).encode() + b"\n"
        )


def _fork(request: dict[str, object], channel: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        status = _child(request, channel, parent)
    except SystemExit as leaving:
        status = _status_of(leaving)
    finally:
        if sys.exc_info()[1] is not None:  # nobody above hears of it: the log is all that can be told why
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _status_of(leaving: SystemExit) -> int:
    """What Python makes of a SystemExit: nothing is 0, a number itself, anything else is said, and 1."""
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    sys.stderr.write(f"{leaving.code}\n")
    return 1


def _child(request: dict[str, object], channel: socket.socket, parent: int) -> int:
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    channel.close()
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    module = importlib.import_module(str(request["module"]))
    result = module.main([str(item) for item in arguments])
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
