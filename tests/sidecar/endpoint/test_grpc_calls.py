"""Clients that misbehave on the gRPC port: messages that never end, replies that nobody reads, calls without
number (F36, F38)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.fuzz.http2 import RST_STREAM, Connection, frame, prefix
from tests.sidecar.endpoint.doubles import PIXELS, FakePort, always, graph

from hams_protocol.graph import FrontendSpec
from hams_sidecar.endpoint import grpc_calls, grpc_service, slow_clients
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.grpc_calls import GrpcCall, _address
from hams_sidecar.endpoint.grpc_service import grpc_small_message_bytes_max
from hams_sidecar.inference import Reply, Tensor

MESSAGE = pb.ModelInferRequest(
    model_name="digits", raw_input_contents=[np.array([[1, 2, 3, 4]], "<f4").tobytes()]
)
MESSAGE.inputs.add(name="pixels", datatype="FP32", shape=[1, 4])
GOOD = MESSAGE.SerializeToString()
WATCH = b"/grpc.health.v1.Health/Watch"
SIZE = 1 << 20


def small(timeout_s: float) -> object:
    """Room for one message as large as it may be, not for two."""
    return graph(
        PIXELS,
        frontend=FrontendSpec(
            max_request_bytes=SIZE, max_in_flight_bytes=SIZE + 1000, request_timeout_s=timeout_s
        ),
    )


@pytest.fixture
async def connect() -> AsyncIterator[object]:
    made: list[Connection] = []

    async def connect(running, **options) -> Connection:
        made.append(await Connection.open("127.0.0.1", running.endpoint.address.grpc_port, **options))
        return made[-1]

    yield connect
    for connection in made:
        await connection.close()


def after_each(monkeypatch, name: str) -> asyncio.Semaphore:
    """Released whenever this method of a call has run."""
    called = asyncio.Semaphore(0)
    original = getattr(GrpcCall, name)

    def spy(self, *arguments) -> None:
        original(self, *arguments)
        called.release()

    monkeypatch.setattr(GrpcCall, name, spy)
    return called


@pytest.fixture
def counted(monkeypatch) -> asyncio.Semaphore:
    """Released whenever a message has not come at once."""
    return after_each(monkeypatch, "_is_slow")


async def is_still_served(running) -> bool:
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        reply = await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(GOOD)
    return bool(reply)


async def test_F38_a_message_that_does_not_come_ends_at_the_deadline(serve) -> None:
    running = await serve(small(0.1))

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with grpc.aio.insecure_channel(running.grpc) as channel:
        for method in ("inference.GRPCInferenceService/ModelInfer", "grpc.health.v1.Health/Check"):
            with pytest.raises(grpc.aio.AioRpcError) as result:
                await channel.stream_unary(f"/{method}")(nothing())
            assert result.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "the whole message within 0.1 s" in result.value.details()
    assert await is_still_served(running)


async def test_F38_a_message_that_never_ends_is_counted_and_then_let_go(
    serve, connect, counted, monkeypatch
) -> None:
    monkeypatch.setattr(grpc_calls, "grpc_message_unhurried_s", 0.0)
    running = await serve(small(0.3))
    serving = running.endpoint._serving
    client = await connect(running)
    client.call(1)
    client.data(1, prefix(SIZE))
    await client.pour(1, SIZE - 1)
    await counted.acquire()
    assert serving.held_bytes == SIZE
    await client.ended(1)
    assert serving.held_bytes == 0
    assert await is_still_served(running)


async def test_F38_where_there_is_no_room_the_message_that_takes_longest_gives_way(
    serve, connect, counted, monkeypatch
) -> None:
    monkeypatch.setattr(grpc_calls, "grpc_message_unhurried_s", 0.0)
    monkeypatch.setattr(slow_clients, "body_unhurried_s", 0.0)
    running = await serve(small(30.0))
    client = await connect(running)
    for stream in (1, 3, 5):
        client.call(stream)
        client.data(stream, prefix(SIZE))
        await client.pour(stream, SIZE - 1)
        await counted.acquire()
        if stream > 1:
            await client.ended(stream - 2)
    assert running.endpoint._serving.held_bytes == SIZE
    assert 5 not in client.over
    assert await is_still_served(running)


async def test_F38_calls_are_bounded_and_one_that_stalls_gives_way(
    serve, connect, counted, monkeypatch
) -> None:
    monkeypatch.setattr(grpc_calls, "grpc_calls_max", 2)
    monkeypatch.setattr(grpc_calls, "grpc_message_unhurried_s", 0.0)
    running = await serve()
    client = await connect(running)
    for stream in (1, 3):
        client.call(stream, WATCH)
        await counted.acquire()
    client.call(5)
    await client.ended(5)
    assert client.over == {5}
    monkeypatch.setattr(slow_clients, "body_unhurried_s", 0.0)
    client.call(7)
    await asyncio.wait(
        [asyncio.create_task(client.ended(stream)) for stream in (1, 3)],
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert 7 not in client.over


async def test_F38_replies_that_nobody_reads_are_counted_and_cost_their_client_its_connection(
    serve, connect, monkeypatch
) -> None:
    waits = after_each(monkeypatch, "replies")
    large = Reply((Tensor("pixels", "FP32", (1 << 16, 4), bytes(SIZE)),))
    running = await serve(small(30.0), FakePort(always(large)))
    replies = running.endpoint._serving.replies
    clients = []
    for _ in range(3):
        client = await connect(running, window=0)
        client.call(1)
        client.data(1, prefix(len(GOOD)) + GOOD, end=True)
        await waits.acquire()
        assert SIZE < replies.nbytes < SIZE + 1000
        clients.append(client)
    for client in clients[:2]:
        await client.ended(1)
        assert client.closed
    assert not clients[2].closed
    assert await is_still_served(running)


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:80", ("127.0.0.1", 80)), ("ipv6:%5B::1%5D:8081", ("::1", 8081))],
)
def test_a_peer_is_named_as_sockets_name_it(peer: str, address: tuple[str, int]) -> None:
    assert _address(peer) == address


async def test_F38_a_watcher_that_reads_nothing_holds_nobody_up(serve, connect) -> None:
    running = await serve()
    client = await connect(running, window=0)
    client.call(1, WATCH)
    client.data(1, prefix(0), end=True)
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        for ready, status in ((False, 2), (True, 1)):
            running.port.is_ready = ready
            assert (await watching.read()).status == status


async def test_F38_watchers_are_bounded(serve, connect, monkeypatch) -> None:
    monkeypatch.setattr(grpc_service, "grpc_watchers_max", 1)
    running = await serve()
    client = await connect(running)
    for stream in (1, 3):
        client.call(stream, WATCH)
        client.data(stream, prefix(0))
    await client.ended(3)
    assert client.over == {3}


@pytest.mark.parametrize(
    "method",
    [
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "inference.GRPCInferenceService/ModelReady",
        "inference.GRPCInferenceService/ModelInfer",
    ],
)
@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe"])
async def test_F37_bytes_that_are_no_message_are_told_so_by_every_service(serve, method, content) -> None:
    running = await serve()
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        call = channel.stream_stream(f"/{method}")(iter([content]))
        with pytest.raises(grpc.aio.AioRpcError) as result:
            assert [reply async for reply in call] == []
    assert result.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert result.value.details().startswith("expected a message ")


async def test_F37_a_large_message_to_a_small_method_is_refused(serve) -> None:
    running = await serve()
    question = health_pb2.HealthCheckRequest(service="x" * grpc_small_message_bytes_max)
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as result:
            await health_pb2_grpc.HealthStub(channel).Check(question)
    assert "at most 4096 bytes" in result.value.details()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
async def test_F37_a_parameter_that_is_no_finite_number_is_refused(serve, value: float) -> None:
    """Models would get it, and it equals nothing, not even itself."""
    running = await serve()
    message = pb.ModelInferRequest.FromString(GOOD)
    message.parameters["p"].double_param = value
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as result:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                message.SerializeToString()
            )
    assert "expected a finite number" in result.value.details()
    assert running.port.requests == []


async def test_F38_calls_that_are_reset_at_once_leave_nothing_behind(serve, connect) -> None:
    """CVE-2023-44487."""
    running = await serve()
    client = await connect(running)
    for number in range(2000):
        if client.closed:
            break  # the server may well hang up
        client.call(2 * number + 1)
        client.writer.write(frame(RST_STREAM, 0, 2 * number + 1, bytes(4)))
        await client.writer.drain()
    assert await is_still_served(running)
    assert running.endpoint._serving.held_bytes == 0


async def test_F38_calls_that_wait_for_a_busy_loop_do_not_cancel_those_of_others(serve, connect) -> None:
    """By itself grpc cancels new calls when 1,000 to 3,000 wait to be begun, whoever sent them."""
    running = await serve()
    with grpc.insecure_channel(running.grpc) as good:
        grpc.channel_ready_future(good).result(timeout=10)
        client = await connect(running)
        for number in range(3500):
            if client.closed:
                break
            client.call(2 * number + 1)
            client.writer.write(frame(RST_STREAM, 0, 2 * number + 1, bytes(4)))
            await client.writer.drain()
        calls = [
            good.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(GOOD) for _ in range(20)
        ]
        for call in calls:  # this blocks the loop that would begin them
            with contextlib.suppress(grpc.FutureTimeoutError):
                assert call.exception(timeout=0.02) is None
        for call in calls:
            assert await asyncio.to_thread(call.result)
