"""What is true of the shards' logs: one call makes one entry, a committed entry has a second holder, a reply
waits for its dependencies.

An operator's versions are judged by `truth`; these are the same laws for shards, whose entries carry no
version of their own.
"""

from typing import TYPE_CHECKING

from hams_protocol.deps import Deps
from hams_protocol.effects import NoteLog, NoteReply
from hams_protocol.frontend import FrontendMachine
from hams_protocol.frontend.log import ShardLog
from hams_protocol.frontend.state import ShardState
from hams_protocol.frontend.status import ShardStatus
from hams_protocol.graph import FRONTEND, WhenUnprotected
from hams_protocol.ids import RequestId, ValueId
from hams_protocol.messages import Admit, Deliver, Kind, LogAppend, LogEntry, Message, ReplyEntry
from hams_protocol.modes import ModePolicy
from hams_protocol.topology import ReplicaSet
from hams_sim.errors import Broken

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


class LogJudge:
    """The judge of entries. `made`: the request that each call without a key made, by the digest that only
    this call has."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.made: dict[str, RequestId] = {}
        self._arrived: dict[ValueId, Deps] = {}
        self._skips: dict[tuple[RequestId, str], list[Deps]] = {}
        self._asked: dict[RequestId, tuple[str, ...] | None] = {}
        self._sent: dict[tuple[int, int, int], LogEntry] = {}
        self._entries: dict[RequestId, list[tuple[int, ReplyEntry]]] = {}
        data = world.graph.data
        self._blocks = (
            data.recovery.when_unprotected is WhenUnprotected.BLOCK
            and data.frontend.replicas > 1
            and ModePolicy.of(data.mode).replicates
        )
        policy = ModePolicy.of(data.mode)
        self._waits = policy.waits_for_durable and not policy.replays

    def logged(self, node: "Node", note: NoteLog) -> None:
        """An entry was committed."""
        self._check_holders(node, note.shard, note.epoch)
        if note.key is None and note.source is None:
            first = self.made.setdefault(note.digest, note.request)
            if first != note.request and not self._world.losses.has_lost(first):
                raise Broken(
                    "I4", f"{node.id} logged one call without a key twice, as {first} and as {note.request}"
                )

    def replied(self, node: "Node", note: NoteReply) -> None:
        """A reply is about to be released. Its tokens carry no dependencies any more, so those count with
        which they arrived."""
        self._check_holders(node, note.shard, note.epoch)
        if not self._waits:
            return
        for token in note.tokens:
            for dep in (*token.deps, *self._arrived.get(token.value_id, ())):
                if not self._world.truth.is_durable(dep):
                    raise Broken(
                        "I3",
                        f"{node.id} replies to {note.request} with {token.value_id}, whose {dep} is not "
                        "durable",
                    )
        self._check_entry(node, note)
        if all(token.kind is Kind.VALUE for token in note.tokens):
            self._check_skips(node, note)

    def _check_skips(self, node: "Node", note: NoteReply) -> None:
        """An operator that would have been preferred had nothing to say: that is durable, too."""
        shown = {token.source for token in note.tokens}
        if not shown or note.request not in self._asked:
            return
        asked = self._asked[note.request]
        for tensor in self._world.graph.data.outputs:
            if asked is not None and tensor.name not in asked:
                continue
            for op, _ in tensor.sources:
                if op in shown:
                    break
                skips = self._skips.get((note.request, op), [])
                if skips and not any(all(map(self._world.truth.is_durable, deps)) for deps in skips):
                    raise Broken(
                        "I3", f"{node.id} replies to {note.request} without {op}, whose skip is not durable"
                    )

    def _check_entry(self, node: "Node", note: NoteReply) -> None:
        """What is released is what the newest entry says that others were sent, and that depends on nothing
        that is pending."""
        if not self._entries.get(note.request):
            return
        epoch, entry = self._entries[note.request][-1]
        if tuple(sorted(token.value_id for token in entry.tokens)) != note.values:
            return  # one that others were not sent yet, or that only an end which cut it off knows
        for dep in entry.deps:
            if not self._world.truth.is_durable(dep):
                raise Broken("I3", f"{node.id} replies to {note.request}, whose entry's {dep} is not durable")
        if entry.deps and epoch < note.epoch:
            self._world.seen("an early reply released by a new owner")

    def came(self, message: Message) -> None:
        """A frontend is sent something: what a token depends on is known for sure only before the owner of
        its shard judges it."""
        if type(message) is Deliver:
            token = message.token
            if token.deps:
                self._arrived.setdefault(token.value_id, token.deps)
            if token.kind is Kind.SKIP and message.target == FRONTEND:
                self._skips.setdefault((token.request, token.source), []).append(token.deps)
        elif type(message) is LogAppend:
            for index, entry in enumerate(message.entries, message.first):
                self._entry_came(message.shard, message.epoch, index, entry)

    def _entry_came(self, shard: int, epoch: int, index: int, entry: LogEntry) -> None:
        """One place of a log has one entry in an epoch, for every follower."""
        first = self._sent.setdefault((shard, epoch, index), entry)
        if first != entry:
            raise Broken("I2", f"entry {index} of shard {shard} in epoch {epoch} is {first} and {entry}")
        if isinstance(entry, Admit):
            self._asked[entry.request] = entry.outputs
        if first is entry and isinstance(entry, ReplyEntry):
            entries = self._entries.setdefault(entry.request, [])
            if (epoch, entry) not in entries:
                entries.append((epoch, entry))
                self._world.seen("reply logged early" if entry.deps else "reply logged")
                if len(entries) > 1:
                    self._world.seen("reply logged again")

    def compare(self) -> None:
        """At the end: every follower in sync would answer what the owner would, and what it was answered. One
        may be yet to hear that the newest entries are committed."""
        world = self._world
        for shard, name in enumerate(world.graph.shard_names):
            replica_set = world.etcd.topology.find(name)
            states = {
                item: log.state
                for item in replica_set.members
                if world.nodes[item].alive and (log := _log_of(world.nodes[item], shard)) is not None
            }
            tables = {item: _replies(state) for item, state in states.items()}
            owned = tables.get(replica_set.primary or "", {})
            for item, table in tables.items():
                for n in owned.keys() - states[item].open.keys():
                    if table.get(n) != owned[n]:
                        raise Broken(
                            "I1", f"{item}, in sync in {name}, replies {table.get(n)} to {n}, not {owned[n]}"
                        )
                for n, values in table.items():
                    note = world.recorder.replies.get(RequestId(shard, n))
                    if note is None or note.values != values:
                        said = "nothing" if note is None else note.values
                        raise Broken(
                            "I2", f"{item} has {values} as the reply of {shard}/{n}; told was {said}"
                        )

    def admitted(self, old: ReplicaSet, item: ReplicaSet) -> None:
        """A commit declares somebody in sync: it holds everything that the owner has committed."""
        world = self._world
        if item.primary is None or item.epoch != old.epoch:
            return
        mine = _status(world.nodes[item.primary], item.name)
        if mine is None or mine.role != "primary" or mine.epoch != item.epoch:
            return
        for peer in set(item.in_sync) - set(old.in_sync):
            held = _status(world.nodes[peer], item.name)
            if held is None or held.last < mine.committed:
                raise Broken(
                    "I1",
                    f"{peer} is declared in sync in {item.name} with entry {held and held.last}; "
                    f"{mine.committed} is committed",
                )

    def _check_holders(self, node: "Node", shard: int, epoch: int) -> None:
        """Every in-sync follower, as etcd knows them, holds what is committed; under Block there is one."""
        world = self._world
        name = world.graph.shard_names[shard]
        replica_set = world.etcd.topology.find(name)
        mine = _status(node, name)
        if mine is None or mine.role != "primary" or mine.epoch != epoch:
            return  # the same step has taken the shard from it
        committed = mine.committed
        if replica_set.epoch > epoch:
            end = world.etcd.ends[name].get(epoch, -1)
            if committed > end and not world.losses.explains(name, epoch, committed):
                raise Broken(
                    "I1",
                    f"{node.id} commits entry {committed} of epoch {epoch} of {name}, but that ended at "
                    f"{end}",
                )
            return
        for peer in replica_set.in_sync:
            held = _status(world.nodes[peer], name)
            if held is None or held.last < committed:
                raise Broken(
                    "I1",
                    f"{node.id} commits entry {committed} of {name}; {peer}, in sync, has "
                    f"{held and held.last}",
                )
        if self._blocks and not replica_set.in_sync:
            raise Broken("I1", f"{node.id} commits entry {committed} of {name} alone under Block")


def _status(node: "Node", name: str) -> ShardStatus | None:
    machine = node.machine
    if node.of != FRONTEND or not isinstance(machine, FrontendMachine):
        return None
    return next((item for item in machine.shards() if item.name == name), None)


def _log_of(node: "Node", shard: int) -> ShardLog | None:
    machine = node.machine
    assert isinstance(machine, FrontendMachine)
    logs = machine.logs_to_keep()
    return None if logs is None else logs.logs.get(shard)


def _replies(state: ShardState) -> dict[int, tuple[ValueId, ...]]:
    """The values of every reply under a key that a log would answer with."""
    return {
        stored.n: tuple(sorted(token.value_id for token in stored.reply(state.shard).tokens))
        for stored in state.keyed.values()
    }
