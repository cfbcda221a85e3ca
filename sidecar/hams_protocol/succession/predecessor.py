"""A frontend that may have a successor: it holds requests back while that takes over, then passes them on; or
goes on, if it does not.

    serves --hold--> holds --close--> is closed --done--> passes on
      ^                |                  |
      +------ back ----+------------------+

It follows the record in etcd and says of itself what the record's next step waits for. It is closed for
requests of other frontends by losing them, as a broken connection would; by then no client of a registered
frontend waits for one. A frontend that does not hear of etcd holds on: it cannot know.

Invariant: between `hold` and `back` nothing that a client asks reaches the core here; after `done` nothing
ever does.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from hams_protocol import limits
from hams_protocol.context import StepClock
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.frontend.status import ShardStatus
from hams_protocol.ids import InstanceId
from hams_protocol.messages import ClientForward, Message
from hams_protocol.succession.effects import Admit, PassOn, Refuse, SayQuiet, TakeBack
from hams_protocol.succession.events import (
    CoreStands,
    HasNoRoom,
    NotSaid,
    RecordChanged,
    RequestCame,
    RequestOver,
    Said,
    StepAnswered,
    Swap,
    Wake,
)
from hams_protocol.succession.records import Phase, Quiet, Succession

hold_share_max = 0.5
"""Of a request's time: for so long at most a frontend holds requests back for its successor, then it takes
the succession back. What is left is for the requests."""

again_after_s = 0.1
"""What could not be written, and a request for which there was no room, is tried again after this long."""

budget_min_s = 0.001
"""A request is given to the core with at least this much time: the core answers it, not this machine."""

Event = (
    RequestCame | RequestOver | HasNoRoom | RecordChanged | CoreStands | Said | NotSaid | StepAnswered | Wake
)
Effect = Admit | PassOn | Refuse | SayQuiet | TakeBack


class PredecessorMachine(Timed):
    """`step(event, now) -> effects` of one frontend, over all lives of its process.

    `request_timeout_s`: the time that requests have. `phase`: how far the succession has come; None: there is
    none, so requests need not be given to this machine.
    """

    def __init__(self, request_timeout_s: float) -> None:
        super().__init__(StepClock())
        self.phase: Phase | None = None
        self.record: Succession | None = None
        self.hold_s = request_timeout_s * hold_share_max
        self._revision = 0
        self._out: list[Effect] = []
        self._until: dict[int, float] = {}
        self._held: dict[int, None] = {}
        self._again: deque[tuple[float, int]] = deque()
        self._back_at = FOREVER
        self._swapping = False
        self._wanted: tuple[InstanceId, Quiet] | None = None
        self._saying: tuple[InstanceId, Quiet] | None = None
        self._said: tuple[InstanceId, Quiet] | None = None
        self._say_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the successor serves, and this graph never again."""
        return self.phase is Phase.DONE

    @property
    def is_resting(self) -> bool:
        """Whether requests are held back, and the next step waits for this graph to come to rest."""
        return self.phase is Phase.HOLD or self.phase is Phase.CLOSE

    @property
    def held(self) -> int:
        """How many requests are held back now."""
        return len(self._held)

    def loses(self, message: Message) -> bool:
        """Whether a message of another frontend counts as lost: one that would have something admitted."""
        if self.phase is not Phase.CLOSE and self.phase is not Phase.DONE:
            return False
        return isinstance(message, ClientForward) and message.payload is not None

    def step(self, event: Event, now: float) -> list[Effect]:
        """One event; the effects in the order in which they must be performed."""
        self._clock.now = now
        self._out = []
        if isinstance(event, RequestCame):
            self._until[event.handle] = now + event.budget_s
            self._place(event.handle)
        elif isinstance(event, RequestOver):
            self._forget(event.handle)
        elif isinstance(event, HasNoRoom):
            self._no_room(event)
        elif isinstance(event, RecordChanged):
            self._changed(event.record, event.revision)
        elif isinstance(event, CoreStands):
            self._stands(event)
        elif isinstance(event, StepAnswered):
            self._swapping = False
            self._back_at = FOREVER if event.outcome is Swap.DONE else now + again_after_s
        elif isinstance(event, Said):
            self._said, self._saying = self._saying, None
        elif isinstance(event, NotSaid):
            self._saying = None
            self._say_at = now + again_after_s
        self.tick()
        return self._out

    def dues(self) -> list[Due]:
        """Requests that found no room; what it says of itself; that the successor has had its time."""
        speaks: Callable[[], None] = self._speak
        is_unsaid = self._wanted is not None and self._wanted != self._said and self._saying is None
        takes_back = self.is_resting and not self._swapping
        return [
            (self._again[0][0] if self._again else FOREVER, self._try_again),
            (self._say_at if is_unsaid else FOREVER, speaks),
            (self._back_at if takes_back else FOREVER, self._take_back),
        ]

    # -- requests --------------------------------------------------------------------------------------------

    def _place(self, handle: int) -> None:
        """A request is held back, passed on, or given to the core."""
        if self.is_resting:
            if len(self._held) >= limits.requests_waiting_max:
                self._refuse(handle, limits.retry_after_s)
            else:
                self._held[handle] = None
            return
        left_s = max(self._until[handle] - self._clock.now, budget_min_s)
        if self.phase is Phase.DONE and self.record is not None:
            self._out.append(PassOn(handle, self.record.to, left_s))
        else:
            self._out.append(Admit(handle, left_s))

    def _no_room(self, event: HasNoRoom) -> None:
        """All that was held back comes at once: what finds no room waits, as nothing has begun."""
        until = self._until.get(event.handle)
        if until is None:
            return
        if self._clock.now + again_after_s < until:
            self._again.append((self._clock.now + again_after_s, event.handle))
        else:
            self._refuse(event.handle, event.retry_after_s)

    def _try_again(self) -> None:
        while self._again and self._again[0][0] <= self._clock.now:
            _, handle = self._again.popleft()
            if handle in self._until:
                self._place(handle)

    def _refuse(self, handle: int, retry_after_s: float) -> None:
        self._out.append(Refuse(handle, retry_after_s))
        self._forget(handle)

    def _forget(self, handle: int) -> None:
        self._until.pop(handle, None)
        self._held.pop(handle, None)

    # -- the record ------------------------------------------------------------------------------------------

    def _changed(self, record: Succession | None, revision: int) -> None:
        if self._stays(record):
            return
        before, self.record, self._revision = self.record, record, revision
        self.phase = None if record is None or record.phase is Phase.BACK else record.phase
        if not self.is_resting:
            self._back_at = FOREVER
            self._wanted = self._said = None
            held, self._held = self._held, {}
            for handle in held:
                self._place(handle)
        elif before is None or record is None or before.to != record.to or self._back_at == FOREVER:
            self._back_at = self._clock.now + self.hold_s

    def _stays(self, record: Succession | None) -> bool:
        """Whether nothing that becomes of the record changes anything here: what is over is over for ever,
        and what is closed may have been taken over, though the record is gone."""
        return self.is_over or (record is None and self.phase is Phase.CLOSE)

    def _take_back(self) -> None:
        """The successor has had its time: requests have theirs, too."""
        assert self.record is not None, "who rests has a record"
        why = (
            f"requests were held back for {self.hold_s:g} s, half of the time that they have, and the "
            "successor did not serve yet"
        )
        self._swapping = True
        self._out.append(TakeBack(self._revision, replace(self.record, phase=Phase.BACK, why=why)))

    # -- what it says of itself ------------------------------------------------------------------------------

    def _stands(self, event: CoreStands) -> None:
        """It is quiet once no client of its own waits for what has begun."""
        if self.is_resting and self.record is not None and not event.waiting_clients:
            self._wanted = event.instance, quiet_of(self.record, event.shards)

    def _speak(self) -> None:
        if self._wanted is not None:
            self._saying = self._wanted
            self._out.append(SayQuiet(*self._wanted))


def quiet_of(record: Succession, shards: tuple[ShardStatus, ...]) -> Quiet:
    """What a frontend without waiting clients says for this record."""
    if record.phase is not Phase.CLOSE:
        return Quiet(record.to)
    return Quiet(
        record.to, True, tuple([(item.name, item.epoch, item.last) for item in shards if is_at_rest(item)])
    )


def is_at_rest(shard: ShardStatus) -> bool:
    """Whether a shard that is owned here has nothing open, and its log nothing that may be lost."""
    return (
        shard.role == "primary"
        and not shard.frozen
        and not shard.open_requests
        and shard.last == shard.committed
    )
