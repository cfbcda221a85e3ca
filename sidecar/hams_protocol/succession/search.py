"""A frontend that starts after the switch: it has the replies of the shape before from the other frontends of
its graph.

It takes a whole table if there is one. If all who are registered have told, and no table is whole, it takes
one of those. If nobody is registered for a while, all have died together: it begins without the replies, and
tells others that its table is not whole.

Never: a table that is not whole is preferred to a whole one that somebody registered may have.
"""

from hams_protocol.context import StepClock
from hams_protocol.due import Due, Timed
from hams_protocol.ids import InstanceId
from hams_protocol.succession.effects import AskTable, UseTable
from hams_protocol.succession.events import FrontendsSeen, TableMissed, TableReceived, Wake

sought_s = 2.0
"""A frontend that comes later waits so long for somebody to be registered: after etcd was away all who live
register again at once. Where a graph has one frontend, and that dies, the next one serves so much later."""

again_after_s = 0.1
"""Those who have not told are asked again after this long."""

Event = FrontendsSeen | TableReceived | TableMissed | Wake
Effect = AskTable | UseTable


class ReplySearch(Timed):
    """`step(event, now) -> effects`, until a UseTable. It begins at `now`."""

    def __init__(self, now: float) -> None:
        super().__init__(StepClock())
        self.is_over = False
        self._nobody_since = now
        self._there: tuple[InstanceId, ...] = ()
        self._answered: dict[InstanceId, None] = {}
        self._asked: InstanceId | None = None
        self._tried: set[InstanceId] = set()
        self._round_at = now
        self._out: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        self._clock.now = now
        self._out = []
        if self.is_over:
            return self._out
        if isinstance(event, FrontendsSeen):
            if self._there and not event.instances:
                self._nobody_since = now
            self._there = event.instances
        elif isinstance(event, (TableReceived, TableMissed)) and event.instance == self._asked:
            self._asked = None
            if isinstance(event, TableReceived):
                if event.whole:
                    self._use(event.instance)
                    return self._out
                self._answered[event.instance] = None
        self.tick()
        return self._out

    def dues(self) -> list[Due]:
        """Ask the next one of those who are there; do without if nobody is for long enough."""
        if self.is_over or self._asked is not None:
            return []
        if self._there:
            return [(self._round_at, self._ask_next)]
        return [(self._nobody_since + sought_s, self._do_without)]

    def _do_without(self) -> None:
        self._use("")

    def _ask_next(self) -> None:
        """The next one of this round; at its end decide, or begin another one."""
        untried = [name for name in self._there if name not in self._tried]
        if untried:
            self._asked = untried[0]
            self._tried.add(untried[0])
            self._out.append(AskTable(untried[0]))
        elif all(name in self._answered for name in self._there):
            self._use(self._there[0])
        else:
            self._tried.clear()
            self._answered.clear()
            self._round_at = self._clock.now + again_after_s

    def _use(self, instance: InstanceId) -> None:
        self.is_over = True
        self._out.append(UseTable(instance))
