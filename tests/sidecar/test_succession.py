"""The parts of a succession in the data plane, one by one; all of them together:
tests/operator/plan/test_succession_runs.py."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sidecar.endpoint.doubles import DIGITS

from hams_protocol import limits as core_limits
from hams_protocol.events import TopologyLearnt
from hams_protocol.frontend import FrontendMachine
from hams_protocol.frontend.state import key_hash
from hams_protocol.graph import FRONTEND, FrontendSpec, Graph
from hams_protocol.keys import scoped
from hams_protocol.messages import AskTopology, ClientForward, Meta, Payload
from hams_protocol.succession import predecessor
from hams_protocol.succession import replies as core_replies
from hams_protocol.succession.effects import Begin, Fetch
from hams_protocol.succession.events import GraphsSeen
from hams_protocol.succession.records import Follows, Phase, Quiet, Succession, all_hold, cut_of
from hams_protocol.succession.takeover import TakeoverMachine
from hams_protocol.topology import ReplicaSet, Topology
from hams_sidecar.inference import (
    Conflict,
    Done,
    Full,
    InferenceOutcome,
    InferenceRequest,
    JoinRefused,
    KeyExpired,
    ModelFailure,
    NotReady,
    Reply,
    Shed,
    Tensor,
    TimedOut,
    TraceContext,
    Unpromised,
)
from hams_sidecar.succession import replies, talk
from hams_sidecar.succession.predecessor import Predecessor
from hams_sidecar.succession.replies import Table, page_in, table_for
from hams_sidecar.succession.successor import Successor, answer_visitor
from hams_sidecar.succession.takeover import GraphInEtcd, Takeover
from hams_wire import succession
from hams_wire.coordination.port import Coordination
from hams_wire.errors import NotApplied
from hams_wire.peers.visits import Visit, VisitFailed

TENSORS = (Tensor("x", "FP32", (1, 2), b"12345678"), Tensor("y", "BYTES", (1,), b"\x01\x00\x00\x00a"))
REQUEST = InferenceRequest(
    TENSORS, {"a": 1, "b": True, "c": 0.5, "d": "e"}, ("y",), 3.0, "key", TraceContext("00-1", "s"), "digest"
)


def joined(parts: list[Any]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


def test_a_request_arrives_as_it_left() -> None:
    head, parts = talk.asked(REQUEST)
    asked = talk.question(talk.encode(head))
    assert isinstance(asked, talk.AskOutcome)
    assert talk.request_in(asked, joined(parts)) == REQUEST


@pytest.mark.parametrize(
    "outcome",
    [
        Reply(TENSORS),
        ModelFailure("op", "it broke"),
        JoinRefused("op", "no"),
        Shed("op", "not run"),
        Unpromised("not in time", 1.5),
        Conflict(),
        KeyExpired(),
        Full(2.5),
        NotReady("why"),
        TimedOut(),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_an_outcome_arrives_as_it_left(outcome: InferenceOutcome) -> None:
    said, parts = talk.passed_outcome(outcome)
    answer = talk.answer(talk.encode(said))
    assert isinstance(answer, talk.PassedOutcome)
    assert talk.outcome_in(answer, joined(parts)) == outcome


@pytest.mark.parametrize("head", [b"", b"\xc1", b"\x80", talk.encode(talk.Unready("not a question"))])
def test_what_is_no_question_ends_the_visit(head: bytes) -> None:
    with pytest.raises(VisitFailed):
        talk.question(head)


def test_tensors_that_are_not_all_there_end_the_visit() -> None:
    head, parts = talk.asked(REQUEST)
    with pytest.raises(VisitFailed, match="ends beyond"):
        talk.request_in(head, joined(parts)[:-1])
    with pytest.raises(VisitFailed, match="unknown kind"):
        talk.outcome_in(talk.PassedOutcome("nonsense"), memoryview(b""))


def page(*keys: str, nbytes: int = 4) -> replies.Page:
    replies, parts = [], []
    for key in keys:
        said, own = talk.passed_outcome(
            Reply((Tensor("y", "INT32", (1,), key.encode().ljust(nbytes, b"_")),))
        )
        replies.append(talk.PassedReply(key, f"digest of {key}", said))
        parts += own
    return page_in(talk.PassedReplies(tuple(replies), (key_hash("long ago"),), False), joined(parts))


def test_a_key_of_before_has_its_answer_and_no_other() -> None:
    table = table_for(FrontendSpec(shards=1))
    table.add(page("a", "b"))
    result = table.find("b", "digest of b")
    assert isinstance(result, Reply)
    assert bytes(result.tensors[0].data) == b"b___"
    assert table.find("b", "another digest") == Conflict()
    assert table.find("long ago", "any") == KeyExpired()
    assert table.find("new", "any") is None


def test_a_key_of_before_is_known_to_whoever_has_a_scope_and_no_other_scopes_is() -> None:
    table = table_for(FrontendSpec(shards=1))
    table.add(page("a", scoped("bob", "b")))
    assert isinstance(table.find(scoped("alice", "a"), "digest of a"), Reply)
    assert table.find(scoped("alice", "long ago"), "any") == KeyExpired()
    assert table.find(scoped("alice", "b"), "any") is None
    assert table.find("b", "any") is None


@pytest.mark.parametrize(
    "spec",
    [FrontendSpec(shards=1, replies_kept=2), FrontendSpec(shards=1, replies_kept_bytes=8)],
    ids=["count", "bytes"],
)
def test_the_oldest_go_first_and_are_known_to_be_gone(spec: FrontendSpec) -> None:
    table = table_for(spec)
    table.add(page("a", "b"))
    table.add(page("c"))
    assert len(table) == 2
    assert table.find("a", "digest of a") == KeyExpired()
    assert isinstance(table.find("c", "digest of c"), Reply)


# -- verdicts ------------------------------------------------------------------------------------------------

TOPOLOGY = Topology(3, (ReplicaSet("F/0", 2, "f1", ("f2",)), ReplicaSet("F/1", 1, "f2", ())))
QUIET = {"f1": Quiet("new", True, (("F/0", 2, 5),)), "f2": Quiet("new", True, (("F/1", 1, 6), ("F/0", 1, 4)))}


def test_the_cut_is_what_the_present_owners_say() -> None:
    assert cut_of(("F/0", "F/1"), TOPOLOGY, QUIET, "new") == (("F/0", 5), ("F/1", 6))


@pytest.mark.parametrize(
    "change",
    [
        {"f1": Quiet("new", True, (("F/0", 1, 5),))},
        {"f1": Quiet("new", False)},
        {"f1": Quiet("older", True, (("F/0", 2, 5),))},
        {"f1": Quiet("new", True)},
    ],
    ids=["of the epoch before", "not closed", "of another attempt", "something is open"],
)
def test_there_is_no_cut_before_that(change: dict[str, Quiet]) -> None:
    assert cut_of(("F/0", "F/1"), TOPOLOGY, QUIET | change, "new") is None


def test_a_shard_without_an_owner_is_not_at_rest() -> None:
    topology = Topology(4, (ReplicaSet("F/0", 2, None, ()), TOPOLOGY.sets[1]))
    assert cut_of(("F/0", "F/1"), topology, QUIET, "new") is None


def test_all_hold_when_every_registered_one_does() -> None:
    assert all_hold(("f1", "f2"), QUIET, "new")
    assert not all_hold(("f1", "f2", "f3"), QUIET, "new")
    assert not all_hold((), QUIET, "new")


def test_a_table_is_as_whole_as_those_that_it_was_taken_from() -> None:
    table = table_for(DIGITS.frontend)
    table.add(page_in(talk.PassedReplies((), (), True), memoryview(b"")))
    assert table.whole
    table.add(page_in(talk.PassedReplies((), (), False, whole=False), memoryview(b"")))
    assert not table.whole


# -- a frontend that has a successor -------------------------------------------------------------------------


class Desk:
    """A frontend without a core: what is submitted is kept."""

    def __init__(self) -> None:
        self.core: list[InferenceRequest] = []
        self.outcomes: list[InferenceOutcome | Exception] = []
        self.cancelled = 0
        graph = Graph(replace(DIGITS, frontend=replace(DIGITS.frontend, request_timeout_s=30.0)))
        never = cast(Callable[[], Coordination], None)
        self.predecessor = Predecessor(graph, "old", lambda: None, self.admit, never, None)

    def submit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        taken = self.predecessor.take(request, done)
        return self.admit(request, done) if taken is None else taken

    def admit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        self.core.append(request)

        def cancel() -> None:
            self.cancelled += 1

        return cancel

    def ask(self) -> Callable[[], object]:
        return self.submit(REQUEST, self.outcomes.append)

    def note(self, phase: Phase, to: str = "new") -> None:
        self.predecessor.on_key_changed(succession.SUCCESSION, succession.encode(Succession(to, phase)), 1)


async def test_requests_wait_from_the_first_step_and_go_on_if_it_is_taken_back() -> None:
    desk = Desk()
    desk.ask()
    assert len(desk.core) == 1
    desk.note(Phase.HOLD)
    give_up, leave = desk.ask(), desk.ask()
    leave()
    desk.note(Phase.CLOSE)
    desk.ask()
    assert len(desk.core) == 1
    desk.note(Phase.BACK)
    assert len(desk.core) == 3, "but for the one whose client has left"
    assert all(0 < request.deadline_s <= REQUEST.deadline_s for request in desk.core)
    give_up()
    assert desk.cancelled == 1
    desk.ask()
    assert len(desk.core) == 4
    await desk.predecessor.close()


async def test_what_was_held_back_and_finds_no_room_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predecessor, "again_after_s", 0.001)
    desk = Desk()
    desk.note(Phase.HOLD)
    held: list[Done] = []
    again = asyncio.Event()

    def submit(request: InferenceRequest, done: Done) -> Callable[[], object]:
        held.append(done)
        if len(held) == 2:
            again.set()
        return lambda: None

    desk.predecessor._admit = submit
    desk.ask()
    desk.note(Phase.BACK)
    held[0](Full(1.0))
    await again.wait()
    assert not desk.outcomes, "nothing would have failed without a succession"
    held[1](TimedOut())
    assert desk.outcomes == [TimedOut()]
    await desk.predecessor.close()


class Racing:
    """A node whose first compare-and-swap comes too late."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.swaps: list[int] = []
        self.done = asyncio.Event()

    def request_turn(self) -> None:
        """Nothing comes of it."""

    async def swap(self, key: str, revision: int, value: bytes) -> None:
        self.swaps.append(revision)
        if len(self.swaps) == 1:
            self.desk.predecessor.on_key_changed(
                succession.SUCCESSION, succession.encode(Succession("new", Phase.CLOSE)), 2
            )
            raise NotApplied("too late", ())
        assert succession.decode_succession(value).phase is Phase.BACK
        self.done.set()


