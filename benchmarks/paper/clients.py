"""Clients of a service that never give up: every batch has a key, and is sent again under it until it is
answered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from benchmarks.asking import Log
from benchmarks.paper.running import Running
from benchmarks.paper.services import first_value, kind_of
from hams_load.inference import InferAnswer, InferTensor

PAUSE_S = 0.01
"""Before a key is sent again that nobody has kept."""

errors_max = 5
"""Errors of one run that its rows tell."""

ERROR_CHARS = 300


class Answers(Log):
    """Of all clients. `differing`: keys that got another answer when they were sent again. `errors`: of the
    first answers that failed, with their keys."""

    def __init__(self) -> None:
        super().__init__()
        self.differing: list[str] = []
        self.asked_again = 0
        self.errors: list[str] = []

    def failure(self, key: str, answer: InferAnswer) -> None:
        """An answer that no client may get."""
        self.failed += 1
        if len(self.errors) < errors_max:
            self.errors.append(f"{key}: {answer.status} {answer.error[:ERROR_CHARS]}")


@contextlib.asynccontextmanager
async def asking(graph: Running, under_way: int, *, again: bool = False) -> AsyncIterator[Answers]:
    """`under_way` batches for as long as the block lasts; what was begun is answered before it ends.

    `again`: each key is sent once more when it has been answered, and must get the same answer.
    """
    log, stop = Answers(), asyncio.Event()
    numbers = iter(range(10**9))

    async def client() -> None:
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            request, key = graph.next_request(), f"{graph.name}-{next(numbers)}"
            asked = loop.time()
            answer = await _answered(graph, request, key, log)
            log.answered.append((asked, loop.time()))
            if answer.status != 200:
                log.failure(key, answer)
            _counted(graph, request, answer, log)
            if again:
                log.asked_again += 1
                if (await _answered(graph, request, key, log)).digest != answer.digest:
                    log.differing.append(key)
            log.news.set()

    tasks = [asyncio.create_task(client()) for _ in range(under_way)]
    try:
        yield log
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def _answered(graph: Running, request: tuple[InferTensor, ...], key: str, log: Answers) -> InferAnswer:
    while (answer := await graph.client.infer(request, key)).again:
        log.retried += 1
        await asyncio.sleep(PAUSE_S)
    return answer


def _counted(graph: Running, request: tuple[InferTensor, ...], answer: InferAnswer, log: Answers) -> None:
    """What the states counted, where the request changed them."""
    if kind_of(request) == "infer":
        return
    for operator, name in graph.service.counts.items():
        log.numbers[operator] += [first_value(item) for item in answer.tensors if item.name == name]
