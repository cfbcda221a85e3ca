"""What one instance knows: the topology, which versions are durable, which requests are complete.

It answers the one question everything hangs on: is a dependency durable, orphan, pending or unknown
(protocol.md, section 1)? Invariant: knowledge only grows. A generation, an end, a durable watermark and a
completion never go back; a decision that was right by one of them stays right.
"""

import enum
from collections.abc import Iterable
from dataclasses import replace

from hams_protocol import limits
from hams_protocol.deadlines import Deadlines
from hams_protocol.deps import Dep, Deps
from hams_protocol.determinants import KnownDeterminants
from hams_protocol.graph import FRONTEND, SINKS, Graph, WhenUnprotected, shard_name
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.messages import Completion, Consumed, Durable, SlotQuery, Token
from hams_protocol.modes import ModePolicy
from hams_protocol.topology import ReplicaSet, Slot, Topology, slot_number


class Status(enum.IntEnum):
    """Of a dependency; of a vector, the worst of its entries: what is orphan is so for ever, whatever else it
    depends on.

    Where backups answer for what they have received, an entry is called so that is stable or within an end,
    and only a whole vector of such entries is durable (ADR 0013).
    """

    DURABLE = 0
    PENDING = 1
    UNKNOWN = 2
    ORPHAN = 3


