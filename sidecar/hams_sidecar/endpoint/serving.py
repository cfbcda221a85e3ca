"""What both transports share: the graph behind the port, its signature, the requests being served, and the
metrics. It keeps the deadline: no client waits longer than the graph's request timeout, whatever the port
does.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from time import perf_counter
from typing import Protocol

from hams_protocol.graph import GraphData
from hams_sidecar.endpoint.answers import Refusal, answer
from hams_sidecar.endpoint.descriptors import connection_bounds
from hams_sidecar.endpoint.request import MODEL_VERSION
from hams_sidecar.endpoint.rest_codec import KnownHeads
from hams_sidecar.endpoint.signature import Signature
from hams_sidecar.endpoint.slow_clients import Bodies, IncomingBody, UntakenReplies
from hams_sidecar.endpoint.tally import PromiseTally, RequestTally
from hams_sidecar.endpoint.tokens import Tokens
from hams_sidecar.inference import (
    InferenceOutcome,
    InferencePort,
    InferenceRequest,
    Parameter,
    Reply,
    TimedOut,
    outcome_of,
)
from hams_sidecar.metrics import Metrics


class RequestDeadline(Protocol):
    """A request whose deadline `Serving` watches."""

    def expire(self) -> None:
        """The deadline has passed."""
        ...


class Serving:
    """One graph being served. `always_digest`: histories are recorded, so every request needs its digest.
    `tokens`: who may ask; None: anybody. `own_pages_only`: of web pages only those of this machine may ask,
    because the endpoint is within reach of this machine alone."""

    def __init__(
        self,
        port: InferencePort,
        graph: GraphData,
        metrics: Metrics,
        *,
        always_digest: bool = False,
        tokens: Tokens | None = None,
        own_pages_only: bool = False,
    ) -> None:
        self.port = port
        self.graph = graph
        self.signature = Signature(graph)
        self.known_heads = KnownHeads()
        self.metrics = metrics
        self.always_digest = always_digest
        self.tokens = tokens
        self.own_pages_only = own_pages_only
        self.timeout_s = graph.frontend.request_timeout_s
        self.deadline_s = graph.frontend.deadline_s or self.timeout_s
        """How long a client waits that does not say, and is of no application with a deadline of its own."""
        self._app_parameter = graph.frontend.app_parameter
        self._app_deadlines_s = {app.name: app.deadline_s for app in graph.frontend.apps if app.deadline_s}
        self.request_bytes_max = graph.frontend.max_request_bytes
        self.draining = False
        root = f"/v2/models/{graph.name}"
        self.infer_paths = frozenset((f"{root}/infer", f"{root}/versions/{MODEL_VERSION}/infer"))
        self.infer_urls = frozenset(path.encode() for path in self.infer_paths)
        self.open_requests = 0
        self.held_bytes = 0
        """Bytes of requests that have arrived and are not yet answered; bounded by `held_bytes_max`."""
        self.head_bytes = 0
        """Bytes of heads that came in pieces and are not complete; bounded by `heads_bytes_max`."""
        self.announced_bytes = 0
        """Bytes of bodies that have room in place and have not arrived."""
        self.held_bytes_max = max(graph.frontend.max_in_flight_bytes, graph.frontend.max_request_bytes)
        self.connections = connection_bounds()
        self.bodies = Bodies()
        self.replies = UntakenReplies(self.held_bytes_max)
        self.tally = RequestTally(metrics, ("http", "grpc"))
        self.promises = PromiseTally(metrics, graph.frontend.admission)
        self._waiting: dict[RequestDeadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.watch(
            "requests_open", "Inference requests being served now.", lambda: [((), float(self.open_requests))]
        )
        metrics.watch("held_bytes", "Bytes of requests held now.", lambda: [((), float(self.held_bytes))])
        metrics.watch(
            "unsent_bytes",
            "Bytes of replies that clients have not taken.",
            lambda: [((), float(self.replies.nbytes))],
        )
        metrics.watch("ready", "1 if this frontend is ready.", lambda: [((), float(self.ready()))])

    def default_deadline_s(self, parameters: Mapping[str, Parameter]) -> float:
        """How long the client of a request waits that does not say."""
        if not self._app_deadlines_s:
            return self.deadline_s
        app = parameters.get(self._app_parameter)
        return self._app_deadlines_s.get(app, self.deadline_s) if isinstance(app, str) else self.deadline_s

    def make_room(self, nbytes: int, own: IncomingBody | None) -> bool:
        """Whether so many bytes more may be held, once those who are slower than `own` have given way."""
        while self.held_bytes + nbytes > self.held_bytes_max:
            if not self.bodies.make_room(own, asyncio.get_running_loop().time()):
                return False
        return True

    def ready(self) -> bool:
        """Whether clients should be sent here."""
        return not self.draining and self.port.ready()

    def why_not_ready(self) -> str:
        """For the answer of a readiness probe."""
        return "shutting down" if self.draining else "the graph does not serve yet, or not at present"

    async def infer(self, request: InferenceRequest) -> Reply | Refusal:
        """Run one request within its deadline. Cancelled when its client went away."""
        deadline = asyncio.timeout(request.deadline_s)
        try:
            async with deadline:
                return self.settle(await outcome_of(self.port, request))
        except TimeoutError:
            if not deadline.expired():
                raise
            return self.settle(TimedOut())

    def settle(self, outcome: InferenceOutcome) -> Reply | Refusal:
        """What an outcome is to its client; counts what came of promises."""
        self.promises.add(outcome)
        return answer(outcome)

    def count(self, protocol: str, code: str, began: float, received: int, sent: int) -> None:
        """Note one answered request; `began` is a `perf_counter`."""
        self.tally.add(protocol, code, perf_counter() - began, received, sent)

    def watch(self, waiting: RequestDeadline) -> None:
        """A request waits without a task: its deadline, which is the graph's, is watched here."""
        loop = asyncio.get_running_loop()
        self._waiting[waiting] = at = loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = loop.call_at(at, self._expire, loop)

    def unwatch(self, waiting: RequestDeadline) -> None:
        """Watch the deadline of this request no more."""
        del self._waiting[waiting]

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """What is left to do for a request, in a task that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """All wait equally long, so the first is due first; the timer is moved once in a while, not for
        each."""
        self._timer = None
        for waiting, at in list(self._waiting.items()):
            if at > loop.time():
                self._timer = loop.call_at(at, self._expire, loop)
                return
            waiting.expire()