async def test_a_step_of_another_one_does_not_end_the_taking_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predecessor, "again_after_s", 0.001)
    desk = Desk()
    racing = Racing(desk)
    desk.predecessor.machine.hold_s = 0.0
    desk.predecessor._node = lambda: cast(Any, racing)
    desk.note(Phase.HOLD)
    await racing.done.wait()
    assert racing.swaps == [1, 2]
    await desk.predecessor.close()


async def test_what_is_closed_stays_closed_if_the_record_is_gone() -> None:
    desk = Desk()
    desk.note(Phase.CLOSE)
    desk.predecessor.on_key_changed(succession.SUCCESSION, None, 3)
    desk.ask()
    assert not desk.core
    await desk.predecessor.close()


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_limits, "requests_waiting_max", 1)
    desk = Desk()
    desk.note(Phase.HOLD)
    desk.ask()
    desk.ask()
    assert isinstance(desk.outcomes[0], Full)
    await desk.predecessor.close()


async def test_only_what_would_be_admitted_counts_as_lost_and_only_once_closed() -> None:
    desk = Desk()
    whole = ClientForward(0, 1, 0, None, "", Meta(), cast(Payload, object()))
    for phase, lost in ((Phase.HOLD, False), (Phase.CLOSE, True), (Phase.BACK, False)):
        desk.note(phase)
        assert desk.predecessor.lost(whole) is lost
        assert not desk.predecessor.lost(replace(whole, payload=None))
        assert not desk.predecessor.lost(AskTopology(1))
    await desk.predecessor.close()


