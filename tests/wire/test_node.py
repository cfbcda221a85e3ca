"""The shell around a core: every effect in order, and an end where one cannot be performed."""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hams_protocol.effects import Answer, Effect, NotServed, Propose, Send, Stop
from hams_protocol.events import (
    CasSettled,
    CasUnknown,
    ClientGone,
    Event,
    MembersChanged,
    Received,
    Tick,
    TopologyLearnt,
)
from hams_protocol.graph import FrontendSpec, Graph, GraphData, Mode, RecoverySpec
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import Heartbeat
from hams_protocol.topology import Topology
from hams_wire import limits, records, succession
from hams_wire.coordination.memory import MemoryCoordination, MemoryStore
from hams_wire.errors import AccessDenied
from hams_wire.node import Node, NodeSettings, Owner, late_log_s
from hams_wire.peers.payload import HeapFactory
from hams_wire.shell import Shell

GRAPH = Graph(GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), (), (), ()))


class Scripted:
    """A core that remembers its events and answers them as it is told."""

    def __init__(self, answers: Callable[[Event], list[Effect]]) -> None:
        self.knowledge = Knowledge(GRAPH)
        self.events: list[Event] = []
        self._answers = answers

    def step(self, event: Event, now: float) -> list[Effect]:
        self.events.append(event)
        return self._answers(event)

    def deadline(self) -> float:
        return float("inf")


class Performs(Owner):
    """A process that a test is."""

    def __init__(self, perform: Callable[[Effect], None]) -> None:
        self.perform = perform  # type: ignore[method-assign]


def node(
    core: Scripted,
    perform: Callable[[Effect], None],
    name: str = "a-1",
    store: MemoryCoordination | None = None,
) -> Node:
    coordination = store or MemoryStore().client()
    return Node(core, name, "a", coordination, HeapFactory(), Performs(perform), NodeSettings("uid"))


def handles(performed: list[Effect]) -> list[int]:
    return [effect.handle for effect in performed if isinstance(effect, Answer)]


def answer(handle: int) -> Answer:
    return Answer(handle, NotServed(503, ""))


async def test_events_that_arise_while_effects_are_performed_follow_in_order() -> None:
    performed: list[Effect] = []

    def perform(effect: Effect) -> None:
        performed.append(effect)
        if handles([effect]) == [1]:
            shell.feed(ClientGone(2))

    core = Scripted(
        lambda event: {
            ClientGone(1): [answer(1), Send("a-1", Heartbeat(7)), answer(10)],
            ClientGone(2): [answer(2)],
        }.get(event, [])
    )
    shell = node(core, perform)
    shell.feed(ClientGone(1))
    await asyncio.sleep(0)
    assert handles(performed) == [1, 10, 2]
    assert core.events == [ClientGone(1), ClientGone(2), Received("a-1", Heartbeat(7))]


async def test_a_machine_that_can_is_given_the_events_of_one_turn_together() -> None:
    performed: list[Effect] = []
    taken: list[tuple[Event, ...]] = []

    class Together(Scripted):
        def steps(self, events: Sequence[Event], now: float) -> list[Effect]:
            taken.append(tuple(events))
            return [Send("a-1", Heartbeat(7)), answer(len(events))] if len(taken) == 1 else []

    core = Together(lambda event: [])
    shell = node(core, performed.append)
    for handle in range(3):
        shell.feed(ClientGone(handle))
    assert not taken
    await asyncio.sleep(0)
    assert taken == [(ClientGone(0), ClientGone(1), ClientGone(2)), (Received("a-1", Heartbeat(7)),)]
    assert handles(performed) == [3]
    assert not core.events


