"""Sink tokens, and entries of replies, that wait for a version to become durable, by operator; after too long
a wait the primary is asked (protocol.md, section 2).

Each waits for one of its pending dependencies at a time, so a notice costs what it settles and nothing more.
"""

from heapq import heappop, heappush

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.due import FOREVER, Due, Timed
from hams_protocol.frontend.context import FrontendContext
from hams_protocol.frontend.live import Live
from hams_protocol.messages import AskDurable, ReplyEntry, Token

Waiting = tuple[int, int, int, Live, int, Token | ReplyEntry]


class Waits(Timed):
    """Heaps of what waits: (epoch, seq, serial, request, sink edge or REPLY, token or entry)."""

    def __init__(self, ctx: FrontendContext) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._heaps: dict[str, list[Waiting]] = {}
        self._ask_at: dict[str, float] = {}
        self._serial = 0

    def add(self, dep: Dep, live: Live, number: int, item: Token | ReplyEntry) -> None:
        """`item` on sink edge `number` of a request, or its reply's entry, waits for `dep`."""
        self._serial += 1
        heap = self._heaps.get(dep.op)
        if heap is None:
            heap = self._heaps[dep.op] = []
            self._ask_at[dep.op] = self._ctx.now + limits.ask_after_s
        heappush(heap, (dep.epoch, dep.seq, self._serial, live, number, item))

    def risen(self, op: str) -> list[Waiting]:
        """The watermark of `op` has risen: what waited for it and has its version now, or may have."""
        heap = self._heaps.get(op)
        mark = self._ctx.knowledge.watermark(op)
        if heap is None or mark is None:
            return []
        waiting: list[Waiting] = []
        while heap and (heap[0][0], heap[0][1]) <= (mark.epoch, mark.seq):
            waiting.append(heappop(heap))
        self._rest(op, heap)
        return waiting

    def _rest(self, op: str, heap: list[Waiting]) -> None:
        while heap and not heap[0][3].still_waits(heap[0][4], heap[0][5]):
            heappop(heap)
        if heap:
            self._ask_at[op] = self._ctx.now + limits.ask_after_s
        else:
            del self._heaps[op], self._ask_at[op]

    def clear(self) -> None:
        """Forget all: the topology has changed and everything is judged anew."""
        self._heaps.clear()
        self._ask_at.clear()

    def dues(self) -> list[Due]:
        """Ask the primaries of operators that have said nothing for a while."""
        return [(min(self._ask_at.values()) if self._ask_at else FOREVER, self._ask)]

    def _ask(self) -> None:
        now = self._ctx.now
        for op, at in list(self._ask_at.items()):
            if at <= now:
                self._rest(op, self._heaps[op])
                primary = self._ctx.knowledge.set_of(op).primary
                if op in self._ask_at and primary is not None:
                    self._ctx.send(primary, AskDurable(op))
