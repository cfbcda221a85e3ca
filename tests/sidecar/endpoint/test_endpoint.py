"""Starting, sharing ports, draining and stopping."""

import asyncio
import errno
import os
import signal
import socket

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.sidecar.endpoint.doubles import DIGITS, FakePort, Raw

from hams_sidecar.endpoint import Address, Endpoint, StartFailed, connection
from hams_sidecar.endpoint.grpc_calls import GrpcCall
from hams_sidecar.endpoint.grpc_service import HealthService
from hams_sidecar.inference import InferenceOutcome, InferenceRequest, Reply
from hams_sidecar.metrics import Metrics

INFER = "/v2/models/digits/infer"
ONE_ROW = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


class Gated(FakePort):
    """Answers when `go` is set."""

    def __init__(self) -> None:
        super().__init__(self.wait)
        self.go = asyncio.Event()

    async def wait(self, request: InferenceRequest) -> InferenceOutcome:
        await self.go.wait()
        return Reply(request.tensors)


async def test_frontends_of_a_graph_share_both_ports(serve) -> None:
    first = await serve()
    second = await serve(address=first.endpoint.address)
    assert second.endpoint.address == first.endpoint.address
    served = 0
    while not (first.port.requests and second.port.requests):
        async with httpx.AsyncClient(base_url=f"http://{first.http}") as client:
            assert (await client.post(INFER, json=ONE_ROW)).status_code == 200
        served += 1
        assert served < 200, "all connections went to one frontend"


async def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address in (Address("127.0.0.1", port, 0), Address("127.0.0.1", 0, port)):
            endpoint = Endpoint(FakePort(), DIGITS, Metrics("frontend", process=False), address)
            with pytest.raises(StartFailed, match=f"cannot listen on 127.0.0.1 port {port}"):
                await endpoint.start()
            await endpoint.stop()


async def test_a_host_that_is_unknown_is_a_clear_error() -> None:
    with pytest.raises(StartFailed, match="host 'no such host'"):
        await Endpoint(
            FakePort(), DIGITS, Metrics("frontend", process=False), Address("no such host", 0, 0)
        ).start()


def told_when_it_has_left(running, monkeypatch) -> asyncio.Event:
    """Set once the HTTP port is closed, or could not be."""
    left = asyncio.Event()
    leave = running.endpoint._http.leave

    async def spy(drain_s: float) -> None:
        try:
            await leave(drain_s)
        finally:
            left.set()

    monkeypatch.setattr(running.endpoint._http, "leave", spy)
    return left


