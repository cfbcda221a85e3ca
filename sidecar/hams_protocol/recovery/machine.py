"""One manager: suspicion, confirmation, revocation, recovery, and keeping every set complete (protocol.md,
sections 6 and 7).

Laws: an instance is acted against only after a direct probe has failed, and after the topology lists it as
revoked; a primary is revoked only when another in-sync member of its set (or the kept state of a member) has
just answered, so never the last replica of a state; every change is one compare-and-swap against the topology
it was made from. Any manager may do any of this at any time: ranks only avoid doing it twice.
"""

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.effects import Effect, Loss, NoteLost, Propose
from hams_protocol.events import (
    CasDone,
    CasFailed,
    CasUnknown,
    Event,
    Late,
    Member,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    Tick,
    TopologyLearnt,
)
from hams_protocol.gossip import Gossip
from hams_protocol.graph import Graph, WhenUnprotected
from hams_protocol.handlers import Handlers
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.lateness import Lateness, pause_s
from hams_protocol.messages import (
    KEPT,
    LEADS,
    SAVED,
    FenceAnswer,
    FreezeAnswer,
    Health,
    Heartbeat,
    Message,
    Probe,
    ProbeAnswer,
    Refused,
    Suspect,
    TopologyNews,
)
from hams_protocol.recovery import assign
from hams_protocol.recovery.attempt import Attempt
from hams_protocol.recovery.losses import Losses
from hams_protocol.recovery.patience import Patience
from hams_protocol.topology import ReplicaSet, Topology

FOREVER = float("inf")


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
        self.again_at = now + limits.probe_again_after_s
        self.confirmed_at = FOREVER
        self.health: Health | None = None
        self.rollbacks: dict[str, int] = {}


