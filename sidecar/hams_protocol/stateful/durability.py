"""When a version is durable, and who helps to make it so: records, followers, the window, the watermark
(protocol.md, sections 2 and 7.7).

Laws it keeps: a version is durable only when the whole ack set has applied it (alone: once its dependencies
on other operators are durable); a joiner copies only what is durable, and is counted on before it is declared
in sync, and follows the records from then on only (ADR 0016); a set is shrunk by this primary's own
compare-and-swap alone, and a member counts until the topology without it is known.
"""

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.deps import Deps
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.effects import (
    NoteDurable,
    Propose,
)
from hams_protocol.events import (
    CasDone,
    CasFailed,
)
from hams_protocol.graph import WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Status
from hams_protocol.lineage import bare
from hams_protocol.messages import (
    AskApplied,
    AskCopy,
    AskDurable,
    Consumed,
    Durable,
    Leave,
    Message,
    RecordAck,
    StateCopy,
    StateRecord,
    Token,
)
from hams_protocol.stateful.choice import KeeperChoice
from hams_protocol.stateful.fences import others
from hams_protocol.stateful.followers import Follower, Followers
from hams_protocol.stateful.leaving import Leaving
from hams_protocol.topology import ReplicaSet, Topology, admit, hand_over, name_keeper, shrink
from hams_protocol.versions import Version

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


Outputs = tuple[tuple[str, Token], ...]
"""What a unit has made, each with its target."""


