"""The frontend process: the inference endpoint on one side, the frontend core and its peers on the other.

`GraphPort` turns a checked request into a `ClientRequest` of the core, and the core's answer into an outcome.
It decides nothing: what an answer is, when it may leave, and what a key means are the core's.

Invariant: what reaches the core can be sent to every peer and is taken by it. A log must not hold an entry
that cannot be delivered, so a request is tried on the peers' codec first (`_check_sendable`), however well
the endpoint has checked it.
"""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hams_protocol.effects import Answer, Effect, NoteReply, NotServed, Replied
from hams_protocol.events import ClientGone, ClientRequest, Drain
from hams_protocol.frontend import FormerLogs, FrontendMachine
from hams_protocol.frontend.promises import PromiseAccount
from hams_protocol.frozen import frozen
from hams_protocol.graph import FRONTEND, AdmissionPolicy, Graph, ReplyTensor
from hams_protocol.ids import InstanceId
from hams_protocol.messages import LATE, ClientForward, Kind, Message, Meta, Token
from hams_protocol.modes import ModePolicy
from hams_sidecar import limits
from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer
from hams_sidecar.blocks import round_up
from hams_sidecar.drained import Drained
from hams_sidecar.endpoint import Address, Endpoint
from hams_sidecar.endpoint import limits as endpoint_limits
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.tally import ForeseenPromises
from hams_sidecar.endpoint.tokens import Tokens
from hams_sidecar.frontend_memory import frontend_memory
from hams_sidecar.inference import (
    Conflict,
    Done,
    Full,
    InferenceOutcome,
    InferenceRequest,
    JoinRefused,
    KeyExpired,
    ModelFailure,
    NotReady,
    Reply,
    Shed,
    Tensor,
    TimedOut,
    Unpromised,
    tensors_digest,
)
from hams_sidecar.lives import Sidecar
from hams_sidecar.metrics import Metrics
from hams_sidecar.payload import TensorPayload, layout
from hams_sidecar.payloads import ArenaFactory
from hams_sidecar.proxy_metrics import kept_states
from hams_sidecar.succession.predecessor import Predecessor
from hams_sidecar.succession.successor import Successor, answer_visitor
from hams_sidecar.succession.takeover import Takeover, takeover_of, unless
from hams_sidecar.timeliness import ServedCounts, tell_timeliness
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.node import Node
from hams_wire.peers.codec import Codec
from hams_wire.peers.errors import NotSendable
from hams_wire.peers.payload import TensorInfo
from hams_wire.peers.visits import Visit
from hams_wire.process import Asked, Options, common_arguments, open_graph, run
from hams_wire.tls import Certificates

propagation_s = 0.2
"""Time a local frontend serves on after readiness is refused; `--propagation-s` says otherwise (a Service on
Kubernetes takes longer)."""

in_place_bytes_min = 64 << 10
"""Smaller tensors are copied from a request's body into memory of their own: the body may be as small, and
was not received in place."""

log = logging.getLogger(__name__)

NO_META = Meta()

MODEL_FAILED = "the model failed on this request; its log says why"
"""What a client learns of a model's failure under `frontend.hideModelErrors`."""


