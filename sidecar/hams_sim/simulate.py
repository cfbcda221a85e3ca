"""One history from one seed: build the graph, run clients and faults, heal, wait for convergence, judge.

The verdict comes from four sides: assertions in the core, checks at single steps (recorder, etcd double,
model), the history checker over all lines, and a comparison of every reply and every final state with the
surviving history.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from hams_history.checker import check
from hams_history.lines import FaultLine, HealLine
from hams_protocol.graph import (
    FRONTEND,
    AdmissionPolicy,
    Graph,
    Join,
    Mode,
    SchedulePolicy,
    WhenLate,
    WhenUnprotected,
)
from hams_protocol.limits import copy_ask_after_s
from hams_protocol.modes import ModePolicy, try_by_receipt
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
from hams_sim.clients import Call, Client, ask_for_parts, draw_calls, gather, spoil
from hams_sim.clock import Clock
from hams_sim.errors import Broken
from hams_sim.faults import MIXED, Fault, Faults, draw
from hams_sim.memory import flat
from hams_sim.model import Behaviour
from hams_sim.scenarios import SCENES
from hams_sim.scene import Scenario
from hams_sim.shapes import Sizes, Vertex, build
from hams_sim.succession.plan import draw_plan
from hams_sim.succession.scenes import KINDS
from hams_sim.succession.simulate import ChangeHistory
from hams_sim.variety import Variety, draw_mixed, draw_variety, vary, with_restarts
from hams_sim.world import World
from hams_wire.notes import header_of
from hams_wire.shell import MANAGER

NOT_REPLAYED = ("first", "diamond-first", "random")
"""Shapes with a First, which no mode that runs a lost state again takes."""

COUNTS_ON_MODELS = frozenset(("I1", "I2", "I4"))
"""What a mode that runs lost states again promises for deterministic models only."""

PLAIN = "plain"
"""How people call the first way to draw faults, which the corpus' older seeds mean."""

UNREADABLE = 0.06
"""In this share of the mixed histories some payloads cannot be read by those that receive them."""

SLOW_PRELOADS = 0.1
"""In this share of the mixed histories models may take seconds to take a joiner's copy over."""

LATE_REPLACEMENTS = 0.08
"""In this share of the mixed histories instances that die are replaced late."""


PROMISES = 0.4
"""In this share of the histories of a scheduling policy frontends admit only what can be in time."""

ORDERED = 0.3
"""In this share of them requests of one session keep their order."""

FEW_REPLIES = 0.1
"""In this share of the mixed histories hardly any reply is kept."""

PARTS = 0.5
"""In this share of the histories with early replies some calls ask for a part of the reply only."""

NO_SCENE = Scenario("no scene", (), lambda rng, graph, span: [], whole_s=limits.converge_after_s)
"""Of histories whose faults are drawn."""


@dataclass(frozen=True)
class Spec:
    """Names one history. `drop_*` leave out parts of what the seed draws (shrinking); `fault` asks for one
    kind or a row of faults.md; `mode`, if it is given, for a mode of replication, `policy` for a scheduling
    policy; `early_replies`: entries of replies do not wait for what they depend on (ADR 0040); `by_receipt`:
    backups answer for what they have received (ADR 0013)."""

    seed: int
    shape: str
    fault: str = ""
    drop_faults: frozenset[int] = frozenset()
    drop_calls: frozenset[int] = frozenset()
    drop_ops: frozenset[str] = frozenset()
    mode: str = ""
    policy: str = ""
    random_models: bool = False
    early_replies: bool = False
    by_receipt: bool = False

    def command(self) -> str:
        """The command that replays this history."""
        text = f"hams sim --seed {self.seed} --histories 1 --shape {self.shape}"
        text += f" --fault {self.fault or PLAIN}"
        drops = [f"fault:{number}" for number in sorted(self.drop_faults)]
        drops += [f"call:{number}" for number in sorted(self.drop_calls)] + [
            f"op:{name}" for name in sorted(self.drop_ops)
        ]
        text += f" --mode {self.mode}" if self.mode else ""
        text += f" --policy {self.policy}" if self.policy else ""
        text += " --random-models" if self.random_models else ""
        text += " --early-replies" if self.early_replies else ""
        text += " --by-receipt" if self.by_receipt else ""
        return text + (f" --drop {','.join(drops)}" if drops else "")


