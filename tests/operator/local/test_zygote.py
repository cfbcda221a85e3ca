"""Forked processes end as those of a plain interpreter do, wherever the user stands."""

import asyncio
import socket
from pathlib import Path

import pytest

from hams_operator.local.nursery import Nursery, NurseryLost


async def _run(folder: Path, body: str) -> tuple[int, str]:
    """The exit status and the log of a forked process whose `main` has this body."""
    (folder / "own.py").write_text(f"import sys\ndef main(arguments):\n    {body}\n")
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    nursery = Nursery(lambda pid, status: ended.set_result(status))
    await nursery.start(("json",), folder / "warm.log")
    try:
        await nursery.spawn("own", [], {}, folder, folder / "own.log")
        status = await ended
    finally:
        await nursery.close()
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


async def test_files_of_the_current_folder_are_not_taken_for_the_standard_library(tmp_path, monkeypatch):
    users = tmp_path / "users"
    users.mkdir()
    (users / "json.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(users)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert await _run(tmp_path, "print('it runs')") == (0, "it runs\n")


async def test_one_that_dies_with_requests_unread_is_lost(tmp_path):
    """Closing a Unix socket with bytes unread resets it: whoever waits is told all the same."""
    nursery = Nursery(lambda pid, status: None)
    ours, theirs = socket.socketpair()
    reader, nursery._writer = await asyncio.open_connection(sock=ours)
    nursery._reading = asyncio.create_task(nursery._read(reader))
    asked = asyncio.create_task(nursery.spawn("m", [], {}, tmp_path, tmp_path / "log"))
    theirs.setblocking(False)
    await asyncio.get_running_loop().sock_recv(theirs, 1)
    theirs.close()
    with pytest.raises(NurseryLost):
        await asked
    assert nursery.lost.is_set()
    await nursery.close()
