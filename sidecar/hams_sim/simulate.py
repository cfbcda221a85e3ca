"""One history from one seed: build the graph, run clients and faults, heal, wait for convergence, judge.

The verdict comes from four sides: assertions in the core, checks at single steps (recorder, etcd double,
model), the history checker over all lines, and a comparison of every reply and every final state with the
surviving history.
"""

import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from hams_history.checker import check
from hams_history.lines import FaultLine, HealLine
from hams_protocol.graph import FRONTEND, Graph, Join, WhenUnprotected
from hams_protocol.limits import copy_again_after_s
from hams_sim import limits
from hams_sim.checks import (
    answered,
    compare_states,
    converged,
    final_line,
    is_promised,
    nobody_replaced_for_being_slow,
    not_to_and_fro,
    nothing_given_up,
    nothing_twice,
    served,
    what_is_open,
)
from hams_sim.clients import Call, Client, draw_calls, gather, spoil
from hams_sim.errors import Broken
from hams_sim.faults import MIXED, Fault, Faults, draw
from hams_sim.memory import flat
from hams_sim.model import Behaviour
from hams_sim.node import MANAGER
from hams_sim.scenarios import SCENES
from hams_sim.shapes import Sizes, Vertex, build
from hams_sim.variety import Variety, draw_mixed, draw_variety, vary, with_restarts
from hams_sim.world import World
from hams_wire.notes import header_of

PLAIN = "plain"
"""How people call the first way to draw faults, which the corpus' older seeds mean."""

UNREADABLE = 0.06
"""In this share of the mixed histories some payloads cannot be read by those that receive them."""

SLOW_PRELOADS = 0.1
"""In this share of the mixed histories models may take seconds to take a joiner's copy over."""

LATE_REPLACEMENTS = 0.08
"""In this share of the mixed histories whoever dies is replaced late."""


@dataclass(frozen=True)
class Spec:
    """Names one history. `drop_*` leave out parts of what the seed draws (shrinking); `fault` asks for one
    kind or a row of faults.md."""

    seed: int
    shape: str
    fault: str = ""
    drop_faults: frozenset[int] = frozenset()
    drop_calls: frozenset[int] = frozenset()
    drop_ops: frozenset[str] = frozenset()

    def command(self) -> str:
        """Replays it."""
        text = f"hams sim --seed {self.seed} --histories 1 --shape {self.shape}"
        text += f" --fault {self.fault or PLAIN}"
        drops = [f"fault:{number}" for number in sorted(self.drop_faults)]
        drops += [f"call:{number}" for number in sorted(self.drop_calls)] + [
            f"op:{name}" for name in sorted(self.drop_ops)
        ]
        return text + (f" --drop {','.join(drops)}" if drops else "")


