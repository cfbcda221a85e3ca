"""Which suspects a manager may act against (protocol.md, sections 6 and 7.1).

Law: a primary is revoked only when another in-sync member of its set, or the former state of a member, has
just answered, so never the last replica of a state. Nothing here sends or remembers anything.
"""

from typing import TYPE_CHECKING

from hams_protocol.due import FOREVER
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Health
from hams_protocol.recovery import assign
from hams_protocol.recovery.suspicions import Suspicion
from hams_protocol.topology import ReplicaSet

if TYPE_CHECKING:
    from hams_protocol.recovery.machine import ManagerMachine


class Verdicts:
    """The judgement of one manager on its suspects, as far as it is this manager's turn."""

    def __init__(self, manager: "ManagerMachine") -> None:
        self._m = manager
        self._ctx = manager.ctx
        self._knowledge = manager.knowledge
        self._suspicions = manager.suspicions

    def to_replace(self) -> set[InstanceId]:
        """Confirmed suspects to be revoked by the very commit that replaces them: slot owners, and primaries
        whose sets have an in-sync member to freeze, whose answer is the proof that another replica lives.

        Asking binds nobody, so it need not wait for the revocation. Once an attempt has frozen the backups of
        an instance, it must finish replacing that instance: only a new topology unfreezes them.
        """
        topology = self._knowledge.topology
        leaders = {item.primary for item in topology.sets if item.primary is not None}
        # These stay, even if they answer again: their backups are frozen. Owners of slots alone do not: what
        # they keep for others may have become the only copy meanwhile.
        instances: set[InstanceId] = set()
        if self._m.attempt is not None:
            instances |= self._m.attempt.to_replace & leaders
        out = {*self._suspicions.open, *topology.revoked}
        for suspicion in self._suspicions.confirmed():
            needed = [item for item in topology.sets if self.is_needed(suspicion.instance, item)]
            if any(item.primary == suspicion.instance for item in topology.sets):
                joint = all(
                    item.primary == suspicion.instance and self._may_freeze(item, out) for item in needed
                )
            else:
                joint = not needed and self._owns_slot(suspicion.instance) and self._has_substitute(suspicion)
            if joint:
                instances.add(suspicion.instance)
        return instances

    def _may_freeze(self, item: ReplicaSet, out: set[InstanceId]) -> bool:
        """Whether a backup in sync that is not suspected may stand in for the primary now."""
        if item.lost or self._ctx.now < self._m.retry_at.get(item.name, -FOREVER):
            return False
        return any(peer not in out and peer not in self._suspicions.down for peer in item.in_sync)

    def _owns_slot(self, instance: InstanceId) -> bool:
        return any(
            slot.instance == instance for table in self._knowledge.topology.tables for slot in table.slots
        )

    def to_revoke(self) -> set[InstanceId]:
        """Confirmed suspects that somebody can stand in for; a primary only if an in-sync member has just
        answered."""
        topology = self._knowledge.topology
        instances: set[InstanceId] = set()
        for suspicion in self._suspicions.confirmed():
            if any(item.primary == suspicion.instance for item in topology.sets):
                replaced = all(
                    self._has_successor(item, suspicion)
                    for item in topology.sets
                    if self.is_needed(suspicion.instance, item)
                )
            else:
                needed = any(self.is_needed(suspicion.instance, item) for item in topology.sets)
                owns = self._owns_slot(suspicion.instance)
                replaced = not needed and owns and self._has_substitute(suspicion)
            if replaced:
                instances.add(suspicion.instance)
        return instances

    def is_needed(self, instance: InstanceId, item: ReplicaSet) -> bool:
        """Whether the set needs another replica before this one may go: it leads the set, or backs one that
        has lost its primary, or keeps one."""
        revoked = self._knowledge.topology.revoked
        backs = instance in item.in_sync and item.primary in revoked
        return item.primary == instance or backs or self._keeps(instance, item)

    def _keeps(self, instance: InstanceId, item: ReplicaSet) -> bool:
        """Whether it is the keeper of a set whose primary has not just said that it has the state: that may
        be dead, or waiting for the keeper's copy. Of a lost state it counts while it may have that, and while
        it answers."""
        if instance not in item.keepers or self._has_just_led(item, instance):
            return False
        if item.lost:
            losses = self._m.losses
            return losses.may_wake_up(item, instance) or losses.answers(item, instance)
        # What was with one that has no lease, and where nobody listens, went with it: no primary gets it.
        dead = self._suspicions.is_gone(instance) and self._suspicions.is_refused(instance)
        return not dead or item.primary in self._knowledge.topology.revoked

    def _has_just_led(self, item: ReplicaSet, suspect: InstanceId) -> bool:
        """Whether the set's primary has answered as such since the suspect was asked, and nothing bad is
        known of it.

        What it said before it was suspected itself does not count: a request may take its model first, then
        its proxy.
        """
        suspicion, primary = self._suspicions.open.get(suspect), item.primary
        if suspicion is None or primary is None or primary in self._knowledge.topology.revoked:
            return False
        if primary in self._suspicions.open or primary in self._suspicions.down:
            return False
        return self._suspicions.held_at.get((primary, item.name, item.epoch), -FOREVER) >= suspicion.asked_at

    def _has_successor(self, item: ReplicaSet, suspicion: Suspicion) -> bool:
        """A revoked one may still answer, but it will never act again; the state that one has kept may."""
        topology, suspicions = self._knowledge.topology, self._suspicions
        out = {*suspicions.open, *topology.revoked}
        if any(
            suspicions.answered_at.get(peer, -FOREVER) >= suspicion.asked_at and peer not in out
            for peer in item.in_sync
        ):
            return True
        # Only what was said since the suspect was asked counts: an older answer says nothing of who lives
        # now.
        rescuers = [peer for peer in assign.returned(self._m.members, item) if peer not in out]
        if suspicion.health is None and assign.fresh_primary(suspicions.living(), item.name, item, topology):
            # Not if the primary's proxy lives: it has a fresh model sooner. Of a keeper only the proxy
            # counts, whatever its own model does.
            rescuers += [
                peer
                for peer in item.keepers
                if peer not in topology.revoked and not suspicions.is_silent(peer)
            ]
        return any(
            suspicions.held_at.get((peer, item.name, item.epoch), -FOREVER) >= suspicion.asked_at
            for peer in rescuers
        )

    def _has_substitute(self, suspicion: Suspicion) -> bool:
        """A dead slot owner is revoked at once; one whose proxy lives only if another instance, which is not
        suspected itself nor about to end, can take its slots."""
        if suspicion.health is None:
            return True
        topology = self._knowledge.topology
        ops = [
            table.op
            for table in topology.tables
            if any(slot.instance == suspicion.instance for slot in table.slots)
        ]
        # The suspect itself is not among the living.
        living, departed = self._suspicions.living(), self._m.departed.instances
        return all(set(assign.candidates(living, op, topology)) - departed for op in ops)

    def to_roll_back(self) -> list[str]:
        """Sets whose primary, still in the epoch of which it said so, lives without its state, and has no
        backup to stand in for it. One that is silent by now can go back to nothing: its set waits for it, or
        is lost, and may begin again."""
        names: set[str] = set()
        for suspicion in self._suspicions.open.values():
            if suspicion.health is not Health.NEEDS_ROLLBACK:
                continue
            for name, epoch in suspicion.rollbacks.items():
                item = self._knowledge.topology.find(name)
                if (item.primary, item.epoch) == (suspicion.instance, epoch) and not item.in_sync:
                    names.add(name)
        return sorted(names)

    def must_wait(self, item: ReplicaSet) -> bool:
        """All who could take over fail their probes: the state is not lost, it waits until one of them
        answers."""
        revoked = self._knowledge.topology.revoked
        successors = [peer for peer in (*item.in_sync, *item.keepers) if peer not in revoked]
        returned = assign.returned(self._m.members, item)
        return bool(successors) and all(self._suspicions.is_silent(peer) for peer in (*successors, *returned))
