"""What keeps processes running: pauses that grow, models that are not forgotten, a disk that is full."""

import asyncio
import errno
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from hams_operator import limits
from hams_operator.graph import load
from hams_operator.local.etcd import Ports
from hams_operator.local.instances import Instances
from hams_operator.local.nursery import Nursery, NurseryLost
from hams_operator.local.observe import Cast, _alone
from hams_operator.local.places import Place, Pod, pause_after
from hams_operator.local.processes import alive, send
from hams_operator.local.supervisor import CannotStart, Supervisor
from hams_protocol.graph import Graph, GraphData
from hams_protocol.topology import ReplicaSet, Topology
from hams_wire.errors import Lost
from hams_wire.records import MemberRecord

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


def with_model(instances: Instances, **fields: object) -> Place:
    """The learner's place, its model changed."""
    graph = instances.graph
    operators = tuple(replace(op, model=replace(op.model, **fields)) if op.name == "learner" else op for op in graph.data.operators)
    data = graph.data
    instances.graph = Graph(
        GraphData(data.name, data.uid, data.mode, data.frontend, data.managers, data.recovery, data.inputs, data.outputs, operators)
    )
    return Place("learner", 0, Pod("learner-1-abcd", "learner"))


class Unasked:
    """A warmed process from which nothing is to be forked."""

    async def spawn(self, *arguments):
        raise AssertionError("forked")


async def test_variables_of_a_model_are_there_when_its_interpreter_starts(instances, tmp_path, monkeypatch):
    """Read at the start: PYTHONPATH, where Python looks for its `sitecustomize`; PYTHONHASHSEED; the current folder is not looked in."""
    told = tmp_path / "told"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if not sys.flags.isolated:\n"
        f"    open({str(told)!r}, 'w').write(f'{{hash(\"x\")}} {{os.environ[\"OMP_NUM_THREADS\"]}} {{sys.flags.safe_path}}')\n"
        "    os._exit(7)\n"
    )
    place = with_model(instances, env=(("PYTHONPATH", str(elsewhere)), ("PYTHONHASHSEED", "1"), ("OMP_NUM_THREADS", "3")))
    instances._nurseries["model"] = Unasked()
    ended = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(instances, "_exited", lambda pid, status: ended.set_result((pid, status)))
    await instances._start_model(place, place.pod)
    assert await ended == (place.pod.model_pid, 7)
    expected = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(hash('x'))", stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": "1"}
    )
    number = (await expected.communicate())[0].decode().strip()
    assert told.read_text() == f"{number} 3 True"
    assert not instances._fresh


async def test_no_list_of_processes_shows_the_variables_of_a_model(instances, monkeypatch):
    """Not even for the moment that the interpreter in front takes: its words never hold them."""
    place = with_model(instances, env=(("TOKEN", "a secret"),))
    started = []

    async def noted(*words, env, **rest):
        started.append((words, env))
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("hams_operator.local.instances.asyncio.create_subprocess_exec", noted)
    await instances._start_model(place, place.pod)
    ((words, environment),) = started
    assert not [word for word in words if "secret" in word]
    assert "a secret" in environment.values()


async def test_an_interpreter_that_is_not_there_is_named_and_not_tried_again(instances):
    place = with_model(instances, python="/no/such/python")
    await instances._start_model(place, place.pod)
    assert instances.given_up() is None
    instances._places = [place]
    assert instances.given_up().log == ("model.python /no/such/python: No such file or directory",)
    assert not instances._tasks


