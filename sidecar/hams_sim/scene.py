"""What a scene is: faults at the moments that matter, the graphs on which they matter, and the sizes that it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hams_protocol.graph import Graph
from hams_sim.faults import Fault

Maker = Callable[[Random, Graph, float], list[Fault]]


@dataclass(frozen=True)
class Scenario:
    """Its title, the shapes it is run on, its faults, and the sizes that it needs.

    `span_s`: clients and faults are spread over so many seconds. `settles_s`: once faults have ended every request is complete within
    this long, where the bound of all histories is too wide to show anything. `once`: nothing is executed twice, for nothing dies.
    `epochs`: no set comes further than to this one.
    `calls`: so many requests, after which no machine holds more than after a few; frontends keep `replies_kept` replies.
    """

    title: str
    shapes: tuple[str, ...]
    make: Maker
    backups: int | None = None
    frontends: int | None = None
    shards: int | None = None
    span_s: float | None = None
    settles_s: float | None = None
    once: bool = False
    epochs: int | None = None
    calls: int | None = None
    replies_kept: int | None = None


CHAINS = ("chain", "pair", "sandwich")
FANS = ("fan-stateful", "fan-stateless")


def stateful(rng: Random, graph: Graph) -> str:
    """Some stateful operator."""
    return rng.choice([op.name for op in graph.data.operators if op.stateful])


def stateless(rng: Random, graph: Graph) -> str:
    """Some stateless operator, if there is one."""
    names = [op.name for op in graph.data.operators if not op.stateful]
    return rng.choice(names) if names else stateful(rng, graph)


def first(graph: Graph) -> str:
    """The first stateful operator."""
    return next(op.name for op in graph.data.operators if op.stateful)


def last(graph: Graph) -> str:
    """The last stateful operator."""
    return [op.name for op in graph.data.operators if op.stateful][-1]


def kill(at: float, victim: str, trigger: str = "", count: int = 1, also: tuple[Fault, ...] = ()) -> Fault:
    """It dies, and what is in flight between it and others may be lost."""
    return Fault(at, "kill", victim, trigger=trigger, count=count, also=also)


def flushed(at: float, victim: str, trigger: str = "", count: int = 1, also: tuple[Fault, ...] = ()) -> Fault:
    """It dies, and what it has said so far arrives."""
    return Fault(at, "kill-flushed", victim, trigger=trigger, count=count, also=also)


def hold(at: float, what: str, sender: str, receiver: str, about_s: float, span_s: float) -> Fault:
    """Messages of these kinds are held back."""
    return Fault(at, "hold", sender, receiver, span_s=span_s, amount=about_s, what=what)


def lose(at: float, what: str, sender: str, receiver: str, span_s: float) -> Fault:
    """Messages of these kinds are lost."""
    return Fault(at, "lose", sender, receiver, span_s=span_s, what=what)
