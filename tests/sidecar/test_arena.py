"""Slots never overlap, free themselves, and come back; what waits for room gets it in order."""

import asyncio
import copy
import gc
import itertools
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer
from hams_sidecar.blocks import ALIGN, Blocks, joined, round_up
from hams_sidecar.payload import image, pack

CAPACITY = 64 * ALIGN


@given(
    st.lists(
        st.one_of(st.integers(1, 20).map(lambda units: units * ALIGN), st.integers(-40, -1)), max_size=120
    )
)
def test_blocks_in_use_never_overlap_and_free_blocks_are_joined(steps: list[int]) -> None:
    blocks = Blocks(CAPACITY)
    held: list[tuple[int, int]] = []
    for step in steps:
        if step > 0:
            offset = blocks.take(step)
            if offset is None:
                assert all(size < step for _, size in blocks.free_blocks())
            else:
                held.append((offset, step))
        elif held:
            blocks.give(*held.pop(step % len(held)))
        free = blocks.free_blocks()
        spans = sorted(held + free)
        assert sum(size for _, size in spans) == CAPACITY
        assert all(left[0] + left[1] == right[0] for left, right in itertools.pairwise(spans))
        assert all(left[0] + left[1] < right[0] for left, right in itertools.pairwise(free))
        assert blocks.used == sum(size for _, size in held)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3), st.integers(0, 1 << 30)), max_size=60))
