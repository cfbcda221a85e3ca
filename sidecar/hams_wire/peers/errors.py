"""What can go wrong between two instances, as types.

    WireError
    └── PeerError
        ├── BadFrame      the peer sent what the contract does not allow; its connection is closed    peer
        no ├── Turned        the peer, or we, turned a connection away at the greeting                   peer
        retryable ├── NoRoom        no memory for an arriving payload now; the message counts as lost
        ours    retryable └── NotSendable   a message of ours is over a bound or of an unknown type
        ours    no

None of them changes protocol state: the core lives with lost messages.
"""

import enum

from hams_wire.errors import Guilty, WireError


class PeerError(WireError):
    """Something between two instances."""


class BadFrame(PeerError):
    """Bytes that the contract (proto/peers.md) does not allow: what was expected, what was found."""


class Why(enum.IntEnum):
    """Why a connection is turned away; on the wire."""

    OTHER_GRAPH = 1
    OTHER_INSTANCE = 2
    NO_COMMON_VERSION = 3
    FULL = 4
    BAD_FRAME = 5
    STRANGER = 6


class Turned(PeerError):
    """A connection was turned away: by which side and why."""

    retryable = True

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why


class NoRoom(PeerError):
    """A payload factory has no memory for what arrives. The message is dropped, its sender sends again."""

    guilty = Guilty.OURS
    retryable = True


class NotSendable(PeerError):
    """A message that may not leave: over a bound of `limits.py`, of a class without a code, or with a number
    that has no encoding."""

    guilty = Guilty.OURS