class ManagerMachine:
    """`step(event, now) -> effects` of one manager. `from_scratch`: whether states began as their models made
    them, not from those of another run."""

    def __init__(self, graph: Graph, instance: InstanceId, from_scratch: bool = False) -> None:
        self.ctx = Context()
        self.graph = graph
        self.instance = instance
        self.from_scratch = from_scratch
        self.knowledge = Knowledge(graph)
        self._handlers = Handlers()
        self._gossip = Gossip(self.ctx, self.knowledge, self._handlers)
        self._listen()
        self.members: dict[InstanceId, Member] = {}
        self._known = False
        self._down: dict[InstanceId, bool] = {}
        self._met: set[InstanceId] = set()
        self._patience = Patience()
        self.lateness = Lateness(graph.data.recovery.suspect_after_s)
        self._answered_at: dict[InstanceId, float] = {}
        self._suspicions: dict[InstanceId, Suspicion] = {}
        self._nonces = 0
        self._attempts = 0
        self._attempt: Attempt | None = None
        self._held_at: dict[tuple[InstanceId, str, int], float] = {}
        self._orphaned_since: dict[str, float] = {}
        self.retry_at: dict[str, float] = {}
        self._about: set[tuple[str, ...]] = set()
        self._losses = Losses(self)
        self._proposing = False
        self._began_at = FOREVER
        self._held_until = -FOREVER
        self._assign_since = FOREVER
        self._needed_since = FOREVER
        self._ticked_at = -FOREVER
        self._due = FOREVER
        self._starved_s = 0.0
        self._heard_of: dict[InstanceId, int] = {}
        self._known_to_all = self._waited_for = Topology()

    # -- the machine -----------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        self.ctx.begin(now)
        if isinstance(event, Received) and isinstance(event.message, Heartbeat) and now < self._due:
            # most events are these, and change nothing that could be acted on
            self._message(event.sender, event.message)
            return self.ctx.out
        if isinstance(event, Tick):
            self._starved_s *= limits.starved_decay
            self._ticked_at = now
        self._handle(event)
        self._proceed()
        return self.ctx.out

    def deadline(self) -> float:
        """When the machine wants a Tick."""
        delay = self._delay()
        dues = [
            self._held_until,
            self._needed_since + delay,
            self._assign_since + delay,
            self._began_at + limits.first_roles_wait_s,
        ]
        dues += [*self.retry_at.values(), self._losses.ask_at, *self._losses.wake_ats]
        for suspicion in self._suspicions.values():
            dues.append(suspicion.again_at)
            dues += [self._judged_at(suspicion), suspicion.confirmed_at + delay]
        if self._attempt is not None:
            dues.append(self._attempt.asked_at + self._probe_timeout_s)
        due = min((due for due in dues if due > self._ticked_at), default=FOREVER)
        self._due = max(due, self._ticked_at + limits.tick_min_s)
        return self._due

    @property
    def _probe_timeout_s(self) -> float:
        """How long an answer may take: longer where this manager itself waits for CPU, for so may others. A
        refused connection needs no time."""
        least = max(self.graph.data.recovery.suspect_after_s, limits.probe_timeout_min_s)
        return self._patience.timeout_s(least, self._ticked_at) + limits.starved_allowance * self._starved_s

    def _late(self, by_s: float) -> None:
        """This manager was starved: answers may be waiting unread, so everybody gets that time back."""
        now = self.ctx.now
        self.lateness.late(by_s, now)
        if by_s <= limits.starved_s:
            return
        self._starved_s = min(max(self._starved_s, by_s), limits.starved_max_s)
        for suspicion in self._suspicions.values():
            suspicion.began_at = min(suspicion.began_at + pause_s(by_s), now)
            if suspicion.confirmed_at == FOREVER:
                suspicion.asked_at = min(suspicion.asked_at + by_s, now)
                suspicion.again_at += by_s
        if self._attempt is not None:
            self._attempt.asked_at = min(self._attempt.asked_at + by_s, now)

    def _judged_at(self, suspicion: Suspicion) -> float:
        """When silence is an answer: not while this manager's own loop is late, but for a silence that no
        starvation explains."""
        due = suspicion.asked_at + self._probe_timeout_s
        silent_since = max(suspicion.began_at, self._answered_at.get(suspicion.instance, -FOREVER))
        return min(max(due, self.lateness.judges_at), silent_since + limits.silence_max_s)

    @property
    def leader(self) -> bool:
        """Whether this is the manager that goes first."""
        return self._rank() == 0

    @property
    def suspects(self) -> dict[InstanceId, str]:
        """The present suspects, each with its reason: for a log that people read."""
        return {name: item.reason for name, item in self._suspicions.items()}

    @property
    def to_replace(self) -> frozenset[InstanceId]:
        """The instances that the attempt under way replaces, whatever they say from now on."""
        return frozenset() if self._attempt is None else self._attempt.to_replace

    def _rank(self) -> int:
        """Position among the managers that can act; broken or revoked ones do not count."""
        revoked = self.knowledge.topology.revoked
        managers = sorted(
            item.instance
            for item in self.members.values()
            if item.of == MANAGER
            and item.instance not in revoked
            and (item.instance not in self._down or item.instance == self.instance)
        )
        return managers.index(self.instance) if self.instance in managers else len(managers)

    def _delay(self) -> float:
        return self._rank() * limits.manager_rank_delay_s

    # -- events ----------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, Received):
            self._message(event.sender, event.message)
        elif isinstance(event, TopologyLearnt):
            self._learn(event.topology, event.revision)
        elif isinstance(event, CasDone | CasFailed):
            self._proposing = False
            self._learn(event.topology, event.revision)
        elif isinstance(event, CasUnknown):
            self._proposing = False
            self._attempt = None
            self._held_until = self.ctx.now + limits.propose_retry_s
        elif isinstance(event, MembersChanged):
            self._members_changed(event)
        elif isinstance(event, PeerDown):
            self._peer_down(event)
        elif isinstance(event, PeerUp):
            self._down.pop(event.peer, None)
            self._met.add(event.peer)
            self._ask_again(event.peer)
        elif isinstance(event, Late):
            self._late(event.by_s)

    def _learn(self, topology: Topology, revision: int) -> None:
        self._known = True
        if self.knowledge.learn(topology, revision):
            self._attempt = None
            self._needed_since = FOREVER
            self._losses.learn()
            roles = assign.involved(topology)
            self._suspicions = {
                name: item
                for name, item in self._suspicions.items()
                if name in roles and name not in topology.revoked
            }
            self._ask_anew()
            self._suspect_missing()

    def _ask_anew(self) -> None:
        """That a model is dead counts for the topology in which it was said: one that was still starting may
        be up by the time that its instance leads the set."""
        for suspicion in self._suspicions.values():
            if suspicion.health is Health.MODEL_DEAD:
                suspicion.confirmed_at, suspicion.health = FOREVER, None
                suspicion.asked_at = self.ctx.now
                suspicion.again_at = self.ctx.now + limits.probe_again_after_s
                self._probes(suspicion)

    def _members_changed(self, event: MembersChanged) -> None:
        self.members = {member.instance: member for member in event.members}
        self._patience.keep(self.members)
        here = {*self.members, *assign.involved(self.knowledge.topology)}
        self._met &= here
        self._heard_of = {item: generation for item, generation in self._heard_of.items() if item in here}
        self._down = {item: refused for item, refused in self._down.items() if item in here}
        self._answered_at = {item: at for item, at in self._answered_at.items() if item in here}
        self._held_at = {key: at for key, at in self._held_at.items() if key[0] in here}
        if self._began_at == FOREVER:
            self._began_at = self.ctx.now
        self._suspect_missing()

    def _suspect_missing(self) -> None:
        """Named, but without a lease: probably gone. A probe tells."""
        if self.members:
            for instance in sorted(assign.involved(self.knowledge.topology)):
                if instance not in self.members and instance not in self.knowledge.topology.revoked:
                    self._suspect(instance, "its lease has expired")

    def _peer_down(self, event: PeerDown) -> None:
        """A refused connection proves that nobody is there, but for a joiner that was never met and is
        registered: it may be starting."""
        starting = (
            event.peer in self.members
            and event.peer not in self._met
            and any(event.peer in item.joining for item in self.knowledge.topology.sets)
        )
        refused = event.refused and not starting
        self._down[event.peer] = refused or self._down.get(event.peer, False)
        self._suspect(event.peer, "its connection broke")
        suspicion = self._suspicions.get(event.peer)
        if refused and suspicion is not None:
            self._confirm(suspicion, None)

    def _listen(self) -> None:
        on = self._handlers.on
        on(Heartbeat, self._heard)
        on(TopologyNews, self._news)
        on(Suspect, self._suspected)
        on(Probe, self._probed)
        on(ProbeAnswer, self._probe_answer)
        on(FreezeAnswer, self._froze)
        on(FenceAnswer, self._fenced)
        on(Refused, self._refused)

    def _message(self, sender: InstanceId, message: Message) -> None:
        self._met.add(sender)
        handler = self._handlers.find(message)
        if handler is not None:
            handler(sender, message)

    def _heard(self, sender: InstanceId, beat: Heartbeat) -> None:
        self._heard_of[sender] = beat.generation
        self._gossip.heard(sender, beat)

    def _news(self, sender: InstanceId, news: TopologyNews) -> None:
        self._learn(news.topology, -1)

    def _suspected(self, sender: InstanceId, word: Suspect) -> None:
        self._suspect(word.suspect, word.reason)
        suspicion = self._suspicions.get(sender)
        if sender == word.suspect and suspicion is not None and suspicion.confirmed_at == FOREVER:
            # It says so itself: as good as the answer to a probe.
            self._confirm(suspicion, Health.MODEL_DEAD)

    def _probed(self, sender: InstanceId, probe: Probe) -> None:
        generation = self.knowledge.topology.generation
        self.ctx.send(sender, ProbeAnswer(probe.nonce, Health.HEALTHY, generation))

    def _froze(self, sender: InstanceId, answer: FreezeAnswer) -> None:
        if not self._losses.froze(answer) and self._attempt is not None:
            self._answered_at[sender] = self.ctx.now
            self._attempt.freeze_answer(sender, answer)

    def _fenced(self, sender: InstanceId, answer: FenceAnswer) -> None:
        if self._attempt is not None:
            self._answered_at[sender] = self.ctx.now
            self._attempt.fence_answer(sender, answer)

    def _refused(self, sender: InstanceId, refusal: Refused) -> None:
        if self._attempt is not None:
            self._attempt.refused(sender, refusal, self.knowledge.revision)

    # -- confirmation ----------------------------------------------------------------------------------------

    def _suspect(self, instance: InstanceId, reason: str) -> None:
        """Probe suspects that have a role; and, if one is a primary, the instances that could take over."""
        topology = self.knowledge.topology
        if (
            instance in self._suspicions
            or instance in topology.revoked
            or instance not in assign.involved(topology)
        ):
            return
        self._nonces += 1
        suspicion = self._suspicions[instance] = Suspicion(instance, reason, self._nonces, self.ctx.now)
        self._probes(suspicion)
        if self._down.get(instance):
            self._confirm(suspicion, None)

    def _probes(self, suspicion: Suspicion) -> None:
        """Ask the suspect itself, and who could take over."""
        sets = [item for item in self.knowledge.topology.sets if self._is_needed(suspicion.instance, item)]
        revoked = self.knowledge.topology.revoked
        successors = [
            item.primary for item in sets if item.primary is not None and item.primary not in revoked
        ]
        successors += [
            peer for item in sets for peer in (*item.in_sync, *assign.rescuers(self.members, item))
        ]
        asked = list(dict.fromkeys([suspicion.instance, *successors]))
        for peer in asked:
            self._patience.asked(peer, self.ctx.now)
        for peer in asked:
            self.ctx.send(peer, Probe(suspicion.nonce))

    def _ask_again(self, peer: InstanceId) -> None:
        """Everything that this peer has not answered, once its connection is there: the first question may
        have been lost with the one before, and silence would count against it."""
        suspicion = self._suspicions.get(peer)
        if suspicion is not None:
            self._patience.asked(peer, self.ctx.now)
            self.ctx.send(peer, Probe(suspicion.nonce))
        if self._attempt is not None:
            self._attempt.ask_again(peer)

    def _probe_answer(self, sender: InstanceId, answer: ProbeAnswer) -> None:
        now = self.ctx.now
        self._answered_at[sender] = now
        self._patience.answered(sender, now)
        for report in answer.roles:
            if report.role == SAVED:
                self._losses.saved(sender, report)
            if report.role in (KEPT, LEADS):
                self._held_at[sender, report.name, report.epoch] = now
        suspicion = self._suspicions.get(sender)
        if suspicion is None or suspicion.nonce != answer.nonce:
            return
        if answer.health is Health.HEALTHY:
            del self._suspicions[sender]
            return
        if answer.health is Health.NEEDS_ROLLBACK:
            suspicion.rollbacks = {report.name: report.epoch for report in answer.roles}
        self._confirm(suspicion, answer.health)

    def _confirm(self, suspicion: Suspicion, health: Health | None) -> None:
        """The probe failed, or was answered by a proxy whose model is dead. Later answers may tell more, and
        silence ends them."""
        if suspicion.confirmed_at == FOREVER:
            suspicion.confirmed_at = self.ctx.now
        suspicion.health = health
        if self._attempt is not None and health is None:
            self._attempt.silent(suspicion.instance)

    def _expire(self) -> None:
        now = self.ctx.now
        for suspicion in list(self._suspicions.values()):
            unheard = self._answered_at.get(suspicion.instance, -FOREVER) < suspicion.asked_at
            unsettled = suspicion.confirmed_at == FOREVER or (suspicion.health is not None and unheard)
            if unsettled and now >= self._judged_at(suspicion):
                self._confirm(suspicion, None)
            elif now >= suspicion.again_at:
                judges = self.lateness.may_judge(now)
                suspicion.again_at = now + (
                    limits.probe_again_after_s if judges else limits.probe_again_starved_s
                )
                if not unsettled:  # else the first probe counts, or it would never have waited long enough
                    suspicion.asked_at = now
                self._probes(suspicion)
        attempt = self._attempt
        if attempt is not None and now >= attempt.asked_at + self._probe_timeout_s:
            attempt.asked_at = now
            attempt.ask_again()
            for instance in sorted(attempt.waiting_for()):
                self._suspect(instance, "it does not answer a manager's question")

    # -- acting ----------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Whatever can be done now: revoke, recover, assign. One proposal at a time."""
        if not self._known:
            return
        self._expire()
        self._losses.ask_saved()
        self._losses.ask_logs()
        if self._proposing or self.ctx.now < self._held_until:
            return
        to_replace = self._to_replace()
        revoked = self._to_revoke() - to_replace
        if revoked:
            self._attempt = None
            self._propose(assign.revoke(self.knowledge.topology, revoked).next())
            return
        self._recover(to_replace)
        if not self._is_busy():
            self._assign()
            return
        changed, notes = self._losses.lost_and_found(self.knowledge.topology)
        if self._attempt is not None and changed != self.knowledge.topology:
            self.ctx.emit_all(notes)
            self._propose(changed.next())  # an attempt waits for nobody who is lost

    def _is_busy(self) -> bool:
        return self._proposing or self._attempt is not None

    def _confirmed(self) -> list[Suspicion]:
        """Suspicions whose suspects have failed their probes, as far as it is this manager's turn."""
        delay = self._delay()
        return [
            suspicion
            for suspicion in self._suspicions.values()
            if suspicion.confirmed_at != FOREVER and self.ctx.now >= suspicion.confirmed_at + delay
        ]

    def _to_replace(self) -> set[InstanceId]:
        """Confirmed suspects to be revoked by the very commit that replaces them: slot owners, and primaries
        whose sets have an in-sync member to freeze, whose answer is the proof that another replica lives.

        Asking binds nobody, so it need not wait for the revocation. Once an attempt has frozen the backups of
        an instance, it must finish replacing that instance: only a new topology unfreezes them.
        """
        instances: set[InstanceId] = set() if self._attempt is None else set(self._attempt.to_replace)
        topology = self.knowledge.topology
        out = {*self._suspicions, *topology.revoked}
        for suspicion in self._confirmed():
            needed = [item for item in topology.sets if self._is_needed(suspicion.instance, item)]
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
        if item.lost or self.ctx.now < self.retry_at.get(item.name, -FOREVER):
            return False
        return any(peer not in out and peer not in self._down for peer in item.in_sync)

    def _owns_slot(self, instance: InstanceId) -> bool:
        return any(
            slot.instance == instance for table in self.knowledge.topology.tables for slot in table.slots
        )

    def _to_revoke(self) -> set[InstanceId]:
        """Confirmed suspects that somebody can stand in for; a primary only if an in-sync member has just
        answered."""
        topology = self.knowledge.topology
        instances: set[InstanceId] = set()
        for suspicion in self._confirmed():
            if any(item.primary == suspicion.instance for item in topology.sets):
                replaced = all(
                    self._has_successor(item, suspicion)
                    for item in topology.sets
                    if self._is_needed(suspicion.instance, item)
                )
            else:
                needed = any(self._is_needed(suspicion.instance, item) for item in topology.sets)
                owns = self._owns_slot(suspicion.instance)
                replaced = not needed and owns and self._has_substitute(suspicion)
            if replaced:
                instances.add(suspicion.instance)
        return instances

    def _is_needed(self, instance: InstanceId, item: ReplicaSet) -> bool:
        """Whether the set needs another replica before this one may go: it leads the set, or backs one that
        has lost its primary, or keeps one whose primary has not just said that it has the state: that may be
        dead, or waiting for the keeper's copy. A keeper of a lost state counts while it may have it."""
        revoked = self.knowledge.topology.revoked
        has_state = not item.lost or self._losses.may_wake_up(item, instance)
        keeps = instance in item.keepers and has_state and not self._has_just_led(item, instance)
        return item.primary == instance or keeps or (instance in item.in_sync and item.primary in revoked)

    def _has_just_led(self, item: ReplicaSet, suspect: InstanceId) -> bool:
        """Whether the set's primary has answered as such since the suspect was asked, and nothing bad is
        known of it.

        What it said before it was suspected itself does not count: a request may take its model first, then
        its proxy.
        """
        suspicion, primary = self._suspicions.get(suspect), item.primary
        if suspicion is None or primary is None or primary in self.knowledge.topology.revoked:
            return False
        if primary in self._suspicions or primary in self._down:
            return False
        return self._held_at.get((primary, item.name, item.epoch), -FOREVER) >= suspicion.asked_at

    def _has_successor(self, item: ReplicaSet, suspicion: Suspicion) -> bool:
        """A revoked one may still answer, but it will never act again; the state that one has kept may."""
        topology = self.knowledge.topology
        out = {*self._suspicions, *topology.revoked}
        if any(
            self._answered_at.get(peer, -FOREVER) >= suspicion.asked_at and peer not in out
            for peer in item.in_sync
        ):
            return True
        rescuers = [peer for peer in assign.returned(self.members, item) if peer not in out]
        if suspicion.health is None and assign.fresh_primary(self._living(), item.name, item, topology):
            # Not if the primary's proxy lives: it has a fresh model sooner. Of a keeper only the proxy
            # counts, whatever its own model does.
            rescuers += [
                peer for peer in item.keepers if peer not in topology.revoked and not self._is_silent(peer)
            ]
        return any(
            self._held_at.get((peer, item.name, item.epoch), -FOREVER) >= suspicion.asked_at
            for peer in rescuers
        )

    def _has_substitute(self, suspicion: Suspicion) -> bool:
        """A dead slot owner is revoked at once; one whose proxy lives only if another instance can take its
        slots."""
        if suspicion.health is None:
            return True
        topology = self.knowledge.topology
        ops = [
            table.op
            for table in topology.tables
            if any(slot.instance == suspicion.instance for slot in table.slots)
        ]
        return all(
            any(item != suspicion.instance for item in assign.candidates(self.members, op, topology))
            for op in ops
        )

    def _recover(self, to_replace: set[InstanceId]) -> None:
        """Go on with the attempt, or begin one. It works on the present topology with those to be replaced
        revoked, which its commit will say."""
        known = self.knowledge.topology
        topology = assign.revoke(known, to_replace) if to_replace else known
        orphaned = [item.name for item in topology.sets if self._is_orphaned(item, topology)]
        spared = {
            item.primary for item in topology.sets if item.primary in to_replace and item.name not in orphaned
        }
        if spared:  # nobody can stand in for these after all
            self._recover({item for item in to_replace if item not in spared})
            return
        rollbacks = [name for name in self._to_roll_back() if name not in orphaned]
        if not orphaned and not rollbacks:
            self._needed_since = FOREVER
            self._attempt = None
            if to_replace:
                self._propose(assign.slots(self.graph, topology, self._living(), ()).next())
            return
        self._needed_since = min(self._needed_since, self.ctx.now)
        if self.ctx.now < self._needed_since + (0.0 if to_replace else self._delay()):
            return
        about = {(name, *assign.rescuers(self.members, topology.find(name))) for name in orphaned}
        attempt = self._attempt
        if (
            attempt is None
            or attempt.hopeless
            or not about <= self._about
            or attempt.to_replace != to_replace
        ):
            attempt = self._attempt = self._begin(topology, to_replace, orphaned, rollbacks)
            self._about = about
        self._conclude(attempt)

    def _begin(
        self, topology: Topology, to_replace: set[InstanceId], orphaned: list[str], rollbacks: list[str]
    ) -> Attempt:
        """Another attempt, with its first questions asked."""
        known, now = self.knowledge.topology, self.ctx.now
        self._attempts += 1
        members = {
            name: item
            for name, item in self.members.items()
            if name not in self._suspicions and name not in to_replace
        }
        patient = [name for name, since in self._orphaned_since.items() if now < since + limits.kept_wait_s]
        patient += [item.name for item in known.sets if item.primary in to_replace]
        attempt = Attempt(
            self.ctx,
            self.graph,
            topology,
            known,
            members,
            self._attempts,
            self.knowledge.revision,
            patient,
        )
        attempt.to_replace = frozenset(to_replace)
        silent = [
            item.instance
            for item in self._suspicions.values()
            if item.confirmed_at != FOREVER and item.health is None
        ]
        attempt.begin(orphaned, rollbacks, silent)
        return attempt

    def _conclude(self, attempt: Attempt) -> None:
        """Commit what every question is answered for; give up what is in vain."""
        known = self.knowledge.topology
        vain = any(known.find(name).primary in attempt.to_replace for name in attempt.put_off)
        for name in attempt.put_off:
            self.retry_at[name] = self.ctx.now + self._probe_timeout_s
        attempt.put_off.clear()
        if attempt.is_empty or vain:
            # In vain: nobody can stand in for one of those to be replaced, so none of them is revoked.
            self._attempt = None
            return
        result = attempt.result()
        if result is not None:
            self._said_lost(attempt)
            self._propose(result)

    def _is_orphaned(self, item: ReplicaSet, topology: Topology) -> bool:
        """Whether the set has lost its primary for good in this topology, and somebody who holds its state
        may answer now."""
        if item.primary is None or item.primary not in topology.revoked:
            self._orphaned_since.pop(item.name, None)
            if item.primary not in self._suspicions:
                self.retry_at.pop(item.name, None)
            return False
        self._orphaned_since.setdefault(item.name, self.ctx.now)
        if self.ctx.now < self.retry_at.get(item.name, -FOREVER):
            return False
        return not (item.lost and not assign.rescuers(self.members, item)) and not self._must_wait(item)

    def _to_roll_back(self) -> list[str]:
        """Sets whose primary, still in the epoch of which it said so, lives without its state, and has no
        backup to stand in for it. One that is silent by now can go back to nothing: its set waits for it, or
        is lost, and may begin again."""
        names: set[str] = set()
        for suspicion in self._suspicions.values():
            if suspicion.health is not Health.NEEDS_ROLLBACK:
                continue
            for name, epoch in suspicion.rollbacks.items():
                item = self.knowledge.topology.find(name)
                if (item.primary, item.epoch) == (suspicion.instance, epoch) and not item.in_sync:
                    names.add(name)
        return sorted(names)

    def _must_wait(self, item: ReplicaSet) -> bool:
        """All who could take over fail their probes: the state is not lost, it waits until one of them
        answers."""
        revoked = self.knowledge.topology.revoked
        successors = [peer for peer in (*item.in_sync, *item.keepers) if peer not in revoked]
        returned = assign.returned(self.members, item)
        return bool(successors) and all(self._is_silent(peer) for peer in (*successors, *returned))

    def _is_silent(self, instance: InstanceId) -> bool:
        suspicion = self._suspicions.get(instance)
        return suspicion is not None and suspicion.confirmed_at != FOREVER and suspicion.health is None

    def _said_lost(self, attempt: Attempt) -> None:
        for name in sorted(attempt.lost):
            self.ctx.emit(
                NoteLost(
                    Loss.GONE, name, attempt.topology.find(name).epoch, -1, "no replica of its state is left"
                )
            )

    def _assign(self) -> None:
        """First roles, joiners, free slots."""
        now = self.ctx.now
        topology = self.knowledge.topology
        patient = now < self._began_at + limits.first_roles_wait_s
        changed = assign.first_roles(self.graph, topology, self.members, patient)
        living = self._living()
        changed = assign.slots(self.graph, changed, living, ())
        suspects = {
            name
            for name, item in self._suspicions.items()
            if item.confirmed_at == FOREVER and name in self.members
        }
        changed = assign.joiners(self.graph, changed, living, suspects)
        changed, notes = self._losses.lost_and_found(changed)
        changed, restarts = self._losses.restart(changed)
        notes += restarts
        if changed == topology:
            self._assign_since = FOREVER
            return
        self._assign_since = min(self._assign_since, now)
        if now < self._assign_since + self._delay():
            return
        self._assign_since = FOREVER
        self.ctx.emit_all(notes)
        self._propose(changed.next())

    def _living(self) -> dict[InstanceId, Member]:
        """Members that are not suspected."""
        return {
            name: item
            for name, item in self.members.items()
            if name not in self._suspicions and not self._down.get(name)
        }

    def is_gone(self, instance: InstanceId) -> bool:
        """Whether an instance has lost its lease and fails its probe."""
        return instance not in self.members and self._is_silent(instance)

    def is_refused(self, instance: InstanceId) -> bool:
        """Whether nobody listens any more where an instance was."""
        return self._down.get(instance, False)

    def _propose(self, topology: Topology) -> None:
        self._proposing = True
        self._attempt = None
        self.ctx.emit(Propose(self.knowledge.revision, self._without_old_ends(topology)))

    def _without_old_ends(self, topology: Topology) -> Topology:
        """An end that everybody has heard of goes. Under Block what it ended need not be durable yet, and who
        comes later may have to judge it."""
        known = self.knowledge.topology
        here = {*self.members, *assign.involved(known)}.difference(known.revoked, (self.instance,))
        if all(self._heard_of.get(item, 0) >= self._waited_for.generation for item in here):
            self._known_to_all, self._waited_for = self._waited_for, known
        blocks = self.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK
        return topology if blocks else assign.forget_ends(topology, self._known_to_all)


MANAGER = "manager"
"""What a manager's member entry is `of`."""
