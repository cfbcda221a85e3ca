"""One shape of a graph takes over from another, machine by machine (protocol.md, section 11)."""

from dataclasses import replace

import pytest

from hams_protocol.due import FOREVER
from hams_protocol.frontend.state import key_hash
from hams_protocol.frontend.status import ShardStatus
from hams_protocol.graph import FRONTEND, FrontendSpec, Graph, GraphData, Mode, RecoverySpec
from hams_protocol.messages import AskTopology, ClientForward, Meta, Payload
from hams_protocol.recovery.machine import MANAGER
from hams_protocol.succession import replies
from hams_protocol.succession.decision import (
    Guard,
    Incarnation,
    Step,
    guards_of,
    next_step,
    record_of,
    record_of_giving_up,
    refused,
    successions_tried_max,
)
from hams_protocol.succession.effects import (
    Admit,
    AskTable,
    Begin,
    Fetch,
    PassOn,
    Refuse,
    SayQuiet,
    SayTaken,
    StateSource,
    TakeBack,
    UseTable,
)
from hams_protocol.succession.events import (
    CoreStands,
    Fetched,
    FrontendsSeen,
    GraphsSeen,
    HasNoRoom,
    NotFetched,
    NotSaid,
    RecordChanged,
    RequestCame,
    RequestOver,
    RoleStands,
    Said,
    StepAnswered,
    Swap,
    TableMissed,
    TableReceived,
    Wake,
)
from hams_protocol.succession.passing import Attempt, Next, after
from hams_protocol.succession.predecessor import PredecessorMachine, again_after_s
from hams_protocol.succession.records import Phase, Quiet, Succession, TakenOver, all_hold, cut_of
from hams_protocol.succession.replies import Entry, Page, Table, pages
from hams_protocol.succession.search import ReplySearch, sought_s
from hams_protocol.succession.takeover import TakeoverMachine
from hams_protocol.topology import ReplicaSet, Topology

TIMEOUT_S = 30.0
HOLD = Succession("new", Phase.HOLD)
CLOSE = Succession("new", Phase.CLOSE)
DONE = Succession("new", Phase.DONE)
BACK = Succession("new", Phase.BACK)


def shard(
    name: str = "F/0", role: str = "primary", last: int = 5, committed: int = 5, open_: int = 0
) -> ShardStatus:
    return ShardStatus(name, role, 2, last, committed, open_, 0, False)


def held(machine: PredecessorMachine, *handles: int, now: float = 0.0) -> None:
    for handle in handles:
        assert machine.step(RequestCame(handle, TIMEOUT_S), now) == []


# -- a frontend of the predecessor ---------------------------------------------------------------------------


def test_requests_wait_from_hold_on_and_go_to_the_core_if_it_is_taken_back() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    assert machine.phase is None
    machine.step(RecordChanged(HOLD, 1), 0.0)
    held(machine, 1, 2, 3)
    machine.step(RecordChanged(CLOSE, 2), 1.0)
    machine.step(RequestOver(2), 1.0)
    assert machine.step(RecordChanged(BACK, 3), 2.0) == [Admit(1, 28.0), Admit(3, 28.0)]
    assert machine.phase is None


def test_once_the_successor_serves_requests_are_passed_on_for_ever() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(CLOSE, 1), 0.0)
    held(machine, 1)
    assert machine.step(RecordChanged(DONE, 2), 1.0) == [PassOn(1, "new", 29.0)]
    for record in (None, BACK, Succession("newer", Phase.HOLD)):
        assert machine.step(RecordChanged(record, 3), 2.0) == []
        assert machine.is_over
    assert machine.step(RequestCame(2, 1.0), 2.0) == [PassOn(2, "new", 1.0)]


def test_what_is_closed_stays_closed_though_the_record_is_gone() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(CLOSE, 1), 0.0)
    machine.step(RecordChanged(None, 2), 0.0)
    held(machine, 1)
    assert machine.phase is Phase.CLOSE


def test_a_record_that_is_gone_before_anything_is_closed_was_never_there() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    held(machine, 1)
    assert machine.step(RecordChanged(None, 2), 0.0) == [Admit(1, TIMEOUT_S)]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hams_protocol.limits.requests_waiting_max", 1)
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    held(machine, 1)
    assert [type(effect) for effect in machine.step(RequestCame(2, 1.0), 0.0)] == [Refuse]
    assert machine.held == 1


