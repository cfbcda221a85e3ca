"""What keeps processes running: pauses that grow, models that are not forgotten, a disk that is full."""

import asyncio
import errno
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from hams_graph import load
from hams_operator.local import limits, ports
from hams_operator.local.fork_client import ForkClient, ForkServerLost
from hams_operator.local.instances import (
    Instances,
    failure_line_chars_max,
    failure_lines_max,
    hung_check_s,
    hung_kill_s,
    hung_missing_s,
    hung_starved_s,
    start_ends_max,
)
from hams_operator.local.observe import Membership, holders_of
from hams_operator.local.places import LocalPod, Place, hung_pause_s, pause_after, restart_pause_max_s
from hams_operator.local.processes import alive, send
from hams_operator.local.supervisor import CannotStart, Supervisor
from hams_protocol.graph import FRONTEND, Graph, GraphData
from hams_protocol.topology import ReplicaSet, Topology
from hams_wire.errors import Lost
from hams_wire.process import EXIT_STOPPED
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
    assert pauses[-1] == restart_pause_max_s
    assert pause_after(pauses[-1], False, 0.0) == 0.0


@pytest.mark.parametrize(
    "error", [ForkServerLost("the warmed process has ended"), TimeoutError()], ids=["lost", "late"]
)
async def test_a_model_that_could_not_be_started_is_started_later(instances, monkeypatch, error):
    monkeypatch.setattr(limits, "restart_pause_s", 0.0)
    monkeypatch.setattr("hams_operator.local.places.restart_pause_max_s", 0.0)
    asked = []

    class Lost:
        async def spawn(self, *arguments):
            asked.append(arguments)
            if len(asked) == 1:
                raise error
            return 4242

    instances._fork_clients["model"] = Lost()
    place = Place("learner", 0, LocalPod("learner-1-abcd", "learner"))
    await instances._start_model(place, place.pod)
    while instances._tasks:
        await asyncio.gather(*instances._tasks)
    assert len(asked) == 2
    assert place.pod.model_pid == 4242


def with_model(instances: Instances, **fields: object) -> Place:
    """The learner's place, its model changed."""
    graph = instances.graph
    operators = tuple(
        replace(op, model=replace(op.model, **fields)) if op.name == "learner" else op
        for op in graph.data.operators
    )
    data = graph.data
    instances.graph = Graph(
        GraphData(
            data.name,
            data.uid,
            data.mode,
            data.frontend,
            data.managers,
            data.recovery,
            data.inputs,
            data.outputs,
            operators,
        )
    )
    return Place("learner", 0, LocalPod("learner-1-abcd", "learner"))


class Unasked:
    """A warmed process from which nothing is to be forked."""

    async def spawn(self, *arguments):
        raise AssertionError("forked")


async def test_variables_of_a_model_are_there_when_its_interpreter_starts(instances, tmp_path, monkeypatch):
    """Read at the start: PYTHONPATH, where Python looks for its `sitecustomize`; PYTHONHASHSEED; the current
    folder is not looked in."""
    reported = tmp_path / "reported"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if not sys.flags.isolated:\n"
        f'    open({str(reported)!r}, \'w\').write(f\'{{hash("x")}} {{os.environ["OMP_NUM_THREADS"]}} '
        f"{{sys.flags.safe_path}}')\n"
        "    os._exit(7)\n"
    )
    place = with_model(
        instances, env=(("PYTHONPATH", str(elsewhere)), ("PYTHONHASHSEED", "1"), ("OMP_NUM_THREADS", "3"))
    )
    instances._fork_clients["model"] = Unasked()
    ended = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(instances, "_exited", lambda pid, status: ended.set_result((pid, status)))
    await instances._start_model(place, place.pod)
    assert await ended == (place.pod.model_pid, 7)
    expected = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "print(hash('x'))",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    number = (await expected.communicate())[0].decode().strip()
    assert reported.read_text() == f"{number} 3 True"
    assert not instances._fresh


