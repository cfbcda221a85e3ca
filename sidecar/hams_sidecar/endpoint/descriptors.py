"""How many connections a frontend takes, so that the limit of open files leaves room for everything else:
peers, etcd, tokens, histories."""

import resource

from hams_protocol.frozen import frozen
from hams_sidecar.endpoint import limits


@frozen
class ConnectionBounds:
    """`http` and `grpc`: connections that are served. `refused`: further ones over HTTP that may stay open
    until their clients have read why."""

    http: int
    grpc: int
    refused: int


def connection_bounds() -> ConnectionBounds:
    """The bounds of this process, as its limit of open files is now."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return bounds_within(None if files == resource.RLIM_INFINITY else files)


def bounds_within(files: int | None) -> ConnectionBounds:
    """The bounds under a limit of so many open files; None: there is no limit."""
    most = (limits.connections_max, limits.grpc_connections_max, limits.refused_connections_max)
    if files is None:
        return ConnectionBounds(*most)
    shares = (limits.http_files_share, limits.grpc_files_share, limits.refused_files_share)
    return ConnectionBounds(
        *(min(bound, int(files * share)) for bound, share in zip(most, shares, strict=True))
    )