def test_what_was_held_back_and_finds_no_room_is_tried_again_while_its_client_waits() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    held(machine, 1)
    machine.step(RecordChanged(BACK, 2), 1.0)
    assert machine.step(HasNoRoom(1, 0.5), 2.0) == []
    assert machine.deadline() == 2.0 + again_after_s
    assert machine.step(Wake(), 2.0 + again_after_s) == [Admit(1, 28.0 - again_after_s)]
    assert machine.step(HasNoRoom(1, 0.5), 29.95) == [Refuse(1, 0.5)]


def test_a_request_that_found_no_room_is_held_back_by_the_next_attempt() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    held(machine, 1)
    machine.step(RecordChanged(BACK, 2), 1.0)
    machine.step(HasNoRoom(1, 0.5), 1.0)
    machine.step(RecordChanged(Succession("newer", Phase.HOLD), 3), 1.0)
    machine.step(Wake(), 2.0)
    assert machine.held == 1


def test_only_what_would_be_admitted_is_lost_and_only_once_closed() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    payload: Payload = object()  # type: ignore[assignment]
    whole = ClientForward(0, 1, 0, None, "", Meta(), payload)
    for record, lost in ((HOLD, False), (CLOSE, True), (BACK, False), (DONE, True)):
        machine.step(RecordChanged(record, 1), 0.0)
        assert machine.loses(whole) is lost
        assert not machine.loses(replace(whole, payload=None))
        assert not machine.loses(AskTopology(1))


def test_a_frontend_says_that_it_is_quiet_once_no_client_of_its_own_waits() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    assert machine.step(CoreStands("f1", 1, (shard(),)), 0.0) == []
    assert machine.step(CoreStands("f1", 0, (shard(),)), 0.0) == [SayQuiet("f1", Quiet("new"))]
    assert machine.step(CoreStands("f1", 0, (shard(),)), 0.0) == [], "it is being written"
    assert machine.step(NotSaid(), 1.0) == []
    assert machine.step(Wake(), machine.deadline()) == [SayQuiet("f1", Quiet("new"))]
    machine.step(Said(), 2.0)
    assert machine.step(CoreStands("f1", 0, (shard(),)), 3.0) == []


def test_closed_it_names_the_shards_that_it_owns_and_in_which_nothing_is_open() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(CLOSE, 1), 0.0)
    shards = (
        shard("F/0"),
        shard("F/1", role="backup"),
        shard("F/2", open_=1),
        shard("F/3", committed=4),
        replace(shard("F/4"), frozen=True),
    )
    said = Quiet("new", True, (("F/0", 2, 5),))
    assert machine.step(CoreStands("f1", 0, shards), 0.0) == [SayQuiet("f1", said)]
    machine.step(Said(), 0.0)
    later = machine.step(CoreStands("f1", 0, (shard("F/0"), shard("F/2"))), 0.0)
    assert later == [SayQuiet("f1", Quiet("new", True, (("F/0", 2, 5), ("F/2", 2, 5))))]


def test_requests_are_held_back_for_half_of_their_time_at_most() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    machine.step(RecordChanged(CLOSE, 2), 10.0)
    assert machine.deadline() == TIMEOUT_S / 2, "closing does not give it more time"
    (back,) = machine.step(Wake(), 15.0)
    assert isinstance(back, TakeBack)
    assert (back.revision, back.record.phase, back.record.to) == (2, Phase.BACK, "new")
    assert machine.step(Wake(), 16.0) == [], "the answer is awaited"
    machine.step(StepAnswered(Swap.UNKNOWN), 17.0)
    assert isinstance(machine.step(Wake(), machine.deadline())[0], TakeBack)
    machine.step(StepAnswered(Swap.DONE), 18.0)
    assert machine.deadline() == FOREVER


def test_another_attempt_has_its_own_time() -> None:
    machine = PredecessorMachine(TIMEOUT_S)
    machine.step(RecordChanged(HOLD, 1), 0.0)
    machine.step(RecordChanged(Succession("newer", Phase.HOLD), 2), 10.0)
    assert machine.deadline() == 25.0


# -- the cut -------------------------------------------------------------------------------------------------

TOPOLOGY = Topology(3, (ReplicaSet("F/0", 2, "f1", ("f2",)), ReplicaSet("F/1", 1, "f2", ())))
QUIET = {"f1": Quiet("new", True, (("F/0", 2, 5),)), "f2": Quiet("new", True, (("F/1", 1, 6), ("F/0", 1, 4)))}
CUT = (("F/0", 5), ("F/1", 6))


