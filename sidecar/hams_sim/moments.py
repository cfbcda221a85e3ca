"""Scenes for single rules of the protocol: what each rule is there for, where the catalogue's rows seldom
lead.

Each is run with its rule left out (`mutants`) to see that the checks notice, and without that to see that the
protocol holds.
"""

from random import Random

from hams_protocol.graph import Graph, WhenUnprotected
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.scene import CHAINS, FANS, Scenario, flushed, kill, stateful


def late_return(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners are stopped or cut off for long, and come back to their peers before they hear that they have
    been replaced."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F"]
    return [
        Fault(
            rng.uniform(0, span),
            rng.choice(("pause-late", "isolate-late")),
            rng.choice(names),
            span_s=rng.uniform(0.3, 0.9),
            way=rng.choice((1, 3)),
        )
        for _ in range(4)
    ]


def late_fan(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out stops for a while in the middle of its work."""
    op = next(op.name for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
    return [
        Fault(
            rng.uniform(0, span),
            "pause-late",
            f"primary:{op}",
            trigger=rng.choice(("", "Deliver", "StartBatch")),
            span_s=rng.uniform(0.3, 0.8),
        )
        for _ in range(3)
    ]


def revoked_unawares(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Primaries lose managers and etcd, not their peers, and etcd is slow: they are frozen out while they go
    on."""
    names = [f"primary:{op.name}" for op in graph.data.operators if op.stateful] + ["primary:F"]
    return [
        Fault(0.0, "slow-etcd", span_s=span + 0.3, amount=rng.choice((10.0, 40.0))),
        *(
            Fault(rng.uniform(0, span), "cut-managers", rng.choice(names), span_s=rng.uniform(0.2, 0.6))
            for _ in range(3)
        ),
    ]


def bridge(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its backup cannot reach each other for long, and everybody else reaches both: nothing is
    reset, and no manager sees a fault."""
    op = stateful(rng, graph)
    return [Fault(rng.uniform(0, span / 4), "stall", f"primary:{op}", f"backup:{op}", span_s=span)]


def alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary loses its backup and then its model: it goes back with its own records. Upstream fails over
    as well."""
    op, first = stateful(rng, graph), stateful(rng, graph)
    at = rng.uniform(0, span / 3)
    return [
        kill(at, f"backup:{op}"),
        *(Fault(at + rng.uniform(0, span / 2), "kill-model-alone", f"primary:{op}") for _ in range(3)),
        kill(at + rng.uniform(0, span / 2), f"primary:{first}", rng.choice(("Capture", "StateRecord", ""))),
    ]


def alone_echo(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary that is alone loses its model (`alone`), and the network repeats and loses."""
    return [*alone(rng, graph, span), *echo(rng, graph, span)[:2]]


def echo(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What was said comes again, late; some of what is said does not come. Primaries die in the meantime."""
    return [
        Fault(0.0, "echo", span_s=span + 0.3, amount=0.3),
        Fault(rng.uniform(0, span), "lossy", span_s=span, amount=0.15),
        *(
            kill(
                rng.uniform(0, span),
                f"primary:{stateful(rng, graph)}",
                rng.choice(("", "Capture", "Deliver")),
            )
            for _ in range(2)
        ),
    ]


def two_replies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The instance that answers dies, and with it, time and again, the one that computed the answer."""
    sinks = [op.name for op in graph.data.operators if "F" in op.targets]
    at = rng.uniform(0, span / 2)
    return [
        Fault(
            at,
            "kill-flushed",
            "primary:F",
            trigger=rng.choice(("ClientForwardAnswer", "Answer", "Completion")),
            count=rng.choice((1, 2, 4)),
        ),
        *(kill(at + 0.02 * step, f"primary:{rng.choice(sinks)}") for step in range(12)),
    ]


def before_update(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream a batch waits for its update, as its backup is slow; upstream the primary dies, and part of
    that batch is orphan."""
    names = [op.name for op in graph.data.operators if op.stateful]
    return [
        Fault(0.0, "slow-records", other=names[-1], span_s=span + 0.3, amount=0.3),
        *(
            flushed(
                rng.uniform(0, span),
                f"primary:{names[0]}",
                rng.choice(("Capture", "StateRecord")),
                rng.choice((1, 2)),
            )
            for _ in range(3)
        ),
    ]


def uneven(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Two backups are not equally far when their primary dies; the one that is promoted dies at once."""
    op = stateful(rng, graph)
    at = rng.uniform(0.05, span)
    return [
        Fault(max(at - 0.2, 0.0), "slow-records", amount=0.2, span_s=0.4),
        *(kill(at - 0.01, f"backup:{op}", "LoadState") for _ in range(4)),
        kill(at, f"primary:{op}"),
    ]


def drains(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners leave gracefully, and somebody dies beside."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F"]
    return [Fault(rng.uniform(0, span), "drain", rng.choice(names)) for _ in range(3)] + [
        kill(rng.uniform(0, span), rng.choice(names))
    ]


def node_drain(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its backup are to end together, or the backup just when its primary dies."""
    op = stateful(rng, graph)
    at = rng.uniform(0, span / 2)
    if rng.random() < 0.5:
        return [
            Fault(at, "drain", f"primary:{op}"),
            Fault(at + 0.002 * rng.random(), "drain", f"backup:{op}"),
        ]
    faults = [
        Fault(at, "drain", f"backup:{op}"),
        kill(at + rng.choice((0.0, 0.001, 0.1)) * rng.random(), f"primary:{op}"),
    ]
    return [
        *sorted(faults, key=lambda item: rng.random()),
        kill(at + rng.uniform(0.1, span), f"primary:{op}"),
    ]


def lost_race(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary without etcd wants its silent backup out of the set, cannot say so, and dies as soon as that
    one is back."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful] + ["F", "F"])
    at = rng.uniform(0, span / 4)
    return [
        Fault(at, "cut-etcd", f"primary:{name}", span_s=2.0),
        Fault(at + 0.01, "pause", f"backup:{name}", span_s=0.4),
        *(kill(at + 0.41 + 0.0005 * step, f"primary:{name}") for step in range(6)),
    ]


def shards(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners of shards, which back each other, are cut off or stopped in turn."""
    kinds = ("isolate", "pause", "kill", "cut-managers")
    return [
        Fault(
            rng.uniform(0, span),
            rng.choice(kinds),
            rng.choice(("primary:F", "any:F")),
            span_s=rng.uniform(0.2, 0.8),
        )
        for _ in range(4)
    ]


def innocents(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Poison takes whole instances with it, and what is said of suspects gets lost: nobody else may get the
    error."""
    return [Fault(0.0, "deadly", span_s=span + 0.3, amount=0.5)]


def unreadable(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners die around payloads that cannot be read, by anybody or by those of another version."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F"]
    return [
        kill(rng.uniform(0, span), rng.choice(names), rng.choice(("", "Deliver", "Capture")))
        for _ in range(3)
    ]


MOMENTS: dict[str, Scenario] = {
    "late-return": Scenario(
        "replaced owners come back unawares", (*FANS, "pair", "sandwich", "router"), late_return
    ),
    "late-fan": Scenario("a fan-out's owner comes back unawares", FANS, late_fan),
    "revoked-unawares": Scenario(
        "frozen out while it goes on", ("single", "pair", "chain"), revoked_unawares, frontends=3
    ),
    "bridge": Scenario(
        "a primary and its backup are cut off from each other alone",
        ("single", *CHAINS),
        bridge,
        backups=1,
        frontends=2,
        span_s=3.0,
        answers_s=limits.bridged_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "alone": Scenario("a primary goes back by itself", ("pair", "sandwich", "siblings"), alone, backups=1),
    "alone-echo": Scenario("the same on a bad network", ("pair", "sandwich"), alone_echo, backups=1),
    "echo": Scenario("late repetitions", ("pair", "sandwich", "chain"), echo),
    "before-update": Scenario("orphans before an update", ("pair", "sandwich"), before_update),
    "two-replies": Scenario("who answers dies with who computed", ("fan-stateless", "siblings"), two_replies),
    "uneven": Scenario("backups differ", ("single", "pair"), uneven, backups=2),
    "drains": Scenario("graceful ends", ("chain", "pair", "fan-stateless", "fan-stateful"), drains),
    "node-drain": Scenario(
        "primary and backup are to end together", ("chain", "pair", "single"), node_drain, backups=1
    ),
    "lost-race": Scenario("a set that cannot be shrunk", ("single", "pair"), lost_race),
    "shards": Scenario("shards back each other", ("single", "pair"), shards, frontends=2, shards=2),
    "shards-3": Scenario("logs of unequal length", ("single", "pair"), shards, frontends=3),
    "unreadable": Scenario(
        "what cannot be read is one request's error",
        (*CHAINS, *FANS, "first", "router", "diamond-interleave", "feedback"),
        unreadable,
    ),
    "innocents": Scenario(
        "nobody else gets a poison request's error", CHAINS, innocents, whole_s=limits.poison_recovers_s
    ),
}
