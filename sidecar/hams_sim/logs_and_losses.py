"""Scenes for the rules of shards' logs and of losses: calls without keys, a shard whose policy is Block, sets
of which everybody dies."""

from random import Random

from hams_protocol.graph import Graph, WhenUnprotected
from hams_protocol.limits import checkpoint_wait_s
from hams_sim import limits
from hams_sim.faults import Fault
from hams_sim.scene import CHAINS, DEEP, Scenario, first, flushed, hold, kill, last, lose, stateful, stateless


def no_key(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Owners of shards die around calls without a key, which other frontends have forwarded to them; what was
    forwarded may come again."""
    kind, amount = rng.choice((("lossy", 0.02), ("lossy", 0.1), ("echo", 0.3)))
    moments = ("LogAppend", "LogAck", "NoteReply", "Completion", "ClientForwardAnswer", "")
    return [
        Fault(0.0, kind, span_s=span, amount=amount),
        *(
            rng.choice((kill, flushed))(
                rng.uniform(0, span), "primary:F", rng.choice(moments), rng.choice((1, 3, 6))
            )
            for _ in range(2)
        ),
    ]


def copied_log(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A follower dies, a fresh one copies the log of calls without keys whose answers are still on their way,
    and the owner dies: the copy counts."""
    return [
        hold(0.1, "ClientForwardAnswer", "", "", 2.0, span),
        Fault(0.1, "echo", span_s=span, amount=0.3),
        kill(rng.uniform(0.2, 0.4), "backup:F"),
        hold(0.3, "LogAppend", "op:F", "op:F", rng.choice((0.02, 0.1)), span),
        flushed(rng.uniform(0.8, span - 0.1), "primary:F"),
    ]


def reply_undone(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What replies stem from is slow to become durable. Then it is lost with its primary, and the owner of
    the shard dies as well, before or after that: nobody may be told what was logged meanwhile."""
    at = rng.uniform(0.06, span)
    return [
        Fault(at - 0.06, "slow-records", amount=rng.choice((0.03, 0.2)), span_s=0.6),
        kill(at, f"primary:{stateful(rng, graph)}", rng.choice(("", "StateRecord", "Capture")), 2),
        flushed(
            at + rng.uniform(-0.03, 0.1),
            "primary:F",
            rng.choice(("", "LogAppend", "NoteReply")),
            rng.choice((1, 2, 4)),
        ),
    ]


def reply_told(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The owner of a shard dies as it has released a reply, and its successor hears late that what that stems
    from is durable. Who has made it dies, too."""
    at = rng.uniform(0.02, span)
    return [
        hold(at, "Durable", "", "op:F", rng.choice((0.05, 0.3)), 0.5),
        flushed(at, "primary:F", rng.choice(("NoteReply", "ClientForwardAnswer")), rng.choice((1, 2, 4))),
        kill(at + rng.uniform(0.0, 0.05), f"primary:{stateless(rng, graph)}"),
    ]


def dropped_follower(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The only follower of a shard is cut off until its owner drops it; what it says comes late, and so does
    what etcd has decided."""
    at = rng.uniform(0.02, 0.2)
    cut_s = rng.choice((0.2, 0.3, 0.5))
    return [
        Fault(at, "cut", "primary:F", "backup:F", span_s=cut_s),
        Fault(at, "slow-watch", "primary:F", span_s=cut_s + 1.0, amount=1000.0),
        Fault(at, "slow-watch", "backup:F", span_s=cut_s + 1.0, amount=1000.0),
        Fault(at, "etcd-unknown", span_s=cut_s + 1.0, amount=rng.choice((0.3, 0.6))),
        hold(at, "TopologyNews|Heartbeat", "", "op:F", 0.8, cut_s + 0.6),
    ]


def all_frontends_die(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Every frontend dies at once: the logs are lost, and shards begin again without them."""
    return [Fault(rng.uniform(span / 4, span), "kill-all", "any:F")]


def all_members_die(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Every instance of a stateful operator dies at once. A record of it may be late, so that what is held is
    not all durable, and so may what it makes, so that what the newest checkpoint has consumed is not
    complete."""
    op = rng.choice((stateful(rng, graph), first(graph)))
    at = rng.uniform(span / 4, span)
    return [
        hold(
            max(at - 0.3, 0.0), "StateRecord|RecordAck", f"op:{op}", f"op:{op}", rng.choice((0.01, 0.1)), 0.3
        ),
        hold(0.0, "Deliver", f"op:{op}", "", rng.choice((0.0, 1.0)), span),
        Fault(at, "kill-all", f"set:{op}"),
    ]


def replaced_twice(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Every member of a set dies, and so do their replacements while they read what is on disk. Those that
    come last have their own time for that."""
    op = stateful(rng, graph)
    again_s = REPLACED_S + 1.6
    return [Fault(1.0, "kill-all", f"set:{op}"), Fault(again_s, "kill-all", f"any:{op}")]


def lost_early(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Every instance of a stateful operator dies before the first request, every frontend, or both. Nothing
    is lost by that, so no person need decide."""
    op = stateful(rng, graph)
    everybody = rng.choice(([f"set:{op}"], ["any:F"], [f"set:{op}", "any:F"]))
    return [Fault(0.3 * rng.random(), "kill-all", of) for of in everybody]


def lost_late(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """Every instance of a stateful operator dies when requests may have been logged: if one was, the state
    stays lost until a person decides."""
    op = stateful(rng, graph)
    at = rng.choice((0.0, 0.02, span / 2)) * rng.random()
    return [
        Fault(at, "kill-all", f"set:{op}"),
        *(Fault(at + wait_s, "decide", what=op) for wait_s in (3.0, 4.0, 5.0)),
    ]


def lost_unsaid(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """The first requests come while no frontend reaches etcd, so none can say that there are any, and every
    instance of a stateful operator dies: nothing may have been logged, as the state begins again."""
    op, away_s = stateful(rng, graph), 14.0
    return [
        Fault(0.0, "cut-etcd", "primary:F", span_s=away_s),
        Fault(0.0, "cut-etcd", "backup:F", span_s=away_s),
        Fault(rng.uniform(0.2, 0.5), "kill-all", f"set:{op}"),
        *(Fault(away_s + wait_s, "decide", what=op) for wait_s in (1.0, 2.0, 3.0)),
    ]


def primary_in_doubt(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A primary is cut off or dies; its lease runs out while managers are away, and a backup holds the state
    all the time."""
    op = stateful(rng, graph)
    at = rng.uniform(0.0, span / 2)
    return [
        Fault(at, "etcd-unknown", span_s=2.5, amount=0.7),
        Fault(at, rng.choice(("kill", "isolate")), f"primary:{op}", span_s=3.0),
    ]


def others_wait(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """What is durable upstream is not heard of downstream, so that backups there receive and wait; nobody
    downstream has a fault."""
    up, down = first(graph), last(graph)
    return [lose(0.1, "Durable|Heartbeat", f"op:{up}", f"op:{down}", span - 0.3)]


def stems_unsaid(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A state is lost and begins again from less than the one downstream has taken in. The primary of that
    one, the last to hear of it, dies before it says so; its backup has applied what stems from the loss."""
    up, down = first(graph), last(graph)
    at = rng.uniform(0.7, 1.1)
    return [
        hold(0.0, "StateRecord", f"op:{up}", f"op:{up}", 6.0, 6.0),
        Fault(at, "kill-all", f"set:{up}"),
        Fault(at, "slow-watch", f"primary:{down}", span_s=12.0, amount=1000.0),
        kill(at + 0.3, f"primary:{down}", "NoteLost"),
    ]


def follower_dies(rng: Random, graph: Graph, span: float) -> list[Fault]:
    """A follower of a shard dies as the last requests come: they wait until its owner has dropped it, for
    which it need not wait for a timer."""
    return [kill(rng.uniform(span / 2, span), "backup:F")]


REPLACED_S = checkpoint_wait_s + 1.0
"""The scene `replaced-twice` begins again only with those that come later than others would be waited for."""

LOGS_AND_LOSSES: dict[str, Scenario] = {
    "no-key": Scenario(
        "calls without keys while owners of shards die",
        ("single", "pair", "relay"),
        no_key,
        frontends=3,
        shards=1,
        keyless=True,
    ),
    "copied-log": Scenario(
        "a log that was copied counts",
        ("single", "relay"),
        copied_log,
        frontends=3,
        shards=1,
        span_s=1.4,
        keyless=True,
    ),
    "few-replies": Scenario(
        "calls without keys whose replies find no room, while owners of shards die",
        ("single", "pair", "relay"),
        no_key,
        frontends=3,
        shards=1,
        keyless=True,
        replies_kept=0,
    ),
    "few-replies-copied": Scenario(
        "a log that was copied knows calls without keys whose replies it has not",
        ("single", "relay"),
        copied_log,
        frontends=3,
        shards=1,
        span_s=1.4,
        keyless=True,
        replies_kept=2,
    ),
    "reply-undone": Scenario(
        "what a logged reply stems from is lost, and its owner dies",
        (*CHAINS, *DEEP, "router", "feedback"),
        reply_undone,
        frontends=3,
        shards=1,
    ),
    "reply-told": Scenario(
        "the owner of a shard and the maker of a value die as it is released",
        (*CHAINS, *DEEP, "relay", "siblings"),
        reply_told,
        frontends=3,
        shards=1,
    ),
    "dropped-follower": Scenario(
        "a shard under Block whose only follower is dropped",
        ("single", "pair", "relay"),
        dropped_follower,
        frontends=2,
        shards=1,
        span_s=1.2,
        unprotected=WhenUnprotected.BLOCK,
    ),
    "frontends-lost": Scenario(
        "every frontend dies", ("single", "chain", "feedback"), all_frontends_die, span_s=1.0, restarts=True
    ),
    "state-lost": Scenario("every member of a set dies", CHAINS, all_members_die, span_s=1.0, restarts=True),
    "replaced-twice": Scenario(
        "replacements die while they read checkpoints, and those that come last read slowly",
        CHAINS,
        replaced_twice,
        span_s=REPLACED_S + 2.0,
        restarts=True,
        replaced_s=REPLACED_S,
        reads_s=2.0,
        whole_s=limits.lost_recovers_s + REPLACED_S,
    ),
    "others-wait": Scenario(
        "healthy backups wait for what is durable elsewhere",
        ("pair", "sandwich"),
        others_wait,
        backups=1,
        frontends=2,
        span_s=7.0,
        epochs=1,
    ),
    "lost-early": Scenario(
        "everybody who holds a state or a log dies before the first request",
        CHAINS,
        lost_early,
        calls_from_s=6.0,
        whole_s=limits.lost_recovers_s,
    ),
    "lost-late": Scenario("a lost state that requests may have touched", CHAINS, lost_late, span_s=6.0),
    "lost-unsaid": Scenario(
        "a state that is lost before a frontend can say that there is a request",
        CHAINS,
        lost_unsaid,
        frontends=2,
        shards=1,
        span_s=18.0,
        whole_s=limits.lost_recovers_s,
    ),
    "stems-unsaid": Scenario(
        "who should say that a state stems from a loss dies",
        ("pair", "sandwich"),
        stems_unsaid,
        span_s=7.0,
        restarts=True,
    ),
    "follower-dies": Scenario(
        "a shard's follower dies", ("single", "pair", "relay"), follower_dies, frontends=2, shards=1
    ),
    "in-doubt": Scenario(
        "a primary is gone and a backup holds its state", CHAINS, primary_in_doubt, span_s=3.0
    ),
}
"""By name."""
