"""A state as a table of chunks, of which neighbouring versions share what did not change (protocol.md, 2).

A state's image is cut into chunks of `chunk_bytes`, whose law is in `hams_protocol.births`. What a follower
lacks is a `StateDifference`. Laid over the table that it holds, it makes the table of the newer version,
which shares the rest of the memory with it.
"""

import itertools
import struct
from collections.abc import Sequence

import numpy as np

from hams_protocol.births import born_after, laid_over
from hams_sidecar import limits
from hams_sidecar.arena import Buffer
from hams_sidecar.blocks import round_up
from hams_wire.peers.payload import WholePayload

_MAGIC = b"HAMSDF01"
_HEAD = struct.Struct("<8sIIQ")
"""Of a difference: magic, bytes of a chunk, number of chunks, bytes of the image. Then the places of the
chunks in the image, u32 each, ascending; padding to 64 bytes; the chunks, one after another."""


def count(nbytes: int) -> int:
    """Chunks of an image of so many bytes."""
    return -(-nbytes // limits.chunk_bytes)


def size_at(index: int, nbytes: int) -> int:
    """Bytes of the chunk at a place of an image of `nbytes`: only the last one may be smaller."""
    return min(limits.chunk_bytes, nbytes - index * limits.chunk_bytes)


def sizes_of(indices: Sequence[int], nbytes: int) -> list[int]:
    """Bytes of the chunks at these places, ascending, of an image of `nbytes`."""
    sizes = [limits.chunk_bytes] * len(indices)
    if indices:
        sizes[-1] = size_at(indices[-1], nbytes)
    return sizes


class ChunkTable(WholePayload):
    """A whole state, chunk by chunk (`hams_protocol.messages.Payload`). Equality is identity."""

    __slots__ = ("births", "chunks", "fresh_nbytes", "nbytes")
    fresh_nbytes: int
    nbytes: int

    def __init__(self, chunks: Sequence[Buffer], births: Sequence[int], fresh_nbytes: int) -> None:
        """`fresh_nbytes`: of the chunks that no older version shares."""
        self.chunks = tuple(chunks)
        self.births = tuple(births)
        self.nbytes = sum([chunk.nbytes for chunk in self.chunks])
        self.fresh_nbytes = fresh_nbytes

    @classmethod
    def cut(cls, image: Buffer, born: int) -> "ChunkTable":
        """The table of an image that lies in one buffer; all of it was born in one version."""
        parts = image.parts or image.split(sizes_of(range(count(image.nbytes)), image.nbytes))
        chunks = parts[: count(image.nbytes)]
        return cls(chunks, [born] * len(chunks), image.nbytes)

    def with_changed(self, changed: dict[int, Buffer], nbytes: int, born: int) -> "ChunkTable | None":
        """The table of a later version: an image of `nbytes`, with these chunks at their places. None if a
        place is left without a chunk of its size."""
        if nbytes < 0:
            return None
        number = count(nbytes)
        births = laid_over(self.births, changed, number, born)
        if births is None or not all(0 <= index < number for index in changed):
            return None
        chunks = [*self.chunks[:number], *[changed[index] for index in range(len(self.chunks), number)]]
        for index, chunk in changed.items():
            chunks[index] = chunk
        last = number - 1
        if any(chunk.nbytes != limits.chunk_bytes for index, chunk in changed.items() if index != last):
            return None
        # What did not change has its size. Only the end of an image has another one, which may have moved.
        ends = {last, len(self.chunks) - 1}
        if any(chunks[at].nbytes != size_at(at, nbytes) for at in ends if 0 <= at < number):
            return None
        return ChunkTable(chunks, births, sum([chunk.nbytes for chunk in changed.values()]))

    def born_by(self, version: int) -> "ChunkTable":
        """This table as that of `version`: no chunk of it was born later than that."""
        if max(self.births, default=0) <= version:
            return self
        return ChunkTable(self.chunks, [min(born, version) for born in self.births], self.fresh_nbytes)

    def born_after(self, version: int, newest: int) -> "StateDifference | None":
        """See `Payload`."""
        indices = born_after(self.births, version)
        return None if indices is None else StateDifference(self.nbytes, indices, self)

    def views(self, indices: Sequence[int] | None = None) -> list[memoryview]:
        """The bytes of its chunks, in order; those that lie side by side in one view."""
        chosen = self.chunks if indices is None else [self.chunks[index] for index in indices]
        views: list[memoryview] = []
        run: list[Buffer] = []
        for chunk in chosen:
            if run and (run[-1].offset + run[-1].nbytes != chunk.offset or run[-1].arena is not chunk.arena):
                views.append(run[0].arena.span(tuple(run)))
                run = []
            run.append(chunk)
        if run:
            views.append(run[0].arena.span(tuple(run)))
        return views

    def __repr__(self) -> str:
        return f"ChunkTable({len(self.chunks)} chunks, {self.fresh_nbytes} of {self.nbytes} bytes fresh)"


class StateDifference(WholePayload):
    """The chunks of a state at `indices` (`hams_protocol.messages.Payload`), as they are sent."""

    __slots__ = ("_head", "_indices", "_table", "nbytes")
    nbytes: int

    def __init__(self, nbytes: int, indices: Sequence[int] = (), table: ChunkTable | None = None) -> None:
        """`nbytes`: of the whole state. `table`: has those chunks, if there are any."""
        self._table = ChunkTable((), (), 0) if table is None else table
        self._indices = indices
        head = _HEAD.pack(_MAGIC, limits.chunk_bytes, len(indices), nbytes)
        head += np.asarray(indices, dtype="<u4").tobytes()
        self._head = head + bytes(-len(head) % 64)
        self.nbytes = len(self._head) + sum([self._table.chunks[index].nbytes for index in indices])

    def views(self) -> list[memoryview]:
        """What is sent."""
        return [memoryview(self._head), *self._table.views(self._indices)]

    def __repr__(self) -> str:
        return f"StateDifference({len(self._indices)} chunks)"


def table_of(received: Buffer, base: ChunkTable, version: int) -> ChunkTable | None:
    """The table of `version` that the bytes of a difference make of `base`, sharing its memory. None if they
    are none, or do not fit: whatever a peer sends, no state with a hole or a chunk of another size comes of
    it."""
    data = received.view
    if len(data) < _HEAD.size:
        return None
    magic, chunk_bytes, number, nbytes = _HEAD.unpack_from(data)
    start = round_up(_HEAD.size + 4 * number)
    if magic != _MAGIC or chunk_bytes != limits.chunk_bytes or start > len(data):
        return None
    if count(nbytes) > min(len(base.chunks) + number, limits.chunks_max):
        return None
    indices: list[int] = np.frombuffer(data, "<u4", number, _HEAD.size).tolist()
    ascending = all(left < right for left, right in itertools.pairwise(indices))
    if not ascending or (indices and indices[-1] >= count(nbytes)):
        return None
    sizes = sizes_of(indices, nbytes)
    if start + sum(sizes) != received.nbytes:
        return None
    parts = received.parts or received.split([start, *sizes])
    return base.with_changed(dict(zip(indices, parts[1:], strict=False)), nbytes, version)
