"""States as tables of chunks: what is shared, what travels, and what a follower makes of it."""

import struct
from collections import deque
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_protocol.messages import StateRecord
from hams_sdk.state import State
from hams_sidecar import limits
from hams_sidecar.arena import Arena
from hams_sidecar.chunks import ChunkTable, StateDifference, count, size_at
from hams_sidecar.model.images import NEWEST
from hams_sidecar.payload import TensorPayload, image
from hams_sidecar.payloads import ArenaFactory
from hams_wire.peers.codec import Codec

CHUNK = limits.chunk_bytes


class Primary:
    """The tables that captures of one history make, by version: `write` changes bytes of the state."""

    def __init__(self, arena: Arena, nbytes: int) -> None:
        self.arena = arena
        self.state = bytearray(nbytes)
        self.tables: dict[int, ChunkTable] = {}
        self.newest = -1

    def capture(self, version: int, *, base: int | None = None) -> ChunkTable:
        base = self.newest if base is None else base
        before = self.tables.get(base)
        if before is None:
            table = ChunkTable.cut(image(self.arena, self.state).buffer, version)
        else:
            changed = {}
            for index in range(count(len(self.state))):
                data = bytes(self.state[index * CHUNK : (index + 1) * CHUNK])
                if index >= len(before.chunks) or bytes(before.chunks[index].view) != data:
                    changed[index] = image(self.arena, data).buffer
            found = before.with_changed(changed, len(self.state), version)
            assert found is not None
            table = found
        self.tables[version] = table
        self.newest = version
        return table


def travelled(record: StateRecord, to: Arena) -> StateRecord:
    """A record as it arrives in another process."""
    codec = Codec(ArenaFactory(to))
    encoded = codec.encode(record)
    incoming = codec.begin(encoded.code, encoded.metadata)
    rooms = [to.allocate(size) for size in incoming.sizes]
    data = b"".join(encoded.views)
    for room in rooms:
        room.view[:], data = data[: room.nbytes], data[room.nbytes :]
    assert not data
    arrived = codec.finish(incoming, rooms)
    assert isinstance(arrived, StateRecord)
    return arrived


def record_of(table: ChunkTable, version: int, since: int) -> StateRecord:
    part = table.born_after(since, NEWEST)
    if part is None:
        return StateRecord("p", 1, version, since, (), (), "", table)
    return StateRecord("p", 1, version, since, (), (), "", part, since=since)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_whatever_version_a_follower_holds_the_chunks_born_after_it_make_the_newest(seed: int) -> None:
    random = Random(seed)
    ours, theirs = Arena(1 << 24), Arena(1 << 24)
    primary = Primary(ours, random.randrange(1, 6 * CHUNK))
    held: dict[int, ChunkTable | TensorPayload] = {}
    bytes_of: dict[int, bytes] = {}
    for version in range(12):
        for _ in range(random.randrange(3)):
            primary.state[random.randrange(len(primary.state))] ^= random.randrange(256)
        if random.random() < 0.15:
            primary.state = bytearray(random.randbytes(random.randrange(1, 6 * CHUNK)))
        table = primary.capture(version)
        bytes_of[version] = bytes(primary.state)
        since = random.choice([-1, *held]) if held else -1
        arrived = travelled(record_of(table, version, since), theirs)
        assert arrived.state is not None
        if arrived.since < 0:
            assert isinstance(arrived.state, TensorPayload)
            held[version] = arrived.state
        else:
            made = arrived.state.laid_over(held[arrived.since], arrived.since, version)
            assert isinstance(made, ChunkTable)
            held[version] = made
        for number in random.sample(list(held), random.randrange(len(held))):
            del held[number]  # what was shared with it stays
        for number, state in held.items():
            views = state.views() if isinstance(state, ChunkTable) else [state.buffer.view]
            assert b"".join(views) == bytes_of[number]