@pytest.mark.parametrize("where", ["core", "effect"])
async def test_what_raises_ends_the_instance_and_nothing_is_done_after_it(where: str) -> None:
    performed: list[Effect] = []

    def answers(event: Event) -> list[Effect]:
        if where == "core":
            raise AssertionError("an invariant does not hold")
        return [answer(1), answer(2), answer(3)]

    def perform(effect: Effect) -> None:
        if handles([effect]) == [2]:
            raise ValueError("cannot be done")
        performed.append(effect)

    core = Scripted(answers)
    shell = node(core, perform)
    shell.feed(Tick())
    shell.feed(Tick())
    await asyncio.sleep(0)
    assert handles(performed) == ([] if where == "core" else [1])
    assert len(core.events) == 1
    assert "failed on Tick" in shell.stopped.result().reason


async def test_a_stop_is_the_last_effect_that_is_performed() -> None:
    performed: list[Effect] = []
    shell = node(Scripted(lambda event: [answer(1), Stop("over"), answer(2)]), performed.append)
    shell.feed(Tick())
    await asyncio.sleep(0)
    assert handles(performed) == [1]
    assert shell.stopped.result() == Stop("over")


async def test_a_proposal_made_on_the_answer_to_another_is_made_too() -> None:
    store = MemoryStore()
    outcome = asyncio.Event()
    one, two = Topology(generation=1), Topology(generation=2)

    def answers(event: Event) -> list[Effect]:
        if isinstance(event, CasSettled) and event.topology == one:
            return [Propose(event.revision, two)]
        if isinstance(event, CasSettled):
            outcome.set()
        return [Propose(0, one)] if isinstance(event, Tick) else []

    shell = node(Scripted(answers), _nothing, store=store.client())
    shell.feed(Tick())
    await outcome.wait()
    read = store.read(records.topology_key("uid"))
    assert read is not None
    assert records.decode_topology(read.value) == two


async def test_a_proposal_whose_outcome_is_unknown_is_read_again_and_not_repeated() -> None:
    store = MemoryStore()
    client = store.client()
    learnt = asyncio.Event()

    def answers(event: Event) -> list[Effect]:
        if isinstance(event, TopologyLearnt):
            learnt.set()
        return [Propose(0, Topology(generation=1))] if isinstance(event, Tick) else []

    core = Scripted(answers)
    shell = node(core, _nothing, store=client)
    client.lose_reply()
    shell.feed(Tick())
    await learnt.wait()
    assert [type(event) for event in core.events] == [Tick, CasUnknown, TopologyLearnt]
    read = store.read(records.topology_key("uid"))
    assert read is not None
    assert core.events[-1] == TopologyLearnt(Topology(generation=1), read.mod_revision)


async def test_while_etcd_is_away_one_reader_waits_for_it_however_many_proposals_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "etcd_pause_max_s", 0.001)
    store = MemoryStore()
    client = store.client()
    failed, learnt = asyncio.Event(), asyncio.Event()

    def answers(event: Event) -> list[Effect]:
        if isinstance(event, TopologyLearnt):
            learnt.set()
        if isinstance(event, CasUnknown) and len(core.events) > 40:
            failed.set()
            return []
        return [Propose(0, Topology(generation=1))] if isinstance(event, Tick | CasUnknown) else []

    core = Scripted(answers)
    shell = node(core, _nothing, store=client)
    client.partition()
    shell.feed(Tick())
    await failed.wait()
    assert len(shell._tasks) <= 2, "who proposes, and who reads"
    client.heal()
    await learnt.wait()
    await asyncio.gather(*shell._tasks)
    assert [type(event) for event in core.events].count(TopologyLearnt) == 1


async def test_an_outcome_that_becomes_unknown_during_a_read_is_read_after_it() -> None:
    store = MemoryStore()
    shell = node(core := Scripted(lambda event: []), _nothing, store=store.client())
    shell.read_topology()
    await asyncio.sleep(0)
    shell.read_topology()
    await asyncio.gather(*shell._tasks)
    await asyncio.sleep(0)
    assert [type(event) for event in core.events] == [TopologyLearnt, TopologyLearnt]


