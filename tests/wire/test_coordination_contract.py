"""The contract of `Coordination`: the double, one etcd and three etcds pass the same suite."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

from hams_operator.local.etcd import LocalEtcd
from hams_wire.coordination import (
    ABSENT,
    Compare,
    Coordination,
    Delete,
    Deleted,
    Event,
    KeyValue,
    MemoryStore,
    Put,
    Snapshot,
    Watch,
    Write,
)
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import Closed, InvalidCall, LeaseGone, NotApplied

pytestmark = pytest.mark.asyncio(loop_scope="module")

TTL_S = 30
"""Long: in this suite leases end because someone ends them."""


class Cluster(Protocol):
    """What the suite needs beside the port."""

    def client(self) -> Coordination: ...

    async def compact(self) -> None: ...


class MemoryCluster:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def client(self) -> Coordination:
        return self.store.client()

    async def compact(self) -> None:
        self.store.compact()


class EtcdCluster:
    def __init__(self, etcd: LocalEtcd) -> None:
        self.etcd = etcd

    def client(self) -> Coordination:
        return EtcdCoordination(self.etcd.endpoints)

    async def compact(self) -> None:
        client = EtcdCoordination(self.etcd.endpoints)
        await client.compact((await client.get_prefix("/none/")).revision)
        await client.close()


CALM = ("--heartbeat-interval=200", "--election-timeout=2000")
"""No election because a machine is slow: a write of which one comes in between has an unknown outcome, and
nothing here is about that."""
ETCD = (pytest.mark.etcd, pytest.mark.process)


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=["double", pytest.param("etcd-1", marks=ETCD), pytest.param("etcd-3", marks=ETCD)],
)
async def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    if request.param == "double":
        yield MemoryCluster()
        return
    directory: Path = tmp_path_factory.mktemp("etcd")
    async with await LocalEtcd.start(directory, members=int(request.param[-1]), extra=CALM) as etcd:
        yield EtcdCluster(etcd)


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[Coordination]:
    client = cluster.client()
    yield client
    await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def other(cluster: Cluster) -> AsyncIterator[Coordination]:
    client = cluster.client()
    yield client
    await client.close()


@pytest.fixture
def at(request: pytest.FixtureRequest) -> str:
    """A prefix that no other test uses."""
    return f"/{request.node.name}/"


async def take(watch: Watch, count: int) -> list[Event]:
    return [await anext(watch) for _ in range(count)]


def names(events: Sequence[Event]) -> list[tuple[str, str, bytes]]:
    """Events in short: kind, key, value."""
    seen = []
    for event in events:
        match event:
            case Put(entry):
                seen.append(("put", entry.key, entry.value))
            case Deleted(key):
                seen.append(("deleted", key, b""))
            case _:
                seen.append((type(event).__name__, "", b""))
    return seen


# ---- reading and writing ----


async def test_an_absent_key_reads_as_none(client: Coordination, at: str) -> None:
    assert await client.get(at + "a") is None
    assert (await client.get_prefix(at)).entries == ()


async def test_a_created_key_is_read_back_with_its_revisions(
    client: Coordination, other: Coordination, at: str
) -> None:
    revision = await client.compare_and_swap(at + "a", ABSENT, b"1")
    assert await other.get(at + "a") == KeyValue(at + "a", b"1", revision, revision, 0)
    later = await client.compare_and_swap(at + "a", revision, b"2")
    assert later > revision
    assert await other.get(at + "a") == KeyValue(at + "a", b"2", later, revision, 0)


async def test_a_refused_swap_changes_nothing_and_tells_what_is_there(client: Coordination, at: str) -> None:
    revision = await client.compare_and_swap(at + "a", ABSENT, b"1")
    for expected in (ABSENT, revision + 1):
        with pytest.raises(NotApplied) as refused:
            await client.compare_and_swap(at + "a", expected, b"2")
        assert refused.value.current == (KeyValue(at + "a", b"1", revision, revision, 0),)
        assert not refused.value.retryable
    with pytest.raises(NotApplied) as refused:
        await client.compare_and_swap(at + "b", revision, b"2")
    assert refused.value.current == (None,)
    assert (await client.get_prefix(at)).revision == revision or (await client.get(at + "b")) is None


async def test_a_transaction_is_all_or_nothing(client: Coordination, at: str) -> None:
    revision = await client.compare_and_swap(at + "a", ABSENT, b"1")
    await client.compare_and_swap(at + "b", ABSENT, b"1")
    with pytest.raises(NotApplied) as refused:
        await client.transact(
            (Compare(at + "c", ABSENT), Compare(at + "b", revision)),
            (Write(at + "a", b"2"), Delete(at + "b")),
        )
    assert [entry.value if entry else None for entry in refused.value.current] == [None, b"1"]
    assert [entry.value for entry in (await client.get_prefix(at)).entries] == [b"1", b"1"]

    later = await client.transact(
        (Compare(at + "a", revision),), (Write(at + "a", b"2"), Delete(at + "b"), Write(at + "c", b"3"))
    )
    assert [
        (entry.key, entry.value, entry.mod_revision) for entry in (await client.get_prefix(at)).entries
    ] == [
        (at + "a", b"2", later),
        (at + "c", b"3", later),
    ]


async def test_deleting_an_absent_key_changes_nothing(client: Coordination, at: str) -> None:
    before = (await client.get_prefix(at)).revision
    assert await client.transact((), (Delete(at + "a"),)) == before
    assert (await client.get_prefix(at)).revision == before


async def test_a_prefix_yields_its_keys_sorted_and_no_others(client: Coordination, at: str) -> None:
    for key in ("m/b", "m/a", "m", "m0", "m/é\udcff"):
        await client.compare_and_swap(at + key, ABSENT, key.encode("utf-8", "surrogateescape"))
    entries = await client.get_prefix(at + "m/")
    assert [entry.key for entry in entries.entries] == [at + "m/a", at + "m/b", at + "m/é\udcff"]
    assert entries.revision >= max(entry.mod_revision for entry in entries.entries)


async def test_of_concurrent_swaps_none_is_lost(cluster: Cluster, at: str) -> None:
    async def count(client: Coordination) -> None:
        for _ in range(10):
            while True:
                entry = await client.get(at + "n")
                try:
                    value = b"%d" % (int(entry.value) + 1 if entry else 1)
                    await client.compare_and_swap(at + "n", entry.mod_revision if entry else ABSENT, value)
                    break
                except NotApplied:
                    continue

    clients = [cluster.client() for _ in range(4)]
    await asyncio.gather(*(count(client) for client in clients))
    entry = await clients[0].get(at + "n")
    assert entry is not None
    assert entry.value == b"40"
    for client in clients:
        await client.close()


async def test_a_malformed_write_is_refused(client: Coordination, at: str) -> None:
    with pytest.raises(InvalidCall):
        await client.compare_and_swap("", ABSENT, b"1")
    with pytest.raises(InvalidCall):
        await client.transact((), (Write(at + "a", b"1"), Delete(at + "a")))
    with pytest.raises(InvalidCall):
        await client.transact((), [Write(f"{at}{n}", b"") for n in range(129)])
    with pytest.raises(InvalidCall):
        await client.compare_and_swap(at + "a", ABSENT, bytes(2_000_000))
    with pytest.raises(InvalidCall):
        await client.register(at + "a", b"", 0)
    assert (await client.get_prefix(at)).entries == ()


async def test_many_large_values_are_read_at_once(client: Coordination, at: str) -> None:
    values = {f"{at}{n}": bytes([n]) * 1_200_000 for n in range(5)}
    for key, value in values.items():
        await client.compare_and_swap(key, ABSENT, value)
    assert {entry.key: entry.value for entry in (await client.get_prefix(at)).entries} == values
    await client.transact((), [Delete(key) for key in values])


async def test_a_write_under_a_lease_that_is_gone_is_refused(client: Coordination, at: str) -> None:
    with pytest.raises(LeaseGone):
        await client.compare_and_swap(at + "a", ABSENT, b"1", lease=0x7FFFFFFF)
    assert await client.get(at + "a") is None


# ---- watching ----


async def test_a_watch_reports_everything_after_its_snapshot_once_and_in_order(
    client: Coordination, other: Coordination, at: str
) -> None:
    revision = await client.compare_and_swap(at + "a", ABSENT, b"0")
    after = await other.get_prefix(at)
    revision = await client.compare_and_swap(at + "a", revision, b"1")
    async with other.watch(at, after) as watch:
        assert names(await take(watch, 1)) == [("put", at + "a", b"1")]
        for value in (b"2", b"3", b"4"):
            revision = await client.compare_and_swap(at + "a", revision, value)
        await client.transact((), (Delete(at + "a"),))
        events = await take(watch, 4)
    assert names(events) == [
        ("put", at + "a", b"2"),
        ("put", at + "a", b"3"),
        ("put", at + "a", b"4"),
        ("deleted", at + "a", b""),
    ]
    assert not any(event.synthetic for event in events if isinstance(event, Put | Deleted))


async def test_a_watch_sees_a_transaction_at_one_revision_and_no_other_prefix(
    client: Coordination, at: str
) -> None:
    async with client.watch(at + "m/", await client.get_prefix(at + "m/")) as watch:
        await client.compare_and_swap(at + "elsewhere", ABSENT, b"")
        revision = await client.transact((), (Write(at + "m/a", b"1"), Write(at + "m/b", b"2")))
        events = await take(watch, 2)
    assert {event.entry.mod_revision for event in events if isinstance(event, Put)} == {revision}
    assert names(events) == [("put", at + "m/a", b"1"), ("put", at + "m/b", b"2")]


async def test_every_watch_sees_every_change(cluster: Cluster, client: Coordination, at: str) -> None:
    clients = [cluster.client() for _ in range(3)]
    after = await client.get_prefix(at)
    watches = [each.watch(at, after) for each in clients]
    for n in range(20):
        await client.compare_and_swap(f"{at}{n:02}", ABSENT, b"")
    for watch in watches:
        assert [key for _, key, _ in names(await take(watch, 20))] == [f"{at}{n:02}" for n in range(20)]
    for each in clients:
        await each.close()


async def test_a_watch_over_compacted_revisions_misses_no_deletion(
    cluster: Cluster, client: Coordination, at: str
) -> None:
    for key in ("changed", "deleted", "again", "same"):
        await client.compare_and_swap(at + key, ABSENT, b"0")
    after = await client.get_prefix(at)
    await client.transact((), (Write(at + "changed", b"1"), Delete(at + "deleted"), Delete(at + "again")))
    await client.compare_and_swap(at + "again", ABSENT, b"0")
    await client.compare_and_swap(at + "new", ABSENT, b"0")
    await client.compare_and_swap("/elsewhere" + at, ABSENT, b"")
    await cluster.compact()
    async with client.watch(at, after) as watch:
        events = await take(watch, 5)
        assert all(event.synthetic for event in events if isinstance(event, Put | Deleted))
        assert sorted(names(events[:2])) == [("deleted", at + "again", b""), ("deleted", at + "deleted", b"")]
        assert names(events[2:]) == [
            ("put", at + "changed", b"1"),
            ("put", at + "again", b"0"),
            ("put", at + "new", b"0"),
        ]
        await client.transact((), (Delete(at + "same"),))
        (event,) = await take(watch, 1)
    assert isinstance(event, Deleted)
    assert (event.key, event.synthetic) == (at + "same", False)


async def test_a_deletion_at_the_compacted_revision_itself_is_seen(
    cluster: Cluster, client: Coordination, at: str
) -> None:
    await client.compare_and_swap(at + "a", ABSENT, b"0")
    after = await client.get_prefix(at)
    await client.transact((), (Delete(at + "a"),))
    await cluster.compact()
    async with client.watch(at, after) as watch:
        assert names(await take(watch, 1)) == [("deleted", at + "a", b"")]


async def test_a_watch_may_start_from_the_reading_of_a_wider_prefix(client: Coordination, at: str) -> None:
    await client.transact((), (Write(at + "m/a", b"0"), Write(at + "n/a", b"0")))
    async with client.watch(at + "m/", await client.get_prefix(at)) as watch:
        await client.transact((), (Write(at + "m/a", b"1"), Write(at + "n/a", b"1")))
        assert [
            (event.entry.key, event.synthetic) for event in await take(watch, 1) if isinstance(event, Put)
        ] == [(at + "m/a", False)]


async def test_a_closed_watch_ends_whoever_waits_for_it(client: Coordination, at: str) -> None:
    watch = client.watch(at, await client.get_prefix(at))
    waiting = asyncio.create_task(take(watch, 1))
    await asyncio.sleep(0)
    await watch.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await anext(watch)
    assert not watch.live


# ---- registrations ----


async def test_a_registration_is_a_key_under_a_lease_until_it_is_revoked(
    client: Coordination, other: Coordination, at: str
) -> None:
    registration = await client.register(at + "i", b"here", TTL_S)
    entry = await other.get(at + "i")
    assert entry is not None
    assert (entry.value, entry.lease) == (b"here", registration.lease)
    assert registration.held.is_set()
    async with other.watch(at, await other.get_prefix(at)) as watch:
        await registration.revoke()
        assert names(await take(watch, 1)) == [("deleted", at + "i", b"")]
    assert registration.ended.is_set()
    assert registration.error is None
    assert await other.get(at + "i") is None


async def test_a_lease_revoked_under_a_living_owner_comes_back(
    client: Coordination, other: Coordination, at: str
) -> None:
    registration = await client.register(at + "i", b"here", TTL_S)
    lease = registration.lease
    async with other.watch(at, await other.get_prefix(at)) as watch:
        await other.revoke(lease)
        events = await take(watch, 2)
    assert names(events) == [("deleted", at + "i", b""), ("put", at + "i", b"here")]
    await registration.held.wait()
    assert registration.times_lost == 1
    assert isinstance(events[1], Put)
    assert events[1].entry.lease == registration.lease != lease
    assert not registration.ended.is_set()
    await registration.revoke()


async def test_a_registration_deleted_by_hand_comes_back_under_its_lease(
    client: Coordination, other: Coordination, at: str
) -> None:
    registration = await client.register(at + "i", b"here", TTL_S)
    lease = registration.lease
    async with other.watch(at, await other.get_prefix(at)) as watch:
        await other.transact((), (Delete(at + "i"),))
        events = await take(watch, 2)
    assert isinstance(events[1], Put)
    assert events[1].entry.lease == lease
    await registration.revoke()


async def test_a_registration_that_may_not_return_stays_away(
    client: Coordination, other: Coordination, at: str
) -> None:
    asked = asyncio.Event()

    async def permit() -> None:
        asked.set()

    registration = await client.register(at + "i", b"here", TTL_S, permit)
    assert not asked.is_set()
    await other.revoke(registration.lease)
    await registration.ended.wait()
    assert asked.is_set()
    assert registration.lost.is_set()
    assert registration.error is None
    assert await other.get(at + "i") is None


async def test_a_permit_that_is_outrun_is_asked_again(
    client: Coordination, other: Coordination, at: str
) -> None:
    """The instance is listed as revoked between the question and the return: the transaction must notice."""
    asked: list[int] = []

    async def permit() -> Sequence[Compare] | None:
        topology = await client.get(at + "topology")
        assert topology is not None
        asked.append(topology.mod_revision)
        if topology.value == b"revoked":
            return None
        await other.compare_and_swap(at + "topology", topology.mod_revision, b"revoked")
        return (Compare(at + "topology", topology.mod_revision),)

    await other.compare_and_swap(at + "topology", ABSENT, b"named")
    registration = await client.register(at + "i", b"here", TTL_S, permit)
    await other.revoke(registration.lease)
    await registration.ended.wait()
    assert len(asked) == 2
    assert await other.get(at + "i") is None


async def test_a_registration_returns_with_its_newest_value(
    client: Coordination, other: Coordination, at: str
) -> None:
    registration = await client.register(at + "i", b"1", TTL_S)
    async with other.watch(at, await other.get_prefix(at)) as watch:
        await registration.update(b"2")
        assert names(await take(watch, 1)) == [("put", at + "i", b"2")]
        await other.revoke(registration.lease)
        assert names(await take(watch, 2)) == [("deleted", at + "i", b""), ("put", at + "i", b"2")]
        await registration.held.wait()
        await registration.update(b"3")
        assert names(await take(watch, 1)) == [("put", at + "i", b"3")]
    await registration.revoke()


async def test_a_registration_taken_by_another_owner_ends(
    client: Coordination, other: Coordination, at: str
) -> None:
    first = await client.register(at + "i", b"1", TTL_S)
    second = await other.register(at + "i", b"2", TTL_S)
    await first.ended.wait()
    assert isinstance(first.error, InvalidCall)
    assert not second.ended.is_set()
    entry = await other.get(at + "i")
    assert entry is not None
    assert entry.value == b"2"
    await second.revoke()


async def test_revoking_a_lease_that_is_gone_is_done(client: Coordination, at: str) -> None:
    registration = await client.register(at + "i", b"", TTL_S)
    lease = registration.lease
    await registration.revoke()
    await client.revoke(lease)
    await registration.revoke()


# ---- closing ----


async def test_a_closed_client_refuses_calls_and_leaves_its_leases_to_expire(
    cluster: Cluster, other: Coordination, at: str
) -> None:
    client = cluster.client()
    registration = await client.register(at + "i", b"", TTL_S)
    watch = client.watch(at, Snapshot(1))
    await client.close()
    assert isinstance(registration.error, Closed)
    assert registration.ended.is_set()
    with pytest.raises(Closed):
        await client.get(at + "i")
    with pytest.raises(Closed):
        await client.compare_and_swap(at + "i", ABSENT, b"")
    with pytest.raises(Closed):
        await anext(watch)
    assert await other.get(at + "i") is not None
    await client.close()
