"""Scenes for single rules in which chosen messages come late, or not at all, while their senders die or are replaced.

The messages are chosen so that the rule is all that stands between them and a broken invariant.
"""

from random import Random

from hams_protocol.graph import Graph
from hams_sim.faults import Fault
from hams_sim.scene import FANS, Scenario, first, flushed, hold, kill, last, lose, stateful, stateless


def stale_acks(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Values are replaced, since upstream a primary dies; acknowledgements of the old ones come late, the new ones get lost."""
    return [
        hold(0.0, "TokenAcks", "", "", 0.2, span + 0.3),
        Fault(0.0, "lose-replaced", span_s=span + 0.3, what="Deliver"),
        *(flushed(rng.uniform(0, span), f"primary:{first(graph)}", rng.choice(("Capture", "StateRecord")), rng.choice((1, 2))) for _ in range(3)),
    ]


def second_thoughts(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Upstream the backups are not equally far. The manager that would go on with the lowest, and has frozen who is tainted by that, dies
    with it; the next one finds that nobody is tainted."""
    up = first(graph)
    at = rng.uniform(0.1, span)
    return [
        hold(max(at - 0.15, 0.0), "StateRecord", f"op:{up}", f"backup:{up}", 0.3, 0.5),
        kill(at - 0.001, "leader", "Propose", rng.choice((1, 1, 2)), also=(kill(0.0, f"lowest:{up}"),)),
        kill(at, f"primary:{up}"),
    ]


def late_freeze(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The same, and that manager's Freeze comes when its attempt is long over."""
    up = first(graph)
    at = rng.uniform(0.2, span / 4)
    return [
        hold(max(at - 0.15, 0.0), "StateRecord", f"op:{up}", f"backup:{up}", 0.3, 0.5),
        hold(at - 0.001, "Freeze", "leader", f"op:{last(graph)}", 1.8, 0.2),
        flushed(at + 0.05, "leader", also=(kill(0.0, f"lowest:{up}"),)),
        kill(at, f"primary:{up}"),
    ]


def two_minds(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Two managers recover at once: one does not reach the lowest backup and would keep more. Its Fence comes after the other one's."""
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
    """Downstream the primary dies and its backup is cut off until its lease is gone: the set counts as lost, and recoveries upstream need
    not ask it. What that backup holds has become orphan when it is back."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.1, 0.4)
    return [
        hold(at - 0.1, "StateRecord", f"op:{up}", f"op:{up}", 4.0, span),
        Fault(at - 0.001, "isolate-last", f"backup:{down}", trigger=rng.choice(("FreezeAnswer", "ProbeAnswer")), span_s=2.8),
        kill(at, f"primary:{down}"),
        kill(at + rng.uniform(0.5, 2.6), f"primary:{up}"),
    ]


def unleased(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup's lease has expired, though it lives and follows; its primary dies, and the managers do not see it."""
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


def heir_dies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary is to end; whoever is to have its set dies as that is being said."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful])
    at = rng.uniform(0, span)
    return [
        Fault(at - 0.001, "none", f"primary:{name}", trigger="Propose", count=rng.choice((1, 2)), also=(kill(0.0, f"backup:{name}"),)),
        Fault(at, "drain", f"primary:{name}"),
    ]


def both_end(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its only backup are told to end at almost the same time, while commits take long, or are heard of late."""
    name = rng.choice([op.name for op in graph.data.operators if op.stateful])
    at = rng.uniform(0.1, span)
    kind, amount = rng.choice((("slow-etcd", 40.0), ("slow-etcd", 150.0), ("slow-watch", 50.0), ("none", 0.0)))
    return [
        Fault(at - 0.02, kind, f"backup:{name}", span_s=rng.choice((0.1, 0.5)), amount=amount),
        Fault(at, "drain", f"primary:{name}"),
        Fault(at + rng.choice((0.0, 0.001, 0.004, 0.01, 0.05)) * rng.random(), "drain", f"backup:{name}"),
    ]


def log_heir_dies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The same with a frontend and its shard; or both are to end, and then one dies."""
    at = rng.uniform(0, span)
    if rng.random() < 0.3:
        return [Fault(at, "drain", "backup:F"), Fault(at + 0.1 * rng.random(), "drain", "primary:F"), kill(at + 0.3 * rng.random(), "primary:F")]
    return [
        Fault(at - 0.001, "none", "primary:F", trigger="Propose", count=rng.choice((1, 2)), also=(kill(0.0, "backup:F"),)),
        Fault(at, "drain", "primary:F"),
    ]


def both_leave(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a shard and its only follower are to end at nearly the same time, while etcd, its watch or the operators are slow."""
    at = rng.uniform(0.05, span / 2)
    roles = rng.sample(("primary:F", "backup:F"), 2)
    found = [Fault(at, "drain", roles[0]), Fault(at + rng.choice((0.0, 0.002, 0.02, 0.2)) * rng.random(), "drain", roles[1])]
    found += [Fault(0.0, "slow-watch", role, span_s=span + 0.3, amount=rng.choice((10.0, 100.0, 1000.0))) for role in roles if rng.random() < 0.6]
    if rng.random() < 0.6:
        found.append(Fault(max(at - 0.01, 0.0), "slow-etcd", span_s=rng.choice((0.1, 0.6)), amount=rng.choice((10.0, 40.0, 200.0))))
    if rng.random() < 0.6:
        found.append(hold(at, "Deliver", "", "op:F", rng.choice((0.3, 1.0)), 0.5))
    return found


def short_log(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A follower lags behind its owner and the other follower; the owner dies, and then the one that took over."""
    at = rng.uniform(0.05, span / 2)
    return [
        hold(max(at - 0.1, 0.0), "LogAppend", "primary:F", "backup:F", 0.5, 0.2),
        flushed(at, "primary:F"),
        *(kill(at + rng.uniform(0.1, 0.5), "primary:F") for _ in range(2)),
    ]


def late_log(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What a dead owner had said to its followers comes when another one owns the shard; then that one dies."""
    at = rng.uniform(0.05, span / 2)
    return [
        hold(0.0, "LogAppend", "op:F", "op:F", rng.choice((0.01, 0.05, 0.2)), span + 0.3),
        flushed(at, "primary:F"),
        *(flushed(at + rng.uniform(0.1, 0.5), "primary:F") for _ in range(2)),
    ]


def unheard(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A join hears of topologies late; one of its in-edges brings what a dead primary made, the other what its successor makes."""
    names = {op.name: op for op in graph.data.operators}
    up = first(graph)
    slow = rng.choice(names[up].successors)
    join = names[slow].successors[0]
    return [
        Fault(0.0, "slow-watch", f"primary:{join}", span_s=span + 0.3, amount=1000.0),
        lose(0.0, "TopologyNews|Heartbeat", "", f"op:{join}", span + 0.3),
        hold(0.0, "Deliver", f"op:{up}", f"op:{slow}", 0.1, span + 0.3),
        *(flushed(rng.uniform(0, span), f"primary:{up}", rng.choice(("Capture", "StateRecord", "")), rng.choice((1, 2))) for _ in range(3)),
    ]


def slow_receivers(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out is replaced unawares, and its receivers hear of it late: only the heir's question fences it."""
    op = next(op for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
    at = rng.uniform(0, span)
    found = [Fault(at, "cut-managers", f"primary:{op.name}", span_s=0.8)]
    for target in op.targets:
        found.append(Fault(max(at - 0.01, 0.0), "slow-watch", f"primary:{target}", span_s=1.0, amount=1000.0))
        found.append(lose(max(at - 0.01, 0.0), "TopologyNews|Heartbeat", "", f"op:{target}", 1.0))
        found.append(hold(at, "Deliver", f"op:{op.name}", f"op:{target}", rng.choice((0.2, 0.4)), 0.8))
    return found


def joins_twice(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary alone goes back by itself while somebody joins; what that one has acknowledged before comes after."""
    up = first(graph)
    at = rng.uniform(0, span / 4)
    return [
        kill(at, f"backup:{up}"),
        hold(at + 0.001, "RecordAck", f"op:{up}", f"op:{up}", 0.4, span),
        hold(at + 0.5, "StateCopy", f"op:{up}", f"op:{up}", 0.6, span),
        *(Fault(at + later, "kill-model-alone", f"primary:{up}", trigger="Capture") for later in (0.5, 0.7, 0.9)),
        *(kill(at + 0.8 + 0.05 * step, f"primary:{up}") for step in range(12)),
    ]


def pending_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream has no backup and goes back while what upstream did is pending; then upstream fails over, and that is gone."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0, span / 4)
    return [
        hold(at, "StateRecord", f"op:{up}", f"op:{up}", rng.choice((0.4, 1.0)), span + 0.3),
        hold(at, "StateCopy", f"op:{down}", f"op:{down}", 1.0, span + 0.3),
        kill(at, f"backup:{down}"),
        *(
            Fault(at + rng.uniform(0.02, 0.2), "kill-model-alone", f"primary:{down}", trigger=rng.choice(("Capture", "Capture", "")))
            for _ in range(2)
        ),
        *(flushed(at + rng.uniform(0.2, span), f"primary:{up}") for _ in range(2)),
    ]


def told_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Downstream has no backup and has told to what it could go back; before that is committed it hears that what it had of others is durable."""
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


def torn_fan(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a fan-out dies between two deliveries, and then who got the first, after it has passed it on."""
    op = next(op for op in graph.data.operators if not op.stateful and len(op.targets) > 1)
    found = []
    for _ in range(3):
        at = rng.uniform(0, span)
        taker = f"primary:{op.targets[0]}"
        dies = tuple(flushed(rng.uniform(0.0005, 0.01), taker, rng.choice(("", "Deliver"))) for _ in range(2))
        found.append(flushed(at, f"primary:{op.name}", "Deliver", rng.choice((2, 2, 4)), also=dies))
    return found


def dies_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary without backup is out of the managers' reach: nobody can stand in for it."""
    name = rng.choice([*(op.name for op in graph.data.operators if op.stateful), "F"])
    at = rng.uniform(0, span / 4)
    return [
        kill(at, f"backup:{name}"),
        hold(at, "StateCopy|LogCopy", "", "", 0.6, span),
        Fault(at + 0.25, rng.choice(("cut-managers", "isolate-last", "deaf-to-managers")), f"primary:{name}", span_s=0.8),
    ]


def kept_alone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary and its backup are cut off until their leases are gone; the backup is back first, stands in for the primary, and dies at
    once. What that primary kept is all there is, and part of it is pending: upstream a record is late, and then its primary dies."""
    up = first(graph)
    op = rng.choice((last(graph), last(graph), up))
    at = rng.uniform(0.1, 0.4)
    return [
        Fault(0.0, "heirs-die"),
        hold(at - 0.1, "StateRecord", f"op:{up}", f"op:{up}", 7.0 if op != up else 0.0, span),
        Fault(at, rng.choice(("isolate-last", "pause-last")), f"primary:{op}", span_s=2.9),
        Fault(at, "isolate-last", f"backup:{op}", span_s=2.1),
        Fault(at, "cut-etcd", f"backup:{op}", span_s=3.4),
        *(kill(at + rng.uniform(3.0, 3.4), f"primary:{up}") for _ in range(2)),
    ]


def kept_busy(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The same in the middle of requests: what the operator makes comes late, so that what it has consumed is not complete."""
    op = stateful(rng, graph)
    at = rng.uniform(1.0, 1.4)
    return [
        Fault(0.0, "heirs-die"),
        hold(0.0, "Deliver", f"op:{op}", "", 7.0, span),
        Fault(at, rng.choice(("isolate-last", "pause-last")), f"primary:{op}", span_s=2.9),
        Fault(at, "isolate-last", f"backup:{op}", span_s=2.1),
        Fault(at, "cut-etcd", f"backup:{op}", span_s=3.4),
    ]


def long_away(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of what stands behind a stateful operator hears of no topology, while that operator fails over time and again."""
    up = first(graph)
    behind = next(op.name for op in graph.data.operators if op.name == graph.operators[up].successors[0])
    return [
        Fault(0.0, "cut-etcd", f"primary:{behind}", span_s=span),
        lose(0.0, "TopologyNews|Heartbeat", "", f"op:{behind}", span),
        *(flushed(0.02 + 0.04 * step, f"primary:{up}", rng.choice(("", "Capture", "StateRecord"))) for step in range(int(span / 0.04))),
    ]


def etcd_long_away(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """etcd does not answer for long; meanwhile a backup dies, and others are to end: what is wanted of etcd must not pile up."""
    op = stateful(rng, graph)
    return [
        Fault(0.1, "etcd-away", span_s=span - 0.5),
        kill(0.2, f"backup:{op}"),
        Fault(0.4, "drain", f"op:{stateless(rng, graph)}"),
        Fault(rng.uniform(0.3, 0.8), "drain", f"primary:{rng.choice((op, 'F'))}"),
    ]


LATE: dict[str, Scenario] = {
    "stale-acks": Scenario("acknowledgements of replaced values", ("relay", "prism"), stale_acks),
    "second-thoughts": Scenario("a second manager decides otherwise", ("pair", "sandwich"), second_thoughts, backups=2),
    "late-freeze": Scenario("a Freeze whose attempt is over", ("pair", "sandwich"), late_freeze, backups=2, span_s=2.5, settles_s=1.2),
    "two-minds": Scenario("two managers, two ends", ("pair",), two_minds, backups=2, span_s=1.2),
    "out-of-reach": Scenario("what is held becomes orphan while its holder is away", ("pair", "sandwich"), out_of_reach, backups=1, span_s=3.2),
    "unleased": Scenario("a backup without lease", ("single", "pair"), unleased, backups=1, span_s=2.3),
    "planned": Scenario("graceful ends, and nothing else", ("chain", "pair", "fan-stateless", "fan-stateful"), planned, once=True),
    "heir-dies": Scenario("who is to have a set dies", ("single", "pair", "sandwich"), heir_dies, backups=1),
    "both-end": Scenario("a primary and its backup are told to end together", ("single", "pair", "sandwich"), both_end, backups=1, epochs=5),
    "log-heir-dies": Scenario("who is to have a shard dies", ("single", "pair"), log_heir_dies, frontends=2, shards=1),
    "both-leave": Scenario("who holds a shard is to end, all of them", ("single", "pair"), both_leave, frontends=2, shards=1, epochs=3),
    "short-log": Scenario("a follower that lags behind", ("single", "pair"), short_log, frontends=3, shards=1),
    "late-log": Scenario("entries of a dead owner", ("single", "pair"), late_log, frontends=3, shards=1),
    "unheard": Scenario("a join of two epochs", ("prism",), unheard),
    "slow-receivers": Scenario("only the heir's question fences its predecessor", FANS, slow_receivers),
    "joins-twice": Scenario("an acknowledgement of the epoch before", ("single", "pair"), joins_twice, backups=1, span_s=1.2),
    "pending-alone": Scenario("gone back onto what is pending", ("pair", "sandwich"), pending_alone, backups=1),
    "told-alone": Scenario(
        "more is durable than it was told to go back to", ("fan-stateful", "diamond-interleave", "diamond-combine"), told_alone, backups=1
    ),
    "torn-fan": Scenario("a fan-out's owner dies, and who received of it", ("fan-stateless",), torn_fan),
    "kept-alone": Scenario("what a former primary kept is all there is", ("pair", "sandwich"), kept_alone, backups=1, span_s=3.8),
    "kept-busy": Scenario("what a kept state has consumed runs once", ("single", "pair", "sandwich"), kept_busy, backups=1, span_s=4.8),
    "long-away": Scenario("ends that somebody has not heard of", ("sandwich", "relay"), long_away, backups=2, span_s=3.0),
    "etcd-long-away": Scenario("what is wanted of etcd while it is away", ("single", "pair", "sandwich"), etcd_long_away, backups=1, span_s=4.5),
    "dies-alone": Scenario("nobody could stand in", ("single", "pair"), dies_alone, backups=1, span_s=1.2),
}
"""By name, like the rows of the catalogue."""
