"""Scenes for single rules in which chosen messages come late, or not at all, while their senders die or are
replaced.

The messages are chosen so that the rule is all that stands between them and a broken invariant.
"""

from dataclasses import replace
from random import Random

from hams_protocol.graph import FRONTEND, SINKS, Graph, WhenUnprotected
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.scene import (
    CHAINS,
    FANS,
    Scenario,
    fan_out,
    first,
    flushed,
    hold,
    kill,
    last,
    lose,
    stateful,
    stateless,
)

LATE_NEWS_FROM_S = 2.0
"""By then every connection has been used, so who is at its ends notices when it breaks."""


def late_news(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """An owner dies, or leaves gracefully, and etcd tells most instances late: they hear of it from the first
    message of its successor, or of somebody who asks that one."""
    at = LATE_NEWS_FROM_S + rng.uniform(span / 4, span * 3 / 4)
    late = [
        Fault(at - 0.1, "slow-watch", f"any:{name}", span_s=0.6, amount=rng.choice((10.0, 30.0)))
        for name in (*graph.operators, FRONTEND)
        for _ in range(2)
    ]
    name = rng.choice((first(graph), last(graph), FRONTEND))
    victim = f"primary:{name}"
    if name != FRONTEND and rng.random() < 0.5:  # what it has acknowledged since is suspect
        return [*late, Fault(at, "none", victim, trigger="TokenAcks", also=(flushed(0.001, victim),))]
    return [*late, rng.choice((flushed, kill, _drain))(at, victim)]


def _drain(at: float, victim: str) -> Fault:
    return Fault(at, "drain", victim)


def stale_acks(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Values are replaced, since upstream a primary dies; acknowledgements of the old ones come late, the new
    ones get lost."""
    return [
        hold(0.0, "TokenAcks", "", "", 0.2, span + 0.3),
        Fault(0.0, "lose-replaced", span_s=span + 0.3, what="Deliver"),
        *(
            flushed(
                rng.uniform(0, span),
                f"primary:{first(graph)}",
                rng.choice(("Capture", "StateRecord")),
                rng.choice((1, 2)),
            )
            for _ in range(3)
        ),
    ]


def second_thoughts(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Upstream the backups are not equally far. The manager that would go on with the lowest, and has frozen
    the instances that are tainted by that, dies with it; the next one finds that nobody is tainted."""
    up = first(graph)
    at = rng.uniform(0.1, span)
    return [
        hold(max(at - 0.15, 0.0), "StateRecord", f"op:{up}", f"backup:{up}", 0.3, 0.5),
        kill(at - 0.001, "leader", "Propose", rng.choice((1, 1, 2)), also=(kill(0.0, f"lowest:{up}"),)),
        kill(at, f"primary:{up}"),
    ]


def late_freeze(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A manager dies with the backup that it would go on with (`second_thoughts`), and its Freeze comes when
    its attempt is long over."""
    up = first(graph)
    at = rng.uniform(0.2, span / 4)
    return [
        hold(max(at - 0.15, 0.0), "StateRecord", f"op:{up}", f"backup:{up}", 0.3, 0.5),
        hold(at - 0.001, "Freeze", "leader", f"op:{last(graph)}", 1.8, 0.2),
        flushed(at + 0.05, "leader", also=(kill(0.0, f"lowest:{up}"),)),
        kill(at, f"primary:{up}"),
    ]


def two_minds(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Two managers recover at once: one does not reach the lowest backup and would keep more. Its Fence comes
    after the other one's."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.6, span)
    return [
        hold(0.0, "StateRecord", f"op:{up}", f"backup:{up}", 0.4, span),
        Fault(at - 0.5, "cut", "leader", f"lowest:{up}", span_s=1.5),
        hold(at - 0.3, "Deliver", f"op:{up}", f"op:{down}", 0.3, 0.6),
        hold(at - 0.1, "Fence", "leader", f"op:{down}", 0.1, 0.5),
        Fault(at - 0.01, "slow-etcd", span_s=0.6, amount=rng.choice((40.0, 100.0))),
        flushed(at, f"primary:{up}"),
    ]


def out_of_reach(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream the primary dies and its backup is cut off until its lease is gone: the set counts as lost,
    and recoveries upstream need not ask it. What that backup holds has become orphan when it is back."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.1, 0.4)
    return [
        hold(at - 0.1, "StateRecord", f"op:{up}", f"op:{up}", 4.0, span),
        Fault(
            at - 0.001,
            "isolate-last",
            f"backup:{down}",
            trigger=rng.choice(("FreezeAnswer", "ProbeAnswer")),
            span_s=2.8,
        ),
        kill(at, f"primary:{down}"),
        kill(at + rng.uniform(0.5, 2.6), f"primary:{up}"),
    ]


def unleased(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup's lease has expired, though it lives and follows; its primary dies, and the managers do not
    see it."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful])
    return [
        Fault(0.0, "cut-etcd", f"backup:{name}", span_s=span),
        Fault(1.0, "deaf-to-managers", f"primary:{name}", span_s=1.5),
        Fault(1.0, "none", "leader", trigger="Propose", also=(kill(0.0, f"primary:{name}"),)),
        kill(2.1, f"primary:{name}"),
    ]


def planned(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners leave gracefully, one after the other, and nothing else happens."""
    names = [f"primary:{op.name}" for op in graph.data.operators]
    return [Fault(span * (0.1 + 0.4 * number), "drain", rng.choice(names)) for number in range(2)]


def connecting(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Instances have just started: each direction of each connection stands a little later, and to a manager
    whose watch lags the topology comes from a peer, before the registration of who is named in it."""
    return [
        Fault(0.0, "connecting", span_s=span, amount=rng.choice((0.02, 0.1, 0.15))),
        Fault(0.0, "slow-watch", "any:manager", span_s=span, amount=rng.choice((10.0, 30.0, 100.0))),
        *planned(rng, graph, span),
    ]


def slow_exit(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Instances that have handed over everything take a while to end, and are registered meanwhile."""
    return [
        Fault(0.0, "slow-exit", span_s=span, amount=rng.choice((0.1, 0.2))),
        *planned(rng, graph, span),
    ]


def slots_pass(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners of slots leave gracefully, and commits take their time: requests come while one is under way,
    those of the shard that numbers slower among them."""
    drains = [
        Fault(span * (0.1 + 0.4 * number), "drain", f"primary:{stateless(rng, graph)}") for number in range(2)
    ]
    return [Fault(0.0, "slow-etcd", span_s=span + 0.3, amount=rng.choice((10.0, 40.0))), *drains]


def successor_dies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary is to end; its successor dies as it is being named."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful])
    at = rng.uniform(0, span)
    return [
        Fault(
            at - 0.001,
            "none",
            f"primary:{name}",
            trigger="Propose",
            count=rng.choice((1, 2)),
            also=(kill(0.0, f"backup:{name}"),),
        ),
        Fault(at, "drain", f"primary:{name}"),
    ]


def both_end(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its only backup are told to end at almost the same time, while commits take long, or are
    heard of late."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful])
    at = rng.uniform(0.1, span)
    kind, amount = rng.choice(
        (("slow-etcd", 40.0), ("slow-etcd", 150.0), ("slow-watch", 50.0), ("none", 0.0))
    )
    return [
        Fault(at - 0.02, kind, f"backup:{name}", span_s=rng.choice((0.1, 0.5)), amount=amount),
        Fault(at, "drain", f"primary:{name}"),
        Fault(at + rng.choice((0.0, 0.001, 0.004, 0.01, 0.05)) * rng.random(), "drain", f"backup:{name}"),
    ]


def rollout(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Every instance of operators without state is told to end at almost the same time, as when pods are
    replaced: requests overtake each other on branches, and each operator has begun others."""
    names = [op.name for op in graph.data.operators if not op.stateful]
    at = rng.uniform(0.05, span)
    spread_s = rng.choice((0.002, 0.01, 0.03))
    late = [
        hold(at - 0.05 * rng.random(), "Deliver", "", f"op:{name}", rng.choice((0.02, 0.05, 0.1)), 0.03)
        for name in rng.sample(names, min(len(names), 2))
    ]
    return late + [Fault(at + spread_s * rng.random(), "drain", f"primary:{name}") for name in names]


def log_successor_dies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A frontend hands its shard over, and its successor dies; or both are to end, and then one dies."""
    at = rng.uniform(0, span)
    if rng.random() < 0.3:
        return [
            Fault(at, "drain", "backup:F"),
            Fault(at + 0.1 * rng.random(), "drain", "primary:F"),
            kill(at + 0.3 * rng.random(), "primary:F"),
        ]
    return [
        Fault(
            at - 0.001,
            "none",
            "primary:F",
            trigger="Propose",
            count=rng.choice((1, 2)),
            also=(kill(0.0, "backup:F"),),
        ),
        Fault(at, "drain", "primary:F"),
    ]


def both_leave(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a shard and its only follower are to end at nearly the same time, while etcd, its watch or
    the operators are slow."""
    at = rng.uniform(0.05, span / 2)
    roles = rng.sample(("primary:F", "backup:F"), 2)
    faults = [
        Fault(at, "drain", roles[0]),
        Fault(at + rng.choice((0.0, 0.002, 0.02, 0.2)) * rng.random(), "drain", roles[1]),
    ]
    faults += [
        Fault(0.0, "slow-watch", role, span_s=span + 0.3, amount=rng.choice((10.0, 100.0, 1000.0)))
        for role in roles
        if rng.random() < 0.6
    ]
    if rng.random() < 0.6:
        faults.append(
            Fault(
                max(at - 0.01, 0.0),
                "slow-etcd",
                span_s=rng.choice((0.1, 0.6)),
                amount=rng.choice((10.0, 40.0, 200.0)),
            )
        )
    if rng.random() < 0.6:
        faults.append(hold(at, "Deliver", "", "op:F", rng.choice((0.3, 1.0)), 0.5))
    return faults


def short_log(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A follower lags behind its owner and the other follower; the owner dies, and then the one that took
    over."""
    at = rng.uniform(0.05, span / 2)
    return [
        hold(max(at - 0.1, 0.0), "LogAppend", "primary:F", "backup:F", 0.5, 0.2),
        flushed(at, "primary:F"),
        *(kill(at + rng.uniform(0.1, 0.5), "primary:F") for _ in range(2)),
    ]


def late_log(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What a dead owner had said to its followers comes when another one owns the shard; then that one
    dies."""
    at = rng.uniform(0.05, span / 2)
    return [
        hold(0.0, "LogAppend", "op:F", "op:F", rng.choice((0.01, 0.05, 0.2)), span + 0.3),
        flushed(at, "primary:F"),
        *(flushed(at + rng.uniform(0.1, 0.5), "primary:F") for _ in range(2)),
    ]


def unheard(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A join hears of topologies late; one of its in-edges brings what a dead primary made, the other what
    its successor makes."""
    names = {op.name: op for op in graph.data.operators}
    up = first(graph)
    slow = rng.choice(names[up].successors)
    join = names[slow].successors[0]
    return [
        Fault(0.0, "slow-watch", f"primary:{join}", span_s=span + 0.3, amount=1000.0),
        lose(0.0, "TopologyNews|Heartbeat", "", f"op:{join}", span + 0.3),
        hold(0.0, "Deliver", f"op:{up}", f"op:{slow}", 0.1, span + 0.3),
        *(
            flushed(
                rng.uniform(0, span),
                f"primary:{up}",
                rng.choice(("Capture", "StateRecord", "")),
                rng.choice((1, 2)),
            )
            for _ in range(3)
        ),
    ]


def slow_receivers(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out is replaced unawares, and its receivers hear of it late: only the successor's
    question fences it."""
    op = fan_out(graph)
    at = rng.uniform(0, span)
    faults = [Fault(at, "cut-managers", f"primary:{op.name}", span_s=0.8)]
    for target in op.targets:
        faults.append(
            Fault(max(at - 0.01, 0.0), "slow-watch", f"primary:{target}", span_s=1.0, amount=1000.0)
        )
        faults.append(lose(max(at - 0.01, 0.0), "TopologyNews|Heartbeat", "", f"op:{target}", 1.0))
        faults.append(hold(at, "Deliver", f"op:{op.name}", f"op:{target}", rng.choice((0.2, 0.4)), 0.8))
    return faults


def joins_twice(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary alone goes back by itself while somebody joins; what that one has acknowledged before comes
    after."""
    up = first(graph)
    at = rng.uniform(0, span / 4)
    return [
        kill(at, f"backup:{up}"),
        hold(at + 0.001, "RecordAck", f"op:{up}", f"op:{up}", 0.4, span),
        hold(at + 0.5, "StateCopy", f"op:{up}", f"op:{up}", 0.6, span),
        *(
            Fault(at + later, "kill-model-alone", f"primary:{up}", trigger="Capture")
            for later in (0.5, 0.7, 0.9)
        ),
        *(kill(at + 0.8 + 0.05 * step, f"primary:{up}") for step in range(12)),
    ]


def pending_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream has no backup and goes back while what upstream did is pending; then upstream fails over,
    and that is gone."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0, span / 4)
    return [
        hold(at, "StateRecord", f"op:{up}", f"op:{up}", rng.choice((0.4, 1.0)), span + 0.3),
        hold(at, "StateCopy", f"op:{down}", f"op:{down}", 1.0, span + 0.3),
        kill(at, f"backup:{down}"),
        *(
            Fault(
                at + rng.uniform(0.02, 0.2),
                "kill-model-alone",
                f"primary:{down}",
                trigger=rng.choice(("Capture", "Capture", "")),
            )
            for _ in range(2)
        ),
        *(flushed(at + rng.uniform(0.2, span), f"primary:{up}") for _ in range(2)),
    ]


def reported_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream has no backup and has told to what it could go back; before that is committed it hears that
    what it had of others is durable."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0, span / 4)
    dies = sorted(at + rng.uniform(0.1, span) for _ in range(2))
    return [
        hold(at, "StateCopy", f"op:{down}", f"op:{down}", 1.0, span + 0.3),
        kill(at, f"backup:{down}"),
        hold(at, "Durable", "", f"op:{down}", rng.choice((0.01, 0.03)), span + 0.3),
        Fault(at + 0.08, "slow-etcd", span_s=span + 0.2, amount=rng.choice((20.0, 40.0))),
        *(hold(moment - 0.015, "StateRecord", f"op:{up}", f"op:{up}", 0.5, 0.03) for moment in dies),
        *(flushed(moment, f"primary:{up}") for moment in dies),
    ]


def early_ask(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup dies, and its replacement hears that it is named before its primary does: it asks too
    early."""
    op = stateful(rng, graph)
    at = rng.uniform(0, span / 4)
    return [
        Fault(
            max(at - 0.01, 0.0), "slow-watch", f"primary:{op}", span_s=3.0, amount=rng.choice((50.0, 200.0))
        ),
        lose(max(at - 0.01, 0.0), "TopologyNews|Heartbeat", "", f"op:{op}", 3.0),
        kill(at, f"backup:{op}"),
    ]


def replaced_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Models downstream die, so their requests run alone; meanwhile upstream fails over, and downstream goes
    back with all its instances alive."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0, span / 4)
    dies = sorted(at + rng.uniform(0.02, span) for _ in range(4))
    return [
        hold(at, "StateRecord", f"op:{up}", f"op:{up}", 0.05, span + 0.3),
        *(Fault(moment, "kill-model-alone", f"primary:{down}") for moment in dies),
        *(kill(moment + rng.uniform(0.0, 0.05), f"primary:{up}") for moment in dies),
    ]


def silent_primary(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out dies between two deliveries. The receiver of the first leads a set; its answer
    to the successor is lost. Its follower answers, gets the record of what its leader made of the value, and
    takes over: that one dies before the successor has heard from it."""
    op = fan_out(graph)
    holders = [name for name in op.targets if name in SINKS or graph.operators[name].stateful]
    taker = rng.choice(holders)
    at = rng.uniform(0.05, span)
    set_of = FRONTEND if taker in SINKS else taker
    record = "LogAppend" if set_of == FRONTEND else "StateRecord"
    lag = rng.choice((0.05, 0.1, 0.2, 0.4))
    dies = flushed(lag * rng.uniform(0.7, 1.6), f"primary:{set_of}")
    return [
        hold(max(at - 0.01, 0.0), record, f"primary:{set_of}", f"op:{set_of}", lag, 0.1),
        lose(max(at - 0.01, 0.0), "SlotAnswer", f"primary:{set_of}", f"op:{op.name}", 2 * lag),
        flushed(at, f"primary:{op.name}", "Deliver", op.targets.index(taker) + 2, also=(dies,)),
    ]


def tainted_lives(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Upstream a primary dies, and downstream the state is tainted. The replica that is to lead that state
    dies between its answer and the commit: then the tainted primary, which lives, has all that is left of the
    state."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.1, span)
    return [
        hold(max(at - 0.15, 0.0), "StateRecord", f"op:{up}", f"op:{up}", rng.choice((0.3, 1.0)), 0.3),
        kill_successor(at - 0.001, down, rng.choice((1, 1, 1, 2))),
        flushed(at, f"primary:{up}", rng.choice(("", "Capture", "StateRecord"))),
    ]


def second_backup(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary dies. Of its two backups the one that is to have the set dies between its answer and the
    commit."""
    op = stateful(rng, graph)
    at = rng.uniform(0.1, span)
    faults = [kill_successor(at - 0.001, op, rng.choice((1, 1, 2))), flushed(at, f"primary:{op}")]
    if rng.random() < 0.5:
        faults.append(hold(at - 0.001, "FreezeAnswer", f"backup:{op}", "", 0.03, 0.3))
    return faults


def kill_successor(at: float, op: str, count: int) -> Fault:
    """A backup dies as the leader is about to propose."""
    return Fault(at, "none", "leader", trigger="Propose", count=count, also=(kill(0.0, f"backup:{op}"),))


def adopted_orphan(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The successor of a fan-out takes a value over from a receiver. What that stems from is an orphan soon,
    or is already, unknown to who tells it."""
    op, up = fan_out(graph), first(graph)
    at = rng.uniform(0.05, span)
    faults = [
        hold(max(at - 0.1, 0.0), "StateRecord", f"op:{up}", f"op:{up}", 0.5, 0.2),
        flushed(at, f"primary:{op.name}", "Deliver", rng.choice((2, 2, 4))),
        flushed(at + rng.choice((0.0, 0.01, 0.05, 0.2)) * rng.random(), f"primary:{up}"),
    ]
    if rng.random() < 0.6:
        deaf = [f"op:{target}" for target in op.targets if target not in SINKS]
        faults += [
            Fault(at - 0.001, "slow-watch", f"primary:{name[3:]}", span_s=0.6, amount=500.0) for name in deaf
        ]
        faults += [lose(at - 0.001, "TopologyNews|Heartbeat", "", name, 0.6) for name in deaf]
    return faults


def copied_inputs(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Only one receiver of a fan-out, a state, has received a value. Its backup dies, and another one joins
    by copying; then its primary and the owner of the fan-out die together: only the copy tells of the
    value."""
    op = fan_out(graph)
    taker = rng.choice([name for name in op.targets if name not in SINKS and graph.operators[name].stateful])
    at = rng.uniform(0.1, span / 4)
    dies = at + rng.uniform(0.5, 1.0)
    faults = [
        lose(
            at - 0.05, "Deliver", f"op:{op.name}", "op:F" if name in SINKS else f"op:{name}", dies - at + 0.05
        )
        for name in op.targets
        if name != taker
    ]
    return [
        *faults,
        kill(at, f"backup:{taker}"),
        flushed(dies, f"primary:{taker}"),
        flushed(dies, f"primary:{op.name}"),
    ]


def handed_slot(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A fan-out's receiver hands a slot over with what it has not executed; the owner of the fan-out dies
    before it has sent that to the successor, and so does each instance that has passed the value on. The
    former owner of the slot is left to tell."""
    op = fan_out(graph)
    plain = [name for name in op.targets if name not in SINKS and not graph.operators[name].stateful]
    holder = rng.choice(plain)
    at = rng.uniform(0.0, span / 4)
    dies = [flushed(rng.uniform(0.002, 0.01), f"primary:{op.name}")]
    dies += [
        flushed(dies[0].at + 0.004 * rng.random(), f"primary:{name}") for name in plain if name != holder
    ]
    gap = lose(0.0, "Deliver", f"op:{op.name}", f"op:{holder}", 0.05)
    return [
        flushed(at, f"primary:{holder}"),
        Fault(at + 0.02, "none", f"primary:{holder}", trigger="Propose", also=(gap, *dies)),
    ]


def replied_only(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Of a fan-out's receivers only the frontend has received a value: it has replied, or fed it back. Then
    the owner of the fan-out dies, and with it the frontend that has: another one owns the log."""
    op = fan_out(graph)
    at = rng.uniform(0.05, span)
    faults = [
        lose(max(at - 0.05, 0.0), "Deliver", f"op:{op.name}", f"op:{name}", 0.1)
        for name in op.targets
        if name not in SINKS
    ]
    faults.append(flushed(at + 0.001, f"primary:{op.name}"))
    if rng.random() < 0.6:
        faults.append(flushed(at + 0.01 * rng.random(), "primary:F"))
    return faults


def inconsistent_fan_out(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out dies between two deliveries, and then who got the first, after it has passed it
    on."""
    op = fan_out(graph)
    faults = []
    for _ in range(3):
        at = rng.uniform(0, span)
        taker = f"primary:{op.targets[0]}"
        dies = tuple(flushed(rng.uniform(0.0005, 0.01), taker, rng.choice(("", "Deliver"))) for _ in range(2))
        faults.append(flushed(at, f"primary:{op.name}", "Deliver", rng.choice((2, 2, 4)), also=dies))
    return faults


def dies_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary without backup is out of the managers' reach: nobody can stand in for it."""
    name = rng.choice([*(op.name for op in graph.data.operators if op.stateful), "F"])
    at = rng.uniform(0, span / 4)
    return [
        kill(at, f"backup:{name}"),
        hold(at, "StateCopy|LogCopy", "", "", 0.6, span),
        Fault(
            at + 0.25,
            rng.choice(("cut-managers", "isolate-last", "deaf-to-managers")),
            f"primary:{name}",
            span_s=0.8,
        ),
    ]


def last_copy(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its backup are cut off until their leases are gone; the backup is back first, stands in
    for the primary, and dies at once. What that primary kept is all there is, and part of it is pending:
    upstream a record is late, and then its primary dies."""
    up = first(graph)
    op = rng.choice((last(graph), last(graph), up))
    at = rng.uniform(0.1, 0.4)
    return [
        Fault(0.0, "successors-die"),
        hold(at - 0.1, "StateRecord", f"op:{up}", f"op:{up}", 7.0 if op != up else 0.0, span),
        Fault(at, rng.choice(("isolate-last", "pause-last")), f"primary:{op}", span_s=2.9),
        Fault(at, "isolate-last", f"backup:{op}", span_s=2.1),
        Fault(at, "cut-etcd", f"backup:{op}", span_s=3.4),
        *(kill(at + rng.uniform(3.0, 3.4), f"primary:{up}") for _ in range(2)),
    ]


def hung_holder(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The backups of a set die, and before others have copied its state its primary hangs for so long that
    the state is called lost. Then it wakes up: the newest version, which nobody else has, goes on without a
    person."""
    name = rng.choice([*(op.name for op in graph.data.operators if op.stateful), "F"])
    at = rng.uniform(0.2, 0.8)
    return [
        hold(at - 0.1, "StateCopy|LogCopy", "", "", 7.0, span),
        *(kill(at + 0.001 * number, f"backup:{name}") for number in range(3)),
        Fault(
            at + 0.3,
            rng.choice(("pause-last", "isolate-last")),
            f"primary:{name}",
            span_s=rng.uniform(3.0, 6.0),
        ),
    ]


def unregistered_holder(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """As `hung_holder`, but who wakes up does not reach etcd for longer than a hang is waited for. It
    answers, so its state is not given up, though policy lets lost ones begin again."""
    name = stateful(rng, graph)
    at = rng.uniform(0.2, 0.8)
    return [
        hold(at - 0.1, "StateCopy|LogCopy", "", "", 16.0, span),
        Fault(at - 0.05, "cut-etcd", f"primary:{name}", span_s=15.0),
        *(kill(at + 0.001 * number, f"backup:{name}") for number in range(3)),
        Fault(
            at + 0.3,
            rng.choice(("pause-last", "isolate-last")),
            f"primary:{name}",
            span_s=rng.uniform(3.0, 5.0),
        ),
    ]


def all_hang(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Everybody who has a state hangs, each for another while, and gets a successor; lost states begin again
    where policy says so, but a hang is no death."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful])
    at = rng.uniform(0.2, 0.8)
    return [
        *(
            Fault(
                at, rng.choice(("pause-last", "isolate-last")), f"{role}:{name}", span_s=rng.uniform(4.0, 6.0)
            )
            for role in ("primary", "backup", "backup")
        ),
        *(Fault(at + 0.5, "start", what=name) for _ in range(2)),
    ]


def handed_unawares(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary hands its set over and is cut off before it hears of that. Its successor drops it, and
    managers name it joiner."""
    op = stateful(rng, graph)
    at = rng.uniform(0.1, span)
    cut = Fault(
        at + rng.uniform(0.00002, 0.001),
        rng.choice(("isolate-late", "pause-late")),
        f"primary:{op}",
        span_s=rng.uniform(0.4, 0.8),
        way=3,
    )
    return [Fault(at, "drain", f"primary:{op}"), cut]


def apart(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A machine is cut off for so long that its manager has given up all others, and they have gone on."""
    return [
        Fault(rng.uniform(0.3, 0.8), "apart", "leader" if rng.random() < 0.5 else "any:manager", span_s=2.5)
    ]


def apart_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A manager's machine, with nobody else on it, is cut off."""
    return [replace(fault, kind="apart-alone") for fault in apart(rng, graph, span)]


def dies_among_starved(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Everybody waits for CPU, and some die: what refuses connections is replaced all the same."""
    names = [f"primary:{op.name}" for op in graph.data.operators] + ["primary:F", "leader"]
    return [
        Fault(0.0, "starvation", span_s=span),
        *(kill(rng.uniform(0, span), rng.choice(names)) for _ in range(3)),
    ]


def last_copy_busy(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The last copy of a state (`last_copy`), in the middle of requests: outputs of the operator come late,
    so that the requests that it has consumed are not complete."""
    op = stateful(rng, graph)
    at = rng.uniform(1.0, 1.4)
    return [
        Fault(0.0, "successors-die"),
        hold(0.0, "Deliver", f"op:{op}", "", 7.0, span),
        Fault(at, rng.choice(("isolate-last", "pause-last")), f"primary:{op}", span_s=2.9),
        Fault(at, "isolate-last", f"backup:{op}", span_s=2.1),
        Fault(at, "cut-etcd", f"backup:{op}", span_s=3.4),
    ]


def long_away(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of what stands behind a stateful operator hears of no topology, while that operator fails
    over time and again."""
    up = first(graph)
    behind = next(op.name for op in graph.data.operators if op.name == graph.operators[up].successors[0])
    return [
        Fault(0.0, "cut-etcd", f"primary:{behind}", span_s=span),
        lose(0.0, "TopologyNews|Heartbeat", "", f"op:{behind}", span),
        *(
            flushed(0.02 + 0.04 * step, f"primary:{up}", rng.choice(("", "Capture", "StateRecord")))
            for step in range(int(span / 0.04))
        ),
    ]


def etcd_long_away(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """etcd does not answer for long; meanwhile a backup dies, and others are to end: what is wanted of etcd
    must not pile up."""
    op = stateful(rng, graph)
    return [
        Fault(0.1, "etcd-away", span_s=span - 0.5),
        kill(0.2, f"backup:{op}"),
        Fault(0.4, "drain", f"op:{stateless(rng, graph)}"),
        Fault(rng.uniform(0.3, 0.8), "drain", f"primary:{rng.choice((op, 'F'))}"),
    ]


LATE: dict[str, Scenario] = {
    "late-news": Scenario(
        "what comes of a successor before its topology waits for that, and not until it is sent again",
        (*CHAINS, "single", "router", "diamond-combine"),
        late_news,
        span_s=0.4,
        calls_from_s=LATE_NEWS_FROM_S,
        replaced_s=limits.replaced_slowly_s,
        answers_s=limits.told_late_s,
        unprotected=WhenUnprotected.CONTINUE,
        quick=True,
    ),
    "stale-acks": Scenario("acknowledgements of replaced values", ("relay", "prism"), stale_acks),
    "second-thoughts": Scenario(
        "a second manager decides otherwise", ("pair", "sandwich"), second_thoughts, backups=2
    ),
    "late-freeze": Scenario(
        "a Freeze whose attempt is over",
        ("pair", "sandwich"),
        late_freeze,
        backups=2,
        span_s=2.5,
        settles_s=1.2,
    ),
    "two-minds": Scenario("two managers, two ends", ("pair",), two_minds, backups=2, span_s=1.2),
    "out-of-reach": Scenario(
        "what is held becomes orphan while its holder is away",
        ("pair", "sandwich"),
        out_of_reach,
        backups=1,
        span_s=3.2,
    ),
    "unleased": Scenario("a backup without lease", ("single", "pair"), unleased, backups=1, span_s=2.3),
    "planned": Scenario(
        "graceful ends, and nothing else",
        ("chain", "pair", "fan-stateless", "fan-stateful"),
        planned,
        once=True,
    ),
    "slots-pass": Scenario(
        "slots move while commits are slow",
        ("sandwich", "fan-stateless", "router", "feedback", "relay"),
        slots_pass,
        shards=2,
        once=True,
    ),
    "slow-exit": Scenario(
        "graceful ends take a while",
        ("chain", "router", "sandwich", "fan-stateless"),
        slow_exit,
        once=True,
        replaced=0,
    ),
    "connecting": Scenario(
        "connections stand one after the other; nobody dies",
        (*CHAINS, *FANS, "single"),
        connecting,
        once=True,
        replaced=0,
    ),
    "successor-dies": Scenario(
        "who is to have a set dies", ("single", "pair", "sandwich"), successor_dies, backups=1
    ),
    "rollout": Scenario(
        "all operators without state hand their slots over together",
        ("fan-stateless", "diamond-combine", "prism", "random"),
        rollout,
    ),
    "both-end": Scenario(
        "a primary and its backup are told to end together",
        ("single", "pair", "sandwich"),
        both_end,
        backups=1,
        epochs=5,
    ),
    "log-successor-dies": Scenario(
        "who is to have a shard dies", ("single", "pair"), log_successor_dies, frontends=2, shards=1
    ),
    "both-leave": Scenario(
        "who holds a shard is to end, all of them",
        ("single", "pair"),
        both_leave,
        frontends=2,
        shards=1,
        epochs=3,
    ),
    "short-log": Scenario(
        "a follower that lags behind", ("single", "pair"), short_log, frontends=3, shards=1
    ),
    "late-log": Scenario("entries of a dead owner", ("single", "pair"), late_log, frontends=3, shards=1),
    "unheard": Scenario("a join of two epochs", ("prism",), unheard),
    "slow-receivers": Scenario("only the successor's question fences its predecessor", FANS, slow_receivers),
    "joins-twice": Scenario(
        "an acknowledgement of the epoch before", ("single", "pair"), joins_twice, backups=1, span_s=1.2
    ),
    "pending-alone": Scenario(
        "gone back onto what is pending", ("pair", "sandwich"), pending_alone, backups=1
    ),
    "told-alone": Scenario(
        "more is durable than it was told to go back to",
        ("fan-stateful", "diamond-interleave", "diamond-combine"),
        reported_alone,
        backups=1,
    ),
    "early-ask": Scenario(
        "a joiner asks before its primary knows that it is named",
        ("single", "pair"),
        early_ask,
        backups=1,
        unprotected=WhenUnprotected.BLOCK,
        whole_s=limits.joins_s,
    ),
    "replaced-alone": Scenario(
        "replaced alive while it runs a suspect alone", ("sandwich", "chain"), replaced_alone, backups=2
    ),
    "silent-primary": Scenario(
        "a fan-out's owner dies, and who leads a receiver's set before it has answered",
        ("fan-stateful", "deep-fan", "fan-reply", "fan-stateful"),
        silent_primary,
    ),
    "tainted-lives": Scenario(
        "the successor of a tainted state dies before the commit",
        ("pair", "sandwich"),
        tainted_lives,
        backups=1,
    ),
    "second-backup": Scenario(
        "one of two backups dies before the commit", ("single", "pair"), second_backup, backups=2
    ),
    "adopted-orphan": Scenario(
        "a value that was taken over is an orphan", ("deep-fan", "deep-router"), adopted_orphan
    ),
    "copied-inputs": Scenario(
        "only a copy tells of a fan-out's value",
        ("fan-stateful", "deep-fan", "fan-reply"),
        copied_inputs,
        backups=1,
        span_s=2.0,
    ),
    "handed-slot": Scenario(
        "only who has handed a slot over tells of a fan-out's value", ("fan-stateless",), handed_slot
    ),
    "replied-only": Scenario(
        "only a frontend tells of a fan-out's value", ("fan-reply",), replied_only, frontends=2, shards=2
    ),
    "torn-fan": Scenario(
        "a fan-out's owner dies, and who received of it", ("fan-stateless",), inconsistent_fan_out
    ),
    "kept-alone": Scenario(
        "what a former primary kept is all there is", ("pair", "sandwich"), last_copy, backups=1, span_s=3.8
    ),
    "kept-busy": Scenario(
        "what a kept state has consumed runs once",
        ("single", "pair", "sandwich"),
        last_copy_busy,
        backups=1,
        span_s=4.8,
    ),
    "handed-unawares": Scenario(
        "a primary hands its set over and is cut off before it hears of that",
        (*CHAINS, "single"),
        handed_unawares,
    ),
    "apart": Scenario(
        "a machine returns, and its manager hears etcd before it hears others",
        CHAINS,
        apart,
        backups=2,
        frontends=3,
        span_s=5.0,
    ),
    "apart-alone": Scenario(
        "a machine with a manager alone returns, and hears etcd before it hears others",
        (*CHAINS, "fan-stateless", "single"),
        apart_alone,
        backups=2,
        frontends=3,
        span_s=5.0,
    ),
    "dies-among-starved": Scenario(
        "deaths on a machine with far too few cores", CHAINS, dies_among_starved, span_s=8.0
    ),
    "hung-holder": Scenario(
        "the last one who has a state hangs, and wakes up", CHAINS, hung_holder, span_s=7.5, keeps=True
    ),
    "unregistered-holder": Scenario(
        "the last one who has a state hangs, wakes up, and does not reach etcd for 10 s",
        CHAINS,
        unregistered_holder,
        span_s=16.0,
        restarts=True,
        keeps=True,
        replaced_s=3.0,
    ),
    "all-hang": Scenario(
        "everybody who has a state hangs, and policy lets lost ones begin again",
        CHAINS,
        all_hang,
        span_s=6.5,
        restarts=True,
        keeps=True,
    ),
    "long-away": Scenario(
        "ends that somebody has not heard of", ("sandwich", "relay"), long_away, backups=2, span_s=3.0
    ),
    "etcd-long-away": Scenario(
        "what is wanted of etcd while it is away",
        ("single", "pair", "sandwich"),
        etcd_long_away,
        backups=1,
        span_s=4.5,
    ),
    "dies-alone": Scenario("nobody could stand in", ("single", "pair"), dies_alone, backups=1, span_s=1.2),
}
"""By name, like the rows of the catalogue."""
