"""The shell around one core machine: which events it gets, in which order and when, what is done with its
effects, which peers get heartbeats, and which silences and broken connections are reported to the managers.

It does no input or output. Real processes drive it from an event loop (`hams_wire.node`), the simulator from
its heap of things to come (`hams_sim.world`); both are its `ShellHost`. So what is simulated is what runs. It
never branches on protocol state, and never drops, reorders or repeats an effect. What it keeps from its
machine is a heartbeat that says nothing new.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hams_protocol.effects import Effect, Send
from hams_protocol.events import Event, Late, Member, MembersChanged, PeerDown, PeerUp, Received, Tick
from hams_protocol.ids import InstanceId
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import Heartbeat, Message, StateCopy, Suspect
from hams_wire import limits
from hams_wire.exposition import TimeSpent
from hams_wire.failure_detector import FailureDetector

network_silence_s = 0.5
"""A connection to a silent peer is broken off if the peer's kernel has acknowledged nothing for this long:
the network between the two is cut. A process that is only slow has a kernel that answers."""

heartbeats_per_suspicion = 3
"""Heartbeats within the time after which silence is suspicious."""

break_report_after_s = 0.1
"""A broken connection is reported to the managers after this long, unless they have acted by then or it
stands again."""

heartbeat_min_s = 0.01
"""Heartbeats are at least this far apart."""

FOREVER = float("inf")
MANAGER = "manager"


class Machine(Protocol):
    """What every core machine offers."""

    @property
    def knowledge(self) -> Knowledge:
        """What the instance knows."""
        ...

    def step(self, event: Event, now: float) -> Sequence[Effect]:
        """One event; what is to be done, in order."""
        ...

    def deadline(self) -> float:
        """When it wants a Tick."""
        ...


class ShellHost(Protocol):
    """The process, or the simulated world, that a shell runs in."""

    def now(self) -> float:
        """The machine's clock, in seconds; it never goes back."""
        ...

    def turn_soon(self) -> None:
        """Call `Shell.turn` once what is being done now is done."""
        ...

    def send(self, peer: InstanceId, message: Message) -> None:
        """Hand a message to the network; it may be lost."""
        ...

    def perform(self, effect: Effect, now: float) -> None:
        """Do what is no message: notes, proposals, the model's work, answers, the end."""
        ...

    def send_heartbeats(self, peers: Iterable[InstanceId], heartbeat: Heartbeat) -> None:
        """Send it to those of these peers to which a connection stands."""
        ...

    def is_up(self, peer: InstanceId) -> bool:
        """Whether a connection to this peer stands."""
        ...

    def heard_at(self, peer: InstanceId) -> float | None:
        """When something last came over that connection; None before the first."""
        ...

    def unacknowledged_s(self, peer: InstanceId) -> float:
        """How long the kernel of this peer's host has acknowledged nothing; 0 where that cannot be known."""
        ...

    def break_off(self, peer: InstanceId) -> None:
        """Give the connection to this peer up. The shell is told of it, like of any that breaks."""
        ...

    def stepped(self, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """The machine took these events, and these effects will be performed now."""
        ...


def no_clock() -> float:
    """For who measures nothing."""
    return 0.0


class Shell:
    """One instance's. `steps`: its machine's way to take several events in one step, if it has one.

    `heartbeat_s`: seconds between two calls of `beat`. `taken`: the events that the machine was given last.
    `stopped`: it takes nothing more and performs nothing more; the code that ends the instance sets it.
    `core`: steps of the machine, and the seconds that they took by `clock`, where there is one.
    """

    __slots__ = (
        "_asked",
        "_beat_at",
        "_breaks",
        "_clock",
        "_due",
        "_events",
        "_host",
        "_own",
        "_said",
        "_sent",
        "_steps",
        "core",
        "detector",
        "heartbeat_s",
        "instance",
        "machine",
        "members",
        "of",
        "stopped",
        "taken",
    )

    def __init__(
        self,
        machine: Machine,
        instance: InstanceId,
        of: str,
        host: ShellHost,
        suspect_after_s: float,
        steps: Callable[[Sequence[Event], float], Sequence[Effect]] | None = None,
        clock: Callable[[], float] = no_clock,
    ) -> None:
        self.machine = machine
        self.instance = instance
        self.of = of
        self.members: dict[InstanceId, Member] = {}
        self.stopped = False
        self.heartbeat_s = max(suspect_after_s / heartbeats_per_suspicion, heartbeat_min_s)
        self.detector = FailureDetector(suspect_after_s, self.heartbeat_s)
        self.taken: tuple[Event, ...] = ()
        self.core = TimeSpent()
        self._clock = clock
        self._host = host
        self._steps = steps
        self._events: deque[Event] = deque()
        self._asked = False
        self._beat_at = FOREVER
        self._due: float | None = None
        self._sent: set[InstanceId] = set()
        self._said: dict[InstanceId, int] = {}
        self._breaks: list[tuple[float, InstanceId]] = []
        self._own: dict[type, Callable[[Any], None]] = {
            MembersChanged: self._members_changed,
            PeerUp: self._up,
            PeerDown: self._down,
        }

    # -- events in -------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Give the machine an event. All events of one turn are taken at its end, in their order."""
        if type(event) is Received:
            # Before the queue, for a repeated heartbeat would cost a turn: n instances send n of them per
            # interval.
            if type(event.message) is Heartbeat and self._is_known(event.sender, event.message.generation):
                return
        elif (own := self._own.get(type(event))) is not None:
            own(event)
        self._events.append(event)
        if not self._asked:
            self._asked = True
            self._host.turn_soon()

    def request_turn(self) -> None:
        """Have a turn soon, though nothing may have happened."""
        if not self._asked:
            self._asked = True
            self._host.turn_soon()

    def _is_known(self, peer: InstanceId, generation: int) -> bool:
        """Most messages are heartbeats that repeat what the last one of that peer said; they are signs of
        life and nothing else."""
        if self._said.get(peer) == generation and generation <= self.machine.knowledge.topology.generation:
            return True
        self._said[peer] = generation
        return False

    def _members_changed(self, event: Any) -> None:
        """Machines forget what former members said, so all may say it again."""
        self.members = {member.instance: member for member in event.members}
        self._said.clear()

    def _up(self, event: Any) -> None:
        self.detector.expect(event.peer, self._host.now())
        self._said.pop(event.peer, None)

    def _down(self, event: Any) -> None:
        if event.refused:
            return
        self.detector.forget(event.peer)
        if self.of != MANAGER:
            # Not at once: a manager mostly sees the break itself, and a connection that is made anew is no
            # news.
            heapq.heappush(self._breaks, (self._host.now() + break_report_after_s, event.peer))

    # -- time ------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """The time when `wake` must be called."""
        due = self._due
        if due is None:
            # Once after each step, for only a step moves it: a policy works ahead while its model runs, and
            # has no say in it then.
            due = self._due = self.machine.deadline()
        if self._breaks and self._breaks[0][0] < due:
            due = self._breaks[0][0]
        return due

    def wake(self) -> None:
        """Something is due: a Tick, or the report of a broken connection."""
        now = self._host.now()
        while self._breaks and self._breaks[0][0] <= now:
            self._report_break(heapq.heappop(self._breaks)[1])
        if self.deadline() <= now:
            self._events.append(Tick())
        self._asked = True
        self.turn()

    def turn(self) -> None:
        """Take all events that have come, and those that they cause here."""
        events = self._events
        if events:
            self._asked = True
            self._check_lateness()
        try:
            while events and not self.stopped:
                if self._steps is None:
                    self._take((events.popleft(),))
                else:
                    together = tuple(events)
                    events.clear()
                    self._take(together)
        finally:
            self._asked = False

    def _take(self, events: tuple[Event, ...]) -> None:
        host = self._host
        now = host.now()
        self.taken, self._due = events, None
        began = self._clock()
        effects = self.machine.step(events[0], now) if self._steps is None else self._steps(events, now)
        self.core.add(self._clock() - began)
        host.stepped(events, effects)
        for effect in effects:
            if type(effect) is Send:
                target = effect.target
                if target == self.instance:
                    # Behind what has come already, as from any other peer: the machine is never entered
                    # twice.
                    self._events.append(Received(target, effect.message))
                else:
                    if type(effect.message) is not StateCopy:  # one may be held back
                        self._sent.add(target)
                    host.send(target, effect.message)
            else:
                host.perform(effect, now)
            # The effects behind a Stop belong to an instance that is over.
            if self.stopped:
                break

    # -- signs of life ---------------------------------------------------------------------------------------

    def beat(self) -> float:
        """Every `heartbeat_s`: a heartbeat to each peer to which nothing was sent, or a copy only, and a look
        at which has been silent for too long. Returns when the next one is due.

        All instances of one host beat together, by its clock: so each wakes a few times per interval, not
        once for each of its peers.
        """
        host = self._host
        now = host.now()
        # Before silence is judged: a late loop has read nothing.
        self._check_lateness()
        self._beat_at = (round(now / self.heartbeat_s) + 1) * self.heartbeat_s
        heartbeat = Heartbeat(self.machine.knowledge.topology.generation)
        others = [peer for peer in self.members if peer != self.instance]
        host.send_heartbeats([peer for peer in others if peer not in self._sent], heartbeat)
        for peer in self.detector.expected_among(others):
            if host.is_up(peer) and (heard := host.heard_at(peer)) is not None:
                self.detector.record(peer, heard)
        for peer in self.detector.check(now):
            self._suspect(peer, f"silent for {self.detector.silent_s(peer, now):.3f} s")
        for peer in self.detector.suspects():  # what this process itself has missed is no silence of theirs
            silent_s = min(self.detector.silent_s(peer, now), host.unacknowledged_s(peer))
            if silent_s > network_silence_s:
                host.break_off(peer)
        self._sent.clear()
        return self._beat_at

    def rest(self) -> None:
        """Watch no peer and send no heartbeat until the next `beat`: a host that knows that all peers are
        well can leave beats out."""
        self.detector.rest()
        self._beat_at = FOREVER

    def late(self, by_s: float) -> None:
        """This process was stopped, or got no CPU: the machine hears of it before all that has piled up
        meanwhile."""
        self._events.appendleft(Late(by_s))
        self.request_turn()

    def generation_heard(self, peer: InstanceId) -> int:
        """What its last heartbeat said; -1 before the first."""
        return self._said.get(peer, -1)

    def _check_lateness(self) -> None:
        """Whether the next heartbeat is overdue."""
        now = self._host.now()
        if now > self._beat_at + limits.timer_late_s:
            by_s, self._beat_at = now - self._beat_at, now
            self.late(by_s)

    def _suspect(self, peer: InstanceId, reason: str) -> None:
        for member in self.members.values():
            if member.of == MANAGER and member.instance != peer:
                if member.instance == self.instance:
                    self.feed(Received(self.instance, Suspect(peer, reason)))
                else:
                    self._host.send(member.instance, Suspect(peer, reason))

    def _report_break(self, peer: InstanceId) -> None:
        """Managers have connections of their own, and mostly know: to tell them at once would only keep them
        from acting."""
        if (
            peer in self.members
            and peer not in self.machine.knowledge.topology.revoked
            and not self._host.is_up(peer)
            and not self.stopped
        ):
            self._suspect(peer, "its connection broke")
