"""I1 under Block: a version is durable once another instance has it.

Elsewhere nothing is said of it: a primary without a backup goes on alone, and the lines do not tell when it
had one. Nor do they tell what was received and not applied yet.
"""

from hams_history.tables import OperatorTable, Tables


class HeldTwice:
    """Runs the check when built."""

    def __init__(self, tables: Tables) -> None:
        self.findings = tables.findings
        if tables.blocks and tables.waits and not (tables.replays or tables.by_receipt):
            for table in tables.order:
                if table.stateful and table.lost_from is None and tables.wanted(table.name):
                    self._judge(table)

    def _judge(self, table: OperatorTable) -> None:
        held = self._held(table)
        for position, line in table.durables:
            if line.version <= 0:
                continue  # as every model begins
            if not any(version >= line.version for i, version in held.items() if i != line.i):
                self.findings.violation(
                    "I1",
                    f"{line.i} called version {line.version} of {table.name}, epoch {line.epoch}, durable "
                    "under Block, and no other instance ever had it",
                    position,
                )

    @staticmethod
    def _held(table: OperatorTable) -> dict[str, int]:
        """The newest version that each instance has applied or executed, in any epoch."""
        held: dict[str, int] = {}
        for _, apply in table.applies:
            held[apply.i] = max(held.get(apply.i, 0), apply.version)
        for _, line in table.execs:
            assert line.version is not None
            held[line.i] = max(held.get(line.i, 0), line.version)
        return held
