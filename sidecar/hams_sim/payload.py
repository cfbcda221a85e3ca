"""Simulated tensors and states: small objects that know their own ancestry, so a wrong one is recognised.

A value carries the operator, the unit and a nonce drawn fresh at every execution: a re-execution that leaks
is seen. A state is the persistent list of everything that ever updated it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from hams_protocol.births import born_after, laid_over
from hams_protocol.ids import UnitId
from hams_protocol.messages import Payload, StateCopy, StateRecord
from hams_sim.errors import Broken
from hams_wire.peers.payload import WholePayload

Carrier = TypeVar("Carrier", bound=StateCopy | StateRecord)

CELLS = 4
"""Chunks of a simulated state; an update writes one or two of them, or all."""
DENSE = 4
"""One update in so many writes all chunks, so that its state travels whole."""
CELL_NBYTES = 64


class SimPayload(WholePayload):
    """One computed value (or, without an operator, a client's input). `parents` are the payloads it was
    computed from."""

    __slots__ = ("nbytes", "nonce", "op", "parents", "poison", "unit", "unreadable")
    nbytes: int
    rows = 1

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
        self.unreadable = unreadable

    @property
    def defect(self) -> str:
        """Whether the instance whose turn it is can read it: neighbours of another version may, where it
        cannot."""
        return "it is none" if self.unreadable is not None and self.unreadable() else ""

    @property
    def content(self) -> str:
        """Name of the value by its content: computed again of the same inputs and state it is the same."""
        return f"{self.nonce:x}"

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


class SimState(WholePayload):
    """The state of a stateful model: everything that updated it, newest first, as a persistent list.

    `cells` are its chunks: what each holds, and `births` the versions in which they were captured first; None
    where it came whole, as nobody knows them there.
    """

    __slots__ = (
        "before",
        "births",
        "cells",
        "depth",
        "digest",
        "entries",
        "fresh_nbytes",
        "nbytes",
    )
    fresh_nbytes: int
    nbytes: int

    def __init__(
        self, before: "SimState | None", entries: tuple[tuple[UnitId, int], ...], digest: int
    ) -> None:
        dense = digest // CELLS**2 % DENSE == 0
        self.cells: list[int] = [digest] * CELLS if before is None or dense else list(before.cells)
        self.cells[digest % CELLS] = digest
        self.cells[digest // CELLS % CELLS] = digest
        self.births: list[int] | None = [0] * CELLS
        self.fresh_nbytes = CELLS * CELL_NBYTES
        self.before = before
        self.entries = entries
        self.digest = digest
        self.depth: int = (before.depth if before is not None else 0) + len(entries)
        self.nbytes = CELLS * CELL_NBYTES

    def history(self) -> list[tuple[UnitId, int]]:
        """(unit, nonce) of every update, oldest first."""
        units: list[tuple[UnitId, int]] = []
        state: SimState | None = self
        while state is not None:
            units.extend(reversed(state.entries))
            state = state.before
        units.reverse()
        return units

    def captured(self, version: int, base: "SimState | None") -> "SimState":
        """This state as the capture of `version`: cells that are as in `base` were born there."""
        if base is None or base.births is None:
            return self._born([version] * CELLS)
        pairs = zip(self.cells, base.cells, base.births, strict=True)
        return self._born([born if mine == theirs else version for mine, theirs, born in pairs])

    def came_whole(self) -> "SimState":
        """This state where it has arrived."""
        return self._born(None)

    def _born(self, births: list[int] | None) -> "SimState":
        state = SimState(self.before, self.entries, self.digest)
        state.cells, state.births = self.cells, births
        if births is not None:
            state.fresh_nbytes = births.count(max(births)) * CELL_NBYTES
        return state

    def born_after(self, version: int, newest: int) -> Payload | None:
        """See `Payload`."""
        places = born_after([newest] * CELLS if self.births is None else self.births, version)
        return None if places is None else SimDifference(self, {at: self.cells[at] for at in places})

    def completed(self, young: Mapping[int, int], base: "SimState", since: int, version: int) -> "SimState":
        """What these cells of this state, laid over `base`, the state of `since`, make. Raises Broken if that
        is another state."""
        cells = [young.get(at, cell) for at, cell in enumerate(base.cells)]
        if cells != self.cells:
            raise Broken("I1", f"version {version} is made of a wrong base: {cells}, not {self.cells}")
        births = laid_over([since] * CELLS if base.births is None else base.births, young, CELLS, version)
        assert births is not None, "its base has as many cells"
        return self._born(births)


def arrived(carrier: Carrier) -> Carrier:
    """A record or a copy where it has arrived, or was read: of a whole state nobody knows births there."""
    state = carrier.state
    return replace(carrier, state=state.came_whole()) if isinstance(state, SimState) else carrier


class SimDifference(WholePayload):
    """The cells of a state that are younger than a version, on their way to who holds that."""

    __slots__ = ("_state", "_young", "nbytes")
    nbytes: int

    def __init__(self, state: SimState, young: Mapping[int, int]) -> None:
        self._state = state
        self._young = young
        self.nbytes = len(young) * CELL_NBYTES

    def laid_over(self, base: Payload, since: int, version: int) -> Payload | None:
        """See `Payload`."""
        if not isinstance(base, SimState):
            return None
        return self._state.completed(self._young, base, since, version)