@pytest.mark.parametrize("what", ["event", "effect"])
async def test_a_trace_that_cannot_be_written_ends_and_the_instance_goes_on(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setenv("HAMS_TRACE", str(tmp_path))
    performed: list[Effect] = []
    shell = node(Scripted(lambda event: [answer(1)]), performed.append)
    written = os.write

    def full(file: int, data: bytes) -> int:
        if what == "event" or b"Answer" in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, data)

    monkeypatch.setattr(os, "write", full)
    shell.feed(Tick())
    shell.feed(Tick())
    await asyncio.sleep(0)
    monkeypatch.undo()
    assert handles(performed) == [1, 1]
    assert not shell.stopped.done()
    assert caplog.text.count("No space left") == 1


async def test_a_proposal_that_somebody_else_was_faster_with_is_answered_by_what_there_is() -> None:
    store = MemoryStore()
    there = Topology(generation=5)
    revision = await store.client().compare_and_swap(
        records.topology_key("uid"), 0, records.encode_topology(there)
    )
    outcome: asyncio.Future[CasSettled] = asyncio.get_running_loop().create_future()

    def answers(event: Event) -> list[Effect]:
        if isinstance(event, CasSettled):
            outcome.set_result(event)
        return [Propose(0, Topology(generation=1))] if isinstance(event, Tick) else []

    shell = node(Scripted(answers), _nothing, store=store.client())
    shell.feed(Tick())
    assert await outcome == CasSettled(there, revision, committed=False)


async def test_a_proposal_of_a_graph_that_has_ended_is_no_news_that_calls_for_another_at_once() -> None:
    store = MemoryStore()
    await store.client().compare_and_swap(succession.key("uid", succession.ENDED), 0, succession.NOBODY)
    outcome: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def answers(event: Event) -> list[Effect]:
        if isinstance(event, CasSettled | CasUnknown):
            outcome.set_result(event)
        return [Propose(0, Topology(generation=1))] if isinstance(event, Tick) else []

    shell = node(Scripted(answers), _nothing, store=store.client())
    shell.feed(Tick())
    assert await outcome == CasUnknown()
    assert store.read(records.topology_key("uid")) is None


