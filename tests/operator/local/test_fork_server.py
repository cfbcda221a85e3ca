"""Forked processes end as those of a plain interpreter do, wherever the user stands."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from hams_operator.local.fork_client import ForkClient, ForkServerLost


async def _run(folder: Path, body: str) -> tuple[int, str]:
    """The exit status and the log of a forked process whose `main` has this body."""
    (folder / "own.py").write_text(f"import sys\ndef main(arguments):\n    {body}\n")
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    fork_client = ForkClient(lambda pid, status: ended.set_result(status))
    await fork_client.start(("json",), folder / "warm.log")
    try:
        await fork_client.spawn("own", [], {}, folder, folder / "own.log")
        status = await ended
    finally:
        await fork_client.close()
    return status, (folder / "own.log").read_text()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("sys.exit('no weights here')", 1, "no weights here\n"),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("return 4", 4, ""),
    ],
)
async def test_a_process_that_leaves_says_what_it_left_with(tmp_path, monkeypatch, body, status, said):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert await _run(tmp_path, body) == (status, said)


async def test_what_a_process_writes_is_for_its_user_alone(tmp_path, monkeypatch):
    """A model may print what it was asked. Whatever the umask allows."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    before = os.umask(0)
    try:
        assert await _run(tmp_path, "print('a name')") == (0, "a name\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "own.log").stat().st_mode) == 0o600


async def test_files_of_the_current_folder_are_not_taken_for_the_standard_library(tmp_path, monkeypatch):
    users = tmp_path / "users"
    users.mkdir()
    (users / "json.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(users)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert await _run(tmp_path, "print('it runs')") == (0, "it runs\n")


async def test_one_that_dies_with_requests_unread_is_lost(tmp_path):
    """Closing a Unix socket with bytes unread resets it: whoever waits is told all the same."""
    fork_client = ForkClient(lambda pid, status: None)
    ours, theirs = socket.socketpair()
    reader, fork_client._writer = await asyncio.open_connection(sock=ours)
    fork_client._reading = asyncio.create_task(fork_client._read(reader))
    asked = asyncio.create_task(fork_client.spawn("m", [], {}, tmp_path, tmp_path / "log"))
    theirs.setblocking(False)
    await asyncio.get_running_loop().sock_recv(theirs, 1)
    theirs.close()
    with pytest.raises(ForkServerLost):
        await asked
    assert fork_client.lost.is_set()
    await fork_client.close()
