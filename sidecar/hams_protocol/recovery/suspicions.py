"""What one manager suspects: probes on their way, answers, and silence (protocol.md, section 6).

Law: an instance is a confirmed suspect only after a direct probe has failed, its connection was refused, or
its own proxy has said that the model is dead. Silence counts only while this manager's own loop runs on time,
and not where it was this manager that was cut off.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.due import FOREVER
from hams_protocol.events import Member, PeerDown
from hams_protocol.ids import InstanceId
from hams_protocol.lateness import Lateness, pause_s
from hams_protocol.messages import HOLDS, LEADS, SAVED, Health, Probe, ProbeAnswer
from hams_protocol.recovery import assign
from hams_protocol.recovery.patience import Patience
from hams_protocol.topology import ReplicaSet, Topology

if TYPE_CHECKING:
    from hams_protocol.recovery.machine import ManagerMachine


class Suspicion:
    """One suspect: the probe on its way, and what came of it. `rollbacks` are the sets, with their epochs,
    that must go back with it."""

    __slots__ = (
        "again_at",
        "asked_at",
        "began_at",
        "confirmed_at",
        "health",
        "instance",
        "nonce",
        "reason",
        "rollbacks",
    )

    def __init__(self, instance: InstanceId, reason: str, nonce: int, now: float) -> None:
        self.instance = instance
        self.reason = reason
        self.nonce = nonce
        self.began_at = self.asked_at = now
        self.again_at = now + limits.probe_repeat_s
        self.confirmed_at = FOREVER
        self.health: Health | None = None
        self.rollbacks: dict[str, int] = {}


class Suspicions:
    """The suspects of one manager, and what is known of the life of everybody else.

    `open`: one suspicion per suspect. `down`: peers whose connection is broken, and whether it was refused.
    `answered_at`: when an instance last answered a question. `held_at`: when one last said that it holds or
    leads the state of a set in an epoch. `_empty`: keepers, each with its set, that hold nothing by their own
    word, given by the present topology.
    """

    def __init__(self, manager: "ManagerMachine") -> None:
        self._m = manager
        self._ctx = manager.ctx
        self._knowledge = manager.knowledge
        self.lateness = Lateness(manager.graph.data.recovery.suspect_after_s)
        self.open: dict[InstanceId, Suspicion] = {}
        self.down: dict[InstanceId, bool] = {}
        self.answered_at: dict[InstanceId, float] = {}
        self.held_at: dict[tuple[InstanceId, str, int], float] = {}
        self._empty: set[tuple[InstanceId, str]] = set()
        self.ticked_at = -FOREVER
        self._doubts_until = -FOREVER
        self._hears_nobody = False
        self._met: set[InstanceId] = set()
        self._registered: set[InstanceId] = set()
        self._patience = Patience()
        self._nonces = 0
        self._starved_s = 0.0

    # -- time ------------------------------------------------------------------------------------------------

    def ticked(self) -> None:
        """A Tick: the memory of this manager's own starvation fades."""
        self._starved_s *= limits.starved_decay
        self.ticked_at = self._ctx.now

    @property
    def timeout_s(self) -> float:
        """How long an answer may take: longer where this manager itself waits for CPU, for so may others. A
        refused connection needs no time."""
        least = max(self._m.graph.data.recovery.suspect_after_s, limits.probe_timeout_min_s)
        return self._patience.timeout_s(least, self.ticked_at) + limits.starved_allowance * self._starved_s

    def judged_at(self, suspicion: Suspicion) -> float:
        """When silence is an answer: not while this manager's own loop is late, but for a silence that no
        starvation explains."""
        due = suspicion.asked_at + self.timeout_s
        silent_since = max(suspicion.began_at, self.answered_at.get(suspicion.instance, -FOREVER))
        judged_at = min(max(due, self.lateness.judges_at), silent_since + limits.silence_max_s)
        if self._hears_nobody:
            judged_at = silent_since + limits.silence_max_s
        if suspicion.instance not in self._registered:
            judged_at = max(judged_at, suspicion.began_at + limits.registration_wait_s)
        return max(judged_at, self._doubts_until)

    def late(self, by_s: float) -> None:
        """This manager was starved: answers may be waiting unread, so everybody gets that time back. After a
        long pause also who had failed before: that it is back lies unread, too."""
        now = self._ctx.now
        self.lateness.late(by_s, now)
        if by_s <= limits.starved_s:
            return
        self._starved_s = min(max(self._starved_s, by_s), limits.starved_max_s)
        for suspicion in self.open.values():
            # Time is given back, but never into the future: a question cannot have been asked later than now.
            suspicion.began_at = min(suspicion.began_at + pause_s(by_s), now)
            if suspicion.confirmed_at == FOREVER:
                suspicion.asked_at = min(suspicion.asked_at + by_s, now)
                suspicion.again_at += by_s
        if pause_s(by_s) and now - by_s >= self._doubts_until:
            self._doubt(forgets=False)
        if self._m.attempt is not None:
            self._m.attempt.asked_at = min(self._m.attempt.asked_at + by_s, now)

    def turn_at(self, suspicion: Suspicion) -> float:
        """When a confirmed suspect is this manager's to act against, if no manager before it has."""
        return suspicion.confirmed_at + self._m.delay()

    @property
    def answers_by(self) -> float:
        """When the questions of the attempt are asked again."""
        return FOREVER if self._m.attempt is None else self._m.attempt.asked_at + self.timeout_s

    def dues(self) -> list[float]:
        """The times at which `expire` and `confirmed` may have something else to say."""
        dues = [self.answers_by]
        for suspicion in self.open.values():
            dues += (suspicion.again_at, self.judged_at(suspicion), self.turn_at(suspicion))
        return dues

    def expire(self) -> None:
        """Confirms what has stayed silent, probes again, and repeats the questions of the attempt."""
        now = self._ctx.now
        self._see_who_is_heard()
        for suspicion in list(self.open.values()):
            unheard = self.answered_at.get(suspicion.instance, -FOREVER) < suspicion.asked_at
            unsettled = suspicion.confirmed_at == FOREVER or (suspicion.health is not None and unheard)
            if unsettled and now >= self.judged_at(suspicion):
                self.confirm(suspicion, None)
            elif now >= suspicion.again_at:
                if not unsettled:  # else the first probe counts, or it would never have waited long enough
                    suspicion.asked_at = now
                suspicion.again_at = now + self._again_after_s(suspicion, unsettled)
                self._probe(suspicion)
        attempt = self._m.attempt
        if attempt is not None and now >= self.answers_by:
            attempt.asked_at = now
            attempt.ask_again()
            for instance in sorted(attempt.waiting_for()):
                self.suspect(instance, "it does not answer a manager's question")

    def _again_after_s(self, suspicion: Suspicion, unsettled: bool) -> float:
        """When to repeat a probe: soon while its answer may yet settle the suspicion. A starved judge asks
        less often, but not without another question shortly before silence counts."""
        now = self._ctx.now
        awaited = unsettled or suspicion.health is not None
        soon = awaited and now < suspicion.asked_at + self.timeout_s
        after_s = limits.probe_repeat_s if soon else limits.probe_again_after_s
        if self.lateness.may_judge(now):
            return after_s
        if not awaited:
            return limits.probe_again_starved_s
        left_s = self.judged_at(suspicion) - limits.probe_timeout_min_s - now
        return min(max(left_s, limits.probe_repeat_s), limits.probe_again_starved_s)

    # -- what others are seen to do --------------------------------------------------------------------------

    def topology_changed(self, before: Topology, topology: Topology) -> None:
        """Suspicions of instances that have no role any more, or are revoked, are over."""
        self._empty.clear()
        roles = assign.involved(topology)
        was_apart = self._was_apart(assign.involved(before), roles.difference(topology.revoked))
        self.open = {
            name: item for name, item in self.open.items() if name in roles and name not in topology.revoked
        }
        if was_apart and self._ctx.now >= self._doubts_until:
            self._doubt()
        self.ask_anew()
        self.suspect_missing()

    def _see_who_is_heard(self) -> None:
        """Who hears nobody at all, of those it has heard, was cut off itself, or nobody is left who could
        take a role. Until it hears somebody only the longest silence counts; then it doubts itself."""
        met = [
            item.instance
            for item in self._m.members.values()
            if item.instance in self._met and item.of != "manager"
        ]
        hears_nobody = bool(met) and all(
            not self.is_refused(name) and (name in self.down or self._is_mute(name)) for name in met
        )
        if hears_nobody != self._hears_nobody:
            self._hears_nobody = hears_nobody
            self._doubt()

    def _was_apart(self, before: set[InstanceId], after: set[InstanceId]) -> bool:
        """Whether this manager hears nobody who has a role now; or hardly anybody, and others have taken the
        role of an instance that it had not given up."""
        if self._met.isdisjoint(after):
            return False  # it has only begun
        mute = sum(map(self._is_mute, after))
        unexpected = any(
            name in self._met and name not in self.down and not self.is_silent(name)
            for name in before.difference(after)
        )
        return mute == len(after) or (unexpected and 2 * mute > len(after))

    def _is_mute(self, instance: InstanceId) -> bool:
        """Whether nothing has come from an instance since it was suspected: it may be this manager that is
        cut off. Who refuses connections is not mute."""
        suspicion = self.open.get(instance)
        if suspicion is None:
            return instance not in self._met
        answered = self.answered_at.get(instance, -FOREVER) >= suspicion.began_at
        return suspicion.health is None and not answered and not self.is_refused(instance)

    def _doubt(self, forgets: bool = True) -> None:
        """This manager was cut off, not those who are silent to it. It may reach etcd again before it reaches
        them: they are asked anew, and have time for their connections to stand. `forgets`: how long they have
        been silent counts for nothing."""
        now = self._ctx.now
        self._doubts_until = now + limits.doubt_s
        for suspicion in self.open.values():
            if suspicion.health is None and not self.is_refused(suspicion.instance):
                suspicion.confirmed_at = FOREVER
                if forgets:
                    suspicion.began_at = now
                suspicion.asked_at = now
                suspicion.again_at = now + limits.probe_again_after_s
                self._probe(suspicion)

    def members_changed(self, here: set[InstanceId]) -> None:
        """`here`: registered, or with a role. Nothing is remembered of any other instance."""
        # How long who was not registered took to answer says nothing: nobody knew where it was.
        self._patience.keep(self._m.members.keys() & self._registered)
        self._met &= here
        came = self._m.members.keys() - self._registered
        self._registered = (self._registered | came) & here
        for suspicion in [item for name, item in self.open.items() if name in came]:
            self._ask_registered(suspicion)
        self.down = {item: refused for item, refused in self.down.items() if item in here}
        self.answered_at = {item: at for item, at in self.answered_at.items() if item in here}
        self.held_at = {key: at for key, at in self.held_at.items() if key[0] in here}

    def _ask_registered(self, suspicion: Suspicion) -> None:
        """It is known from now on where the suspect is: its silence until now counts for nothing."""
        if suspicion.health is None and not self.is_refused(suspicion.instance):
            suspicion.confirmed_at = FOREVER
        suspicion.asked_at = self._ctx.now
        suspicion.again_at = self._ctx.now + limits.probe_repeat_s
        self._probe(suspicion)

    def peer_up(self, peer: InstanceId) -> None:
        """A connection stands again."""
        self.down.pop(peer, None)
        self._met.add(peer)
        self.ask_again(peer)

    def heard(self, sender: InstanceId) -> None:
        """A message came."""
        self._met.add(sender)

    def answered(self, sender: InstanceId) -> None:
        """An answer to a question of an attempt came."""
        self.answered_at[sender] = self._ctx.now

    def peer_down(self, event: PeerDown) -> None:
        """A refused connection proves that nobody is there, but for a joiner that was never met and is
        registered: it may be starting."""
        starting = (
            event.peer in self._m.members
            and event.peer not in self._met
            and any(event.peer in item.joining for item in self._knowledge.topology.sets)
        )
        refused = event.refused and not starting
        self.down[event.peer] = refused or self.down.get(event.peer, False)
        self.suspect(event.peer, "its connection broke")
        suspicion = self.open.get(event.peer)
        if refused and suspicion is not None:
            self.confirm(suspicion, None)

    def suspect_missing(self) -> None:
        """Named, but without a lease: probably gone. A probe tells."""
        if self._m.members:
            for instance in sorted(assign.involved(self._knowledge.topology)):
                if instance not in self._m.members and instance not in self._knowledge.topology.revoked:
                    self.suspect(instance, "its lease has expired")

    def ask_anew(self) -> None:
        """That a model is dead counts for the topology in which it was said: one that was still starting may
        be up by the time that its instance leads the set. That a primary has to go back counts until its set
        has gone back, or a backup that joins would take its place for nothing."""
        for suspicion in self.open.values():
            if suspicion.health is Health.MODEL_DEAD or self._has_gone_back(suspicion):
                suspicion.confirmed_at, suspicion.health = FOREVER, None
                suspicion.asked_at = self._ctx.now
                suspicion.again_at = self._ctx.now + limits.probe_repeat_s
                self._probe(suspicion)

    def _has_gone_back(self, suspicion: Suspicion) -> bool:
        """Whether what a primary said of an epoch, that it has to go back, is over with that epoch."""
        find = self._knowledge.topology.find
        return suspicion.health is Health.NEEDS_ROLLBACK and all(
            (find(name).primary, find(name).epoch) != (suspicion.instance, epoch)
            for name, epoch in suspicion.rollbacks.items()
        )

    # -- suspects --------------------------------------------------------------------------------------------

    def suspect(self, instance: InstanceId, reason: str) -> None:
        """Probe suspects that have a role; and, if one is a primary, the instances that could take over."""
        topology = self._knowledge.topology
        if instance in self.open or instance in topology.revoked or instance not in assign.involved(topology):
            return
        # Without a role its end would change nothing; revoked, it has been dealt with.
        self._nonces += 1
        suspicion = self.open[instance] = Suspicion(instance, reason, self._nonces, self._ctx.now)
        self._probe(suspicion)
        if self.down.get(instance):
            self.confirm(suspicion, None)

    def _probe(self, suspicion: Suspicion) -> None:
        """Ask the suspect itself, and who could take over."""
        sets = [
            item
            for item in self._knowledge.topology.sets
            if self._m.verdicts.is_needed(suspicion.instance, item)
        ]
        revoked = self._knowledge.topology.revoked
        successors = [
            item.primary for item in sets if item.primary is not None and item.primary not in revoked
        ]
        successors += [
            peer for item in sets for peer in (*item.in_sync, *assign.rescuers(self._m.members, item))
        ]
        asked = list(dict.fromkeys([suspicion.instance, *successors]))
        for peer in asked:
            self._patience.asked(peer, self._ctx.now)
        for peer in asked:
            self._ctx.send(peer, Probe(suspicion.nonce))

    def ask_again(self, peer: InstanceId) -> None:
        """Everything that this peer has not answered, once its connection is there: the first question may
        have been lost with the one before, and silence would count against it."""
        suspicion = self.open.get(peer)
        if suspicion is not None:
            self._patience.asked(peer, self._ctx.now)
            self._ctx.send(peer, Probe(suspicion.nonce))
        if self._m.attempt is not None:
            self._m.attempt.ask_again(peer)

    def probe_answer(self, sender: InstanceId, answer: ProbeAnswer) -> None:
        """An answer to any probe says that its sender lives; one to the newest probe settles a suspicion."""
        now = self._ctx.now
        self.answered_at[sender] = now
        self._patience.answered(sender, now)
        for report in answer.roles:
            if report.role == SAVED:
                self._m.losses.saved(sender, report)
            if report.role in (HOLDS, LEADS):
                self.held_at[sender, report.name, report.epoch] = now
        self._keeper_answered(sender, answer)
        suspicion = self.open.get(sender)
        # An answer to an older probe says that the instance lived then: it is no answer to this suspicion.
        if suspicion is None or suspicion.nonce != answer.nonce:
            return
        if answer.health is Health.HEALTHY:
            del self.open[sender]
            return
        if answer.health is Health.NEEDS_ROLLBACK:
            suspicion.rollbacks = {report.name: report.epoch for report in answer.roles}
        suspicion.again_at = now + limits.probe_again_after_s
        self.confirm(suspicion, answer.health)

    def _keeper_answered(self, sender: InstanceId, answer: ProbeAnswer) -> None:
        """A keeper that knows that it is named, and does not say that it holds the state, never will: it
        takes no copy any more. One that knows another topology may not know that it is named."""
        topology = self._knowledge.topology
        if answer.generation != topology.generation:
            return
        held = {(report.name, report.epoch) for report in answer.roles if report.role == HOLDS}
        for item in topology.sets:
            if sender in item.keepers and (item.name, item.epoch) not in held:
                self._empty.add((sender, item.name))

    def holds_nothing(self, keeper: InstanceId, item: ReplicaSet) -> bool:
        """Whether a keeper of this set has said that it holds nothing of it."""
        return keeper in item.keepers and (keeper, item.name) in self._empty

    def confirm(self, suspicion: Suspicion, health: Health | None) -> None:
        """The probe failed, or was answered by a proxy whose model is dead. Later answers may tell more, and
        silence ends them."""
        if suspicion.confirmed_at == FOREVER:
            suspicion.confirmed_at = self._ctx.now
        suspicion.health = health
        if self._m.attempt is not None and health is None:
            self._m.attempt.silent(suspicion.instance)

    # -- answers ---------------------------------------------------------------------------------------------

    def confirmed(self) -> list[Suspicion]:
        """Suspicions whose suspects have failed their probes, as far as it is this manager's turn. An answer
        of the epoch before may come late."""
        return [
            suspicion
            for suspicion in self.open.values()
            if self._ctx.now >= self.turn_at(suspicion) and not self._has_gone_back(suspicion)
        ]

    def is_silent(self, instance: InstanceId) -> bool:
        """Whether an instance has failed its probe: not even its proxy has answered."""
        suspicion = self.open.get(instance)
        return suspicion is not None and suspicion.confirmed_at != FOREVER and suspicion.health is None

    def is_gone(self, instance: InstanceId) -> bool:
        """Whether an instance has lost its lease and fails its probe."""
        return instance not in self._m.members and self.is_silent(instance)

    def is_refused(self, instance: InstanceId) -> bool:
        """Whether nobody listens any more where an instance was."""
        return self.down.get(instance, False)

    def living(self) -> dict[InstanceId, Member]:
        """Members that are not suspected."""
        return {
            name: item
            for name, item in self._m.members.items()
            if name not in self.open and not self.down.get(name)
        }
