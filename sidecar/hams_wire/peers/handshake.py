"""The greeting that opens a connection (proto/peers.md, section 3).

The dialling side sends its id, the id that it wants to reach and the versions of the contract that it speaks;
the other side picks the version, or rejects the connection and says why. Two neighbouring versions talk,
so that a rolling upgrade may mix them. Addresses are reused where instances are not: hence the name of the
wanted instance.
"""

from typing import Annotated, TypeVar

import msgspec

from hams_wire import limits
from hams_wire.errors import UNDECODABLE
from hams_wire.peers import frames
from hams_wire.peers.errors import BadFrame, ConnectionRejected, RejectReason

VERSION = 1
"""The version of the contract this code speaks."""

VERSION_OLDEST = 1
"""The oldest it still speaks."""

_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """First frame of a connection. `address` is where the sender can be reached itself. `visit`: it is no
    peer but a visitor (`visits.py`)."""

    graph: _Text
    sender: _Text
    target: _Text
    address: _Text
    oldest: int
    newest: int
    visit: bool = False


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer: both speak `version` from here on."""

    version: int


class Rejection(msgspec.Struct, frozen=True, array_like=True):
    """The other answer, also the last word before a connection is closed for a bad frame. `reason` is
    a `RejectReason`, perhaps of a newer version."""

    reason: int
    message: _Text


Greeting = TypeVar("Greeting", Hello, Welcome, Rejection)

_KINDS: dict[type, int] = {Hello: frames.HELLO, Welcome: frames.WELCOME, Rejection: frames.REJECTED}


def frame(greeting: Hello | Welcome | Rejection) -> bytes:
    """A greeting as a frame."""
    metadata = msgspec.msgpack.encode(greeting)
    return frames.pack(_KINDS[type(greeting)], 0, 0, len(metadata), 0) + metadata


def rejection(rejected: ConnectionRejected) -> bytes:
    """A rejection as a frame."""
    return frame(Rejection(int(rejected.reason), str(rejected)[:512]))


def read(expected: type[Greeting], kind: int, metadata: bytes) -> Greeting:
    """A received greeting. Raises ConnectionRejected if it is a rejection, BadFrame if it is none of the
    expected type."""
    try:
        if kind == frames.REJECTED:
            rejected = msgspec.msgpack.decode(metadata, type=Rejection)
            known = rejected.reason in set(RejectReason)
            reason = RejectReason(rejected.reason) if known else RejectReason.BAD_FRAME
            raise ConnectionRejected(reason, rejected.message)
        if kind != _KINDS[expected]:
            raise BadFrame(f"expected a greeting of type {_KINDS[expected]}, found type {kind}")
        return msgspec.msgpack.decode(metadata, type=expected)
    except UNDECODABLE as error:
        raise BadFrame(f"greeting: {error}") from error


def answer(hello: Hello, graph: str, instance: str) -> Welcome:
    """What the dialled side says. Raises ConnectionRejected."""
    if hello.graph != graph:
        raise ConnectionRejected(RejectReason.OTHER_GRAPH, f"this is graph {graph}, not {hello.graph}")
    if hello.target != instance:
        raise ConnectionRejected(RejectReason.OTHER_INSTANCE, f"this is {instance}, not {hello.target}")
    version = min(hello.newest, VERSION)
    if version < max(hello.oldest, VERSION_OLDEST):
        raise ConnectionRejected(
            RejectReason.NO_COMMON_VERSION,
            f"this side speaks versions {VERSION_OLDEST} to {VERSION}, not {hello.oldest} to {hello.newest}",
        )
    return Welcome(version)


assert limits.hello_bytes_max <= limits.staging_bytes, "a greeting is read in one piece"