async def test_other_keys_and_nonsense_change_nothing() -> None:
    desk = Desk()
    desk.predecessor.on_key_changed("versions/a", b"{}", 1)
    desk.predecessor.on_key_changed(succession.SUCCESSION, b"nonsense", 1)
    desk.ask()
    assert len(desk.core) == 1
    await asyncio.sleep(0)
    await desk.predecessor.close()


# -- the replies, over two changes of shape in a row ---------------------------------------------------------


class Shape:
    """One shape of a graph as its successor meets it: one frontend, which owns the only shard, and the
    replies that it has taken over."""

    def __init__(self, table: Table | None) -> None:
        self.graph = Graph(replace(DIGITS, frontend=replace(DIGITS.frontend, shards=1)))
        self.machine = FrontendMachine(self.graph, "f-1")
        topology = Topology(1, (ReplicaSet("F/0", 1, "f-1"),))
        self.machine.step(TopologyLearnt(topology, 1), 0.0)
        self.node = SimpleNamespace(machine=self.machine, stopped=SimpleNamespace(done=lambda: False))
        self.successor: Successor | None = None
        if table is not None:
            self.successor = Successor(self.graph, cast(Takeover, None))
            self.successor.gate.table = table
            self.successor.gate.follows_changed(Follows("old", (), done=True))
            self.successor.open.set()

    def expire(self, *keys: str) -> None:
        """Keys that its own log has answered and does not keep any more."""
        logs = self.machine.logs_to_keep()
        assert logs is not None
        for key in keys:
            logs.logs[0].state.expired.add(key)

    def outcome(self, outcome: Any) -> InferenceOutcome:
        raise AssertionError(f"nothing is kept, found {outcome!r}")