class Durability(Timed):
    """Everything of a primary's epoch that happens between an executed version and its being durable."""

    def __init__(self, machine: "StatefulMachine", replica_set: ReplicaSet) -> None:
        super().__init__(machine.ctx)
        self._m = machine
        self._epoch = replica_set.epoch
        newest = machine.store.newest
        assert newest is not None, "a primary has a state"
        self.base = newest.number
        self.durable = -1
        self._followers = Followers()
        self._followers.sync(replica_set, self.base, machine.knowledge.topology.generation, machine.ctx.now)
        self.leaving = Leaving(machine, replica_set.epoch, self._followers)
        self._choice = KeeperChoice(machine, replica_set.epoch, self._followers)
        self._choice.named()
        self._proposed_at = -FOREVER
        self._proposed_set: ReplicaSet | None = None
        self._reconsider_at = FOREVER
        self._dropping: set[InstanceId] = set()
        self._handed_in = -1
        self._waiting_backups, self._shard_owners = self._who_waits()
        self._active = dict.fromkeys(range(len(machine.graph.shard_names)), machine.ctx.now)
        self._askers: dict[InstanceId, float] = {}
        self._waiting_since = FOREVER
        self._blocked = machine.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK
        self._held_outputs: deque[tuple[int, Outputs]] = deque()

    @property
    def _seq(self) -> int:
        """The newest version executed."""
        newest = self._m.store.newest
        return self.base if newest is None else newest.number

    @property
    def undurable(self) -> int:
        """Versions executed but not yet durable."""
        newest = self._m.store.newest
        if newest is None or newest.number <= self.durable:
            return 0
        return self._m.store.count_after(self.durable)

    @property
    def is_protected(self) -> bool:
        """Whether a backup in sync, or a keeper, is within reach: somebody else holds everything durable,
        whatever becomes of what is proposed."""
        replica_set = self._m.knowledge.set_of(self._m.operator.name)
        return self._is_held(replica_set) and (
            self._proposed_set is None or self._is_held(self._proposed_set)
        )

    def _is_held(self, replica_set: ReplicaSet) -> bool:
        revoked = self._m.knowledge.topology.revoked
        holders = (*replica_set.in_sync, *(item for item in replica_set.keepers if item not in revoked))
        return self._followers.some_in_reach(holders)

    @property
    def window_open(self) -> bool:
        """Whether one more version may be executed; where states are large the window shrinks, to 1 at
        least."""
        if not self._m.mode.replicates:
            return True
        pending = self.undurable
        if pending == 0:
            return True
        if self._m.store.nbytes > limits.retained_state_bytes_max:
            return False
        return pending < self._m.operator.window

    # -- shipping --------------------------------------------------------------------------------------------

    def ship(self) -> None:
        """Stream every record that is ready, in order, to the ack set."""
        ready = self._ready_up_to()
        for follower in self._followers.all.values():
            self._ship_to(follower, ready)

    def _ready_up_to(self) -> int:
        """The newest version whose record, and all before it, can leave: captured, or unchanged."""
        ready = self.base
        for version in self._m.store.versions:
            if version.state is None:
                break
            ready = version.number
        return ready

    def _ship_to(self, follower: Follower, ready: int) -> None:
        if follower.copying or not follower.ack or follower.sent >= ready:
            return
        if follower.received >= follower.sent:
            follower.progress_at = follower.sent_at = follower.silent_since = self._ctx.now
        joining = self._is_joining(follower.instance)
        flying = self._flying(follower)
        for version in self._m.store.after(follower.sent):
            if version.number > ready or (flying and flying + size_of(version) > limits.flight_bytes_max):
                break
            flying += size_of(version)
            if version.record.epoch == self._epoch:
                self._ctx.send(follower.instance, self._bare(version.record) if joining else version.record)
            follower.sent = version.number

    def _flying(self, follower: Follower) -> int:
        """Bytes of the copy and the records that are on their way to a follower."""
        if follower.received >= follower.sent:
            return 0
        has = max(follower.received, follower.copied)
        nbytes = sum(
            size_of(version) for version in self._m.store.after(has) if version.number <= follower.sent
        )
        return nbytes + (follower.copied_nbytes if follower.received < follower.copied else 0)

    def _lag_max_s(self, follower: Follower) -> float:
        """A follower that has received nothing for so long, although something is on its way and was sent
        again, is dropped."""
        return limits.backup_lag_max_s + 2 * self._flying(follower) // limits.stream_floor_bytes_s

    def _patience_s(self, follower: Follower) -> float:
        """What is on its way is sent again after so long."""
        return limits.resend_after_s + self._flying(follower) / limits.stream_floor_bytes_s

    def _bare(self, record: StateRecord) -> StateRecord:
        """A record for a joiner, who may have come long after what it depends on has ended."""
        knowledge = self._m.knowledge
        return replace(record, deps=knowledge.prune(record.deps), units=bare(record.units, knowledge))

    def _resend_at(self, follower: Follower) -> float:
        """When what it has not received goes out again. That is no progress: a follower that receives nothing
        is dropped all the same."""
        owes = follower.ack and not follower.copying and follower.received < follower.sent
        if not owes or follower.down_since != FOREVER:
            return FOREVER
        return max(follower.progress_at, follower.sent_at) + self._patience_s(follower)

    def _resend(self) -> None:
        for follower in self._followers.all.values():
            if self._ctx.now >= self._resend_at(follower):
                self._send_again(follower)

    def _send_again(self, follower: Follower) -> None:
        before = follower.progress_at, follower.silent_since
        self._catch_up(follower)
        follower.progress_at, follower.silent_since = before

    def _catch_up(self, follower: Follower) -> None:
        """What it lacks: the records behind what it has received if they are retained, else, for a joiner,
        another copy."""
        if self._is_joining(follower.instance) and self._m.store.find(follower.received) is None:
            self._copy(follower)
            return
        follower.sent = follower.received
        self._ship_to(follower, self._ready_up_to())

    def _ask_applied(self) -> None:
        """The acknowledgement of an apply may be lost."""
        for follower in self._followers.all.values():
            if self._ctx.now >= follower.ask_at:
                follower.asked_at = self._ctx.now
                self._ctx.send(follower.instance, AskApplied(self._m.operator.name, self._epoch))

    def peer_up(self, peer: InstanceId) -> None:
        """A follower is back: what it has not acknowledged goes out again."""
        follower = self._followers.up(peer, self._ctx.now)
        if follower is None or follower.copying or not follower.ack or follower.received >= follower.sent:
            return
        self._send_again(follower)

    def late(self, by_s: float) -> None:
        """This instance's own loop was late."""
        self._followers.late(by_s, self._ctx.now)

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """A follower cannot be reached."""
        self._followers.down(peer, refused, self._ctx.now)
        self.drop_gone()

    # -- outputs ---------------------------------------------------------------------------------------------

    def release(self, version: int, outputs: Outputs) -> None:
        """What a batch of this version has made leaves at once, or once that is durable."""
        if self._m.mode.holds_outputs:
            self._held_outputs.append((version, outputs))
            return
        for target, token in outputs:
            self._m.outbox.put(target, token)

    def _release_durable(self) -> None:
        """Held outputs leave without the dependencies that are durable by now: nothing downstream can be
        undone by what happens here. Those of an epoch that ends go with it; records bring what is left of
        them."""
        m, held = self._m, self._held_outputs
        while held and held[0][0] <= self.durable:
            for target, token in held.popleft()[1]:
                m.outbox.put(target, m.knowledge.bare(token))

    # -- the watermark ---------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move the durable watermark as far as the ack set (or, alone, the dependencies) allow, and announce
        it."""
        m = self._m
        if not m.mode.replicates:
            return
        target = self._followers.applied_by_all()
        if self._blocked and self._dropping.issuperset(m.knowledge.set_of(m.operator.name).in_sync):
            target = None
        if target is None:
            target = -1 if self._blocked else self._settled()
        self._waiting_since = FOREVER if target >= self._seq else min(self._waiting_since, self._ctx.now)
        if target <= self.durable or (m.primary is not None and m.primary.may_go_back):
            self._serve_joiners()
            return
        self.durable = target
        self._waiting_since = FOREVER if target >= self._seq else self._ctx.now
        name = m.operator.name
        notice = Durable((m.own_dep(self._epoch, target),))
        m.knowledge.announce(notice)
        self._release_durable()
        m.store.trim(target)
        self._ctx.emit(NoteDurable(name, m.knowledge.topology.generation, self._epoch, target))
        for peer in self._to_tell():
            self._ctx.send(peer, notice)
        self._serve_joiners()
        for follower in list(self._followers.all.values()):
            self._admit(follower)
        # This very instance may keep a state downstream, whose records wait for this version: nobody else
        # tells it.
        m.keeper.durable_rose()

    def _serve_joiners(self) -> None:
        """Joiners that asked before there was anything to copy."""
        for follower in self._followers.all.values():
            if follower.asked:
                self._copy(follower)

    def _settled(self) -> int:
        """Alone: the newest version that is captured and, with all before it, has only durable dependencies
        on other operators."""
        newest = self.durable
        knowledge, name = self._m.knowledge, self._m.operator.name
        for version in self._m.store.versions:
            if version.state is None:
                break
            if knowledge.status(others(version.record.deps, name)) is not Status.DURABLE:
                break
            newest = max(newest, version.number)
        return newest

    def _who_waits(self) -> tuple[tuple[InstanceId, ...], tuple[InstanceId | None, ...]]:
        """Who holds records back for downstream operators: their backups, or a primary that is alone and its
        keeper. And the owners of the shards, by number."""
        m = self._m
        peers: dict[InstanceId, None] = {}
        for name in m.graph.stateful_downstream[m.operator.name]:
            replica_set = m.knowledge.set_of(name)
            for peer in replica_set.in_sync or replica_set.holders:
                peers[peer] = None
        return tuple(peers), tuple(m.knowledge.set_of(name).primary for name in m.graph.shard_names)

    def executed(self, units: tuple[Consumed, ...]) -> None:
        """Requests of these shards have passed: their owners hold replies back that depend on what comes
        after."""
        for consumed in units:
            self._active[consumed.unit.request.shard] = self._ctx.now

    def _to_tell(self) -> list[InstanceId]:
        """Who holds something back for a notice, as far as can be told from here; everybody else asks."""
        late = self._ctx.now - limits.notices_for_s
        peers = dict.fromkeys(self._waiting_backups)
        for shard, at in self._active.items():
            owner = self._shard_owners[shard]
            if at >= late and owner is not None:
                peers[owner] = None
        if self._askers:
            self._askers = {peer: at for peer, at in self._askers.items() if at >= late}
            peers.update(dict.fromkeys(self._askers))
        return list(peers)

    def _tell_newcomers(self) -> None:
        """Who has a role now that waits for notices, and had none before, has heard nothing so far."""
        before = {*self._waiting_backups, *self._shard_owners}
        self._waiting_backups, self._shard_owners = self._who_waits()
        if self.durable < 0:
            return
        notice = Durable((self._m.own_dep(self._epoch, self.durable),))
        fresh = dict.fromkeys((*self._waiting_backups, *self._shard_owners))
        for peer in fresh:
            if peer is not None and peer not in before:
                self._ctx.send(peer, notice)

    def _asked(self, sender: InstanceId) -> None:
        """Who asks is told how far it has come, and of what follows for a while."""
        if sender in self._askers or len(self._askers) < limits.askers_max:
            self._askers[sender] = self._ctx.now
        if self.durable >= 0:
            self._ctx.send(sender, Durable((self._m.own_dep(self._epoch, self.durable),)))

    def _oldest_pending(self) -> Deps:
        """What the oldest version that is not durable yet depends on. The newest state need not: notices
        about the older ones may have been lost while this instance was cut off, and nobody repeats them
        unasked."""
        for version in self._m.store.versions:
            if version.number > self.durable:
                deps = others(version.record.deps, self._m.operator.name)
                if self._m.knowledge.status(deps) is not Status.DURABLE:
                    return deps
        return ()

    def _ask_durable(self, deps: Deps) -> None:
        m = self._m
        for dep in deps:
            owner = m.knowledge.set_of(dep.op).primary
            if (
                dep.op != m.operator.name
                and owner is not None
                and m.knowledge.status_of(dep) is not Status.DURABLE
            ):
                self._ctx.send(owner, AskDurable(dep.op))

    # -- members ---------------------------------------------------------------------------------------------

    def members_named(self, replica_set: ReplicaSet) -> None:
        """A newer topology in the same epoch."""
        self._followers.sync(replica_set, self.base, self._m.knowledge.topology.generation, self._ctx.now)
        self._dropping.intersection_update(replica_set.in_sync)
        self._choice.named()
        self._proposed_at = -FOREVER
        self._proposed_set = None
        self.ship()
        self.advance()
        self._tell_newcomers()
        for follower in list(self._followers.all.values()):
            self._admit(follower)

    def message(self, sender: InstanceId, message: Message) -> None:
        """What followers and waiting proxies say; nothing else is for this part."""
        if isinstance(message, RecordAck):
            self._record_ack(sender, message)
        elif isinstance(message, AskCopy):
            self._copy_asked(sender, message)
        elif isinstance(message, Leave):
            self.leaving.asked(sender, message.epoch)
        elif isinstance(message, AskDurable):
            self._asked(sender)

    def _record_ack(self, sender: InstanceId, ack: RecordAck) -> None:
        if ack.epoch != self._epoch:
            return
        follower = self._followers.acknowledge(sender, ack.received, ack.applied, self._ctx.now)
        if follower is None:
            return
        self._ship_to(follower, self._ready_up_to())
        self.advance()
        self._admit(follower)

    def _is_joining(self, instance: InstanceId) -> bool:
        """Whether it is on its way into the set; so is a keeper that is not named yet."""
        replica_set = self._m.knowledge.set_of(self._m.operator.name)
        return instance in replica_set.joining or instance == self._followers.called

    def _copy_asked(self, sender: InstanceId, ask: AskCopy) -> None:
        follower = self._followers.all.get(sender)
        if (
            ask.epoch != self._epoch
            or follower is None
            or ask.generation < follower.named_in
            or not self._is_joining(sender)
        ):
            return
        follower.heard = True
        if ask.known < 0:
            if self._ctx.now >= follower.copied_by:
                self._copy(follower)
            return
        if follower.copying:  # dropped and named again, without hearing of it: it goes on from what it holds
            follower.copying = follower.asked = False
            follower.sent = max(follower.sent, ask.known)
        self._followers.acknowledge(sender, ask.known, -1, self._ctx.now)
        self._admit(follower)

    def _copy(self, follower: Follower) -> None:
        """A joiner copies the newest **durable** version."""
        m = self._m
        alone = self._blocked and not m.knowledge.set_of(m.operator.name).in_sync
        number = self._settled() if alone else self.durable
        version = m.store.at_or_below(number)
        if number < self.base or version is None or version.state is None:
            follower.copying = follower.asked = True
            return
        follower.copying = follower.asked = False
        follower.sent = version.number
        follower.progress_at = follower.sent_at = follower.silent_since = self._ctx.now
        units = bare(m.lineage.up_to(version.number), m.knowledge)
        known = m.knowledge.completed.snapshot()
        copy = StateCopy(
            m.operator.name,
            self._epoch,
            version.number,
            units,
            known,
            version.record.chain,
            version.state,
            m.layout,
        )
        follower.copied, follower.copied_nbytes = (
            version.number,
            version.carried_nbytes + version.state.nbytes,
        )
        follower.copied_by = (
            self._ctx.now + limits.resend_after_s + follower.copied_nbytes / limits.stream_floor_bytes_s
        )
        self._ctx.send(follower.instance, copy)
        self._ship_to(follower, self._ready_up_to())

    def _admit(self, follower: Follower) -> None:
        """A joiner whose model has taken a copy over enters the ack set; once it has applied everything
        durable it is proposed for the set.

        What has become durable since that copy was made is sent to it then, and nothing more becomes durable
        until it has it: a joiner that ran after a primary that is alone, and need not wait, would be one
        version behind for ever.
        """
        m = self._m
        if not self._is_joining(follower.instance) or follower.copying or follower.applied < 0:
            return
        if follower.keeper and not self._choice.is_wanted():
            return
        if not follower.ack:
            follower.ack = True
            self._catch_up(follower)
        if follower.applied < max(self.durable, self.base) or not self._may_propose():
            return
        change = name_keeper if follower.keeper else admit
        changed = change(m.knowledge.topology, m.operator.name, m.instance, self._epoch, follower.instance)
        if changed is None:
            return
        if follower.keeper:
            self._choice.proposed()
        self._propose(changed)

    def _propose(self, changed: Topology) -> None:
        """Propose a change of this set.

        Under Block nothing is durable in this primary alone, and whom a proposal drops may be out of the set
        before that is known here: from now on its word is still needed, but does not protect any more. What
        is dropped once is dropped for good, whatever becomes of the proposal.
        """
        m = self._m
        if self._blocked:
            kept = changed.find(m.operator.name).in_sync
            self._dropping.update(
                member for member in m.knowledge.set_of(m.operator.name).in_sync if member not in kept
            )
        self._proposed(changed)

    def _proposed(self, changed: Topology) -> None:
        self._m.proposing = True
        self._proposed_at = self._ctx.now
        self._proposed_set = changed.find(self._m.operator.name)
        self._reconsider_at = self._ctx.now + limits.propose_retry_s
        self._ctx.emit(Propose(self._m.knowledge.revision, changed))

    def _may_propose(self) -> bool:
        """One proposal at a time: not before the outcome of the last one is known, and not at once if that
        was unknown."""
        return self._ctx.now >= self._may_propose_at

    @property
    def _may_propose_at(self) -> float:
        return FOREVER if self._m.proposing else self._proposed_at + limits.propose_retry_s

    # -- keepers ---------------------------------------------------------------------------------------------

    def find_keeper(self) -> None:
        """While the state has one holder only: call an instance of another operator, copy to it, and another
        one if that is of no use."""
        choice = self._choice
        called = choice.called
        if called is not None:
            if not choice.is_vain(called, self._keeper_patience_s(called)):
                self._copy_again(called)
                return
            if not choice.is_settled:  # it may be named yet: the next generation, with nothing changed, tells
                if self._may_propose():
                    self._propose(self._m.knowledge.topology.next())
                return
            self._followers.dismiss(called.instance)
            self.advance()
        if not choice.is_wanted() or self.durable < self.base or self._too_large_for_keepers():
            return
        follower = choice.call()
        if follower is not None:
            self._copy(follower)

    def _too_large_for_keepers(self) -> bool:
        newest = self._m.store.at_or_below(self.durable)
        return newest is None or size_of(newest) > limits.keeper_state_bytes_max

    def _keeper_patience_s(self, called: Follower) -> float:
        return limits.keeper_wait_s + called.copied_nbytes / limits.stream_floor_bytes_s

    def _copy_again(self, called: Follower) -> None:
        """A copy may be lost; one that could not be made yet was asked for, and follows by itself."""
        lost = called.applied < 0 and not called.copying and self._ctx.now >= called.copied_by
        if lost:
            self._copy(called)

    def _gone_at(self, follower: Follower) -> float:
        m = self._m
        return follower.gone_at(
            follower.instance in m.members,
            m.graph.data.recovery.suspect_after_s,
            self._lag_max_s(follower),
            m.lateness.judges_at,
        )

    def drop_gone(self) -> None:
        """A set is shrunk only by its living primary's own compare-and-swap; until it is known, the member
        stays in the ack set."""
        m = self._m
        if not self._may_propose():
            return
        gone = [
            follower.instance
            for follower in self._followers.all.values()
            if self._ctx.now >= self._gone_at(follower)
        ]
        for member in (*sorted(self._dropping), *gone):
            changed = shrink(m.knowledge.topology, m.operator.name, m.instance, self._epoch, member)
            if changed is not None:
                self._propose(changed)
                return
        if (
            self._proposed_set is not None
        ):  # its outcome is not known: the next generation, with nothing changed, tells
            self._propose(m.knowledge.topology.next())

    def arrange(self, draining: bool, risky: bool) -> None:
        """Somebody in the set is to end: the next step. While a suspect runs (`risky`) nobody goes who alone
        could save the state."""
        changed = None if not self._may_propose() else self.leaving.change(draining)
        if changed is None:
            return
        left = self._is_held(changed.find(self._m.operator.name))
        if risky and self.is_protected and not left:
            return
        self._propose(changed)

    @property
    def is_handed_over(self) -> bool:
        """Whether a handover that was proposed may yet be committed: what is executed from then on would be
        lost."""
        return self._m.knowledge.topology.generation <= self._handed_in

    def settle(self) -> None:
        """A handover without a successor any more: the next generation, with nothing changed, ends it if it
        has not been committed."""
        if self._may_propose():
            self._propose(self._m.knowledge.topology.next())

    def hand_over(self) -> None:
        """Planned handoff: the queue is stopped and the window flushed; once the whole set has applied the
        last version, a backup takes over.

        From its proposal on nothing is executed until a later generation is known: another commit, or this
        one, has ended it then.
        """
        m = self._m
        unflushed = self._seq > self.durable
        if unflushed or not self._may_propose():
            return
        successor = self.leaving.successor()
        if successor is None:
            return
        changed = hand_over(
            m.knowledge.topology, m.operator.name, m.instance, self._epoch, successor, self._seq
        )
        if changed is not None:
            self._handed_in = m.knowledge.topology.generation
            self._proposed(changed)

    def proposal_settled(self, event: CasDone | CasFailed) -> None:
        """Committed, or overtaken by another change: the topology that follows says what is to be done
        next."""
        self._proposed_at = -FOREVER
        self._proposed_set = None
        self._reconsider_at = self._ctx.now

    def proposal_unknown(self) -> None:
        """The shell reads again; until then nothing is proposed."""
        self._proposed_at = self._ctx.now
        self._reconsider_at = self._ctx.now + limits.propose_retry_s

    # -- time ------------------------------------------------------------------------------------------------

    @property
    def arrange_at(self) -> float:
        """When somebody who is to end may be let go."""
        return max(self.leaving.due, self._may_propose_at)

    def dues(self) -> list[Due]:
        """Resend, shrink, ask again, propose again."""
        followers, called = self._followers.all.values(), self._choice.called
        keeper_at = FOREVER
        if called is not None and called.applied < 0 and not called.copying:
            keeper_at = min(self._choice.deadline(self._keeper_patience_s(called)), called.copied_by)
        return [
            (max(min(map(self._gone_at, followers), default=FOREVER), self._may_propose_at), self.drop_gone),
            (min(map(self._resend_at, followers), default=FOREVER), self._resend),
            (min([follower.ask_at for follower in followers], default=FOREVER), self._ask_applied),
            (self._reconsider_at, self._reconsider),
            (self._waiting_since + limits.ask_after_s, self._ask_waiting),
            (keeper_at, self.find_keeper),
        ]

    def _reconsider(self) -> None:
        """What became of a proposal is known by now, or may be asked."""
        self._reconsider_at = FOREVER
        self.drop_gone()
        for follower in list(self._followers.all.values()):
            self._admit(follower)

    def _ask_waiting(self) -> None:
        self._waiting_since = self._ctx.now
        primary = self._m.primary
        self._ask_durable(() if primary is None else primary.deps)
        self._ask_durable(self._oldest_pending())


def size_of(version: Version) -> int:
    """Bytes that travel with a version's record."""
    return version.carried_nbytes + (version.record.state.nbytes if version.record.state is not None else 0)