def test_a_follower_that_is_promoted_can_tell_what_changed_since_what_it_was_sent() -> None:
    ours, theirs, third = Arena(1 << 24), Arena(1 << 24), Arena(1 << 24)
    primary = Primary(ours, 4 * CHUNK)
    whole = travelled(record_of(primary.capture(0), 0, -1), theirs).state
    assert whole is not None
    primary.state[CHUNK] = 1
    one = travelled(record_of(primary.capture(1), 1, 0), theirs)
    assert one.state is not None
    first = one.state.laid_over(whole, 0, 1)
    assert isinstance(first, ChunkTable)
    part = first.born_after(0, NEWEST)
    assert isinstance(part, StateDifference)
    assert CHUNK < part.nbytes < 2 * CHUNK
    again = travelled(StateRecord("p", 2, 1, 0, (), (), "", part, since=0), third)
    assert again.state is not None
    made = again.state.laid_over(image(third, bytes(4 * CHUNK)), 0, 1)
    assert isinstance(made, ChunkTable)
    assert b"".join(made.views()) == bytes(primary.state)


def test_of_a_state_that_came_whole_and_has_not_changed_since_nothing_is_sent() -> None:
    ours, theirs, third = Arena(1 << 24), Arena(1 << 24), Arena(1 << 24)
    primary = Primary(ours, 3 * CHUNK + 5)
    primary.state[CHUNK] = 1
    whole = travelled(record_of(primary.capture(4), 4, -1), theirs).state
    assert isinstance(whole, TensorPayload)
    assert whole.born_after(3, 4) is None, "who holds an older one lacks all of it"
    part = whole.born_after(4, 4)
    assert isinstance(part, StateDifference)
    assert part.nbytes <= 64
    again = travelled(StateRecord("p", 2, 6, 4, (), (), "", part, since=4), third)
    assert again.state is not None
    made = again.state.laid_over(image(third, primary.state), 4, 6)
    assert isinstance(made, ChunkTable)
    assert b"".join(made.views()) == bytes(primary.state)
    assert bytes(whole.buffer.view) == bytes(primary.state), "what was asked is as it was"


def test_of_50_MB_of_which_4_KiB_change_at_most_128_KiB_are_sent_with_a_batch() -> None:
    """The state of `hams bench overhead`, as the SDK lays it out: a counter and one large array."""
    count, ballast = np.zeros((), np.int64), np.zeros(50_000_000, np.uint8)
    state, arena = State({"count": count, "ballast": ballast}), Arena(1 << 27)
    primary = Primary(arena, 0)

    def space(nbytes: int) -> memoryview:
        primary.state = bytearray(nbytes)
        return memoryview(primary.state)

    state.capture(space)
    primary.capture(0)
    for version in range(1, 5):
        count += 1
        ballast[:4096] += 1
        state.capture(space)
        record = record_of(primary.capture(version), version, version - 1)
        encoded = Codec(ArenaFactory(arena)).encode(record)
        sent = len(encoded.metadata) + sum(view.nbytes for view in encoded.views)
        assert 4096 < sent <= 128 << 10, f"version {version}: {sent} bytes"
        del primary.tables[version - 1]


def test_a_chunk_is_freed_with_the_last_version_that_shares_it() -> None:
    arena = Arena(1 << 24)
    primary = Primary(arena, 4 * CHUNK)
    primary.capture(0)
    for version in range(1, 6):
        primary.state[2 * CHUNK] = version
        primary.capture(version)
    assert arena.stats().used == (4 + 5) * CHUNK
    for version in range(5):
        del primary.tables[version]
    assert arena.stats().used == 4 * CHUNK, "three that never changed, and the newest"
    sent = primary.tables[5].views()
    primary.tables.clear()
    assert b"".join(sent) == bytes(primary.state), "what is being sent is held"
    sent.clear()
    assert arena.stats().used == 0


def test_a_chunk_that_another_base_shares_is_sent_all_the_same() -> None:
    """A history that was rolled back left its chunks in the base: a birth told too late ships more."""
    ours = Arena(1 << 24)
    primary = Primary(ours, 3 * CHUNK)
    primary.capture(8)
    primary.state[0] = 9
    primary.capture(9)  # undone: the end is 8
    primary.capture(9, base=9)
    assert isinstance(part := primary.tables[9].born_after(8, NEWEST), StateDifference)
    assert part.nbytes > CHUNK


