"""The logs that a revoked frontend brings along under a fresh id (protocol.md, section 6)."""

from hams_protocol.frontend.log import ShardLog
from hams_protocol.ids import InstanceId


class FormerLogs:
    """What a revoked frontend held, by shard, each in the epoch of its `ShardLog`."""

    __slots__ = ("instance", "logs")

    def __init__(self, instance: InstanceId, logs: dict[int, ShardLog]) -> None:
        self.instance = instance
        self.logs = logs
