"""The frontend's part of the protocol (protocol.md, section 5): shard logs, admission, injection, sinks,
replies, completion."""

from hams_protocol.frontend.former import FormerLogs
from hams_protocol.frontend.machine import FrontendMachine
from hams_protocol.frontend.status import ShardStatus

__all__ = ["FormerLogs", "FrontendMachine", "ShardStatus"]
