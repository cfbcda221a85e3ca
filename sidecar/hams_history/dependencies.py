"""I3: what every value and version depends on, from the sources of the graph down.

The full dependency vector of a value is never built. Two numbers say all that is asked of it: `settled`, the
position from which on everything it depends on had been called durable or kept by an end (-1: always,
INFINITE: never; without a global order only these two), and `dead`, the lowest generation whose failover
makes part of it orphan (INFINITE: none). Both are maxima or minima over the closure, so one pass in the order
of the graph gives them, whatever the length of the history.
"""

import math
from bisect import bisect_left, bisect_right

from hams_history.lineage import Culprit, trace
from hams_history.lines import ApplyLine, DurableLine, ExecLine
from hams_history.tables import OperatorTable, Stretch, Tables, name_of

INFINITE = math.inf


class Dependencies:
    """`settled` and `dead` of every value for which they are not trivial. `tainted` are values that stem from
    states reported lost."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.findings = tables.findings
        self.ordered = tables.ordered
        self.settled: dict[str, float] = {}
        self.said: dict[str, float] = {}
        """Of what never settles because its state was lost: from where on that was said. It is not undone, so
        a state may take it after that."""
        self.dead: dict[str, float] = {}
        self.tainted: set[str] = set()
        for table in tables.order:
            if table.stateful:
                self._stateful(table)
            else:
                self._stateless(table)
        self._replies()

    # ---- values ----

    def _stateless(self, table: OperatorTable) -> None:
        settled, dead, tainted = self.settled, self.dead, self.tainted
        if not settled and not dead and not tainted:
            return
        for position, line in table.execs:
            assert line.out is not None
            worst, said = -1.0, -1.0
            for value in line.inputs:
                at = self._settled(value, position)
                worst = max(worst, at)
                if at == INFINITE:
                    said = max(said, self.said.get(value, INFINITE))
            if worst >= 0:
                settled[line.out] = worst
                if worst == INFINITE > said:
                    self.said[line.out] = said
            if dead:
                generation = self._orphan_input(position, line)
                if generation < INFINITE:
                    dead[line.out] = generation
            if tainted and not tainted.isdisjoint(line.inputs):
                tainted.add(line.out)

    def _stateful(self, table: OperatorTable) -> None:
        prefix = Prefix()
        applies: dict[int, list[tuple[int, ApplyLine | DurableLine]]] = {}
        for at, apply in table.applies:
            applies.setdefault(apply.epoch, []).append((at, apply))
        for at, durable in table.durables:
            applies.setdefault(durable.epoch, []).append((at, durable))
        for stretch in table.stretches.values():
            prefix.enter(stretch.start)
            beside = self._absorb(table, stretch, prefix)
            self._release(table, stretch, prefix, beside)
            stable = Watermarks(stretch, self.tables) if self.tables.by_receipt else None
            for position, line in applies.get(stretch.epoch, ()):
                worst = prefix.settled_at(line.version)
                if stable is not None and isinstance(line, DurableLine):
                    self._stable_first(stable.settled(line.version), position, line)
                if worst == INFINITE and table.lost_from is not None:
                    continue  # format 1 does not say what a loss is about
                if worst == INFINITE or (self.ordered and worst >= position):
                    self._unsettled_version(table, stretch, position, line)

    def _absorb(
        self, table: OperatorTable, stretch: Stretch, prefix: "Prefix"
    ) -> dict[int, tuple[float, float]]:
        """Every unit's inputs become part of the state. Returned: what a wrong epoch executed at seqs that it
        had taken over. One that has said that it stems from what was lost upstream is not undone for that,
        and for nothing else."""
        dead = self.dead
        beside: dict[int, tuple[float, float]] = {}
        for seq in stretch.seqs:
            position, line = stretch.units[seq]
            worst, generation = -1.0, INFINITE
            for value in line.inputs:
                at = self._settled(value, position)
                if at == INFINITE and table.stems:
                    at = self.said.get(value, INFINITE)
                worst = max(worst, at)
            if dead:
                generation = self._orphan_input(position, line)
            if seq > stretch.start:
                prefix.append(seq, worst, generation)
            else:
                beside[seq] = (worst, generation)
        return beside

    def _release(
        self, table: OperatorTable, stretch: Stretch, prefix: "Prefix", beside: dict[int, tuple[float, float]]
    ) -> None:
        """Every output depends on the whole state of its version."""
        durable = Watermarks(stretch, self.tables)
        lost_at = min((at for at, lost in table.lost if lost.epoch == stretch.epoch), default=INFINITE)
        if table.lost_from is None:
            lost_at = INFINITE if stretch.lost_at is None else stretch.lost_at
        judged, following = stretch.judged_end, stretch.next
        lost_above = stretch.lost_above
        for seq in stretch.seqs:
            line = stretch.units[seq][1]
            if line.out is None:
                continue
            assert line.version is not None
            own = beside.get(seq, (-1.0, INFINITE))
            inherited = max(own[0], prefix.settled_at(line.version))
            if inherited == INFINITE and table.lost_from is not None:
                inherited = -1.0  # format 1 does not say what a loss is about
            worst = max(inherited, durable.settled(line.version))
            if worst >= 0:
                self.settled[line.out] = worst
                if inherited < INFINITE == worst and lost_at < INFINITE:
                    self.said[line.out] = lost_at
            generation = min(own[1], prefix.dead_at(line.version))
            if judged is not None and following is not None and line.version > judged:
                generation = min(generation, following.gen)
            if generation < INFINITE:
                self.dead[line.out] = generation
            if (lost_above is not None and seq > lost_above) or (
                self.tainted and not self.tainted.isdisjoint(line.inputs)
            ):
                self.tainted.add(line.out)

    def _settled(self, value: str, position: int) -> float:
        """From where on a value's dependencies are durable, for one who takes it at `position`."""
        at = self.settled.get(value, -1.0)
        if at < INFINITE:
            return at
        said = self.said.get(value, INFINITE)
        return said if said < position or (said < INFINITE and not self.ordered) else INFINITE

    # ---- verdicts ----

    def _orphan_input(self, position: int, line: ExecLine) -> float:
        """The lowest generation that makes an input orphan; a violation if the executing instance knew it."""
        worst = INFINITE
        for value in line.inputs:
            generation = self.dead.get(value, INFINITE)
            if generation <= line.gen:
                self._known_orphan(position, line, value)
            worst = min(worst, generation)
        return worst

    def _known_orphan(self, position: int, line: ExecLine, value: str) -> None:
        if self.findings.full("I3"):
            self.findings.count("I3")
            return

        def orphan(table: OperatorTable, stretch: Stretch, version: int) -> bool:
            end, following = stretch.judged_end, stretch.next
            return end is not None and following is not None and version > end and following.gen <= line.gen

        path = trace(self.tables, [value], [], orphan)
        if path is None:
            return
        stretch = path.stretch
        assert stretch.next is not None
        began = () if stretch.next.began is None else (stretch.next.began,)
        self.findings.violation(
            "I3",
            f"{line.i} executed {name_of(line)} of {line.op} in generation {line.gen} on the orphan "
            f"{value}: it depends on {path.version_name},"
            f" but generation {stretch.next.gen} had ended epoch {stretch.epoch} of {path.op} at "
            f"{stretch.end}",
            position,
            *began,
            *path.path,
        )

    def _unsettled_version(
        self, table: OperatorTable, stretch: Stretch, position: int, line: ApplyLine | DurableLine
    ) -> None:
        did = "called durable" if isinstance(line, DurableLine) else "applied"
        what = f"{line.i} {did} version {line.version} of {line.op}, epoch {line.epoch},"
        self._unsettled(position, what, [], [(table, stretch, line.version)])

    def _stable_first(self, settled: float, position: int, line: DurableLine) -> None:
        if settled == INFINITE or (self.ordered and settled >= position):
            self.findings.violation(
                "I3",
                f"{line.i} called version {line.version} of {line.op}, epoch {line.epoch}, durable before it "
                "was called stable",
                position,
            )

    def _replies(self) -> None:
        if not self.settled or not self.tables.waits:
            return
        for lines in self.tables.replies.values():
            for position, line in lines:
                self._leaves(position, f"{line.i} released the reply of {line.req}", line.values)
        for logs in self.tables.logs.values():
            for position, log in logs:
                if log.source is not None:
                    self._leaves(position, f"{log.i} fed back {log.source} as {log.req}", (log.source,))

    def _leaves(self, position: int, what: str, values: tuple[str, ...]) -> None:
        """Values leave the graph, or begin a request of their own. They may stem from what was lost, once
        that was said."""
        worst = max((self._settled(value, position) for value in values), default=-1.0)
        if worst == INFINITE or (self.ordered and worst >= position):
            self._unsettled(position, what, list(values), [])

    def _unsettled(
        self, position: int, what: str, values: list[str], states: list[tuple[OperatorTable, Stretch, int]]
    ) -> None:
        if self.findings.full("I3"):
            self.findings.count("I3")
            return
        culprit = self._not_durable(position, states[0][0] if states else None)
        path = trace(self.tables, values, states, culprit)
        if path is None:
            return
        stretch = path.stretch
        said = self.tables.announced(stretch)
        marks = [version for version, at in said if not self.ordered or at < position]
        newest = f"durable up to {max(marks)}" if marks else "never called durable"
        if stretch.end is None:
            end = f"epoch {stretch.epoch} has not ended"
        else:
            end = f"epoch {stretch.epoch} ended at {stretch.end}"
        began = () if stretch.next is None or stretch.next.began is None else (stretch.next.began,)
        when = "before" if self.ordered else "anywhere"
        self.findings.violation(
            "I3",
            f"{what} which depends on {path.version_name}; {when}, {path.op} in epoch {stretch.epoch} is "
            f"{newest}, and {end}",
            position,
            *began,
            *path.path,
        )

    def _not_durable(self, position: int, own: OperatorTable | None) -> Culprit:
        marks: dict[tuple[str, int], Watermarks] = {}

        def culprit(table: OperatorTable, stretch: Stretch, version: int) -> bool:
            if table is own:
                return False
            key = (table.name, stretch.epoch)
            if key not in marks:
                marks[key] = Watermarks(stretch, self.tables)
            at = marks[key].settled(version)
            return at == INFINITE or (self.ordered and at >= position)

        return culprit


