"""F4, F25, F32, F37, F38, F39 with real processes: what one request or one client does to the others."""

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from hams_sidecar.endpoint.connection import head_s_max
from tests.faults.harness import PATIENT, SILENT, GraphRun, Reply, changed, run_graph
from tests.fuzz.requests import Run, generate

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
FULL = bool(os.environ.get("HAMS_FAULTS_FULL"))


DEATHS_MAX = 4
"""Once in company (twice, if the word of the first came late), then `maxAttempts` times alone."""


async def primaries(run: GraphRun) -> dict[str, str | None]:
    return {item.name: item.primary for item in (await run.topology()).sets}


@pytest.mark.parametrize(
    ("x", "operator"), [(-13.0, "stamp"), (-23.0, "first")], ids=["stateless", "stateful"]
)
async def test_f4_a_request_that_kills_its_model_becomes_an_error(
    tmp_path: Path, x: float, operator: str
) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as run,
        run.load(clients=4),
    ):
        await run.answered(40)
        before = await run.epochs()
        poison = await run.ask(x, key="poison")
        assert poison.status == 500, poison
        assert operator in str(poison.body["error"])
        again = await run.ask(x, key="poison")
        assert (again.status, again.body) == (500, poison.body), "the error is the reply, kept under its key"
        await run.answered(40)
        await run.redundant()
        after = await run.epochs()
        assert after["first"] - before["first"] <= DEATHS_MAX, "replicas are not killed in turn"
        assert after["last"] - before["last"] <= DEATHS_MAX, (
            "nobody dies downstream; what stems from versions lost above goes back with them"
        )
    run.verify()


@pytest.mark.parametrize(("x", "operator"), [(-45.0, "odd"), (-24.0, "tally")], ids=["stateless", "stateful"])
async def test_f32_a_request_for_which_a_model_finds_no_memory_is_refused_alone(
    tmp_path: Path, x: float, operator: str
) -> None:
    async with (
        run_graph("odd.yaml", tmp_path, graphs=changed(tmp_path, PATIENT, file="odd.yaml")) as run,
        run.load(clients=4),
    ):
        await run.answered(20)
        before = {item.id: item.model_pid for item in (await run.view()).instances}
        reply = await run.ask(x, key="greedy")
        assert reply.status == 500, reply
        assert operator in str(reply.body["error"])
        assert "MemoryError" in str(reply.body["error"])
        await run.answered(20)
        assert {item.id: item.model_pid for item in (await run.view()).instances} == before, (
            "no process ended"
        )
    run.verify()


async def test_f25_a_model_that_holds_its_interpreter_is_not_taken_for_dead(tmp_path: Path) -> None:
    busy = ('"nonce.models:Tally", config: {stateBytes: 65536}', '"nonce.models:Busy", config: {busyS: 4}')
    graphs = changed(tmp_path, busy, SILENT)
    async with run_graph("line.yaml", tmp_path, graphs=graphs) as run:
        before = await primaries(run)
        async with run.load(clients=4):
            await run.answered(40)
            for number in range(2):
                run.replies.append(await run.ask(-31.0, key=f"busy-{number}"))
            await run.answered(40)
            assert await primaries(run) == before, "busy is not dead"
    run.verify()


