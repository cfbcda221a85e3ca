"""The compiled graph as bytes: the value of etcd's `spec` key. JSON, so that a person can read it with `etcdctl get`.

The reader checks kinds and field names, not sense: a `Graph` was right when it was written. Bytes of another format version are refused,
never guessed at.
"""

from typing import Literal

import msgspec

from hams_protocol.graph import Graph, GraphData

FORMAT: Literal["hams-spec-1"] = "hams-spec-1"


class MalformedSpec(ValueError):
    """The bytes under `spec` are not a compiled graph of this format."""

    retryable = False


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    graph: GraphData


def encode_spec(graph: Graph) -> bytes:
    """Canonical: equal graphs give equal bytes."""
    return msgspec.json.encode(_Stored(FORMAT, graph.data))


def decode_spec(data: bytes) -> Graph:
    """The graph in `data`. Raises MalformedSpec."""
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except msgspec.MsgspecError as error:
        raise MalformedSpec(f"not a compiled graph: {error}") from None
    if stored.format != FORMAT:
        raise MalformedSpec(f'a compiled graph of format "{stored.format}"; this version reads "{FORMAT}"')
    return Graph(stored.graph)
