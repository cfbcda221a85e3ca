"""The rows of the fault catalogue that the simulation covers, by their ids: `hams sim --fault F8`.

A scenario draws its faults from the seed like any other history, but always the ones its row names, at the moments that matter, with
ordinary clients around them. What is asserted beyond the invariants is what the checks assert of every history: one effect, one reply,
nothing orphan at a client, everything protected again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hams_protocol.graph import Graph
from hams_sim.faults import Fault

Maker = Callable[[Random, Graph, float], list[Fault]]


@dataclass(frozen=True)
class Scenario:
    """One row: its title, the shapes it is run on, its faults, and the sizes that it needs."""

    title: str
    shapes: tuple[str, ...]
    make: Maker
    backups: int | None = None
    frontends: int | None = None
    shards: int | None = None


def _stateful(rng: Random, graph: Graph) -> str:
    return rng.choice([op.name for op in graph.data.operators if op.stateful])


def _stateless(rng: Random, graph: Graph) -> str:
    names = [op.name for op in graph.data.operators if not op.stateful]
    return rng.choice(names) if names else _stateful(rng, graph)


def _kill(at: float, victim: str, trigger: str = "", count: int = 1) -> Fault:
    return Fault(at, "kill", victim, trigger=trigger, count=count)


def _flushed(at: float, victim: str, trigger: str = "", count: int = 1) -> Fault:
    """It dies, and what it has said so far arrives."""
    return Fault(at, "kill-flushed", victim, trigger=trigger, count=count)


def f1(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The primary dies between its outputs and its record."""
    return [_flushed(rng.uniform(0, span), f"primary:{_stateful(rng, graph)}", rng.choice(("Capture", "StateRecord")), rng.choice((1, 2, 3)))] * 2