class Knowledge:
    """Topology, durable watermarks and completions as far as they have reached this instance."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.topology = Topology()
        self.revision = -1
        self.completed = CompletionSet()
        self.deadlines = Deadlines()
        self.determinants = KnownDeterminants(self.completed.__contains__)
        policy = ModePolicy.of(graph.data.mode)
        self._replays = policy.replays
        self._by_receipt = policy.by_receipt
        self._known_marks: Deps | None = ()
        self._durable: dict[str, Dep] = {}
        self._marks: dict[str, dict[int, int]] = {}
        self._sets: dict[str, ReplicaSet] = {}
        self._ends: dict[str, dict[int, int]] = {}
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._stateful = frozenset(op.name for op in graph.data.operators if op.stateful)
        self._fences: dict[tuple[str, int], int] = {}
        self._block = graph.data.recovery.when_unprotected is WhenUnprotected.BLOCK

    def learn(self, topology: Topology, revision: int) -> bool:
        """Take over a newer topology; False if it is not newer. `revision` -1: heard from a peer, revision
        not known."""
        # A topology that a peer sent has no revision. The watch brings it later, and a compare-and-swap needs
        # it.
        if topology.generation == self.topology.generation:
            self.revision = max(self.revision, revision)
        if topology.generation <= self.topology.generation:
            return False
        self.topology = topology
        self.revision = revision
        self._sets = {item.name: item for item in topology.sets}
        for item in topology.sets:
            self._learn_ends(item)
        # An end is exact where a watermark was a lower bound, so the marks of ended epochs go.
        self._known_marks = None
        for name, marks in self._marks.items():
            epoch = self.set_of(name).epoch
            for ended in [item for item in marks if item < epoch]:
                del marks[ended]
        self._slots = {item.op: item.slots for item in topology.tables}
        for table in topology.tables:
            for number, slot in enumerate(table.slots):
                vacant = slot.instance is None  # its last owner is revoked, and may be alive
                self.fence(table.op, number, slot.epoch + vacant)
        return True

    def _learn_ends(self, replica_set: ReplicaSet) -> None:
        """What a topology drops is not forgotten here before `ends_known_max`: only a newcomer lacks it."""
        ends = self._ends.setdefault(replica_set.name, {})
        ends.update(replica_set.ends)
        for ended in sorted(ends)[: max(len(ends) - limits.ends_known_max, 0)]:
            del ends[ended]

    def is_behind(self, query: SlotQuery) -> bool:
        """Whether the slot's epoch is one that the topology here does not have yet."""
        slots = self.slots_of(query.op)
        return query.slot >= len(slots) or slots[query.slot].epoch < query.epoch

    def owner(self, target: str, request: RequestId) -> tuple[InstanceId | None, int]:
        """The holder of `target`'s tokens of this request, and its epoch; `target` is an operator or one of
        SINKS."""
        if target in self._stateful:
            replica_set = self.set_of(target)
            return replica_set.primary, replica_set.epoch
        if target in SINKS:
            replica_set = self.set_of(shard_name(request.shard))
            return replica_set.primary, replica_set.epoch
        slots = self._slots.get(target)
        if not slots:
            return None, 0
        number = slot_number(request, len(slots))
        slot = slots[number]
        return slot.instance, slot.epoch

    def source_epoch(self, source: str, request: RequestId) -> int:
        """The highest epoch known for the owner of `source`'s tokens of this request: receivers refuse what
        is below (I5)."""
        if source in self._stateful:
            return self.set_of(source).epoch
        if source == FRONTEND:
            return self.set_of(shard_name(request.shard)).epoch
        slots = self._slots.get(source)
        return self._fences.get((source, slot_number(request, len(slots))), 0) if slots else 0

    def fence(self, op: str, slot: int, epoch: int) -> None:
        """Refuse tokens of this slot from owners before `epoch`, for ever."""
        if epoch > self._fences.get((op, slot), 0):
            self._fences[op, slot] = epoch

    def slots_of(self, op: str) -> tuple[Slot, ...]:
        """All slots of a stateless operator in the newest topology known."""
        return self._slots.get(op, ())

    def set_of(self, name: str) -> ReplicaSet:
        """The replica set of an operator or shard in the newest topology known."""
        replica_set = self._sets.get(name)
        return ReplicaSet(name) if replica_set is None else replica_set

    def announce(self, notice: Durable) -> list[str]:
        """Take over durable watermarks; the operators whose watermark rose."""
        if self._replays:
            return [dep.op for dep in notice.versions if self._stored(dep)]
        risen = []
        for dep in notice.versions:
            marks = self._marks.get(dep.op)
            if marks is None:
                marks = self._marks[dep.op] = {}
            # A late notice of an ended epoch must not count: its end decides.
            if dep.seq <= marks.get(dep.epoch, -1) or dep.epoch < self.set_of(dep.op).epoch:
                continue
            marks[dep.epoch] = dep.seq
            held = self._durable.get(dep.op)
            if held is None or held.epoch <= dep.epoch:
                self._durable[dep.op] = dep
            risen.append(dep.op)
        if risen:
            self._known_marks = None
        return risen

    def _stored(self, dep: Dep) -> bool:
        """Where states are replayed, a version is what it was in every epoch, and durable once it is
        stored."""
        held = self._durable.get(dep.op)
        if held is not None and held.seq >= dep.seq:
            return False
        self._durable[dep.op] = dep
        self.determinants.durable(dep.op, dep.seq)
        return True

    def watermark(self, op: str) -> Dep | None:
        """The newest version of `op` known to be durable by an announcement."""
        return self._durable.get(op)

    def marks(self) -> Deps:
        """What rides on a token where nobody is told of watermarks unasked but who waits (ADR 0013)."""
        if not self._by_receipt:
            return ()
        if self._known_marks is None:
            self._known_marks = tuple(
                self._durable[op]
                for op in sorted(self._durable)
                if self._durable[op].epoch >= self.set_of(op).epoch
            )
        return self._known_marks

    def status_of(self, dep: Dep) -> Status:
        """Durable, pending, orphan or unknown. So is an epoch whose end was dropped before this instance
        came: its sender sends again, without it."""
        if self._replays:
            stored = self._durable.get(dep.op)
            return Status.DURABLE if stored is not None and dep.seq <= stored.seq else Status.PENDING
        replica_set = self._sets.get(dep.op)
        epoch = 0 if replica_set is None else replica_set.epoch
        if dep.epoch > epoch:
            return Status.UNKNOWN
        mark = self._durable.get(dep.op)
        # What stems from before a restart was reported as lost and is not undone (section 7.2). If it stayed
        # pending, all that depends on it would wait for ever.
        if replica_set is not None and dep.epoch < replica_set.restarted_in:
            return Status.DURABLE
        if dep.epoch < epoch:
            end = self._ends[dep.op].get(dep.epoch)
            if end is None:
                return Status.UNKNOWN
            if dep.seq > end:
                return Status.ORPHAN
            # Under Block the end may be held by the new primary alone. It is durable once the new epoch
            # announces it.
            if not self._block or (mark is not None and mark.epoch >= epoch and mark.seq >= dep.seq):
                return Status.DURABLE
            return Status.PENDING
        marks = self._marks.get(dep.op)
        return Status.DURABLE if marks is not None and dep.seq <= marks.get(epoch, -1) else Status.PENDING

    def status(self, deps: Deps) -> Status:
        """The worst of the entries; a vector without entries is durable."""
        worst = Status.DURABLE
        for dep in deps:
            status = self.status_of(dep)
            if status > worst:
                worst = status
        return worst

    def prune(self, deps: Deps) -> Deps:
        """The vector without what is durable for ever."""
        if not deps:
            return deps
        return tuple(dep for dep in deps if self.status_of(dep) is not Status.DURABLE)

    def pruned(self, token: Token) -> Token:
        """The token as it is handed on: its receiver may have started too late to hear of ends of epochs long
        past."""
        deps = self.prune(token.deps)
        return token if len(deps) == len(token.deps) else replace(token, deps=deps)

    def leaving(self, token: Token, now: float) -> Token:
        """The token as another instance gets it now: pruned, and with what is left of its budget."""
        pruned = self.pruned(token)
        meta = self.deadlines.meta(token.meta, token.request, now)
        return pruned if meta is token.meta else pruned.with_meta(meta)

    def hear_budgets(self, units: tuple[Consumed, ...], now: float, left_s: tuple[float, ...] = ()) -> None:
        """Saved outputs have come, which a successor may send much later. `left_s`, if it is given, says what
        is left of their budgets; else they do so themselves."""
        for at, item in enumerate(units):
            if item.unit.request not in self.completed:
                budget_s = left_s[at] if at < len(left_s) else item.meta.budget_s
                self.deadlines.learn(item.unit.request, budget_s, now)

    def requests_completed(self) -> None:
        """Of complete requests nothing is sent any more, and nothing of them is run again."""
        self.determinants.requests_completed()
        known = self.deadlines.requests()
        self.deadlines.forget([request for request in known if request in self.completed])