async def test_what_is_no_topology_in_etcd_ends_nobody_and_the_next_one_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody has written over it: what is known goes on to hold, a proposal is answered as of unknown
    outcome, and who mends it is heard."""
    store = MemoryStore()
    key = records.topology_key("uid")
    writer = store.client()
    revision = await writer.compare_and_swap(key, 0, b'{"generation":"\xff')
    outcome: asyncio.Queue[Event] = asyncio.Queue()

    def answers(event: Event) -> list[Effect]:
        if isinstance(event, CasUnknown | TopologyLearnt):
            outcome.put_nowait(event)
        return [Propose(0, Topology(generation=1))] if isinstance(event, Tick) else []

    shell = node(Scripted(answers), _nothing, store=store.client())
    shell.feed(Tick())
    assert await outcome.get() == CasUnknown()
    await writer.compare_and_swap(key, revision, b"[]")
    entries = await writer.get_prefix(records.prefix_of("uid"))
    shell._spawn(shell._watch(records.prefix_of("uid"), entries))
    revision = entries.entries[0].mod_revision
    revision = await writer.compare_and_swap(key, revision, b"{}}")
    mended = Topology(generation=7)
    revision = await writer.compare_and_swap(key, revision, records.encode_topology(mended))
    assert await outcome.get() == TopologyLearnt(mended, revision)
    assert not shell.stopped.done()
    assert "etcd holds no topology" in caplog.text


async def test_until_what_members_decide_holds() -> None:
    store = MemoryStore()
    both, never, now = asyncio.Event(), asyncio.Event(), asyncio.Event()
    now.set()

    def hear(event: Event) -> list[Effect]:
        if isinstance(event, MembersChanged) and len(event.members) == 2:
            both.set()
        return []

    one = node(Scripted(hear), _nothing, store=store.client())
    core = Scripted(lambda event: [])
    two = Node(core, "b-1", "b", store.client(), HeapFactory(), Owner(), NodeSettings("uid"))
    try:
        await one.start()
        await two.start()
        await both.wait()

        def alone() -> bool:
            return all(member.of != "b" for member in one.members.values())

        await one.until(alone, timeout_s=0)
        await one.until(alone, now, timeout_s=60)
        waits = asyncio.create_task(one.until(alone, never, timeout_s=60))
        await asyncio.sleep(0)
        assert not waits.done()
        await two.close(leave=True)
        await waits
        assert set(one.members) == {"a-1"}
    finally:
        await one.close(leave=True)


async def test_two_nodes_find_each_other_and_who_is_over_gives_no_sign_of_life() -> None:
    store = MemoryStore()
    beats: asyncio.Queue[Event] = asyncio.Queue()

    def hear(event: Event) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Heartbeat):
            beats.put_nowait(event)
        return []

    talker = Scripted(lambda event: [Stop("over")] if isinstance(event, Tick) else [])
    one, two = (
        node(talker, _nothing, store=store.client()),
        node(Scripted(hear), _nothing, "a-2", store.client()),
    )
    try:
        await one.start()
        await two.start()
        await beats.get()
        assert [type(event) for event in talker.events[:2]] == [TopologyLearnt, MembersChanged]
        one.feed(Tick())
        await one.stopped
        before = one.network.stats.sent_messages
        one._beat()
        assert one.network.stats.sent_messages == before
    finally:
        await one.close(leave=True)
        await two.close(leave=True)


async def test_a_process_that_got_too_little_cpu_says_so_and_not_at_each_beat(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    one = node(Scripted(lambda event: []), _nothing)
    monkeypatch.setattr(one._loop, "time", lambda: clock[0])
    every_s = one.shell.heartbeat_s

    def beat_at(now: float) -> list[str]:
        """What is said at this beat."""
        clock[0] = now
        caplog.clear()
        one._beat()
        assert one._heartbeat is not None
        one._heartbeat.cancel()  # here the test beats
        return [record.getMessage() for record in caplog.records]

    def line(late_s: float) -> list[str]:
        return [
            f"this process gets too little CPU: it was late by {late_s:.2f} s, and judges nobody for being "
            "silent"
        ]

    try:
        assert beat_at(100.0) == beat_at(100.0 + every_s) == []
        assert beat_at(102.0 + every_s) == line(2.0 - every_s)
        assert beat_at(102.0 + 2 * every_s) == [], "still judges nobody, and has said so"
        assert beat_at(110.0) == [], "starved again, within late_log_s of the last line"
        assert beat_at(112.0 + 2 * every_s) == line(8.0 - 3 * every_s), "the worst since it judged last"
        calm = [beat_at(clock[0] + every_s) for _ in range(round((late_log_s + 5.0) / every_s))]
        assert not any(calm)
    finally:
        await one.close(leave=False)


def _nothing(effect: Effect) -> None:
    """No effect of these tests."""


async def test_an_instance_whose_registration_has_ended_ends() -> None:
    """Nobody sees it any more, and nobody would say so."""
    client = MemoryStore().client()

    async def keep(lease: int, ttl_s: int) -> None:
        raise AccessDenied("permission denied")

    client.keep = keep  # type: ignore[method-assign]
    one = node(Scripted(lambda event: []), lambda effect: None, store=client)
    try:
        await one.start()
        assert "permission denied" in (await one.stopped).reason
    finally:
        await one.close(leave=False)


@pytest.mark.parametrize("where", ["beat", "deadline"])
async def test_an_instance_that_can_neither_beat_nor_wake_ends(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would serve on, and suspect nobody."""

    def fails(*arguments: object) -> float:
        raise OSError(errno.EBADF, "bad file")

    core = Scripted(lambda event: [])
    one = node(core, lambda effect: None)
    try:
        await one.start()
        monkeypatch.setattr(*((Shell, "beat") if where == "beat" else (core, "deadline")), fails)
        one.feed(Tick())
        assert "bad file" in (await one.stopped).reason
    finally:
        await one.close(leave=False)
