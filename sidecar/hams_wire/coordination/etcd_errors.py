"""What an answer of etcd, or the lack of one, says about the outcome of a call. Pure.

The rule: a refusal counts as "not applied" only if it is on the list of those that etcd gives before it
proposes anything, or that its state machine gives instead of applying. Everything else is `Unknown`; a text
that a later etcd changes falls on that safe side. Want of space is told before a write is proposed and of one
that was applied, in the same words: `NoSpace` is an `Unknown`. Source: api/v3rpc/rpctypes/error.go,
server/etcdserver/{v3_server,apply}.go and api/v3rpc/{interceptor,quota}.go of etcd 3.4 to 3.6.
"""

import grpc
import grpc.aio

from hams_wire.errors import (
    AccessDenied,
    AuthExpired,
    CoordinationError,
    InvalidCall,
    LeaseGone,
    Lost,
    NoSpace,
    Unavailable,
    Unknown,
)


class Forgotten(InvalidCall):
    """The revision asked for is compacted."""


class RevisionNotReached(InvalidCall):
    """The revision asked for is above the newest one that etcd has."""


class AlreadyThere(InvalidCall):
    """A user or role of that name exists."""


class NotThere(InvalidCall):
    """No user or role has that name."""


class LeaderChanged(Unknown):
    """The member has another leader than soon after the write was sent to it: the former one may have taken
    the write along. The member itself says so only after five seconds and two election timeouts (etcd 3.6,
    `ReqTimeout`)."""


_REFUSED: dict[str, type[CoordinationError]] = {
    "etcdserver: no leader": Unavailable,
    "etcdserver: not capable": Unavailable,
    "etcdserver: too many requests": Unavailable,
    "etcdserver: mvcc: database space exceeded": NoSpace,
    "etcdserver: requested lease not found": LeaseGone,
    "etcdserver: invalid auth token": AuthExpired,
    "etcdserver: revision of auth store is old": AuthExpired,
    "auth: revision in header is old": AuthExpired,  # the same where etcd 3.5 lets its own words through
    "etcdserver: user name is empty": AuthExpired,
    "etcdserver: permission denied": AccessDenied,
    "etcdserver: authentication failed, invalid user ID or password": AccessDenied,
    "etcdserver: user name not found": AccessDenied,
    "etcdserver: user name already exists": AlreadyThere,
    "etcdserver: role name already exists": AlreadyThere,
    "etcdserver: role name not found": NotThere,
    "etcdserver: key is not provided": InvalidCall,
    "etcdserver: duplicate key given in txn request": InvalidCall,
    "etcdserver: too many operations in txn request": InvalidCall,
    "etcdserver: request is too large": InvalidCall,
    "etcdserver: mvcc: required revision has been compacted": Forgotten,
    "etcdserver: mvcc: required revision is a future revision": RevisionNotReached,
}

# gRPC's own words for a call that never got a connection (retries are switched off, so it was never sent).
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed")

GARBLED = "an answer that etcd does not give: expected a message of its API"
"""Whatever answered, it was not heard: what became of the call is not known."""

AUTH_DISABLED = "etcdserver: authentication is not enabled"


def classify(error: grpc.aio.AioRpcError, call: str, member: str) -> CoordinationError:
    """The outcome of a unary call or of opening a stream; `call` and `member` go into the text."""
    details = error.details() or ""
    text = f"{call} at {member}: {error.code().name}: {details}"
    refused = _REFUSED.get(details)
    if refused is not None:
        return refused(text)
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT):
        return Lost(text)
    if (
        error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        and "message larger than max" in details
        and details.startswith("grpc: received")
    ):
        return InvalidCall(text)  # the server refused to read it
    return Unknown(text)
