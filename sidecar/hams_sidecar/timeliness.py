"""What an instance tells of how it serves by deadlines, for `hams status`: counts of the last minute, and
whether its scheduling policy had to be replaced.

Nobody acts on it. Counts are those that are kept anyway, looked at every few seconds, so a request costs
nothing more. The key goes with the instance's registration.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from hams_protocol.frozen import frozen
from hams_wire import limits, records
from hams_wire.errors import CoordinationError
from hams_wire.node import Node

timeliness_report_s = 5.0
"""An instance writes into etcd this often how it serves by deadlines, if that has changed: what status shows
is at most so old."""

log = logging.getLogger("hams.process")

_LOOKS = round(limits.timeliness_window_s / timeliness_report_s)


@frozen
class ServedCounts:
    """Counts that only rise while one instance lives, and its scheduling policy (`TimelinessRecord`)."""

    on_time: int
    late: int
    shed: int = 0
    policy: str = ""
    failed: str = ""


class TimelinessWindow:
    """The newest counts less those of a window before. Counts that fall are of somebody else: it starts
    again."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._looks: deque[ServedCounts] = deque(maxlen=_LOOKS)
        self._before = ServedCounts(0, 0)

    def record(self, counts: ServedCounts) -> records.TimelinessRecord:
        """What there is to tell, `timeliness_report_s` after the look before."""
        newest = self._looks[-1] if self._looks else self._before
        if counts.on_time < newest.on_time or counts.late < newest.late or counts.shed < newest.shed:
            self._looks.clear()
            self._before = ServedCounts(0, 0)
        if len(self._looks) == _LOOKS:
            self._before = self._looks[0]
        self._looks.append(counts)
        before = self._before
        return records.TimelinessRecord(
            self._of,
            limits.timeliness_window_s,
            counts.on_time - before.on_time,
            counts.late - before.late,
            counts.shed - before.shed,
            counts.policy,
            counts.failed,
        )


async def tell_timeliness(
    now: Callable[[], Node | None],
    counts: Callable[[Node], ServedCounts | None],
    graph_uid: str,
    of: str,
    every_s: float = timeliness_report_s,
) -> None:
    """Write how the present instance serves into etcd, where that has changed. Until cancelled. `counts`:
    None where nobody counts."""
    window = TimelinessWindow(of)
    written: tuple[int, records.TimelinessRecord] | None = None
    failed = ""
    while True:
        await asyncio.sleep(every_s)
        node = now()
        served = None if node is None or node.stopped.done() else counts(node)
        if node is None or served is None:
            continue
        record = window.record(served)
        if record.failed and record.failed != failed:
            log.error("Fifo serves %s in place of %s, which failed: %s", of, record.policy, record.failed)
        failed = record.failed
        nothing = written is None and not (record.on_time or record.late or record.shed or record.failed)
        if not node.lease or nothing or written == (node.lease, record):
            continue
        try:
            key = records.timeliness_key(graph_uid, node.instance)
            await node.tell(key, records.encode_timeliness(record), node.lease)
            written = node.lease, record
        except CoordinationError as error:
            log.info("how this instance serves is told later: %s", error)