def difference(
    indices: tuple[int, ...], nbytes: int, data: int, chunk: int = CHUNK, magic: bytes = b"HAMSDF01"
):
    head = struct.pack("<8sIIQ", magic, chunk, len(indices), nbytes) + struct.pack(
        f"<{len(indices)}I", *indices
    )
    return head + bytes(-len(head) % 64) + bytes(data)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HAMSDF01",
        difference((), 3 * CHUNK, 1),
        difference((), 4 * CHUNK, 0),
        difference((), 3 * CHUNK - 1, 0),
        difference((), 2**63, 0),
        difference((0,), 3 * CHUNK, CHUNK - 1),
        difference((0,), 3 * CHUNK, CHUNK + 64),
        difference((3,), 3 * CHUNK, CHUNK),
        difference((1, 1), 3 * CHUNK, 2 * CHUNK),
        difference((1, 0), 3 * CHUNK, 2 * CHUNK),
        difference((4,), 5 * CHUNK, CHUNK),
        difference((0,), 3 * CHUNK, CHUNK, chunk=CHUNK // 2),
        difference((0,), 3 * CHUNK, CHUNK, magic=b"HAMSST01"),
        struct.pack("<8sIIQ", b"HAMSDF01", CHUNK, 2**32 - 1, 3 * CHUNK),
    ],
    ids=repr,
)
def test_a_difference_that_does_not_fit_makes_no_state(sent: bytes) -> None:
    arena = Arena(1 << 24)
    base = ChunkTable.cut(image(arena, bytes(3 * CHUNK)).buffer, 0)
    assert image(arena, sent).laid_over(base, 0, 1) is None
    assert b"".join(base.views()) == bytes(3 * CHUNK)


def test_a_buffer_is_split_once_and_at_multiples_of_64() -> None:
    arena = Arena(1 << 20)
    buffer = arena.allocate(200)
    for sizes in ([100, 100], [64, 0, 64], [64, 200]):
        with pytest.raises(ValueError, match="cannot split"):
            buffer.split(sizes)
    parts = buffer.split([64, 100])
    with pytest.raises(ValueError, match="once"):
        buffer.split([64])
    del buffer
    used = arena.stats().used
    assert used == 64 + 128, "what was left of it is free"
    del parts
    assert arena.stats().used == 0


def test_a_buffer_that_is_its_only_part_is_not_split() -> None:
    arena = Arena(1 << 20)
    buffer = arena.allocate(200)
    table = ChunkTable.cut(buffer, 3)
    assert table.chunks == (buffer,)
    assert table.chunks[0] is buffer
    assert ChunkTable.cut(buffer, 4).chunks[0] is buffer, "as often as one likes"
    large = arena.allocate(6400)
    large.trim(6336)  # the slot stays: what is left of it is too little to be given back
    assert large.split([6336])[0] is not large
    del buffer, table, large
    assert arena.stats().used == 0


@pytest.mark.parametrize("unchanged", [(), (0,), (1, 40), (79,)], ids=repr)
def test_a_state_that_changes_everywhere_takes_no_more_memory_as_it_goes_on(
    unchanged: tuple[int, ...],
) -> None:
    """Parts that come free were once kept at hand, each a hole where a later version would have lain."""
    arena = Arena(40 * 80 * CHUNK)
    nbytes = 80 * CHUNK - 100
    window: deque[ChunkTable] = deque(maxlen=3)
    window.append(ChunkTable.cut(arena.allocate(nbytes), 0))
    farthest = 0
    for version in range(1, 60):
        changed = [index for index in range(80) if index not in unchanged]
        sizes = [size_at(index, nbytes) for index in changed]
        image = arena.allocate(sum(sizes) + CHUNK)
        image.trim(sum(sizes))
        table = window[-1].with_changed(dict(zip(changed, image.split(sizes), strict=True)), nbytes, version)
        assert table is not None
        window.append(table)
        farthest = max(farthest, image.offset + image.nbytes)
        del image
    assert farthest < 6 * 81 * CHUNK, "three versions, one that is made, and what the first one has left"
