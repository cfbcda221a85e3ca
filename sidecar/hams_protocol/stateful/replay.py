"""A new primary where states are replayed: it asks everybody downstream how the versions after its checkpoint
came about, and runs the same batches again before anything else (protocol.md, section 9).

Laws it keeps: an answer counts only for the generation in which all were asked, so that whatever comes later
of a former owner is refused by who has answered; no unit runs before all have answered, and none but the next
one in order before all known ones have run.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.determinants import in_order
from hams_protocol.due import FOREVER, Due
from hams_protocol.graph import SINKS
from hams_protocol.ids import InstanceId
from hams_protocol.joins import Stage, Unit
from hams_protocol.messages import AskDeterminants, Determinant, Determinants

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class RunAgain:
    """What one primary runs again in its epoch, from `above` on. `is_over`: that is done, or there is
    nothing to be run."""

    def __init__(self, machine: "StatefulMachine", epoch: int, above: int) -> None:
        self._m = machine
        self._ctx = machine.ctx
        self._epoch = epoch
        self._above = above
        self._generation = -1
        self._instances: set[InstanceId] = set()
        self._sets: set[str] = set()
        self._items: list[Determinant] = []
        self._order: list[Determinant] | None = None
        self._asked_at = FOREVER

    @property
    def is_over(self) -> bool:
        """Whether what comes now is run in any order."""
        return self._order is not None and not self._order

    def look(self) -> None:
        """Ask, if the topology is another one than when all were asked; whoever was asked and is gone need
        not answer."""
        topology = self._m.knowledge.topology
        if self._order is not None:
            return
        if topology.generation != self._generation:
            self._generation = topology.generation
            self._items.clear()
            self._instances, self._sets = self._receivers()
            self._ask()
        self._instances &= self._receivers()[0]
        self._settle()

    def answered(self, sender: InstanceId, answer: Determinants) -> None:
        """One more has told."""
        if self._order is not None or answer.epoch != self._epoch or answer.generation < self._generation:
            return
        self._items.extend(answer.items)
        if answer.led is None:
            self._instances.discard(sender)
        else:
            name, epoch = answer.led
            if epoch >= self._m.knowledge.set_of(name).epoch:
                self._sets.discard(name)
        self._settle()

    def next_batch(self) -> tuple[Determinant, list[Unit]] | None:
        """The next one to be run again, once all its units are here."""
        if not self._order:
            return None
        units = [self._m.joins.find(item.unit) for item in self._order[0].units]
        ready = [unit for unit in units if unit is not None and unit.stage is Stage.READY]
        if len(ready) < len(units):
            return None
        return self._order[0], ready

    def ran(self) -> None:
        """The next one has been run."""
        assert self._order
        del self._order[0]

    def dues(self) -> list[Due]:
        """Questions and answers may be lost."""
        at = FOREVER if self._order is not None else self._asked_at + limits.resend_after_s
        return [(at, self._ask)]

    def _settle(self) -> None:
        if self._order is None and not (self._instances or self._sets):
            own = self._m.knowledge.determinants.above(self._m.operator.name, self._above)
            self._order = in_order((*self._items, *own), self._above)
            self._items.clear()

    def _ask(self) -> None:
        self._asked_at = self._ctx.now
        question = AskDeterminants(self._m.operator.name, self._epoch, self._above, self._generation)
        leaders = {self._m.knowledge.set_of(name).primary for name in self._sets}
        for peer in sorted(self._instances | {leader for leader in leaders if leader is not None}):
            self._ctx.send(peer, question)

    def _receivers(self) -> tuple[set[InstanceId], set[str]]:
        """Everybody who may depend on this operator: instances of stateless operators downstream, the leaders
        of stateful ones, and of the shards."""
        m = self._m
        below = self._below()
        topology = m.knowledge.topology
        sets = {name for name in below if m.graph.operators[name].stateful}
        instances = {item.instance for item in m.members.values() if item.of in below - sets}
        for table in topology.tables:
            if table.op in below:
                instances.update(slot.instance for slot in table.slots if slot.instance is not None)
        return instances.difference(topology.revoked), {*sets, *m.graph.shard_names}

    def _below(self) -> set[str]:
        below: set[str] = set()
        names: Iterable[str] = self._m.operator.targets
        while fresh := {name for name in names if name not in SINKS} - below:
            below |= fresh
            names = [target for name in fresh for target in self._m.graph.operators[name].targets]
        return below