async def test_f37_wrong_input_is_the_clients_error_alone(tmp_path: Path) -> None:
    async with run_graph("odd.yaml", tmp_path) as run, run.load(clients=4):
        await run.answered(20)
        good = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
        for wrong, said in (
            ({**good, "shape": [1, 2], "data": [1.0, 2.0]}, "x"),
            ({**good, "datatype": "FP64"}, "FP64"),
            ({**good, "data": ["one"]}, "x"),
            ({**good, "data": [1.0, 2.0]}, "x"),
            ({**good, "name": "y"}, "y"),
        ):
            status, answer = await run.post({"inputs": [wrong]})
            assert status == 400, (wrong, status, answer)
            assert said in answer["error"], (wrong, answer)
        for body in (
            b"",
            b"{",
            b"[" * 5000,
            b'{"inputs": "\xff\xfe"}',
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [NaN',
        ):
            status, answer = await run.post(body)
            assert status == 400, (body[:40], status, answer)
            assert answer["error"]
        await run.answered(20)
    run.verify()


@pytest.mark.parametrize("x", [-41.0, -42.0, -43.0, -44.0], ids=["nan", "shape", "datatype", "name"])
async def test_f37_a_wrong_output_is_the_error_of_its_request_alone(tmp_path: Path, x: float) -> None:
    async with run_graph("odd.yaml", tmp_path) as run, run.load(clients=4):
        await run.answered(20)
        reply = await run.ask(x, key="odd")
        assert reply.status == 500, reply
        assert "odd" in str(reply.body["error"])
        await run.answered(20)
    run.verify()


SLOW = 200
POST_HEAD = b"POST /v2/models/line/infer HTTP/1.1\r\nhost: test\r\ncontent-length: 100000\r\n\r\n"


async def test_f38_slow_and_reconnecting_clients_cost_the_others_nothing(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, SILENT)) as run:
        before = await primaries(run)
        port = int(run.supervisor.url.rsplit(":", 1)[1])
        async with run.load(clients=4):
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SLOW)]
            for number, (_, writer) in enumerate(slow):
                writer.write(POST_HEAD[: number % len(POST_HEAD)] if number % 2 else POST_HEAD + b"{")
            beside = 0
            while beside < 100:
                await run.answered(10)
                if not all([await waits(reader) for reader, _ in slow]):
                    break
                beside += 10
            assert beside > 10, "others are served while the slow ones hold on, not after them"
            for _ in range(10_000 if FULL else 1_000):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: test\r\n\r\n")
                    writer.transport.abort()
            await run.answered(100)
            assert await primaries(run) == before, "heartbeats are not affected"
        for _, writer in slow:
            writer.transport.abort()
        assert run.took_s(0.99) < head_s_max, "nobody waited until a slow one was given up"
    run.verify()


async def waits(reader: asyncio.StreamReader) -> bool:
    """Whether the other side has neither said anything nor gone."""
    with contextlib.suppress(OSError):
        try:
            async with asyncio.timeout(0):
                await reader.read(1)
        except TimeoutError:
            return True
    return False


async def test_f39_one_key_is_one_effect_on_every_frontend(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=2):
        await run.answered(20)
        first = await asyncio.gather(*(run.ask(2.0, key="same") for _ in range(8)))
        assert {item.status for item in first} == {200}
        assert len({json.dumps(item.body["outputs"]) for item in first}) == 1, (
            "one reply, whichever frontend answers"
        )
        run.replies.append(first[0])
        assert (await run.ask(3.0, key="same")).status == 409
        for operator, role in (("frontend", "frontend"), ("last", "primary")):
            await run.kill(operator, role)
            during = await asyncio.gather(*(run.ask(2.0, key="same") for _ in range(8)))
            assert [item.body["outputs"] for item in during] == [first[0].body["outputs"]] * 8
            assert (await run.ask(3.0, key="same")).status == 409
            await run.redundant()
        asked = asyncio.gather(*(run.ask(2.0, key="fresh") for _ in range(8)))
        await run.kill("first", "primary")
        fresh: list[Reply] = await asked
        assert len({json.dumps(item.body["outputs"]) for item in fresh}) == 1
        run.replies.append(fresh[0])
        await run.redundant()
    run.verify()


async def test_f37_no_request_made_from_a_signature_ends_a_process_or_fails_a_good_one(
    tmp_path: Path,
) -> None:
    """The short form of `tests/fuzz/requests.py` with real processes; its long form measures times."""
    chain = tmp_path / "chain"
    shutil.copytree(EXAMPLES / "chain", chain)
    file = chain / "graph.yaml"
    file.write_text(file.read_text().replace(*PATIENT))
    async with run_graph("graph.yaml", tmp_path, graphs=chain) as run:
        before = await run.registered()
        graph = run.supervisor.graph.data
        fuzz = Run(graph, run.supervisor.url, run.supervisor.grpc)
        await fuzz.send(await asyncio.to_thread(generate, graph, 300, 1))
        assert [line for line in fuzz.findings.wrong if "waited" not in line] == []
        assert fuzz.findings.codes["200"] + fuzz.findings.codes["OK"] > 10
        assert await run.registered() == before
