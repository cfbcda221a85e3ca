"""How an instance serves by deadlines: a window of counts, and who is told of it when."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hams_graph import load
from hams_protocol.stateless import StatelessMachine
from hams_sidecar.endpoint.tally import RequestTally
from hams_sidecar.metrics import Metrics
from hams_sidecar.proxy import served
from hams_sidecar.timeliness import ServedCounts, TimelinessWindow, tell_timeliness
from hams_wire import records
from hams_wire.errors import Unavailable
from hams_wire.scheduling import ShedReason, queue_of

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP32, shape: [1]}]
  outputs: [{name: x, from: s.x}]
  operators:
  - name: s
    model: {entrypoint: "m:S"}
    inputs: [request.x]
    outputs: [{name: x, datatype: FP32, shape: [1]}]
    batch: {maxRows: 8, maxDelay: 0}
"""


def test_a_window_holds_what_was_counted_since_its_beginning() -> None:
    window = TimelinessWindow("b")
    seen = [window.record(ServedCounts(10 * look, look, 0)) for look in range(1, 31)]
    assert (seen[0].on_time, seen[0].late) == (10, 1)
    assert (seen[11].on_time, seen[11].late) == (120, 12)
    assert (seen[29].on_time, seen[29].late) == (120, 12)
    rest = [window.record(ServedCounts(300, 30, 0)) for _ in range(12)]
    assert [record.on_time for record in rest[-2:]] == [10, 0]


def test_counts_that_fall_are_of_another_life_of_the_process() -> None:
    window = TimelinessWindow("b")
    window.record(ServedCounts(100, 5, 2))
    assert window.record(ServedCounts(3, 0, 0)).on_time == 3
    assert window.record(ServedCounts(4, 0, 0)).on_time == 4


class Teller:
    """An instance that writes into a list."""

    def __init__(self) -> None:
        self.instance = "b-1"
        self.lease = 7
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.written: list[tuple[str, records.TimelinessRecord, int]] = []
        self.refuses = 0

    async def tell(self, key: str, value: bytes, lease: int = 0) -> None:
        if self.refuses:
            self.refuses -= 1
            raise Unavailable("etcd is away")
        self.written.append((key, records.decode_timeliness(value), lease))


async def telling(counts: list[ServedCounts | None], node: Any) -> None:
    """Look once for each of the counts."""
    looked = asyncio.Event()
    given = iter(counts)

    def served(_: object) -> ServedCounts | None:
        try:
            return next(given)
        except StopIteration:
            looked.set()
            return None

    task = asyncio.create_task(tell_timeliness(lambda: node, served, "u", "b", every_s=0.0))
    async with asyncio.timeout(5):
        await looked.wait()
    task.cancel()


async def test_what_changes_is_told_under_the_lease_of_the_registration_and_nothing_else() -> None:
    node = Teller()
    nothing, some = ServedCounts(0, 0), ServedCounts(3, 1, 0, "Deadline")
    await telling([None, nothing, nothing, some, some, some], node)
    assert [(key, record.on_time, lease) for key, record, lease in node.written] == [
        ("/hams/v1/u/timeliness/b-1", 3, 7)
    ]


async def test_a_policy_that_failed_is_reported_once_though_nothing_was_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, failed = Teller(), ServedCounts(0, 0, 0, "Deadline", "it raised")
    await telling([failed, failed], node)
    assert [record.failed for _, record, _ in node.written] == ["it raised"]
    assert caplog.messages == ["Fifo serves b in place of Deadline, which failed: it raised"]


def test_of_a_proxy_it_counts_what_its_policy_counts_and_says_shortly_why_it_failed(tmp_path: Path) -> None:
    def node(batch: str) -> Any:
        (tmp_path / "graph.yaml").write_text(GRAPH.replace("maxDelay: 0", batch))
        machine = StatelessMachine(load(tmp_path / "graph.yaml"), "s", "s-1", queue_of)
        return SimpleNamespace(machine=machine)

    assert served(node("maxDelay: 0")) is None
    deadline = node("policy: Deadline")
    queue = deadline.machine.queue
    queue.on_time, queue.late_runs, queue.shed_by[ShedReason.TIME] = 7, 2, 1
    assert served(deadline) == ServedCounts(7, 2, 1, "Deadline", "")
    queue._lawful.failed = "it raised " + "x" * 100_000
    reported = served(deadline)
    assert reported is not None
    assert reported.failed.startswith("it raised xxx")
    assert len(reported.failed) == 500


async def test_what_etcd_has_not_taken_is_told_later_and_a_lost_registration_tells_anew() -> None:
    node, some = Teller(), ServedCounts(3, 1)
    node.refuses = 1
    await telling([some, some], node)
    assert len(node.written) == 1
    node.lease = 0
    await telling([some], node)
    node.lease = 8
    await telling([some], node)
    assert [lease for _, _, lease in node.written] == [7, 8]


async def test_an_instance_that_is_over_tells_nothing() -> None:
    node: Any = Teller()
    node.stopped.set_result(None)
    some = ServedCounts(1, 1)
    task = asyncio.create_task(tell_timeliness(lambda: node, lambda _: some, "u", "b", every_s=0.0))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    assert node.written == []


def test_replies_are_on_time_what_was_not_answered_by_its_deadline_is_late_the_rest_is_neither() -> None:
    metrics = Metrics("frontend", process=False)
    tally = RequestTally(metrics, ("http", "grpc"))
    for code in ("200", "200", "504", "400", "429", "500", "503", "cancelled"):
        tally.add("http", code, 0.01, 1, 1)
    for code in ("OK", "DEADLINE_EXCEEDED", "CANCELLED"):
        tally.add("grpc", code, 0.01, 1, 1)
    assert (tally.on_time, tally.late) == (3, 2)
    page = metrics.render()[0].decode()
    assert "hams_frontend_on_time_total 3.0" in page
    assert "hams_frontend_late_total 2.0" in page
