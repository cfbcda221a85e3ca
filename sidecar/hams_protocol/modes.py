"""Replication modes as strategies (protocol.md, section 9): one code base, chosen per graph.

A machine asks its policy; it never compares mode names. Further modes are further rows.
"""

from hams_protocol.frozen import frozen, replaced
from hams_protocol.graph import Graph, Mode


@frozen
class ModePolicy:
    """What a mode does.

    `replicates`: states and logs are shipped to replicas. `retains`: tokens are kept for a new owner.
    `waits_for_durable`: replies are held until what they depend on is durable. `holds_outputs`: so are all
    outputs of a state, which leave once its version is durable. `stops_to_copy`: no batch begins before the
    state of the one before is captured. `replays`: no state is shipped. Every so many batches it goes to a
    store, which makes it durable; a new primary runs again what came after, as tokens and replies tell
    (`determinants`). `reply_entry_early`: a reply's entry goes into the log as soon as its tokens are there,
    with what it depends on, and counts once that is durable (ADR 0040); only where `waits_for_durable`.
    `by_receipt`: a backup answers for what it has received, and what is durable is told by the vector (ADR
    0013). No mode does, but in trials.
    """

    replicates: bool
    retains: bool
    waits_for_durable: bool
    holds_outputs: bool = False
    stops_to_copy: bool = False
    replays: bool = False
    reply_entry_early: bool = False
    by_receipt: bool = False

    @staticmethod
    def of(mode: Mode) -> "ModePolicy":
        """The policy of a mode."""
        return _POLICIES[mode]


_POLICIES = {
    Mode.NON_STOP: ModePolicy(replicates=True, retains=True, waits_for_durable=True),
    Mode.BUFFERED_OUTPUTS: ModePolicy(
        replicates=True, retains=True, waits_for_durable=True, holds_outputs=True
    ),
    Mode.STOP_AND_COPY: ModePolicy(replicates=True, retains=True, waits_for_durable=True, stops_to_copy=True),
    Mode.REMUS: ModePolicy(
        replicates=True, retains=True, waits_for_durable=True, holds_outputs=True, stops_to_copy=True
    ),
    Mode.LINEAGE_STASH: ModePolicy(
        replicates=True, retains=True, waits_for_durable=True, stops_to_copy=True, replays=True
    ),
    Mode.NONE: ModePolicy(replicates=False, retains=False, waits_for_durable=False),
}


def try_by_receipt(on: bool) -> None:
    """Whether `NonStop` goes by receipt in what this process builds from now on. For trials (ADR 0013): no
    graph can ask for it."""
    _POLICIES[Mode.NON_STOP] = replaced(_POLICIES[Mode.NON_STOP], by_receipt=on)


def is_run_again(graph: Graph, name: str) -> bool:
    """Whether a set may lose all its members and nothing is lost, as what came after its newest checkpoint is
    run again. No shard's log is."""
    return name in graph.operators and ModePolicy.of(graph.data.mode).replays
