"""Lines of a history as they stand in a file, and the writer that puts them there."""

import errno
import hashlib
import json
import os
import signal
import stat
import struct
import sys
from pathlib import Path

import pytest

from hams_history.lines import (
    ApplyLine,
    CompleteLine,
    ExecLine,
    GraphLine,
    HistoryExists,
    HistoryLineTooLong,
    HistoryNotWritten,
    HistoryWriter,
    LogLine,
    OperatorEntry,
    decode,
    encode,
    line_bytes_max,
    tensor_digest,
    writer_from,
)

EXEC = ExecLine(
    i="p-1",
    gen=1,
    op="p",
    epoch=1,
    seq=1,
    version=1,
    req="0/0",
    lane=(),
    inputs=("0/0",),
    out="p-1:1",
    route=("F",),
    chain="a1",
)


def test_a_line_has_the_names_of_the_format() -> None:
    assert json.loads(encode(EXEC)) == {
        "t": "exec",
        "i": "p-1",
        "gen": 1,
        "op": "p",
        "epoch": 1,
        "seq": 1,
        "version": 1,
        "req": "0/0",
        "lane": [],
        "in": ["0/0"],
        "out": "p-1:1",
        "route": ["F"],
        "chain": "a1",
    }
    fed_back = LogLine(i="F-1", gen=1, req="0/0", key=None, source="p-1:1")
    assert json.loads(encode(fed_back)) == {
        "t": "log",
        "i": "F-1",
        "gen": 1,
        "req": "0/0",
        "key": None,
        "from": "p-1:1",
    }


def test_what_is_required_is_written_even_if_it_is_null_or_empty() -> None:
    skip = ExecLine(
        i="p-1", gen=1, op="p", epoch=1, seq=1, version=1, req="0/0", lane=(), inputs=(), out=None, route=()
    )
    line = json.loads(encode(skip))
    assert (line["out"], line["in"], line["route"], line["lane"]) == (None, [], [], [])
    assert "chain" not in line
    assert "slot" not in line


def test_a_line_read_back_is_the_same_line() -> None:
    header = GraphLine(
        operators={"p": OperatorEntry(kind="stateful", join="combine", inputs=("F",), outputs=("F",))},
        ordered=True,
        want={"p": 1},
    )
    for line in (
        EXEC,
        header,
        ApplyLine(i="b", gen=1, op="p", epoch=1, version=3, snapshot=True, at=2.5),
        CompleteLine(req="0/0"),
    ):
        assert decode(encode(line)) == line


def test_lines_appear_in_their_file_at_once_and_in_order(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "history", "p-1")
    writer.write(EXEC)
    assert writer.path.read_bytes() == encode(EXEC)
    writer.write(CompleteLine(req="0/0"), CompleteLine(req="0/1"))
    assert [decode(text) for text in writer.path.read_bytes().splitlines()] == [
        EXEC,
        CompleteLine(req="0/0"),
        CompleteLine(req="0/1"),
    ]
    writer.close()
    writer.close()


def test_a_history_is_for_its_user_alone(tmp_path: Path) -> None:
    """Whatever the umask allows."""
    before = os.umask(0)
    try:
        writer = HistoryWriter(tmp_path, "p-1")
    finally:
        os.umask(before)
    writer.close()
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600


def test_a_folder_holds_one_history(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, "p-1").close()
    with pytest.raises(HistoryExists, match="exists already"):
        HistoryWriter(tmp_path, "p-1")
    HistoryWriter(tmp_path, "p-2").close()


def test_a_file_where_the_folder_should_be_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(HistoryNotWritten, match=r"folder .*notes cannot be made: File exists"):
        HistoryWriter(tmp_path / "notes", "p-1")


@pytest.mark.parametrize("name", ["", "../p", "a/b", ".hidden", "x" * 201, "p 1"])
def test_an_instance_id_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a history file"):
        HistoryWriter(tmp_path, name)


def test_a_line_that_is_too_long_is_refused_with_its_whole_call(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "p-1")
    empty = len(encode(CompleteLine(req="")))
    longest = CompleteLine(req="x" * (line_bytes_max - empty))
    writer.write(longest)
    with pytest.raises(HistoryLineTooLong):
        writer.write(EXEC, CompleteLine(req=longest.req + "x"))
    assert writer.path.read_bytes() == encode(longest)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """A file-size limit is what a full disk looks like to a process: first a short write, then none."""
    reader, end = os.pipe()
    child = os.fork()
    if child == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = HistoryWriter(tmp_path, "p-1")
        writer.write(EXEC)
        room = len(encode(EXEC)) + 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room * 10))
        errors = []
        for _ in range(2):
            try:
                writer.write(EXEC)
            except HistoryNotWritten as error:
                errors.append("no space" if error.no_space else errno.errorcode.get(error.code or 0, "?"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (room * 10, room * 10))
        writer.write(CompleteLine(req="0/0"))
        os.write(end, ",".join(errors).encode())
        os._exit(0)
    os.close(end)
    errors_read = os.read(reader, 1000)
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0
    assert errors_read == b"no space,no space"
    assert [decode(text) for text in (tmp_path / "p-1.jsonl").read_bytes().splitlines()] == [
        EXEC,
        CompleteLine(req="0/0"),
    ]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryNotWritten, match="cannot be made"):
        HistoryWriter(tmp_path / "file" / "below", "p-1")


def test_what_was_written_outlives_a_killed_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        writer = HistoryWriter(tmp_path, "p-1")
        writer.write(EXEC)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (tmp_path / "p-1.jsonl").read_bytes() == encode(EXEC)


def test_recording_is_off_by_default(tmp_path: Path) -> None:
    assert writer_from({}, "p-1") is None
    assert writer_from({"HAMS_HISTORY": ""}, "p-1") is None
    writer = writer_from({"HAMS_HISTORY": str(tmp_path)}, "p-1")
    assert writer is not None
    assert writer.path == tmp_path / "p-1.jsonl"


# ---- digests ----


def test_a_digest_is_over_tensors_by_name_and_knows_where_each_part_ends() -> None:
    one = ("x", "FP32", (1, 2), struct.pack("<2f", 1.0, 2.0))
    two = ("y", "INT64", (1,), struct.pack("<q", 7))
    assert tensor_digest([one, two]) == tensor_digest([two, one])
    assert tensor_digest([one]) != tensor_digest([one, two])
    assert tensor_digest([one]) != tensor_digest([("x", "FP32", (2, 1), one[3])])
    assert tensor_digest([("ab", "c", (), b"")]) != tensor_digest([("a", "bc", (), b"")])
    assert tensor_digest([one]) == tensor_digest([("x", "FP32", (1, 2), memoryview(one[3]))])
    expected = hashlib.sha256()
    for part in (b"x", b"FP32", struct.pack("<2q", 1, 2), one[3]):
        expected.update(struct.pack("<Q", len(part)) + part)
    assert tensor_digest([one]) == expected.hexdigest()[:16]


def test_little_endian_is_what_this_machine_has() -> None:
    """Tensors are digested as they lie in memory."""
    assert sys.byteorder == "little"
