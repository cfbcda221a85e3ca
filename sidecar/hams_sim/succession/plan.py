"""What a seed means for a change of shape: two graphs or three with states in common, calls, and faults at
the phases of the change.

A fault's `trigger` names the phase from whose beginning `at` counts ("" : from when the change is asked for).
Its victim is a role of the shape that serves (`old/primary:a`), of the one that follows (`new/any:F`), a
process that waits (`waiting`), or the controller.
"""

from dataclasses import dataclass, replace
from random import Random

from hams_protocol.graph import Graph, WhenUnprotected
from hams_sim.clients import Call, draw_calls
from hams_sim.faults import Fault
from hams_sim.model import Behaviour
from hams_sim.shapes import Sizes, build

SHAPES = ("single", "pair", "sandwich", "relay", "siblings", "prism")
"""Graphs in which `a` keeps a state, so that each may follow each."""

PHASES = ("", "hold", "close", "done", "back")


@dataclass
class SuccessionPlan:
    """`graphs`: in the order in which they are asked for. `second_after_s`: when the second change is asked
    for, counted from the first; `second_at` names the phase instead, if it is not ""."""

    graphs: list[Graph]
    behaviours: dict[str, Behaviour]
    calls: list[Call]
    span_s: float
    faults: list[Fault]
    refuses: bool
    second_at: str = ""
    second_after_s: float = 0.0


def draw_plan(seed: int, shape: str, kinds: "Kinds") -> SuccessionPlan:
    """Draw everything that is fixed before the clock starts."""
    rng = Random(f"{seed}/{shape}/succession")
    changes = 2 if rng.random() < kinds.twice else 1
    graphs: list[Graph] = []
    behaviours: dict[str, Behaviour] = {}
    sizes = Sizes(
        backups=1,
        shards=rng.choice(kinds.shards),
        frontends=rng.choice(kinds.frontends),
        managers=2,
        unprotected=WhenUnprotected.CONTINUE,
        standbys=0,
        replies_kept=rng.choice(kinds.replies_kept),
    )
    timeout_s = rng.choice(kinds.timeouts_s)
    for number in range(changes + 1):
        name = shape if number == 0 else rng.choice(SHAPES)
        graph, _ = build(name, rng, sizes)
        for op in graph.data.operators:
            behaviours.setdefault(op.name, Behaviour(rng))
        frontend = replace(graph.data.frontend, request_timeout_s=timeout_s)
        graphs.append(Graph(replace(graph.data, frontend=frontend)))
    span_s = rng.choice(kinds.span_s) * changes
    calls = draw_calls(rng, rng.randint(*kinds.calls), span_s, [])
    for call in calls:
        call.impatient = rng.random() < kinds.impatient
        if rng.random() < kinds.keyless:
            call.key, call.digest = None, f"d{call.number}"
    faults = kinds.draw(rng)
    refuses = rng.random() < kinds.refuses
    second_at = rng.choice(kinds.second_at) if changes == 2 else ""
    return SuccessionPlan(
        graphs, behaviours, calls, span_s, faults, refuses, second_at, rng.choice((0.0, 0.02, 0.3))
    )


@dataclass(frozen=True)
class Kinds:
    """What a scene draws from. `faults`: kinds with the victims that they may have; `phases`: when they
    strike; `most`: so many of them. `twice`: share of the histories with a second change; `second_at`: phases
    of the first one at which it is asked for. `refuses`: share in which a model takes no state over.
    `replies_kept`, `timeouts_s`, `frontends`: of the graph. `always`: faults of each history, each at a share
    of its `at`. `answers_s`: no call waits longer. `strict`: no call fails in any way. `impatient`,
    `keyless`: share of the clients that leave, and that have no key, besides those of every history."""

    title: str
    faults: tuple[tuple[str, tuple[str, ...]], ...] = ()
    phases: tuple[str, ...] = PHASES
    most: int = 3
    least: int = 1
    twice: float = 0.2
    second_at: tuple[str, ...] = ("done",)
    refuses: float = 0.0
    replies_kept: tuple[int, ...] = (10_000,)
    timeouts_s: tuple[float, ...] = (30.0, 6.0, 1.5)
    frontends: tuple[int, ...] = (2, 2, 3)
    always: tuple[Fault, ...] = ()
    answers_s: float | None = None
    strict: bool = False
    impatient: float = 0.06
    keyless: float = 0.0
    calls: tuple[int, int] = (24, 44)
    shards: tuple[int, ...] = (1, 1, 2)
    span_s: tuple[float, ...] = (0.5, 1.0, 2.0)

    def draw(self, rng: Random) -> list[Fault]:
        """A schedule of faults."""
        result = [replace(fault, at=fault.at * rng.random()) for fault in self.always]
        for _ in range(rng.randint(self.least, self.most) if self.faults else 0):
            kind, victims = rng.choice(self.faults)
            victim = rng.choice(victims)
            phase = rng.choice(self.phases)
            at = rng.choice((0.0, 0.001, 0.01, 0.1, 0.4)) * rng.random()
            amount = {"etcd-unknown": 0.4, "slow-watch": rng.choice((50.0, 300.0))}.get(kind, 0.0)
            span_s = rng.choice((0.1, 0.3, 1.0, 2.5)) * (0.5 + rng.random())
            way = rng.choice((1, 2, 3, 3))
            result.append(Fault(at, kind, victim, "", span_s, phase, amount=amount, way=way))
        return result
