"""Memory for payloads that one frontend maps. The limit of its pod (`hams_operator.plan.pods`) has room for
it."""

from hams_protocol.graph import FrontendSpec
from hams_sidecar import limits


def frontend_arena_bytes(spec: FrontendSpec) -> int:
    """Bytes that the bounds of a graph's frontend allow for: open requests and kept replies of every shard,
    as each frontend may hold the logs of all, and once more what its own clients send."""
    logs = spec.shards * (spec.max_in_flight_bytes + spec.replies_kept_bytes)
    return max(limits.frontend_arena_bytes_min, logs + spec.max_in_flight_bytes)
