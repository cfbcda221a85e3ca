"""Planned handoff of a stateful set (section 7, at the end): what a primary may do between proposing it and
knowing what has become of it."""

from dataclasses import replace

from kit import R0, R1, R2, P, Rig, active_of, graph, of, op, primary_of, rset, table, topo, value

from hams_protocol import limits
from hams_protocol.effects import NoteDurable, Propose, Send, StartBatch, Stop
from hams_protocol.events import BatchDone, BatchFailed, CasSettled, CasUnknown, Drain, Loaded, UnitResult
from hams_protocol.graph import FRONTEND, Join, RecoverySpec
from hams_protocol.ids import UnitId
from hams_protocol.messages import Attempt, AttemptAck, Deliver, Leave, RecordAck
from hams_protocol.stateful import StatefulMachine

DATA = graph(op("q", FRONTEND, stateful=True))
AT = topo(1, rset("q", "q-1", "q-2"))


def draining():
    """A primary that has just proposed that q-2 takes over at version 0."""
    rig = primary_of(DATA, "q", AT)
    rig.members(q_1="q", q_2="q", F_1="F")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    (proposed,) = of(rig.step(Drain()), Propose)
    assert proposed.topology.find("q").primary == "q-2"
    return rig, proposed


def test_nothing_is_executed_while_a_handover_may_be_committed_though_its_successor_leaves_too():
    rig, _ = draining()
    rig.get("q-2", Leave("q", 1))
    rig.token("F-1", value("F", R0, "r0"))
    assert not of(rig.all, StartBatch)
    assert not [note for note in of(rig.all, NoteDurable) if note.version > 0]


def test_a_handover_of_unknown_outcome_without_a_successor_is_settled_and_the_queue_goes_on():
    rig, proposed = draining()
    rig.step(CasUnknown())
    rig.get("q-2", Leave("q", 1))
    rig.token("F-1", value("F", R0, "r0"))
    effects = rig.after(2 * limits.propose_retry_s)
    settling = of(effects, Propose)[-1]
    assert settling.revision == proposed.revision, "one of the two is committed at most"
    assert settling.topology == AT.next()
    assert of(rig.step(CasSettled(settling.topology, 2, committed=True)), StartBatch)


def test_a_former_primary_that_was_dropped_and_named_again_before_it_heard_of_its_handover_ends():
    rig, _ = draining()
    rig.step(CasUnknown())
    rig.learn(topo(4, rset("q", "q-2", joining=("q-1",), epoch=2, ends=((1, 0),))))
    assert of(rig.all, Stop)


def test_who_has_just_got_a_set_waits_for_its_successor_to_say_whether_it_is_to_end_as_well():
    rig = primary_of(DATA, "q", AT)
    rig.loaded(rig.learn(topo(2, rset("q", "q-1", "q-2", epoch=2, ends=((1, 0),)))))
    rig.members(q_1="q", q_2="q", F_1="F")
    rig.get("q-2", RecordAck("q", 2, 0, 0))
    assert not of(rig.step(Drain()), Propose)
    rig.get("q-2", Leave("q", 2))
    assert not of(rig.after(2 * limits.resend_after_s), Propose)


def test_a_joiner_that_hears_of_its_admission_and_of_the_handover_at_once_takes_over():
    joining = topo(1, rset("q", "q-1", joining=("q-2",)))
    rig = primary_of(DATA, "q", joining)
    rig.members(q_1="q", q_2="q", F_1="F")
    successor = Rig(StatefulMachine(DATA, "q", "q-2"))
    successor.ready(P("state 0"))
    rig.step(Drain())
    effects = successor.learn(joining)
    for _ in range(2):
        effects = [effect for item in of_to(effects, "q-1") for effect in rig.get("q-2", item)]
        effects = [effect for item in of_to(effects, "q-2") for effect in successor.get("q-1", item)]
    admitted = of(
        [*rig.all, *(x for item in of_to(successor.step(Loaded(0)), "q-1") for x in rig.get("q-2", item))],
        Propose,
    )[-1]
    (handed,) = of(rig.step(CasSettled(admitted.topology, 2, committed=True)), Propose)
    assert handed.topology.find("q").primary == "q-2"
    assert not of(successor.learn(handed.topology), Stop)
    assert successor.machine.role == "primary"


def of_to(effects, target):
    """Messages to one instance."""
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.target == target]


def test_who_was_announced_to_run_alone_is_called_off_before_the_set_is_handed_over():
    data = graph(
        op("p", FRONTEND, to=("q",), rows=4),
        op("q", "p", stateful=True, rows=4),
        recovery=RecoverySpec(max_attempts=1),
    )
    at = topo(1, table("p", ("p-1", 1)), rset("q", "q-1", "q-2"))
    upstream = active_of(data, "p", "p-1", at)
    upstream.members(q_1="q", q_2="q", p_1="p", F_1="F")
    for request in (R0, R1):
        upstream.token("F-1", value("F", request, f"r{request.n}"))
        upstream.done(updated=False)
    tokens = [item.token for item in of_to(upstream.all, "q-1") if isinstance(item, Deliver)]
    rig = primary_of(data, "q", at)
    rig.members(q_1="q", q_2="q", p_1="p", F_1="F")
    rig.get("q-2", RecordAck("q", 1, 0, 0))
    rig.token("p-1", value("p", R2, "p:9"))
    for token in tokens:
        rig.token("p-1", token)
    rig.run()
    rig.step(BatchFailed(rig.batch, "it raised, and nobody has died", False))
    rig.step(Drain())
    rig.get("q-2", RecordAck("q", 1, rig.machine.version, rig.machine.version))
    assert not of(rig.all, Propose), "what was said is not settled"
    serials = {}
    for _ in range(3):
        for attempt in [
            item
            for item in of_to(rig.all, "p-1")
            if isinstance(item, Attempt) and serials.get(item.request, -1) < item.serial
        ]:
            serials[attempt.request] = attempt.serial
            for answer in of_to(upstream.get("q-1", attempt), "q-1"):
                if isinstance(answer, AttemptAck):
                    rig.get("p-1", answer)
    handed = of([*rig.all, *rig.after(limits.attempt_wait_s)], Propose)[-1]
    effects = upstream.learn(handed.topology)
    assert {item.attempts for item in of_to(effects, "q-2") if isinstance(item, Deliver)} <= {0, 1}, (
        "nobody has died of it"
    )


def test_lanes_of_two_executions_do_not_meet_in_a_state_though_the_first_was_routed_nowhere():
    joined = replace(op("i", "y", "z", stateful=True, join=Join.INTERLEAVE), lanes=(("y",), ("z",)))
    data = graph(op("x", FRONTEND, to=("y", "z")), op("y", "x", to=("i",)), op("z", "x", to=("i",)), joined)
    at = topo(1, rset("i", "i-1"), table("x", ("x-1", 1)), table("y", ("y-1", 1)), table("z", ("z-1", 1)))
    rig = primary_of(data, "i", at)
    rig.token("y-1", value("y", R0, "y:1", fan=(("x", "x:1"),)))
    rig.want()
    rig.capture(rig.step(BatchDone(rig.batch, (UnitResult(UnitId(R0, ("y",)), P("o"), route=()),), True)))
    before = len(of(rig.all, StartBatch))
    rig.token("z-1", value("z", R0, "z:1", fan=(("x", "x:2"),)))
    assert len(of(rig.all, StartBatch)) == before
