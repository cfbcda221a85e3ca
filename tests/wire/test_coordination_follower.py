"""What a watch knows: no transition is lost or made up, whatever is compacted, cut off or restored in
between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hams_wire.coordination import (
    Delete,
    Deleted,
    Event,
    KeyValue,
    MemoryCoordination,
    MemoryStore,
    Operation,
    Put,
    Restored,
    Snapshot,
    StoreBackup,
    Write,
)
from hams_wire.coordination.follower import WatchFollower

A1 = KeyValue("a", b"1", 2, 2)
B1 = KeyValue("b", b"1", 3, 3)


def test_changes_seen_before_are_dropped() -> None:
    follower = WatchFollower(Snapshot(3, (A1, B1)))
    assert follower.apply([Put(A1), Put(B1), Deleted("a", 4)]) == [Deleted("a", 4)]
    assert follower.apply([Deleted("a", 4)]) == []
    assert follower.known == {"b": B1}
    assert follower.anchor == 4


def test_a_reading_that_differs_becomes_the_events_in_between() -> None:
    follower = WatchFollower(Snapshot(3, (A1, B1)))
    again, fresh = KeyValue("a", b"1", 7, 7), KeyValue("c", b"1", 6, 6)
    result = Snapshot(9, (again, fresh))
    assert follower.resync(result, restored=False) == [
        Deleted("a", 9, synthetic=True),
        Deleted("b", 9, synthetic=True),
        Put(fresh, synthetic=True),
        Put(again, synthetic=True),
    ]
    assert follower.resync(result, restored=False) == []
    assert follower.next_revision == 10


def test_after_a_restore_everything_found_is_reported() -> None:
    leased = KeyValue("b", b"1", 3, 3, lease=7)
    follower = WatchFollower(Snapshot(9, (A1, leased)))
    other = KeyValue("b", b"1", 3, 3, lease=8)
    assert follower.resync(Snapshot(5, (A1, other)), restored=True) == [
        Restored(9, 5),
        Deleted("b", 5, synthetic=True),
        Put(A1, synthetic=True),
        Put(other, synthetic=True),
    ]
    assert follower.anchor == 5


@pytest.mark.parametrize(
    ("entries", "same"),
    [
        ((A1, B1), True),
        ((A1,), False),
        ((A1, KeyValue("b", b"2", 3, 3)), False),
        ((A1, B1, KeyValue("c", b"", 3, 3)), False),
    ],
    ids=["equal", "less", "another value at the same revision", "more"],
)
def test_a_history_is_the_same_if_what_is_known_is_what_it_holds(
    entries: tuple[KeyValue, ...], same: bool
) -> None:
    assert WatchFollower(Snapshot(3, (A1, B1))).agrees(entries) is same


# ---- any history: the events of a watch rebuild the store ----

Step = tuple[str, str]
keys = st.sampled_from(["t/a", "t/b", "t/c", "u/a"])
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "delete", "both"]), keys),
        st.tuples(
            st.sampled_from(["compact", "partition", "heal", "backup", "restore", "consume"]), st.just("")
        ),
    ),
    max_size=40,
)


@given(steps)
async def test_the_events_of_a_watch_rebuild_the_store_and_skip_no_deletion(script: list[Step]) -> None:
    store = MemoryStore()
    client = store.client()
    watch = client.watch("t/", await client.get_prefix("t/"))
    backup = store.backup()
    model: dict[str, KeyValue] = {}
    count = 0

    def learn(event: Event) -> None:
        match event:
            case Put(entry):
                assert entry.key.startswith("t/")
                before = model.get(entry.key)
                assert before is None or before.create_revision == entry.create_revision, (
                    "a deletion was skipped"
                )
                model[entry.key] = entry
            case Deleted(key):
                assert key in model, "a deletion was made up"
                del model[key]
            case Restored():
                pass

    async def catch_up() -> None:
        """A sentinel is behind everything else."""
        nonlocal count
        count += 1
        sentinel = f"t/~{count}"
        store.transact((), (Write(sentinel, b""),))
        async for event in watch:
            learn(event)
            if isinstance(event, Put) and event.entry.key == sentinel:
                return

    for number, (step, key) in enumerate(script):
        backup = await perform(step, key, number, store, client, backup)
        if step == "consume" and client.connected:
            await catch_up()
    client.heal()
    await catch_up()
    assert model == {entry.key: entry for entry in store.snapshot("t/").entries}
    await client.close()


async def perform(
    step: str, key: str, number: int, store: MemoryStore, client: MemoryCoordination, backup: StoreBackup
) -> StoreBackup:
    operations: dict[str, tuple[Operation, ...]] = {
        "write": (Write(key, b"%d" % number),),
        "delete": (Delete(key),),
        "both": (Delete(key), Write("t/both", b"%d" % number)),
    }
    match step:
        case "write" | "delete" | "both":
            store.transact((), operations[step])
        case "compact":
            store.compact()
        case "partition":
            client.partition()
        case "heal":
            client.heal()
        case "restore":
            store.restore(backup)
        case "backup":
            return store.backup()
    return backup
