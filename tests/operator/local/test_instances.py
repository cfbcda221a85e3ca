"""What keeps processes running: pauses that grow, models that are not forgotten, a disk that is full."""

import asyncio
import errno
import logging
import shutil
import signal
from pathlib import Path

import pytest

from hams_operator import limits
from hams_operator.graph import load
from hams_operator.local.instances import Instances
from hams_operator.local.nursery import Nursery, NurseryLost
from hams_operator.local.places import Place, Pod, pause_after

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "graph.yaml"


@pytest.fixture
async def instances(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    made = Instances(load(DIGITS), DIGITS, None, None)
    made.home.logs.mkdir(parents=True)
    yield made
    for task in list(made._tasks):
        task.cancel()
    await asyncio.gather(*made._tasks, return_exceptions=True)


def test_pauses_grow_up_to_a_bound_also_after_a_start_without_one():
    pauses = [0.0]
    for _ in range(10):
        pauses.append(pause_after(pauses[-1], True, 0.0))
    assert pauses[1] == limits.restart_pause_s
    assert pauses[2] == 2 * limits.restart_pause_s
    assert pauses[-1] == limits.restart_pause_max_s
    assert pause_after(pauses[-1], False, 0.0) == 0.0


@pytest.mark.parametrize("error", [NurseryLost("the warmed process has ended"), TimeoutError()], ids=["lost", "late"])
async def test_a_model_that_could_not_be_started_is_started_later(instances, monkeypatch, error):
    monkeypatch.setattr(limits, "restart_pause_s", 0.0)
    monkeypatch.setattr(limits, "restart_pause_max_s", 0.0)
    asked = []

    class Lost:
        async def spawn(self, *arguments):
            asked.append(arguments)
            if len(asked) == 1:
                raise error
            return 4242

    instances._nurseries["model"] = Lost()
    place = Place("learner", 0, Pod("learner-1-abcd", "learner"))
    await instances._start_model(place, place.pod)
    while instances._tasks:
        await asyncio.gather(*instances._tasks)
    assert len(asked) == 2
    assert place.pod.model_pid == 4242


async def test_a_disk_without_room_for_logs_ends_no_graph(instances, monkeypatch, caplog):
    told = asyncio.Event()

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    class Tell(logging.Handler):
        def emit(self, record):
            told.set()

    monkeypatch.setattr(limits, "log_look_s", 0.0)
    monkeypatch.setattr(limits, "log_bytes_max", 10)
    monkeypatch.setattr(shutil, "copyfile", full)
    kept = instances.home.logs / "learner-1-abcd.log"
    kept.write_text("more than ten bytes")
    handler = Tell()
    logging.getLogger("hams.local").addHandler(handler)
    try:
        instances._spawn_task(instances._rotate_logs())
        await told.wait()
    finally:
        logging.getLogger("hams.local").removeHandler(handler)
    assert not instances.failed.done()
    assert kept.read_text() == "more than ten bytes"


async def test_a_process_that_came_too_late_for_who_asked_does_not_run_unseen():
    late = await asyncio.create_subprocess_exec("sleep", "1000")
    nursery = Nursery(lambda pid, status: None)
    asked = asyncio.get_running_loop().create_future()
    asked.cancel()
    nursery._asked[1] = asked
    reader = asyncio.StreamReader()
    reader.feed_data(b'{"id": 1, "pid": %d}\n' % late.pid)
    reader.feed_eof()
    await nursery._read(reader)
    assert await late.wait() == -signal.SIGKILL
