"""Scenes about who is waited for, and for how long: somebody hangs or answers one side only, and those that
judge were stopped themselves (protocol.md, sections 2, 6 and 7.2)."""

from random import Random

from hams_protocol.graph import FRONTEND, Graph, WhenUnprotected
from hams_protocol.limits import hung_wait_s
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.scene import CHAINS, Scenario, hold, kill, stateful

HANG_S = (3.5, 5.0)
"""A hang that ends the lease of who hangs, so that its state is called lost, and that is waited for."""


def stopped_managers(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The last one who has a state hangs. All managers are stopped about when they call it lost, and wake up
    after the time for which a hang is waited for. Meanwhile its holder has come back, and nobody has read
    that."""
    name, at = stateful(rng, graph), rng.uniform(0.2, 0.8)
    stopped_at = at + rng.uniform(2.0, 3.6)
    return [
        hold(at - 0.1, "StateCopy|LogCopy", "", "", span, span),
        *(kill(at + 0.001 * number, f"backup:{name}") for number in range(3)),
        Fault(
            at + 0.3,
            rng.choice(("pause-last", "isolate-last")),
            f"primary:{name}",
            span_s=rng.uniform(*HANG_S),
        ),
        Fault(stopped_at, "pause-all", "leader", span_s=rng.uniform(hung_wait_s, span - stopped_at)),
    ]


def all_stop(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Whoever has one state stops or is cut off, one after the other, and so do managers, frontends and the
    others, each for another while. Nobody dies, so what is lost comes back."""
    name = stateful(rng, graph)
    others = [FRONTEND, *(op.name for op in graph.data.operators if op.name != name)]
    faults = []
    for role in ("primary", "backup", "backup"):
        at, kind = rng.uniform(0.2, 1.2), rng.choice(("pause-last", "isolate-last"))
        faults.append(Fault(at, kind, f"{role}:{name}", span_s=rng.uniform(1.0, HANG_S[1])))
    for _ in range(4):
        kind = rng.choice(("pause-last", "isolate-last", "cut-etcd", "deaf-to-managers"))
        victim = rng.choice(("leader", "any:manager", *(f"any:{other}" for other in others)))
        faults.append(Fault(rng.uniform(0.2, 6.0), kind, victim, span_s=rng.uniform(0.3, HANG_S[1])))
    return faults


def crosswise(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Two states have lost their backups. Who is to join gets its copy late, and may be called as a keeper of
    the other one meanwhile, since keepers die, too. Then the primaries die together: each successor may have
    to fetch from the other."""
    names = [op.name for op in graph.data.operators if op.stateful]
    at = rng.uniform(0.05, 0.3)
    faults = [kill(at, f"backup:{name}") for name in names]
    faults += [
        hold(at, "StateCopy", f"op:{name}", f"op:{name}", rng.choice((1.0, 3.0)), span) for name in names
    ]
    at += limits.replaced_slowly_s + rng.uniform(0.2, 0.6)
    faults += [kill(at, f"keeper:{name}") for name in names if rng.random() < 0.7]
    at += rng.uniform(0.1, 0.8)
    faults += [kill(at + rng.choice((0.0, 0.001, 0.1)), f"primary:{name}") for name in names]
    kind = rng.choice(("kill-last", "isolate", "pause", "deaf-to-managers"))
    victim = rng.choice([f"{role}:{name}" for name in names for role in ("primary", "keeper")])
    faults.append(Fault(at + rng.uniform(0.0, 1.0), kind, victim, span_s=rng.choice((0.3, 1.5))))
    return faults


def one_side(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A backup dies, and its primary does not reach who is to join, or is not heard by it, though managers
    reach both: another one joins, though nothing ever breaks. Nobody is served meanwhile (Block)."""
    name = stateful(rng, graph)
    at = rng.uniform(0.05, 0.3)
    joins_s = at + limits.replaced_slowly_s
    return [
        kill(at, f"backup:{name}"),
        hold(at, "StateCopy", f"op:{name}", f"op:{name}", 1.0, joins_s + 1.0),
        *(
            Fault(
                joins_s + wait_s,
                "stall",
                f"primary:{name}",
                f"backup:{name}",
                span,
                way=rng.choice((1, 2, 3)),
            )
            for wait_s in (0.5, 0.8)
        ),
        Fault(joins_s + 1.0, "start", what=name),
    ]


def storm(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Whoever has states, keeps them, judges or answers dies, hangs, is cut off from some, or is to end; more
    than is tolerated, so that states are lost and begin again."""
    names = [FRONTEND, *(op.name for op in graph.data.operators)]
    states = [op.name for op in graph.data.operators if op.stateful]
    faults = [hold(0.0, "StateCopy|LogCopy", "", "", rng.choice((0.0, 0.2, 1.0)), span)]
    for _ in range(rng.choice((4, 8, 12))):
        kind = rng.choice(
            (
                "kill-last",
                "pause-last",
                "isolate-last",
                "cut-etcd",
                "deaf-to-managers",
                "drain",
                "stall",
                "cut",
            )
        )
        mostly = rng.choice(("primary", "primary", "backup", "keeper")) + f":{rng.choice(states)}"
        other = rng.choice(("leader", "any:manager", *(f"any:{name}" for name in names)))
        victim = mostly if rng.random() < 0.7 else other
        length = rng.choice((0.3, 1.0, 3.0, 6.0)) * (0.5 + rng.random())
        faults.append(Fault(rng.uniform(0.1, 8.0), kind, victim, other, length, way=rng.choice((1, 2, 3))))
    return faults


WAITS: dict[str, Scenario] = {
    "stopped-managers": Scenario(
        "the last one who has a state hangs, and managers are stopped until long after it is back",
        CHAINS,
        stopped_managers,
        span_s=18.0,
        restarts=True,
        keeps=True,
        replaced_s=limits.replaced_slowly_s,
    ),
    "all-stop": Scenario(
        "everybody who has a state stops, and so do many others; nobody dies",
        (*CHAINS, "single"),
        all_stop,
        span_s=9.0,
        restarts=True,
        keeps=True,
        replaced_s=limits.replaced_slowly_s,
    ),
    "crosswise": Scenario(
        "two states without backups, whose primaries die together",
        ("pair", "sandwich", "siblings"),
        crosswise,
        backups=1,
        span_s=6.5,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.CONTINUE,
        restarts=True,
    ),
    "storm": Scenario(
        "more faults than are tolerated, and hangs",
        (*CHAINS, "single", "siblings", "fan-stateful"),
        storm,
        span_s=10.0,
        restarts=True,
        replaced_s=1.0,
        whole_s=limits.converge_after_s,
    ),
    "one-side": Scenario(
        "a primary does not reach who joins, and managers do",
        ("single", "pair"),
        one_side,
        backups=1,
        span_s=45.0,
        replaced_s=limits.replaced_slowly_s,
        unprotected=WhenUnprotected.BLOCK,
    ),
}
"""By name."""
