"""Prometheus metrics of one data-plane process (proxy or frontend).

One `Metrics` per process owns a registry; each part makes its own counters and histograms there, under its
own subsystem, and publishes what it merely has (queue lengths, retained bytes) through `watch`, which costs
nothing until somebody scrapes. Names follow https://prometheus.io/docs/practices/naming/:
`hams_<subsystem>_<what>_<unit>[_total]`.

It never keeps a label whose values a client chooses: series would grow without bound.
"""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

NAMESPACE = "hams"

LATENCY_BUCKETS_S = (
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""From a hop on the loopback to the default request timeout."""

SIZE_BUCKETS_BYTES = (
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262144.0,
    1048576.0,
    4194304.0,
    16777216.0,
    67108864.0,
)

Sample = tuple[Sequence[str], float]
"""Label values, and what was read."""


class Metrics:
    """The registry of one process. Making the same name twice in one registry is an error (`ValueError`)."""

    def __init__(self, subsystem: str, *, process: bool = True) -> None:
        """`subsystem` leads the names of everything made here; `process`: also publish the process's own
        memory, CPU and descriptors."""
        self._subsystem = subsystem
        self.registry = CollectorRegistry(auto_describe=True)
        if process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)

    def name(self, name: str) -> str:
        """The whole name of a metric, for who publishes through a collector of its own."""
        return f"{NAMESPACE}_{self._subsystem}_{name}"

    def counter(self, name: str, what: str, labels: Sequence[str] = ()) -> Counter:
        """A count that only rises; prometheus-client adds `_total`."""
        return Counter(
            name, what, labels, namespace=NAMESPACE, subsystem=self._subsystem, registry=self.registry
        )

    def gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> Gauge:
        """A value that is set. What can be read from somewhere needs no gauge: see `watch`."""
        return Gauge(
            name, what, labels, namespace=NAMESPACE, subsystem=self._subsystem, registry=self.registry
        )

    def latency(self, name: str, what: str, labels: Sequence[str] = ()) -> Histogram:
        """A histogram of seconds; `name` ends in `_seconds`."""
        return self._histogram(name, what, labels, LATENCY_BUCKETS_S)

    def size(self, name: str, what: str, labels: Sequence[str] = ()) -> Histogram:
        """A histogram of bytes; `name` ends in `_bytes`."""
        return self._histogram(name, what, labels, SIZE_BUCKETS_BYTES)

    def watch(
        self, name: str, what: str, read: Callable[[], Iterable[Sample]], labels: Sequence[str] = ()
    ) -> None:
        """Publish what `read` returns at each scrape, as a gauge. `read` runs on the event loop and only
        looks."""
        self.registry.register(_Watch(self.name(name), what, read, labels))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Text exposition for an `Accept` header: body and content type. OpenMetrics for those that ask for
        it, in a version that is one."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # it compares the parts of a version with numbers, whatever a client has sent
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type

    def _histogram(self, name: str, what: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(
            name,
            what,
            labels,
            namespace=NAMESPACE,
            subsystem=self._subsystem,
            registry=self.registry,
            buckets=buckets,
        )


class _Watch(Collector):
    """Reads a value at the scrape, so that nothing has to be kept in step with it."""

    def __init__(
        self, name: str, what: str, read: Callable[[], Iterable[Sample]], labels: Sequence[str]
    ) -> None:
        self._name = name
        self._what = what
        self._read = read
        self._labels = labels

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._name, self._what, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._what, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family
