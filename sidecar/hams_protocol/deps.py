"""Dependency vectors: which states of which stateful operators a value stems from (protocol.md, sections 1
and 2).

A vector names at most one state per operator, the newest. Vectors are merged only when none of their entries
is unknown to the merging side (`Knowledge.status`): else (p, 2, 8) would hide an orphan (p, 1, 10).
"""

from collections.abc import Iterable
from typing import NamedTuple


class Dep(NamedTuple):
    """A state of a stateful operator: incarnation and position in its execution history."""

    op: str
    epoch: int
    seq: int


Deps = tuple[Dep, ...]
"""Sorted by operator; at most one entry per operator."""


def merge(vectors: Iterable[Deps]) -> Deps:
    """Per-operator maximum of (epoch, seq)."""
    newest: dict[str, Dep] = {}
    for vector in vectors:
        for dep in vector:
            held = newest.get(dep.op)
            if held is None or (held.epoch, held.seq) < (dep.epoch, dep.seq):
                newest[dep.op] = dep
    return tuple(newest[op] for op in sorted(newest)) if len(newest) > 1 else tuple(newest.values())


def others(deps: Deps, name: str) -> Deps:
    """A state's dependencies on the states of other operators than its own."""
    return tuple(dep for dep in deps if dep.op != name)