@dataclass
class HistoryOutcome:
    """What came of a history. `what` is empty if everything held, else the invariant's name."""

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

    @property
    def ok(self) -> bool:
        """Whether every invariant held."""
        return not self.what

    @property
    def is_promised(self) -> bool:
        """Whether the mode promises what was violated, with such models."""
        return not (self.spec.random_models and COUNTS_ON_MODELS.issuperset(self.what.split("+")))


@dataclass
class Plan:
    """What a seed means."""

    graph: Graph
    vertices: dict[str, Vertex]
    behaviours: dict[str, Behaviour]
    calls: list[Call]
    span_s: float
    replaced_s: float
    faults: list[Fault] = field(default_factory=list)
    wait_first: bool = True
    variety: Variety = Variety.USUAL

    @property
    def preload_s(self) -> float:
        """The longest time that a model takes to take a joiner's copy over."""
        return max(behaviour.preload_s for behaviour in self.behaviours.values())


def make_plan(spec: Spec) -> Plan:
    """Draw everything that is fixed before the clock starts."""
    rng = Random(f"{spec.seed}/{spec.shape}")
    scene = SCENES.get(spec.fault, NO_SCENE)
    graph, vertices = build(spec.shape, rng, _sizes(rng, scene), spec.drop_ops)
    behaviours = _behaviours(rng, graph, vertices)
    span_s = rng.choice((0.15, 0.4, 0.8))
    if scene.span_s is not None:
        span_s = scene.span_s
    count = rng.randint(20, 26)
    calls = draw_calls(rng, count if scene.calls is None else scene.calls, span_s, list(graph.operators))
    plan = Plan(graph, vertices, behaviours, calls, span_s, scene.replaced_s or 0.0)
    if spec.fault in SCENES:
        _draw_scene(plan, scene, spec, rng)
    elif spec.fault == MIXED:
        _draw_mixed(plan, spec)
    else:
        plan.faults = draw(rng, rng.randint(2, 5), span_s, list(graph.operators), spec.fault)
    plan.wait_first = rng.random() < 0.9
    if spec.mode and plan.graph.data.mode is not Mode.NONE:
        plan.graph = Graph(replace(plan.graph.data, mode=Mode(spec.mode)))
    if ModePolicy.of(plan.graph.data.mode).replays:
        _replay(plan, spec)
    if spec.policy:
        _schedule(plan, spec)
    parts = Random(f"{spec.seed}/{spec.shape}/parts")
    if spec.early_replies and parts.random() < PARTS:
        ask_for_parts(parts, plan.calls, [tensor.name for tensor in plan.graph.data.outputs])
    return plan


def _replay(plan: Plan, spec: Spec) -> None:
    """A graph whose states are replayed: no backups, checkpoints, and models to which the same happens again.
    But that an update raises, which ends an instance there, is chance; scenes count who ended."""
    graph = with_restarts(plan.graph, 1.0)
    operators = tuple(replace(op, backups=0) for op in graph.data.operators)
    recovery = replace(graph.data.recovery, when_unprotected=WhenUnprotected.CONTINUE)
    plan.graph = Graph(replace(graph.data, operators=operators, recovery=recovery))
    for call in plan.calls:
        call.unreadable = "all" if call.unreadable else ""
    for behaviour in plan.behaviours.values():
        behaviour.unreadable = 0.0
        behaviour.raises = behaviour.raises if spec.fault == MIXED else 0.0


def _schedule(plan: Plan, spec: Spec) -> None:
    """Another policy for all operators, which sheds in most histories, and clients that wait for less."""
    rng = Random(f"{spec.seed}/{spec.shape}/deadlines")
    policy = SchedulePolicy(spec.policy.capitalize())
    late = rng.choice((WhenLate.SHED, WhenLate.SHED, WhenLate.RUN))
    if policy is SchedulePolicy.FIFO:
        late = WhenLate.RUN
    operators = tuple(
        replace(op, batch=replace(op.batch, policy=policy, when_late=late))
        for op in plan.graph.data.operators
    )
    plan.graph = Graph(replace(plan.graph.data, operators=operators))
    for call in plan.calls:
        call.budget_s = rng.choice((0.02, 0.05, 0.2, limits.client_budget_s))
    if rng.random() < PROMISES:
        frontend = replace(plan.graph.data.frontend, admission=AdmissionPolicy.PROMISE)
        plan.graph = Graph(replace(plan.graph.data, frontend=frontend))
    if rng.random() < ORDERED:
        _in_order(plan, rng)


