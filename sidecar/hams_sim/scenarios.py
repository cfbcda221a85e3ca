"""The rows of the fault catalogue that the simulation covers, by their ids: `hams sim --fault F8`.

A scenario draws its faults from the seed like any other history, but always the ones its row names, at the
moments that matter, with ordinary clients around them. What is asserted beyond the invariants is what the
checks assert of every history: one effect, one reply, nothing orphan at a client, everything protected again.
"""

from random import Random

from hams_protocol.graph import Graph
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.late import LATE
from hams_sim.logs_and_losses import LOGS_AND_LOSSES
from hams_sim.moments import MOMENTS
from hams_sim.receipts import RECEIPTS
from hams_sim.replacements import REPLACEMENTS
from hams_sim.scene import CHAINS, DEEP, FANS, Scenario, flushed, kill, stateful, stateless
from hams_sim.succession.plan import SHAPES
from hams_sim.succession.scenes import KINDS
from hams_sim.waits import WAITS


def f1(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The primary dies between its outputs and its record."""
    return [
        flushed(
            rng.uniform(0, span),
            f"primary:{stateful(rng, graph)}",
            rng.choice(("Capture", "StateRecord")),
            rng.choice((1, 2, 3)),
        )
    ] * 2


def f2(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The primary dies after the backup's apply, before the notice."""
    return [
        kill(rng.uniform(0, span), f"primary:{stateful(rng, graph)}", "Durable", rng.choice((1, 2, 4)))
        for _ in range(2)
    ]


def f3(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Proxies die, models die."""
    return [
        Fault(rng.uniform(0, span), kind, f"primary:{op.name}")
        for op in graph.data.operators
        for kind in rng.sample(("kill", "kill-model"), 1)
    ]


def f5(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A joining backup, or the primary it copies from, dies within the copy."""
    op = stateful(rng, graph)
    return [
        kill(rng.uniform(0, span), f"backup:{op}"),
        kill(
            rng.uniform(0, span),
            f"{rng.choice(('backup', 'primary'))}:{op}",
            rng.choice(("StateCopy", "AskCopy", "RecordAck")),
        ),
    ]


def f6(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Records of the upstream operator are slow, its primary dies: the downstream one is tainted."""
    at = rng.uniform(0, span)
    first = next(op.name for op in graph.data.operators if op.stateful)
    return [
        Fault(max(at - 0.05, 0.0), "slow-records", amount=0.2, span_s=0.5),
        kill(at, f"primary:{first}", rng.choice(("", "StateRecord", "Capture")), 2),
    ]


def f7(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """F6, and the downstream backup dies as well."""
    faults = f6(rng, graph, span)
    last = [op.name for op in graph.data.operators if op.stateful][-1]
    return [*faults, kill(faults[-1].at + 0.001 * rng.random(), f"backup:{last}")]


def f9(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The fan-out operator dies between two of its sends."""
    op = next(
        (op.name for op in graph.data.operators if not op.stateful and len(op.successors) > 1),
        stateless(rng, graph),
    )
    return [
        flushed(rng.uniform(0, span), f"primary:{op}", "Deliver", rng.choice((2, 2, 3, 4, 6)))
        for _ in range(2)
    ]


def f10(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Neighbours die together."""
    at = rng.uniform(0, span)
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F", "leader"]
    first = rng.randrange(len(names) - 1)
    return [kill(at, names[first]), kill(at + 0.002 * rng.random(), names[first + 1])]


def f18(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The primary is cut from everyone, from etcd, or from its backup."""
    op = stateful(rng, graph)
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
    op = stateful(rng, graph)
    return [
        Fault(rng.uniform(0, span), "isolate", f"primary:{op}", span_s=0.5, way=rng.choice((1, 2))),
        Fault(rng.uniform(0, span), "partition", span_s=0.4, way=1),
    ]


def f20(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Links flap."""
    return [
        Fault(
            rng.uniform(0, span),
            "flap",
            f"primary:{stateful(rng, graph)}",
            rng.choice(("leader", "any:F", "backup:F")),
        )
        for _ in range(2)
    ]


def f21(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Loss, repetition, reordering, jitter; links clogged and opened in random order."""
    return [
        Fault(rng.uniform(0, span / 2), "lossy", span_s=span, amount=0.05),
        Fault(rng.uniform(0, span), "clog", span_s=0.5),
    ]


def f22(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A slow backup."""
    return [
        Fault(0.0, "slow", f"backup:{stateful(rng, graph)}", span_s=span, amount=30.0),
        Fault(0.0, "slow-records", span_s=span, amount=0.2),
    ]


def f23(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary is stopped, for just below the timeout and far beyond it."""
    op = stateful(rng, graph)
    return [
        Fault(rng.uniform(0, span), "pause", f"primary:{op}", span_s=length)
        for length in (0.14, rng.choice((0.2, 0.8)))
    ]


def f25(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A busy model."""
    return [Fault(0.0, "slow", f"primary:{stateful(rng, graph)}", span_s=span, amount=30.0)]


def f29(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The manager that recovers dies at some step of it; two managers recover at once."""
    op = stateful(rng, graph)
    at = rng.uniform(0, span)
    trigger = rng.choice(("Propose", "Freeze", "Fence", "Probe"))
    return [
        Fault(at, "kill", "leader", trigger=trigger, count=rng.choice((1, 2))),
        kill(at + 0.001, f"primary:{op}"),
        Fault(at, "etcd-unknown", span_s=0.3, amount=0.3),
    ]


def f33(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The promoted backup dies as soon as its set can bear it; or before it is promoted, while the old
    primary was only cut off."""
    op = stateful(rng, graph)
    at = rng.uniform(0, span / 2)
    if rng.random() < 0.5:
        victim = rng.choice((f"primary:{op}", "primary:F"))
        return [
            Fault(0.0, "successors-die"),
            Fault(at, rng.choice(("isolate", "pause")), victim, span_s=rng.uniform(0.3, 1.2)),
        ]
    return [kill(at, f"primary:{op}"), *(kill(at + 0.05 * step, f"primary:{op}") for step in range(1, 9))]


def f39(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Frontends die around keys used twice."""
    return [
        kill(
            rng.uniform(0, span),
            "primary:F",
            rng.choice(("LogAppend", "NoteReply", "Completion", "ClientForwardAnswer")),
            rng.choice((1, 3)),
        )
        for _ in range(2)
    ]


def none(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """No fault beside what every history has: clocks are shifted against each other, poison requests are
    drawn."""
    return []


def f40(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """All leases of the graph are lost at once, under living instances; of a thousand graphs this is one, and
    they share nothing but etcd."""
    return [Fault(rng.uniform(0, span), "leases-lost")]


def f41(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Failovers all along many requests."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F"]
    return [kill(0.5 + 0.5 * step, rng.choice(names)) for step in range(int(2 * span) - 1)]


def f42(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Everybody waits for CPU; nobody dies."""
    return [Fault(0.0, "starvation", span_s=span)]


SCENARIOS: dict[str, Scenario] = {
    "F1": Scenario("primary dies after its output, before its record", CHAINS, f1),
    "F2": Scenario("primary dies before the durable notice", CHAINS, f2),
    "F3": Scenario("proxy dies, model dies", CHAINS, f3),
    "F4": Scenario("a request crashes the model each time", CHAINS, none, whole_s=limits.poison_recovers_s),
    "F5": Scenario("backup dies mid transfer", ("pair", "single"), f5),
    "F6": Scenario("the delayed state", ("pair", "sandwich", "chain"), f6),
    "F7": Scenario("the delayed state, and the downstream backup dies", ("pair", "sandwich"), f7),
    "F8": Scenario("upstream re-executed with another value", ("sandwich",), f1),
    "F9": Scenario("fan-out dies after one of two deliveries", ("fan-stateful", "fan-stateless"), f9),
    "F10": Scenario("neighbours die together", CHAINS, f10),
    "F18": Scenario("primary cut off", CHAINS, f18),
    "F19": Scenario("asymmetric and bridge partitions", CHAINS, f19),
    "F20": Scenario("flapping link", CHAINS, f20),
    "F21": Scenario("hostile network", (*CHAINS, *FANS, *DEEP), f21),
    "F22": Scenario("slow backup", CHAINS, f22),
    "F23": Scenario("stopped primary", CHAINS, f23),
    "F24": Scenario("clocks apart", CHAINS, none),
    "F25": Scenario("busy model", CHAINS, f25),
    "F29": Scenario("manager dies in a recovery", CHAINS, f29),
    "F33": Scenario("promoted backup dies", ("single", "pair"), f33),
    "F39": Scenario("keys across frontends", ("single", "siblings"), f39),
    "F40": Scenario("all leases lost together", CHAINS, f40, once=True),
    "F41": Scenario(
        "many requests, failovers in between", CHAINS, f41, span_s=6.0, calls=300, replies_kept=24
    ),
    "F42": Scenario("far too few cores", CHAINS, f42, span_s=20.0, replaced=3),
    "F43": REPLACEMENTS["late-replacement"],
}


CHANGES = {name: Scenario(kinds.title, SHAPES, none) for name, kinds in KINDS.items()}
"""Changes of shape draw their faults by themselves (`hams_sim.succession.plan`)."""

SCENES = SCENARIOS | MOMENTS | LATE | LOGS_AND_LOSSES | REPLACEMENTS | WAITS | RECEIPTS | CHANGES
