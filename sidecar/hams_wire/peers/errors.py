"""What can go wrong between two instances, as types.

    WireError
    └── PeerError                  whose fault it is, and whether it may be tried again:
        ├── BadFrame               peer's, no: it sent what the contract does not allow, and is cut off
        ├── ConnectionRejected     peer's, yes: it, or we, rejected a connection at the greeting
        ├── NoRoom                 ours, yes: no memory for an arriving payload; the message counts as lost
        └── NotSendable            ours, no: a message of ours is over a bound or of an unknown type

None of them changes protocol state: the core lives with lost messages.
"""

import enum

from hams_wire.errors import ResponsibleParty, WireError


class PeerError(WireError):
    """Something between two instances."""


class BadFrame(PeerError):
    """Bytes that the contract (proto/peers.md) does not allow: what was expected, what was found."""


class RejectReason(enum.IntEnum):
    """Reasons for which a connection is rejected; their numbers are on the wire."""

    OTHER_GRAPH = 1
    OTHER_INSTANCE = 2
    NO_COMMON_VERSION = 3
    FULL = 4
    BAD_FRAME = 5
    STRANGER = 6


class ConnectionRejected(PeerError):
    """A connection was rejected: by which side and why."""

    retryable = True

    def __init__(self, reason: RejectReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def reason_of(error: "BadFrame | ConnectionRejected") -> ConnectionRejected:
    """The rejection by which a connection ends, as its peer is to read it."""
    if isinstance(error, ConnectionRejected):
        return error
    return ConnectionRejected(RejectReason.BAD_FRAME, str(error))


class NoRoom(PeerError):
    """A payload factory has no memory for what arrives. The message is dropped, its sender sends again."""

    responsible = ResponsibleParty.OURS
    retryable = True


class NotSendable(PeerError):
    """A message that may not leave: over a bound of `limits.py`, of a class without a code, or with a number
    that has no encoding."""

    responsible = ResponsibleParty.OURS