def _in_order(plan: Plan, rng: Random) -> None:
    """Requests of one session run in order of arrival."""
    operators = tuple(
        replace(op, batch=replace(op.batch, keep_order="parameter:session"))
        for op in plan.graph.data.operators
    )
    plan.graph = Graph(replace(plan.graph.data, operators=operators))
    for call in plan.calls:
        call.session = rng.choice(("", "a", "b"))


def _sizes(rng: Random, scene: Scenario) -> Sizes:
    sizes = Sizes(
        backups=rng.choice((1, 1, 1, 2)),
        shards=rng.choice((1, 1, 2)),
        frontends=rng.choice((2, 2, 3)),
        managers=rng.choice((2, 3)),
        unprotected=rng.choice((WhenUnprotected.CONTINUE, WhenUnprotected.CONTINUE, WhenUnprotected.BLOCK)),
        standbys=rng.choice((0, 0, 1)),
    )
    return replace(
        sizes,
        backups=sizes.backups if scene.backups is None else scene.backups,
        frontends=sizes.frontends if scene.frontends is None else scene.frontends,
        shards=sizes.shards if scene.shards is None else scene.shards,
        replies_kept=sizes.replies_kept if scene.replies_kept is None else scene.replies_kept,
        unprotected=sizes.unprotected if scene.unprotected is None else scene.unprotected,
    )


def _behaviours(rng: Random, graph: Graph, vertices: dict[str, Vertex]) -> dict[str, Behaviour]:
    behaviours: dict[str, Behaviour] = {}
    sloppy = rng.random() < 0.3
    for op in graph.data.operators:
        behaviour = behaviours[op.name] = Behaviour(rng)
        behaviour.routes = vertices[op.name].routes
        behaviour.refuse = 0.3 if op.join is Join.FIRST else 0.0
        if sloppy:
            behaviour.error, behaviour.raises, behaviour.idle_update = 0.02, 0.03, 0.1
    return behaviours


def _draw_scene(plan: Plan, scene: Scenario, spec: Spec, rng: Random) -> None:
    """A scene's faults, and what it asks of graph and calls."""
    calls = plan.calls
    plan.faults = sorted(scene.make(rng, plan.graph, plan.span_s), key=lambda item: item.at)
    if spec.fault == "F4":
        calls[rng.randrange(len(calls))].poison = rng.choice(list(plan.graph.operators))
    if spec.fault == "innocents":
        _poison(plan, rng, 2)
    if scene.restarts:
        plan.graph = with_restarts(plan.graph, rng.choice((0.02, 0.05)))
    if scene.quick:
        for behaviour in plan.behaviours.values():
            behaviour.hurry()
    if scene.keyless:
        for call in calls:
            call.key, call.digest, call.poison = None, f"d{call.number}", ""
    if spec.fault == "unreadable":
        _spoil(Random(f"{spec.seed}/{spec.shape}/unreadable"), calls, plan.behaviours)
    if scene.poisoned:
        _poison(plan, rng, scene.poisoned)
    if scene.once or any(
        limit is not None for limit in (scene.settles_s, scene.epochs, scene.replaced, scene.answers_s)
    ):
        for call in calls:
            call.poison = ""


def _poison(plan: Plan, rng: Random, count: int) -> None:
    """So many calls, which come together, kill the model of one stateful operator."""
    victim = rng.choice([op.name for op in plan.graph.data.operators if op.stateful])
    for number in rng.sample(range(len(plan.calls)), count):
        plan.calls[number].poison = victim
    gather(plan.calls)


