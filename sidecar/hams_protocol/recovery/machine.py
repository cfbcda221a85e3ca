"""One manager: suspicion, confirmation, revocation, recovery, and keeping every set complete (protocol.md,
sections 6 and 7).

Laws: an instance is acted against only after a direct probe has failed, and after the topology lists it as
revoked; a primary is revoked only when another in-sync member of its set (or the former state of a member)
has just answered, so never the last replica of a state; every change is one compare-and-swap against the
topology it was made from. Any manager may do any of this at any time: ranks only avoid doing it twice.
"""

from dataclasses import replace

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Alarm, Grace
from hams_protocol.effects import Effect, Loss, NoteLost, Propose
from hams_protocol.events import (
    CasSettled,
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
from hams_protocol.messages import (
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
from hams_protocol.recovery.suspicions import Suspicions
from hams_protocol.recovery.verdicts import Verdicts
from hams_protocol.topology import Departed, ReplicaSet, Topology


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
        self.members: dict[InstanceId, Member] = {}
        self._known = False
        self._attempts = 0
        self.attempt: Attempt | None = None
        self._orphaned_since: dict[str, float] = {}
        self.retry_at: dict[str, float] = {}
        self._about: set[tuple[str, ...]] = set()
        self._proposing = False
        self._start = Grace(lambda: limits.first_roles_wait_s)
        self._held_until = -FOREVER
        self._assignment = Grace(self.delay)
        self._need = Grace(self.delay)
        self._alarm = Alarm(self.ctx)
        self._heard_of: dict[InstanceId, int] = {}
        self._known_to_all = self._waited_for = Topology()
        self.departed = Departed()
        self.losses = Losses(self)
        self.suspicions = Suspicions(self)
        self.verdicts = Verdicts(self)
        self._listen()

    # -- the machine -----------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        self.ctx.begin(now)
        if isinstance(event, Received) and isinstance(event.message, Heartbeat) and not self._alarm.has_come:
            # most events are these, and change nothing that could be acted on
            self._message(event.sender, event.message)
            return self.ctx.out
        if isinstance(event, Tick):
            self.suspicions.ticked()
        self._handle(event)
        self._proceed()
        return self.ctx.out

    def deadline(self) -> float:
        """When the machine wants a Tick."""
        ticked_at = self.suspicions.ticked_at
        due = min((due for due in self._dues() if due > ticked_at), default=FOREVER)
        return self._alarm.set(max(due, ticked_at + limits.tick_min_s))

    def _dues(self) -> list[float]:
        """The times at which a rule may say something else though nothing has happened. Every rule is asked
        after every event (`_proceed`), so one that still says no then waits for something else."""
        own = [self._held_until, self._need.at, self._assignment.at, self._start.at]
        return [*own, *self.retry_at.values(), *self.losses.dues(), *self.suspicions.dues()]

    @property
    def leader(self) -> bool:
        """Whether this is the manager that goes first."""
        return self._rank() == 0

    @property
    def suspects(self) -> dict[InstanceId, str]:
        """The present suspects, each with its reason: for a log that people read."""
        return {name: item.reason for name, item in self.suspicions.open.items()}

    @property
    def to_replace(self) -> frozenset[InstanceId]:
        """The instances that the attempt under way replaces, whatever they say from now on."""
        return frozenset() if self.attempt is None else self.attempt.to_replace

    def _rank(self) -> int:
        """Position among the managers that can act; broken or revoked ones do not count."""
        revoked = self.knowledge.topology.revoked
        managers = sorted(
            item.instance
            for item in self.members.values()
            if item.of == MANAGER
            and item.instance not in revoked
            and (item.instance not in self.suspicions.down or item.instance == self.instance)
        )
        return managers.index(self.instance) if self.instance in managers else len(managers)

    def delay(self) -> float:
        """How long this manager lets those of lower rank go first."""
        return self._rank() * limits.manager_rank_delay_s

    # -- events ----------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, Received):
            self._message(event.sender, event.message)
        elif isinstance(event, TopologyLearnt):
            self._learn(event.topology, event.revision)
        elif isinstance(event, CasSettled):
            self._proposing = False
            self._learn(event.topology, event.revision)
        # Of an unknown outcome nothing may be assumed: the commit may have happened, or may still happen. The
        # watch tells, and only then is anything proposed again.
        elif isinstance(event, CasUnknown):
            self._proposing = False
            self.attempt = None
            self._held_until = self.ctx.now + limits.propose_retry_s
        elif isinstance(event, MembersChanged):
            self._members_changed(event)
        elif isinstance(event, PeerDown):
            self.suspicions.peer_down(event)
        elif isinstance(event, PeerUp):
            self._gossip.peer_up(event.peer)
            self.suspicions.peer_up(event.peer)
        elif isinstance(event, Late):
            self.suspicions.late(event.by_s)
            self.losses.late(event.by_s)
            now = self.ctx.now
            self._orphaned_since = {
                name: min(since + event.by_s, now) for name, since in self._orphaned_since.items()
            }

    def _learn(self, topology: Topology, revision: int) -> None:
        self._known = True
        before = self.knowledge.topology
        if self.knowledge.learn(topology, revision):
            self.attempt = None
            self._need.end()
            self.departed.learn(topology)
            # Before the suspicions below: these ask whether a holder of a lost state may yet wake up.
            self.losses.learn()
            self.suspicions.topology_changed(before, topology)

    def _members_changed(self, event: MembersChanged) -> None:
        self.members = {member.instance: member for member in event.members}
        self.departed.keep(self.members)
        here = {*self.members, *assign.involved(self.knowledge.topology)}
        self._heard_of = {item: generation for item, generation in self._heard_of.items() if item in here}
        self.suspicions.members_changed(here)
        self._start.begin(self.ctx.now)
        self.suspicions.suspect_missing()

    def _listen(self) -> None:
        on = self._handlers.on
        on(Heartbeat, self._heard)
        on(TopologyNews, self._news)
        on(Suspect, self._suspected)
        on(Probe, self._probed)
        on(ProbeAnswer, self.suspicions.probe_answer)
        on(FreezeAnswer, self._froze)
        on(FenceAnswer, self._fenced)
        on(Refused, self._refused)

    def _message(self, sender: InstanceId, message: Message) -> None:
        self.suspicions.heard(sender)
        handler = self._handlers.find(message)
        if handler is not None:
            handler(sender, message)

    def _heard(self, sender: InstanceId, beat: Heartbeat) -> None:
        self._heard_of[sender] = beat.generation
        self._gossip.heard(sender, beat)

    def _news(self, sender: InstanceId, news: TopologyNews) -> None:
        self._learn(news.topology, -1)

    def _suspected(self, sender: InstanceId, news: Suspect) -> None:
        self.suspicions.suspect(news.suspect, news.reason)
        suspicion = self.suspicions.open.get(sender)
        if sender == news.suspect and suspicion is not None and suspicion.confirmed_at == FOREVER:
            # It says so itself: as good as the answer to a probe.
            self.suspicions.confirm(suspicion, Health.MODEL_DEAD)

    def _probed(self, sender: InstanceId, probe: Probe) -> None:
        generation = self.knowledge.topology.generation
        self.ctx.send(sender, ProbeAnswer(probe.nonce, Health.HEALTHY, generation))

    def _froze(self, sender: InstanceId, answer: FreezeAnswer) -> None:
        if self.attempt is not None:
            self.suspicions.answered(sender)
            self.attempt.freeze_answer(sender, answer)

    def _fenced(self, sender: InstanceId, answer: FenceAnswer) -> None:
        if self.attempt is not None:
            self.suspicions.answered(sender)
            self.attempt.fence_answer(sender, answer)

    def _refused(self, sender: InstanceId, refusal: Refused) -> None:
        if self.attempt is not None:
            self.attempt.refused(sender, refusal, self.knowledge.revision)

    # -- acting ----------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Whatever can be done now: revoke, recover, assign. One proposal at a time."""
        if not self._known:
            return
        self.suspicions.expire()
        self.losses.ask_saved()
        self.losses.ask_holders()
        if self._proposing or self.ctx.now < self._held_until:
            return
        # What one commit can both revoke and replace is left to an attempt, or the set would have no primary
        # in between (ADR 0014). All others are revoked first, by themselves.
        to_replace = self.verdicts.to_replace()
        revoked = self.verdicts.to_revoke() - to_replace
        if revoked:
            self.attempt = None
            self._propose(assign.revoke(self.knowledge.topology, revoked).next())
            return
        self._recover(to_replace)
        if not self._is_busy():
            self._assign()
            return
        changed, notes = self.losses.lost_and_found(self.knowledge.topology)
        if self.attempt is not None and changed != self.knowledge.topology:
            self.ctx.emit_all(notes)
            self._propose(changed.next())  # an attempt waits for nobody who is lost

    def _is_busy(self) -> bool:
        return self._proposing or self.attempt is not None

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
        rollbacks = [name for name in self.verdicts.to_roll_back() if name not in orphaned]
        if not orphaned and not rollbacks:
            self._need.end()
            self.attempt = None
            if to_replace:
                living, departed = self.suspicions.living(), self.departed.instances
                self._propose(assign.slots(self.graph, topology, living, departed).next())
            return
        self._need.begin(self.ctx.now)
        # Confirmed suspects have waited for this manager's turn already (`Suspicions.confirmed`).
        if not to_replace and self.ctx.now < self._need.at:
            return
        about = {(name, *assign.rescuers(self.members, topology.find(name))) for name in orphaned}
        attempt = self.attempt
        if (
            attempt is None
            or attempt.hopeless
            or not about <= self._about
            or attempt.to_replace != to_replace
        ):
            attempt = self.attempt = self._begin(topology, to_replace, orphaned, rollbacks)
            self._about = about
        self._conclude(attempt)

    def _begin(
        self, topology: Topology, to_replace: set[InstanceId], orphaned: list[str], rollbacks: list[str]
    ) -> Attempt:
        """Another attempt, with its first questions asked."""
        known = self.knowledge.topology
        self._attempts += 1
        members = {
            name: item
            for name, item in self.members.items()
            if name not in self.suspicions.open and name not in to_replace
        }
        patient = [item.name for item in known.sets if item.primary in to_replace or self.may_return(item)]
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
        attempt.departed = frozenset(self.departed.instances)
        silent = [
            item.instance
            for item in self.suspicions.open.values()
            if item.confirmed_at != FOREVER and item.health is None
        ]
        attempt.begin(orphaned, rollbacks, silent)
        return attempt

    def may_return(self, item: ReplicaSet) -> bool:
        """Whether a set has lost its primary for good just now: a former member may yet come back with the
        state."""
        if item.primary not in self.knowledge.topology.revoked:
            return False
        now = self.ctx.now
        return now < self._orphaned_since.setdefault(item.name, now) + limits.former_wait_s

    def _conclude(self, attempt: Attempt) -> None:
        """Commit what every question is answered for; give up what is in vain."""
        known = self.knowledge.topology
        vain = any(known.find(name).primary in attempt.to_replace for name in attempt.put_off)
        for name in attempt.put_off:
            self.retry_at[name] = self.ctx.now + self.suspicions.timeout_s
        attempt.put_off.clear()
        if attempt.is_empty or vain:
            # In vain: nobody can stand in for one of those to be replaced, so none of them is revoked.
            self.attempt = None
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
            if item.primary not in self.suspicions.open:
                self.retry_at.pop(item.name, None)
            return False
        self._orphaned_since.setdefault(item.name, self.ctx.now)
        if self.ctx.now < self.retry_at.get(item.name, -FOREVER):
            return False
        return not (item.lost and not assign.rescuers(self.members, item)) and not self.verdicts.must_wait(
            item
        )

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
        patient = now < self._start.at
        changed = assign.first_roles(self.graph, topology, self.members, patient)
        living = self.suspicions.living()
        changed = assign.slots(self.graph, changed, living, self.departed.instances)
        suspects = {
            name
            for name, item in self.suspicions.open.items()
            if item.confirmed_at == FOREVER and name in self.members
        }
        changed = assign.joiners(self.graph, changed, living, suspects)
        changed, notes = self.losses.lost_and_found(changed)
        changed, restarts = self.losses.restart(changed)
        notes += restarts
        if changed == topology:
            self._assignment.end()
            return
        self._assignment.begin(now)
        if now < self._assignment.at:
            return
        self._assignment.end()
        self.ctx.emit_all(notes)
        if topology.generation == 0:
            changed = replace(changed, untouched=self.from_scratch)
        self._propose(changed.next())

    def _propose(self, topology: Topology) -> None:
        # One proposal at a time: the next one needs the revision that this one makes.
        self._proposing = True
        self.attempt = None
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