@dataclass
class Outcome:
    """What came of a history. `what` is empty if everything held, else the invariant's name.

    `served_s`, `whole_s`: so long after the last fault a request was open, and something not protected.
    """

    spec: Spec
    what: str = ""
    message: str = ""
    calls: int = 0
    events: int = 0
    sim_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    coverage: Counter[str] = field(default_factory=Counter)
    fault_count: int = 0
    ops: tuple[str, ...] = ()
    schedule: tuple[str, ...] = ()
    served_s: float = 0.0
    whole_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Everything held."""
        return not self.what


@dataclass
class Plan:
    """What a seed means."""

    graph: Graph
    vertices: dict[str, Vertex]
    behaviours: dict[str, Behaviour]
    calls: list[Call]
    faults: list[Fault]
    wait_first: bool
    span_s: float
    variety: Variety
    replaced_s: float


def make_plan(spec: Spec) -> Plan:
    """Draw everything that is fixed before the clock starts."""
    rng = Random(f"{spec.seed}/{spec.shape}")
    sizes = Sizes(
        backups=rng.choice((1, 1, 1, 2)),
        shards=rng.choice((1, 1, 2)),
        frontends=rng.choice((2, 2, 3)),
        managers=rng.choice((2, 3)),
        unprotected=rng.choice((WhenUnprotected.CONTINUE, WhenUnprotected.CONTINUE, WhenUnprotected.BLOCK)),
        standbys=rng.choice((0, 0, 1)),
    )
    scene = SCENES.get(spec.fault)
    if scene is not None:
        sizes = replace(
            sizes,
            backups=sizes.backups if scene.backups is None else scene.backups,
            frontends=sizes.frontends if scene.frontends is None else scene.frontends,
            shards=sizes.shards if scene.shards is None else scene.shards,
            replies_kept=sizes.replies_kept if scene.replies_kept is None else scene.replies_kept,
            unprotected=sizes.unprotected if scene.unprotected is None else scene.unprotected,
        )
    variety = Variety.USUAL
    replaced_s = 0.0 if scene is None or scene.replaced_s is None else scene.replaced_s
    graph, vertices = build(spec.shape, rng, sizes, spec.drop_ops)
    behaviours: dict[str, Behaviour] = {}
    sloppy = rng.random() < 0.3
    for op in graph.data.operators:
        behaviour = behaviours[op.name] = Behaviour(rng)
        behaviour.routes = vertices[op.name].routes
        behaviour.refuse = 0.3 if op.join is Join.FIRST else 0.0
        if sloppy:
            behaviour.error, behaviour.raises, behaviour.idle_update = 0.02, 0.03, 0.1
    span = rng.choice((0.15, 0.4, 0.8))
    if scene is not None and scene.span_s is not None:
        span = scene.span_s
    count = rng.randint(20, 26)
    calls = draw_calls(
        rng, count if scene is None or scene.calls is None else scene.calls, span, list(graph.operators)
    )
    if scene is not None:
        faults = sorted(scene.make(rng, graph, span), key=lambda item: item.at)
        if spec.fault == "F4":
            calls[rng.randrange(len(calls))].poison = rng.choice(list(graph.operators))
        if spec.fault == "innocents":
            taken = rng.choice([op.name for op in graph.data.operators if op.stateful])
            for number in rng.sample(range(len(calls)), 2):
                calls[number].poison = taken
            gather(calls)
        if scene.restarts:
            graph = with_restarts(graph, rng.choice((0.02, 0.05)))
        if scene.keyless:
            for call in calls:
                call.key, call.digest, call.poison = None, f"d{call.number}", ""
        if spec.fault == "unreadable":
            _spoil(Random(f"{spec.seed}/{spec.shape}/unreadable"), calls, behaviours)
        if scene.poisoned:
            taken = rng.choice([op.name for op in graph.data.operators if op.stateful])
            for number in rng.sample(range(len(calls)), scene.poisoned):
                calls[number].poison = taken
            gather(calls)
        if (
            scene.once
            or scene.settles_s is not None
            or scene.epochs is not None
            or scene.replaced is not None
            or scene.answers_s is not None
        ):
            for call in calls:
                call.poison = ""
    elif spec.fault == MIXED:
        extra = Random(f"{spec.seed}/{spec.shape}/mixed")
        variety = draw_variety(extra)
        graph = vary(graph, variety, extra)
        faults = draw_mixed(extra, graph, span, variety)
        slow = Random(f"{spec.seed}/{spec.shape}/rehearsals")
        if slow.random() < SLOW_PRELOADS:
            for behaviour in behaviours.values():
                behaviour.preload_s = slow.choice((behaviour.load_s, 1.0, 1.5 * copy_again_after_s))
        unreadable = Random(f"{spec.seed}/{spec.shape}/unreadable")
        if unreadable.random() < UNREADABLE:
            _spoil(unreadable, calls, behaviours)
        late = Random(f"{spec.seed}/{spec.shape}/replacements")
        if late.random() < LATE_REPLACEMENTS:
            replaced_s = limits.replaced_late_s
        if variety is Variety.BARE:
            for call in calls:
                call.poison = ""
            for behaviour in behaviours.values():
                behaviour.raises = 0.0
    else:
        faults = draw(rng, rng.randint(2, 5), span, list(graph.operators), spec.fault)
    return Plan(graph, vertices, behaviours, calls, faults, rng.random() < 0.9, span, variety, replaced_s)


def _spoil(rng: Random, calls: list[Call], behaviours: dict[str, Behaviour]) -> None:
    """Some of what clients send, and of what models make, cannot be read by those that receive it."""
    spoil(rng, calls, 0.15)
    for behaviour in behaviours.values():
        behaviour.unreadable = rng.choice((0.0, 0.1))


def simulate(spec: Spec, trace: object = None) -> Outcome:
    """Run one history and judge it."""
    plan = make_plan(spec)
    world = World(plan.graph, f"{spec.seed}/{spec.shape}", plan.behaviours)
    world.restored = plan.variety is Variety.RESTORED
    world.trace = trace  # type: ignore[assignment]
    faults = Faults(world, world.fault_rng)
    outcome = Outcome(
        spec, ops=tuple(plan.graph.operators), schedule=tuple(fault.say() for fault in plan.faults)
    )
    try:
        _run(spec, plan, world, faults, outcome)
    except Broken as broken:
        outcome.what, outcome.message = broken.what, f"at {world.now:.4f} s: {broken}"
    except AssertionError as error:
        outcome.what, outcome.message = "core", f"at {world.now:.4f} s: {_where(error)}"
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a finding, and the next history runs on
        outcome.what, outcome.message = "core", f"at {world.now:.4f} s: {_where(error)}"
    outcome.calls = len(plan.calls)
    outcome.events = world.events
    outcome.sim_s = world.now
    outcome.faults = Counter(faults.counts)
    outcome.coverage = world.coverage
    outcome.fault_count = len(plan.faults)
    return outcome


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " <- ".join(
        f"{frame.filename.rsplit('/sidecar/', 1)[-1]}:{frame.lineno}" for frame in reversed(frames)
    )
    return f"{type(error).__name__}: {error} ({where})"


def _run(spec: Spec, plan: Plan, world: World, faults: Faults, outcome: Outcome) -> None:
    graph = plan.graph
    recorder = world.recorder
    recorder.lines.append(header_of(graph.data, ordered=True))
    for _ in range(graph.data.managers):
        world.spawn(MANAGER)
    for _ in range(graph.data.frontend.replicas):
        world.spawn(FRONTEND)
    for op in graph.data.operators:
        for _ in range(1 + op.backups if op.stateful else op.slots):
            world.spawn(op.name)
        for _ in range(op.hot_standbys):
            world.spawn(op.name)
    slowest = max(behaviour.preload_s for behaviour in plan.behaviours.values())
    if plan.wait_first:
        while not converged(world):
            if world.now > limits.ready_after_s + 2 * slowest:
                raise Broken(
                    "I7", f"a fresh graph is not ready after {world.now:.1f} s: {what_is_open(world)}"
                )
            world.run(world.now + 0.05)
    else:
        world.run(0.25)
    start = world.now
    scene = SCENES.get(spec.fault)
    answers_s = None if scene is None else scene.answers_s
    world.replaced_s = plan.replaced_s
    recorder.lines.append(FaultLine(what="faults begin", at=start))
    scene = SCENES.get(spec.fault)
    delay_s = 0.0 if scene is None else scene.calls_from_s
    for call in plan.calls:
        if call.number not in spec.drop_calls:
            world.at(start + call.at + delay_s, Client(world, call).start)
    faults.plan(
        [
            replace(fault, at=start + fault.at)
            for number, fault in enumerate(plan.faults)
            if number not in spec.drop_faults
        ]
    )
    world.run(start + delay_s + plan.span_s + 0.35)
    world.healing = True
    faults.heal_all()
    recorder.lines.append(HealLine(what="all", at=world.now))
    healed = world.now
    whole_s = limits.converge_after_s if scene is None else scene.whole_s
    if any(call.poison for call in plan.calls):
        whole_s = max(whole_s, limits.poison_recovers_s)
    settles_s = whole_s if scene is None or scene.settles_s is None else scene.settles_s
    since = world.now
    while world.now < since + limits.settle_s:
        world.run(world.now + 0.1)
        if answers_s is not None:
            answered(world, answers_s)
        if not served(world):
            outcome.served_s = world.now - healed
        if not converged(world):
            since = world.now
            outcome.whole_s = world.now - healed
            allowed_s = (settles_s if not served(world) else whole_s) + limits.preloads_max * slowest
            allowed_s += limits.replacements_max * world.replaced_s
            if world.now > healed + allowed_s:
                raise Broken("I7", f"{allowed_s} s after the last fault: {what_is_open(world)}")
    compare_states(world)
    if scene is not None and scene.once:
        nothing_twice(world)
    if scene is not None and scene.epochs is not None:
        not_to_and_fro(world, scene.epochs)
    if scene is not None and scene.keeps:
        nothing_given_up(world)
    if scene is not None and scene.replaced is not None:
        nobody_replaced_for_being_slow(world, scene.replaced)
    if scene is not None and scene.calls is not None:
        flat(world)
    recorder.lines.append(final_line(world))
    report = check(recorder.lines)
    if report.problems or any(is_promised(world, violation) for violation in report.violations):
        outcome.what = "+".join(sorted(report.broken)) or "history"
        outcome.message = report.render()
