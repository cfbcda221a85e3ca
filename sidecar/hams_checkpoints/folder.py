"""The checkpoints of one operator: one file per durable version of its state, whole or not there (F32).

    MAGIC | length of head, 8 bytes | head (JSON) | metadata | payloads | SHA-256 of all before

Only the user who runs the graph can read them, as they hold the models' states. A file gets its name only
after it is complete and on disk; a torn or changed one is recognised by its length and checksum, and skipped:
whatever is wrong with a file, the next older one is tried. Never: no file is changed, and of the newest
`keep` none is removed.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from hams_checkpoints.partial import PARTIAL, new_partial, remove_abandoned
from hams_protocol.frozen import frozen
from hams_protocol.messages import StateCopy
from hams_wire.errors import UNDECODABLE, ResponsibleParty, WireError
from hams_wire.peers.codec import Codec
from hams_wire.peers.errors import BadFrame

log = logging.getLogger("hams.checkpoints")

MAGIC = b"HAMSCP1\n"
SUFFIX = ".checkpoint"
DIGEST_BYTES = 32

head_bytes_max = 4 * 1024 * 1024
"""Head of one file; most of it are the sizes of the payloads."""


class InvalidCheckpoint(WireError):
    """A file that is torn, changed, or not a checkpoint of this operator."""

    responsible = ResponsibleParty.OURS


@frozen
class CheckpointHead:
    """What a file says of itself. `sizes` are the bytes of each payload, empty if there is none."""

    graph: str
    operator: str
    epoch: int
    version: int
    code: int
    metadata_nbytes: Annotated[int, msgspec.Meta(ge=0)]
    sizes: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class CheckpointFolder:
    """The checkpoints of one operator of one graph, in `<directory>/<graph>/<operator>/`."""

    def __init__(self, directory: str, graph: str, operator: str) -> None:
        self._graph = graph
        self._operator = operator
        self.folder = Path(directory) / graph / operator

    def write(self, copy: StateCopy, codec: Codec, by: str, keep: int) -> Path:
        """Remove what dead writers left, write one, then remove all but the newest `keep`. Blocks. Raises
        OSError, NotSendable."""
        encoded = codec.encode(copy)
        head = msgspec.json.encode(
            CheckpointHead(
                self._graph,
                self._operator,
                copy.epoch,
                copy.version,
                encoded.code,
                len(encoded.metadata),
                encoded.sizes,
            )
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        # First, not last: a volume may have room for `keep` files and one more, and nothing beside.
        remove_abandoned(self.folder)
        number = max((_number(path) for path in self._files()), default=0) + 1
        target = self.folder / f"{number:012d}-{by}{SUFFIX}"
        partial = target.with_suffix(PARTIAL)
        digest = hashlib.sha256()
        with new_partial(partial) as stream:
            parts: list[bytes | memoryview] = [
                MAGIC,
                len(head).to_bytes(8, "big"),
                head,
                encoded.metadata,
                *encoded.views,
            ]
            for part in parts:
                digest.update(part)
                stream.write(part)
            stream.write(digest.digest())
            stream.flush()
            os.fsync(stream.fileno())
            partial.rename(target)
        _sync(self.folder)
        for old in self._files()[keep:]:
            old.unlink(missing_ok=True)
        return target

    def newest(self, codec: Codec) -> StateCopy | None:
        """The newest valid one; None if there is none. Blocks. Invalid ones are named in the log. Raises
        NoRoom if no memory is left for it."""
        for path, head in self.heads():
            try:
                return self._read(path, head, codec)
            except (InvalidCheckpoint, OSError) as error:
                log.warning("checkpoint skipped: %s", error)
        return None

    def heads(self) -> Iterator[tuple[Path, CheckpointHead]]:
        """All that are whole, with what they say of themselves, newest first. Blocks."""
        for path in self._files():
            try:
                head = self._head(path)
                _verify(path)
                yield path, head
            except (InvalidCheckpoint, OSError) as error:
                log.warning("checkpoint skipped: %s", error)

    def _files(self) -> list[Path]:
        return sorted(
            self.folder.glob(f"*{SUFFIX}"), key=lambda path: (_number(path), path.name), reverse=True
        )

    def _head(self, path: Path) -> CheckpointHead:
        with path.open("rb") as stream:
            start = stream.read(len(MAGIC) + 8)
            nbytes = int.from_bytes(start[len(MAGIC) :], "big")
            if start[: len(MAGIC)] != MAGIC or nbytes > min(path.stat().st_size, head_bytes_max):
                raise InvalidCheckpoint(f"{path} is not a checkpoint, or torn")
            try:
                head = msgspec.json.decode(stream.read(nbytes), type=CheckpointHead)
            except UNDECODABLE as error:
                raise InvalidCheckpoint(f"{path}: {error}") from None
        whole = len(MAGIC) + 8 + nbytes + head.metadata_nbytes + sum(head.sizes) + DIGEST_BYTES
        if path.stat().st_size != whole:
            raise InvalidCheckpoint(f"{path} is torn: expected {whole} bytes, found {path.stat().st_size}")
        if (head.graph, head.operator) != (self._graph, self._operator):
            raise InvalidCheckpoint(
                f"{path} is of {head.operator} in {head.graph}, not of {self._operator} in {self._graph}"
            )
        return head

    def _read(self, path: Path, head: CheckpointHead, codec: Codec) -> StateCopy:
        with path.open("rb") as stream:
            stream.seek(len(MAGIC))
            stream.seek(len(MAGIC) + 8 + int.from_bytes(stream.read(8), "big"))
            metadata = stream.read(head.metadata_nbytes)
            try:
                if not head.sizes:
                    message = codec.decode(head.code, metadata)
                else:
                    incoming = codec.begin(head.code, metadata)
                    if incoming.sizes != head.sizes:
                        raise InvalidCheckpoint(f"{path}: the head tells other payloads than the metadata")
                    rooms = [codec.factory.allocate(size) for size in head.sizes]
                    for room in rooms:  # their sum was compared with the file's size
                        stream.readinto(room.view)
                    message = codec.finish(incoming, rooms)
            except BadFrame as error:
                raise InvalidCheckpoint(f"{path}: {error}") from None
        if not isinstance(message, StateCopy) or (message.op, message.epoch, message.version) != (
            self._operator,
            head.epoch,
            head.version,
        ):
            raise InvalidCheckpoint(f"{path} does not hold what its head tells")
        if message.state is not None and message.state.defect:
            raise InvalidCheckpoint(f"{path}: the state cannot be read: {message.state.defect}")
        return message


def _number(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _verify(path: Path) -> None:
    """Compare the checksum. Raises InvalidCheckpoint."""
    digest = hashlib.sha256()
    left = path.stat().st_size - DIGEST_BYTES
    with path.open("rb") as stream:
        while left > 0:
            part = stream.read(min(left, 1 << 20))
            if not part:
                break
            digest.update(part)
            left -= len(part)
        if left or stream.read() != digest.digest():
            raise InvalidCheckpoint(f"{path} was changed or is torn: its checksum differs")


def _sync(folder: Path) -> None:
    """The new name itself is on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
