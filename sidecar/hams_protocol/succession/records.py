"""What both shapes of a graph write into etcd while one takes over from the other, and what follows from it.

Below the predecessor's prefix: `Succession`, how far it has come, changed by compare-and-swap only; a `Quiet`
of each of its frontends. Below the successor's prefix: `Follows`, whose successor it is; a `TakenOver` of
each process that has taken something over.

    hold    the predecessor's frontends keep new requests back and finish the open ones
    close   each of them has: from now on owners of shards admit nothing at all, and what is quiet then is
            quiet for good
    done    the successor serves, the predecessor never again; the point of no return
    back    the predecessor goes on as if nothing had been; this successor never serves

Never: a verdict that rests on a clock.
"""

import enum
from collections.abc import Collection, Mapping

from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology

Cut = tuple[tuple[str, int], ...]
"""The last entry of each shard's log: two equal ones mean that nothing was admitted in between."""


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
