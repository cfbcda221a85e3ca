"""Replication modes as strategies (protocol.md, section 9): one code base, chosen per graph.

A machine asks its policy; it never compares mode names. Further modes are further rows.
"""

from hams_protocol.frozen import frozen
from hams_protocol.graph import Mode


@frozen
class ModePolicy:
    """What a mode does: ship states and logs to replicas, retain tokens for a new owner, hold replies until
    they are durable."""

    replicates: bool
    retains: bool
    waits_for_durable: bool

    @staticmethod
    def of(mode: Mode) -> "ModePolicy":
        """The policy of a mode."""
        return _POLICIES[mode]


_POLICIES = {
    Mode.NON_STOP: ModePolicy(replicates=True, retains=True, waits_for_durable=True),
    Mode.NONE: ModePolicy(replicates=False, retains=False, waits_for_durable=False),
}
