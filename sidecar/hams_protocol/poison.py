"""Requests that kill the model (protocol.md, section 3, at the end).

An instance that dies of a request cannot say so afterwards, so it says so before: it announces to the owners
upstream that it is about to run a suspect alone, and they hand that count to its successor with the token.
Invariant: only a death while alone counts, and nobody but the request itself gets the error. So a suspect
runs only when everything that was said has been acknowledged: what it announced, and the all-clear of the one
before. Nothing else runs in the meantime, but for at most `attempt_wait_s`: an owner upstream may be being
replaced.
"""

from collections.abc import Callable, Mapping

from hams_protocol import limits
from hams_protocol.batching import Scheduler
from hams_protocol.context import Context
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.events import Member
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId, Lane, RequestId, UnitId
from hams_protocol.joins import Stage, Unit
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.messages import Attempt, AttemptAck, ModelError, Token


class Announcement:
    """What was said of one token, and is not acknowledged yet."""

    __slots__ = ("alone_in", "attempts", "due", "serial", "token")

    def __init__(self, token: Token, attempts: int, serial: int, alone_in: int | None) -> None:
        self.token = token
        self.attempts = attempts
        self.serial = serial
        self.alone_in = alone_in
        self.due = 0.0


class Attempts(Timed):
    """Counts of one operator instance, over all its epochs."""

    def __init__(self, ctx: Context, graph: Graph, op: str, knowledge: Knowledge) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._op = op
        self._limit = min(graph.data.recovery.max_attempts, limits.attempts_alone_max)
        self._knowledge = knowledge
        self._serial = 0
        self._open: dict[tuple[str, RequestId, Lane], Announcement] = {}
        self._holds_until = FOREVER
        self._announced: Unit | None = None
        self._of_announced: tuple[Token, ...] = ()
        self._parked: dict[UnitId, Unit] = {}
        self._outlived: dict[UnitId, None] = {}

    # -- counts ----------------------------------------------------------------------------------------------

    def isolate(self, unit: Unit) -> None:
        """The unit runs in a batch of its own from now on; this proxy is there to say so."""
        unit.attempts = max(unit.attempts, 1)
        self._outlived[unit.id] = None

    def outlived(self, unit: Unit) -> bool:
        """Whether it is suspect for what this very proxy has come through, and not for the death of another
        one."""
        return unit.id in self._outlived

    @property
    def announced_requests(self) -> set[RequestId]:
        """Requests of which owners upstream may hold that they run alone here: announced, or the all-clear is
        not acknowledged."""
        requests = {request for _, request, _ in self._open}
        if self._announced is not None:
            requests.add(self._announced.id.request)
        return requests

    def is_poison(self, unit: Unit) -> bool:
        """Whether enough owners have died while running it alone."""
        return unit.attempts > self._limit

    def error(self, unit: Unit) -> ModelError:
        """The reply of a poison request."""
        return ModelError(
            self._op, f"the model died {unit.attempts - 1} times while it ran this request alone"
        )

    # -- before and after a run alone ------------------------------------------------------------------------

    def turn(self, queue: Scheduler, is_safe: Callable[[Unit], bool]) -> None:
        """Before a batch is formed, so while none runs: suspects that may run again come back to the queue,
        and one that is no longer to run is called off. Such is also who still says RUNNING: its batch was
        abandoned because its request had completed."""
        unit = self._announced
        if unit is not None and unit.stage is not Stage.READY:
            self._announced = None
            self._tell([(token, unit.attempts) for token in self._of_announced])
        if self._parked and self.is_settled():
            free = [item for item in self._parked.values() if item.stage is not Stage.READY or is_safe(item)]
            for item in reversed(free):
                del self._parked[item.id]
                if item.stage is Stage.READY:
                    queue.add_first(item, self._ctx.now)

    def may_run(self, unit: Unit, queue: Scheduler, is_safe: Callable[[Unit], bool]) -> bool:
        """Whether a suspect may run alone now. If not it is announced, or waits aside while others are
        served."""
        if unit is self._announced and self.is_settled():
            if is_safe(unit):
                return True
            self._announced = None  # what made it safe has gone meanwhile
            self._tell([(token, unit.attempts) for token in unit.used])
        elif self._announced is None and self.is_settled() and is_safe(unit):
            self._announced, self._of_announced = unit, unit.used
            self._tell([(token, unit.attempts + 1) for token in unit.used], alone=True)
            if self.is_settled():  # nobody upstream is to be told, or a test lets it go
                return True
            queue.add_first(unit, self._ctx.now)
            return False
        self._parked[unit.id] = unit
        return False

    def call_off(self) -> None:
        """The request that was announced does not run here after all."""
        unit, self._announced = self._announced, None
        if unit is not None:
            self._tell([(token, unit.attempts) for token in self._of_announced])

    def survived(self, units: list[Unit]) -> None:
        """The model has come through its run alone: should this instance die later, it was not of this."""
        if self._announced in units:
            self._announced = None
        self._tell([(token, unit.attempts) for unit in units if unit.attempts for token in unit.used])

    def died(self, batch: list[Unit]) -> None:
        """The model died with these in it, and this proxy lives to name them."""
        if self._announced in batch:
            self._announced = None
        # Only of a request that ran alone is it certain that the model died of it. The others become
        # suspects.
        alone = len(batch) == 1 and batch[0].attempts > 0
        for unit in batch:
            unit.attempts = unit.attempts + 1 if alone else max(unit.attempts, 1)
            self._outlived[unit.id] = None
        self._tell([(token, unit.attempts) for unit in batch for token in unit.used])

    # -- announcements ---------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether everything that was said has been acknowledged."""
        return not self._open

    @property
    def holds(self) -> bool:
        """Whether no batch is formed: a death now would be counted for who is not running."""
        return self._holds_until != FOREVER and not self.is_settled()

    def acknowledged(self, sender: InstanceId, ack: AttemptAck) -> None:
        """An owner upstream has noted it."""
        announcement = self._open.get((ack.source, ack.request, ack.lane))
        if announcement is not None and announcement.serial == ack.serial:
            del self._open[ack.source, ack.request, ack.lane]
            self._settle()

    def purge(self) -> None:
        """A newer topology: what has become orphan concerns nobody, and new owners are told at once."""
        for key, announcement in list(self._open.items()):
            announcement.due = 0.0
            if self._knowledge.status(announcement.token.deps) is Status.ORPHAN:
                del self._open[key]
        self._settle()

    def drop_complete(self) -> None:
        """Free what was kept for requests that are complete by now."""
        completed = self._knowledge.completed
        for key in [key for key in self._open if key[1] in completed]:
            del self._open[key]
        for unit in [unit for unit in self._outlived if unit.request in completed]:
            del self._outlived[unit]
        self._settle()

    def clear(self) -> None:
        """A new epoch: all tokens come again. An announcement counts for the epoch before only, so the owners
        upstream take it back by themselves."""
        self._announced = None
        self._open.clear()
        self._parked.clear()
        self._settle()

    def dues(self) -> list[Due]:
        """Say again what is not acknowledged; others wait no longer than they must."""
        if not self._open:
            return []
        say_at = min(announcement.due for announcement in self._open.values())
        return [(self._holds_until, self._hold_no_longer), (say_at, self._say_again)]

    def _hold_no_longer(self) -> None:
        # An owner upstream may be dead. Its successor gets the count with the next resend, so waiting longer
        # would only stop everybody else.
        self._holds_until = FOREVER

    def _say_again(self) -> None:
        for announcement in self._open.values():
            if self._ctx.now >= announcement.due:
                self._say(announcement)

    def _settle(self) -> None:
        if not self._open:
            self._holds_until = FOREVER

    def _tell(self, counts: list[tuple[Token, int]], alone: bool = False) -> None:
        for token, attempts in counts:
            if token.request not in self._knowledge.completed:
                # A serial for each count: the acknowledgement of an older one must not settle this one.
                self._serial += 1
                epoch = self._knowledge.owner(self._op, token.request)[1] if alone else None
                announcement = self._open[token.source, token.request, token.lane] = Announcement(
                    token, attempts, self._serial, epoch
                )
                self._say(announcement)
        if self._open and counts:
            self._holds_until = self._ctx.now + limits.attempt_wait_s

    def _say(self, announcement: Announcement) -> None:
        token = announcement.token
        announcement.due = self._ctx.now + limits.resend_after_s
        owner = self._knowledge.owner(token.source, token.request)[0]
        if owner is None:
            return
        self._ctx.send(
            owner,
            Attempt(
                token.source,
                self._op,
                token.request,
                token.lane,
                announcement.attempts,
                announcement.serial,
                announcement.alone_in,
            ),
        )


def managers_of(members: Mapping[InstanceId, Member]) -> list[InstanceId]:
    """Every registered manager."""
    return sorted(member.instance for member in members.values() if member.of == "manager")
