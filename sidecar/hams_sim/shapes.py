"""Graphs to simulate: the named shapes, and random ones of up to 12 operators.

A shape is a function from a random generator to a list of vertices; `build` adds what the generator leaves
open (backups, window, slots, policy) and makes the compiled graph that the core gets.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Edge,
    Feedback,
    FrontendSpec,
    Graph,
    GraphData,
    Input,
    Join,
    Mode,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    TensorSpec,
    WhenUnprotected,
)
from hams_protocol.ids import Lane

F = FRONTEND


@dataclass
class Vertex:
    """One operator of a shape. `optional` in-edges may be skipped; `routes`: its model routes at random."""

    name: str
    inputs: tuple[str, ...]
    stateful: bool = False
    join: Join = Join.COMBINE
    optional: bool = False
    routes: bool = False
    feedback: bool = False
    reply: bool = False
    lanes: tuple[Lane, ...] = field(default=((),))


def chain(rng: Random) -> list[Vertex]:
    """Stateless, stateful, stateless, stateful."""
    return [
        Vertex("a", (F,)),
        Vertex("b", ("a",), True),
        Vertex("c", ("b",)),
        Vertex("d", ("c",), True, reply=True),
    ]


def pair(rng: Random) -> list[Vertex]:
    """Two stateful operators in a row."""
    return [Vertex("a", (F,), True), Vertex("b", ("a",), True, reply=True)]


def single(rng: Random) -> list[Vertex]:
    """One stateful operator."""
    return [Vertex("a", (F,), True, reply=True)]


def sandwich(rng: Random) -> list[Vertex]:
    """Stateful -> stateless -> stateful (F8)."""
    return [Vertex("a", (F,), True), Vertex("b", ("a",)), Vertex("c", ("b",), True, reply=True)]


def relay(rng: Random) -> list[Vertex]:
    """A stateful operator, and two stateless ones in a row behind it."""
    return [Vertex("a", (F,), True), Vertex("b", ("a",)), Vertex("c", ("b",), reply=True)]


def prism(rng: Random) -> list[Vertex]:
    """A stateful fan-out over two stateless operators that join."""
    return [
        Vertex("a", (F,), True),
        Vertex("b", ("a",)),
        Vertex("c", ("a",)),
        Vertex("d", ("b", "c"), rng.random() < 0.5, reply=True),
    ]


def _diamond(rng: Random, join: Join) -> list[Vertex]:
    return [
        Vertex("a", (F,), rng.random() < 0.5),
        Vertex("b", ("a",), rng.random() < 0.5),
        Vertex("c", ("a",), rng.random() < 0.5),
        Vertex("d", ("b", "c"), True, join, reply=True),
    ]


def diamond_combine(rng: Random) -> list[Vertex]:
    """A diamond that a Combine closes."""
    return _diamond(rng, Join.COMBINE)


def diamond_interleave(rng: Random) -> list[Vertex]:
    """A diamond that an Interleave closes: two lanes."""
    return _diamond(rng, Join.INTERLEAVE)


def diamond_first(rng: Random) -> list[Vertex]:
    """A diamond that a First closes."""
    return _diamond(rng, Join.FIRST)


def siblings(rng: Random) -> list[Vertex]:
    """Stateful siblings that join."""
    return [
        Vertex("a", (F,), True),
        Vertex("b", (F,), True),
        Vertex("c", ("a", "b"), rng.random() < 0.5, reply=True),
    ]


def fan_stateful(rng: Random) -> list[Vertex]:
    """A stateless fan-out whose stateful receivers join again."""
    return [
        Vertex("a", (F,)),
        Vertex("b", ("a",), True),
        Vertex("c", ("a",), True),
        Vertex("d", ("b", "c"), rng.random() < 0.5, reply=True),
    ]


def fan_stateless(rng: Random) -> list[Vertex]:
    """A stateless fan-out whose stateless receivers join again."""
    return [
        Vertex("a", (F,)),
        Vertex("b", ("a",)),
        Vertex("c", ("a",)),
        Vertex("d", ("b", "c"), rng.random() < 0.5, reply=True),
    ]


def deep_fan(rng: Random) -> list[Vertex]:
    """A stateful operator before a stateless fan-out: what the successor computes anew may depend on another
    state."""
    return [
        Vertex("p", (F,), True),
        Vertex("a", ("p",)),
        Vertex("b", ("a",), True),
        Vertex("c", ("a",), rng.random() < 0.5),
        Vertex("d", ("b", "c"), rng.random() < 0.5, reply=True),
    ]


def deep_router(rng: Random) -> list[Vertex]:
    """A stateful operator before a stateless router."""
    return [
        Vertex("p", (F,), True),
        Vertex("a", ("p",), routes=True),
        Vertex("b", ("a",), True),
        Vertex("c", ("a",), rng.random() < 0.5),
        Vertex("d", ("b", "c"), True, optional=rng.random() < 0.7, reply=True),
    ]


def fan_reply(rng: Random) -> list[Vertex]:
    """A stateless fan-out that replies, and whose value a stateful operator takes as well."""
    return [
        Vertex("a", (F,), feedback=rng.random() < 0.3, reply=True),
        Vertex("b", ("a",), True, reply=rng.random() < 0.5),
    ]


def router(rng: Random) -> list[Vertex]:
    """A router, stateful or not, in front of a stateful and a stateless branch that join with optional
    inputs."""
    return [
        Vertex("a", (F,), rng.random() < 0.4, routes=True),
        Vertex("b", ("a",), True),
        Vertex("c", ("a",), rng.random() < 0.5),
        Vertex("d", ("b", "c"), True, optional=rng.random() < 0.7, reply=True),
    ]


def first(rng: Random) -> list[Vertex]:
    """Two racers, a First, and a stateful operator behind it."""
    return [
        Vertex("a", (F,), rng.random() < 0.5),
        Vertex("b", (F,), rng.random() < 0.5),
        Vertex("c", ("a", "b"), rng.random() < 0.5, Join.FIRST, reply=rng.random() < 0.5),
        Vertex("d", ("c",), True, reply=True),
    ]


def feedback(rng: Random) -> list[Vertex]:
    """A stateful operator that feeds its output back as new requests."""
    return [Vertex("a", (F,), rng.random() < 0.3), Vertex("b", ("a",), True, feedback=True, reply=True)]


def lanes(rng: Random) -> list[Vertex]:
    """A stateless fan-out, an Interleave that runs once for each branch and fans out itself, and a stateful
    operator behind it."""
    return [
        Vertex("a", (F,)),
        Vertex("b", ("a",)),
        Vertex("c", ("a",)),
        Vertex("d", ("b", "c"), rng.random() < 0.5, Join.INTERLEAVE, reply=True),
        Vertex("e", ("d",), True, reply=True),
    ]


def random_dag(rng: Random) -> list[Vertex]:
    """Up to 12 operators with random joins, routes and states."""
    # Weights only: seeds of the corpus replay their graphs by these draws, so a new weight makes all of them
    # other graphs. Fed-back requests (0.04) are rare, as each begins a whole request anew.
    count = rng.randint(3, 12)
    vertices: list[Vertex] = []
    for number in range(count):
        known = [item.name for item in vertices]
        sources = (
            [F]
            if not known or rng.random() < 0.2
            else rng.sample(known, min(len(known), rng.choice((1, 1, 1, 2, 2, 3))))
        )
        lanes = {item.name: item.lanes for item in vertices} | {F: ((),)}
        join = Join.COMBINE
        if len(sources) > 1:
            join = rng.choice((Join.COMBINE, Join.COMBINE, Join.INTERLEAVE, Join.FIRST))
            lane_sets = {lanes[source] for source in sources}
            total = sum(len(lanes[source]) for source in sources)
            # Only an Interleave joins unlike lanes, and lanes multiply: without the bound a request could
            # run some operators dozens of times, and histories would become long.
            if len(lane_sets) > 1 or (join is Join.INTERLEAVE and total > 4):
                sources, join = sources[:1], Join.COMBINE
        ordered = tuple(source for source in [F, *known] if source in sources)
        name = "abcdefghijkl"[number]
        vertices.append(
            Vertex(
                name,
                ordered,
                rng.random() < 0.5,
                join,
                rng.random() < 0.5,
                rng.random() < 0.15,
                rng.random() < 0.04,
            )
        )
        vertices[-1].lanes = _lanes(vertices[-1], lanes)
    used = {source for item in vertices for source in item.inputs}
    for item in vertices:
        item.reply = item.name not in used or rng.random() < 0.1
        if item.routes and item.name not in used:
            item.routes = False
    return vertices


SHAPES: dict[str, Callable[[Random], list[Vertex]]] = {
    "single": single,
    "pair": pair,
    "chain": chain,
    "sandwich": sandwich,
    "diamond-combine": diamond_combine,
    "diamond-interleave": diamond_interleave,
    "diamond-first": diamond_first,
    "siblings": siblings,
    "fan-stateful": fan_stateful,
    "fan-stateless": fan_stateless,
    "router": router,
    "first": first,
    "feedback": feedback,
    "random": random_dag,
    "relay": relay,
    "prism": prism,
    "lanes": lanes,
    "deep-fan": deep_fan,
    "deep-router": deep_router,
    "fan-reply": fan_reply,
}


def _lanes(vertex: Vertex, lanes: dict[str, tuple[Lane, ...]]) -> tuple[Lane, ...]:
    if vertex.join is Join.INTERLEAVE:
        return tuple((*lane, source) for source in vertex.inputs for lane in lanes[source])
    return lanes[vertex.inputs[0]]


@dataclass(frozen=True)
class Sizes:
    """What is fixed for a whole graph; operators' own sizes are drawn."""

    backups: int
    shards: int
    frontends: int
    managers: int
    unprotected: WhenUnprotected
    standbys: int
    replies_kept: int = 10_000