def test_contents_survive_while_anything_refers_to_them(steps: list[tuple[int, int, int]]) -> None:
    arena = Arena(CAPACITY * 4)
    held: list[tuple[memoryview, bytes]] = []
    for nbytes, action, salt in steps:
        if action == 0 and held:
            held.pop(salt % len(held))
            continue
        try:
            buffer = arena.allocate(nbytes)
        except ArenaFull:
            assert held
            held.pop(salt % len(held))
            continue
        if action == 1:
            buffer.trim(nbytes // 2)
        contents = bytes((salt + i) & 255 for i in range(min(buffer.nbytes, 64))) + bytes(
            max(buffer.nbytes - 64, 0)
        )
        buffer.view[:] = contents
        half = len(contents) // 2 if action == 2 else 0
        held.append((buffer.view[half:], contents[half:]))  # a slice alone keeps the slot
        del buffer
        assert all(bytes(view) == expected for view, expected in held)
    held.clear()
    assert arena.stats().used == 0
    assert arena.stats().slots == 0


def test_a_slot_is_free_when_the_last_view_is_gone_not_before() -> None:
    arena = Arena(CAPACITY)
    buffer: Buffer | None = arena.allocate(CAPACITY)
    assert buffer is not None
    array = np.frombuffer(buffer.view[10:20], dtype=np.uint8)
    buffer = None
    gc.collect()
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    del array
    assert arena.allocate(CAPACITY).offset == 0


def test_what_can_never_fit_is_another_error() -> None:
    with pytest.raises(ArenaTooSmall):
        Arena(CAPACITY).allocate(CAPACITY + 1)


def test_more_may_be_mapped_than_the_machine_has() -> None:
    arena = Arena(1 << 42)
    assert len(arena.allocate(1 << 41).view) == 1 << 41


def test_the_reserve_is_for_urgent_allocations_only() -> None:
    arena = Arena(CAPACITY, reserve_nbytes=CAPACITY // 2)
    held = arena.allocate(CAPACITY // 2)
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    assert arena.allocate(1, urgent=True).nbytes == 1
    assert held.nbytes == CAPACITY // 2


def test_trimmed_bytes_come_back_at_once() -> None:
    arena = Arena(CAPACITY)
    buffer = arena.allocate(CAPACITY)
    buffer.trim(100)
    assert (buffer.nbytes, len(buffer.view)) == (100, 100)
    assert arena.stats().used == round_up(100)
    rest = arena.allocate(CAPACITY - round_up(100))
    assert rest.offset == round_up(100)
    del rest, buffer
    assert arena.stats()[1:4] == (0, CAPACITY, 0)


async def test_waiters_are_served_in_order() -> None:
    arena = Arena(CAPACITY)
    whole = [arena.allocate(CAPACITY)]
    order: list[int] = []

    async def wait(number: int, nbytes: int) -> Buffer:
        buffer = await arena.reserve(nbytes)
        order.append(number)
        return buffer

    tasks = [
        asyncio.create_task(wait(1, CAPACITY)),
        asyncio.create_task(wait(2, 1)),
        asyncio.create_task(wait(3, 1)),
    ]
    await asyncio.sleep(0)
    assert arena.stats().waiting == 3
    tasks[1].cancel()
    whole.clear()
    first = await tasks[0]
    assert order == [1]
    del first
    tasks[0] = tasks[2]  # the task held the buffer too
    await tasks[2]
    assert order == [1, 3]


async def test_who_waits_behind_one_that_gave_up_is_served() -> None:
    arena = Arena(CAPACITY)
    held = arena.allocate(CAPACITY // 2)
    large = asyncio.create_task(arena.reserve(CAPACITY))
    await asyncio.sleep(0)
    small = asyncio.create_task(arena.reserve(1))
    await asyncio.sleep(0)
    assert not small.done()
    large.cancel()
    assert await small
    assert held


async def test_a_state_waits_for_no_batch() -> None:
    """What a batch waits for may become free only once the state is captured."""
    arena = Arena(CAPACITY)
    held = [arena.allocate(CAPACITY // 2)]
    batch = asyncio.create_task(arena.reserve(CAPACITY))
    await asyncio.sleep(0)
    assert await arena.reserve(CAPACITY // 4, first=True)
    larger = asyncio.create_task(arena.reserve(CAPACITY, first=True))
    await asyncio.sleep(0)
    assert arena.stats().waiting == 2
    held.clear()
    assert (await larger).nbytes == CAPACITY
    assert not batch.done()
    batch.cancel()


async def test_waiting_for_what_can_never_fit_fails_at_once() -> None:
    with pytest.raises(ArenaTooSmall):
        await Arena(CAPACITY).reserve(CAPACITY * 2)


def test_two_mappings_of_the_file_are_the_same_memory(tmp_path: Path) -> None:
    arena = Arena(CAPACITY, path=tmp_path / "arena")
    buffer = arena.allocate(5)
    buffer.view[:] = b"hello"
    other = np.memmap(tmp_path / "arena", dtype=np.uint8, mode="r")
    assert bytes(other[buffer.offset : buffer.offset + 5]) == b"hello"
    assert (tmp_path / "arena").stat().st_mode & 0o777 == 0o600
    arena.close()
    assert not (tmp_path / "arena").exists()


def _resident(arena: Arena, path: Path) -> int:
    """Bytes of the arena's file that this process has mapped now."""
    sections = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    return sum(int(section.split("Rss:")[1].split()[0]) for section in sections) * 1024


def test_what_is_unmapped_keeps_its_bytes_and_costs_a_dying_process_nothing(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    arena = Arena(1 << 22, path=path)
    before = arena.allocate(100)
    large = arena.allocate(1 << 21)
    large.view[:] = b"x" * (1 << 21)
    mapped = _resident(arena, path)
    arena.unmap(large.view[1 << 20 :], 1 << 20)
    assert _resident(arena, path) <= mapped - (1 << 20) + 4096
    arena.unmap(before.view, 1 << 20)  # too small to matter
    assert bytes(large.view) == b"x" * (1 << 21)


def test_payloads_give_back_what_was_packed() -> None:
    arena = Arena(1 << 16)
    words = np.array([[b"", b"\xff\x00"], [b"a" * 300, "grün".encode()]], dtype=object)
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    payload = pack(
        arena,
        [
            ("words", "BYTES", words),
            ("numbers", "FP32", numbers),
            ("none", "INT64", np.empty((2, 0), np.int64)),
        ],
    )
    assert payload.array("words").tolist() == words.tolist()
    assert np.array_equal(payload.array("numbers"), numbers)
    assert payload.array("none").shape == (2, 0)
    assert not payload.array("numbers").flags.writeable
    assert all(tensor.offset % ALIGN == 0 for tensor in payload.tensors)
    with pytest.raises(KeyError):
        payload.array("other")


def test_packing_the_wrong_datatype_says_which() -> None:
    with pytest.raises(ValueError, match=r"'x': expected FP32, got an array of float64"):
        pack(Arena(CAPACITY), [("x", "FP32", np.zeros(3))])


def test_bytes_tensors_with_lying_lengths_are_refused() -> None:
    arena = Arena(CAPACITY)
    good = pack(arena, [("w", "BYTES", np.array([b"abc", b"d"], dtype=object))])
    good.buffer.view[0] = 200
    with pytest.raises(ValueError, match="claims 200 bytes"):
        good.array("w")
    assert bytes(image(arena, b"abc").buffer.view) == b"abc"


Filled = tuple[Buffer, bytes]


def side_by_side(parts: list[Filled], first: int) -> list[Filled]:
    """The part at a place and those that follow it without a gap."""
    run = [parts[first]]
    for part in parts[first + 1 :]:
        if part[0].offset != run[-1][0].offset + run[-1][0].nbytes:
            break
        run.append(part)
    return run


def one_step(
    random: Random, arena: Arena, parts: list[Filled], views: list[tuple[memoryview, bytes]]
) -> None:
    action = random.randrange(5)
    if action == 0 and parts:
        parts.pop(random.randrange(len(parts)))
    elif action == 1 and parts:
        buffer, content = random.choice(parts)
        views.append((buffer.view, content))
    elif action == 2 and views:
        views.pop(random.randrange(len(views)))
    elif action == 3 and parts:
        run = side_by_side(parts, random.randrange(len(parts)))
        views.append((arena.span(tuple(item for item, _ in run)), b"".join(data for _, data in run)))
    else:
        sizes = [ALIGN * random.randrange(1, 6) for _ in range(random.randrange(2, 9))]
        sizes[-1] -= random.randrange(ALIGN)
        try:
            whole = arena.allocate(sum(sizes) + random.randrange(200))
        except ArenaFull:
            assert parts or views
            return
        whole.trim(sum(sizes))
        for part in whole.split(sizes):
            content = random.randbytes(part.nbytes)
            part.view[:] = content
            parts.append((part, content))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_parts_keep_their_memory_one_by_one_and_come_free_as_one(seed: int) -> None:
    random, arena = Random(seed), Arena(512 * ALIGN)
    parts: list[Filled] = []
    views: list[tuple[memoryview, bytes]] = []
    for _ in range(60):
        one_step(random, arena, parts, views)
        assert all(bytes(part[0].view) == part[1] for part in parts)
        assert all(bytes(view[0]) == view[1] for view in views)
        assert arena.stats().used >= sum([round_up(part[0].nbytes) for part in parts])
    parts.clear()
    views.clear()
    assert arena.stats()[1:] == (0, arena.stats().peak, 0, 0)
    assert arena._blocks.free_blocks() == [(0, arena.capacity)], "nothing of it is kept at hand"


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 9)), max_size=40))
def test_blocks_that_touch_are_made_one(drawn: list[tuple[int, int]]) -> None:
    blocks: list[tuple[int, int]] = []
    taken: set[int] = set()
    for begin, size in drawn:
        span = set(range(begin, begin + size))
        if not span & taken:
            taken |= span
            blocks.append((begin, size))
    whole = joined(blocks)
    assert [place for begin, size in whole for place in range(begin, begin + size)] == sorted(taken)
    assert all(left + size < right for (left, size), (right, _) in itertools.pairwise(whole))


@pytest.mark.parametrize("sizes", [[ALIGN, 0], [2 * ALIGN, -ALIGN], [0, ALIGN], [ALIGN, 1, ALIGN]], ids=repr)
def test_parts_never_reach_beyond_their_slot(sizes: list[int]) -> None:
    arena = Arena(CAPACITY)
    whole, beside = arena.allocate(ALIGN), arena.allocate(ALIGN)
    with pytest.raises(ValueError, match="cannot split"):
        whole.split(sizes)
    del whole
    assert arena.stats().used == ALIGN
    assert beside.nbytes == ALIGN


def test_what_was_split_is_not_trimmed_and_is_located_whole() -> None:
    arena = Arena(CAPACITY)
    whole = arena.allocate(2 * ALIGN - 8)
    view = whole.view
    parts = whole.split([2 * ALIGN - 28])
    with pytest.raises(ValueError, match="not trimmed"):
        whole.trim(ALIGN)
    located = arena.locate(view)
    assert located is not None
    assert located[0].nbytes == len(view)
    of_part = arena.locate(parts[0].view)
    assert of_part is not None
    assert of_part[0] is parts[0]


def test_a_part_has_one_owner_even_if_it_is_copied() -> None:
    arena = Arena(CAPACITY)
    parts = arena.allocate(4 * ALIGN).split([ALIGN, ALIGN])
    copied = [copy.copy(parts[0]), copy.deepcopy(parts[0])]
    del copied
    assert arena.allocate(ALIGN).offset != parts[0].offset
