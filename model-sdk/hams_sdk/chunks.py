"""Which chunks of a state changed since its last capture, and the copy of those alone (proto/model.md, 5).

A state's image is cut into chunks. The capture compares each with the chunk at its place of the newest image,
which lies in shared memory, byte by byte, and copies those that differ. Equality is by bytes, nothing less:
version counters miss writes by aliases, by `.data` and of running statistics.

Dense leaves, all of whose chunks changed in `DENSE_CAPTURES` captures running, are copied uncompared, and
compared again every `DENSE_AGAIN`-th time: a chunk that is shipped though it did not change is never wrong.
"""

import bisect
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DENSE_CAPTURES = 8
"""A leaf all of whose chunks changed in so many captures running is copied uncompared."""

DENSE_AGAIN = 64
"""Such a leaf is compared again in every one of so many captures."""

DENSE_CHUNKS_MIN = 4
"""Smaller leaves are always compared: their chunks are shared with others."""

BLOCK_CHUNKS_MAX = 16
"""Chunks that are compared in one call: one that differs is looked for only where the whole differs."""

ALIGN = 64
"""Leaves of an image begin at multiples of this."""

_libc = ctypes.CDLL(None)
_compare = _libc.memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_compare.restype = ctypes.c_int
# Both let other threads run meanwhile: a compute stage goes on beside a capture.


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [begin, end) of an image, and where they are now; `held` keeps that memory. `leaf`: which leaf,
    -1 if it is not exactly one. `written`: what alone may differ from the base, bytes [begin, end) of the
    image, ascending; None: that is not known."""

    begin: int
    end: int
    address: int
    held: Any
    leaf: int = -1
    written: Sequence[tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Where the chunks of an image lie: the address of each, all of `chunk_nbytes` but the last. `number` is
    the proxy's name for it. The memory is the proxy's, and mapped as long as this process lives."""

    number: int
    nbytes: int
    chunk_nbytes: int
    addresses: list[int]

    def size(self, index: int) -> int:
        """Bytes of a chunk."""
        return min(self.chunk_nbytes, self.nbytes - index * self.chunk_nbytes)

    def whole(self) -> memoryview:
        """The image in one piece: in place if its chunks lie side by side, else a copy."""
        first = self.addresses[0] if self.addresses else 0
        if all(at == first + index * self.chunk_nbytes for index, at in enumerate(self.addresses)):
            place: Any = (ctypes.c_char * self.nbytes).from_address(first)
            image: memoryview = np.frombuffer(place, dtype=np.uint8).data
            return image
        image = memoryview(bytearray(self.nbytes))
        target = address_of(image)
        for index, at in enumerate(self.addresses):
            ctypes.memmove(target + index * self.chunk_nbytes, at, self.size(index))
        return image


@dataclass(slots=True)
class Density:
    """How often in a row all chunks of each leaf have changed, by its path."""

    streak: dict[str, int] = field(default_factory=dict)

    def skips(self, path: str) -> bool:
        """Whether the leaf is to be copied uncompared this time."""
        streak = self.streak.get(path, 0)
        return streak >= DENSE_CAPTURES and (streak - DENSE_CAPTURES) % DENSE_AGAIN != DENSE_AGAIN - 1

    def note(self, path: str, all_changed: bool) -> None:
        """What the comparison, or its being left out, has shown."""
        self.streak[path] = self.streak.get(path, 0) + 1 if all_changed else 0


def equal(left: int, right: int, nbytes: int) -> bool:
    """Whether the bytes at two addresses are the same."""
    return int(_compare(left, right, nbytes)) == 0


def address_of(view: memoryview) -> int:
    """Where the bytes of a view lie."""
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data) if len(view) else 0


