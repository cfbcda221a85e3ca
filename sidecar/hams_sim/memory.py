"""I6 over many requests: what the machines still hold once nothing is open (faults.md, F41).

Everything reachable from a machine is walked, and the entries of its containers are counted, by the names of
the attributes on the way. What the graph or the topology says does not count, nor do payloads: a holder of
one holds its token too.
"""

from collections import Counter, deque
from typing import TYPE_CHECKING

from hams_protocol.graph import Graph
from hams_protocol.topology import Topology
from hams_sim import limits
from hams_sim.errors import Broken
from hams_sim.payload import SimDifference, SimPayload, SimState

if TYPE_CHECKING:
    from hams_sim.world import World

LEAVES = (
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
    type,
    Graph,
    Topology,
    SimPayload,
    SimState,
    SimDifference,
)
EXPECTED = frozenset(("expired",))
"""Bounded by limits of their own that a history does not reach: hashes of expired keys."""


def held(machine: object) -> Counter[str]:
    """Entries of containers, by the attributes that lead there."""
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", machine)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, LEAVES) or id(item) in seen or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            counts[path] += len(item)
            waiting += [(path, value) for value in item.values()]
        elif isinstance(item, list | set | frozenset | deque):
            counts[path] += len(item)
            waiting += [(path, value) for value in item]
        elif isinstance(item, tuple):
            waiting += [(path, value) for value in item]
        else:
            waiting += [
                (f"{path}.{name}", getattr(item, name))
                for name in _names(item)
                if name not in EXPECTED and hasattr(item, name)
            ]
    return counts


def _names(item: object) -> list[str]:
    names = list(getattr(item, "__dict__", ()))
    for cls in type(item).__mro__:
        slots = getattr(cls, "__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
        names += getattr(cls, "__mypyc_attrs__", ())  # of machine code, which has neither
    return names


def flat(world: "World") -> None:
    """Nothing grows with the requests that are complete: no container of any machine holds more than
    `entries_held_max`."""
    for node in world.living():
        for path, count in held(node.machine).items():
            if count > limits.entries_held_max:
                raise Broken(
                    "I6",
                    f"{node.id} still holds {count} entries in {path} after {len(world.recorder.complete)} "
                    "complete requests",
                )
