"""What the parameters of a request may take, so that a copy of all open requests fits one message."""

from hams_protocol.graph import FRONTEND, Graph
from hams_wire.limits import metadata_bytes_max, unit_metadata_bytes


def parameters_room(graph: Graph) -> int:
    """Bytes of the parameters of one request, at most; 0 or less: there is no room for any.

    Every token of a request carries them. A copy of a state has for each open request what its operator sent
    and what it got from fan-outs; the answer of a slot has all that it got.
    """
    spec = graph.data.frontend
    most = 1
    for op in graph.data.operators:
        inputs = [edge.source for edge in op.in_edges]
        fans = [source for source in inputs if source != FRONTEND and _is_fan_out(graph, source)]
        tokens = max(len(op.successors) + len(fans), len(inputs))
        most = max(most, tokens * max(len(op.lanes), 1))
    return metadata_bytes_max // (spec.max_in_flight * spec.shards * most) - unit_metadata_bytes


def _is_fan_out(graph: Graph, source: str) -> bool:
    op = graph.operators[source]
    return not op.stateful and len(op.successors) > 1
