"""Memory for tensors and states: one mapping, handed out in slots that free themselves.

A proxy receives from the network into a slot, the model process reads and writes slots, the proxy sends from
a slot: the mapping is shared, so nothing is copied or serialised in between. Only the proxy allocates; the
model is told where it may write. A slot is free again when the last `Buffer`, memoryview or array on it is
gone; there is no explicit free, so a slot that is still being sent or retained is never handed out twice.

Invariant: slots in use never overlap, and free plus used bytes are the capacity. The mapping is sparse:
memory is taken when a page is first touched, and reused slots are warm. Bytes are bounded by the capacity;
over it `ArenaFull` is back-pressure, not a failure: `reserve` waits. The last `reserve_nbytes` are kept for
what frees memory later (results, captures), so that what comes in can never block what goes out.

Never: shared between two allocators, resized, or written without a `Buffer`.
"""

import asyncio
import mmap
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from hams_sidecar.blocks import ALIGN, Blocks, joined, round_up

CACHED_NBYTES_MAX = 64 << 10
"""Slots up to this size are kept at hand when they come free, as the next one is mostly as large. Parts of a
slot are not: a chunk that is kept would leave a hole in the slot, and the next state would not fit there."""
CACHED_SLOTS_MAX = 32
"""Slots of one size that are kept so."""
TRIM_SHARE_MIN = 0.25
"""Less than this share of a slot is not worth giving back."""

_MAP_NORESERVE = 0x4000
"""mmap(2); the module mmap names it from Python 3.13 on."""


class ArenaFull(Exception):
    """Ours, retryable: no room for `nbytes` now. What is in use has to be freed first."""

    def __init__(self, nbytes: int, used: int, capacity: int) -> None:
        super().__init__(f"no room for {nbytes} bytes: {used} of {capacity} in use")
        self.nbytes = nbytes


class ArenaTooSmall(Exception):
    """Ours, not retryable: `nbytes` would not fit into an empty arena."""

    def __init__(self, nbytes: int, capacity: int) -> None:
        super().__init__(f"{nbytes} bytes do not fit into an arena of {capacity} bytes")
        self.nbytes = nbytes


class ArenaStats(NamedTuple):
    """Bytes and slots now, and the most bytes ever in use."""

    capacity: int
    used: int
    peak: int
    slots: int
    waiting: int


