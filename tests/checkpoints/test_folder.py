"""Checkpoints on disk: whole, newest first, and what is torn or changed is skipped (F32)."""

import os

import pytest

from hams_checkpoints.folder import SUFFIX, CheckpointFolder
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.messages import Completion, Consumed, Kind, Meta, StateCopy, Token
from hams_wire.peers.codec import Codec
from hams_wire.peers.payload import HeapFactory, HeapPayload, TensorInfo

CODEC = Codec(HeapFactory())


def payload(text: bytes, *tensors: TensorInfo) -> HeapPayload:
    return HeapPayload(tensors, memoryview(bytearray(text)))


def copy(version: int, epoch: int = 1, state: bytes = b"state") -> StateCopy:
    request = RequestId(0, version)
    token = Token(
        request,
        (),
        "p",
        Kind.VALUE,
        "p-1:1",
        (),
        ("F",),
        Meta(),
        payload=payload(b"12345678", TensorInfo("a", "FP32", (1, 2), 0, 8)),
    )
    units = (Consumed(UnitId(request, ()), version, "p-1:1", (("F", token),), (token,)),)
    return StateCopy(
        "p",
        epoch,
        version,
        units,
        Completion(((0, version, (version + 2,)),)),
        "chain",
        payload(state),
        "layout",
    )


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(str(tmp_path), "g", "p")


def test_everything_comes_back(folder):
    folder.write(copy(3), CODEC, "p-1", 2)
    assert folder.newest(CODEC) == copy(3)


def test_there_may_be_none(folder):
    assert folder.newest(CODEC) is None
    assert list(folder.heads()) == []


def test_the_newest_ones_are_kept_whatever_their_versions(folder):
    for version, epoch, by in ((7, 1, "p-1"), (9, 1, "p-2"), (4, 2, "p-1")):
        folder.write(copy(version, epoch), CODEC, by, 2)
    assert [(head.epoch, head.version) for _, head in folder.heads()] == [(2, 4), (1, 9)]
    assert folder.newest(CODEC) == copy(4, 2), "a later run, or a later epoch, begins below"
    assert len(list(folder.folder.iterdir())) == 2, "nothing else is left"


@pytest.mark.parametrize("at", [0, 12, 40, -200, -33, -1])
def test_a_changed_file_is_skipped(folder, at):
    folder.write(copy(3), CODEC, "p-1", 3)
    path = folder.write(copy(5), CODEC, "p-1", 3)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert folder.newest(CODEC) == copy(3)


def test_whatever_single_byte_of_the_newest_file_is_wrong_the_next_older_one_is_taken(folder, caplog):
    """Each byte takes each value that means something to a reader: it ends a text, is none, or nests; and the
    head's lengths become huge."""
    folder.write(copy(3), CODEC, "p-1", 3)
    path = folder.write(copy(5), CODEC, "p-1", 3)
    data = path.read_bytes()
    for at in range(len(data)):
        for value in (0x00, 0x22, 0x2D, 0x5B, 0x80, 0xC3, 0xFF):
            if data[at] == value:
                continue
            path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            caplog.clear()
            assert folder.newest(CODEC) == copy(3), (at, value)
            assert "checkpoint skipped" in caplog.text


def test_a_head_that_asks_for_more_memory_than_a_head_may_have_is_skipped(folder, monkeypatch):
    folder.write(copy(3), CODEC, "p-1", 3)
    path = folder.write(copy(5), CODEC, "p-1", 3)
    monkeypatch.setattr("hams_checkpoints.folder.head_bytes_max", 10)
    assert folder.newest(CODEC) is None
    assert path.exists()


@pytest.mark.parametrize("left", [0, 5, 20, 100, -1])
def test_a_torn_file_is_skipped(folder, left):
    folder.write(copy(3), CODEC, "p-1", 3)
    path = folder.write(copy(5), CODEC, "p-1", 3)
    path.write_bytes(path.read_bytes()[:left])
    assert folder.newest(CODEC) == copy(3)


def test_one_of_another_operator_is_skipped(folder, tmp_path):
    path = folder.write(copy(3), CODEC, "p-1", 2)
    other = CheckpointFolder(str(tmp_path), "g", "q")
    other.folder.mkdir(parents=True)
    path.rename(other.folder / path.name)
    assert other.newest(CODEC) is None


def test_what_was_left_half_written_is_no_checkpoint(folder):
    path = folder.write(copy(3), CODEC, "p-1", 2)
    path.rename(path.with_suffix(".partial"))
    assert folder.newest(CODEC) is None
    folder.write(copy(4), CODEC, "p-1", 2)
    assert folder.newest(CODEC) == copy(4)


def test_a_disk_that_refuses_leaves_nothing_and_the_older_ones_whole(folder, monkeypatch):
    folder.write(copy(3), CODEC, "p-1", 2)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.write(copy(4), CODEC, "p-1", 2)
    assert [path.suffix for path in folder.folder.iterdir()] == [SUFFIX]
    assert folder.newest(CODEC) == copy(3)


def test_what_a_dead_writer_left_is_gone_before_the_next_file_takes_room(folder, monkeypatch):
    """F32: a volume with room for the kept files and one more."""
    folder.write(copy(1), CODEC, "p-1", 2)
    dead = folder.folder / "000000000002-p-9.partial"
    dead.write_bytes(b"half a state")
    fsync = os.fsync

    def flush(handle):
        assert not dead.exists()
        fsync(handle)

    monkeypatch.setattr("os.fsync", flush)
    folder.write(copy(2), CODEC, "p-1", 2)
    assert folder.newest(CODEC) == copy(2)


def test_a_file_that_another_writer_is_at_work_on_stays_and_is_finished(folder, monkeypatch):
    other = CheckpointFolder(str(folder.folder.parents[1]), "g", "p")
    fsync = os.fsync
    flushed = []

    def flush(handle):
        flushed.append(handle)
        if len(flushed) == 1:  # the other one's file is complete, and has no name yet
            folder.write(copy(4), CODEC, "p-1", 1)
        fsync(handle)

    monkeypatch.setattr("os.fsync", flush)
    path = other.write(copy(3), CODEC, "p-2", 3)
    assert [(head.version, name == path) for name, head in folder.heads()] == [(3, True), (4, False)]


def test_states_on_disk_are_for_their_owner_alone(folder):
    path = folder.write(copy(1), CODEC, "p-1", 2)
    assert path.stat().st_mode & 0o777 == 0o600