def f2(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The primary dies after the backup's apply, before the notice."""
    return [_kill(rng.uniform(0, span), f"primary:{_stateful(rng, graph)}", "Durable", rng.choice((1, 2, 4))) for _ in range(2)]


def f3(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Proxies die, models die."""
    return [Fault(rng.uniform(0, span), kind, f"primary:{op.name}") for op in graph.data.operators for kind in rng.sample(("kill", "kill-model"), 1)]


def f5(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A joining backup, or the primary it copies from, dies within the copy."""
    op = _stateful(rng, graph)
    return [
        _kill(rng.uniform(0, span), f"backup:{op}"),
        _kill(rng.uniform(0, span), f"{rng.choice(('backup', 'primary'))}:{op}", rng.choice(("StateCopy", "AskCopy", "RecordAck"))),
    ]


def f6(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Records of the upstream operator are slow, its primary dies: the downstream one is tainted."""
    at = rng.uniform(0, span)
    first = next(op.name for op in graph.data.operators if op.stateful)
    return [
        Fault(max(at - 0.05, 0.0), "slow-records", amount=0.2, span_s=0.5),
        _kill(at, f"primary:{first}", rng.choice(("", "StateRecord", "Capture")), 2),
    ]


def f7(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """F6, and the downstream backup dies as well."""
    found = f6(rng, graph, span)
    last = [op.name for op in graph.data.operators if op.stateful][-1]
    return [*found, _kill(found[-1].at + 0.001 * rng.random(), f"backup:{last}")]


def f9(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The fan-out operator dies between two of its sends."""
    op = next((op.name for op in graph.data.operators if not op.stateful and len(op.successors) > 1), _stateless(rng, graph))
    return [_flushed(rng.uniform(0, span), f"primary:{op}", "Deliver", rng.choice((2, 2, 3, 4, 6))) for _ in range(2)]


def f10(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Neighbours die together."""
    at = rng.uniform(0, span)
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F", "leader"]
    first = rng.randrange(len(names) - 1)
    return [_kill(at, names[first]), _kill(at + 0.002 * rng.random(), names[first + 1])]


def f18(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The primary is cut from everyone, from etcd, or from its backup."""
    op = _stateful(rng, graph)
    at = rng.uniform(0, span)
    return rng.choice(
        (
            [Fault(at, "isolate", f"primary:{op}", span_s=0.6)],
            [Fault(at, "cut-etcd", f"primary:{op}", span_s=2.0)],
            [Fault(at, "cut", f"primary:{op}", f"backup:{op}", span_s=1.0)],
        )
    )


def f19(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """One-way cuts, and a bridge that both sides of a cut still reach."""
    op = _stateful(rng, graph)
    return [
        Fault(rng.uniform(0, span), "isolate", f"primary:{op}", span_s=0.5, way=rng.choice((1, 2))),
        Fault(rng.uniform(0, span), "partition", span_s=0.4, way=1),
    ]


def f20(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Links flap."""
    return [Fault(rng.uniform(0, span), "flap", f"primary:{_stateful(rng, graph)}", rng.choice(("leader", "any:F", "backup:F"))) for _ in range(2)]


def f21(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Loss, repetition, reordering, jitter; links clogged and opened in random order."""
    return [Fault(rng.uniform(0, span / 2), "lossy", span_s=span, amount=0.05), Fault(rng.uniform(0, span), "clog", span_s=0.5)]


def f22(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A slow backup."""
    return [Fault(0.0, "slow", f"backup:{_stateful(rng, graph)}", span_s=span, amount=30.0), Fault(0.0, "slow-records", span_s=span, amount=0.2)]


def f23(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary is stopped, for just below the timeout and far beyond it."""
    op = _stateful(rng, graph)
    return [Fault(rng.uniform(0, span), "pause", f"primary:{op}", span_s=length) for length in (0.14, rng.choice((0.2, 0.8)))]


def f25(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A busy model."""
    return [Fault(0.0, "slow", f"primary:{_stateful(rng, graph)}", span_s=span, amount=30.0)]


def f29(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The manager that recovers dies at some step of it; two managers recover at once."""
    op = _stateful(rng, graph)
    at = rng.uniform(0, span)
    trigger = rng.choice(("Propose", "Freeze", "Fence", "Probe"))
    return [
        Fault(at, "kill", "leader", trigger=trigger, count=rng.choice((1, 2))),
        _kill(at + 0.001, f"primary:{op}"),
        Fault(at, "etcd-unknown", span_s=0.3, amount=0.3),
    ]


def f33(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The promoted backup dies as soon as its set can bear it; or before it is promoted, while the old primary was only cut off."""
    op = _stateful(rng, graph)
    at = rng.uniform(0, span / 2)
    if rng.random() < 0.5:
        victim = rng.choice((f"primary:{op}", "primary:F"))
        return [Fault(0.0, "heirs-die"), Fault(at, rng.choice(("isolate", "pause")), victim, span_s=rng.uniform(0.3, 1.2))]
    return [_kill(at, f"primary:{op}"), *(_kill(at + 0.05 * step, f"primary:{op}") for step in range(1, 9))]


def f39(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Frontends die around keys used twice."""
    return [
        _kill(rng.uniform(0, span), "primary:F", rng.choice(("LogAppend", "NoteReply", "Completion", "ClientForwardAnswer")), rng.choice((1, 3)))
        for _ in range(2)
    ]


def none(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """No fault beside what every history has: clocks are shifted against each other, poison requests are drawn."""
    return []


def late_return(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners are stopped or cut off for long, and come back to their peers before they hear that they have been replaced."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F"]
    return [
        Fault(
            rng.uniform(0, span), rng.choice(("pause-late", "isolate-late")), rng.choice(names), span_s=rng.uniform(0.2, 0.6), way=rng.choice((1, 3))
        )
        for _ in range(4)
    ]


def late_fan(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The same with the owner of a fan-out, in the middle of its work."""
    op = next(op.name for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
    return [
        Fault(rng.uniform(0, span), "pause-late", f"primary:{op}", trigger=rng.choice(("", "Deliver", "StartBatch")), span_s=rng.uniform(0.2, 0.5))
        for _ in range(3)
    ]


def torn_fan(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out dies between two deliveries, together with who got the first."""
    op = next(op for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
    found = []
    for _ in range(3):
        at = rng.uniform(0, span)
        found.append(_flushed(at, f"primary:{op.name}", "Deliver", rng.choice((1, 2, 3, 4))))
        found += [_kill(at + 0.002 * step, f"primary:{op.targets[0]}") for step in range(3)]
    return found


def revoked_unawares(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Primaries lose managers and etcd, not their peers, and etcd is slow: they are frozen out while they go on."""
    names = [f"primary:{op.name}" for op in graph.data.operators if op.stateful] + ["primary:F"]
    return [
        Fault(0.0, "slow-etcd", span_s=span + 0.3, amount=rng.choice((10.0, 40.0))),
        *(Fault(rng.uniform(0, span), "cut-managers", rng.choice(names), span_s=rng.uniform(0.2, 0.6)) for _ in range(3)),
    ]


def alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary loses its backup and then its model: it goes back with its own records. Upstream fails over as well."""
    op, first = _stateful(rng, graph), _stateful(rng, graph)
    at = rng.uniform(0, span / 3)
    return [
        _kill(at, f"backup:{op}"),
        *(Fault(at + rng.uniform(0, span / 2), "kill-model-alone", f"primary:{op}") for _ in range(3)),
        _kill(at + rng.uniform(0, span / 2), f"primary:{first}", rng.choice(("Capture", "StateRecord", ""))),
    ]


def alone_echo(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The same, and the network repeats and loses."""
    return [*alone(rng, graph, span), *echo(rng, graph, span)[:2]]


def echo(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What was said comes again, late; some of what is said does not come. Primaries die in the meantime."""
    return [
        Fault(0.0, "echo", span_s=span + 0.3, amount=0.3),
        Fault(rng.uniform(0, span), "lossy", span_s=span, amount=0.15),
        *(_kill(rng.uniform(0, span), f"primary:{_stateful(rng, graph)}", rng.choice(("", "Capture", "Deliver"))) for _ in range(2)),
    ]


def stale_acks(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """An operator's values are replaced, since upstream of it a primary dies; acknowledgements of the old ones come again, new ones get lost."""
    first = next(op.name for op in graph.data.operators if op.stateful)
    return [
        Fault(0.0, "echo", span_s=span + 0.3, amount=0.6),
        Fault(0.0, "lossy", span_s=span + 0.3, amount=0.25),
        *(_flushed(rng.uniform(0, span), f"primary:{first}", rng.choice(("Capture", "StateRecord")), rng.choice((1, 2))) for _ in range(3)),
    ]


def slow_receivers(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out is replaced unawares, and its receivers hear of it late: only the heir's question fences it."""
    op = next(op for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
    return [
        *(Fault(0.0, "slow-watch", f"primary:{target}", span_s=span + 0.3, amount=300.0) for target in op.targets),
        *(Fault(rng.uniform(0, span), "cut-managers", f"primary:{op.name}", span_s=0.6) for _ in range(3)),
    ]


def two_replies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Who answers dies, and with it, time and again, who computed the answer."""
    sinks = [op.name for op in graph.data.operators if "F" in op.targets]
    at = rng.uniform(0, span / 2)
    return [
        Fault(at, "kill-flushed", "primary:F", trigger=rng.choice(("ClientForwardAnswer", "Answer", "Completion")), count=rng.choice((1, 2, 4))),
        *(_kill(at + 0.02 * step, f"primary:{rng.choice(sinks)}") for step in range(12)),
    ]


def pending_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream has no backup and goes back while what upstream did is pending; then upstream fails over, and that is gone."""
    names = [op.name for op in graph.data.operators if op.stateful]
    at = rng.uniform(0, span / 4)
    return [
        Fault(at, "slow-records", other=names[0], span_s=span + 0.3, amount=0.4),
        _kill(at, f"backup:{names[-1]}"),
        *(Fault(at + rng.uniform(0.02, span), "kill-model-alone", f"primary:{names[-1]}") for _ in range(4)),
        *(_flushed(at + rng.uniform(0.05, span), f"primary:{names[0]}") for _ in range(3)),
    ]


def late_news(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream hears of topologies late, upstream primaries die: tokens of an epoch come before the news of it."""
    names = [op.name for op in graph.data.operators if op.stateful]
    return [
        *(
            Fault(0.0, "slow-watch", f"{role}:{op.name}", span_s=span + 0.3, amount=300.0)
            for op in graph.data.operators
            for role in ("primary", "any")
        ),
        *(_flushed(rng.uniform(0, span), f"primary:{rng.choice(names[:2])}", rng.choice(("Capture", "StateRecord", ""))) for _ in range(3)),
    ]


def before_update(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream a batch waits for its update, as its backup is slow; upstream the primary dies, and part of that batch is orphan."""
    names = [op.name for op in graph.data.operators if op.stateful]
    return [
        Fault(0.0, "slow-records", other=names[-1], span_s=span + 0.3, amount=0.3),
        *(_flushed(rng.uniform(0, span), f"primary:{names[0]}", rng.choice(("Capture", "StateRecord")), rng.choice((1, 2))) for _ in range(3)),
    ]


def uneven(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Two backups are not equally far when their primary dies; the one that is promoted dies at once."""
    op = _stateful(rng, graph)
    at = rng.uniform(0.05, span)
    return [
        Fault(max(at - 0.2, 0.0), "slow-records", amount=0.2, span_s=0.4),
        *(_kill(at - 0.01, f"backup:{op}", "LoadState") for _ in range(4)),
        _kill(at, f"primary:{op}"),
    ]


def drains(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners leave gracefully, and somebody dies beside."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F"]
    return [Fault(rng.uniform(0, span), "drain", rng.choice(names)) for _ in range(3)] + [_kill(rng.uniform(0, span), rng.choice(names))]


def node_drain(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its backup are to end together, or the backup just when its primary dies."""
    op = _stateful(rng, graph)
    at = rng.uniform(0, span / 2)
    if rng.random() < 0.5:
        return [Fault(at, "drain", f"primary:{op}"), Fault(at + 0.002 * rng.random(), "drain", f"backup:{op}")]
    found = [Fault(at, "drain", f"backup:{op}"), _kill(at + rng.choice((0.0, 0.001, 0.1)) * rng.random(), f"primary:{op}")]
    return [*sorted(found, key=lambda item: rng.random()), _kill(at + rng.uniform(0.1, span), f"primary:{op}")]


def lost_race(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary without etcd wants its silent backup out of the set, cannot say so, and dies as soon as that one is back."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful] + ["F", "F"])
    at = rng.uniform(0, span / 4)
    return [
        Fault(at, "cut-etcd", f"primary:{name}", span_s=2.0),
        Fault(at + 0.01, "pause", f"backup:{name}", span_s=0.4),
        *(_kill(at + 0.41 + 0.0005 * step, f"primary:{name}") for step in range(6)),
    ]


def shards(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners of shards, which back each other, are cut off or stopped in turn."""
    kinds = ("isolate", "pause", "kill", "cut-managers")
    return [Fault(rng.uniform(0, span), rng.choice(kinds), rng.choice(("primary:F", "any:F")), span_s=rng.uniform(0.2, 0.8)) for _ in range(4)]


def kept_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """F33's second half, with speculation: who answered for a primary that was only cut off dies, upstream is slow."""
    op = _stateful(rng, graph)
    at = rng.uniform(0, span)
    return [
        Fault(0.0, "heirs-die"),
        Fault(max(at - 0.2, 0.0), "slow-records", amount=0.2, span_s=0.5),
        Fault(at, rng.choice(("isolate", "pause", "cut-managers")), f"primary:{op}", span_s=rng.uniform(0.3, 0.9)),
        _flushed(at + rng.uniform(0.2, 0.5), f"primary:{next(item.name for item in graph.data.operators if item.stateful)}"),
    ]


def innocents(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Poison takes whole instances with it, and what is said of suspects gets lost: nobody else may get the error."""
    return [Fault(0.0, "deadly", span_s=span + 0.3, amount=0.5)]


CHAINS = ("chain", "pair", "sandwich")
SCENARIOS: dict[str, Scenario] = {
    "F1": Scenario("primary dies after its output, before its record", CHAINS, f1),
    "F2": Scenario("primary dies before the durable notice", CHAINS, f2),
    "F3": Scenario("proxy dies, model dies", CHAINS, f3),
    "F4": Scenario("a request crashes the model each time", CHAINS, none),
    "F5": Scenario("backup dies mid transfer", ("pair", "single"), f5),
    "F6": Scenario("the delayed state", ("pair", "sandwich", "chain"), f6),
    "F7": Scenario("the delayed state, and the downstream backup dies", ("pair", "sandwich"), f7),
    "F8": Scenario("upstream re-executed with another value", ("sandwich",), f1),
    "F9": Scenario("fan-out dies after one of two deliveries", ("fan-stateful", "fan-stateless"), f9),
    "F10": Scenario("neighbours die together", CHAINS, f10),
    "F18": Scenario("primary cut off", CHAINS, f18),
    "F19": Scenario("asymmetric and bridge partitions", CHAINS, f19),
    "F20": Scenario("flapping link", CHAINS, f20),
    "F21": Scenario("hostile network", CHAINS, f21),
    "F22": Scenario("slow backup", CHAINS, f22),
    "F23": Scenario("stopped primary", CHAINS, f23),
    "F24": Scenario("clocks apart", CHAINS, none),
    "F25": Scenario("busy model", CHAINS, f25),
    "F29": Scenario("manager dies in a recovery", CHAINS, f29),
    "F33": Scenario("promoted backup dies", ("single", "pair"), f33),
    "F39": Scenario("keys across frontends", ("single", "siblings"), f39),
}

FANS = ("fan-stateful", "fan-stateless")
MOMENTS: dict[str, Scenario] = {
    "late-return": Scenario("replaced owners come back unawares", (*FANS, "pair", "sandwich", "router"), late_return),
    "late-fan": Scenario("a fan-out's owner comes back unawares", FANS, late_fan),
    "torn-fan": Scenario("a fan-out's owner dies with a receiver", ("fan-stateless",), torn_fan),
    "revoked-unawares": Scenario("frozen out while it goes on", ("single", "pair", "chain"), revoked_unawares, frontends=3),
    "alone": Scenario("a primary goes back by itself", ("pair", "sandwich", "siblings"), alone, backups=1),
    "alone-echo": Scenario("the same on a bad network", ("pair", "sandwich"), alone_echo, backups=1),
    "echo": Scenario("late repetitions", ("pair", "sandwich", "chain"), echo),
    "stale-acks": Scenario("acknowledgements of replaced values", ("sandwich", "chain"), stale_acks),
    "before-update": Scenario("orphans before an update", ("pair", "sandwich"), before_update),
    "slow-receivers": Scenario("only the heir's question fences its predecessor", FANS, slow_receivers),
    "two-replies": Scenario("who answers dies with who computed", ("fan-stateless", "siblings"), two_replies),
    "pending-alone": Scenario("gone back onto what is pending", ("pair", "sandwich"), pending_alone, backups=1),
    "late-news": Scenario("tokens overtake topologies", ("sandwich", "pair", "siblings"), late_news),
    "uneven": Scenario("backups differ", ("single", "pair"), uneven, backups=2),
    "drains": Scenario("graceful ends", ("chain", "pair", "fan-stateless", "fan-stateful"), drains),
    "node-drain": Scenario("primary and backup are to end together", ("chain", "pair", "single"), node_drain, backups=1),
    "lost-race": Scenario("a set that cannot be shrunk", ("single", "pair"), lost_race),
    "shards": Scenario("shards back each other", ("single", "pair"), shards, frontends=2, shards=2),
    "shards-3": Scenario("logs of unequal length", ("single", "pair"), shards, frontends=3),
    "innocents": Scenario("nobody else gets a poison request's error", CHAINS, innocents),
    "kept-alone": Scenario("what a former primary kept is all there is", ("pair", "sandwich"), kept_alone, backups=1),
}
"""What single rules are there for, where the catalogue's rows seldom lead."""
SCENES = SCENARIOS | MOMENTS
