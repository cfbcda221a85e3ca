"""Memory for payloads that one frontend maps. The limit of its pod (`hams_operator.plan.pods`) has room for
it."""

from hams_protocol.frozen import frozen
from hams_protocol.graph import FrontendSpec
from hams_sidecar import limits

REPLY_POOLS = 2
"""A shard keeps replies to calls with a key and without one apart, each kind within `repliesKeptBytes`."""


@frozen
class FrontendMemory:
    """`nbytes` are mapped. `reserve_nbytes` of them are for what peers send: entries of logs, and replies,
    without which no request would ever make room."""

    nbytes: int
    reserve_nbytes: int


def frontend_memory(spec: FrontendSpec) -> FrontendMemory:
    """What the bounds of a graph's frontend allow for: kept replies and open requests of every shard, as each
    frontend may hold the logs of all, and once more what its own clients send.

    The reserve is no part of what kept replies may fill: they go only as newer ones come.
    """
    replies = REPLY_POOLS * spec.shards * spec.replies_kept_bytes
    requests = max(spec.shards * spec.max_in_flight_bytes, limits.sink_output_bytes_max)
    nbytes = max(limits.frontend_arena_bytes_min, replies + requests + spec.max_in_flight_bytes)
    share = (nbytes - replies) // limits.frontend_arena_reserve_parts
    return FrontendMemory(nbytes, max(limits.sink_output_bytes_max, share))