async def taken_over(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> Table:
    """What a frontend of the next shape has of this one, taken as it does, message by message."""

    @contextlib.asynccontextmanager
    async def visit(self: Takeover, seen: GraphInEtcd, uid: str, host: str) -> AsyncIterator[Visit]:
        ours, theirs = socket.socketpair()
        here, there = [Visit(*await asyncio.open_connection(sock=end)) for end in (ours, theirs)]
        answers = asyncio.create_task(answer_visitor(there, cast(Any, shape), shape.successor))
        try:
            yield here
        finally:
            here.close()
            with contextlib.suppress(VisitFailed):
                await answers
            there.close()

    async def take(self: Takeover, fetch: Callable[[Any], Any], layout: str) -> Begin:
        machine = TakeoverMachine("new", FRONTEND, "process", ("F/0",), layout)
        record = Succession("new", Phase.CLOSE)
        quiet = ("f-1", Quiet("new", True, (("F/0", 1, 0),)))
        seen = GraphsSeen(record, shape.machine.knowledge.topology, (quiet,), False, False)
        (asked,) = machine.step(seen, 0.0)
        assert isinstance(asked, Fetch)
        await fetch(asked.sources)
        return Begin(())

    monkeypatch.setattr(Takeover, "_visit", visit)
    monkeypatch.setattr(Takeover, "_take", take)
    successor = Takeover(cast(Coordination, None), "new", "F", "process", Follows("old", ()), None)
    return await successor.predecessor_replies(shape.graph.data.frontend)


async def test_a_table_that_was_not_whole_is_not_whole_two_changes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_for(DIGITS.frontend)
    table.add(page("a"))
    table.whole = False
    for _ in range(2):
        table = await taken_over(Shape(table), monkeypatch)
        assert not table.whole
        assert isinstance(table.find("a", "digest of a"), Reply)


async def test_a_table_that_was_whole_is_whole_two_changes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_for(DIGITS.frontend)
    for _ in range(2):
        table = await taken_over(Shape(table), monkeypatch)
        assert table.whole


@pytest.mark.parametrize("hashes_max", [1, 2, 100], ids=["one by one", "two by two", "in one message"])
async def test_no_expired_key_is_executed_again_two_changes_later(
    monkeypatch: pytest.MonkeyPatch, hashes_max: int
) -> None:
    monkeypatch.setattr(core_replies, "hashes_per_page_max", hashes_max)
    shape = Shape(None)
    shape.expire("e1", "e2", "e3")
    known = ["e1", "e2", "e3"]
    for number in range(2):
        table = await taken_over(shape, monkeypatch)
        by_name = {key: table.find(key, "any") for key in (*known, "new")}
        assert by_name == {key: KeyExpired() for key in known} | {"new": None}
        shape = Shape(table)
        shape.expire(f"later {number}")
        known.append(f"later {number}")


async def test_what_is_pushed_out_on_the_way_is_known_to_be_gone_two_changes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replies, "replies_per_page_max", 2)
    table = table_for(FrontendSpec(shards=1, replies_kept=3))
    table.add(page("a", "b", "c"))
    table.add(page("d"))
    for _ in range(2):
        table = await taken_over(Shape(table), monkeypatch)
    assert table.find("a", "digest of a") == KeyExpired()
    assert all(isinstance(table.find(key, f"digest of {key}"), Reply) for key in "bcd")
