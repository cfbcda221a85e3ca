"""Open-loop traffic: requests leave at their time whether answers come or not, each under a key of its own,
and every answer is accounted for.

Latency counts from the time a request was due, so that a service that stands still cannot hide behind
requests that were not sent. A request is sent again, under its key, only while the endpoint says that nothing
was kept under it, or nobody knows. With a deadline, which counts from that time too, it is sent again only
while some of it is left.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from hams_history.lines import CallLine, HistoryWriter, RetLine
from hams_load.errors import BadData
from hams_load.inference import InferAnswer, InferClient, InferTensor, digest
from hams_load.judge import Judge

load_in_flight_max = 10_000
"""Requests of `hams load` open at a time; those due beyond it are not sent and count as failed."""

load_request_s = 30.0
"""A request of `hams load` that has no answer for this long has failed."""

load_pause_s = 0.01
load_pause_max_s = 0.25
"""Pause before a key is sent again, doubled each time up to the second."""

deadline_left_min_ms = 1.0
"""With less of its deadline left a request is not sent again; the endpoint takes no shorter one."""

resend_every = 10
"""`--verify` sends each key of this row once more."""


@dataclass
class TrafficTally:
    """What came of the traffic. Times are seconds of the event loop's clock; `latencies_s` and `replied_s`
    are of good answers.

    With a deadline, `on_time` counts replies within it, `late` requests whose reply came later or not at all,
    `refused` those of which an operator said before the deadline that it does not run them; `unanswered` have
    no reply. None of these has failed.
    """

    sent: int = 0
    ok: int = 0
    on_time: int = 0
    late: int = 0
    refused: int = 0
    unanswered: int = 0
    attempts: int = 0
    resent: int = 0
    doubled: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    replied_s: list[float] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Everything was answered, once and right, or missed its deadline."""
        return not (self.failed or self.wrong or self.doubled) and self.ok + self.unanswered == self.sent

    @property
    def ended(self) -> int:
        """Requests of which nothing more will come."""
        return self.ok + self.unanswered + self.failed.total()

    @property
    def finish_rate(self) -> float:
        """The share of all requests that were answered within their deadline; 0 if there were none."""
        return self.on_time / self.sent if self.sent else 0.0

    def gaps_s(self) -> list[float]:
        """Between one reply and the next."""
        times = sorted(self.replied_s)
        return [later - earlier for earlier, later in pairwise(times)]


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Traffic:
    """One stretch of load. `on_answer` sees each final answer of a request that was sent for the first
    time. `deadline_s`: how long each request has, from when it is due to leave."""

    def __init__(
        self,
        client: InferClient,
        source: Iterator[tuple[InferTensor, ...]],
        rate: float,
        count: int,
        *,
        judge: Judge | None = None,
        resend: bool = False,
        history: HistoryWriter | None = None,
        on_answer: Callable[[tuple[InferTensor, ...], InferAnswer], None] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.tally = TrafficTally()
        self._client = client
        self._source = source
        self._rate = rate
        self._count = count
        self._judge = judge
        self._resend = resend
        self._history = history
        self._on_answer = on_answer
        self._deadline_s = deadline_s
        self._name = f"load-{secrets.token_hex(4)}"
        self._open = 0

    async def run(self, stop: asyncio.Event | None = None) -> TrafficTally:
        """Send everything, or what is due until `stop` is set; wait for the last answer. Raises BadData,
        of the source."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        trouble: BadData | None = None
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                due = began + number / self._rate
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if stop is not None and stop.is_set():
                    break
                try:
                    tensors = next(self._source)
                except BadData as error:  # told alone, once every answer has come
                    trouble = error
                    break
                self.tally.sent += 1
                if self._open >= load_in_flight_max:
                    self.tally.failed[f"not sent: {load_in_flight_max} requests were open"] += 1
                    continue
                self._open += 1
                group.create_task(self._one(number, tensors, due))
        if trouble is not None:
            raise trouble
        return self.tally

    async def ask_once(self, tensors: tuple[InferTensor, ...]) -> InferAnswer:
        """One more request, outside of the tally's answers."""
        key = f"{self._name}-{secrets.token_hex(4)}"
        return await self._ask(key, key, tensors, asyncio.get_running_loop().time())

    async def _one(self, number: int, tensors: tuple[InferTensor, ...], due: float) -> None:
        loop = asyncio.get_running_loop()
        key = f"{self._name}-{number}"
        try:
            ends = None if self._deadline_s is None else due + self._deadline_s
            answer = await self._ask(key, f"{key}-a", tensors, due, ends)
            now = loop.time()
            if ends is not None and self._missed(answer, now <= ends):
                return
            if answer.status != 200:
                self.tally.failed[_why(answer)] += 1
                return
            self.tally.ok += 1
            self.tally.latencies_s.append(now - due)
            self.tally.replied_s.append(now)
            problem = self._judge(tensors, answer) if self._judge is not None else None
            if problem is not None:
                self.tally.wrong.append(f"{key}: {problem}")
            if self._on_answer is not None:
                self._on_answer(tensors, answer)
            if self._resend and number % resend_every == 0:
                await self._again(key, tensors, answer)
        finally:
            self._open -= 1

    def _missed(self, answer: InferAnswer, in_time: bool) -> bool:
        """Count the answer by its deadline; whether the request has no reply because of that."""
        if answer.status == 200:
            self.tally.on_time += in_time
            self.tally.late += not in_time
            return False
        if answer.status != 504:
            return False
        early = answer.shed and in_time
        self.tally.refused += early
        self.tally.late += not early
        self.tally.unanswered += 1
        return True

    async def _again(self, key: str, tensors: tuple[InferTensor, ...], first: InferAnswer) -> None:
        """Send a key once more: it must bring the same answer."""
        self.tally.resent += 1
        second = await self._ask(key, f"{key}-b", tensors, asyncio.get_running_loop().time())
        if second.status != 200:
            self.tally.failed[f"sent again: {_why(second)}"] += 1
        elif second.digest != first.digest:
            self.tally.doubled += 1
            self.tally.wrong.append(
                f"{key}: sent again, another reply came: {second.digest} instead of {first.digest}"
            )

    async def _ask(
        self,
        key: str,
        client: str,
        tensors: tuple[InferTensor, ...],
        due: float,
        ends: float | None = None,
    ) -> InferAnswer:
        """Ask under one key until there is an answer, `load_request_s` are over, or the deadline `ends`."""
        loop = asyncio.get_running_loop()
        if self._history is not None:
            self._history.write(CallLine(client=client, key=key, digest=digest(tensors)))
        pause_s = load_pause_s
        while True:
            self.tally.attempts += 1
            left_ms = None if ends is None else max(1000 * (ends - loop.time()), deadline_left_min_ms)
            answer = await self._client.infer(tensors, key, left_ms)
            if not answer.again or loop.time() - due > load_request_s:
                break
            pause_s = max(
                pause_s, min(answer.retry_after_s, load_pause_max_s) if answer.status == 429 else 0.0
            )
            if ends is not None and 1000 * (ends - loop.time() - pause_s) < deadline_left_min_ms:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, load_pause_max_s)
        if self._history is not None:
            statuses = {200: "ok", 409: "conflict", 422: "refused"}
            status = statuses.get(answer.status, "error")
            self._history.write(
                RetLine(
                    client=client, key=key, status=status, digest=answer.digest if status == "ok" else None
                )
            )
        return answer


def _why(answer: InferAnswer) -> str:
    return f"{answer.status}: {answer.error}" if answer.status else f"no answer: {answer.error}"
