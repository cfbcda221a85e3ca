"""What the parameters of a request may take, so that a copy of all open requests fits one message."""

from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.limits import copy_part_entries_max
from hams_wire.limits import metadata_bytes_max

unit_metadata_bytes = 2048
"""What one token of one request takes of a message's metadata, but for its parameters: ids, dependencies, a
client's trace."""


def parameters_room(graph: Graph) -> int:
    """Bytes of the parameters of one request, at most; 0 or less: there is no room for any.

    Every token of a request carries them. A copy of a state has for each open request what its operator sent
    and what it got from fan-outs; the answer of a slot has all that it got; a part of a log's copy has the
    request and the tokens of its reply. A value that is fed back is a request once more.
    """
    spec = graph.data.frontend
    most = 1
    for op in graph.data.operators:
        inputs = [edge.source for edge in op.in_edges]
        fans = [source for source in inputs if source != FRONTEND and _is_fan_out(graph, source)]
        tokens = max(len(op.targets) + len(fans), len(inputs))
        most = max(most, tokens * max(len(op.lanes), 1))
    loops = sum(op.feedback is not None for op in graph.data.operators)
    held = spec.max_in_flight * spec.shards * (1 + loops) * most
    logged = max(copy_part_entries_max, copy_part_entries_max // 2 * (1 + len(graph.sink_edges)))
    return metadata_bytes_max // max(held, logged) - unit_metadata_bytes


def _is_fan_out(graph: Graph, source: str) -> bool:
    op = graph.operators[source]
    return not op.stateful and len(op.targets) > 1
