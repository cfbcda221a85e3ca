"""The shell around a frontend's `SuccessorGate`, and what a frontend answers its visitors."""

import asyncio
import logging
from functools import partial
from typing import Protocol

from hams_protocol.effects import NotServed, Replied
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import Graph
from hams_protocol.succession.records import Follows
from hams_protocol.succession.successor import SuccessorGate
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.signature import Signature
from hams_sidecar.frontend_memory import frontend_memory
from hams_sidecar.inference import (
    InferenceOutcome,
    InferencePort,
    InferenceRequest,
    NotReady,
    TimedOut,
    outcome_of,
)
from hams_sidecar.succession import replies, talk
from hams_sidecar.succession.takeover import Takeover
from hams_wire import records, succession
from hams_wire.node import Node
from hams_wire.peers.visits import Visit, VisitFailed

log = logging.getLogger("hams.succession")


class Port(InferencePort, Protocol):
    """The graph, as a frontend has it."""

    node: Node | None

    def outcome(self, outcome: Replied | NotServed) -> InferenceOutcome:
        """What an outcome of the core is to a client."""
        ...


class Successor:
    """`open` is set once this graph serves: the gate, which is the core's, says when."""

    def __init__(self, graph: Graph, takeover: Takeover) -> None:
        self.open = asyncio.Event()
        self.gate: SuccessorGate[InferenceOutcome] = SuccessorGate(
            replies.table_for(graph.data.frontend), NotReady("the shape before this one serves")
        )
        self._frontend = graph.data.frontend
        self.question_bytes_max = frontend_memory(graph.data.frontend).nbytes
        self.signature = Signature(graph.data)
        self._takeover = takeover

    async def begin(self) -> None:
        """Take the replies over, as soon as the predecessor is at rest."""
        self.gate.table = await self._takeover.predecessor_replies(self._frontend)
        log.warning("took %d replies over from %s", len(self.gate.table), self._takeover.follows.uid)
        self._follows_changed(self._takeover.follows)

    def on_key_changed(self, name: str, value: bytes | None) -> None:
        """A key of this graph, as it is or as it has become."""
        if name != succession.FOLLOWS:
            return
        try:
            self._follows_changed(None if value is None else succession.decode_follows(value))
        except records.MalformedRecord as error:
            log.error("%s", error)

    def _follows_changed(self, follows: Follows | None) -> None:
        self.gate.follows_changed(follows)
        if self.gate.is_open and not self.open.is_set():
            log.warning("the shape before this one is over: this one serves")
            self.open.set()

    def answer(self, request: InferenceRequest) -> InferenceOutcome | None:
        """What a request is answered without asking the core; None: the core knows."""
        return self.gate.answer(request.idempotency_key, request.digest)

    def check(self, request: InferenceRequest) -> InferenceRequest:
        """A request that was checked against the predecessor's signature, checked against this graph's.
        Raises RequestRefused."""
        for tensor in request.tensors:
            # Its bytes fit its shape, as the predecessor has checked: what may differ is what is declared.
            self.signature.expect(tensor.name, tensor.datatype, tensor.shape)
        if request.outputs is not None:
            self.signature.select(request.outputs)
        return InferenceRequest(
            self.signature.arrange(request.tensors),
            request.parameters,
            request.outputs,
            request.deadline_s,
            request.idempotency_key,
            request.trace,
            request.digest,
        )


async def answer_visitor(visit: Visit, port: Port, successor: Successor | None) -> None:
    """What a frontend answers its visitors, until they go. Raises VisitFailed."""
    room = partial(_room, 0 if successor is None else successor.question_bytes_max)
    while True:
        head, data = await visit.receive(room, None)
        asked = talk.question(head)
        if isinstance(asked, talk.AskReplies) and asked.shard:
            await _tell_shard(visit, port, asked.shard)
        elif isinstance(asked, talk.AskReplies) and successor is None:
            await replies.tell(visit, (), ())
        elif isinstance(asked, talk.AskReplies) and successor is not None and successor.open.is_set():
            table = successor.gate.table
            await replies.tell(visit, table.entries(), table.expired(), table.whole)
        elif isinstance(asked, talk.AskOutcome) and successor is not None:
            await _tell_outcome(visit, port, successor, asked, data)
        else:
            raise VisitFailed(f"nothing that can be asked here now: {type(asked).__name__}")


def _room(nbytes_max: int, nbytes: int) -> memoryview:
    if nbytes > nbytes_max:
        raise VisitFailed(f"a question with {nbytes} bytes of payload, at most {nbytes_max} are taken")
    return memoryview(bytearray(nbytes))


async def _tell_shard(visit: Visit, port: Port, shard: str) -> None:
    node = port.node
    machine = None if node is None or node.stopped.done() else node.machine
    former = machine.logs_to_keep() if isinstance(machine, FrontendMachine) else None
    owned = (
        []
        if not isinstance(machine, FrontendMachine)
        else [item.name for item in machine.shards() if item.role == "primary"]
    )
    if former is None or not isinstance(machine, FrontendMachine) or shard not in owned:
        raise VisitFailed(f"{shard} is not owned here")
    log = former.logs.get(machine.graph.shard_names.index(shard))
    if log is None:
        raise VisitFailed(f"{shard} is not owned here any more")
    await replies.tell(visit, list(replies.entries_of(log, port.outcome)), log.state.expired.hashes())


async def _tell_outcome(
    visit: Visit, port: Port, successor: Successor, asked: talk.AskOutcome, data: memoryview
) -> None:
    """Tell the outcome of a request that was passed on, perhaps before this frontend has heard that it
    serves."""
    outcome: InferenceOutcome
    try:
        request = successor.check(talk.request_in(asked, data))
        async with asyncio.timeout(request.deadline_s):
            await successor.open.wait()
            outcome = await outcome_of(port, request)
    except RequestRefused as error:
        await visit.send(talk.encode(talk.PassedOutcome(talk.MALFORMED, message=error.message)))
        return
    except TimeoutError:
        outcome = TimedOut()
    said, parts = talk.passed_outcome(outcome)
    await visit.send(talk.encode(said), parts)