def test_the_cut_is_what_present_owners_say_in_their_present_epochs() -> None:
    shards = ("F/0", "F/1")
    assert cut_of(shards, TOPOLOGY, QUIET, "new") == CUT
    for wrong in (Quiet("new", True, (("F/0", 1, 5),)), Quiet("new"), Quiet("older", True, (("F/0", 2, 5),))):
        assert cut_of(shards, TOPOLOGY, QUIET | {"f1": wrong}, "new") is None
    assert all_hold(("f1", "f2"), QUIET, "new")
    assert not all_hold(("f1", "f2"), QUIET | {"f1": Quiet("older")}, "new")
    assert not all_hold(("f1", "f2", "f3"), QUIET, "new")
    assert not all_hold((), QUIET, "new")


# -- a process that takes something over ---------------------------------------------------------------------


def seen(
    record: Succession | None = CLOSE,
    quiet: dict[str, Quiet] = QUIET,
    begun: bool = False,
    done: bool = False,
) -> GraphsSeen:
    topology = replace(TOPOLOGY, sets=(*TOPOLOGY.sets, ReplicaSet("a", 1, "a1", ("a2",))))
    return GraphsSeen(record, topology, tuple(quiet.items()), begun, done)


def process(of: str = "a", layout: str = "") -> TakeoverMachine:
    return TakeoverMachine("new", of, "p1", ("F/0", "F/1"), layout)


def test_a_process_fetches_at_the_cut_says_it_and_begins() -> None:
    machine = process()
    for early in (seen(None), seen(HOLD), seen(quiet={}), seen(Succession("other", Phase.CLOSE))):
        assert machine.step(early, 0.0) == []
    assert machine.step(seen(), 0.0) == [Fetch((StateSource("a1", "a"),))]
    assert machine.step(seen(), 0.0) == []
    assert machine.step(Fetched(""), 1.0) == [SayTaken("p1", TakenOver("a", CUT))]
    machine.step(NotSaid(), 1.0)
    assert machine.step(Wake(), machine.deadline()) == [SayTaken("p1", TakenOver("a", CUT))]
    assert machine.step(Said(), 2.0) == [Begin(CUT)]


def test_what_was_fetched_while_the_cut_changed_is_fetched_anew() -> None:
    machine = process()
    machine.step(seen(), 0.0)
    later = QUIET | {"f1": Quiet("new", True, (("F/0", 2, 7),))}
    assert machine.step(seen(quiet=later), 0.0) == []
    assert machine.step(Fetched(""), 1.0) == [Fetch((StateSource("a1", "a"),))]
    (said,) = machine.step(Fetched(""), 2.0)
    assert said == SayTaken("p1", TakenOver("a", (("F/0", 7), ("F/1", 6))))


def test_nothing_is_begun_with_what_was_fetched_before_the_predecessor_went_on() -> None:
    machine = process()
    machine.step(seen(), 0.0)
    machine.step(seen(BACK), 0.0)
    assert machine.step(Fetched(""), 1.0) == []


def test_who_cannot_answer_is_asked_again_after_a_pause() -> None:
    machine = process()
    machine.step(seen(), 0.0)
    assert machine.step(NotFetched(), 1.0) == []
    assert machine.step(seen(), 1.0) == []
    assert machine.step(Wake(), machine.deadline()) == [Fetch((StateSource("a1", "a"),))]


def test_a_state_of_another_layout_is_refused_and_the_process_never_begins() -> None:
    machine = process(layout="two")
    machine.step(seen(), 0.0)
    (said,) = machine.step(Fetched("one"), 1.0)
    assert isinstance(said, SayTaken)
    assert "layout one" in said.taken.refused
    assert machine.step(Said(), 1.0) == []
    assert machine.step(seen(), 1.0) == []


def test_a_process_whose_set_has_begun_or_whose_succession_is_over_begins_with_nothing() -> None:
    assert process().step(seen(begun=True), 0.0) == [Begin(None)]
    assert process().step(seen(done=True), 0.0) == [Begin(None)]
    assert process(FRONTEND).step(seen(done=True), 0.0) == [Begin(None)]


def test_a_frontend_asks_first_for_what_the_owner_has_taken_over_itself() -> None:
    (fetch,) = process(FRONTEND).step(seen(begun=True), 0.0)
    assert fetch == Fetch((StateSource("f1", ""), StateSource("f1", "F/0"), StateSource("f2", "F/1")))


def test_a_primary_says_once_that_its_model_holds_the_state() -> None:
    machine = process()
    assert machine.step(RoleStands("p1", False), 0.0) == []
    said = machine.step(RoleStands("p1", True), 0.0)
    assert said == [SayTaken("p1", TakenOver("a", (), loaded=True))]
    assert machine.step(RoleStands("p1", True), 0.0) == []
    machine.step(Said(), 0.0)
    assert len(machine.step(RoleStands("p1-later", True), 0.0)) == 1


