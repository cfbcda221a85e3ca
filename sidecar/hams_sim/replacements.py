"""Scenes in which replacements come late: a cluster without room for another pod, or models that take long to
load (protocol.md, section 3).

What the survivors of one fault hold must do for everybody who waits: no answer may depend on a fresh
instance. And what takes a whole instance with it, proxy and model, must never take the last one that holds a
state.
"""

from random import Random

from hams_protocol.graph import FRONTEND, Graph, WhenUnprotected
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.scene import CHAINS, Scenario, first, flushed, hold, kill, lose, stateful


def one_dies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A single primary dies whole, at the moments of F1, F2 and F6; its model is busy, so that it holds many
    requests and has said so upstream."""
    op, at, count = stateful(rng, graph), rng.uniform(0, span), rng.choice((1, 2, 3))
    slow_records: list[Fault] = []
    kind = rng.choice(("F1", "F2", "F6"))
    if kind == "F1":
        dies = flushed(at, f"primary:{op}", rng.choice(("Capture", "StateRecord")), count)
    elif kind == "F2":
        dies = kill(at, f"primary:{op}", "Durable", count)
    else:
        slow_records = [Fault(max(at - 0.05, 0.0), "slow-records", amount=0.2, span_s=0.5)]
        dies = kill(at, f"primary:{first(graph)}", rng.choice(("", "StateRecord", "Capture")), 2)
    return [Fault(0.0, "slow", dies.victim, span_s=span, amount=30.0), *slow_records, dies]


def deadly(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What kills a model kills its proxy as well; and perhaps somebody else's model is slow."""
    return [Fault(0.0, "deadly", span_s=span), *one_dies(rng, graph, span)[: rng.choice((0, 1))]]


