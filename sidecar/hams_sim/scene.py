"""What a scene is: faults at the moments that matter, the graphs on which they matter, and the sizes that it
needs."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hams_protocol.graph import Graph, Operator, WhenUnprotected
from hams_sim import limits
from hams_sim.faults import Fault

Maker = Callable[[Random, Graph, float], list[Fault]]


@dataclass(frozen=True)
class Scenario:
    """Its title, the shapes it is run on, its faults, and the sizes that it needs.

    `span_s`: clients and faults are spread over so many seconds. `settles_s`: once faults have ended every
    request is complete within this long, where that is less than `whole_s`, within which everything is
    protected, too. `once`: nothing is executed twice, for nothing dies. `epochs`: no set comes further than
    to this one. `replaced`: no state is lost, and no more instances than so many are revoked. `keeps`: no
    state begins again. `calls_from_s`: the first call comes so late. `unprotected`: the graph's policy.
    `restarts`: lost states begin again, from checkpoints that are written all the time. `keyless`: no call
    has a key. `calls`: so many requests, after which no machine holds more than after a few; frontends keep
    `replies_kept` replies. `replaced_s`: who dies is replaced only after so long. `answers_s`: no call waits
    longer than this for its answer, counted from its beginning or from the last fault before it was answered.
    `reads_s`: reading a checkpoint takes so long. `quick`: no model takes more than a moment for anything.
    `poisoned`: so many calls kill the model of a stateful operator, and the proxy with it.
    """

    title: str
    shapes: tuple[str, ...]
    make: Maker
    backups: int | None = None
    frontends: int | None = None
    shards: int | None = None
    span_s: float | None = None
    settles_s: float | None = None
    whole_s: float = limits.recovers_s
    once: bool = False
    epochs: int | None = None
    unprotected: WhenUnprotected | None = None
    restarts: bool = False
    keyless: bool = False
    replaced: int | None = None
    keeps: bool = False
    calls_from_s: float = 0.0
    calls: int | None = None
    replies_kept: int | None = None
    replaced_s: float | None = None
    answers_s: float | None = None
    reads_s: float = limits.checkpoint_read_s
    poisoned: int = 0
    quick: bool = False


CHAINS = ("chain", "pair", "sandwich")
FANS = ("fan-stateful", "fan-stateless")
DEEP = ("deep-fan", "deep-router", "fan-reply")
"""Fan-outs behind a state, and one that replies."""


def stateful(rng: Random, graph: Graph) -> str:
    """Some stateful operator."""
    return rng.choice([op.name for op in graph.data.operators if op.stateful])


def stateless(rng: Random, graph: Graph) -> str:
    """Some stateless operator, if there is one."""
    names = [op.name for op in graph.data.operators if not op.stateful]
    return rng.choice(names) if names else stateful(rng, graph)


def fan_out(graph: Graph) -> Operator:
    """The first stateless operator with several out-edges."""
    return next(op for op in graph.data.operators if not op.stateful and len(op.targets) > 1)


def first(graph: Graph) -> str:
    """The first stateful operator."""
    return next(op.name for op in graph.data.operators if op.stateful)


def last(graph: Graph) -> str:
    """The last stateful operator."""
    return [op.name for op in graph.data.operators if op.stateful][-1]


def kill(at: float, victim: str, trigger: str = "", count: int = 1, also: tuple[Fault, ...] = ()) -> Fault:
    """Fault: an instance dies, and what is in flight between it and others may be lost."""
    return Fault(at, "kill", victim, trigger=trigger, count=count, also=also)


def flushed(at: float, victim: str, trigger: str = "", count: int = 1, also: tuple[Fault, ...] = ()) -> Fault:
    """Fault: an instance dies, and what it has said so far arrives."""
    return Fault(at, "kill-flushed", victim, trigger=trigger, count=count, also=also)


def hold(at: float, what: str, sender: str, receiver: str, about_s: float, span_s: float) -> Fault:
    """Messages of these kinds are held back."""
    return Fault(at, "hold", sender, receiver, span_s=span_s, amount=about_s, what=what)


def lose(at: float, what: str, sender: str, receiver: str, span_s: float) -> Fault:
    """Messages of these kinds are lost."""
    return Fault(at, "lose", sender, receiver, span_s=span_s, what=what)
