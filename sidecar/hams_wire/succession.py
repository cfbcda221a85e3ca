"""One shape of a graph takes over from another: what both write into etcd, and what can be read from it (ADR
0018).

Below the predecessor's prefix: `succession`, how far it has come, changed by compare-and-swap only;
`quiet/<frontend>`, what each of its frontends says of itself; `ended`, written with the last step: from then
on nobody changes the predecessor's topology. A graph that is deleted has `ended`, too, with `NOBODY` for a
successor: who is asked to end need not hand over, and its frontends leave together (`drained/<frontend>`, see
`hams_sidecar.drained`). Below the successor's prefix: `follows`, whose successor it is; `waiting/<instance>`,
who is there and has begun nothing; `taken/<instance>`, who has what it needs.

    hold    the predecessor's frontends keep new requests back and finish the open ones
    close   each of them has: from now on owners of shards admit nothing at all, and what is quiet then is
            quiet for good
    done    the successor serves, the predecessor never again; the point of no return
    back    the predecessor goes on as if nothing had been; this successor never serves

Pure: records in, verdicts out. Never: a verdict that rests on a clock.
"""

import enum
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology
from hams_wire import records
from hams_wire.errors import UNDECODABLE

Cut = tuple[tuple[str, int], ...]
"""The last entry of each shard's log: two equal ones mean that nothing was admitted in between."""

SUCCESSION = "succession"
ENDED = "ended"
NOBODY = b""
FOLLOWS = "follows"
QUIET = "quiet/"
WAITING = "waiting/"
TAKEN = "taken/"


class Phase(enum.StrEnum):
    """How far a succession has come; see the module."""

    HOLD = "hold"
    CLOSE = "close"
    DONE = "done"
    BACK = "back"


@frozen
class Succession:
    """The predecessor's record. `to`: the successor's uid, another one at each attempt. `tries`: which
    attempt this is for `asked`, the generation of the resource that asks for it. `why` it was taken back, and
    whether that makes another attempt `hopeless`."""

    to: str
    phase: Phase
    tries: int = 1
    asked: int = 0
    why: str = ""
    hopeless: bool = False


@frozen
class Quiet:
    """What a frontend says for the succession to `to`: no client waits here for anything that has begun.
    `closed`: and none is admitted any more; then `shards` are those that it owns and in which nothing is
    open: name, epoch, last entry."""

    to: str
    closed: bool = False
    shards: tuple[tuple[str, int, int], ...] = ()


@frozen
class Follows:
    """The successor's record: whose successor it is, and which operators begin with the predecessor's states.
    `done`: it has taken over."""

    uid: str
    kept: tuple[str, ...]
    done: bool = False


@frozen
class TakenOver:
    """What one instance of the successor has of the predecessor as it was at `cut`; an empty one: nothing, it
    came later. `loaded`: it is a primary, and its model holds the state. `refused`: why it cannot take it."""

    of: str
    cut: Cut = ()
    loaded: bool = False
    refused: str = ""


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


def cut_of(
    shards: Collection[str], topology: Topology, quiet: Mapping[InstanceId, Quiet], to: str
) -> Cut | None:
    """The predecessor at rest: every shard's owner has said, in its present epoch, that nothing is open and
    nothing is admitted. None: not yet."""
    ends: list[tuple[str, int]] = []
    for name in shards:
        roles = topology.find(name)
        said = None if roles.primary is None or roles.lost else quiet.get(roles.primary)
        if said is None or said.to != to or not said.closed:
            return None
        last = [at for shard, epoch, at in said.shards if shard == name and epoch == roles.epoch]
        if not last:
            return None
        ends.append((name, last[0]))
    return tuple(ends)


def all_hold(frontends: Collection[InstanceId], quiet: Mapping[InstanceId, Quiet], to: str) -> bool:
    """Whether every registered frontend of the predecessor holds back, and has nobody waiting for what has
    begun."""
    return bool(frontends) and all(name in quiet and quiet[name].to == to for name in frontends)


def _decoded(data: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise records.MalformedRecord(f"not a record of a succession: {error}") from None
