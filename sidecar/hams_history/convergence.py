"""I7: once the faults have ended, everything completes and every set is whole again.

Judged only where the harness says that it has waited: by its `final` line, after the last `heal`.
"""

from hams_history.lines import FinalLine, FinalOperator
from hams_history.tables import OperatorTable, Tables


class Converged:
    """Runs the checks when built."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.findings = tables.findings
        if tables.final is None:
            self.findings.skip("I7", "the history has no final line, so it may end anywhere")
            return
        if tables.last_fault is not None and (
            tables.last_heal is None or (tables.ordered and tables.last_heal < tables.last_fault)
        ):
            self.findings.skip("I7", "the last fault was not followed by a heal")
            return
        position, final = tables.final
        stopped = self._stopped(final)
        if stopped:
            self.findings.skip(
                "I7, completion",
                f"{', '.join(stopped)} is reported lost and has no primary: the graph may stop",
            )
        else:
            self._complete(position)
        self._operators(position, final)
        if final.open:
            shown = ", ".join(str(item) for item in final.open[:10])
            self.findings.violation("I7", f"{len(final.open)} left open at the end: {shown}", position)

    def _stopped(self, final: FinalLine) -> list[str]:
        lost = [name for name, table in self.tables.operators.items() if table.lost]
        lost += [name for name in sorted(self.tables.gone_shards) if name in final.ops]
        return [name for name in lost if (state := final.ops.get(name)) is None or state.primary is None]

    def _complete(self, final: int) -> None:
        for request, logs in self.tables.logs.items():
            if request not in self.tables.completes and not self.tables.has_lost(request):
                self.findings.violation(
                    "I7", f"request {request} was logged and never completed", logs[0][0], final
                )
        returned = {line.client for _, line in self.tables.rets}
        for position, call in self.tables.calls:
            if call.client not in returned:
                self.findings.violation(
                    "I7", f"the call of {call.client} (key {call.key}) never returned", position, final
                )

    def _operators(self, position: int, final: FinalLine) -> None:
        for name, table in self.tables.operators.items():
            if not table.stateful:
                continue
            states = final.ops.get(name)
            if states is None:
                self.findings.skip(f"I7, {name} at the end", "the final line does not name it")
            elif table.lost and states.primary is None:
                continue
            elif states.primary is None:
                self.findings.violation("I7", f"{name} has no primary at the end", position)
            elif (backups := _backups(states.insync, states.primary)) < (want := self.tables.wanted(name)):
                self.findings.violation(
                    "I7", f"{name} has {backups} backup(s) in sync at the end; {want} are wanted", position
                )
            if states is not None and states.primary is not None:
                self._as_it_ended(position, table, states)

        for name, states in final.ops.items():
            if name not in self.tables.operators and states.primary is None and not self._lost_shard(name):
                self.findings.violation("I7", f"{name} has no primary at the end", position)

    def _as_it_ended(self, position: int, table: OperatorTable, states: FinalOperator) -> None:
        """The primary at the end is in the newest epoch that there was, and holds what was durable in it."""
        if not table.stretches:
            return
        newest = next(reversed(table.stretches.values()))
        if states.epoch < newest.epoch and not newest.is_empty:
            self.findings.violation(
                "I7",
                f"{table.name} is in epoch {states.epoch} at the end, though epoch {newest.epoch} has begun",
                position,
            )
        elif states.epoch == newest.epoch and states.version is not None:
            held = max((version for version, _ in newest.durable), default=newest.start)
            if states.version < held:
                self.findings.violation(
                    "I1",
                    f"{states.primary} leads {table.name} at the end with version {states.version}; version "
                    f"{held} of epoch {newest.epoch} was kept or durable",
                    position,
                )

    def _lost_shard(self, name: str) -> bool:
        if name in self.tables.gone_shards:
            return True
        return name[2:].isdigit() and int(name[2:]) in self.tables.lost_shards


def _backups(in_sync: tuple[str, ...] | int, primary: str) -> int:
    return in_sync if isinstance(in_sync, int) else len(set(in_sync) - {primary})