class _Slot(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The memory of one slot. Every memoryview and array on it refers to this object, so its end is the end
    of the slot's use.

    `parts`: buffers that lie in it, if it was split or is a span of them: they are held as long as it is, and
    free their memory themselves.
    """

    __slots__ = ("arena", "offset", "parts", "size")

    arena: "Arena"
    offset: int
    size: int
    parts: "tuple[Buffer, ...]"

    def __del__(self) -> None:
        arena = getattr(self, "arena", None)  # unset in the slices that numpy makes of a slot
        if arena is not None and not self.parts:
            arena._released(self.offset, self.size)


class Buffer:
    """`nbytes` bytes of an arena, at `offset` of its mapping (a multiple of 64). Lives as long as someone
    refers to it or to `view`."""

    __slots__ = ("_slot", "arena", "nbytes", "offset")
    _slot: _Slot

    def __init__(self, arena: "Arena", slot: _Slot, offset: int, nbytes: int) -> None:
        self.arena = arena
        self.offset = offset
        self.nbytes = nbytes
        self._slot = slot

    @property
    def view(self) -> memoryview:
        """All of it, writable. Made when asked for: a buffer may lie here for long, and a view is larger than
        the buffer itself."""
        memory: memoryview = self._slot.data
        return memory if len(memory) == self.nbytes else memory[: self.nbytes]

    @property
    def parts(self) -> "tuple[Buffer, ...]":
        """What it was split into, and then what was left of it; empty if it was not, or is its only part."""
        return self._slot.parts

    def trim(self, nbytes: int) -> None:
        """Keep the first `nbytes` bytes and give the rest back, unless it is little: then the slot stays of a
        size that will be wanted again. Only for the holder of the sole reference, before others get a
        view."""
        if not 0 <= nbytes <= self.nbytes:
            raise ValueError(f"cannot trim {self.nbytes} bytes to {nbytes}")
        if self._slot.parts:
            raise ValueError("what was split is not trimmed")
        keep = round_up(max(nbytes, 1))
        if self._slot.size - keep > self._slot.size * TRIM_SHARE_MIN:
            self.arena._released(self.offset + keep, self._slot.size - keep, part=True, slots=0)
            self._slot.size = keep
        self.nbytes = nbytes

    def split(self, sizes: Sequence[int]) -> "tuple[Buffer, ...]":
        """Parts of so many bytes, one after another from its beginning, which outlive it one by one; itself,
        if it is the only one. All but the last begin and end at multiples of 64. Into several once only."""
        slot = self._slot
        if len(sizes) == 1 and sizes[0] == self.nbytes and slot.size == round_up(max(self.nbytes, 1)):
            return (self,)
        if slot.parts:
            raise ValueError("a buffer is split once")
        wrong = any(size % ALIGN for size in sizes[:-1]) or any(size <= 0 for size in sizes)
        if wrong or sum(sizes) > self.nbytes:
            raise ValueError(f"cannot split {self.nbytes} bytes into {len(sizes)} parts")
        parts: list[Buffer] = []
        at, arena = self.offset, self.arena
        for size in sizes:
            part = _Part(arena, at, size)
            parts.append(part)
            at += part.size
        rest = self.offset + slot.size - at
        if rest > 0:  # given back when the whole is not referred to any more
            parts.append(_Part(arena, at, rest))
        slot.parts = tuple(parts)
        self.arena._slots += len(parts) - 1
        return slot.parts[: len(sizes)]

    def __repr__(self) -> str:
        return f"Buffer({self.offset}+{self.nbytes})"


class _Part(Buffer):
    """A buffer of a slot that was split. A state has thousands: each is one object, and gets a slot only as
    long as there is a view of it."""

    __slots__ = ("size",)

    def __init__(self, arena: "Arena", offset: int, nbytes: int) -> None:
        self.arena = arena
        self.offset = offset
        self.nbytes = nbytes
        self.size = round_up(nbytes)

    def __del__(self) -> None:
        self.arena._released(self.offset, self.size, True)

    def __copy__(self) -> "_Part":
        """Itself: a second one would free its memory, too."""
        return self

    def __deepcopy__(self, memo: object) -> "_Part":
        """See `__copy__`."""
        return self

    @property
    def view(self) -> memoryview:
        """See `Buffer`."""
        memory: memoryview = self.arena._slot(self.offset, self.nbytes, self.size, (self,))._slot.data
        return memory

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """See `Buffer`: none."""
        return ()

    def trim(self, nbytes: int) -> None:
        """See `Buffer`: not of a part."""
        raise ValueError("a part is not trimmed")

    def split(self, sizes: Sequence[int]) -> tuple[Buffer, ...]:
        """See `Buffer`: not of a part, but into itself."""
        if len(sizes) == 1 and sizes[0] == self.nbytes:
            return (self,)
        raise ValueError("a buffer is split once")


Waiter: TypeAlias = "tuple[int, bool, asyncio.Future[Buffer]]"
"""Bytes, whether they are urgent, and who waits for them."""


class Arena:
    """Slots in one mapping of `capacity` bytes: a file that the model process maps too, or anonymous memory
    (frontends, tests).

    Single event loop; references may be dropped on any thread.
    """

    def __init__(
        self, capacity: int, *, path: Path | None = None, mode: int = 0o600, reserve_nbytes: int = 0
    ) -> None:
        """Create the mapping. `path`: the file to create (replaced if it exists; never shared with another
        arena), else anonymous memory."""
        capacity = round_up(capacity)
        if not 0 <= reserve_nbytes < capacity:
            raise ValueError(f"a reserve of {reserve_nbytes} bytes in an arena of {capacity} bytes")
        self.capacity = capacity
        self.path = path
        self._reserve = reserve_nbytes
        if path is None:
            # A graph may allow for more than the machine has: only what is used shall count.
            self._map = mmap.mmap(-1, capacity, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        else:
            path.unlink(missing_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                os.fchmod(fd, mode)  # whatever the umask
                os.ftruncate(fd, capacity)
                self._map = mmap.mmap(fd, capacity)
            finally:
                os.close(fd)
        self._blocks = Blocks(capacity)
        # filled by destructors, which may interrupt `allocate` itself
        self._freed: deque[tuple[int, int, bool, int]] = deque()
        self._cached: dict[int, list[int]] = {}  # size -> offsets, free but not given back to the blocks
        self._cached_nbytes = 0
        self._slots = 0
        self._peak = 0
        self._first: deque[Waiter] = deque()
        self._waiters: deque[Waiter] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def allocate(self, nbytes: int, *, urgent: bool = False) -> Buffer:
        """A slot of `nbytes` bytes, contents undefined. `urgent`: may use the reserve. Raises ArenaFull,
        ArenaTooSmall."""
        size = round_up(max(nbytes, 1))
        room = self.capacity if urgent else self.capacity - self._reserve
        if size > room:
            raise ArenaTooSmall(nbytes, room)
        if self._freed:
            self._collect()
        used = self._blocks.used - self._cached_nbytes
        offset = self._take(size) if used + size <= room else None
        if offset is None:
            raise ArenaFull(nbytes, used, self.capacity)
        self._slots += 1
        if used + size > self._peak:
            self._peak = used + size
        return self._slot(offset, nbytes, size)

    async def reserve(self, nbytes: int, *, urgent: bool = False, first: bool = False) -> Buffer:
        """As `allocate`, but wait, in order, until there is room. Raises ArenaTooSmall.

        `first`: before all others that wait. For states: what a batch waits for may become free only once
        the state before it is captured.
        """
        waiters = self._first if first else self._waiters
        if not waiters and (first or not self._first):
            try:
                return self.allocate(nbytes, urgent=urgent)
            except ArenaFull:
                pass
        if round_up(nbytes) > (self.capacity if urgent else self.capacity - self._reserve):
            raise ArenaTooSmall(nbytes, self.capacity)
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Buffer] = self._loop.create_future()
        waiters.append((nbytes, urgent, future))
        self._serve_waiters()  # a slot may have been freed before the waiter was listed
        try:
            return await future
        except asyncio.CancelledError:
            self._serve_waiters()  # those behind it may fit
            raise

    def _slot(self, offset: int, nbytes: int, size: int, parts: tuple[Buffer, ...] = ()) -> Buffer:
        slot = _Slot((nbytes,), np.uint8, self._map, offset)
        slot.arena, slot.offset, slot.size, slot.parts = self, offset, size, parts
        return Buffer(self, slot, offset, nbytes)

    def span(self, buffers: tuple[Buffer, ...]) -> memoryview:
        """Buffers of this arena that lie one after another without a gap, as one view, which holds them."""
        first, nbytes = buffers[0], sum(buffer.nbytes for buffer in buffers)
        return first.view if len(buffers) == 1 else self._slot(first.offset, nbytes, nbytes, buffers).view

    def locate(self, view: memoryview) -> tuple[Buffer, int] | None:
        """The buffer that `view` is a part of, and where in it; None if its memory is not of this arena. No
        other buffer of it may be trimmed."""
        slot = view.obj
        if not isinstance(slot, _Slot) or slot.arena is not self:
            return None
        begin = np.frombuffer(view, np.uint8).ctypes.data - slot.ctypes.data
        only = slot.parts[0] if len(slot.parts) == 1 else None
        if isinstance(only, _Part) and only.nbytes == len(slot):
            return only, begin  # the slot was made for a view of this part
        return Buffer(self, slot, slot.offset, len(slot)), begin

    def unmap(self, view: memoryview, slot_nbytes_min: int) -> None:
        """Forget where the pages of `view` lie, if it is part of a slot of at least that size. The bytes
        stay: the mapping is shared memory, and the next reader maps them again."""
        slot = view.obj
        if not isinstance(slot, _Slot) or slot.size < slot_nbytes_min or slot.arena is not self:
            return
        begin = slot.offset + np.frombuffer(view, np.uint8).ctypes.data - slot.ctypes.data
        start = begin - begin % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, begin + len(view) - start)

    def stats(self) -> ArenaStats:
        """What is in use now."""
        self._collect()
        return ArenaStats(
            self.capacity,
            self._blocks.used - self._cached_nbytes,
            self._peak,
            self._slots,
            len(self._first) + len(self._waiters),
        )

    def close(self) -> None:
        """Remove the file. The memory itself goes when the last buffer has gone."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _released(self, offset: int, size: int, part: bool = False, slots: int = 1) -> None:
        self._freed.append((offset, size, part, slots))
        if (self._first or self._waiters) and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._serve_waiters)

    def _take(self, size: int) -> int | None:
        cached = self._cached.get(size)
        if cached:
            self._cached_nbytes -= size
            return cached.pop()
        offset = self._blocks.take(size)
        if offset is None and self._cached_nbytes:
            for other, offsets in self._cached.items():
                for freed in offsets:
                    self._blocks.give(freed, other)
            self._cached.clear()
            self._cached_nbytes = 0
            offset = self._blocks.take(size)
        return offset

    def _collect(self) -> None:
        freed = self._freed
        parts: list[tuple[int, int]] = []
        while freed:
            offset, size, part, slots = freed.popleft()
            self._slots -= slots
            if part:
                parts.append((offset, size))
                continue
            if size <= CACHED_NBYTES_MAX:
                cached = self._cached.setdefault(size, [])
                if len(cached) < CACHED_SLOTS_MAX:
                    cached.append(offset)
                    self._cached_nbytes += size
                    continue
            self._blocks.give(offset, size)
        for offset, size in joined(parts):
            self._blocks.give(offset, size)

    def _serve_waiters(self) -> None:
        while waiters := self._first or self._waiters:
            nbytes, urgent, future = waiters[0]
            if future.cancelled():
                waiters.popleft()
                continue
            try:
                buffer = self.allocate(nbytes, urgent=urgent)
            except ArenaFull:
                return
            waiters.popleft()
            future.set_result(buffer)