def count(nbytes: int, chunk_nbytes: int) -> int:
    """Chunks of an image of so many bytes."""
    return -(-nbytes // chunk_nbytes)


def holding(pieces: Sequence[Piece], at: int) -> int:
    """Which piece byte `at` of the image lies in."""
    return bisect.bisect_right(pieces, at, key=lambda piece: piece.begin) - 1


def written_within(piece: Piece, begin: int, end: int) -> list[tuple[int, int]]:
    """What may have been written of bytes [begin, end) of the image."""
    written = piece.written
    if not written:
        return []
    first = bisect.bisect_right(written, begin, key=lambda span: span[1])
    last = bisect.bisect_left(written, end, key=lambda span: span[0])
    return [(max(one, begin), min(other, end)) for one, other in written[first:last]]


def is_there(piece: Piece, begin: int, end: int, base: Table) -> bool:
    """Whether bytes [begin, end) of the image, which lie in `piece`, are those of `base`."""
    first, last = begin // base.chunk_nbytes, (end - 1) // base.chunk_nbytes
    differing: set[int] = set()
    if begin < end and last < len(base.addresses):
        part = Piece(begin, end, piece.address + begin - piece.begin, piece.held)
        _compare_piece(part, first, last, base, differing)
    return not differing


def changed(
    pieces: Sequence[Piece], paths: Sequence[str], total: int, base: Table, density: Density
) -> tuple[list[int], int]:
    """The chunks of the image `pieces` that differ from `base`, ascending, and how many bytes were compared
    here. `paths` names the leaves."""
    differing = {
        index
        for index in range(count(total, base.chunk_nbytes))
        if index >= len(base.addresses)
        or base.size(index) != min(base.chunk_nbytes, total - index * base.chunk_nbytes)
    }
    compared = 0
    for piece in pieces:
        if piece.begin == piece.end:
            continue
        if piece.written is not None:
            for begin, end in piece.written:
                differing.update(range(begin // base.chunk_nbytes, (end - 1) // base.chunk_nbytes + 1))
            continue
        first, last = piece.begin // base.chunk_nbytes, (piece.end - 1) // base.chunk_nbytes
        tracked = piece.leaf >= 0 and last - first + 1 >= DENSE_CHUNKS_MIN
        if tracked and density.skips(paths[piece.leaf]):
            differing.update(range(first, last + 1))
        else:
            compared += _compare_piece(piece, first, last, base, differing)
        if tracked:
            density.note(paths[piece.leaf], all(index in differing for index in range(first, last + 1)))
    return sorted(differing), compared


def _compare_piece(piece: Piece, first: int, last: int, base: Table, differing: set[int]) -> int:
    """Add what differs of one piece; returns the bytes compared. Blocks of chunks that lie side by side are
    compared in one call, and chunk by chunk only if they differ."""
    size, compared, index = base.chunk_nbytes, 0, first
    while index <= last:
        if index in differing:
            index += 1
            continue
        until = index
        while (
            until < last
            and until - index + 1 < BLOCK_CHUNKS_MAX
            and until + 1 not in differing
            and base.addresses[until + 1] == base.addresses[until] + size
        ):
            until += 1
        begin, end = max(piece.begin, index * size), min(piece.end, (until + 1) * size)
        compared += end - begin
        here, there = piece.address + begin - piece.begin, base.addresses[index] + begin - index * size
        if not equal(here, there, end - begin):
            if until == index:
                differing.add(index)
            else:
                for one in range(index, until + 1):
                    begin, end = max(piece.begin, one * size), min(piece.end, (one + 1) * size)
                    here, there = (
                        piece.address + begin - piece.begin,
                        base.addresses[one] + begin - one * size,
                    )
                    if not equal(here, there, end - begin):
                        differing.add(one)
        index = until + 1
    return compared


def runs_of(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, how many)."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][0] + runs[-1][1] == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


def copy(pieces: Sequence[Piece], begin: int, end: int, target: int) -> None:
    """Copy bytes [begin, end) of the image to an address."""
    at = bisect.bisect_right(pieces, begin, key=lambda piece: piece.begin) - 1
    while begin < end:
        piece = pieces[at]
        upto = min(end, piece.end)
        if upto > begin:
            ctypes.memmove(target, piece.address + begin - piece.begin, upto - begin)
            target += upto - begin
            begin = upto
        at += 1