def keeper_hurt(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary dies, and while a keeper holds the state it is hurt, or the primary again, or both lose sight
    of each other."""
    op = stateful(rng, graph)
    faults = [kill(rng.uniform(0, span / 4), f"primary:{op}", rng.choice(("", "StateRecord", "Capture")))]
    at = faults[0].at
    roles = (f"primary:{op}", f"keeper:{op}")
    for _ in range(5):
        at += rng.choice((0.005, 0.05, 0.3)) * (0.5 + rng.random())
        kind = rng.choice(
            ("kill", "kill", "kill-flushed", "isolate", "pause", "cut", "reset", "drain", "hold")
        )
        victim, other = rng.choice(roles), rng.choice(roles)
        length = rng.choice((0.05, 0.3))
        if kind == "hold":
            what = rng.choice(("StateCopy", "StateRecord", "RecordAck", "AskCopy", "Freeze"))
            faults.append(Fault(at, kind, victim, other, length, amount=0.1, what=what))
        else:
            faults.append(Fault(at, kind, victim, other, length))
    return faults


def keeper_unseen(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Two primaries die, one after the other, and a manager loses sight of the keeper, which is an owner of
    slots, perhaps, while the third one is yet to get the state from it: the copy is late."""
    op = stateful(rng, graph)
    at = rng.uniform(0, span / 4)
    faults = [kill(at, f"primary:{op}", rng.choice(("", "StateRecord", "Capture")))]
    at += rng.choice((0.1, 0.3, 0.6)) * (0.5 + rng.random())
    faults.append(kill(at, f"primary:{op}", ""))
    faults.append(Fault(at, "hold", f"keeper:{op}", f"primary:{op}", 1.5, amount=0.5, what="StateCopy"))
    faults.append(
        Fault(at + rng.uniform(0, 0.3), "deaf-to-managers", f"keeper:{op}", span_s=rng.choice((0.5, 1.5)))
    )
    return faults


def keeper_vouched(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup dies, managers lose sight of the keeper and ask the primary, which says that it leads; then a
    request takes that whole."""
    op = stateful(rng, graph)
    unseen_s = rng.choice((0.8, 1.5))
    return [
        Fault(0.0, "deadly", span_s=span),
        kill(0.0, f"backup:{op}"),
        Fault(rng.uniform(0.02, 0.2), "deaf-to-managers", f"keeper:{op}", span_s=unseen_s),
    ]


def keeper_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup dies, then the primary's model; a manager asks the primary what it could go back to, and it
    dies before that is committed."""
    op = stateful(rng, graph)
    at = rng.uniform(0.05, span / 2)
    dies = flushed(rng.choice((0.0006, 0.001, 0.002)) * (0.5 + rng.random()), f"primary:{op}")
    return [
        kill(at - rng.uniform(0.01, 0.04), f"backup:{op}"),
        hold(at - 0.03, "RecordAck", f"keeper:{op}", f"primary:{op}", 0.005, 0.1),
        Fault(at, "kill-model-alone", f"primary:{op}"),
        Fault(at, "none", "leader", trigger="Fence", also=(dies,)),
    ]


def keeper_unawares(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup dies. While a fresh one still waits for its copy the primary loses managers, not its keeper,
    and etcd is slow: the keeper is frozen, and the primary goes on."""
    op = stateful(rng, graph)
    come_s = limits.replaced_slowly_s
    return [
        kill(0.0, f"backup:{op}"),
        Fault(come_s, "slow-etcd", span_s=span - come_s + 0.3, amount=rng.choice((10.0, 40.0))),
        Fault(0.5, "hold", f"primary:{op}", f"backup:{op}", span, amount=1.0, what="StateCopy"),
        *(
            Fault(rng.uniform(come_s, span), "cut-managers", f"primary:{op}", span_s=rng.uniform(0.4, 1.2))
            for _ in range(3)
        ),
    ]


def keeper_lags(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup dies, then the keeper that is named in its place, while everybody who may be called next hears
    late of topologies."""
    op = stateful(rng, graph)
    at = rng.uniform(0.2, 0.4)
    others = [FRONTEND, *(item.name for item in graph.data.operators if item.name != op)]
    faults = [kill(0.0, f"backup:{op}")]
    for other in others:
        faults += [
            Fault(at, "slow-watch", f"any:{other}", span_s=0.8, amount=rng.choice((100.0, 300.0)))
            for _ in range(3)
        ]
        faults.append(lose(at, "TopologyNews|Heartbeat", "", f"op:{other}", 0.8))
    faults.append(kill(at + 0.01, f"keeper:{op}"))
    if rng.random() < 0.5:
        faults.append(kill(at + rng.uniform(0.02, 0.1), f"keeper:{op}"))
    faults.append(kill(at + rng.uniform(0.1, 0.8), f"primary:{op}"))
    return faults


REPLACEMENTS: dict[str, Scenario] = {
    "late-replacement": Scenario(
        "a primary dies whole, and its replacement comes late",
        (*CHAINS, "single"),
        one_dies,
        backups=1,
        replaced_s=limits.replaced_late_s,
        answers_s=limits.answered_after_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "late-poison": Scenario(
        "poison takes proxies as well as models, and replacements come late",
        (*CHAINS, "single"),
        deadly,
        backups=1,
        replaced_s=limits.replaced_late_s,
        poisoned=2,
    ),
    "keeper-unseen": Scenario(
        "managers lose sight of a keeper before a fresh primary has its state",
        (*CHAINS, "single", "relay", "fan-stateful"),
        keeper_unseen,
        backups=1,
        span_s=2.0,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "keeper-vouched": Scenario(
        "managers lose sight of a keeper, and its primary dies after it has said that it leads",
        (*CHAINS, "single", "relay", "fan-stateful"),
        keeper_vouched,
        backups=1,
        span_s=2.0,
        calls_from_s=0.3,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
        poisoned=2,
    ),
    "keeper-alone": Scenario(
        "a primary that goes back by itself dies before that is committed",
        ("pair", "sandwich", "siblings"),
        keeper_alone,
        backups=1,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "keeper-unawares": Scenario(
        "a keeper is frozen out while its primary goes on",
        (*CHAINS, "single", "fan-stateful"),
        keeper_unawares,
        backups=1,
        span_s=5.0,
        calls_from_s=2.5,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "keeper-lags": Scenario(
        "a keeper dies, and who is called next hears late of topologies",
        (*CHAINS, "single", "fan-stateful"),
        keeper_lags,
        backups=1,
        span_s=2.0,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
    "keeper-hurt": Scenario(
        "a keeper is hurt while it holds the state",
        (*CHAINS, "single", "fan-stateful"),
        keeper_hurt,
        backups=1,
        span_s=2.0,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
    ),
}