def _draw_mixed(plan: Plan, spec: Spec) -> None:
    """Faults of all kinds, and what is unusual in some of the histories: each from a generator of its own."""
    extra = Random(f"{spec.seed}/{spec.shape}/mixed")
    plan.variety = draw_variety(extra)
    plan.graph = vary(plan.graph, plan.variety, extra)
    plan.faults = draw_mixed(extra, plan.graph, plan.span_s, plan.variety)
    slow = Random(f"{spec.seed}/{spec.shape}/rehearsals")
    if slow.random() < SLOW_PRELOADS:
        for behaviour in plan.behaviours.values():
            behaviour.preload_s = slow.choice((behaviour.load_s, 1.0, 1.5 * copy_ask_after_s))
    unreadable = Random(f"{spec.seed}/{spec.shape}/unreadable")
    if unreadable.random() < UNREADABLE:
        _spoil(unreadable, plan.calls, plan.behaviours)
    late = Random(f"{spec.seed}/{spec.shape}/replacements")
    if late.random() < LATE_REPLACEMENTS:
        plan.replaced_s = limits.replaced_late_s
    few = Random(f"{spec.seed}/{spec.shape}/replies")
    if few.random() < FEW_REPLIES:
        frontend = replace(plan.graph.data.frontend, replies_kept=few.choice((0, 1, 4)))
        plan.graph = Graph(replace(plan.graph.data, frontend=frontend))
    if plan.variety is Variety.BARE:
        for call in plan.calls:
            call.poison = ""
        for behaviour in plan.behaviours.values():
            behaviour.raises = 0.0


def _spoil(rng: Random, calls: list[Call], behaviours: dict[str, Behaviour]) -> None:
    """Some of what clients send, and of what models make, cannot be read by those that receive it."""
    spoil(rng, calls, 0.15)
    for behaviour in behaviours.values():
        behaviour.unreadable = rng.choice((0.0, 0.1))


def simulate(spec: Spec, trace: object = None) -> HistoryOutcome:
    """Run one history and judge it."""
    try_by_receipt(spec.by_receipt)
    if spec.fault in KINDS:
        return _simulate_change(spec)
    plan = make_plan(spec)
    world = World(plan.graph, f"{spec.seed}/{spec.shape}", plan.behaviours)
    world.early_replies = spec.early_replies
    world.restored = plan.variety is Variety.RESTORED
    world.deterministic = world.replays and not spec.random_models
    world.trace = trace  # type: ignore[assignment]
    faults = Faults(world, world.fault_rng)
    outcome = HistoryOutcome(
        spec, ops=tuple(plan.graph.operators), schedule=tuple(fault.say() for fault in plan.faults)
    )
    _judged(outcome, world.clock, lambda: _run(spec, plan, world, faults, outcome))
    outcome.calls = len(plan.calls)
    outcome.events = world.events
    outcome.sim_s = world.now
    outcome.faults = Counter(faults.counts)
    outcome.coverage = world.coverage
    outcome.fault_count = len(plan.faults)
    return outcome


def _simulate_change(spec: Spec) -> HistoryOutcome:
    """A change of shape."""
    plan = draw_plan(spec.seed, spec.shape, KINDS[spec.fault])
    seed = f"{spec.seed}/{spec.shape}/{spec.fault}"
    history = ChangeHistory(plan, KINDS[spec.fault], seed, spec.early_replies)
    resource = history.resource
    outcome = HistoryOutcome(spec, schedule=tuple(fault.say() for fault in plan.faults))
    faults = [fault for number, fault in enumerate(plan.faults) if number not in spec.drop_faults]
    _judged(outcome, resource.clock, lambda: history.run(faults, spec.drop_calls))
    outcome.calls = len(plan.calls)
    outcome.events = sum(graph.events for graph in resource.incarnations)
    outcome.sim_s = resource.clock.now
    outcome.faults = history.faults.counts
    outcome.coverage = resource.coverage
    outcome.fault_count = len(plan.faults)
    return outcome


def _judged(outcome: HistoryOutcome, clock: Clock, run: Callable[[], None]) -> None:
    """Run a history; what it breaks is its outcome."""
    try:
        run()
    except Broken as broken:
        outcome.what, outcome.message = broken.what, f"at {clock.now:.4f} s: {broken}"
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a finding
        outcome.what, outcome.message = "core", f"at {clock.now:.4f} s: {_where(error)}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " <- ".join(f"{_in_tree(frame.filename)}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {error} ({where})"


def _in_tree(path: str) -> str:
    """From the package on: sources and compilations lie in different folders."""
    below, _, rest = path.rpartition("/hams_")
    return f"hams_{rest}" if below else path


