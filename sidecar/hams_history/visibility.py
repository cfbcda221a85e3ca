"""I1 and I2: what became visible, from the sinks of the graph up, and whether it survived and was unique.

*Visible* is the closure of every reply, durable version and fed-back value. Of a state whose version is
visible everything up to it is, so per epoch one watermark says it all, and one pass against the order of the
graph gives every visible value.
"""

from collections import deque
from collections.abc import Iterable

from hams_history.tables import Exec, OperatorTable, Stretch, Tables, UnitKey, name_of


class Visibility:
    """`values`: every visible value id, inputs of requests included. `tainted` are exempt from I2: they stem
    from a state reported lost."""

    def __init__(self, tables: Tables, tainted: set[str]) -> None:
        self.tables = tables
        self.findings = tables.findings
        self.tainted = tainted
        self.values: set[str] = set()
        for replies in tables.replies.values():
            for _, reply in replies:
                self.values.update(reply.values)
        for logs in tables.logs.values():
            for _, log in logs:
                if log.source is not None:
                    self.values.add(log.source)
        for table in reversed(tables.order):
            if table.stateful:
                self._mark_versions(table)
                self._take_versions(table)
            else:
                self._take_values(table)
        self._computed()
        for table in tables.order:
            self._one_value(table)

    # ---- marking ----

    def _take_values(self, table: OperatorTable) -> None:
        values = self.values
        for _, line in table.execs:
            if line.out in values:
                values.update(line.inputs)

    def _mark_versions(self, table: OperatorTable) -> None:
        for stretch in table.stretches.values():
            for version, position in stretch.durable:
                stretch.mark = max(stretch.mark, version)
                self._durable_survives(table, stretch, version, position)
        values = self.values
        for _, line in table.execs:
            if line.out in values:
                assert line.version is not None
                stretch = table.stretches[line.epoch]
                stretch.mark = max(stretch.mark, line.version)

    def _take_versions(self, table: OperatorTable) -> None:
        values = self.values
        for stretch in reversed(table.stretches.values()):
            mark, start = stretch.mark, stretch.start
            if stretch.prev is not None:
                stretch.prev.mark = max(stretch.prev.mark, min(mark, start))
            if (
                stretch.prev is not None
                and start < stretch.prev.start
                and not self.tables.by_receipt  # an end may go back; not below what was durable
                and not self._exempt(table, stretch)
            ):
                self._end_decreases(table, stretch, stretch.prev)
            self._whole_batches(table, stretch)
            newest = 0
            for seq in stretch.seqs:
                line = stretch.units[seq][1]
                if seq <= start:
                    if line.out in values:
                        values.update(line.inputs)
                        self._overwritten(table, stretch, seq)
                elif seq <= mark:
                    newest += 1
                    values.update(line.inputs)
                    if line.out is not None:
                        values.add(line.out)
                else:
                    break
            if mark > start:
                if newest < mark - start:
                    self._gap(table, stretch)
                self._survives(table, stretch)

    # ---- I1 ----

    @staticmethod
    def _exempt(table: OperatorTable, stretch: Stretch) -> bool:
        if stretch.prev is not None and stretch.prev.judged_end is None:
            return True
        return table.lost_from is not None and stretch.epoch >= table.lost_from

    def _end_decreases(self, table: OperatorTable, stretch: Stretch, before: Stretch) -> None:
        lines = [began for began in (stretch.began, before.began) if began is not None]
        self.findings.violation(
            "I1",
            f"ends of {table.name} decrease: epoch {before.epoch} began at {before.start}, but epoch "
            f"{stretch.epoch} keeps only {stretch.start}",
            *lines,
        )

    def _whole_batches(self, table: OperatorTable, stretch: Stretch) -> None:
        """States are captured per batch, so an epoch ends with a version; a unit kept without the rest of its
        batch depends on what is lost."""
        end, following = stretch.judged_end, stretch.next
        if end is None or following is None or end <= stretch.start or end not in stretch.units:
            return
        position, line = stretch.units[end]
        assert line.version is not None
        if line.version > end:
            began = () if following.began is None else (following.began,)
            self.findings.violation(
                "I1",
                f"epoch {stretch.epoch} of {table.name} ended at {end}, in the middle of the batch that "
                f"ends with version {line.version}: what"
                f" {name_of(line)} depends on is lost",
                *began,
                position,
            )

    def _first_end_below(self, stretch: Stretch, version: int) -> Stretch | None:
        """The epoch whose (judged) end cut this version off."""
        current: Stretch | None = stretch
        while current is not None:
            if current.judged_end is not None and version > current.judged_end:
                return current
            if current.judged_end is None and current.end is not None and version > current.end:
                return None  # a loss took it, and whatever ends later
            current = current.next
        return None

    def _durable_survives(self, table: OperatorTable, stretch: Stretch, version: int, position: int) -> None:
        cut = self._first_end_below(stretch, version)
        if cut is None:
            return
        assert cut.next is not None
        began = () if cut.next.began is None else (cut.next.began,)
        self.findings.violation(
            "I1",
            f"version {version} of {table.name} was called durable in epoch {stretch.epoch}, but epoch "
            f"{cut.epoch} ended at {cut.judged_end}",
            position,
            *began,
        )

    def _survives(self, table: OperatorTable, stretch: Stretch) -> None:
        cut = self._first_end_below(stretch, stretch.mark)
        if cut is None or any(version > (cut.judged_end or 0) for version, _ in stretch.durable):
            return
        assert cut.next is not None
        assert cut.judged_end is not None
        lost = [seq for seq in stretch.seqs if cut.judged_end < seq <= stretch.mark]
        first = stretch.units[lost[0]] if lost else None
        what = (
            f"{name_of(first[1])} at seq {lost[0]} (value {first[1].out})"
            if first is not None
            else f"version {stretch.mark}"
        )
        began = () if cut.next.began is None else (cut.next.began,)
        self.findings.violation(
            "I1",
            f"a visible unit of {table.name} is lost: {what} of epoch {stretch.epoch} is not in the "
            f"surviving history, epoch {cut.epoch} ended at"
            f" {cut.judged_end}",
            *(() if first is None else (first[0],)),
            *began,
            *self._seen_through(table, stretch, cut.judged_end + 1),
        )

    def _overwritten(self, table: OperatorTable, stretch: Stretch, seq: int) -> None:
        position, line = stretch.units[seq]
        began = () if stretch.began is None else (stretch.began,)
        self.findings.violation(
            "I1",
            f"a visible unit of {table.name} does not survive: {name_of(line)} (value {line.out}) has seq "
            f"{seq} in epoch {stretch.epoch},"
            f" which began after {stretch.start}",
            position,
            *began,
        )

    def _gap(self, table: OperatorTable, stretch: Stretch) -> None:
        """A seq below a visible version that nobody executed."""
        missing = next(seq for seq in range(stretch.start + 1, stretch.mark + 1) if seq not in stretch.units)
        around = [stretch.units[seq][0] for seq in (missing - 1, missing + 1) if seq in stretch.units]
        self.findings.violation(
            "I1",
            f"a visible value that nobody computed: version {stretch.mark} of {table.name}, epoch "
            f"{stretch.epoch}, is visible, but no line says who"
            f" executed seq {missing}",
            *around,
            *self._seen_through(table, stretch, missing),
        )

    def _computed(self) -> None:
        producers, logs = self.tables.producers, self.tables.logs
        unknown = [value for value in self.values if value not in producers and value not in logs]
        if unknown:
            wanted = set(unknown)
            users: dict[str, list[int]] = {}
            for table in self.tables.order:
                for position, line in table.execs:
                    for value in wanted.intersection(line.inputs):
                        users.setdefault(value, []).append(position)
            for replies in self.tables.replies.values():
                for position, reply in replies:
                    for value in wanted.intersection(reply.values):
                        users.setdefault(value, []).append(position)
            for value in sorted(unknown):
                kind = (
                    "an input that nobody logged"
                    if "/" in value and ":" not in value
                    else "a visible value that nobody computed"
                )
                self.findings.violation("I1", f"{kind}: {value}", *users.get(value, ()))
        for replies in self.tables.replies.values():
            for position, reply in replies:
                if reply.req not in logs:
                    self.findings.violation(
                        "I1", f"{reply.i} released a reply of {reply.req}, which nobody logged", position
                    )
                for value in reply.values:
                    self._same_request(position, reply.req, f"the reply of {reply.req}", value)
        for table in self.tables.order:
            for position, line in table.execs:
                for value in line.inputs:
                    if value != line.req:
                        self._same_request(position, line.req, f"{name_of(line)} of {table.name}", value)

    def _same_request(self, position: int, request: str, what: str, value: str) -> None:
        produced = self.tables.producers.get(value)
        if produced is not None and produced[1].req != request:
            self.findings.violation(
                "I1",
                f"{what} used a value that nobody computed for it: {value} belongs to "
                f"{name_of(produced[1])} of {produced[1].op}",
                position,
                produced[0],
            )

    # ---- I2 ----

    def _one_value(self, table: OperatorTable) -> None:
        values, tainted = self.values, self.tainted
        seen: dict[UnitKey, Exec] = {}
        for exec_line in table.execs:
            line = exec_line[1]
            if line.out is None or line.out not in values or line.out in tainted:
                continue
            first = seen.setdefault((line.req, line.lane), exec_line)
            if first[1].out != line.out:
                self._two_values(table, first, exec_line)

    def _two_values(self, table: OperatorTable, first: Exec, second: Exec) -> None:
        if self.findings.full("I2"):
            self.findings.count("I2")
            return
        outs = [line.out for line in (first[1], second[1]) if line.out is not None]
        users = [self._visible_user({out}) for out in outs]
        self.findings.violation(
            "I2",
            f"two visible values of {table.name} for {name_of(first[1])}: {outs[0]} by {first[1].i} and "
            f"{outs[1]} by {second[1].i}",
            first[0],
            *users[0],
            second[0],
            *users[1],
        )

    # ---- why something is visible; only for what is shown ----

    def _seen_through(self, table: OperatorTable, stretch: Stretch, seq: int) -> tuple[int, ...]:
        """A line that made the unit at `seq` visible, and those between."""
        for version, position in stretch.durable:
            if version >= seq:
                return (position,)
        outs = {
            line.out
            for _, line in stretch.units.values()
            if line.version is not None and line.version >= seq and line.out is not None
        }
        return self._visible_user(outs)

    def _visible_user(self, values: Iterable[str]) -> tuple[int, ...]:
        """The way down from any of these values to a reply, a durable version or a feedback line that shows
        it."""
        roots: dict[str, int] = {}
        for replies in self.tables.replies.values():
            for position, reply in replies:
                for value in reply.values:
                    roots.setdefault(value, position)
        for logs in self.tables.logs.values():
            for position, log in logs:
                if log.source is not None:
                    roots.setdefault(log.source, position)
        users: dict[str, list[Exec]] = {}
        for table in self.tables.order:
            for exec_line in table.execs:
                for value in exec_line[1].inputs:
                    users.setdefault(value, []).append(exec_line)
        came_from: dict[str, tuple[str | None, int | None]] = dict.fromkeys(values, (None, None))
        queue = deque(came_from)
        while queue:
            value = queue.popleft()
            if value in roots:
                return (*self._way(came_from, value), roots[value])
            for position, line in users.get(value, ()):
                shown = self._durable_through(line.op, line.epoch, line.seq)
                if shown is not None:
                    return (*self._way(came_from, value), position, shown)
                if line.out is not None and line.out not in came_from:
                    came_from[line.out] = (value, position)
                    queue.append(line.out)
        return ()

    def _durable_through(self, op: str, epoch: int, seq: int | None) -> int | None:
        table = self.tables.operators[op]
        if seq is None:
            return None
        current: Stretch | None = table.stretches.get(epoch)
        while current is not None:
            for version, position in current.durable:
                if version >= seq:
                    return position
            if current.end is not None and current.end < seq:
                return None
            current = current.next
        return None

    @staticmethod
    def _way(came_from: dict[str, tuple[str | None, int | None]], value: str) -> list[int]:
        way: list[int] = []
        current: str | None = value
        while current is not None:
            current, position = came_from[current]
            if position is not None:
                way.append(position)
        return way[::-1]
