"""Versions of a state that one replica retains: rollback sources, and what joiners copy (protocol.md, 2.6,
7.2, 7.3).

Versions stand in order; each knows its record and, where the version changed nothing, shares the state before
it. Invariant: the oldest retained version always has its state, so whatever is retained can be gone back to.
"""

from dataclasses import replace

from hams_protocol.deadlines import Deadlines
from hams_protocol.messages import Payload, StateRecord
from hams_protocol.sizes import carried_nbytes


class Version:
    """One version: its record, and whether its state is there (captured, received, or shared with the version
    before).

    `born`: the version that made this state. `carried_nbytes`: what its record carries beside the state,
    outputs and what came on fan-out edges.
    """

    __slots__ = ("_difference", "_leaving", "born", "carried_nbytes", "changed", "record", "state")

    def __init__(self, record: StateRecord, changed: bool, state: Payload | None, born: int) -> None:
        self.record = record
        self.changed = changed
        self.state = state
        self.born = born
        self._difference: StateRecord | None = None
        self._leaving: StateRecord | None = None
        self.carried_nbytes = carried_nbytes(record.units)

    @property
    def number(self) -> int:
        """The seq of the last unit of its batch."""
        return self.record.version

    @property
    def difference(self) -> StateRecord:
        """Its record for who holds the version before: with what changed since, or whole where that would not
        be less. One and the same for all of them."""
        record = self.record
        if record.state is None:
            return record
        if self._difference is None:
            part = record.state.born_after(record.previous, self.born)
            self._difference = record if part is None else replace(record, state=part, since=record.previous)
        return self._difference

    def leaving(self, record: StateRecord, deadlines: Deadlines, now: float) -> StateRecord:
        """Its record, or its `difference`, as it leaves now: it says what is left of deadlines. One and the
        same for all to whom it leaves at once."""
        before = self._leaving
        left_s = tuple(deadlines.left_of(item.unit.request, item.meta, now) for item in record.units)
        if before is None or before.left_s != left_s or before.state is not record.state:
            before = self._leaving = replace(record, left_s=left_s)
        return before


class VersionStore:
    """The retained versions of one replica, ascending."""

    def __init__(self) -> None:
        self.versions: list[Version] = []

    @property
    def newest(self) -> Version | None:
        """The newest version, if there is any."""
        return self.versions[-1] if self.versions else None

    def start(self, record: StateRecord, state: Payload | None) -> None:
        """Begin anew from one whole version."""
        self.versions = [Version(record, True, state, record.version)]

    def append(self, record: StateRecord, changed: bool) -> Version:
        """Add the next version. If it `changed` the state, `record.state` is the state, or None until it is
        captured."""
        before = self.versions[-1] if self.versions else None
        if changed or before is None:
            version = Version(record, changed, record.state, record.version)
        else:
            version = Version(record, changed, before.state, before.born)
        self.versions.append(version)
        return version

    def captured(self, number: int, state: Payload) -> None:
        """The capture of a version is complete: later versions that changed nothing share it."""
        for version in self.versions:
            if version.number == number and version.changed:
                version.state = state
                version.record = replace(version.record, state=state)
            elif version.number > number and version.state is None:
                if version.changed:
                    return
                version.state = state

    def find(self, number: int) -> Version | None:
        """The version with this number, if retained."""
        for version in reversed(self.versions):
            if version.number == number:
                return version
        return None

    def at_or_below(self, number: int) -> Version | None:
        """The newest version not above `number`."""
        for version in reversed(self.versions):
            if version.number <= number:
                return version
        return None

    def after(self, number: int) -> list[Version]:
        """Versions above `number`, ascending."""
        return [version for version in self.versions if version.number > number]

    def count_after(self, number: int) -> int:
        """How many versions there are above `number`."""
        count = 0
        for version in reversed(self.versions):
            if version.number <= number:
                break
            count += 1
        return count

    def rollback(self, end: int) -> None:
        """Drop everything above `end`."""
        self.versions = [version for version in self.versions if version.number <= end]

    def trim(self, keep_from: int, keep_at_least: int = 0) -> None:
        """Drop versions below `keep_from`, but keep at least the newest `keep_at_least`."""
        first = 0
        last = len(self.versions) - max(keep_at_least, 1)
        while first < last and self.versions[first].number < keep_from:
            first += 1
        if first:
            del self.versions[:first]

    @property
    def nbytes(self) -> int:
        """Bytes of all states retained; what one shares with the one before counts once."""
        states = {id(version.state): version.state for version in self.versions if version.state is not None}
        distinct = list(states.values())
        return sum(state.nbytes if at == 0 else state.fresh_nbytes for at, state in enumerate(distinct))

    def clear(self) -> None:
        """Forget everything."""
        self.versions = []
