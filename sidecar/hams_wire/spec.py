"""The compiled graph as bytes: the value of etcd's `spec` key. JSON, so that a person can read it with
`etcdctl get`.

The reader checks kinds and field names, not sense: a `Graph` was right when it was written. Bytes of another
format version are refused, never guessed at.
"""

import msgspec

from hams_protocol.graph import Graph, GraphData
from hams_wire.errors import UNDECODABLE, ResponsibleParty, WireError

FORMAT = "hams-spec-1"


class MalformedSpec(WireError):
    """The bytes under `spec` are not a compiled graph of this format."""

    responsible = ResponsibleParty.OURS


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    graph: msgspec.Raw


def encode_spec(graph: Graph) -> bytes:
    """Canonical: equal graphs give equal bytes."""
    return msgspec.json.encode(_Envelope(FORMAT, msgspec.Raw(msgspec.json.encode(graph.data))))


def decode_spec(data: bytes) -> Graph:
    """The graph in `data`. Raises MalformedSpec."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != FORMAT:
            raise MalformedSpec(
                f'a compiled graph of format "{envelope.format}"; this version reads "{FORMAT}"'
            )
        return Graph(msgspec.json.decode(envelope.graph, type=GraphData))
    except UNDECODABLE as error:
        raise MalformedSpec(f"not a compiled graph: {error}") from None
