"""What managers ask an instance of a stateful operator: is it alive, how far goes its state, does that hold
what is to end (protocol.md, 7).

Answers commit to nothing but what protocol.md says: who has answered a Freeze takes no record of that epoch
until it learns a higher generation, who has answered a Fence lets in nothing above its ends. Who knows a
newer topology than the question's, or an older one, refuses.
"""

from typing import TYPE_CHECKING

from hams_protocol.messages import (
    HOLDS,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Health,
    Probe,
    ProbeAnswer,
    Refused,
    RetainedVersion,
    RoleReport,
)
from hams_protocol.replica.freeze import refusal
from hams_protocol.stateful.receipts import survivors
from hams_protocol.versions import Version

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Questions:
    """Answers out of what the roles of this instance hold, and of the state that it has brought along."""

    def __init__(self, machine: "StatefulMachine") -> None:
        self._m = machine

    def probe(self, probe: Probe) -> ProbeAnswer:
        """Alive, in these roles; and the model too?"""
        m, former = self._m, self._m.former
        health = Health.HEALTHY if m.model_ready else Health.MODEL_DEAD
        if m.primary is not None and m.primary.needs_rollback:
            health = Health.NEEDS_ROLLBACK
        reports: tuple[RoleReport, ...] = (RoleReport(m.operator.name, m.role, m.epoch, m.version, m.ready),)
        if former is not None:
            reports += (RoleReport(former.op, HOLDS, former.epoch, former.settled, False),)
        return ProbeAnswer(
            probe.nonce,
            health,
            m.knowledge.topology.generation,
            (*reports, *m.checkpoints.report(), *m.keeper.reports()),
        )

    def freeze(self, freeze: Freeze) -> FreezeAnswer | Refused:
        """Take no record of this epoch any more; how far has it been applied?"""
        m = self._m
        generation = m.knowledge.topology.generation
        refused = refusal(freeze, m.instance, generation)
        if refused is not None:
            return refused
        version: Version | None = None
        retained: tuple[RetainedVersion, ...] = ()
        if m.backup is not None and m.backup.in_sync and m.epoch == freeze.epoch:
            m.backup.following.frozen.freeze(freeze.generation)
            version = m.store.at_or_below(m.backup.counted)
            if m.by_receipt:
                retained = survivors(m.store, m.knowledge, m.operator.name, m.backup.applied)
        elif m.former is not None and m.former.epoch == freeze.epoch:
            version = m.former.newest(m.knowledge, m.by_receipt)
            if m.by_receipt:
                retained = survivors(m.former.store, m.knowledge, m.operator.name, m.former.settled)
        applied, chain = (None, "") if version is None else (version.number, version.record.chain)
        return FreezeAnswer(freeze.attempt, generation, freeze.name, freeze.epoch, applied, chain, retained)

    def fence(self, fence: Fence) -> FenceAnswer | Refused:
        """Let in nothing above these ends; does the state hold any of it?"""
        m = self._m
        generation = m.knowledge.topology.generation
        if fence.generation != generation:
            return Refused(fence.attempt, generation, fence.name, "another topology is known here")
        if m.has_not_begun:
            return m.fenced_early(fence)
        if m.primary is None:
            return Refused(fence.attempt, generation, fence.name, "not the primary")
        return m.primary.fenced(fence)
