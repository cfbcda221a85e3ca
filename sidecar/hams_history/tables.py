"""A history sorted into tables: one per operator, one of requests. Every later check reads these and no line
twice.

A stateful operator's table is a chain of *stretches*, one per epoch: the seqs above the end of the epoch
before, up to its own end. What a wrong history does to the tables is said here once: a duplicate that differs
is a violation (I5), a line that contradicts the format is a problem. The checks that follow work on what is
left and never fail on it.
"""

from collections.abc import Iterator
from math import inf

from hams_history.lines import (
    FORMAT_BY_RECEIPT,
    ApplyLine,
    CallLine,
    CompleteLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    FaultLine,
    FinalLine,
    GraphLine,
    HealLine,
    LogLine,
    LostLine,
    OperatorEntry,
    ReplyLine,
    RetLine,
    StableLine,
)
from hams_history.report import Findings

FRONTEND = "F"
FEEDBACK = "F!"
MODES_WITHOUT_DURABILITY = frozenset(("None",))
"""Modes in which no reply waits for what it depends on."""

MODES_THAT_REPLAY = frozenset(("LineageStash",))
"""Modes in which an epoch runs again what the one before has run after its end, and a value is named by its
bytes: of executions that are alike the last one stands for all. I3 is not promised there."""

Exec = tuple[int, ExecLine]
"""An executed unit and the position of its line."""
UnitKey = tuple[str, tuple[str, ...]]
"""(request, lane)."""


