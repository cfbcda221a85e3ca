"""When a version is durable, and who helps to make it so: records, copies, the window, the watermark
(protocol.md, sections 2 and 7.7).

Laws it keeps: a version is durable only when the whole ack set has applied it (alone: once its dependencies
on other operators are durable); a joiner copies only what is durable, and is counted on before it is declared
in sync, and follows the records from then on only (ADR 0016). Who is in the set, and who is dropped, admitted
and replaced, is a leader's business (`replica.leader`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.deps import Deps, others
from hams_protocol.due import FOREVER, Due
from hams_protocol.effects import NoteDurable, NoteStable
from hams_protocol.events import CheckpointWritten
from hams_protocol.graph import WhenUnprotected
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Status
from hams_protocol.lineage import pruned
from hams_protocol.messages import (
    AskApplied,
    AskCopy,
    AskDurable,
    Durable,
    Leave,
    Message,
    Payload,
    RecordAck,
    StateCopy,
    StateRecord,
    Token,
)
from hams_protocol.replica.leader import Leader
from hams_protocol.replica.progress import Progress
from hams_protocol.stateful.choice import KeeperChoice
from hams_protocol.stateful.notices import Notices, ask_durable
from hams_protocol.stateful.receipts import newest_durable
from hams_protocol.topology import ReplicaSet, Topology, hand_over
from hams_protocol.versions import Version

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


Outputs = tuple[tuple[str, Token], ...]
"""What a unit has made, each with its target."""


class Durability(Leader):
    """Everything of a primary's epoch that happens between an executed version and its being durable.

    `risky`: whether a suspect runs. Then nobody goes who alone could save the state.
    """

    def __init__(
        self, machine: "StatefulMachine", replica_set: ReplicaSet, risky: Callable[[], bool]
    ) -> None:
        newest = machine.store.newest
        assert newest is not None, "a primary has a state"
        operator = machine.operator
        blocks = machine.graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK
        super().__init__(
            machine.ctx, machine, replica_set, newest.number, operator.name, operator.backups, blocks
        )
        self._m = machine
        self._risky = risky
        self.durable = self.stable = -1
        self.notices = Notices(machine, replica_set.epoch)
        self._choice = KeeperChoice(machine, replica_set.epoch, self.followers)
        self._choice.named()
        self._proposed_set: ReplicaSet | None = None
        self._handed_in = -1
        self._waiting_since = FOREVER
        self._asked_at = -FOREVER
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
        return self._is_held(self._m.knowledge.set_of(self.name)) and (
            self._proposed_set is None or self._is_held(self._proposed_set)
        )

    def _is_held(self, replica_set: ReplicaSet) -> bool:
        revoked = self._m.knowledge.topology.revoked
        holders = (*replica_set.in_sync, *(item for item in replica_set.keepers if item not in revoked))
        return self.followers.some_in_reach(holders)

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

    @property
    def watermark(self) -> int:
        """See `Leader`. By receipt: what is stable, which who is in sync must have received."""
        return self.stable if self._m.by_receipt else self.durable

    def retains(self, position: int) -> bool:
        """See `Leader`."""
        return self._m.store.find(position) is not None

    def ship(self) -> None:
        """Stream every record that is ready, in order, to the ack set."""
        for follower in self.followers.all.values():
            self.send_to(follower)

    def _ready_up_to(self) -> int:
        """The newest version whose record, and all before it, can leave: captured, or unchanged."""
        ready = self.base
        for version in self._m.store.versions:
            if version.state is None:
                break
            ready = version.number
        return ready

    def send_to(self, follower: Progress) -> None:
        """See `Leader`: the records behind what it was sent. One that does not count yet gets its copy only;
        records that it may be too slow for are not sent behind that."""
        ready = self._ready_up_to()
        if follower.copying or not follower.ack or follower.sent >= ready:
            return
        flying = self.flying_nbytes(follower)
        for version in self._m.store.after(follower.sent):
            record = version.difference if self._sends_differences(follower) else version.record
            nbytes = version.carried_nbytes + (0 if record.state is None else record.state.nbytes)
            if version.number > ready or (flying and flying + nbytes > limits.flight_bytes_max):
                break
            flying += nbytes
            if version.record.epoch == self.epoch:
                record = version.leaving(record, self._m.knowledge.deadlines, self._ctx.now)
                self._ctx.send(follower.instance, record if follower.in_sync else self._pruned(record))
            follower.is_sent(version.number, self._ctx.now)

    def flying_nbytes(self, follower: Progress) -> int:
        """See `Leader`: bytes of the copy and the records that are on their way."""
        if not follower.owes:
            return 0
        has = max(follower.received, follower.copied)
        fresh = self._sends_differences(follower)
        nbytes = sum(
            size_of(version, fresh) for version in self._m.store.after(has) if version.number <= follower.sent
        )
        return nbytes + (follower.copied_nbytes if follower.received < follower.copied else 0)

    def _pruned(self, record: StateRecord) -> StateRecord:
        """A record for a joiner, who may have come long after what it depends on has ended."""
        knowledge = self._m.knowledge
        units = pruned(record.units, knowledge, self._ctx.now)
        return replace(record, deps=knowledge.prune(record.deps), units=units)

    def copy_to(self, follower: Progress) -> None:
        """See `Leader`: a joiner copies the newest **durable** version."""
        m = self._m
        alone = self._blocks and not m.knowledge.set_of(self.name).in_sync
        number = self._settled() if alone else self.durable
        version = m.store.at_or_below(number)
        if number < self.base or version is None or version.state is None:
            follower.copying = follower.asked = True
            return
        changed = self._changed_for(follower, version.state, version.born)
        state, since = (version.state, -1) if changed is None else (changed, follower.received)
        units = pruned(m.lineage.up_to(version.number), m.knowledge, self._ctx.now)
        known = m.knowledge.completed.snapshot()
        copy = StateCopy(
            self.name,
            self.epoch,
            version.number,
            units,
            known,
            version.record.chain,
            state,
            m.layout,
            since,
            m.knowledge.topology.generation,
        )
        follower.is_sent_copy(version.number, version.carried_nbytes + state.nbytes, self._ctx.now)
        self._ctx.send(follower.instance, copy)
        self.send_to(follower)

    def _changed_for(self, follower: Progress, state: Payload, born: int) -> Payload | None:
        """What changed of a state since what a joiner holds already; None: it is sent whole."""
        if follower.received < self.base or not self._sends_differences(follower):
            return None
        return state.born_after(follower.received, born)

    def _sends_differences(self, follower: Progress) -> bool:
        return follower.differences and self._m.operator.delta

    def _ask_applied(self) -> None:
        """The acknowledgement of an apply may be lost."""
        for follower in self.followers.all.values():
            if self._ctx.now >= follower.ask_at:
                follower.asked_at = self._ctx.now
                self._ctx.send(follower.instance, AskApplied(self.name, self.epoch))

    # -- outputs ---------------------------------------------------------------------------------------------

    idle_at = FOREVER
    """When it has had nothing to do for so long that its state is stored, where states are replayed."""

    def executed(self) -> None:
        """One more version, where states are replayed."""

    def capture(self) -> int | None:
        """The version to capture between two batches, where states are replayed."""
        return None

    def written(self, event: CheckpointWritten) -> None:
        """A version is stored, where states are replayed."""

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
                m.outbox.put(target, m.knowledge.pruned(token))

    # -- the watermark ---------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move the durable watermark as far as the ack set (or, alone, the dependencies) allow, and announce
        it."""
        m = self._m
        if not m.mode.replicates:
            return
        target = self.followers.applied_by_all()
        if self._blocks and not self.followers.some_protects:
            target = -1
        elif target is None:
            target = self._ready_up_to() if m.by_receipt else self._settled()
        may_go_back = m.primary is not None and m.primary.may_go_back
        if m.by_receipt:
            if not may_go_back:
                self._is_stable(target)
            target = newest_durable(m.store, m.knowledge, self.name, self.stable)
            self._ask_at_once(target)
        self._waiting_since = FOREVER if target >= self._seq else min(self._waiting_since, self._ctx.now)
        if target <= self.durable or may_go_back:
            self._serve_joiners()
            return
        self.durable = target
        self._waiting_since = FOREVER if target >= self._seq else self._ctx.now
        # Before what it releases: the history of one that dies in between says why that has left.
        self._ctx.emit(NoteDurable(self.name, m.knowledge.topology.generation, self.epoch, target))
        notice = Durable((m.own_dep(self.epoch, target),))
        m.knowledge.announce(notice)
        self._release_durable()
        m.store.trim(target)
        if not m.by_receipt:
            self.notices.announce(notice)
        self._serve_joiners()
        self.wishing = True
        # This very instance may keep a state downstream, whose records wait for this version: nobody else
        # tells it.
        m.keeper.durable_rose()

    def _ask_at_once(self, durable: int) -> None:
        """By receipt nobody is told of watermarks unasked who does not own a shard. Tokens bring them; but a
        full window would wait for tokens that are here already."""
        waits = self.stable > durable and self._m.store.count_after(durable) >= self._m.operator.window
        if waits and self._ctx.now >= self._asked_at + limits.ask_after_s:
            self._asked_at = self._ctx.now
            self._ask_newest()

    def _ask_newest(self) -> None:
        """The newest version vouches for those before it."""
        primary = self._m.primary
        ask_durable(self._ctx, self._m.knowledge, self.name, () if primary is None else primary.deps)

    def _is_stable(self, version: int) -> None:
        """Where backups answer for what they have received, that is what is announced: whoever holds a vector
        can compare all of it at once (ADR 0013)."""
        m = self._m
        if version <= self.stable:
            return
        self.stable = version
        notice = Durable((m.own_dep(self.epoch, version),))
        m.knowledge.announce(notice)
        self._ctx.emit(NoteStable(self.name, m.knowledge.topology.generation, self.epoch, version))
        self.notices.announce(notice)
        self.wishing = True
        m.keeper.durable_rose()

    def _serve_joiners(self) -> None:
        """Joiners that asked before there was anything to copy."""
        for follower in self.followers.all.values():
            if follower.asked:
                self.copy_to(follower)

    def _settled(self) -> int:
        """Alone: the newest version that is captured and, with all before it, has only durable dependencies
        on other operators."""
        newest = self.durable
        knowledge = self._m.knowledge
        if self._m.by_receipt:
            ready = self._ready_up_to()
            return max(newest, newest_durable(self._m.store, knowledge, self.name, ready))
        for version in self._m.store.versions:
            if version.state is None:
                break
            if knowledge.status(others(version.record.deps, self.name)) is not Status.DURABLE:
                break
            newest = max(newest, version.number)
        return newest

    def _oldest_pending(self) -> Deps:
        """What the oldest version that is not durable yet depends on. The newest state need not: notices
        about the older ones may have been lost while this instance was cut off, and nobody repeats them
        unasked."""
        for version in self._m.store.versions:
            if version.number > self.durable:
                deps = others(version.record.deps, self.name)
                if self._m.knowledge.status(deps) is not Status.DURABLE:
                    return deps
        return ()

    # -- members ---------------------------------------------------------------------------------------------

    def members_named(self, replica_set: ReplicaSet) -> None:
        """A newer topology in the same epoch."""
        self.sync(replica_set)
        self._choice.named()
        self._proposed_set = None
        self.ship()
        self.advance()
        self.notices.topology_changed(self.watermark)
        for follower in list(self.followers.all.values()):
            self.consider(follower)

    def message(self, sender: InstanceId, message: Message) -> None:
        """What followers and waiting proxies say; nothing else is for this part."""
        if isinstance(message, RecordAck):
            self._record_ack(sender, message)
        elif isinstance(message, AskCopy):
            if message.epoch == self.epoch:
                self.copy_asked(sender, message)
        elif isinstance(message, Leave):
            if message.epoch == self.epoch:
                self.leave_asked(sender)
        elif isinstance(message, AskDurable):
            self.notices.asked(sender, self.watermark, self._tells_more)

    @property
    def _tells_more(self) -> bool:
        """Whether who asks is told of what follows. By receipt only of what is not stable yet: tokens tell of
        the rest."""
        return not self._m.by_receipt or self.stable < self._seq

    def _record_ack(self, sender: InstanceId, ack: RecordAck) -> None:
        if ack.epoch != self.epoch:
            return
        known = self.followers.all.get(sender)
        if known is not None:
            known.differences = ack.differences
        follower = self.acknowledged(sender, ack.received, ack.applied)
        if follower is not None:
            self.send_to(follower)
            self.advance()

    def reconsider(self) -> None:
        """Propose the next change of this set, if one is due."""
        if not self.wishing or not self._proposals.may_propose:
            return
        changed = self.next_change()
        if changed is None and self._proposed_set is not None and not self._may_hand_over_again:
            # Its outcome is not known: the next generation, with nothing changed, tells.
            changed = self._m.knowledge.topology.next()
        if changed is not None:
            if self.followers.called in changed.find(self.name).keepers:
                self._choice.proposed()
            self._propose(changed)

    def _propose(self, changed: Topology) -> None:
        self._proposed_set = changed.find(self.name)
        self.wishing = True
        self._proposals.propose(changed)

    def proposal_settled(self) -> None:
        """Committed, or overtaken by another change: the topology that follows says what is to be done
        next."""
        self._proposed_set = None
        self.wishing = True

    def is_welcome(self, follower: Progress) -> bool:
        """See `Leader`: a keeper only while nobody else is in sync."""
        return not follower.keeper or self._choice.is_wanted()

    def may_let_go(self, remaining: ReplicaSet) -> bool:
        """See `Leader`."""
        return not self._risky() or not self.is_protected or self._is_held(remaining)

    def late(self, by_s: float) -> None:
        """See `Leader`."""
        super().late(by_s)
        self._choice.late(by_s)

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
                if self._proposals.may_propose:
                    self._propose(self._m.knowledge.topology.next())
                return
            self.followers.dismiss(called.instance)
            self.advance()
        if not choice.is_wanted() or self.durable < self.base or self._too_large_for_keepers():
            return
        follower = choice.call()
        if follower is not None:
            self.copy_to(follower)

    def _too_large_for_keepers(self) -> bool:
        newest = self._m.store.at_or_below(self.durable)
        if newest is None or newest.state is None:
            return True
        return newest.carried_nbytes + newest.state.nbytes > limits.keeper_state_bytes_max

    def _keeper_patience_s(self, called: Progress) -> float:
        return limits.keeper_wait_s + called.copied_nbytes / limits.stream_floor_bytes_s

    def _copy_again(self, called: Progress) -> None:
        """A copy may be lost; one that could not be made yet was asked for, and follows by itself."""
        lost = called.applied < 0 and not called.copying and self._ctx.now >= called.copied_by
        if lost:
            self.copy_to(called)

    # -- planned handoff -------------------------------------------------------------------------------------

    @property
    def is_handed_over(self) -> bool:
        """Whether a handover that was proposed may yet be committed: what is executed from then on would be
        lost."""
        return self._m.knowledge.topology.generation <= self._handed_in

    @property
    def _may_hand_over_again(self) -> bool:
        """Whether a handover whose outcome is not known is about to be proposed again, which tells as
        well."""
        return self.is_handed_over and self.successor() is not None

    def settle(self) -> None:
        """A handover without a successor any more: the next generation, with nothing changed, ends it if it
        has not been committed."""
        if self._proposals.may_propose:
            self._propose(self._m.knowledge.topology.next())

    def hand_over(self) -> None:
        """Planned handoff: the queue is stopped and the window flushed; once the whole set has applied the
        last version, a backup takes over.

        From its proposal on nothing is executed until a later generation is known: another commit, or this
        one, has ended it then.
        """
        m = self._m
        unflushed = self._seq > self.durable
        if unflushed or not self._proposals.may_propose:
            return
        successor = self.successor()
        if successor is None:
            return
        changed = hand_over(m.knowledge.topology, self.name, m.instance, self.epoch, successor, self._seq)
        if changed is not None:
            self._handed_in = m.knowledge.topology.generation
            self._propose(changed)

    # -- time ------------------------------------------------------------------------------------------------

    def change_due(self) -> None:
        """See `Leader`."""
        self.wishing = True
        self.reconsider()

    def dues(self) -> list[Due]:
        """What a leader does; ask for acknowledgements and notices; look after a keeper that is called."""
        called, keeper_at, ask_at = self._choice.called, FOREVER, FOREVER
        for follower in self.followers.all.values():
            if follower.ask_at < ask_at:
                ask_at = follower.ask_at
        if called is not None and called.applied < 0 and not called.copying:
            keeper_at = min(self._choice.deadline(self._keeper_patience_s(called)), called.copied_by)
        return [
            *super().dues(),
            (ask_at, self._ask_applied),
            (self._waiting_since + limits.ask_after_s, self._ask_waiting),
            (keeper_at, self.find_keeper),
        ]

    def _ask_waiting(self) -> None:
        self._waiting_since = self._ctx.now
        self._ask_newest()
        if not self._m.by_receipt:
            ask_durable(self._ctx, self._m.knowledge, self.name, self._oldest_pending())


def size_of(version: Version, fresh: bool = False) -> int:
    """Bytes that travel with a version's record; `fresh`: to who is sent only what changed."""
    state = version.record.state
    if state is None:
        return version.carried_nbytes
    return version.carried_nbytes + (state.fresh_nbytes if fresh else state.nbytes)
