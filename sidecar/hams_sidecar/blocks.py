"""Which parts of a range of bytes are free: segregated free lists, neighbours joined at once.

Pure bookkeeping behind `Arena`; constant time but for a short look through blocks of about the right size.
Sizes and offsets are multiples of `ALIGN`. After the two-level segregated fit of Masmano et al., ECRTS 2004:
eight classes per power of two.

Invariant: free blocks neither overlap nor touch (touching ones are joined), and `used` is the capacity less
their sizes.
"""

ALIGN = 64
"""Bytes. A cache line, and the alignment that vector units like; every tensor begins at a multiple of it."""

TRIES_MAX = 8
"""Blocks of the wanted size class that are looked at before a larger one is cut."""


def round_up(nbytes: int) -> int:
    """The next multiple of ALIGN."""
    return (nbytes + ALIGN - 1) & ~(ALIGN - 1)


def joined(blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge blocks (offset, size) that touch; in order of offset. None may overlap another one."""
    whole: list[tuple[int, int]] = []
    begin = end = 0
    for offset, size in sorted(blocks):
        assert offset >= end, "memory came free twice"
        if offset != end:
            if end > begin:
                whole.append((begin, end - begin))
            begin = offset
        end = offset + size
    if end > begin:
        whole.append((begin, end - begin))
    return whole


def _class_of(size: int) -> int:
    units = size // ALIGN
    power = units.bit_length() - 1
    return units if power < 3 else power * 8 + ((units >> (power - 3)) & 7)


class Blocks:
    """The free blocks of [0, capacity)."""

    def __init__(self, capacity: int) -> None:
        if capacity <= 0 or capacity % ALIGN:
            raise ValueError(f"a capacity is a positive multiple of {ALIGN}, not {capacity}")
        self.capacity = capacity
        self.used = capacity
        self._size: dict[int, int] = {}  # offset -> size
        self._start: dict[int, int] = {}  # end -> offset
        self._bins: list[dict[int, None]] = [{} for _ in range(_class_of(capacity) + 1)]
        self._filled = 0  # bit i: bin i is not empty
        self.give(0, capacity)

    def take(self, size: int) -> int | None:
        """The offset of a block of `size` bytes, now in use; None if there is none."""
        own = _class_of(size)
        if own >= len(self._bins):
            return None
        place: int | None = None
        for tries, offset in enumerate(self._bins[own]):
            if self._size[offset] >= size:
                place = offset
                break
            if tries == TRIES_MAX:
                break
        if place is None:
            larger = self._filled >> (own + 1)
            if larger:  # every block of a higher class is large enough
                place = next(iter(self._bins[own + (larger & -larger).bit_length()]))
            else:
                place = next((offset for offset in self._bins[own] if self._size[offset] >= size), None)
                if place is None:
                    return None
        whole = self._size[place]
        self._remove(place, whole)
        if whole > size:
            self._insert(place + size, whole - size)
        self.used += size
        return place

    def give(self, offset: int, size: int) -> None:
        """Make [offset, offset + size) free again."""
        self.used -= size
        assert self.used >= 0
        before = self._start.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            offset, size = before, size + offset - before
        after = self._size.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._insert(offset, size)

    def free_blocks(self) -> list[tuple[int, int]]:
        """(offset, size) of each free block, in order."""
        return sorted(self._size.items())

    def _insert(self, offset: int, size: int) -> None:
        self._size[offset] = size
        self._start[offset + size] = offset
        index = _class_of(size)
        self._bins[index][offset] = None
        self._filled |= 1 << index

    def _remove(self, offset: int, size: int) -> None:
        del self._size[offset]
        del self._start[offset + size]
        index = _class_of(size)
        chosen = self._bins[index]
        del chosen[offset]
        if not chosen:
            self._filled &= ~(1 << index)
