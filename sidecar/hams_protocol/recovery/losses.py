"""States of which no replica is left: said to be lost, found again, or begun again where policy or a person
says so (protocol.md, 7.2).

Nothing here revokes anybody who may yet come back with a state, but for the members of a set that begins
again without them.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.due import FOREVER
from hams_protocol.effects import Effect, Loss, NoteLost
from hams_protocol.graph import FRONTEND, WhenLost
from hams_protocol.ids import InstanceId
from hams_protocol.lateness import pause_s
from hams_protocol.messages import Probe, RoleReport
from hams_protocol.modes import is_run_again
from hams_protocol.recovery import assign
from hams_protocol.topology import ReplicaSet, Topology

if TYPE_CHECKING:
    from hams_protocol.recovery.machine import ManagerMachine


class Losses:
    """What one manager knows of lost states, and of the checkpoints that instances have read for them."""

    def __init__(self, machine: "ManagerMachine") -> None:
        self._m = machine
        self._ctx = machine.ctx
        self._saved: dict[tuple[InstanceId, str], tuple[int, int]] = {}
        self._awaited_since: dict[tuple[str, int, InstanceId], float] = {}
        self._hung_until: dict[str, float] = {}
        self._ask_at = self._holders_at = FOREVER

    def saved(self, sender: InstanceId, report: RoleReport) -> None:
        """An instance tells of the checkpoint that it has read."""
        self._saved[sender, report.name] = (report.epoch, max(report.version, 0))

    def lost_and_found(self, topology: Topology) -> tuple[Topology, list[Effect]]:
        """A set whose every member has lost its lease and fails its probe is lost, until one of them is
        registered again. None of them is revoked. A keeper that holds nothing by its own word is no holder;
        the loss takes its name away, or others would take it for one.

        That it does not fail this manager's probe is not enough to call it found: managers that see it
        differently would overrule each other as fast as etcd answers.
        """
        notes: list[Effect] = []
        for item in topology.sets:
            empty = [keeper for keeper in item.keepers if self._m.suspicions.holds_nothing(keeper, item)]
            holders = [
                member for member in item.holders if member not in topology.revoked and member not in empty
            ]
            returned = bool(assign.returned(self._m.members, item))
            judged = holders if self._m.may_return(item) else holders or empty
            gone = all(self._m.suspicions.is_gone(member) for member in judged) and not returned
            back = returned or any(member in self._m.members for member in holders)
            changes = back if item.lost else gone
            if not changes or item.primary is None or not judged:
                continue
            joining = (
                () if gone else item.joining
            )  # nobody is there to copy from, and who begins the state again must be free
            keepers = tuple(keeper for keeper in item.keepers if not gone or keeper not in empty)
            topology = topology.with_set(replace(item, lost=gone, joining=joining, keepers=keepers))
            if gone and not is_run_again(self._m.graph, item.name):
                notes.append(
                    NoteLost(Loss.GONE, item.name, item.epoch, -1, "no replica of its state is left")
                )
        return topology, notes

    def restart(self, topology: Topology) -> tuple[Topology, list[Effect]]:
        """`Restart`: a lost state begins again, from its newest checkpoint if there is one, and says so;
        `Stop` leaves it to a person."""
        notes: list[Effect] = []
        restarts = self._m.graph.data.recovery.when_lost is WhenLost.RESTART
        for item in topology.sets:
            if not item.lost:
                continue
            untouched = not item.may_restart and self._is_untouched(item)
            given_up = not (self._may_any_wake_up(item) or self._some_answers(item))
            decided = item.may_restart or untouched or (restarts and given_up)
            if not decided or self._takes_the_last_of_others(item, topology):
                continue
            of = item.name if item.name in self._m.graph.operators else FRONTEND
            free = [
                name
                for name in assign.unburdened(self._m.members, of, item, topology)
                if name not in self._m.suspicions.open
            ]
            may_return = item.name not in self._m.retry_at and any(
                not self._m.suspicions.holds_nothing(rescuer, item)
                for rescuer in assign.rescuers(self._m.members, item)
            )
            if free and not may_return and (untouched or not self._waits_for_checkpoints(item, free)):
                epoch, version, chosen = max(
                    (*((0, 0) if untouched else self._saved.get((name, item.name), (0, 0))), name)
                    for name in reversed(free)
                )
                restarted = assign.moved(item, chosen if epoch else free[0], version, (), ())
                why = f"it begins again from {'a checkpoint' if epoch else 'nothing'}"
                if not (epoch and is_run_again(self._m.graph, item.name)):
                    notes.append(NoteLost(Loss.RESTARTED, item.name, item.epoch, version, why))
                # In the same commit: a former member that wakes up still holds the state that was given up,
                # and must not lead or back the new one.
                topology = assign.revoke(topology, item.members)
                topology = topology.with_set(replace(restarted, restarted_in=restarted.epoch))
        return topology, notes

    def _takes_the_last_of_others(self, item: ReplicaSet, topology: Topology) -> bool:
        """Whether its members, which are revoked when it begins again, are all that is left of another state,
        and may come back with that: they may keep it."""
        gone = {*item.members, *topology.revoked}
        return any(
            other.name != item.name
            and not set(item.members).isdisjoint(other.holders)
            and gone.issuperset(other.holders)
            and (not other.lost or self._may_any_wake_up(other) or self._some_answers(other))
            for other in topology.sets
        )

    def learn(self) -> None:
        """The manager has learnt another topology: how long it waits for those who may hang, from when it
        first knows of a loss."""
        until = self._ctx.now + limits.hung_wait_s
        lost = [item.name for item in self._m.knowledge.topology.sets if item.lost]
        self._hung_until = {name: self._hung_until.get(name, until) for name in lost}

    def _may_any_wake_up(self, item: ReplicaSet) -> bool:
        revoked = self._m.knowledge.topology.revoked
        return any(member not in revoked and self.may_wake_up(item, member) for member in item.holders)

    def _some_answers(self, item: ReplicaSet) -> bool:
        """Whether one that may still give the state back lives."""
        revoked = self._m.knowledge.topology.revoked
        return any(member not in revoked and self.answers(item, member) for member in item.holders)

    def answers(self, item: ReplicaSet, holder: InstanceId) -> bool:
        """Whether a holder of a lost state lives, though it is not registered yet: it does not fail its
        probe, and does not say that it holds nothing."""
        suspicions = self._m.suspicions
        return not (suspicions.is_silent(holder) or suspicions.holds_nothing(holder, item))

    def ask_holders(self) -> None:
        """Nobody else watches who is not registered: whether it lives, and still holds a lost state, it is
        asked again and again."""
        topology, suspicions, now = self._m.knowledge.topology, self._m.suspicions, self._ctx.now
        holders = {member for item in topology.sets if item.lost for member in item.holders}
        if not holders:
            self._holders_at = FOREVER
        if not holders or now < self._holders_at < FOREVER:
            return
        self._holders_at = now + limits.probe_again_after_s
        for name in sorted(holders.difference(topology.revoked, suspicions.open)):
            self._ctx.send(name, Probe(0))
            answered = suspicions.answered_at.get(name, -FOREVER)
            if name not in self._m.members and now > answered + 2 * limits.probe_again_after_s:
                suspicions.suspect(name, "it holds a lost state, and does not answer any more")

    def late(self, by_s: float) -> None:
        """This manager was stopped: that somebody is back lies unread. Short delays do not count, or one that
        is always short of CPU would wait for many times as long."""
        by_s = pause_s(by_s)
        most = self._ctx.now + limits.hung_wait_s
        self._hung_until = {name: min(until + by_s, most) for name, until in self._hung_until.items()}
        self._awaited_since = {
            key: min(since + by_s, self._ctx.now) for key, since in self._awaited_since.items()
        }

    def may_wake_up(self, item: ReplicaSet, holder: InstanceId) -> bool:
        """Whether a holder of a lost state may come back with it. A hang is no death: of one whose address
        refuses connections nothing is left, a silent one is waited for."""
        if self._m.suspicions.is_refused(holder):
            return False
        return self._ctx.now < self._hung_until.get(item.name, FOREVER)

    def dues(self) -> list[float]:
        """When checkpoints are asked for again, and when those who hang have been waited for for long
        enough."""
        return [self._ask_at, self._holders_at, *self._hung_until.values()]

    def _is_untouched(self, item: ReplicaSet) -> bool:
        """Whether a lost state is still as its model made it, or a lost log empty: then nothing is lost, and
        it begins again without a person. The topology says so, and a commit made from it holds only while no
        frontend has committed otherwise."""
        untouched = self._m.from_scratch and self._m.knowledge.topology.untouched
        return untouched and not self._may_any_wake_up(item)

    def _waits_for_checkpoints(self, item: ReplicaSet, free: list[InstanceId]) -> bool:
        """Instances read theirs once they learn that the state is lost; each tells a probe what it has
        found. Each has its own time for that, for replacements may come late. Where states are replayed, one
        must have found one, or none of them any: nothing else goes on from what was executed."""
        operator = self._m.graph.operators.get(item.name)
        if operator is None or operator.checkpoint is None:
            return False
        if not self._m.knowledge.topology.find(item.name).lost:
            return True
        waits = False
        for name in free:
            since = self._awaited_since.setdefault((item.name, item.epoch, name), self._ctx.now)
            answered = self._m.suspicions.answered_at.get(name, -FOREVER)
            # It lives, and says what it has found once it has read it.
            since = max(since, min(answered, since + limits.checkpoint_read_max_s))
            waits = waits or (
                (name, item.name) not in self._saved and self._ctx.now < since + limits.checkpoint_wait_s
            )
        saved = [self._saved.get((name, item.name)) for name in free]
        knows = None not in saved or any(found is not None and found[0] > 0 for found in saved)
        return waits or (is_run_again(self._m.graph, item.name) and not knows)

    def ask_saved(self) -> None:
        """Probes for that, again and again while somebody waits."""
        topology = self._m.knowledge.topology
        self._awaited_since = {
            key: since
            for key, since in self._awaited_since.items()
            if topology.find(key[0]).lost
            and topology.find(key[0]).epoch == key[1]
            and key[2] in self._m.members
        }
        waiting = sorted({name for name, _, _ in self._awaited_since})
        if not waiting:
            self._saved.clear()
            self._ask_at = FOREVER
            return
        if self._ctx.now < self._ask_at < FOREVER:
            return
        self._ask_at = self._ctx.now + limits.probe_again_after_s
        names = [
            name
            for of in waiting
            for name in assign.candidates(self._m.members, of, topology)
            if (name, of) not in self._saved
        ]
        for name in names:
            self._ctx.send(name, Probe(0))
