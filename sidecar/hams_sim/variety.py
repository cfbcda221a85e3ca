"""What `--fault mixed` draws beside faults of all kinds: another mode, a state that is lost for good and
begins again, one that was restored.

Each is a promise of its own. Mode None (`BARE`) promises nothing once anything dies, so nothing does. A
set whose members all die is beyond what is tolerated: its loss must be said, and everything else must hold.
"""

import enum
from dataclasses import replace
from random import Random

from hams_protocol.graph import Checkpoint, Graph, Mode, WhenLost
from hams_sim.faults import MIXED_KINDS, Fault, draw_one

HARMLESS = ("slow", "slow-watch", "slow-etcd", "etcd-away", "etcd-unknown")
"""Faults that lose no message and no process."""


class Variety(enum.Enum):
    """The promise that a mixed history is about."""

    USUAL = "usual"
    BARE = "mode None"
    LOST = "a state is lost"
    RESTORED = "restored from a checkpoint"


SHARES = ((Variety.BARE, 0.04), (Variety.LOST, 0.08), (Variety.RESTORED, 0.04))
"""How often what is not usual is drawn."""


def draw_variety(rng: Random) -> Variety:
    """What the history will be about."""
    chance = rng.random()
    for variety, share in SHARES:
        if chance < share:
            return variety
        chance -= share
    return Variety.USUAL


def vary(graph: Graph, variety: Variety, rng: Random) -> Graph:
    """The graph for it."""
    data = graph.data
    if variety is Variety.BARE:
        operators = tuple(replace(op, backups=0) for op in data.operators)
        return Graph(replace(data, mode=Mode.NONE, operators=operators))
    if variety is Variety.LOST:
        return with_restarts(graph, rng.choice((0.05, 0.2, 5.0)))
    return graph


def with_restarts(graph: Graph, every_s: float) -> Graph:
    """The graph with a policy that begins lost states again, from checkpoints written so often."""
    data = graph.data
    checkpoint = Checkpoint(every_s, 2, "checkpoints")
    operators = tuple(replace(op, checkpoint=checkpoint if op.stateful else None) for op in data.operators)
    recovery = replace(data.recovery, when_lost=WhenLost.RESTART)
    return Graph(replace(data, recovery=recovery, operators=operators))


def draw_mixed(rng: Random, graph: Graph, span_s: float, variety: Variety) -> list[Fault]:
    """A schedule of at least two faults of different kinds."""
    kinds = HARMLESS if variety is Variety.BARE else MIXED_KINDS
    ops = list(graph.operators)
    faults: list[Fault] = []
    at = 0.0
    count = rng.randint(2, 5)
    while len(faults) < count or len({fault.kind for fault in faults}) < 2:
        at = (
            rng.uniform(0.02, span_s)
            if not faults or rng.random() < 0.5
            else at + rng.choice((0.0, 0.001, 0.01, 0.1, 0.3)) * rng.random()
        )
        faults.append(draw_one(rng, at, rng.choice(kinds), ops))
    if variety is Variety.LOST:
        stateful = [op.name for op in graph.data.operators if op.stateful]
        if stateful:
            faults.append(Fault(rng.uniform(span_s / 2, span_s), "kill-all", f"set:{rng.choice(stateful)}"))
    return sorted(faults, key=lambda fault: fault.at)
