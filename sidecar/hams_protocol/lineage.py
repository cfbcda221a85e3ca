"""The consumed units of a stateful operator's surviving history: part of its state (protocol.md, 2.5, 6 and
7.6).

They say what must never run again (I4), what a new primary sends again, and what inquiries of slots' new
owners must find. Entries of complete requests are dropped: those requests are refused for ever.
"""

import hashlib
from collections.abc import Iterable

from hams_protocol.ids import UnitId, ValueId
from hams_protocol.knowledge import CompletionSet, Knowledge
from hams_protocol.messages import Consumed


class Lineage:
    """Consumed units of incomplete requests, with their saved outputs and fan-out inputs."""

    def __init__(self) -> None:
        self._units: dict[UnitId, Consumed] = {}

    def __contains__(self, unit: UnitId) -> bool:
        return unit in self._units

    def __len__(self) -> int:
        return len(self._units)

    def add(self, units: Iterable[Consumed], completed: CompletionSet) -> None:
        """Take over the units of a version."""
        for consumed in units:
            if consumed.unit.request not in completed:
                self._units[consumed.unit] = consumed

    def rollback(self, end: int) -> None:
        """Forget what came after seq `end`."""
        for unit in [unit for unit, consumed in self._units.items() if consumed.seq > end]:
            del self._units[unit]

    def complete(self, completed: CompletionSet) -> None:
        """Forget what is complete."""
        for unit in [unit for unit in self._units if unit.request in completed]:
            del self._units[unit]

    def up_to(self, version: int) -> tuple[Consumed, ...]:
        """What a copy of `version` must bring along."""
        return tuple(consumed for consumed in self._units.values() if consumed.seq <= version)

    def fan_of(self, unit: UnitId) -> tuple[tuple[str, ValueId], ...]:
        """Of which executions of fan-outs a unit stems; of none if it is not here."""
        consumed = self._units.get(unit)
        return () if consumed is None else consumed.fan

    def units(self) -> Iterable[Consumed]:
        """All of them, in order of execution."""
        return self._units.values()

    def clear(self) -> None:
        """Forget everything."""
        self._units.clear()


def pruned(units: Iterable[Consumed], knowledge: Knowledge, now: float) -> tuple[Consumed, ...]:
    """Units as a newcomer gets them now (`Knowledge.leaving`)."""
    units_now = []
    for item in units:
        outputs = tuple((target, knowledge.leaving(token, now)) for target, token in item.outputs)
        units_now.append(
            Consumed(
                item.unit,
                item.seq,
                item.out,
                outputs,
                tuple(knowledge.leaving(token, now) for token in item.fan_inputs),
                item.fan,
            )
        )
    return tuple(units_now)


def chain_next(chain: str, out: ValueId | None) -> str:
    """Running digest over all outputs of a history: `chain(n) = digest(chain(n-1), out(n))` (history.md)."""
    return hashlib.blake2b(f"{chain}|{out}".encode(), digest_size=8).hexdigest()