class GraphPort:
    """The graph, as the endpoint sees it (`hams_sidecar.inference.InferencePort`)."""

    def __init__(self, graph: Graph, arena: Arena) -> None:
        self._graph = graph
        self._arena = arena
        self._codec = Codec(ArenaFactory(arena))
        self._handles = itertools.count(1)
        self._waiting: dict[int, Done] = {}
        self._layouts: dict[
            tuple[tuple[str, str, tuple[int, ...], int], ...], tuple[tuple[TensorInfo, ...], int]
        ] = {}
        self.node: Node | None = None
        self.predecessor: Predecessor | None = None
        self.successor: Successor | None = None

    # -- InferencePort ---------------------------------------------------------------------------------------

    def submit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        """Run one request. A caller that goes away is forgotten; the request is not."""
        if self.predecessor is not None and (taken := self.predecessor.take(request, done)) is not None:
            return taken
        return self.admit(request, done)

    def admit(self, request: InferenceRequest, done: Done) -> Callable[[], object]:
        """Run one request that is not held back for a successor."""
        if self.successor is not None and (known := self.successor.answer(request)) is not None:
            done(known)
            return _nothing
        node = self.node
        if node is None:
            done(NotReady("this frontend is coming back under another name"))
            return _nothing
        if node.stopped.done():
            done(NotReady("this frontend is ending"))
            return _nothing
        trace = "" if request.trace is None else f"{request.trace.traceparent};{request.trace.tracestate}"
        meta = Meta(
            tuple(request.parameters.items()) if request.parameters else (), trace, request.deadline_s
        )
        try:
            payload = self._payload(request)
            if meta.parameters or trace:
                self._check_sendable(payload, meta)
        except ArenaFull:
            done(Full(retry_after_s=1.0))
            return _nothing
        except ArenaTooSmall as error:
            done(RequestRefused(f"the request is too large for this frontend: {error}", status=413))
            return _nothing
        except NotSendable as error:
            done(RequestRefused(f"the request cannot be handed on: {error}"))
            return _nothing
        handle = next(self._handles)
        # Before the event: the machine may answer within the same turn.
        self._waiting[handle] = done
        present = tuple([tensor.name for tensor in request.tensors])
        node.feed(
            ClientRequest(
                handle, request.idempotency_key, request.digest or "", meta, payload, request.outputs, present
            )
        )
        return partial(self._gone, handle)

    def room(self, nbytes: int, first: int) -> memoryview | None:
        """Room in the arena, so placed that the first tensor is aligned."""
        pad = round_up(first) - first
        try:
            return self._arena.allocate(nbytes + pad).view[pad:]
        except (ArenaFull, ArenaTooSmall):
            return None

    def _gone(self, handle: int) -> None:
        if self._waiting.pop(handle, None) is not None and self.node is not None:
            self.node.feed(ClientGone(handle))

    def ready(self) -> bool:
        """Whether the graph answers requests now."""
        node = self.node
        if self.successor is not None and not self.successor.open.is_set():
            return False
        return (
            node is not None
            and not node.stopped.done()
            and isinstance(node.machine, FrontendMachine)
            and node.machine.ready
        )

    def live(self) -> bool:
        """Whether this process is in order: serving, or between two lives."""
        return self.node is None or not self.node.stopped.done()

    def pause(self) -> None:
        """The instance is over, the process is not: clients that wait get an outcome that is not known here;
        their key will tell."""
        self.node = None
        # Taken away first: a callback may bring the next request in.
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(TimedOut())

    # -- the core's side -------------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> None:
        """Effects that only a frontend has: answers."""
        assert isinstance(effect, Answer), f"not an effect of a frontend: {effect}"
        done = self._waiting.pop(effect.handle, None)
        if done is not None:
            done(self.outcome(effect.outcome))

    def reply_digest(self, note: NoteReply) -> str | None:
        """Digest of a reply's tensors, for the history."""
        return tensors_digest(self._tensors(note.tokens)) if note.tokens else None

    def _check_sendable(self, payload: TensorPayload, meta: Meta = NO_META) -> None:
        """Encode and read what peers would be sent of a request, without its bytes. Raises NotSendable."""
        self._codec.prove(ClientForward(0, 0, 0, None, "", meta, payload))

    def _payload(self, request: InferenceRequest) -> TensorPayload:
        """A payload that peers take: a layout is tried once. Raises ArenaFull, ArenaTooSmall, NotSendable."""
        if (
            len(request.tensors[0].data) > in_place_bytes_min
            and (there := self._in_place(request.tensors)) is not None
        ):
            self._check_sendable(there)
            return there
        given = tuple(
            [(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in request.tensors]
        )
        known = self._layouts.get(given)
        tensors, total = layout(given) if known is None else known
        payload = TensorPayload(tensors, self._arena.allocate(total))
        if known is None:
            self._check_sendable(payload)
            if len(self._layouts) >= limits.descriptors_max:
                self._layouts.clear()
            self._layouts[given] = tensors, total
        for placed, tensor in zip(tensors, request.tensors, strict=True):
            payload.view(placed)[:] = tensor.data
        return payload

    def _in_place(self, tensors: tuple[Tensor, ...]) -> TensorPayload | None:
        """The tensors where they are, if they arrived in one buffer of the arena and lie there as a payload's
        tensors must."""
        buffer: Buffer | None = None
        placed: list[TensorInfo] = []
        for tensor in tensors:
            place = self._arena.locate(tensor.data) if isinstance(tensor.data, memoryview) else None
            if (
                place is None
                or place[1] != round_up(place[1])
                or (buffer is not None and buffer.offset != place[0].offset)
            ):
                return None
            buffer = place[0]
            placed.append(TensorInfo(tensor.name, tensor.datatype, tensor.shape, place[1], len(tensor.data)))
        return None if buffer is None else TensorPayload(tuple(placed), buffer)

    def outcome(self, outcome: Replied | NotServed) -> InferenceOutcome:
        """What an outcome of the core is to a client."""
        if isinstance(outcome, Replied):
            if outcome.error is None:
                for token in outcome.tokens:
                    if token.payload is not None and token.payload.defect:
                        return NotReady(f"this frontend cannot read the reply: {token.payload.defect}")
                return Reply(self._tensors(outcome.tokens))
            if outcome.error.status == LATE:
                return Shed(outcome.error.op, outcome.error.message)
            if outcome.error.status == 422:
                return JoinRefused(outcome.error.op, outcome.error.message)
            # A model's exception may name files, hosts or other clients' data; its author decides who reads
            # that.
            hidden = self._graph.data.frontend.hide_model_errors
            return ModelFailure(outcome.error.op, MODEL_FAILED if hidden else outcome.error.message)
        match outcome.status:
            case 409:
                return Conflict()
            case 410:
                return KeyExpired()
            case 429:
                return Full(outcome.retry_after_s)
            case 504 if not outcome.begun:
                return Unpromised(outcome.message, outcome.retry_after_s)
            case 504:
                return TimedOut()
            case _:
                return NotReady(outcome.message)

    def _tensors(self, tokens: tuple[Token, ...]) -> tuple[Tensor, ...]:
        tensors = [self._reply_tensor(choice, tokens) for choice in self._graph.data.outputs]
        return tuple([tensor for tensor in tensors if tensor is not None])

    def _reply_tensor(self, choice: ReplyTensor, tokens: tuple[Token, ...]) -> Tensor | None:
        """The first source that has a value; with lanes, the rows of all of them in the order of the declared
        in-edges."""
        if len(tokens) == 1:  # mostly: no lanes to put in order
            only, payload = tokens[0], tokens[0].payload
            if only.kind is Kind.VALUE and isinstance(payload, TensorPayload):
                for op, name in choice.sources:
                    if op == only.source and (part := _tensor(choice.name, name, payload)) is not None:
                        return part
            return None
        for op, name in choice.sources:
            lanes = self._graph.operators[op].lanes
            values = sorted(
                (token for token in tokens if token.source == op and token.kind is Kind.VALUE),
                key=lambda token: lanes.index(token.lane),
            )
            parts = [
                _tensor(choice.name, name, token.payload)
                for token in values
                if isinstance(token.payload, TensorPayload)
            ]
            present = [part for part in parts if part is not None]
            if len(present) == 1:
                return present[0]
            if present:
                rows = sum(part.shape[0] for part in present)
                return Tensor(
                    choice.name,
                    present[0].datatype,
                    (rows, *present[0].shape[1:]),
                    b"".join(part.data for part in present),
                )
        return None


def _nothing() -> None:
    """There is nothing to give up."""


def _tensor(name: str, source: str, payload: TensorPayload) -> Tensor | None:
    placed = payload.find(source)
    return (
        None
        if placed is None
        else Tensor(name, placed.datatype, placed.shape, payload.view(placed).toreadonly())
    )


@frozen
class ClientOptions:
    """What only a frontend is told.

    `address`: where clients connect. `tokens`: folder of the tokens that open it; None: everybody may ask.
    `propagation_s`: how long to serve on when asked to end; `drain_s`: how long it may then take to hand over
    and to be let go.
    """

    address: Address
    tokens: Path | None
    propagation_s: float
    drain_s: float


class Frontend(Sidecar):
    """The process of one frontend: the endpoint outlives the instances behind it."""

    def __init__(
        self,
        options: Options,
        clients: ClientOptions,
        graph: Graph,
        coordination: EtcdCoordination,
        certificates: Certificates | None,
        takeover: Takeover | None,
        asked: Asked,
    ) -> None:
        super().__init__(options, graph, coordination, certificates, asked)
        access, uid = options.access, options.graph_uid
        self._clients = clients
        room = frontend_memory(graph.data.frontend)
        self.memory = Arena(room.nbytes, reserve_nbytes=room.reserve_nbytes)
        self._port = port = GraphPort(graph, self.memory)
        self._metrics = Metrics("frontend")
        self._metrics.watch(
            "kept_bytes", "Bytes that it keeps of an operator's state.", self._kept, ("operator",)
        )
        self._promises = PromiseAccount()
        if graph.data.frontend.admission is AdmissionPolicy.PROMISE:
            ForeseenPromises(self._metrics, self._promises)
        tokens = None if clients.tokens is None else Tokens(clients.tokens, access.metrics_digest())
        self._endpoint = Endpoint(
            port,
            graph.data,
            self._metrics,
            clients.address,
            always_digest=bool(os.environ.get("HAMS_HISTORY")),
            tokens=tokens,
        )
        self._predecessor = port.predecessor = Predecessor(
            graph, uid, lambda: self.node, port.admit, access.coordination, certificates
        )
        self._successor = port.successor = None if takeover is None else Successor(graph, takeover)
        self._drained = Drained(uid)
        self._former_logs: FormerLogs | None = None
        self._closing: asyncio.Task[None] | None = None
        telling = tell_timeliness(lambda: self.node, lambda _: self._served(), uid, FRONTEND)
        self._telling = asyncio.create_task(telling)

    def _kept(self) -> list[tuple[tuple[str], float]]:
        """The states that it keeps, once it has begun."""
        machine = None if self.node is None else self.node.machine
        if not isinstance(machine, FrontendMachine):
            return []
        return [((op,), float(nbytes)) for op, nbytes in kept_states(machine)]

    async def answer_probes(self) -> asyncio.Server | None:
        """See `Sidecar`. Prometheus asks the endpoint itself where probes have a port."""
        local = isinstance(self.options.probe_port, Path)
        rendered = (lambda: self._metrics.render()[0]) if local else None
        return await self.options.answer_probes(self._missing, rendered=rendered)

    async def warm(self) -> bool:
        """Listen for clients, and wait for the replies of the predecessor. False: it was asked to end
        first."""
        await self._endpoint.start()
        return self._successor is None or await unless(self.asked, self._successor.begin())

    async def close(self) -> None:
        """See `Sidecar`."""
        self._telling.cancel()
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait({self._closing})
        await self._endpoint.stop()
        await self._predecessor.close()

    # -- lives -----------------------------------------------------------------------------------------------

    async def begin(self, name: InstanceId, life: int) -> Node:
        """The instance of one life, with the logs that the one before has kept."""
        machine = FrontendMachine(self.graph, name, self._former_logs, promises=self._promises)
        former = None if self._former_logs is None else self._former_logs.instance
        factory = ArenaFactory(self.memory, urgent=True)
        return self.instance(machine, name, FRONTEND, factory, life, former)

    async def start(self, node: Node) -> None:
        """Register it with the endpoint's address, and let requests in."""
        address = self._endpoint.address
        http, grpc = f"http://{address.host}:{address.http_port}", f"{address.host}:{address.grpc_port}"
        await node.start(http=http, grpc=grpc)
        self.node = self._port.node = node
        # Requests may have come before there was an instance to notice them.
        node.request_turn()

    def between(self, node: Node) -> None:
        """Keep the logs for the next life."""
        assert isinstance(node.machine, FrontendMachine)
        self._former_logs = node.machine.logs_to_keep()
        self.node = None
        self._port.pause()

    async def leave(self, node: Node, within_s: float) -> None:
        """Clients first: what they wait for is answered by this life, or by the one after it. Of a deleted
        graph, those of all frontends."""
        by = node.now() + within_s
        if self._closing is None:
            draining = self._endpoint.drain(propagation_s=self._clients.propagation_s)
            self._closing = asyncio.create_task(draining)
            self._closing.add_done_callback(_tell_failed_drain)
        closing, at_once = self._closing, self.asked.at_once
        first: set[asyncio.Future[Any]] = {closing, node.stopped}
        await asyncio.wait(first, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if self._predecessor.is_over:  # nobody takes anything over
            await asyncio.wait({closing}, timeout=max(by - node.now(), 0.0))
            return
        if self.hands_over():
            node.feed(Drain())
        await node.until_stopped(at_once, self.ended, timeout_s=max(by - node.now(), 0.0))
        if self.ended.deleted and closing.done() and not at_once.is_set() and not node.stopped.done():
            await self._drained.until_all(node, at_once, timeout_s=max(by - node.now(), 0.0))

    # -- what etcd and others see of it ----------------------------------------------------------------------

    def _missing(self) -> str | None:
        if self._successor is not None and not self._successor.open.is_set():
            return "the shape before this one serves"
        return "shutting down" if self.asked.is_set() else why_not_ready(self.node)

    def _served(self) -> ServedCounts:
        tally = self._endpoint.tally
        return ServedCounts(tally.on_time, tally.late)

    def perform(self, effect: Effect) -> None:
        """See `Owner`."""
        self._port.perform(effect)

    def reply_digest(self, note: NoteReply) -> str | None:
        """See `Owner`."""
        return self._port.reply_digest(note)

    def on_turn_end(self) -> None:
        """See `Owner`."""
        self._predecessor.on_turn_end()

    def lost(self, message: Message) -> bool:
        """See `Owner`."""
        return self._predecessor.lost(message)

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """See `Owner`."""
        self._predecessor.on_key_changed(name, value, revision)
        super().on_key_changed(name, value, revision)
        self._drained.on_key_changed(name, value)
        if self._successor is not None:
            self._successor.on_key_changed(name, value)

    async def answer(self, visit: Visit) -> None:
        """See `Owner`."""
        await answer_visitor(visit, self._port, self._successor)


async def serve(options: Options, clients: ClientOptions, asked: Asked) -> int:
    """Run one frontend until its core stops it or `asked` is set. Returns the exit code."""
    certificates = options.access.certificates()
    coordination, graph = await open_graph(options.access, options.graph_uid)
    takeover = await takeover_of(coordination, options.graph_uid, FRONTEND, options.instance, certificates)
    frontend = Frontend(options, clients, graph, coordination, certificates, takeover, asked)
    return await frontend.run(clients.propagation_s + endpoint_limits.drain_s_max + clients.drain_s)


def _tell_failed_drain(drain: asyncio.Task[None]) -> None:
    """Nobody waits for the outcome of a drain: the instance hands over once it is done, well or not."""
    if not drain.cancelled() and (error := drain.exception()) is not None:
        log.error("open requests of clients may be cut off: the endpoint did not drain", exc_info=error)


def why_not_ready(node: Node | None) -> str | None:
    """Why this frontend should get no requests, or may not yet stand in for another one; None if it may.

    It serves the graph, and holds what it should of every shard. One more than the graph asks for (there is
    one during an upgrade) has no part in any shard, and is ready as well.
    """
    if node is None or node.stopped.done():
        return "this instance is over"
    machine = node.machine
    assert isinstance(machine, FrontendMachine), "a frontend's machine"
    if not machine.ready:
        return machine.unserved or "a shard has no owner yet"
    data = machine.graph.data
    wanted = data.frontend.replicas - 1 if ModePolicy.of(data.mode).replicates else 0
    for name in machine.graph.shard_names:
        replica_set = machine.knowledge.set_of(name)
        if node.instance in replica_set.joining:
            return f"shard {name} is still being copied"
        if node.instance not in replica_set.members and len(replica_set.in_sync) < wanted:
            return f"shard {name} waits for this frontend"
    return None


def main(arguments: list[str] | None = None) -> int:
    """`python -m hams_sidecar.frontend`."""
    parser = common_arguments("hams-frontend", "one frontend of a graph")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--http-port", type=int, default=8080)
    parser.add_argument("--grpc-port", type=int, default=8081)
    parser.add_argument(
        "--propagation-s",
        type=float,
        default=propagation_s,
        help="how long to serve on when asked to end",
    )
    parser.add_argument(
        "--tokens",
        type=Path,
        default=None,
        metavar="DIR",
        help="only who bears one of the tokens in these files may ask",
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        default=limits.drain_s_max,
        help="how long it may then take to hand over and to be let go",
    )
    given = parser.parse_args(arguments)
    address = Address(given.host, given.http_port, given.grpc_port)
    clients = ClientOptions(address, given.tokens, given.propagation_s, given.drain_s)

    async def work(asked: Asked) -> int:
        return await serve(Options.of(given), clients, asked)

    return run(work, given.log_level)


if __name__ == "__main__":
    sys.exit(main())
