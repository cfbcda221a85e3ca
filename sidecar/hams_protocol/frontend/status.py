"""One shard as an instance sees it, for status and metrics."""

from hams_protocol.frozen import frozen


@frozen
class ShardStatus:
    """`role` is `primary`, `backup` or `joining`."""

    name: str
    role: str
    epoch: int
    last: int
    committed: int
    open_requests: int
    stored_replies: int
    frozen: bool
