"""The supervisor's control socket and those who ask."""

import asyncio
import contextlib
import os
from types import SimpleNamespace

import pytest

from hams_operator.graph_status import Condition, FailureInfo, GraphStatus, InstanceStatus
from hams_operator.learning import NothingLearnt, learning
from hams_operator.local.control import ControlServer, NoAnswer, ask
from hams_operator.local.home import RunFile
from hams_wire.errors import CoordinationError

STATUS = GraphStatus(
    "g",
    "http://h:1",
    "h:2",
    3,
    (Condition("Ready", "True", "Serving", ""),),
    (InstanceStatus("a-1", "a", "primary", False, 1, 7, 11, 12),),
)


@pytest.fixture
def run(tmp_path):
    return RunFile(
        graph="g", uid="u", pid=os.getpid(), birth=0, url="", grpc="", memory=str(tmp_path), file="f"
    )


@pytest.fixture
async def serve(run):
    made: list[ControlServer] = []

    async def opened(status=None, down=lambda: None, restart=None, **more):
        asked = SimpleNamespace(status=status, allow_restart=restart, **more)
        made.append(ControlServer(asked, down))
        await made[0].open(run.control)

    yield opened
    for item in made:
        await item.close()


async def test_status_comes_as_it_is(run, serve):
    async def status():
        return STATUS

    await serve(status)
    assert (await asyncio.to_thread(ask, run, "status")).status == STATUS


async def test_down_is_confirmed_and_passed_on(run, serve):
    asked = asyncio.Event()

    async def status():
        raise AssertionError("nobody asked")

    await serve(status, asked.set)
    assert (await asyncio.to_thread(ask, run, "down")).ending
    assert asked.is_set()


async def test_a_restart_is_passed_on_or_refused_with_the_reason(run, serve):
    async def restart(name):
        return "" if name == "learner" else f"the state of {name} is not lost"

    await serve(None, restart=restart)
    assert (await asyncio.to_thread(ask, run, "restart", "learner")).restarts
    with pytest.raises(NoAnswer, match="the state of other is not lost"):
        await asyncio.to_thread(ask, run, "restart", "other")


async def test_what_was_learnt_is_asked_for_and_forgotten_by_operator(run, serve):
    asked = []

    async def profile(operator):
        asked.append(operator)
        return ()

    async def forget(operator):
        return learning({"a": "Fifo", "b": "Distribution"}, operator)

    await serve(profile=profile, forget=forget)
    assert (await asyncio.to_thread(ask, run, "profile", "b")).profiles == ()
    assert asked == ["b"]
    assert (await asyncio.to_thread(ask, run, "forget")).forgets == ("b",)
    with pytest.raises(
        NoAnswer, match=r"g: nothing is learnt of a: its batch.policy is Fifo; Distribution learns"
    ):
        await asyncio.to_thread(ask, run, "forget", "a")


def test_operators_that_learn_are_named_and_others_have_a_reason():
    policies = {"a": "Fifo", "b": "Distribution", "c": "Deadline", "d": "Distribution"}
    assert learning(policies, "") == ("b", "d")
    assert learning(policies, "d") == ("d",)
    with pytest.raises(NothingLearnt, match='no operator "e"; there are: a, b, c, d'):
        learning(policies, "e")
    with pytest.raises(NothingLearnt, match="nothing is learnt: no operator has"):
        learning({"a": "Fifo"}, "")


async def test_what_cannot_be_answered_is_said(run, serve):
    class Away(CoordinationError):
        pass

    async def status():
        raise Away("no member can be reached")

    await serve(status)
    with pytest.raises(NoAnswer, match="g: etcd does not answer: no member can be reached"):
        await asyncio.to_thread(ask, run, "status")
    with pytest.raises(
        NoAnswer, match="expected status, down, restart, profile, forget, stored, give, got dance"
    ):
        await asyncio.to_thread(ask, run, "dance")


async def test_garbage_is_answered_and_harms_nobody(run, serve):
    async def status():
        return STATUS

    await serve(status)
    reader, writer = await asyncio.open_unix_connection(run.control)
    writer.write(b'{"ask": 3}\n')
    assert b"not a question" in await reader.readline()
    writer.write(b"x" * (2 << 20) + b"\n")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b"", "a line over the limit closes the connection"
    writer.close()
    assert (await asyncio.to_thread(ask, run, "status")).status == STATUS


def test_nobody_there_is_one_clear_line(run):
    with pytest.raises(NoAnswer, match=r"the supervisor of g \(process \d+\) cannot be asked: No such file"):
        ask(run, "status")


def test_the_status_has_the_promised_names_and_failures_only_where_there_are_some():
    import msgspec

    plain = msgspec.to_builtins(STATUS)
    assert list(plain) == ["graph", "url", "grpc", "generation", "conditions", "instances"]
    assert plain["instances"] == (
        {
            "id": "a-1",
            "operator": "a",
            "role": "primary",
            "leader": False,
            "epoch": 1,
            "version": 7,
            "proxyPid": 11,
            "modelPid": 12,
            "onTime": None,
        },
    )
    looping = msgspec.to_builtins(
        msgspec.structs.replace(STATUS, failures=(FailureInfo("a", "a-1", -9, ("bang",)),))
    )
    assert looping["lastFailureInfo"] == (
        {"operator": "a", "instance": "a-1", "exitCode": -9, "log": ("bang",), "process": "model"},
    )


async def test_what_is_stored_is_read_and_given(run, serve):
    given = []

    async def stored(operator):
        if operator == "c":
            raise NothingLearnt("nothing is learnt of c")
        return {"a": b"\xff\x00", "b": b""}

    async def give(operator, data):
        given.append((operator, data))

    await serve(stored=stored, give=give)
    assert (await asyncio.to_thread(ask, run, "stored")).stored == {"a": b"\xff\x00", "b": b""}
    with pytest.raises(NoAnswer, match="g: nothing is learnt of c"):
        await asyncio.to_thread(ask, run, "stored", "c")
    assert (await asyncio.to_thread(ask, run, "give", "a", b"\xfe\x01")).gives
    assert given == [("a", b"\xfe\x01")]
