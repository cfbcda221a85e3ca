"""The check for memory that grows with the requests can fail."""

import pytest

from hams_protocol.outbox import Outbox
from hams_sim import limits
from hams_sim.errors import Broken
from hams_sim.memory import flat, held
from hams_sim.simulate import Spec, make_plan, simulate
from hams_sim.world import World


def test_what_a_machine_holds_is_counted_by_where_it_lies():
    class Inner:
        __slots__ = ("kept",)

        def __init__(self):
            self.kept = [(), (1, [2, 3])]

    class Outer:
        def __init__(self):
            self.inner = Inner()
            self.by_name = {"a": Inner()}

    assert held(Outer()) == {".inner.kept": 4, ".by_name": 1, ".by_name.kept": 4}


def test_what_a_machine_of_machine_code_holds_is_counted_too():
    class Compiled:
        __slots__ = ()
        __mypyc_attrs__ = ("kept", "unset")  # what mypyc leaves of a class's slots

        @property
        def kept(self):
            return [1, 2]

    assert held(Compiled()) == {".kept": 2}


def test_an_outbox_that_frees_nothing_is_seen(monkeypatch):
    monkeypatch.setattr(Outbox, "drop_complete", lambda self: None)
    monkeypatch.setattr(Outbox, "complete", lambda self, requests: None)
    outcome = simulate(Spec(1, "pair", "F41"))
    assert outcome.what == "I6", outcome.message
    assert "entries" in outcome.message


def test_a_world_in_which_nothing_happened_holds_little():
    plan = make_plan(Spec(1, "pair", "F41"))
    world = World(plan.graph, "seed", plan.behaviours)
    world.spawn("a")
    flat(world)
    next(iter(world.nodes.values())).machine.queue._queue.extend([None] * (limits.entries_held_max + 1))
    with pytest.raises(Broken):
        flat(world)
