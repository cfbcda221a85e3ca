"""What can go wrong on the wire, as types: the responsible party, and whether the call may be made again.

    WireError                 responsible, retryable
    └── CoordinationError     talking to etcd
        ├── Lost              nothing was sent: no member could be reached                    peer  retryable
        ├── Unavailable       etcd answered that it cannot serve now; nothing was applied     peer  retryable
        ├── Unknown           sent, outcome unknown: read again, never repeat blindly         peer  no
        │   └── NoSpace       etcd is over its quota: a person has to repair it               peer  no
        ├── NotApplied        a comparison failed; carries what was found                     ours  no
        ├── LeaseGone         the lease named by the call exists no more; nothing applied     ours  no
        ├── AuthExpired       the token, or what was known of the user, is old; not applied   peer  retryable
        ├── AccessDenied      unknown user, wrong password, missing permission                ours  no
        ├── InvalidCall       etcd refuses the call itself (too large, malformed)             ours  no
        └── Closed            the client was closed by its owner                              ours  no

`retryable` says that repeating is safe and may help: it is never true where the first attempt may have taken
effect.
"""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from hams_wire.coordination.port import KeyValue


UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
"""What a decoder raises on bytes that are not what they should be: a text that is none and a nesting without
end have errors of their own."""


class ResponsibleParty(enum.StrEnum):
    """The party whose fault an error is."""

    OURS = "ours"
    PEER = "peer"
    MODEL = "model"
    CLIENT = "client"


class WireError(Exception):
    """Root of everything that goes wrong between two processes of the house, or between one of them and
    etcd."""

    responsible: ClassVar[ResponsibleParty] = ResponsibleParty.PEER
    retryable: ClassVar[bool] = False


class CoordinationError(WireError):
    """An answer of etcd other than success, or none."""


class Lost(CoordinationError):
    """No member of etcd could be reached in time. Nothing was sent, so nothing was applied."""

    retryable = True


class Unavailable(CoordinationError):
    """Etcd was reached but cannot serve now: no leader, overload. A write was not applied."""

    retryable = True


class Unknown(CoordinationError):
    """A write was sent and its outcome is not known: it may take effect now, later, or never. The caller
    reads again and decides."""


class NotApplied(CoordinationError):
    """A comparison failed: nothing was changed. `current` is what the compared keys hold, in the order of the
    comparisons, None where absent."""

    responsible = ResponsibleParty.OURS

    def __init__(self, message: str, current: Sequence["KeyValue | None"]) -> None:
        super().__init__(message)
        self.current = tuple(current)


class LeaseGone(CoordinationError):
    """The lease that a write was to be bound to has expired or was revoked. Nothing was applied."""

    responsible = ResponsibleParty.OURS


class NoSpace(Unknown):
    """Etcd is over its space quota and refuses writes until a person has repaired it; reads and renewals
    still work.

    The write that goes over it may have been applied: etcd looks once more when it applies it, and then says
    so of what it has done (etcd 3.6, server/etcdserver/apply, `quotaApplierV3`).
    """


class AuthExpired(CoordinationError):
    """The token was refused, or users and roles were changed meanwhile. Nothing was applied; the next call
    authenticates anew."""

    retryable = True


class AccessDenied(CoordinationError):
    """Etcd does not know the user, the password is wrong, or a permission is missing."""

    responsible = ResponsibleParty.OURS


class InvalidCall(CoordinationError):
    """Etcd refuses the call as such, for example because it is too large. Nothing was applied."""

    responsible = ResponsibleParty.OURS


class Closed(CoordinationError):
    """The client was closed by its owner."""

    responsible = ResponsibleParty.OURS
