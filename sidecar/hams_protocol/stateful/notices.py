"""Who hears that a version is durable, and what a primary asks others for (protocol.md, section 2).

Notices may be lost, and nobody repeats them unasked: whoever waits asks again.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.context import Context
from hams_protocol.deps import Deps
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.messages import AskDurable, Consumed, Durable

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Notices:
    """The notices of one primary in one epoch."""

    def __init__(self, machine: "StatefulMachine", epoch: int) -> None:
        self._m = machine
        self._ctx = machine.ctx
        self._epoch = epoch
        self._waiting_backups, self._shard_owners = self._who_waits()
        self._active = dict.fromkeys(range(len(machine.graph.shard_names)), machine.ctx.now)
        self._askers: dict[InstanceId, float] = {}

    def _who_waits(self) -> tuple[tuple[InstanceId, ...], tuple[InstanceId | None, ...]]:
        """Who holds records back for downstream operators: their backups, or a primary that is alone and its
        keeper. And the owners of the shards, by number."""
        m = self._m
        peers: dict[InstanceId, None] = {}
        # Where backups answer for what they have received, nobody downstream holds anything back.
        for name in () if m.by_receipt else m.graph.stateful_downstream[m.operator.name]:
            replica_set = m.knowledge.set_of(name)
            for peer in replica_set.in_sync or replica_set.holders:
                peers[peer] = None
        return tuple(peers), tuple(m.knowledge.set_of(name).primary for name in m.graph.shard_names)

    def executed(self, units: tuple[Consumed, ...]) -> None:
        """Requests of these shards have passed: their owners hold replies back that depend on what comes
        after."""
        for consumed in units:
            self._active[consumed.unit.request.shard] = self._ctx.now

    def announce(self, notice: Durable) -> None:
        """Tell whoever holds something back for a notice, as far as can be told from here; everybody else
        asks."""
        late = self._ctx.now - limits.notices_for_s
        peers = dict.fromkeys(self._waiting_backups)
        for shard, at in self._active.items():
            owner = self._shard_owners[shard]
            if at >= late and owner is not None:
                peers[owner] = None
        if self._askers:
            self._askers = {peer: at for peer, at in self._askers.items() if at >= late}
            peers.update(dict.fromkeys(self._askers))
        for peer in peers:
            self._ctx.send(peer, notice)

    def topology_changed(self, durable: int) -> None:
        """Who has a role now that waits for notices, and had none before, has heard nothing so far."""
        before = {*self._waiting_backups, *self._shard_owners}
        self._waiting_backups, self._shard_owners = self._who_waits()
        for peer in dict.fromkeys((*self._waiting_backups, *self._shard_owners)):
            if peer is not None and peer not in before:
                self._tell(peer, durable)

    def asked(self, sender: InstanceId, durable: int, more: bool) -> None:
        """Who asks is told how far it has come, and perhaps of what follows for a while."""
        if more and (sender in self._askers or len(self._askers) < limits.askers_max):
            self._askers[sender] = self._ctx.now
        self._tell(sender, durable)

    def _tell(self, peer: InstanceId, durable: int) -> None:
        if durable >= 0:
            own = self._m.own_dep(self._epoch, durable)
            # What is durable needs all of a vector: who asks is told what is known of the others, too.
            rest = tuple(mark for mark in self._m.knowledge.marks() if mark.op != own.op)
            self._ctx.send(peer, Durable((own, *rest)))


def ask_durable(ctx: Context, knowledge: Knowledge, own: str, deps: Deps) -> None:
    """Ask the primaries of other operators than `own` for what is not known to be durable: a notice may be
    lost."""
    for dep in deps:
        owner = knowledge.set_of(dep.op).primary
        if dep.op != own and owner is not None and knowledge.status_of(dep) is not Status.DURABLE:
            ctx.send(owner, AskDurable(dep.op))
