"""I4 and the chains of I1: each (request, lane) once in a surviving history, and there if a value was routed
to it. What it may consume there: `edges.py`.

The `route` of an execution names the receivers of its value; a request's input goes to every operator that
the header connects to "F". What is not known is not judged: whether an edge from the frontend carried a skip
because optional tensors were absent.
"""

import hashlib

from hams_history.tables import FRONTEND, Exec, OperatorTable, Tables, UnitKey, name_of
from hams_history.visibility import Visibility


def chain_next(chain: str, out: str | None) -> str:
    """Our digest of a history and one more output; "" is the empty history, None the output of a skip."""
    return hashlib.blake2b(f"{chain}|{out}".encode(), digest_size=8).hexdigest()


class OnceEach:
    """Runs the checks when built."""

    def __init__(self, tables: Tables, visibility: Visibility) -> None:
        self.tables = tables
        self.findings = tables.findings
        self.visible = visibility.values
        self.tainted = visibility.tainted
        self.units: dict[str, dict[UnitKey, Exec]] = {}
        self.consumed: dict[str, set[str]] = {}
        self.valued: dict[str, dict[UnitKey, Exec]] | None = None
        for table in tables.order:
            self._index(table)
            self._chains(table)
        if tables.completes:
            for table in tables.order:
                self._nothing_missing(table)
            self._no_input_missing()

    def _index(self, table: OperatorTable) -> None:
        units: dict[UnitKey, Exec] = {}
        consumed: set[str] = set()
        if table.stateful:
            for seq, survivor in table.surviving():
                line = survivor[1]
                consumed.update(line.inputs)
                key = (line.req, line.lane)
                first = units.setdefault(key, survivor)
                if first is not survivor:
                    self.findings.violation(
                        "I4",
                        f"{name_of(line)} is twice in the surviving history of {table.name}: at seq "
                        f"{first[1].seq} of epoch {first[1].epoch} (value"
                        f" {first[1].out}) and at seq {seq} of epoch {line.epoch} (value {line.out})",
                        first[0],
                        survivor[0],
                    )
        else:
            for survivor in table.execs:
                consumed.update(survivor[1].inputs)
                units[survivor[1].req, survivor[1].lane] = survivor
        self.units[table.name] = units
        self.consumed[table.name] = consumed

    # ---- missing where a value was routed to ----

    def _nothing_missing(self, table: OperatorTable) -> None:
        completes, visible, operators = self.tables.completes, self.visible, self.tables.operators
        for exec_line in table.execs:
            line = exec_line[1]
            if line.out not in visible or line.req not in completes:
                continue
            for target in line.route:
                if target in operators and line.out not in self.consumed[target]:
                    self._judge_missing(operators[target], exec_line)

    def _judge_missing(self, target: OperatorTable, exec_line: Exec) -> None:
        position, line = exec_line
        assert line.out is not None
        if target.lost_from is not None or line.out in self.tainted:
            return
        if line.out in target.lost_inputs or (line.req, line.lane) in target.lost_units:
            return
        unit = self.units[target.name].get((line.req, line.lane))
        if target.join == "first" and unit is not None:
            return
        if unit is not None and not self.tainted.isdisjoint(unit[1].inputs):
            # a state that was reported lost ran the request again; downstream keeps what it had from before
            # the loss
            return
        if target.join == "combine" and not self._every_source_gave(target, line.req, line.lane):
            # A required input may have been a skip: then the unit forwards one, and a stateless operator
            # writes no line. What it had executed before, on what became orphan since, it has taken back.
            if not target.stateful and (unit is None or unit[1].out not in self.visible):
                return
            if unit is not None and unit[1].out is None:
                return
        others = () if unit is None else (unit[0],)
        if unit is None:
            what = "has no unit of it" + (" in its surviving history" if target.stateful else "")
        elif unit[1].out is None:
            what = "took it for a skip"
        else:
            what = f"executed without it, on {', '.join(unit[1].inputs)}"
        self.findings.violation(
            "I4",
            f"{line.req} is complete and {line.op} routed {line.out} to {target.name}, which {what}",
            position,
            *others,
            self.tables.completes[line.req],
        )

    def _every_source_gave(self, target: OperatorTable, request: str, lane: tuple[str, ...]) -> bool:
        """Whether every in-edge of a Combine that it requires (all, where that is not known) brought a value:
        then nothing excuses a skip."""
        if self.valued is None:
            self.valued = {}
            for table in self.tables.order:
                self.valued[table.name] = {
                    (line.req, line.lane): (at, line) for at, line in table.execs if line.out in self.visible
                }
        for source in target.sources if target.required is None else target.required:
            if source == FRONTEND:
                if any(log.source is not None for _, log in self.tables.logs.get(request, ())):
                    return False
                continue
            value = self.valued[source].get((request, lane)) if source in self.valued else None
            if value is None or target.name not in value[1].route:
                return False
        return True

    def _no_input_missing(self) -> None:
        """A client's request reaches every stateful operator behind the frontend: even a unit of skips takes
        a seq there."""
        entries = [
            table
            for table in self.tables.order
            if table.stateful and FRONTEND in table.sources and table.lost_from is None
        ]
        for request, position in self.tables.completes.items():
            logs = self.tables.logs.get(request)
            if not logs or logs[0][1].source is not None:
                continue
            for table in entries:
                if any(key[0] == request for key in table.lost_units):
                    continue
                if request not in self.consumed[table.name] and not any(
                    key[0] == request for key in self._keys(table, request)
                ):
                    self.findings.violation(
                        "I4",
                        f"{request} is complete, and its input goes to {table.name}, which has no unit of "
                        "it in its surviving history",
                        logs[0][0],
                        position,
                    )

    def _keys(self, table: OperatorTable, request: str) -> list[UnitKey]:
        units = self.units[table.name]
        if table.join != "interleave":
            return [(request, ())] if (request, ()) in units else []
        return [key for key in units if key[0] == request]

    # ---- chains (I1) ----

    def _chains(self, table: OperatorTable) -> None:
        if not table.stateful:
            return
        known: dict[tuple[int, int], tuple[str, int]] = {}
        for stretch in table.stretches.values():
            for seq in stretch.seqs:
                position, line = stretch.units[seq]
                if line.chain is not None:
                    known[stretch.epoch, seq] = (line.chain, position)
        for position, apply in table.applies:
            owner = table.stretches[apply.epoch].owner(apply.version)
            if apply.version > 0 and apply.version > owner.start and apply.version not in owner.units:
                self.findings.violation(
                    "I1",
                    f"{apply.i} applied version {apply.version} of {table.name}, epoch {apply.epoch}, which "
                    "nobody computed",
                    position,
                )
            if apply.chain is None:
                continue
            epoch = owner.epoch if apply.version > 0 else 0
            first = known.setdefault((epoch, apply.version), (apply.chain, position))
            if first[0] != apply.chain:
                self.findings.violation(
                    "I1",
                    f"the chain differs: {apply.i} holds chain {apply.chain} at version {apply.version} of "
                    f"{table.name}, epoch {apply.epoch}; the"
                    f" history has {first[0]}",
                    position,
                    first[1],
                )
        self._digests(table)

    def _digests(self, table: OperatorTable) -> None:
        """Every chain follows from the one before: a promoted primary that goes on from a wrong state is seen
        at its first unit.

        The format leaves the digest open. If one step of the history is made by ours, all must be.
        """
        steps: list[tuple[bool, Exec, Exec | None]] = []
        for stretch in table.stretches.values():
            before: Exec | None = None if stretch.start == 0 else stretch.find(stretch.start)
            expected = 1 if stretch.start == 0 else stretch.start + 1
            for seq in stretch.seqs:
                unit = stretch.units[seq]
                chain = "" if seq == 1 else before[1].chain if before is not None else None
                if seq == expected and chain is not None and unit[1].chain is not None:
                    steps.append((chain_next(chain, unit[1].out) == unit[1].chain, unit, before))
                before, expected = unit, seq + 1
        if not any(right for right, _, _ in steps):
            return
        for right, (position, line), before in steps:
            if not right:
                base = "the empty history" if before is None else f"{before[1].chain} at seq {before[1].seq}"
                self.findings.violation(
                    "I1",
                    f"the chain differs: {line.i} executed seq {line.seq} of {table.name}, epoch "
                    f"{line.epoch}, with chain {line.chain}, which"
                    f" does not follow from {base} and value {line.out}",
                    position,
                    *(() if before is None else (before[0],)),
                )
