"""How many connections a frontend takes, so that the limit of open files leaves room for everything else:
peers, etcd, tokens, histories."""

import resource

from hams_protocol.frozen import frozen

connections_max = 16_384
"""Open HTTP connections of one frontend; further ones are told (503)."""

refused_connections_max = 1024
"""Of those so many at a time: beyond them a connection is reset at once."""

http_files_share = 0.375
grpc_files_share = 0.25
refused_files_share = 0.125
"""Connections over HTTP, over gRPC, and those that are told that there are too many, may take these shares of
the limit of open files, if that is less than their own bounds. A quarter is left for everything else."""

grpc_connections_max = 4096
"""Open gRPC connections of one frontend; further ones are closed at once."""


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
    most = (connections_max, grpc_connections_max, refused_connections_max)
    if files is None:
        return ConnectionBounds(*most)
    shares = (http_files_share, grpc_files_share, refused_files_share)
    return ConnectionBounds(
        *(min(bound, int(files * share)) for bound, share in zip(most, shares, strict=True))
    )
