"""Simulated tensors and states: small objects that know their own ancestry, so a wrong one is recognised.

A value carries the operator, the unit and a nonce drawn fresh at every execution: a re-execution that leaks
is seen. A state is the persistent list of everything that ever updated it.
"""

from collections.abc import Callable, Iterator

from hams_protocol.ids import UnitId


class SimPayload:
    """One computed value (or, without an operator, a client's input). `parents` are the payloads it was
    computed from."""

    __slots__ = ("batch_key", "nbytes", "nonce", "op", "parents", "poison", "rows", "unit", "unreadable")

    def __init__(
        self,
        op: str,
        unit: UnitId | None,
        nonce: int,
        parents: tuple["SimPayload", ...],
        poison: str = "",
        nbytes: int = 64,
        unreadable: Callable[[], bool] | None = None,
    ) -> None:
        self.op = op
        self.unit = unit
        self.nonce = nonce
        self.parents = parents
        self.poison = poison
        self.nbytes = nbytes
        self.rows = 1
        self.batch_key = ""
        self.unreadable = unreadable

    @property
    def defect(self) -> str:
        """Whether the instance whose turn it is can read it: neighbours of another version may, where it
        cannot."""
        return "it is none" if self.unreadable is not None and self.unreadable() else ""

    def ancestry(self) -> Iterator["SimPayload"]:
        """This value and everything it was computed from, each once."""
        seen = {id(self)}
        stack = [self]
        while stack:
            item = stack.pop()
            yield item
            for parent in item.parents:
                if id(parent) not in seen:
                    seen.add(id(parent))
                    stack.append(parent)


class SimState:
    """The state of a stateful model: everything that updated it, newest first, as a persistent list."""

    __slots__ = ("batch_key", "before", "depth", "digest", "entries", "nbytes", "rows")
    defect = ""

    def __init__(
        self, before: "SimState | None", entries: tuple[tuple[UnitId, int], ...], digest: int
    ) -> None:
        self.before = before
        self.entries = entries
        self.digest = digest
        self.depth: int = (before.depth if before is not None else 0) + len(entries)
        self.nbytes = 256
        self.rows = 0
        self.batch_key = ""

    def history(self) -> list[tuple[UnitId, int]]:
        """(unit, nonce) of every update, oldest first."""
        units: list[tuple[UnitId, int]] = []
        state: SimState | None = self
        while state is not None:
            units.extend(reversed(state.entries))
            state = state.before
        units.reverse()
        return units
