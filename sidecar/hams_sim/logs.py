"""What is true of the shards' logs: one call makes one entry, a committed entry has a second holder, a reply
waits for its dependencies.

An operator's versions are judged by `truth`; these are the same laws for shards, whose entries carry no
version of their own.
"""

from typing import TYPE_CHECKING

from hams_protocol.deps import Deps
from hams_protocol.effects import NoteLog, NoteReply
from hams_protocol.frontend import FrontendMachine
from hams_protocol.frontend.status import ShardStatus
from hams_protocol.graph import FRONTEND, WhenUnprotected
from hams_protocol.ids import RequestId, ValueId
from hams_protocol.messages import Deliver, Message
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

    def came(self, message: Message) -> None:
        """A frontend is sent something: what a token depends on is known for sure only before the owner of
        its shard judges it."""
        if type(message) is Deliver and message.token.deps:
            self._arrived.setdefault(message.token.value_id, message.token.deps)

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