def build(
    name: str, rng: Random, sizes: Sizes, drop: frozenset[str] = frozenset()
) -> tuple[Graph, dict[str, Vertex]]:
    """The compiled graph of a shape, and its vertices by name. `drop` are operators to leave out (shrinking):
    their receivers take their inputs."""
    vertices = _without(SHAPES[name](rng), drop)
    known: dict[str, tuple[Lane, ...]] = {F: ((),)}
    receivers: dict[str, list[str]] = {item.name: [] for item in vertices}
    for item in vertices:
        item.lanes = _lanes(item, known)
        known[item.name] = item.lanes
        for source in item.inputs:
            if source != F:
                receivers[source].append(item.name)
    operators = []
    for item in vertices:
        targets = (*receivers[item.name], *([F] if item.reply or not receivers[item.name] else []))
        operators.append(_operator(item, targets, rng, sizes))
    replies = tuple(
        ReplyTensor(item.name, ((item.name, "x"),), concat_lanes=item.lanes != ((),))
        for item in vertices
        if item.reply or not receivers[item.name]
    )
    data = GraphData(
        name="g",
        uid="g",
        mode=Mode.NON_STOP,
        frontend=FrontendSpec(replicas=sizes.frontends, shards=sizes.shards, replies_kept=sizes.replies_kept),
        managers=sizes.managers,
        recovery=RecoverySpec(when_unprotected=sizes.unprotected),
        inputs=(TensorSpec("x", "FP32", ()),),
        outputs=replies,
        operators=tuple(operators),
    )
    return Graph(data), {item.name: item for item in vertices}


