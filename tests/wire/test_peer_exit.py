"""What the kernel says of a peer's process."""

import os
import signal
import socket

import pytest

from hams_wire import peer_exit


@pytest.fixture
def child():
    """A process at the other end of a socket, which lives until it is killed."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        theirs.send(b"1")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    ours.recv(1)
    yield pid, ours
    ours.close()
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def test_a_killed_process_is_ending_as_soon_as_its_connection_is_broken(child):
    pid, connection = child
    assert not peer_exit.is_ending(pid)
    os.kill(pid, signal.SIGKILL)
    assert connection.recv(1) == b""
    assert peer_exit.is_ending(pid), "before anybody has waited for it"
    os.waitpid(pid, 0)
    assert peer_exit.is_ending(pid), "and when it is gone"


def test_a_stopped_process_is_not_ending(child):
    pid, _ = child
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert not peer_exit.is_ending(pid)


def test_what_cannot_be_seen_counts_as_living():
    assert not peer_exit.is_ending(0)
    assert not peer_exit.is_ending(os.getpid())
