"""One shape of a graph takes over from another: where its records lie in etcd, and their bytes (ADR 0018).

What they mean, and what follows from them, is the core's (`hams_protocol.succession.records`). Below the
predecessor's prefix: `succession`; `quiet/<frontend>`; `ended`, written with the last step: from then on
nobody changes the predecessor's topology. A graph that is deleted has `ended`, too, with `NOBODY` for a
successor: an instance that must end need not hand over, and its frontends leave together
(`drained/<frontend>`, see `hams_sidecar.drained`). Below the successor's prefix: `follows`;
`waiting/<instance>`, a process that is there and has begun nothing; `taken/<instance>`.
"""

from typing import TypeVar

import msgspec

from hams_protocol.succession.records import Follows, Quiet, Succession, TakenOver
from hams_wire import records
from hams_wire.errors import UNDECODABLE

SUCCESSION = "succession"
ENDED = "ended"
NOBODY = b""
FOLLOWS = "follows"
QUIET = "quiet/"
WAITING = "waiting/"
TAKEN = "taken/"

Record = Succession | Quiet | Follows | TakenOver

R = TypeVar("R", Succession, Quiet, Follows, TakenOver)


def key(graph_uid: str, name: str) -> str:
    """Where a record lies: `name` is one of the words above, with the instance where it has one."""
    return f"{records.prefix_of(graph_uid)}{name}"


def encode(record: Record) -> bytes:
    """Bytes of a record."""
    return msgspec.json.encode(record)


def decode_succession(data: bytes) -> Succession:
    """The record in `data`. Raises MalformedRecord."""
    return _decoded(data, Succession)


def decode_quiet(data: bytes) -> Quiet:
    """The record in `data`. Raises MalformedRecord."""
    return _decoded(data, Quiet)


def decode_follows(data: bytes) -> Follows:
    """The record in `data`. Raises MalformedRecord."""
    return _decoded(data, Follows)


def decode_taken(data: bytes) -> TakenOver:
    """The record in `data`. Raises MalformedRecord."""
    return _decoded(data, TakenOver)


def _decoded(data: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise records.MalformedRecord(f"not a record of a succession: {error}") from None