# -- the controller ------------------------------------------------------------------------------------------

OLD = Graph(
    GraphData("g", "old", Mode.NON_STOP, FrontendSpec(replicas=2, shards=2), 1, RecoverySpec(), (), (), ())
)
NEW = Graph(replace(OLD.data, uid="new"))
NEW_TOPOLOGY = Topology(2, (ReplicaSet("F/0", 1, "n1", ("n2",)), ReplicaSet("F/1", 1, "n2", ("n1",))))
FRONTENDS = {"f1": FRONTEND, "f2": FRONTEND}
NEW_FRONTENDS = {"n1": FRONTEND, "n2": FRONTEND, "m1": MANAGER}


def old_shape(**changes: object) -> Incarnation:
    shape = Incarnation("old", OLD, TOPOLOGY, FRONTENDS, QUIET, {}, {}, FRONTENDS.__contains__)
    return replace(shape, **changes)  # type: ignore[arg-type]


def new_shape(**changes: object) -> Incarnation:
    taken = {name: TakenOver(FRONTEND, CUT) for name in ("n1", "n2")}
    shape = Incarnation("new", NEW, NEW_TOPOLOGY, NEW_FRONTENDS, {}, {}, taken, NEW_FRONTENDS.__contains__)
    return replace(shape, **changes)  # type: ignore[arg-type]


def test_the_predecessor_is_asked_to_hold_once_all_of_the_successor_waits() -> None:
    waiting = {"n1": FRONTEND, "n2": FRONTEND}
    there = new_shape(waiting=waiting, registered={"m1": MANAGER})
    assert next_step(old_shape(), there, (), None) == Step(Phase.HOLD)
    assert next_step(old_shape(), there, (), Succession("earlier", Phase.BACK)) == Step(Phase.HOLD)
    few = replace(there, waiting={"n1": FRONTEND})
    assert next_step(old_shape(), few, (), None) == Step(None, "1 of 2 frontends are there")
    alone = old_shape(registered={"f1": FRONTEND})
    assert next_step(alone, there, (), None).phase is None
    assert next_step(old_shape(), there, (), Succession("other", Phase.HOLD)).phase is None


def test_the_controller_closes_only_once_every_registered_frontend_holds_back() -> None:
    assert next_step(old_shape(), new_shape(), (), HOLD) == Step(Phase.CLOSE)
    assert next_step(old_shape(quiet={"f1": Quiet("new")}), new_shape(), (), HOLD).phase is None


def test_the_successor_takes_over_once_it_has_everything() -> None:
    assert next_step(old_shape(), new_shape(), (), CLOSE) == Step(Phase.DONE)
    assert next_step(old_shape(quiet={}), new_shape(), (), CLOSE).phase is None
    alone = replace(NEW_TOPOLOGY, sets=(ReplicaSet("F/0", 1, "n1"), NEW_TOPOLOGY.sets[1]))
    assert next_step(old_shape(), new_shape(topology=alone), (), CLOSE).phase is None
    assert next_step(old_shape(), new_shape(taken={"n1": TakenOver(FRONTEND, CUT)}), (), CLOSE).phase is None


def test_the_controller_goes_back_if_anything_was_taken_at_another_cut() -> None:
    other = {"n1": TakenOver(FRONTEND, CUT), "n2": TakenOver(FRONTEND, (("F/0", 4), ("F/1", 6)))}
    assert next_step(old_shape(), new_shape(taken=other), (), CLOSE).phase is Phase.BACK


def test_the_switch_counts_only_if_everything_is_as_it_was_judged() -> None:
    assert set(guards_of(Phase.DONE)) == set(Guard)
    assert guards_of(Phase.BACK) == (Guard.RECORD,)


def test_what_a_model_refuses_is_not_tried_again_and_all_else_three_times() -> None:
    taken = {"n1": TakenOver("a", CUT, refused="another layout")}
    step = next_step(old_shape(), new_shape(taken=taken), (), CLOSE)
    assert (step.phase, step.hopeless) == (Phase.BACK, True)
    record = record_of(step, Succession("new", Phase.CLOSE, 1, 7), "new", 7)
    assert "cannot be handed over" in refused(record, 7)
    assert not refused(record, 8), "it was changed since"
    tried: Succession | None = None
    for number in range(successions_tried_max):
        assert not refused(tried, 7)
        tried = record_of(Step(Phase.HOLD), tried, f"new-{number}", 7)
        tried = record_of(Step(Phase.BACK, "too slow"), tried, f"new-{number}", 7)
    assert "3 times: too slow" in refused(tried, 7)


