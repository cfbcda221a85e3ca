"""What a frontend looks up for every request, worked out once from the graph: entry edges, sink edges, how
the reply is chosen."""

from hams_protocol import limits
from hams_protocol.frozen import frozen
from hams_protocol.graph import FEEDBACK, FRONTEND, Graph
from hams_protocol.ids import Lane


@frozen
class Entry:
    """An edge that leaves the frontend: the request tensors it takes, and those it cannot do without."""

    target: str
    tensors: frozenset[str]
    required: frozenset[str]


@frozen
class Choice:
    """A reply tensor: per source in order of preference, the sink edges (one per lane) on which it may
    come."""

    name: str
    sources: tuple[tuple[int, ...], ...]


class Plan:
    """The graph as a frontend sees it. Sink edges are known by their number from here on."""

    def __init__(self, graph: Graph) -> None:
        self.entries = tuple(
            Entry(
                edge.target,
                frozenset(item.source for item in edge.inputs),
                frozenset(item.source for item in edge.inputs if not item.optional),
            )
            for edge in graph.entry_edges
        )
        self._routes: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.sinks = graph.sink_edges
        self.targets = tuple(target for _, target, _ in self.sinks)
        self.index: dict[tuple[str, str, Lane], int] = {
            edge: number for number, edge in enumerate(self.sinks)
        }
        self.feedback_edges = sum(target == FEEDBACK for target in self.targets)
        self.choices = tuple(
            Choice(
                tensor.name,
                tuple(
                    tuple(self.index[op, FRONTEND, lane] for lane in graph.operators[op].lanes)
                    for op in dict.fromkeys(source for source, _ in tensor.sources)
                ),
            )
            for tensor in graph.data.outputs
        )
        self.max_hops = {
            op.name: op.feedback.max_hops for op in graph.data.operators if op.feedback is not None
        }
        self.renames = {op.name: op.feedback.inputs for op in graph.data.operators if op.feedback is not None}

    def routed(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """The entry edges that get a value: some tensor of theirs is present, and none that they need is
        absent."""
        routes = self._routes.get(present)
        if routes is None:
            have = frozenset(present)
            routes = tuple(
                entry.target
                for entry in self.entries
                if entry.required <= have and not entry.tensors.isdisjoint(have)
            )
            if len(self._routes) < limits.routes_max:
                self._routes[present] = routes
        return routes