async def test_a_drain_refuses_readiness_serves_on_and_finishes_what_is_open(serve, monkeypatch) -> None:
    port = Gated()
    running = await serve(port=port)
    leaving = told_when_it_has_left(running, monkeypatch)
    async with (
        httpx.AsyncClient(base_url=f"http://{running.http}") as client,
        grpc.aio.insecure_channel(running.grpc) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watched = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
        early = asyncio.create_task(client.post(INFER, json=ONE_ROW))
        await port.arrived.acquire()
        drained = asyncio.create_task(running.endpoint.drain(propagation_s=3, drain_s=60))
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        ready = await client.get("/v2/health/ready")
        assert ready.status_code == 503
        assert "shutting down" in ready.json()["error"]
        assert (await client.get("/v2/health/live")).status_code == 200
        late = asyncio.create_task(client.post(INFER, json=ONE_ROW))
        await port.arrived.acquire()
        watched.cancel()
        await leaving.wait()
        assert not drained.done()
        port.go.set()
        for reply in (await early, await late):
            assert reply.status_code == 200
            assert reply.headers["connection"] == "close"
        await drained
    with pytest.raises(OSError, match=r"refused|Connect"):
        await running.connect()


async def test_connections_that_wait_to_be_accepted_are_still_served(serve, monkeypatch) -> None:
    monkeypatch.setattr(connection, "last_request_s_max", 60.0)
    running = await serve()
    sockets = [socket.socket() for _ in range(20)]
    for waiting in sockets:
        waiting.setblocking(False)
        # done by the kernel; the loop has accepted none of them
        waiting.connect_ex(("127.0.0.1", running.endpoint.address.http_port))
    await running.endpoint._http.leave(5)
    for waiting in sockets:
        raw = Raw(*await asyncio.open_connection(sock=waiting))
        await raw.send(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await raw.answer())[0] == 200
        await raw.close()


class Faulty:
    """A listener whose `accept` says these errors first."""

    def __init__(self, listener: socket.socket, *errors: int) -> None:
        self._listener = listener
        self._errors = list(errors)
        self.close = listener.close

    def accept(self) -> tuple[socket.socket, object]:
        if self._errors:
            number = self._errors.pop(0)
            raise OSError(number, os.strerror(number))
        return self._listener.accept()


async def test_F38_a_connection_that_broke_while_it_waited_keeps_none_behind_it_waiting(
    serve, monkeypatch
) -> None:
    monkeypatch.setattr(connection, "last_request_s_max", 60.0)
    running = await serve()
    waiting = socket.socket()
    waiting.setblocking(False)
    waiting.connect_ex(("127.0.0.1", running.endpoint.address.http_port))
    http = running.endpoint._http
    http._listener = Faulty(http._listener, errno.ECONNABORTED, errno.EPROTO)
    await http.leave(5)
    raw = Raw(*await asyncio.open_connection(sock=waiting))
    await raw.send(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await raw.answer())[0] == 200
    await raw.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_F38_a_drain_without_a_file_descriptor_finishes_what_is_open(
    serve, monkeypatch, number: int
) -> None:
    port = Gated()
    running = await serve(port=port)
    http, left = running.endpoint._http, told_when_it_has_left(running, monkeypatch)
    http._listener = Faulty(http._listener, *[number] * 9)
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        early = asyncio.create_task(client.post(INFER, json=ONE_ROW))
        await port.arrived.acquire()
        drained = asyncio.create_task(running.endpoint.drain(propagation_s=0, drain_s=60))
        await left.wait()
        port.go.set()
        assert (await early).status_code == 200
        await drained


async def test_who_watches_health_does_not_hold_up_a_drain(serve) -> None:
    running = await serve()
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
        # Asked for before the drain: a read of a call that is over says EOF, whatever came before its end.
        last = asyncio.create_task(watched.read())
        await running.endpoint.drain(propagation_s=0, drain_s=3600)
        assert (await last).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watched.read() is grpc.aio.EOF


async def test_a_watcher_gets_the_last_state_though_the_drain_overtakes_the_first(serve, monkeypatch) -> None:
    left = asyncio.Event()
    send, leave = GrpcCall.send, HealthService.leave

    async def sent_once_the_drain_is_over(call: GrpcCall, content: bytes) -> object:
        unread = await send(call, content)
        await left.wait()
        return unread

    def leave_and_set(health: HealthService) -> None:
        leave(health)
        left.set()

    monkeypatch.setattr(GrpcCall, "send", sent_once_the_drain_is_over)
    monkeypatch.setattr(HealthService, "leave", leave_and_set)
    running = await serve()
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        states = [(await watched.read()).status]
        drained = asyncio.create_task(running.endpoint.drain(propagation_s=0, drain_s=3600))
        while (state := await watched.read()) is not grpc.aio.EOF:
            states.append(state.status)
        await drained
    assert states == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


async def test_a_silent_connection_does_not_hold_up_a_drain(serve, monkeypatch) -> None:
    monkeypatch.setattr(connection, "last_request_s_max", 0.01)
    running = await serve()
    raw = await running.connect()
    await running.endpoint.drain(propagation_s=0, drain_s=30)
    assert await raw.closed()


async def test_a_drain_does_not_wait_for_ever(serve) -> None:
    port = Gated()
    running = await serve(port=port)
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        never = asyncio.create_task(client.post(INFER, json=ONE_ROW))
        await port.arrived.acquire()
        await running.endpoint.drain(propagation_s=0, drain_s=1)
        reply = await never
        assert reply.status_code == 504
        assert "shuts down" in reply.json()["error"]
    await port.cancelled.acquire()


async def test_stop_cuts_everything_off_and_may_be_repeated(serve) -> None:
    port = Gated()
    running = await serve(port=port)
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        open_request = asyncio.create_task(client.post(INFER, json=ONE_ROW))
        await port.arrived.acquire()
        await running.endpoint.stop()
        await running.endpoint.stop()
        with pytest.raises(httpx.HTTPError):
            await open_request
    await port.cancelled.acquire()


@pytest.mark.parametrize("phase", ["serving on", "open requests finish"])
async def test_a_drain_that_is_given_up_is_stopped_like_any_other_endpoint(
    serve, monkeypatch, phase: str
) -> None:
    port = Gated()
    running = await serve(port=port)
    left = told_when_it_has_left(running, monkeypatch)
    async with httpx.AsyncClient(base_url=f"http://{running.http}") as client:
        open_request = asyncio.create_task(client.post(INFER, json=ONE_ROW))
        await port.arrived.acquire()
        serves_on_s = 60.0 if phase == "serving on" else 0.0
        drained = asyncio.create_task(running.endpoint.drain(propagation_s=serves_on_s, drain_s=60))
        await (asyncio.sleep(0) if serves_on_s else left.wait())
        drained.cancel()
        await asyncio.wait({drained})
        await running.endpoint.stop()
        with pytest.raises(httpx.HTTPError):
            await open_request
    await port.cancelled.acquire()


async def test_signals_belong_to_the_process(serve) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    await serve()
    assert {number: signal.getsignal(number) for number in before} == before