def _run(spec: Spec, plan: Plan, world: World, faults: Faults, outcome: HistoryOutcome) -> None:
    scene = SCENES.get(spec.fault, NO_SCENE)
    lines = world.recorder.lines
    lines.append(header_of(plan.graph.data, ordered=True))
    _spawn_all(world)
    _begin(world, plan)
    start = world.now
    world.replaced_s = plan.replaced_s
    world.reads_s = scene.reads_s
    lines.append(FaultLine(what="faults begin", at=start))
    for call in plan.calls:
        if call.number not in spec.drop_calls:
            world.at(start + call.at + scene.calls_from_s, Client(world, call).start)
    faults.plan(
        [
            replace(fault, at=start + fault.at)
            for number, fault in enumerate(plan.faults)
            if number not in spec.drop_faults
        ]
    )
    world.run(start + scene.calls_from_s + plan.span_s + 0.35)
    world.healing = True
    faults.heal_all()
    lines.append(HealLine(what="all", at=world.now))
    _settle(world, plan, scene)
    compare_states(world)
    _check_scene(world, scene)
    lines.append(final_line(world))
    report = check(lines)
    if report.problems or any(is_promised(world, violation) for violation in report.violations):
        outcome.what = "+".join(sorted(report.broken)) or "history"
        outcome.message = report.render()


def _spawn_all(world: World) -> None:
    data = world.graph.data
    for _ in range(data.managers):
        world.spawn(MANAGER)
    for _ in range(data.frontend.replicas):
        world.spawn(FRONTEND)
    for op in data.operators:
        for _ in range((1 + op.backups if op.stateful else op.slots) + op.hot_standbys):
            world.spawn(op.name)


def _begin(world: World, plan: Plan) -> None:
    """Run until the graph is ready, or only for a moment. Raises Broken."""
    if not plan.wait_first:
        world.run(0.25)
        return
    ready_s = limits.ready_after_s + 2 * plan.preload_s
    while not converged(world):
        if world.now > ready_s:
            raise Broken("I7", f"a fresh graph is not ready after {world.now:.1f} s: {what_is_open(world)}")
        world.run(world.now + 0.05)


def _settle(world: World, plan: Plan, scene: Scenario) -> None:
    """Run until every request is complete and everything protected, and has been for a while. Raises Broken
    if that takes longer than the mechanisms promise."""
    healed = since = world.now
    whole_s = scene.whole_s
    if any(call.poison for call in plan.calls):
        whole_s = max(whole_s, limits.poison_recovers_s)
    if world.replays:
        whole_s += limits.lost_recovers_s  # whoever dies there is lost first
    settles_s = whole_s if scene.settles_s is None else scene.settles_s
    preload_s = plan.preload_s
    awaited_s = 0.0
    while world.now < since + limits.settle_s:
        if world.lives.awaited:
            awaited_s = min(awaited_s + limits.settle_step_s, _replacements_max(world) * world.replaced_s)
        world.run(world.now + limits.settle_step_s)
        if scene.answers_s is not None:
            answered(world, scene.answers_s)
        if not converged(world):
            since = world.now
            allowed_s = (settles_s if not served(world) else whole_s) + limits.preloads_max * preload_s
            if world.now > healed + allowed_s + awaited_s:
                raise Broken("I7", f"{world.now - healed:.1f} s after the last fault: {what_is_open(world)}")


def _replacements_max(world: World) -> int:
    """So many replacements are waited for, one after another: those that faults cost, and those of each unit
    that has taken owners with it, which `maxAttempts` bounds."""
    most = world.graph.data.recovery.max_attempts + 1
    return limits.replacements_max + sum(min(taken, most) for taken in world.lives.poisoned.values())


def _check_scene(world: World, scene: Scenario) -> None:
    """What a scene promises beyond the invariants. Raises Broken."""
    if scene.once and not world.replays:  # there who leaves hands nothing over
        nothing_twice(world)
    if scene.epochs is not None:
        not_to_and_fro(world, scene.epochs)
    if scene.keeps:
        nothing_given_up(world)
    if scene.replaced is not None:
        nobody_replaced_for_being_slow(world, scene.replaced)
    if scene.calls is not None:
        flat(world)
