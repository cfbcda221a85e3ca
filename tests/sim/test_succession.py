"""A change of shape in the simulator: its scenes hold, one seed is one history, and each scene reaches what
it is about."""

from collections import Counter

import pytest

from hams_protocol.effects import NoteLog, NoteReply
from hams_protocol.frozen import replaced
from hams_protocol.ids import RequestId
from hams_sim import checks
from hams_sim.errors import Broken
from hams_sim.scenarios import SCENES
from hams_sim.simulate import HistoryOutcome, Spec
from hams_sim.succession.plan import draw_plan
from hams_sim.succession.resource import SimResource
from hams_sim.succession.scenes import KINDS
from hams_sim.workers import Worker, run_all

REACHES: dict[str, tuple[str, ...]] = {
    "change": ("phase done", "passed on", "removed"),
    "change-abandoned": ("phase back", "held back, and given to the core"),
    "change-deposed": ("a deposed owner repeated what was taken over",),
    "change-refused": ("phase back",),
    "change-stale": ("step lost",),
    "change-twice": ("answered as the shape before did",),
    "change-unheard": ("a forwarded request was lost on purpose",),
}
"""What a few histories of a scene show, if they are worth running."""


def histories(name: str, count: int) -> list[HistoryOutcome]:
    shapes = SCENES[name].shapes
    return list(
        run_all([Spec(500 + number, shapes[number % len(shapes)], name) for number in range(count)], 2)
    )


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_scene_holds_and_reaches_what_it_is_about(name: str) -> None:
    outcomes = histories(name, 4)
    failed = [f"{outcome.spec.command()}: {outcome.message}" for outcome in outcomes if not outcome.ok]
    assert not failed, "\n".join(failed)
    reached = sum((outcome.coverage for outcome in outcomes), Counter[str]())
    assert [what for what in REACHES.get(name, ()) if not reached[what]] == []


def test_one_seed_is_one_history_in_every_process() -> None:
    outcomes = []
    for _ in range(2):
        worker = Worker()
        outcomes.append(worker.run(Spec(11, "sandwich", "change-mixed")))
        worker.close()
    assert outcomes[0].events == outcomes[1].events
    assert outcomes[0].coverage == outcomes[1].coverage


def test_what_a_failures_command_leaves_out_is_left_out() -> None:
    worker = Worker()
    whole = worker.run(Spec(3, "pair", "change-unheard"))
    less = worker.run(Spec(3, "pair", "change-unheard", frozenset({0, 1, 2}), frozenset(range(20))))
    worker.close()
    assert whole.ok
    assert less.ok
    assert sum(less.faults.values()) < sum(whole.faults.values())
    assert less.events < whole.events


def test_after_the_switch_a_deposed_owner_repeats_what_was_taken_over_and_nothing_else() -> None:
    plan = draw_plan(1, "single", KINDS["change"])
    resource = SimResource("1", plan.graphs[0], plan.behaviours)
    graph = resource.incarnations[0]
    while not checks.converged(graph):
        resource.clock.run(resource.clock.now + 0.05)
    shard = graph.etcd.topology.find("F/0")
    assert shard.primary is not None
    deposed = graph.nodes[shard.primary]
    logged = NoteLog(1, 0, 1, RequestId(0, 0), "k", "d", None)
    replied = NoteReply(1, 0, 1, RequestId(0, 0), ("a-1:1",), ())

    def notes(note: NoteLog | NoteReply) -> None:
        graph.performers[type(note)](deposed, note)

    notes(logged)
    notes(replied)
    sets = [replaced(item, epoch=2) if item is shard else item for item in graph.etcd.topology.sets]
    graph.etcd.topology = replaced(graph.etcd.topology, sets=tuple(sets))
    graph.etcd.ends["F/0"] = {1: 0}
    graph.is_over = True

    notes(logged)
    notes(replied)
    assert graph.coverage["a deposed owner repeated what was taken over"] == 2
    others = (
        replaced(logged, request=RequestId(0, 1)),
        replaced(logged, key="another"),
        replaced(logged, digest="another"),
        replaced(logged, epoch=2),
        replaced(replied, request=RequestId(0, 1)),
        replaced(replied, values=("a-2:1",)),
        replaced(replied, epoch=2),
    )
    for note in others:
        with pytest.raises(Broken, match="another shape has taken over"):
            notes(note)