def test_a_successor_is_given_up_once() -> None:
    back = record_of_giving_up(CLOSE, "new", "asked away")
    assert back == Succession("new", Phase.BACK, 1, 0, "asked away")
    assert record_of_giving_up(back, "new", "asked away") is None
    other = record_of_giving_up(back, "newer", "asked away")
    assert other is not None
    assert (other.to, other.tries) == ("newer", 0)


# -- a frontend that comes later -----------------------------------------------------------------------------


def test_a_later_frontend_takes_a_whole_table_if_anybody_has_one() -> None:
    machine = ReplySearch(0.0)
    assert machine.step(FrontendsSeen(("f1", "f2")), 0.0) == [AskTable("f1")]
    assert machine.step(TableReceived("f1", False), 0.0) == [AskTable("f2")]
    assert machine.step(TableReceived("f2", True), 0.0) == [UseTable("f2")]
    assert machine.is_over


def test_a_table_that_is_not_whole_is_taken_only_if_nobody_else_may_have_another() -> None:
    machine = ReplySearch(0.0)
    machine.step(FrontendsSeen(("f1", "f2")), 0.0)
    machine.step(TableReceived("f1", False), 0.0)
    assert machine.step(TableMissed("f2"), 0.0) == []
    assert machine.step(Wake(), machine.deadline()) == [AskTable("f1")]
    machine.step(TableReceived("f1", False), 1.0)
    assert machine.step(TableReceived("f2", False), 1.0) == [UseTable("f1")]


def test_if_nobody_is_registered_for_a_while_the_replies_are_lost() -> None:
    machine = ReplySearch(0.0)
    assert machine.step(FrontendsSeen(()), 1.0) == []
    machine.step(FrontendsSeen(("f1",)), 1.5)
    machine.step(TableMissed("f1"), 1.5)
    assert machine.step(FrontendsSeen(()), 1.9) == []
    assert machine.deadline() == 1.9 + sought_s
    assert machine.step(Wake(), 1.9 + sought_s) == [UseTable("")]


# -- the replies ---------------------------------------------------------------------------------------------


def table(replies_kept: int = 100) -> Table[str]:
    return Table(FrontendSpec(shards=1, replies_kept=replies_kept), "conflict", "expired")


def entries(*keys: str) -> tuple[Entry[str], ...]:
    return tuple([Entry(key, f"digest of {key}", f"reply to {key}", 4) for key in keys])


def handed_on(old: Table[str], count_max: int = 2) -> Table[str]:
    """What the next shape has of it."""
    result = table()
    for page in pages(old.entries(), old.expired(), old.whole, count_max, 1000):
        result.add(page)
    return result


def test_a_table_that_is_not_whole_is_never_called_whole_again() -> None:
    old = table()
    old.add(Page(entries("a", "b", "c"), (), False, False))
    for _ in range(2):
        old = handed_on(old)
        assert not old.whole
        assert old.find("c", "digest of c") == "reply to c"


def test_a_table_that_is_whole_stays_so() -> None:
    old = table()
    old.add(Page(entries("a"), (), False, True))
    assert handed_on(handed_on(old)).whole


@pytest.mark.parametrize("hashes_max", [1, 2, 100])
def test_every_expired_key_is_told(monkeypatch: pytest.MonkeyPatch, hashes_max: int) -> None:
    monkeypatch.setattr(replies, "hashes_per_page_max", hashes_max)
    old = table()
    old.add(Page(entries("a", "b", "c"), tuple([key_hash(f"e{number}") for number in range(3)]), False, True))
    for _ in range(2):
        old = handed_on(old)
        assert [old.find(f"e{number}", "any") for number in range(4)] == ["expired"] * 3 + [None]


def test_a_key_that_is_pushed_out_is_known_to_be_gone() -> None:
    old = table(replies_kept=2)
    old.add(Page(entries("a", "b", "c"), (), False, True))
    assert old.find("a", "digest of a") == "expired"
    assert old.find("c", "another digest") == "conflict"
    assert handed_on(old).find("a", "digest of a") == "expired"


# -- passing on ----------------------------------------------------------------------------------------------


def test_what_may_have_been_executed_is_passed_on_again_only_under_its_key() -> None:
    assert after(Attempt.ANSWERED, False, 0.0) is Next.ANSWER
    assert after(Attempt.NOTHING_BEGUN, False, 1.0) is Next.AGAIN
    assert after(Attempt.UNKNOWN, True, 1.0) is Next.AGAIN
    assert after(Attempt.UNKNOWN, False, 1.0) is Next.TIME_OUT
    assert after(Attempt.NOTHING_BEGUN, True, 0.0) is Next.TIME_OUT
