"""What a frontend may have to hold, by the bounds of its graph."""

from typing import Protocol

REPLY_POOLS = 2
"""A shard keeps replies to calls with a key and without one apart, each kind within `repliesKeptBytes`."""


class FrontendBounds(Protocol):
    """A frontend's section of a graph file, or of a compiled graph."""

    @property
    def shards(self) -> int:
        """How many logs there are."""

    @property
    def max_in_flight_bytes(self) -> int:
        """Open requests of one shard."""

    @property
    def replies_kept_bytes(self) -> int:
        """Kept replies of one shard, of each kind."""


def held_bytes(bounds: FrontendBounds) -> int:
    """Bytes of open requests and kept replies of all shards: each frontend may hold the logs of all."""
    return bounds.shards * (bounds.max_in_flight_bytes + REPLY_POOLS * bounds.replies_kept_bytes)