async def test_no_list_of_processes_shows_the_variables_of_a_model(instances, monkeypatch):
    """Not even for the moment that the interpreter in front takes: its words never hold them."""
    place = with_model(instances, env=(("TOKEN", "a secret"),))
    started = []

    async def recorded(*words, env, **rest):
        started.append((words, env))
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("hams_operator.local.instances.asyncio.create_subprocess_exec", recorded)
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


async def test_a_model_that_cannot_be_started_now_nor_later_is_told_and_not_tried_again(
    instances, monkeypatch, caplog
):
    place = with_model(instances, env=(("A", "b"),))
    instances._places = [place]

    async def start(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied", "/logs/learner-1-abcd.model.log")

    monkeypatch.setattr(instances, "_start_fresh", start)
    await instances._start_model(place, place.pod)
    assert instances.given_up().log == ("/logs/learner-1-abcd.model.log: Permission denied",)
    assert (
        "the model of learner-1-abcd cannot be started: /logs/learner-1-abcd.model.log: Permission denied"
        in caplog.text
    )
    assert not instances._tasks


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
async def test_a_model_for_which_there_is_no_process_just_now_is_started_later(
    instances, monkeypatch, caplog, number
):
    monkeypatch.setattr(limits, "restart_pause_s", 0.0)
    monkeypatch.setattr("hams_operator.local.places.restart_pause_max_s", 0.0)
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
    fork_client = ForkClient(lambda pid, status: None)
    fork_client.lost.set()

    async def start(self, modules, log):
        assert "numpy" in modules

    monkeypatch.setattr(ForkClient, "start", start)
    monkeypatch.setattr(instances, "_exited", lambda pid, status: ended.append(pid))
    for pid in (11, 12):
        instances._by_pid[pid] = Place(
            "learner", pid, LocalPod(f"learner-{pid}-abcd", "learner", model_pid=pid)
        )
    instances._fresh.add(12)
    await instances._watch_fork_server("model", fork_client)
    assert ended == [11]


async def test_a_model_that_ends_by_a_signal_without_a_name_is_started_again(instances, monkeypatch, caplog):
    monkeypatch.setattr(limits, "restart_pause_s", 0.0)
    monkeypatch.setattr("hams_operator.local.places.restart_pause_max_s", 0.0)
    place = Place("learner", 0, LocalPod("learner-1-abcd", "learner", model_pid=4242))
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
    reported = asyncio.Event()

    def full(path, bytes_max):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    class Tell(logging.Handler):
        def emit(self, record):
            reported.set()

    monkeypatch.setattr("hams_operator.local.instances.log_check_s", 0.0)
    monkeypatch.setattr("hams_operator.local.instances.log_bytes_max", 10)
    monkeypatch.setattr("hams_operator.local.instances.cut", full)
    log_file = instances.home.logs / "learner-1-abcd.log"
    log_file.write_text("more than ten bytes")
    handler = Tell()
    logging.getLogger("hams.local").addHandler(handler)
    try:
        instances._spawn_task(instances._rotate_logs())
        await reported.wait()
    finally:
        logging.getLogger("hams.local").removeHandler(handler)
    assert not instances.failed.done()
    assert log_file.read_text() == "more than ten bytes"


async def test_the_last_words_of_a_model_that_writes_without_end_are_few(instances):
    pod = LocalPod("learner-1-abcd", "learner", model_started_s=asyncio.get_running_loop().time())
    place = Place("learner", 0, pod)
    (instances.home.logs / "learner-1-abcd.model.log").write_text(
        "x" * 3_000_000 + "\n" + ("y" * 5000 + "\n") * 50
    )
    instances._note_end(place, pod, 1)
    said = place.ends.last.log
    assert 0 < len(said) <= failure_lines_max
    assert said[-1] == "y" * (failure_line_chars_max - 3) + "..."


async def test_a_process_that_came_too_late_for_who_asked_does_not_run_unseen():
    late = await asyncio.create_subprocess_exec("sleep", "1000")
    fork_client = ForkClient(lambda pid, status: None)
    asked = asyncio.get_running_loop().create_future()
    asked.cancel()
    fork_client._asked[1] = asked
    reader = asyncio.StreamReader()
    reader.feed_data(b'{"id": 1, "pid": %d}\n' % late.pid)
    reader.feed_eof()
    await fork_client._read(reader)
    assert await late.wait() == -signal.SIGKILL


@pytest.fixture
async def ending(tmp_path, monkeypatch):
    """A supervisor about to stop, with one model that was started afresh and that does nothing; whom it sends
    signals."""
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

    def recorded(pid, number):
        sent.append((pid, number))
        return send(pid, number)

    monkeypatch.setattr("hams_operator.local.instances.send", recorded)
    return made, place.pod, sent


async def test_a_model_that_ends_while_the_graph_does_is_not_waited_for_nor_sent_anything(
    ending, monkeypatch
):
    supervisor, pod, sent = ending
    monkeypatch.setattr("hams_operator.local.supervisor.stop_rest_s", 3600.0)
    pid = pod.model_pid
    check = supervisor._final_line

    async def end_it():
        os.kill(pid, signal.SIGTERM)
        return await check()

    monkeypatch.setattr(supervisor, "_final_line", end_it)
    await supervisor.stop()
    assert pid not in [to for to, _ in sent]
    assert pod.model_pid == 0
    assert not supervisor._reapers


async def test_a_model_that_does_not_end_by_itself_is_killed_and_its_end_is_heard_of(ending, monkeypatch):
    supervisor, pod, sent = ending
    monkeypatch.setattr("hams_operator.local.supervisor.stop_rest_s", 0.0)
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
    monkeypatch.setattr("hams_operator.local.supervisor.stop_rest_s", 3600.0)
    await supervisor.stop()
    assert [to for to, _ in sent if to] == [pid]


@pytest.mark.parametrize(
    "goes_by", ["learner-1-abcd", "learner-1-abcd-9f00"], ids=["under its id", "under a fresh id"]
)
async def test_who_was_given_up_and_is_back_hands_over_before_it_ends_and_is_killed_only_if_it_hangs_again(
    instances, monkeypatch, goes_by
):
    sent = []
    now = [0.0]
    monkeypatch.setattr("hams_operator.local.instances.send", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(instances, "_now", lambda: now[0])
    place = Place("learner", 0, LocalPod("learner-1-abcd", "learner", proxy_pid=41, model_pid=42), left=True)
    revoked = frozenset({"learner-1-abcd"} - {goes_by})
    back = Membership({goes_by: 41, "learner-7-0000": 77}, frozenset(), revoked)
    gone = Membership({"learner-7-0000": 77}, frozenset(), revoked)

    def check(membership: Membership, after_s: float = hung_check_s) -> list[tuple[int, signal.Signals]]:
        now[0] += after_s
        instances._settle_left(place, place.pod, membership)
        values, sent[:] = list(sent), []
        return values

    assert check(gone) == check(back) == [], "it has some time"
    assert check(structs.replace(back, alone=frozenset({goes_by})), hung_kill_s) == [], (
        "it has the only copy of a state"
    )
    assert check(gone, hung_kill_s) == [], "its registration may be on its way back"
    assert check(back) == [(41, signal.SIGTERM)]
    assert check(back) == check(gone) == [], "once, and it may be ending"
    assert check(back, hung_kill_s) == [(42, signal.SIGKILL), (41, signal.SIGKILL)]


async def test_a_process_that_hangs_and_may_hold_all_that_is_left_of_a_state_is_not_killed(
    instances, monkeypatch
):
    sent = []
    now = [0.0]
    monkeypatch.setattr("hams_operator.local.instances.send", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(instances, "_now", lambda: now[0])
    place = Place("learner", 0, LocalPod("learner-1-abcd", "learner", proxy_pid=41, model_pid=42), left=True)
    for last in ("learner-1-abcd", "learner-1-abcd-9f00"):
        for _ in range(100):
            now[0] += hung_kill_s
            instances._settle_left(
                place, place.pod, Membership({}, frozenset(), frozenset(), last=frozenset({last}))
            )
    assert not sent, "it may wake up, whatever id it goes by"
    now[0] += hung_kill_s + 1.0
    instances._settle_left(
        place, place.pod, Membership({}, frozenset(), frozenset(), last=frozenset({"learner-11"}))
    )
    assert sent == [(42, signal.SIGKILL), (41, signal.SIGKILL)]


async def test_instances_that_hang_are_replaced_ever_more_slowly_and_few_at_a_time(instances, monkeypatch):
    """Nobody hears of anybody for ten minutes: the machine has no CPU, and each successor would want some as
    well."""
    now = [0.0]
    monkeypatch.setattr(instances, "_now", lambda: now[0])
    monkeypatch.setattr(instances, "_fill", lambda place: asyncio.sleep(0))
    places = [
        Place("learner", number, LocalPod(f"learner-{number}", "learner", proxy_pid=1))
        for number in range(20)
    ]
    began = []
    while now[0] < 600.0:
        for place in places:
            if place.pod is not None and instances._leave(place, place.pod):
                began.append(now[0])
                place.pod = LocalPod(f"learner-{len(began) + 100}", "learner", proxy_pid=1)
        now[0] += hung_check_s
    assert began == [0.0, 2.0, 6.0], "and then nobody, until one of those has ended"
    instances._left.clear()
    now[0] += limits.hung_calm_s
    assert instances._leave(places[0], places[0].pod)
    assert not instances._leave(places[1], places[1].pod)
    now[0] += hung_pause_s
    assert instances._leave(places[1], places[1].pod), "calm takes the pause back"


@pytest.mark.parametrize(("by_s", "share"), [(0.4, 0.0), (0.0, 0.9)], ids=["it is late", "another one waits"])
async def test_a_supervisor_that_gets_no_cpu_takes_nobody_for_hung_and_says_so(
    instances, monkeypatch, caplog, by_s, share
):
    now = [0.0]
    monkeypatch.setattr(instances, "_now", lambda: now[0])
    assert instances._patience_s(hung_missing_s) == hung_missing_s
    for _ in range(10):
        now[0] += hung_check_s + 0.4
        instances._note_lateness(by_s, share)
        assert instances._patience_s(hung_missing_s) == hung_starved_s
    assert caplog.text.count("the machine is busy") == 1
    now[0] += 60.0
    assert instances._patience_s(hung_missing_s) == hung_missing_s


@pytest.mark.parametrize(
    ("members", "revoked", "last"),
    [
        ({"b": None}, (), ()),
        ({"c": None}, (), ("a", "b")),
        ({"b": None}, ("b",), ("a", "b")),
        ({"a-1": "a"}, ("a",), ()),
    ],
    ids=["a backup is there", "nobody is there", "who is there is revoked", "one is back with its state"],
)
def test_who_may_be_the_last_to_have_a_state(members, revoked, last):
    topology = Topology(sets=(ReplicaSet("learner", 1, "a", ("b",)),), revoked=revoked)
    registered = {name: MemberRecord("learner", "", former) for name, former in members.items()}
    assert holders_of(topology, registered)[1] == frozenset(last)


async def test_nobody_is_called_missing_while_etcd_is_away(instances, monkeypatch):
    monkeypatch.setattr("hams_operator.local.instances.hung_check_s", 0.0)
    monkeypatch.setattr(instances, "_now", lambda: 1000.0)
    checked = asyncio.Event()

    class Away:
        async def membership(self):
            if place.missing_s:
                checked.set()
            raise Lost("etcd is away")

    place = Place("learner", 0, LocalPod("learner-1-abcd", "learner", proxy_pid=41, model_pid=42), left=True)
    instances._left.append(place)
    instances._observer = Away()
    instances._spawn_task(instances._watch_hung())
    await asyncio.wait_for(checked.wait(), 60)
    assert place.missing_s == 1000.0


async def test_a_run_holds_its_ports_before_anything_is_started(tmp_path, monkeypatch):
    """Not even its own etcd is given one of them."""
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    made = Supervisor(load(DIGITS), DIGITS, None, None, None)
    made._choose_ports()
    http, grpc = made._http_port, made._grpc_port
    draws = iter([http, grpc, 20_011, *range(20_012, 20_200)])
    monkeypatch.setattr(ports.random, "randrange", lambda _low, _high: next(draws))
    assert not {http, grpc}.intersection(ports.free_ports(2))
    for held in made._claims:
        held.close()


async def test_a_second_run_on_a_port_is_refused_with_the_name_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMS_HOME", str(tmp_path))
    first = Supervisor(load(DIGITS), DIGITS, None, None, None)
    first._choose_ports()
    second = Supervisor(load(DIGITS), DIGITS, first._http_port, None, None)
    with pytest.raises(CannotStart, match=f"port {first._http_port} cannot be used: Address already in use"):
        second._choose_ports()
    first.home.acquire()
    first._memory = tmp_path
    first._write_run()
    with pytest.raises(CannotStart, match='graph "digits" answers there'):
        second._choose_ports()
    for held in first._claims:
        held.close()
    second._choose_ports()
    for held in second._claims:
        held.close()
    first.home.release()


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
    registered = {name: MemberRecord("learner", "", former) for name, former in members.items()}
    assert holders_of(topology, registered)[0] == frozenset(alone)


@pytest.mark.parametrize(
    ("there", "alone", "last"),
    [
        (("a", "k"), (), ()),
        (("k",), ("k",), ()),
        (("a",), ("a",), ()),
        (("c",), (), ("a", "k")),
    ],
    ids=["primary and keeper", "the keeper", "the primary", "neither"],
)
def test_a_keeper_holds_the_state_as_a_member_does(there, alone, last):
    topology = Topology(sets=(ReplicaSet("learner", 2, "a", keepers=("k",)),))
    registered = {name: MemberRecord("reader" if name == "k" else "learner", "") for name in there}
    assert holders_of(topology, registered) == (frozenset(alone), frozenset(last))


def frontend_of(instances: Instances, line: str) -> Place:
    """A frontend's place, with what its process has written."""
    place = Place(FRONTEND, 0, LocalPod("frontend-1-abcd", FRONTEND, proxy_pid=7, started_s=instances._now()))
    instances._log("frontend-1-abcd").write_text(f"Traceback (most recent call last):\n{line}\n")
    instances._places = [place]
    return place


def end(instances: Instances, place: Place, status: int) -> None:
    """The process of a place ends, and nothing takes its place yet."""
    instances._note_own_end(place, place.pod, status)


async def test_a_frontend_that_ends_twice_while_starting_is_reported_with_its_last_line(instances):
    place = frontend_of(instances, "AttributeError: 'Health' object has no attribute 'List'")
    end(instances, place, 70)
    assert instances._failures() == (), "once is no loop"
    end(instances, place, 70)
    (failure,) = instances._failures()
    assert failure.sentence() == (
        "a frontend keeps ending, last with exit code 70: AttributeError: 'Health' object has no attribute "
        "'List'"
    )
    assert failure.reason == "CrashLoop"
    assert instances.given_up() is None
    end(instances, place, 70)
    assert instances.given_up() == failure


@pytest.mark.parametrize("status", [0, EXIT_STOPPED])
async def test_an_instance_that_the_graph_gave_up_is_in_no_crash_loop(instances, status):
    place = frontend_of(instances, "this instance is over")
    for _ in range(start_ends_max):
        end(instances, place, status)
    assert instances._failures() == ()
    assert instances.given_up() is None


async def test_a_process_that_runs_on_is_in_no_crash_loop_any_more(instances, monkeypatch):
    place = frontend_of(instances, "OSError: no room")
    end(instances, place, 70)
    end(instances, place, 70)
    later = instances._now() + limits.restart_young_s + 1
    monkeypatch.setattr(instances, "_now", lambda: later)
    assert instances._failures() == ()
    assert place.own_ends.count == 0


async def test_a_process_to_fork_from_that_never_gets_warm_ends_the_run(instances, monkeypatch):
    """It would be started again and again, and each time import what it cannot."""

    class Cold:
        warm = False

        def __init__(self, on_exit) -> None:
            self.lost = asyncio.Event()
            self.lost.set()

        async def start(self, modules, log):
            log.write_text("Illegal instruction\n")

    monkeypatch.setattr("hams_operator.local.instances.ForkClient", Cold)
    await instances._warm("data", ("hams_sidecar.proxy",))
    reported = await instances.failed
    assert reported.startswith("the process that imports data modules ended 2 times: Illegal instruction")
