"""Scenes in which backups answer for what they have received (ADR 0013): a set goes on from what is pending,
and that is lost afterwards.

They hold, too, where backups answer for what they have applied; there nothing pending is gone on from.
"""

from random import Random

from hams_protocol.graph import Graph, WhenUnprotected
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.scene import CHAINS, Scenario, first, flushed, hold, kill, last


def receding(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Upstream records are late, so what follows from them downstream is pending. Downstream a set fails over
    and goes on from that; then the primary upstream dies with it. Twice in a row, perhaps."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.15, span / 2)
    return [
        hold(at - 0.1, "StateRecord", f"op:{up}", f"backup:{up}", 0.6, 0.5),
        flushed(at, f"primary:{down}", rng.choice(("", "StateRecord", "Deliver"))),
        kill(at + rng.uniform(0.06, 0.3), f"primary:{up}"),
        *(flushed(at + rng.uniform(0.2, 0.5), f"primary:{down}") for _ in range(rng.choice((0, 1)))),
    ]


def receding_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary downstream is alone and goes on from what is pending upstream: its model dies with versions
    that were not captured, so it goes back to that by itself."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.25, span / 2)
    return [
        kill(at - 0.2, f"backup:{down}"),
        hold(at - 0.1, "StateRecord", f"op:{up}", f"backup:{up}", 0.6, 0.5),
        Fault(at, "kill-model-alone", f"primary:{down}"),
        kill(at + rng.uniform(0.06, 0.3), f"primary:{up}"),
    ]


def receding_kept(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A keeper downstream holds what is gone on from: a fresh primary, which waits for its first copy, has
    not got it yet when the state upstream is lost on which it depends."""
    up, down = first(graph), last(graph)
    at = limits.replaced_slowly_s + rng.uniform(0.3, 0.6)
    return [
        kill(0.1, f"backup:{down}"),
        hold(limits.replaced_slowly_s, "StateCopy", f"primary:{down}", f"op:{down}", 7.0, 1.5),
        hold(at - 0.1, "StateRecord", f"op:{up}", f"backup:{up}", 2.5, 0.7),
        flushed(at, f"primary:{down}"),
        kill(at + rng.uniform(0.02, 0.4), f"primary:{up}"),
    ]


def receding_together(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Both primaries die at once. Managers hear what is left downstream before they hear how little is left
    upstream."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.15, span / 2)
    return [
        hold(at - 0.1, "StateRecord", f"op:{up}", f"backup:{up}", 0.6, 0.5),
        hold(at, "FreezeAnswer", f"op:{up}", "", rng.choice((0.0, 0.02, 0.1)), 0.5),
        flushed(at, f"primary:{down}", rng.choice(("", "StateRecord", "Deliver"))),
        kill(at + rng.uniform(0.0, 0.003), f"primary:{up}"),
    ]


RECEIPTS = {
    "receding": Scenario(
        "a set goes on from what is pending, and that is lost", CHAINS, receding, backups=1, span_s=1.2
    ),
    "receding-together": Scenario(
        "what is pending is lost as a set is about to go on from it",
        ("pair", "sandwich"),
        receding_together,
        backups=1,
        span_s=1.0,
    ),
    "receding-two": Scenario(
        "the same with two backups each", ("pair", "sandwich"), receding, backups=2, span_s=1.2
    ),
    "receding-alone": Scenario(
        "a primary goes back to what is pending by itself, and that is lost",
        ("pair", "sandwich", "siblings"),
        receding_alone,
        backups=1,
        span_s=1.2,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "receding-kept": Scenario(
        "a keeper holds what is pending, and that is lost",
        ("chain",),
        receding_kept,
        backups=1,
        span_s=1.0,
        calls_from_s=limits.replaced_slowly_s - 0.1,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
}
"""By name, like the rows of the catalogue."""