class Stretch:
    """One epoch of a stateful operator.

    `start`: the end of the epoch before; `end`: its own, None while it is the newest. `judged_end` is `end`,
    or None if what lies beyond it was reported lost; `lost_above` is the lowest such end from here on, which
    excuses what lies above it, and `lost_at` where that was said first. `lowest_end`: the lowest end from
    here on, what is left in the surviving history. `began`, `gen`: position and generation of the failover
    line that began it.
    """

    __slots__ = (
        "began",
        "durable",
        "end",
        "epoch",
        "gen",
        "judged_end",
        "lost_above",
        "lost_at",
        "lowest_end",
        "mark",
        "next",
        "prev",
        "seqs",
        "stable",
        "start",
        "units",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.start = 0
        self.end: int | None = None
        self.judged_end: int | None = None
        self.lowest_end: int | None = None
        self.lost_above: int | None = None
        self.lost_at: int | None = None
        self.began: int | None = None
        self.gen = 0
        self.prev: Stretch | None = None
        self.next: Stretch | None = None
        self.units: dict[int, Exec] = {}
        self.seqs: list[int] = []
        self.durable: list[tuple[int, int]] = []
        self.stable: list[tuple[int, int]] = []
        self.mark = 0

    @property
    def is_empty(self) -> bool:
        """Whether its primary did nothing that anybody knows of."""
        return not (self.units or self.durable or self.stable)

    def owner(self, version: int) -> "Stretch":
        """The stretch that `version`, named in this epoch, belongs to: everything up to `start` was taken
        over."""
        stretch = self
        while stretch.prev is not None and version <= stretch.start:
            stretch = stretch.prev
        return stretch

    def find(self, version: int) -> Exec | None:
        """The unit at a position of the lineage that this epoch stands on."""
        return self.owner(version).units.get(version)

    def survives(self, seq: int) -> bool:
        """Whether a seq of this epoch is in the surviving history."""
        return seq > self.start and (self.lowest_end is None or seq <= self.lowest_end)


class OperatorTable:
    """Everything a history says of one operator.

    `restarts`: per epoch that ended in a loss, the versions from which it is said to begin again, and where.
    `lost_from`: in format 1, which does not say what a loss is about, the first epoch from which on one was
    reported; all of it is excused. `stems`: it has said that it stems from more of a lost state than there
    is. `lost_units`: what a loss took of what it had executed; `lost_inputs`: the values that those had
    consumed.
    """

    def __init__(self, name: str, entry: OperatorEntry) -> None:
        self.name = name
        self.stateful = entry.kind == "stateful"
        self.join = entry.join
        self.sources = entry.inputs
        self.targets = entry.outputs
        self.required = entry.required
        self.execs: list[Exec] = []
        self.applies: list[tuple[int, ApplyLine]] = []
        self.durables: list[tuple[int, DurableLine]] = []
        self.failovers: dict[int, tuple[int, FailoverLine]] = {}
        self.stretches: dict[int, Stretch] = {}
        self.lost: list[tuple[int, LostLine]] = []
        self.restarts: dict[int, dict[int, int]] = {}
        self.lost_from: int | None = None
        self.stems = False
        self.lost_units: set[UnitKey] = set()
        self.lost_inputs: set[str] = set()

    def stretch(self, epoch: int) -> Stretch:
        """The stretch of an epoch, made if need be."""
        known = self.stretches.get(epoch)
        if known is None:
            known = self.stretches[epoch] = Stretch(epoch)
        return known

    def surviving(self) -> Iterator[tuple[int, Exec]]:
        """(seq, unit) of the surviving history, in order."""
        for stretch in self.stretches.values():
            for seq in stretch.seqs:
                if stretch.survives(seq):
                    yield seq, stretch.units[seq]


class Tables:
    """The whole history by kind. `order` lists the operators upstream first."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.header: GraphLine | None = None
        self.ordered = False
        self.blocks = False
        self.by_receipt = False
        self.waits = True
        self.replays = False
        self.operators: dict[str, OperatorTable] = {}
        self.order: list[OperatorTable] = []
        self.producers: dict[str, Exec] = {}
        self.calls: list[tuple[int, CallLine]] = []
        self.rets: list[tuple[int, RetLine]] = []
        self.logs: dict[str, list[tuple[int, LogLine]]] = {}
        self.replies: dict[str, list[tuple[int, ReplyLine]]] = {}
        self.completes: dict[str, int] = {}
        self.lost_shards: dict[int, float] = {}
        self.gone_shards: set[str] = set()
        """Of whose logs nobody was known."""
        self.last_fault: int | None = None
        self.last_heal: int | None = None
        self.final: tuple[int, FinalLine] | None = None
        if self._read_header():
            self._sort_lines()
            for table in self.operators.values():
                self._chain(table)

    # ---- header ----

    def _read_header(self) -> bool:
        headers = [
            (position, line)
            for position, line in enumerate(self.findings.history.lines)
            if type(line) is GraphLine
        ]
        if not headers:
            self.findings.problem(
                "no graph line: a history begins with its header",
                0 if self.findings.history.lines else "history",
            )
            return False
        for position, _ in headers[1:]:
            self.findings.problem("a second graph line: a folder holds one history", position)
        position, header = headers[0]
        self.header = header
        self.ordered = header.ordered
        self.blocks = header.blocks
        self.by_receipt = header.by_receipt
        self.waits = header.mode not in MODES_WITHOUT_DURABILITY
        self.replays = header.mode in MODES_THAT_REPLAY
        if not 1 <= header.format <= FORMAT_BY_RECEIPT:
            known = f"formats 1 to {FORMAT_BY_RECEIPT} are known"
            self.findings.problem(f"the format is {header.format}; {known}", position)
        for name, entry in header.operators.items():
            if entry.kind not in ("stateful", "stateless"):
                self.findings.problem(
                    f"operator {name}: kind is {entry.kind!r}; expected 'stateful' or 'stateless'", position
                )
            if entry.join not in ("combine", "interleave", "first"):
                self.findings.problem(
                    f"operator {name}: join is {entry.join!r}; expected 'combine', 'interleave' or 'first'",
                    position,
                )
            unknown = [
                source for source in entry.inputs if source != FRONTEND and source not in header.operators
            ]
            if unknown:
                self.findings.problem(
                    f"operator {name}: input {unknown[0]!r} is neither 'F' nor an operator", position
                )
            self.operators[name] = OperatorTable(name, entry)
        self._sort_operators(position)
        return True

    def _sort_operators(self, header: int) -> None:
        waiting = dict(self.operators)
        while waiting:
            ready = [
                name
                for name, table in waiting.items()
                if not any(source in waiting for source in table.sources)
            ]
            if not ready:
                self.findings.problem(
                    f"the operators {', '.join(waiting)} form a cycle; feedback goes through 'F!'", header
                )
                ready = list(waiting)
            self.order += [waiting.pop(name) for name in ready]

    # ---- lines ----

    def _run_again(self) -> set[int]:
        """Where units stand that an end has cut off, and that were run again, alike, in a later epoch; and,
        without a state, those that were run before."""
        ends: dict[tuple[str, int], int] = {}
        for line in self.findings.history.lines:
            if isinstance(line, FailoverLine):
                ends[line.op, line.epoch - 1] = line.end
        newest: dict[tuple[object, ...], int] = {}
        again: set[int] = set()
        for position, line in sorted(self._execs(), key=lambda item: (item[1].epoch, item[0]), reverse=True):
            keys: list[tuple[object, ...]] = [(line.op, line.req, line.lane, line.out, line.seq)]
            if line.out is not None:
                keys.append((line.op, line.req, line.lane, line.out))
            is_cut = line.seq is None or line.seq > ends.get((line.op, line.epoch), line.seq)
            if is_cut and any(newest.get(key, 0) > line.epoch for key in keys):
                again.add(position)
            for key in keys:
                newest.setdefault(key, line.epoch)
        return again

    def _execs(self) -> Iterator[tuple[int, ExecLine]]:
        for position, line in enumerate(self.findings.history.lines):
            if isinstance(line, ExecLine):
                yield position, line

    def _sort_lines(self) -> None:
        again = self._run_again() if self.replays else set()
        for position, line in enumerate(self.findings.history.lines):
            if isinstance(line, ExecLine):
                if position not in again:
                    self._take_exec(position, line)
            elif isinstance(line, ApplyLine):
                if (table := self._stateful(position, line.op)) is not None:
                    table.applies.append((position, line))
                    table.stretch(line.epoch)
            elif isinstance(line, DurableLine):
                if (table := self._stateful(position, line.op)) is not None:
                    table.durables.append((position, line))
                    table.stretch(line.epoch).durable.append((line.version, position))
            elif isinstance(line, StableLine):
                if (table := self._stateful(position, line.op)) is not None:
                    table.stretch(line.epoch).stable.append((line.version, position))
            elif isinstance(line, LogLine):
                self.logs.setdefault(line.req, []).append((position, line))
            elif isinstance(line, ReplyLine):
                self.replies.setdefault(line.req, []).append((position, line))
            elif isinstance(line, CompleteLine):
                self.completes.setdefault(line.req, position)
            elif isinstance(line, CallLine):
                self.calls.append((position, line))
            elif isinstance(line, RetLine):
                self.rets.append((position, line))
            elif isinstance(line, FailoverLine):
                self._take_failover(position, line)
            else:
                self._take_rare(position, line)

    def _take_rare(self, position: int, line: object) -> None:
        if isinstance(line, LostLine):
            self._take_lost(position, line)
        elif isinstance(line, FaultLine):
            self.last_fault = position
        elif isinstance(line, HealLine):
            self.last_heal = position
        elif isinstance(line, FinalLine):
            if self.final is not None:
                self.findings.problem("a second final line", position)
            self.final = (position, line)

    def _stateful(self, position: int, name: str) -> OperatorTable | None:
        table = self.operators.get(name)
        if table is None:
            self.findings.problem(f"operator {name!r} is not in the graph line", position)
        elif not table.stateful:
            self.findings.problem(
                f"operator {name!r} is stateless in the graph line: it has no versions", position
            )
            return None
        return table

    def _take_exec(self, position: int, line: ExecLine) -> None:
        table = self.operators.get(line.op)
        if table is None:
            self.findings.problem(f"operator {line.op!r} is not in the graph line", position)
            return
        if table.stateful:
            if line.seq is None or line.version is None:
                self.findings.problem(
                    f"an exec of the stateful operator {line.op} needs seq and version", position
                )
                return
            if line.version < line.seq or line.seq < 1:
                self.findings.problem(
                    f"seq {line.seq}, version {line.version}: a version is the last seq of its batch, and "
                    "seqs begin with 1",
                    position,
                )
                return
            units = table.stretch(line.epoch).units
            first = units.setdefault(line.seq, (position, line))
            if first[1] is not line:
                self._compare(first, position, line)
                return
        elif line.out is None:
            self.findings.problem(
                f"an exec of the stateless operator {line.op} without a value: skips have no line", position
            )
            return
        if line.out is not None:
            first = self.producers.setdefault(line.out, (position, line))
            if first[1] is not line:
                if (
                    not table.stateful
                    and _same(first[1], line)
                    and first[1].epoch == line.epoch
                    and first[1].slot == line.slot
                ):
                    return
                self.findings.problem(
                    f"value id {line.out} names two executions, see {self.findings.history.where(first[0])}",
                    position,
                )
        table.execs.append((position, line))

    def _compare(self, first: Exec, position: int, line: ExecLine) -> None:
        if not _same(first[1], line):
            self.findings.violation(
                "I5",
                f"two different units of {line.op} at epoch {line.epoch}, seq {line.seq}: {_unit(first[1])} "
                f"and {_unit(line)}",
                first[0],
                position,
            )
            if line.out is not None:
                # The consumer of the second one is reported with this, not with a value that nobody computed.
                self.producers.setdefault(line.out, (position, line))

    def _take_failover(self, position: int, line: FailoverLine) -> None:
        if line.op not in self.operators and line.op.startswith(f"{FRONTEND}/"):
            return
        table = self._stateful(position, line.op)
        if table is None:
            return
        # The epoch that it ended may have no line of its own, and still an end that something must have led
        # to.
        for epoch in range(max(1, line.epoch - 1), line.epoch + 1):
            table.stretch(epoch)
        first, known = table.failovers.setdefault(line.epoch, (position, line))
        if (known.end, known.i) != (line.end, line.i):
            self.findings.violation(
                "I5",
                f"two different failovers of {line.op} to epoch {line.epoch}: end {known.end}, {known.i}, "
                f"and end {line.end}, {line.i}",
                first,
                position,
            )
        elif line.gen < known.gen:
            # An instance that learns of it later writes the generation it acts on: the lowest is the one that
            # it was committed in.
            table.failovers[line.epoch] = (first, line)

    def _take_lost(self, position: int, line: LostLine) -> None:
        table = self.operators.get(line.op)
        if table is not None:
            table.lost.append((position, line))
            if line.kind is None:
                table.lost_from = line.epoch if table.lost_from is None else min(table.lost_from, line.epoch)
            elif line.kind == "restarted":
                table.restarts.setdefault(line.epoch, {}).setdefault(line.version, position)
            table.stems = table.stems or line.kind == "stems"
        elif line.op.startswith(f"{FRONTEND}/") and line.op[2:].isdigit():
            shard = int(line.op[2:])
            if line.kind is None:
                self.lost_shards[shard] = inf
            elif line.kind == "restarted":
                self.lost_shards[shard] = max(line.epoch, self.lost_shards.get(shard, 0))
            elif line.kind == "gone":
                self.gone_shards.add(line.op)
        else:
            self.findings.problem(f"operator {line.op!r} is not in the graph line", position)

    def wanted(self, name: str) -> int:
        """How many backups in sync an operator is to have."""
        want = None if self.header is None else self.header.want
        if isinstance(want, dict):
            return want.get(name, 0)
        return 0 if want is None else want

    def has_lost(self, request: str) -> bool:
        """Whether the log that had this request was reported lost: what was logged in a later epoch of its
        shard was not."""
        shard = request.partition("/")[0]
        lost = self.lost_shards.get(int(shard)) if shard.isdigit() else None
        if lost is None:
            return False
        epochs = [line.epoch for _, line in self.logs.get(request, ()) if line.epoch is not None]
        return not epochs or min(epochs) <= lost

    def announced(self, stretch: Stretch) -> list[tuple[int, int]]:
        """(version, position) of what was said in an epoch that counts for who depends on it."""
        return stretch.stable if self.by_receipt else stretch.durable

    # ---- epochs of a stateful operator ----

    def _chain(self, table: OperatorTable) -> None:
        if not table.stateful or not table.stretches:
            return
        table.stretches = dict(sorted(table.stretches.items()))
        known = list(table.stretches.values())
        before: Stretch | None = None
        for stretch in known:
            stretch.seqs = sorted(stretch.units)
            self._batches(table, stretch)
            self._begin(table, stretch, before)
            if before is not None:
                before.next, stretch.prev = stretch, before
                before.end = stretch.start
                before.lost_at = self._loss(table, before, stretch)
                if before.lost_at is None:
                    before.judged_end = before.end
                else:
                    before.lost_above = before.end
            before = stretch
        lowest_end: int | None = None
        for stretch in reversed(known):
            if stretch.end is not None:
                lowest_end = stretch.end if lowest_end is None else min(lowest_end, stretch.end)
            stretch.lowest_end = lowest_end
            if table.lost_from is not None:
                stretch.lost_above = lowest_end
            elif (after := stretch.next) is not None and after.lost_above is not None:
                if stretch.lost_above is None or after.lost_above < stretch.lost_above:
                    stretch.lost_above = after.lost_above
                stretch.lost_at = after.lost_at if stretch.lost_at is None else stretch.lost_at
            if stretch.lost_above is not None:
                for seq, (_, line) in stretch.units.items():
                    if seq > stretch.lost_above:
                        table.lost_units.add((line.req, line.lane))
                        table.lost_inputs.update(line.inputs)

    @staticmethod
    def _loss(table: OperatorTable, before: Stretch, stretch: Stretch) -> int | None:
        """Where it was said that what lies beyond the end of `before` is lost; None if it was not, or another
        version was named."""
        if table.lost_from is not None and stretch.epoch >= table.lost_from:
            return min(position for position, _ in table.lost)
        said = [
            table.restarts[epoch][stretch.start]
            for epoch in range(before.epoch, stretch.epoch)
            if stretch.start in table.restarts.get(epoch, ())
        ]
        return min(said, default=None)

    def _batches(self, table: OperatorTable, stretch: Stretch) -> None:
        version = 0
        for seq in stretch.seqs:
            position, line = stretch.units[seq]
            assert line.version is not None
            if seq <= version != line.version:
                self.findings.problem(
                    f"{table.name}, epoch {stretch.epoch}: seq {seq}, version {line.version}, lies in the "
                    f"batch that ends with {version}",
                    position,
                )
            version = line.version

    def _begin(self, table: OperatorTable, stretch: Stretch, before: Stretch | None) -> None:
        epoch = stretch.epoch
        first = max(2, 2 if before is None else before.epoch + 1)
        last = epoch - 1 if epoch in table.failovers else epoch
        # what survived of it is not asked for: its successor may have died before it wrote the line
        if table.lost_from is not None:
            last = min(last, table.lost_from)
        missing = [
            number
            for number in range(first, last + 1)
            if number - 1 not in table.restarts
            and self._said_later(table, number) is None
            # Its primary died before it wrote anything, and what it had is said to be lost.
            and not ((number < epoch or stretch.is_empty) and number in table.restarts)
        ]
        if missing:
            which = f"epoch{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            self.findings.problem(
                f"{table.name}: {which} without a failover line, so what was kept of the epoch before is "
                "not known",
                "history",
            )
        failover = table.failovers.get(epoch)
        if failover is not None:
            stretch.began, stretch.start, stretch.gen = failover[0], failover[1].end, failover[1].gen
        elif before is not None and (said := self._said_later(table, epoch)) is not None:
            stretch.began, stretch.start, stretch.gen = said[0], said[1].end, said[1].gen
            for position, line in table.applies:
                if line.epoch == epoch and line.version != stretch.start and not self.by_receipt:
                    why = (
                        f"epoch {said[1].epoch} says that it began at {stretch.start}, and its primary did "
                        "nothing"
                    )
                    self.findings.problem(
                        f"{table.name}: version {line.version} applied in epoch {epoch}, although {why}",
                        position,
                    )
        elif epoch - 1 in table.restarts:
            stretch.start = max(table.restarts[epoch - 1])
        elif before is not None:
            # Not known: judge as if everything that the next epoch does not write itself was kept.
            newest = before.seqs[-1] if before.seqs else before.start
            stretch.start = min(newest, stretch.seqs[0] - 1) if stretch.seqs else newest

    def _said_later(self, table: OperatorTable, epoch: int) -> tuple[int, FailoverLine] | None:
        """The failover that tells where an epoch began of which no line tells: the next one, if its primary
        died before it did anything. Ends never decrease, and it added nothing. Not across a loss; and who
        writes in order has written the line with the commit."""
        stretch = table.stretches.get(epoch)
        later = min((number for number in table.failovers if number > epoch), default=None)
        if self.ordered or later is None or (stretch is not None and not stretch.is_empty):
            return None
        return (
            None
            if (table.lost_from is not None and epoch < table.lost_from < later)
            or any(epoch <= number < later for number in table.restarts)
            else table.failovers[later]
        )


def _same(one: ExecLine, other: ExecLine) -> bool:
    return (one.i, one.req, one.lane, one.inputs, one.out, one.route, one.version, one.chain) == (
        other.i,
        other.req,
        other.lane,
        other.inputs,
        other.out,
        other.route,
        other.version,
        other.chain,
    )


def _unit(line: ExecLine) -> str:
    return f"{name_of(line)} by {line.i}, value {line.out}"


def name_of(line: ExecLine) -> str:
    """A unit as people read it: request and, if there is one, lane."""
    return f"{line.req}[{','.join(line.lane)}]" if line.lane else line.req
