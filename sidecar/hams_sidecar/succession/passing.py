"""Requests that a frontend of the predecessor passes on to the successor's frontends, once those serve.

What follows each attempt is the core's to say (`hams_protocol.succession.passing`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_protocol.succession.passing import Attempt, Next, after
from hams_sidecar import limits
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.inference import Full, InferenceOutcome, InferenceRequest, NotReady, TimedOut
from hams_sidecar.succession import talk
from hams_wire import records
from hams_wire.coordination.port import Coordination
from hams_wire.errors import CoordinationError
from hams_wire.peers.visits import NotReached, Visit, VisitFailed, pay
from hams_wire.tls import Certificates

passing_max = 64
"""Requests that one frontend passes on to its successor at a time; further ones wait."""

log = logging.getLogger("hams.succession")


class Passing:
    """The way to the frontends of one graph. `close` when nothing is to be passed on any more."""

    def __init__(
        self, coordination: Callable[[], Coordination], to: str, visitor: str, tls: Certificates | None
    ) -> None:
        self._coordination = coordination()
        self._to = to
        self._visitor = visitor
        self._tls = tls
        self._targets: list[tuple[InstanceId, str]] = []
        self._turn = 0
        self._idle: dict[InstanceId, list[Visit]] = {}
        self._room = asyncio.Semaphore(passing_max)
        self.passed = 0

    async def outcome(self, request: InferenceRequest) -> InferenceOutcome:
        """Pass one request on and bring its outcome back. Raises RequestRefused if the successor takes no
        such request."""
        loop = asyncio.get_running_loop()
        until = loop.time() + request.deadline_s
        has_key = request.idempotency_key is not None
        while True:
            async with self._room:
                left_s = until - loop.time()
                attempt, outcome = Attempt.NOTHING_BEGUN, None
                if left_s > 0:
                    attempt, outcome = await self._once(replace(request, deadline_s=left_s))
            match after(attempt, has_key, until - loop.time()):
                case Next.ANSWER:
                    assert outcome is not None, "an answer"
                    self.passed += 1
                    return outcome
                case Next.TIME_OUT:
                    return TimedOut()
            await asyncio.sleep(limits.visit_pause_s)

    async def _once(self, request: InferenceRequest) -> tuple[Attempt, InferenceOutcome | None]:
        try:
            target, visit = await self._visit()
        except (NotReached, CoordinationError) as error:
            log.info("a request waits for the successor: %s", error)
            return Attempt.NOTHING_BEGUN, None
        try:
            head, parts = talk.asked(request)
            await visit.send(talk.encode(head), parts)
            answer, data = await visit.receive(
                lambda nbytes: memoryview(bytearray(nbytes)), request.deadline_s
            )
            said = talk.answer(answer)
            if not isinstance(said, talk.PassedOutcome):
                raise VisitFailed(f"expected an outcome, found {said!r:.200}")
            outcome = None if said.kind == talk.MALFORMED else talk.outcome_in(said, data)
        except VisitFailed as error:
            visit.close()
            self._targets = []
            log.warning("a request was passed on and its outcome is not known: %s", error)
            return Attempt.UNKNOWN, None
        except BaseException:
            visit.close()
            raise
        self._idle.setdefault(target, []).append(visit)
        if outcome is None:
            raise RequestRefused(said.message)
        begun = not isinstance(outcome, NotReady | Full)
        return (Attempt.ANSWERED if begun else Attempt.NOTHING_BEGUN), outcome

    async def _visit(self) -> tuple[InstanceId, Visit]:
        if not self._targets:
            prefix = records.member_key(self._to, "")
            entries = (await self._coordination.get_prefix(prefix)).entries
            known = [
                records.decode_member(entry.key.removeprefix(prefix), entry.value)[0] for entry in entries
            ]
            self._targets = [(member.instance, member.address) for member in known if member.of == FRONTEND]
            if not self._targets:
                raise NotReached(f"no frontend of {self._to} is registered")
        self._turn += 1
        target, address = self._targets[self._turn % len(self._targets)]
        idle = self._idle.get(target, [])
        while idle:
            visit = idle.pop()
            if not visit.over:
                return target, visit
            visit.close()
        try:
            return target, await pay(address, self._to, self._visitor, target, self._tls)
        except NotReached:
            self._targets = []
            raise

    async def close(self) -> None:
        """Hang up."""
        for visits in self._idle.values():
            for visit in visits:
                visit.close()
        await self._coordination.close()
