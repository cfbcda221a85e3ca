"""The double's faults: what a caller of `Coordination` must be able to live with, deterministically."""

import asyncio

import pytest

from hams_wire.coordination import ABSENT, Deleted, MemoryStore, Put, Restored, Snapshot
from hams_wire.errors import AuthExpired, Closed, LeaseGone, Lost, NoSpace, Unavailable, Unknown


async def test_a_lost_reply_leaves_an_applied_write_unknown() -> None:
    client = MemoryStore().client()
    client.lose_reply()
    with pytest.raises(Unknown):
        await client.compare_and_swap("k", ABSENT, b"1")
    assert (entry := await client.get("k")) is not None
    assert entry.value == b"1"


async def test_a_lost_request_leaves_an_unapplied_write_unknown() -> None:
    client = MemoryStore().client()
    client.lose_request()
    with pytest.raises(Unknown):
        await client.compare_and_swap("k", ABSENT, b"1")
    assert await client.get("k") is None
    await client.compare_and_swap("k", ABSENT, b"1")


async def test_a_lost_refusal_is_unknown_too() -> None:
    client = MemoryStore().client()
    await client.compare_and_swap("k", ABSENT, b"1")
    client.lose_reply()
    with pytest.raises(Unknown):
        await client.compare_and_swap("k", ABSENT, b"2")


async def test_scripted_errors_hit_the_next_calls_and_apply_nothing() -> None:
    client = MemoryStore().client()
    client.fail(Unavailable("no leader"), AuthExpired("token"))
    with pytest.raises(Unavailable):
        await client.compare_and_swap("k", ABSENT, b"1")
    with pytest.raises(AuthExpired):
        await client.get("k")
    assert await client.get("k") is None


async def test_a_partition_stops_one_client_and_its_watch_catches_up() -> None:
    store = MemoryStore()
    client, other = store.client(), store.client()
    watch = client.watch("", await client.get_prefix(""))
    client.partition()
    assert not watch.live
    with pytest.raises(Lost):
        await client.compare_and_swap("k", ABSENT, b"1")
    with pytest.raises(Lost):
        await client.get("k")
    await other.compare_and_swap("k", ABSENT, b"1")
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    client.heal()
    assert isinstance(await waiting, Put)
    assert watch.live


@pytest.mark.parametrize("fault", ["lost reply", "lost request", "unavailable", "lost grant"])
async def test_a_registration_returns_in_spite_of(fault: str) -> None:
    store = MemoryStore()
    client, observer = store.client(), store.client()
    asked = 0

    async def permit() -> tuple[()]:
        nonlocal asked
        asked += 1
        if asked == 1:
            match fault:
                case "lost reply":
                    client.lose_reply()
                case "lost request":
                    client.lose_request()
                case "unavailable":
                    client.fail(*[Unavailable("no leader")] * 3)
                case "lost grant":
                    client.fail(Lost("gone"))
        return ()

    registration = await client.register("m/i", b"here", 5, permit)
    watch = observer.watch("m/", await observer.get_prefix("m/"))
    store.expire(registration.lease)
    assert [type(event) for event in (await anext(watch), await anext(watch))] == [Deleted, Put]
    await registration.held.wait()
    assert (entry := await observer.get("m/i")) is not None
    assert entry.lease == registration.lease
    assert registration.times_lost == 1
    assert len(store.leases()) == 1
    await client.close()


async def test_a_registration_whose_upkeep_fails_ends_with_an_error() -> None:
    """No error means that its owner may not return, and knows why."""
    store = MemoryStore()
    client = store.client()

    async def permit() -> tuple[()]:
        raise OSError("not of etcd")

    registration = await client.register("m/i", b"here", 5, permit)
    store.expire(registration.lease)
    await registration.ended.wait()
    assert isinstance(registration.error, Closed)
    await client.close()


async def test_a_first_registration_of_unknown_outcome_is_settled_by_reading() -> None:
    store = MemoryStore()
    client = store.client()
    client.lose_reply()
    registration = await client.register("m/i", b"here", 5)
    assert registration.held.is_set()
    assert store.revision == 2, "written once"
    await client.close()


async def test_a_first_registration_that_cannot_be_settled_is_unknown() -> None:
    store = MemoryStore()
    client = store.client()
    client.lose_reply()
    store.listen(client.partition)  # cut off as soon as the write is applied
    with pytest.raises(Unknown):
        await client.register("m/i", b"here", 5)
    store.unlisten(client.partition)
    client.heal()
    registration = await client.register("m/i", b"here", 5)
    assert registration.held.is_set()
    await client.close()


async def test_a_registration_does_not_return_while_its_owner_is_cut_off() -> None:
    store = MemoryStore()
    client, observer = store.client(), store.client()
    registration = await client.register("m/i", b"here", 5)
    client.partition()
    store.expire(registration.lease)
    watch = observer.watch("m/", await observer.get_prefix("m/"))
    await observer.compare_and_swap("m/other", ABSENT, b"")
    assert isinstance(event := await anext(watch), Put)
    assert event.entry.key == "m/other"
    assert registration.held.is_set(), "it cannot know"
    client.heal()
    assert isinstance(event := await anext(watch), Put)
    assert event.entry.key == "m/i"
    await registration.held.wait()
    await client.close()


async def test_a_full_store_refuses_writes_and_a_registration_waits_for_its_repair() -> None:
    store = MemoryStore()
    client = store.client()
    registration = await client.register("m/i", b"here", 5)
    watch = client.watch("m/", await client.get_prefix("m/"))
    store.full = True
    with pytest.raises(NoSpace):
        await client.compare_and_swap("k", ABSENT, b"")
    store.expire(registration.lease)
    assert isinstance(await anext(watch), Deleted)
    await registration.lost.wait()
    store.full = False
    client.wake()
    assert isinstance(await anext(watch), Put)
    await client.close()


async def test_an_expired_lease_takes_all_its_keys_and_no_other() -> None:
    store = MemoryStore()
    client = store.client()
    lease = await client.grant(5)
    await client.compare_and_swap("a", ABSENT, b"", lease)
    revision = await client.compare_and_swap("b", ABSENT, b"", lease)
    await client.compare_and_swap("c", ABSENT, b"", lease)
    await client.compare_and_swap("b", revision, b"")
    store.expire(lease)
    assert [entry.key for entry in (await client.get_prefix("")).entries] == ["b"]
    with pytest.raises(LeaseGone):
        await client.compare_and_swap("a", ABSENT, b"", lease)


async def test_a_restored_store_is_reported_even_if_its_revisions_have_caught_up() -> None:
    store = MemoryStore()
    client = store.client()
    backup = store.backup()
    revision = await client.compare_and_swap("k", ABSENT, b"1")
    watch = client.watch("", Snapshot(1))
    assert isinstance(await anext(watch), Put)
    store.restore(backup)
    assert await client.compare_and_swap("k", ABSENT, b"2") == revision
    assert isinstance(await anext(watch), Restored)
    assert [type(event) for event in (await anext(watch),)] == [Put]
    assert not watch._ready