class CompletionSet:
    """Which requests are complete: per shard everything below a watermark, and a sparse set above it."""

    def __init__(self) -> None:
        self._below: dict[int, int] = {}
        self._sparse: dict[int, set[int]] = {}

    def __contains__(self, request: RequestId) -> bool:
        return request.n < self._below.get(request.shard, 0) or request.n in self._sparse.get(
            request.shard, ()
        )

    def add_one(self, request: RequestId) -> None:
        """Mark one request complete."""
        shard, n = request.shard, request.n
        below = self._below.get(shard, 0)
        if n < below:
            return
        sparse = self._sparse.get(shard)
        if sparse is None:
            sparse = self._sparse[shard] = set()
        if n > below:
            sparse.add(n)
            return
        below += 1
        while below in sparse:
            sparse.discard(below)
            below += 1
        self._below[shard] = below

    def add(self, requests: Iterable[RequestId]) -> list[RequestId]:
        """Mark requests complete; those that were not."""
        fresh = [request for request in requests if request not in self]
        for request in fresh:
            self._sparse.setdefault(request.shard, set()).add(request.n)
        for shard in {request.shard for request in fresh}:
            self._settle(shard)
        return fresh

    def learn(self, news: Completion) -> bool:
        """Take over a broadcast; False if it held nothing new."""
        changed = False
        for shard, watermark, sparse in news.shards:
            risen = watermark > self._below.get(shard, 0)
            if risen:
                self.below(shard, watermark)
            held = self._sparse.setdefault(shard, set())
            below = self._below.get(shard, 0)
            fresh = [n for n in sparse if n >= below and n not in held]
            if fresh:
                held.update(fresh)
                self._settle(shard)
            changed = changed or risen or bool(fresh)
        return changed

    def below(self, shard: int, watermark: int) -> None:
        """Every request of the shard below `watermark` is complete."""
        if watermark > self._below.get(shard, 0):
            self._below[shard] = watermark
            held = self._sparse.setdefault(shard, set())
            held.difference_update([n for n in held if n < watermark])
            self._settle(shard)

    def watermark(self, shard: int) -> int:
        """The first request of the shard that is not known to be complete."""
        return self._below.get(shard, 0)

    def sparse(self, shard: int) -> frozenset[int]:
        """Complete requests above the watermark."""
        return frozenset(self._sparse.get(shard, ()))

    def sparse_count(self, shard: int) -> int:
        """How many complete requests lie above the watermark."""
        return len(self._sparse.get(shard, ()))

    def snapshot(self) -> Completion:
        """Everything known, as a message."""
        shards = sorted(set(self._below) | set(self._sparse))
        return Completion(
            tuple(
                (shard, self._below.get(shard, 0), tuple(sorted(self._sparse.get(shard, ()))))
                for shard in shards
            )
        )

    def _settle(self, shard: int) -> None:
        below, sparse = self._below.get(shard, 0), self._sparse[shard]
        while below in sparse:
            sparse.discard(below)
            below += 1
        self._below[shard] = below
