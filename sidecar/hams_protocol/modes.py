"""What a graph's replication mode switches on and off in the core (protocol.md, section 9).

Every machine asks its `ModePolicy`, never the mode itself: a further mode is a further row here.
"""

from hams_protocol.frozen import frozen
from hams_protocol.graph import Mode


@frozen
class ModePolicy:
    """One mode's rules.

    `replicates`: states and logs go to backups, and an acknowledgement set decides. `retains`: tokens are kept and sent again until
    their request completes. `waits_for_durable`: replies and completions wait for the states they depend on.
    """

    mode: Mode
    replicates: bool
    retains: bool
    waits_for_durable: bool

    @staticmethod
    def of(mode: Mode) -> "ModePolicy":
        """The rules of a mode."""
        return _POLICIES[mode]


_POLICIES = {
    Mode.NON_STOP: ModePolicy(Mode.NON_STOP, replicates=True, retains=True, waits_for_durable=True),
    Mode.NONE: ModePolicy(Mode.NONE, replicates=False, retains=False, waits_for_durable=False),
}
