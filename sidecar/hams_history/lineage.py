"""Walks the closure of a value or a version, to explain a violation that the fast passes have found.

Only called for the few violations that are shown: it may be slow, and it gives the shortest way from the line
to the culprit.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hams_history.tables import OperatorTable, Stretch, Tables

Culprit = Callable[[OperatorTable, Stretch, int], bool]
"""Whether a dependency on this version (of this operator, in this epoch) is what is looked for."""

State = tuple[OperatorTable, Stretch, int]
_Node = str | tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class WrongDependency:
    """A dependency that is wrong, and the exec lines on the way to it: the culprit's first."""

    op: str
    stretch: Stretch
    version: int
    path: tuple[int, ...]

    @property
    def version_name(self) -> str:
        """The version as people read it."""
        return f"version {self.version} of {self.op}, epoch {self.stretch.epoch}"


def trace(
    tables: Tables, values: Sequence[str], states: Sequence[State], culprit: Culprit
) -> WrongDependency | None:
    """Breadth first from `values` and `states` to the nearest dependency that `culprit` names."""
    came_from: dict[_Node, _Node | None] = {}
    queue: deque[_Node] = deque()
    stretches: dict[tuple[str, int], tuple[OperatorTable, Stretch]] = {}

    def push(node: _Node, parent: _Node | None) -> None:
        if node not in came_from:
            came_from[node] = parent
            queue.append(node)

    def push_state(table: OperatorTable, stretch: Stretch, version: int, parent: _Node | None) -> None:
        owner = stretch.owner(version)
        stretches[table.name, owner.epoch] = (table, owner)
        if version >= 1:
            push((table.name, owner.epoch, version), parent)

    for table, stretch, version in states:
        push_state(table, stretch, version, None)
    for value in values:
        push(value, None)
    while queue:
        node = queue.popleft()
        if isinstance(node, str):
            produced = tables.producers.get(node)
            if produced is None:
                continue
            line = produced[1]
            table = tables.operators[line.op]
            if table.stateful:
                assert line.version is not None
                # What is judged is the epoch in which the value was made, whatever its lineage took over.
                stretch = table.stretches[line.epoch]
                if culprit(table, stretch, line.version):
                    return WrongDependency(
                        table.name, stretch, line.version, _path(tables, came_from, node, stretches)
                    )
                push_state(table, stretch, line.version, node)
            for value in line.inputs:
                push(value, node)
            continue
        table, stretch = stretches[node[0], node[1]]
        unit = stretch.units.get(node[2])
        if unit is not None:
            for value in unit[1].inputs:
                push(value, node)
        push_state(table, stretch, node[2] - 1, node)
    return None


def _path(
    tables: Tables,
    came_from: dict[_Node, _Node | None],
    node: _Node | None,
    stretches: dict[tuple[str, int], tuple[OperatorTable, Stretch]],
) -> tuple[int, ...]:
    path: list[int] = []
    previous: _Node | None = None
    while node is not None:
        if isinstance(node, str):
            path.append(tables.producers[node][0])
        elif isinstance(previous, str):
            # Of a run of units of one state, the one that took the value in is what tells.
            unit = stretches[node[0], node[1]][1].units.get(node[2])
            if unit is not None:
                path.append(unit[0])
        previous, node = node, came_from[node]
    return tuple(dict.fromkeys(path))
