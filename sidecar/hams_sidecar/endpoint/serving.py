"""What both transports share: the graph behind the port, its signature, who is being served, and the metrics.

It keeps the deadline: nobody waits longer than the graph's request timeout, whatever the port does.
"""

import asyncio
from time import perf_counter

from prometheus_client import Counter

from hams_protocol.graph import GraphData
from hams_sidecar.endpoint.answers import Refusal, answer
from hams_sidecar.endpoint.request import MODEL_VERSION
from hams_sidecar.endpoint.signature import Signature
from hams_sidecar.inference import InferencePort, InferenceRequest, Reply, TimedOut
from hams_sidecar.metrics import Metrics


class Serving:
    """One graph being served. `always_digest`: histories are recorded, so every request needs its digest."""

    def __init__(self, port: InferencePort, graph: GraphData, metrics: Metrics, *, always_digest: bool = False) -> None:
        self.port = port
        self.graph = graph
        self.signature = Signature(graph)
        self.metrics = metrics
        self.always_digest = always_digest
        self.timeout_s = graph.frontend.request_timeout_s
        self.request_bytes_max = graph.frontend.max_request_bytes
        self.draining = False
        root = f"/v2/models/{graph.name}"
        self.infer_paths = frozenset((f"{root}/infer", f"{root}/versions/{MODEL_VERSION}/infer"))
        self.open_requests = 0
        self.held_bytes = 0
        """Bytes of requests that have arrived and are not yet answered; bounded by `held_bytes_max`."""
        self.held_bytes_max = max(graph.frontend.max_in_flight_bytes, graph.frontend.max_request_bytes)
        self._requests = metrics.counter("requests", "Inference requests answered.", ("protocol", "code"))
        self._counted: dict[tuple[str, str], Counter] = {}
        seconds = metrics.latency("request_duration_seconds", "From the complete request to its answer handed to the socket.", ("protocol",))
        self._seconds = {name: seconds.labels(name) for name in ("http", "grpc")}
        received = metrics.counter("received_bytes", "Bytes of inference requests.", ("protocol",))
        sent = metrics.counter("sent_bytes", "Bytes of answers, headers left out.", ("protocol",))
        self._received = {name: received.labels(name) for name in ("http", "grpc")}
        self._sent = {name: sent.labels(name) for name in ("http", "grpc")}
        metrics.watch("requests_open", "Inference requests being served now.", lambda: [((), float(self.open_requests))])
        metrics.watch("held_bytes", "Bytes of requests held now.", lambda: [((), float(self.held_bytes))])
        metrics.watch("ready", "1 if this frontend is ready.", lambda: [((), float(self.ready()))])

    def collects(self, method: str, path: str) -> bool:
        """Whether a request is one for the infer route."""
        return path in self.infer_paths and method == "POST"

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
                return answer(await self.port.infer(request))
        except TimeoutError:
            if not deadline.expired():
                raise
            return answer(TimedOut())

    def count(self, protocol: str, code: str, began: float, received: int, sent: int) -> None:
        """Note one answered request; `began` is a `perf_counter`."""
        counter = self._counted.get((protocol, code))
        if counter is None:
            counter = self._counted[protocol, code] = self._requests.labels(protocol, code)
        counter.inc()
        self._seconds[protocol].observe(perf_counter() - began)
        self._received[protocol].inc(received)
        self._sent[protocol].inc(sent)