class Watermarks:
    """From which position on a version of one epoch was durable (by receipt: stable): called so, or kept by
    the epoch's end; under Block announced after that."""

    __slots__ = ("_end", "_ended_at", "_newest", "_ordered", "_positions", "_versions")

    def __init__(self, stretch: Stretch, tables: Tables) -> None:
        ordered, blocks = tables.ordered, tables.blocks
        self._ordered = ordered
        self._end = -1 if stretch.end is None or blocks else stretch.end
        said = list(tables.announced(stretch))
        later, carried = stretch.next, stretch.end
        while blocks and later is not None and carried is not None:
            carried = min(carried, later.start)  # after a loss the same numbers are other versions
            said += [(min(version, carried), position) for version, position in tables.announced(later)]
            later = later.next
        self._newest = max((version for version, _ in said), default=-1)
        self._ended_at = (
            stretch.next.began if stretch.next is not None and stretch.next.began is not None else -1
        )
        self._versions: list[int] = []
        self._positions: list[int] = []
        if ordered:
            for version, position in sorted(said, key=lambda item: item[1]):
                if not self._versions or version > self._versions[-1]:
                    self._versions.append(version)
                    self._positions.append(position)

    def settled(self, version: int) -> float:
        """-1 or the position from which on; INFINITE if never."""
        if not self._ordered:
            return -1 if version <= self._newest or version <= self._end else INFINITE
        by_end = self._ended_at if version <= self._end else INFINITE
        index = bisect_left(self._versions, version)
        return min(by_end, self._positions[index]) if index < len(self._versions) else by_end


class Prefix:
    """Running maxima over the lineage of one operator, by seq; a new epoch cuts what its predecessor did not
    keep."""

    __slots__ = ("_dead", "_seqs", "_settled")

    def __init__(self) -> None:
        self._seqs: list[int] = [0]
        self._settled: list[float] = [-1.0]
        self._dead: list[float] = [INFINITE]

    def enter(self, start: int) -> None:
        """A new epoch goes on from `start`."""
        keep = bisect_right(self._seqs, start) if start > 0 else 1
        del self._seqs[keep:], self._settled[keep:], self._dead[keep:]

    def append(self, seq: int, settled: float, dead: float) -> None:
        """The state takes in one more unit."""
        self._seqs.append(seq)
        self._settled.append(max(self._settled[-1], settled))
        self._dead.append(min(self._dead[-1], dead))

    def _at(self, version: int) -> int:
        if version >= self._seqs[-1]:
            return -1
        return max(bisect_right(self._seqs, version) - 1, 0)

    def settled_at(self, version: int) -> float:
        """When everything that this version took in was durable."""
        return self._settled[self._at(version)]

    def dead_at(self, version: int) -> float:
        """The lowest generation that makes something orphan that this version took in."""
        return self._dead[self._at(version)]