def _without(vertices: list[Vertex], drop: frozenset[str]) -> list[Vertex]:
    replaced_by: dict[str, tuple[str, ...]] = {}
    left = []
    for item in vertices:
        inputs: list[str] = []
        for source in item.inputs:
            for real in replaced_by.get(source, (source,)):
                if real not in inputs:
                    inputs.append(real)
        if item.name in drop and len(vertices) > len(drop):
            replaced_by[item.name] = tuple(inputs)
            continue
        item.inputs = tuple(inputs)
        if len(inputs) == 1:
            item.join = Join.COMBINE
        left.append(item)
    return left


def _operator(item: Vertex, targets: tuple[str, ...], rng: Random, sizes: Sizes) -> Operator:
    names = (
        ["x"] * len(item.inputs)
        if item.join is not Join.COMBINE
        else [f"x-{source}" for source in item.inputs]
    )
    edges = tuple(
        Edge(source, item.name, (Input("x", name, item.optional),))
        for source, name in zip(item.inputs, names, strict=True)
    )
    return Operator(
        name=item.name,
        join=item.join,
        in_edges=edges,
        successors=targets,
        lanes=item.lanes,
        outputs=(TensorSpec("x", "FP32", ()),),
        batch=BatchPolicy(rng.choice((1, 2, 4, 8)), rng.choice((0.0, 0.0, 0.002))),
        model=ModelSpec("sim:Model"),
        stateful=item.stateful,
        backups=sizes.backups if item.stateful else 0,
        window=rng.choice((1, 2, 4, 4)),
        slots=1 if item.stateful else rng.choice((1, 1, 2)),
        hot_standbys=sizes.standbys,
        feedback=Feedback((("x", "x"),), 2) if item.feedback else None,
    )
