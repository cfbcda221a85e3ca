"""A process of a shape that follows another one: it begins with what it takes from there, and not before the
one before is at rest.

    waits --cut--> fetches --the same cut--> says what it has taken --> begins
                      |                           |
                      +-- another cut: waits      +-- another layout: says so, and never begins

It asks those whom the topology names, and only then becomes an instance: so the core begins as it always
does, a first primary with a restored state. What was taken counts for one cut of the predecessor's logs. If
that changes while it is being taken, it is taken anew, and etcd is told which one it was.

Never: it fetches before the predecessor is at rest for this very graph; it begins with what was fetched at
another cut than it says.
"""

import enum

from hams_protocol.context import StepClock
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_protocol.stateful.machine import StatefulMachine
from hams_protocol.succession.effects import Begin, Fetch, SayTaken, StateSource
from hams_protocol.succession.events import (
    Fetched,
    GraphsSeen,
    NotFetched,
    NotSaid,
    RoleStands,
    Said,
    Wake,
)
from hams_protocol.succession.records import Cut, Phase, TakenOver, cut_of
from hams_protocol.topology import Topology
from hams_protocol.versions import Version

again_after_s = 0.1
"""What could not be fetched or written is tried again after this long."""

Event = GraphsSeen | Fetched | NotFetched | Said | NotSaid | RoleStands | Wake
Effect = Fetch | SayTaken | Begin


class Stage(enum.Enum):
    """How far a process has come."""

    WAITING = "waits for the predecessor to be at rest"
    FETCHING = "fetches"
    SAYING = "says what it has taken"
    REFUSING = "cannot take the state over"
    BEGUN = "has begun"


class TakeoverMachine(Timed):
    """`step(event, now) -> effects` of one process. `uid`: of its own graph; `of`: its operator, or FRONTEND;
    `shards`: the predecessor's; `layout`: of the state that its model takes, "" if it does not say."""

    def __init__(self, uid: str, of: str, process: InstanceId, shards: tuple[str, ...], layout: str) -> None:
        super().__init__(StepClock())
        self.stage = Stage.WAITING
        self.cut: Cut = ()
        self._uid = uid
        self._of = of
        self._process = process
        self._shards = shards
        self._layout = layout
        self._seen: GraphsSeen | None = None
        self._out: list[Effect] = []
        self._fetch_at = FOREVER
        self._fetching: Cut | None = None
        self._unsaid: list[SayTaken] = []
        self._saying = False
        self._say_at = 0.0
        self._loaded: set[InstanceId] = set()

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        self._clock.now = now
        self._out = []
        if isinstance(event, GraphsSeen):
            self._seen = event
        elif isinstance(event, Fetched):
            self._fetched(event)
        elif isinstance(event, NotFetched):
            self._fetching = None
            if self.stage is Stage.FETCHING:
                self.stage = Stage.WAITING
                self._fetch_at = now + again_after_s
        elif isinstance(event, Said):
            self._was_said()
        elif isinstance(event, NotSaid):
            self._saying = False
            self._say_at = now + again_after_s
        elif isinstance(event, RoleStands):
            self._role_stands(event)
        self.tick()
        self._wait()
        return self._out

    def dues(self) -> list[Due]:
        """Fetch again after a failure; say what is not said yet."""
        is_unsaid = bool(self._unsaid) and not self._saying
        return [
            (self._fetch_at if self.stage is Stage.WAITING else FOREVER, self._may_fetch),
            (self._say_at if is_unsaid else FOREVER, self._speak),
        ]

    def _may_fetch(self) -> None:
        self._fetch_at = FOREVER

    def has_loaded(self, instance: InstanceId) -> bool:
        """Whether this instance has said, or is about to say, that its model holds the state."""
        return instance in self._loaded

    def _wait(self) -> None:
        """Begin with nothing if somebody else has, or fetch once the predecessor is at rest."""
        if self._seen is None or self.stage not in (Stage.WAITING, Stage.FETCHING):
            return
        if self._is_needless(self._seen):
            self.stage = Stage.BEGUN
            self._out.append(Begin(None))
            return
        if self.stage is Stage.FETCHING or self._fetch_at != FOREVER:
            return
        cut = self._cut_now(self._seen)
        sources = None if cut is None else self._sources(self._seen.topology)
        if sources is not None:
            self.stage, self._fetching = Stage.FETCHING, cut
            self._out.append(Fetch(sources))

    def _is_needless(self, seen: GraphsSeen) -> bool:
        return seen.done or (self._of != FRONTEND and seen.begun)

    def _cut_now(self, seen: GraphsSeen) -> Cut | None:
        record = seen.record
        if record is None or record.to != self._uid or record.phase is not Phase.CLOSE:
            return None
        return cut_of(self._shards, seen.topology, dict(seen.quiet), self._uid)

    def _sources(self, topology: Topology) -> tuple[StateSource, ...] | None:
        """Who is asked. What a shard's owner has taken over itself is older than what its log keeps, so it is
        asked for first."""
        if self._of != FRONTEND:
            primary = topology.find(self._of).primary
            return None if primary is None else (StateSource(primary, self._of),)
        owners = [(topology.find(shard).primary, shard) for shard in self._shards]
        asked = [StateSource(owner, shard) for owner, shard in owners if owner is not None]
        if len(asked) < len(self._shards):
            return None
        return (StateSource(asked[0].host, ""), *asked)

    def _fetched(self, event: Fetched) -> None:
        if self.stage is not Stage.FETCHING or self._seen is None:
            return
        cut, self._fetching = self._fetching, None
        if cut is None or self._cut_now(self._seen) != cut:
            self.stage = Stage.WAITING
            return
        self.cut = cut
        refused = self._why_refused(event.layout)
        self.stage = Stage.REFUSING if refused else Stage.SAYING
        self._unsaid.append(SayTaken(self._process, TakenOver(self._of, cut, refused=refused)))

    def _why_refused(self, layout: str) -> str:
        if not layout or not self._layout or layout == self._layout:
            return ""
        return f"the state of {self._of} has the layout {layout}, the new shape's model {self._layout}"

    def _was_said(self) -> None:
        self._saying = False
        self._unsaid.pop(0)
        if self.stage is Stage.SAYING:
            self.stage = Stage.BEGUN
            self._out.append(Begin(self.cut))

    def _role_stands(self, event: RoleStands) -> None:
        """A primary says once that its model holds the state."""
        if event.holds_state and event.instance not in self._loaded:
            self._loaded.add(event.instance)
            self._unsaid.append(SayTaken(event.instance, TakenOver(self._of, self.cut, loaded=True)))

    def _speak(self) -> None:
        self._saying = True
        self._out.append(self._unsaid[0])


def state_to_hand_over(machine: StatefulMachine, of: str) -> Version | None:
    """What an instance answers who asks for the state of `of`: the newest version of a primary, once all of
    it is durable; None: this is no such primary."""
    newest = machine.store.newest
    if machine.operator.name != of or machine.primary is None or machine.primary.undurable:
        return None
    return None if newest is None or newest.state is None else newest
