"""Mutants of what holds where backups answer for what they have received (ADR 0013)."""

from hams_sim.mutants import states
from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "clean-though-unknown": Mutant(
        "a fresh primary that has not got its state yet tells a Fence that it holds no orphan",
        "12",
        (
            Edit(
                "stateful.machine",
                "StatefulMachine.fenced_early",
                "unknown = self.by_receipt and (self.fetching is not None or bool(replica_set.keepers))",
                "unknown = False",
            ),
        ),
    ),
    "end-with-lost-deps": Mutant(
        "a set goes on from the newest version held, whatever that depends on",
        "12",
        (Edit("recovery.survival", "Survival._survives", "for dep in item.deps:", "for dep in ():"),),
    ),
    "ends-stay": Mutant(
        "an end is not sought anew when another one, upstream of it, sinks",
        "12",
        (
            Edit(
                "recovery.survival",
                "Survival.settle",
                "if move.choices is None or name in self._lost:",
                "if move.choices is None or name in self._lost or move.decided:",
            ),
        ),
    ),
    "epoch-forgets-deps": Mutant(
        "who begins an epoch forgets what the record depends on that it begins with",
        "12",
        (
            Edit(
                "stateful.execution",
                "Execution.__init__",
                "if machine.by_receipt:  # the record that it begins with need not be durable",
                "if False:",
            ),
        ),
    ),
    "held-version-dropped": Mutant(
        "a backup keeps the newest version that it holds, and not those that could be gone back to",
        "12",
        (Edit("stateful.backup", "Backup._keep", "keep_at_least=m.operator.window + 2", "keep_at_least=1"),),
    ),
    "keeper-copies-pending": Mutant(
        "a keeper gives a fresh primary a version that is still pending, with none to go back to",
        "12",
        (
            Edit(
                "stateful.keeper",
                "Keeper._copy_asked",
                "if held.backup.applied < held.backup.counted:",
                "if False:",
            ),
            Edit(
                "stateful.keeper",
                "Keeper._copy_asked",
                "version = held.store.at_or_below(held.backup.applied)",
                "version = held.store.at_or_below(held.backup.counted)",
            ),
        ),
    ),
    "receipt-before-held": Mutant(
        "a backup acknowledges a record though it lacks the one before",
        "12",
        (
            Edit(
                "stateful.backup",
                "Backup._record",
                "self._early[record.previous] = record",
                "self._early[record.previous] = record\n"
                "name, version = self._m.operator.name, record.version\n"
                "self._ctx.send(sender, RecordAck(name, self._epoch, version, version, differences=True))",
            ),
        ),
    ),
    "stable-before-all": Mutant(
        "a version is stable once one member of the ack set has received it",
        "12",
        states.MUTANTS["durable-before-all"].edits,
    ),
    "stable-is-durable": Mutant(
        "a primary calls durable what is stable, whatever it depends on",
        "12",
        (
            Edit(
                "stateful.durability",
                "Durability.advance",
                "target = newest_durable(m.store, m.knowledge, self.name, self.stable)",
                "target = self.stable",
            ),
        ),
    ),
}