async def test_a_model_that_cannot_be_started_now_nor_later_is_told_and_not_tried_again(instances, monkeypatch, caplog):
    place = with_model(instances, env=(("A", "b"),))
    instances._places = [place]

    async def start(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied", "/logs/learner-1-abcd.model.log")

    monkeypatch.setattr(instances, "_start_fresh", start)
    await instances._start_model(place, place.pod)
    assert instances.given_up().log == ("/logs/learner-1-abcd.model.log: Permission denied",)
    assert "the model of learner-1-abcd cannot be started: /logs/learner-1-abcd.model.log: Permission denied" in caplog.text
    assert not instances._tasks


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
async def test_a_model_for_which_there_is_no_process_just_now_is_started_later(instances, monkeypatch, caplog, number):
    monkeypatch.setattr(limits, "restart_pause_s", 0.0)
    monkeypatch.setattr(limits, "restart_pause_max_s", 0.0)
    place = with_model(instances, env=(("A", "b"),))
    answers = [OSError(number, os.strerror(number)), 4242]

    async def start(*arguments):
        if isinstance(answers[0], OSError):
            raise answers.pop(0)
        return answers.pop(0)

    monkeypatch.setattr(instances, "_start_fresh", start)
    await instances._start_model(place, place.pod)
    while instances._tasks:
        await asyncio.gather(*instances._tasks)
    assert place.pod.model_pid == 4242
    assert f"the model of learner-1-abcd cannot be started: {os.strerror(number)}" in caplog.text


async def test_a_model_that_was_not_forked_outlives_the_warmed_process(instances, monkeypatch):
    ended = []
    nursery = Nursery(lambda pid, status: None)
    nursery.lost.set()

    async def start(self, modules, log):
        assert "numpy" in modules

    monkeypatch.setattr(Nursery, "start", start)
    monkeypatch.setattr(instances, "_exited", lambda pid, status: ended.append(pid))
    for pid in (11, 12):
        instances._by_pid[pid] = Place("learner", pid, Pod(f"learner-{pid}-abcd", "learner", model_pid=pid))
    instances._fresh.add(12)
    await instances._watch_nursery("model", nursery)
    assert ended == [11]


async def test_a_model_that_ends_by_a_signal_without_a_name_is_started_again(instances, monkeypatch, caplog):
    monkeypatch.setattr(limits, "restart_pause_s", 0.0)
    monkeypatch.setattr(limits, "restart_pause_max_s", 0.0)
    place = Place("learner", 0, Pod("learner-1-abcd", "learner", model_pid=4242))
    instances._by_pid[4242] = place
    started = []

    async def start(place, pod):
        started.append(pod.instance)

    monkeypatch.setattr(instances, "_start_model", start)
    instances._exited(4242, -40)
    await asyncio.gather(*instances._tasks)
    assert started == ["learner-1-abcd"]
    assert "model of learner-1-abcd (pid 4242) ended with signal 40" in caplog.text


async def test_a_disk_without_room_for_logs_ends_no_graph(instances, monkeypatch, caplog):
    told = asyncio.Event()

    def full(path, bytes_max):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    class Tell(logging.Handler):
        def emit(self, record):
            told.set()

    monkeypatch.setattr(limits, "log_look_s", 0.0)
    monkeypatch.setattr(limits, "log_bytes_max", 10)
    monkeypatch.setattr("hams_operator.local.instances.cut", full)
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


async def test_the_last_words_of_a_model_that_writes_without_end_are_few(instances):
    pod = Pod("learner-1-abcd", "learner", model_started_s=asyncio.get_running_loop().time())
    place = Place("learner", 0, pod)
    (instances.home.logs / "learner-1-abcd.model.log").write_text("x" * 3_000_000 + "\n" + ("y" * 5000 + "\n") * 50)
    instances._note_end(place, pod, 1)
    said = place.ends.last.log
    assert 0 < len(said) <= limits.failure_lines_max
    assert said[-1] == "y" * (limits.failure_line_chars_max - 3) + "..."


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


@pytest.fixture
async def ending(tmp_path, monkeypatch):
    """A supervisor about to stop, with one model that was started afresh and that does nothing; whom it sends signals."""
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    made = Supervisor(load(DIGITS), DIGITS, None, None, None)
    made.home.logs.mkdir(parents=True)
    made.home.acquire()
    made._locked = True
    idle = tmp_path / "idle"
    idle.write_text("#!/bin/sh\nexec sleep 1000\n")
    idle.chmod(0o755)
    place = with_model(made, python=str(idle))
    await made._start_model(place, place.pod)
    made._places = [place]
    sent = []

    def noted(pid, number):
        sent.append((pid, number))
        return send(pid, number)

    monkeypatch.setattr("hams_operator.local.instances.send", noted)
    return made, place.pod, sent


async def test_a_model_that_ends_while_the_graph_does_is_not_waited_for_nor_sent_anything(ending, monkeypatch):
    supervisor, pod, sent = ending
    monkeypatch.setattr(limits, "stop_rest_s", 3600.0)
    pid = pod.model_pid
    look = supervisor._final_line

    async def end_it():
        os.kill(pid, signal.SIGTERM)
        return await look()

    monkeypatch.setattr(supervisor, "_final_line", end_it)
    await supervisor.stop()
    assert pid not in [to for to, _ in sent]
    assert pod.model_pid == 0
    assert not supervisor._reapers


async def test_a_model_that_does_not_end_by_itself_is_killed_and_its_end_is_heard_of(ending, monkeypatch):
    supervisor, pod, sent = ending
    monkeypatch.setattr(limits, "stop_rest_s", 0.0)
    pid = pod.model_pid
    await supervisor.stop()
    assert (pid, signal.SIGKILL) in sent
    assert pod.model_pid == 0
    assert not alive(pid)


async def test_of_an_instance_that_is_over_no_pid_is_kept(ending, monkeypatch):
    supervisor, pod, sent = ending
    pid = pod.model_pid
    supervisor._replace(supervisor._places[0], pod)
    assert sent == [(pid, signal.SIGKILL)]
    monkeypatch.setattr(limits, "stop_rest_s", 3600.0)
    await supervisor.stop()
    assert [to for to, _ in sent if to] == [pid]


@pytest.mark.parametrize("goes_by", ["learner-1-abcd", "learner-1-abcd-9f00"], ids=["under its id", "under a fresh id"])
async def test_who_was_given_up_and_is_back_hands_over_before_it_ends_and_is_killed_only_if_it_hangs_again(instances, monkeypatch, goes_by):
    sent = []
    now = [0.0]
    monkeypatch.setattr("hams_operator.local.instances.send", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(instances, "_now", lambda: now[0])
    place = Place("learner", 0, Pod("learner-1-abcd", "learner", proxy_pid=41, model_pid=42), left=True)
    revoked = frozenset({"learner-1-abcd"} - {goes_by})
    back = Cast({goes_by: 41, "learner-7-0000": 77}, frozenset(), revoked)
    gone = Cast({"learner-7-0000": 77}, frozenset(), revoked)

    def look(cast: Cast, after_s: float = limits.hung_look_s) -> list[tuple[int, signal.Signals]]:
        now[0] += after_s
        instances._look_after_left(place, place.pod, cast)
        found, sent[:] = list(sent), []
        return found

    assert look(gone) == look(back) == [], "it has some time"
    assert look(structs.replace(back, alone=frozenset({goes_by})), limits.hung_kept_s) == [], "it has the only copy of a state"
    assert look(gone, limits.hung_kept_s) == [], "its registration may be on its way back"
    assert look(back) == [(41, signal.SIGTERM)]
    assert look(back) == look(gone) == [], "once, and it may be ending"
    assert look(back, limits.hung_kept_s) == [(42, signal.SIGKILL), (41, signal.SIGKILL)]


async def test_nobody_is_called_missing_while_etcd_is_away(instances, monkeypatch):
    monkeypatch.setattr(limits, "hung_look_s", 0.0)
    monkeypatch.setattr(instances, "_now", lambda: 1000.0)
    looked = asyncio.Event()

    class Away:
        async def cast(self):
            if place.missing_s:
                looked.set()
            raise Lost("etcd is away")

    place = Place("learner", 0, Pod("learner-1-abcd", "learner", proxy_pid=41, model_pid=42), left=True)
    instances._left.append(place)
    instances._observer = Away()
    instances._spawn_task(instances._watch_hung())
    await asyncio.wait_for(looked.wait(), 60)
    assert place.missing_s == 1000.0


async def test_ports_that_its_own_etcd_was_given_meanwhile_are_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    drawn = iter([(7001, 7002), (7003, 7004), (7005, 7006)])
    monkeypatch.setattr("hams_operator.local.supervisor.free_ports", lambda count: next(drawn))
    made = Supervisor(load(DIGITS), DIGITS, None, None, None)
    made._choose_ports()
    made._etcd = SimpleNamespace(members=[SimpleNamespace(ports=Ports(7002, 7003))])
    made._avoid_etcd()
    assert (made.url, made.grpc) == ("http://127.0.0.1:7005", "127.0.0.1:7006")
    made._avoid_etcd()
    assert made.url == "http://127.0.0.1:7005"


async def test_a_port_that_was_asked_for_and_that_its_own_etcd_was_given_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    made = Supervisor(load(DIGITS), DIGITS, 7001, None, None)
    made._etcd = SimpleNamespace(members=[SimpleNamespace(ports=Ports(7002, 7003))])
    with pytest.raises(CannotStart, match="port 7002"):
        made._avoid_etcd()


@pytest.mark.parametrize(
    ("members", "revoked", "alone"),
    [
        ({"a": None, "b": None}, (), ()),
        ({"a": None, "c": None}, (), ("a",)),
        ({"a-1": "a", "c": None}, ("a",), ("a-1",)),
        ({"a-1": "a", "b": None}, ("a",), ()),
        ({"a": None, "c": None}, ("a",), ()),
    ],
    ids=["two members", "the other is gone", "back under a fresh id", "back, and the other is there", "over"],
)
def test_who_has_a_state_that_nobody_else_has(members, revoked, alone):
    topology = Topology(sets=(ReplicaSet("learner", 1, "a", ("b",)),), revoked=revoked)
    registered = {name: MemberRecord("learner", "", kept) for name, kept in members.items()}
    assert _alone(topology, registered) == frozenset(alone)
