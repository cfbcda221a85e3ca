"""Counts of the requests served, kept as plain numbers and made into metrics when somebody scrapes: counting
is on the way of every request."""

from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hams_protocol.frontend.promises import PromiseAccount
from hams_protocol.graph import AdmissionPolicy
from hams_sidecar.inference import InferenceOutcome, Reply, Shed, TimedOut, Unpromised
from hams_sidecar.metrics import LATENCY_BUCKETS_S, Metrics

ON_TIME_CODES = ("200", "OK")
"""Codes of replies: none comes after its deadline, when the client has got its 504."""

LATE_CODES = ("504", "DEADLINE_EXCEEDED")
"""Codes of requests that were not answered by their deadline, or given up because of it."""


class _Protocol:
    """What has been served over one protocol. `buckets` count by latency, the last one what is above all
    bounds."""

    __slots__ = ("buckets", "received", "seconds", "sent")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.seconds = 0.0
        self.received = 0
        self.sent = 0


class RequestTally(Collector):
    """Requests by protocol and code, their duration and bytes."""

    def __init__(self, metrics: Metrics, protocols: Iterable[str]) -> None:
        self._name = metrics.name
        self._codes: dict[tuple[str, str], int] = {}
        self._protocols = {name: _Protocol() for name in protocols}
        metrics.registry.register(self)

    def add(self, protocol: str, code: str, seconds: float, received: int, sent: int) -> None:
        """One answered request."""
        key = (protocol, code)
        self._codes[key] = self._codes.get(key, 0) + 1
        counts = self._protocols[protocol]
        counts.buckets[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        counts.seconds += seconds
        counts.received += received
        counts.sent += sent

    @property
    def on_time(self) -> int:
        """Requests that were answered within their deadline."""
        return self._of(ON_TIME_CODES)

    @property
    def late(self) -> int:
        """Requests that were not, or that an operator gave up. Refusals and errors are neither."""
        return self._of(LATE_CODES)

    def _of(self, codes: tuple[str, ...]) -> int:
        return sum([count for (_, code), count in self._codes.items() if code in codes])

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment."""
        requests = CounterMetricFamily(
            self._name("requests"), "Inference requests answered.", labels=("protocol", "code")
        )
        for labels, count in self._codes.items():
            requests.add_metric(labels, count)
        yield requests
        for name, what, count in (
            ("on_time", "Requests answered within their deadline.", self.on_time),
            ("late", "Requests not answered within their deadline.", self.late),
        ):
            yield CounterMetricFamily(self._name(name), what, value=count)
        seconds = HistogramMetricFamily(
            self._name("request_duration_seconds"),
            "From the complete request to its answer handed to the socket.",
            labels=("protocol",),
        )
        received = CounterMetricFamily(
            self._name("received_bytes"), "Bytes of inference requests.", labels=("protocol",)
        )
        sent = CounterMetricFamily(
            self._name("sent_bytes"), "Bytes of answers, headers left out.", labels=("protocol",)
        )
        for protocol, counted in self._protocols.items():
            below = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*map(str, LATENCY_BUCKETS_S), "+Inf"), counted.buckets, strict=True):
                below += count
                buckets.append((bound, below))
            seconds.add_metric((protocol,), buckets, counted.seconds)
            received.add_metric((protocol,), counted.received)
            sent.add_metric((protocol,), counted.sent)
        yield from (seconds, received, sent)


class ForeseenPromises(Collector):
    """Tells how honest promises are whose chance was known when they were made."""

    def __init__(self, metrics: Metrics, account: PromiseAccount) -> None:
        self._name = metrics.name
        self._account = account
        metrics.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment; none before a promise was settled."""
        account = self._account
        if not account.settled:
            return
        promises = CounterMetricFamily(
            self._name("foreseen_promises"),
            "Promises whose chance was known; cause loss: soon after an instance was lost.",
            labels=("outcome", "cause"),
        )
        broken = account.settled - account.fulfilled
        promises.add_metric(("kept", ""), account.fulfilled)
        promises.add_metric(("broken", "late"), broken - account.broken_after_loss)
        promises.add_metric(("broken", "loss"), account.broken_after_loss)
        yield promises
        for name, what, value in (
            ("foreseen_chances", "Their chances to be kept.", account.expected),
            ("foreseen_squares", "Squared differences of chance and outcome (Brier).", account.squares),
        ):
            yield CounterMetricFamily(self._name(name), what, value=value)


class PromiseTally(Collector):
    """What became of the requests that `admission: Promise` has admitted or refused: a promise is kept by a
    reply, and broken by a deadline that passes. Other errors are neither."""

    def __init__(self, metrics: Metrics, admission: AdmissionPolicy) -> None:
        self._name = metrics.name("promises")
        self._counts = {"kept": 0, "broken": 0, "refused": 0}
        if admission is AdmissionPolicy.PROMISE:
            metrics.registry.register(self)

    def add(self, outcome: InferenceOutcome) -> None:
        """One request has its outcome."""
        match outcome:
            case Reply():
                self._counts["kept"] += 1
            case Shed() | TimedOut():
                self._counts["broken"] += 1
            case Unpromised():
                self._counts["refused"] += 1

    def collect(self) -> Iterable[Metric]:
        """The metric of this moment."""
        promises = CounterMetricFamily(
            self._name, "Requests by what came of the promise to answer them in time.", labels=("outcome",)
        )
        for label, count in self._counts.items():
            promises.add_metric((label,), count)
        yield promises
