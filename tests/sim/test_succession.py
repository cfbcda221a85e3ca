"""A change of shape in the simulator: its scenes hold, one seed is one history, and each scene reaches what
it is about."""

from collections import Counter

import pytest

from hams_sim.scenarios import SCENES
from hams_sim.simulate import HistoryOutcome, Spec
from hams_sim.succession.scenes import KINDS
from hams_sim.workers import Worker, run_all

REACHES: dict[str, tuple[str, ...]] = {
    "change": ("phase done", "passed on", "removed"),
    "change-abandoned": ("phase back", "held back, and given to the core"),
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
