"""What the load saw of a scenario: requests, failures, availability, and how long nothing came after each
fault."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

AFTER_S = 10.0
"""Replies this long after a fault are looked at for its gap."""


def gaps_ms(
    replied_s: Iterable[float], faults: Iterable[float], began_s: float, ended_s: float
) -> list[float]:
    """Per fault, the longest time without any reply that began within AFTER_S of it, and before the next
    fault. All times by one clock, seconds.

    `began_s`, `ended_s`: of the load: before the first reply and after the last one there is none, which is
    no calm.
    """
    replies = sorted(replied_s)
    pairs = list(itertools.pairwise([began_s, *replies, max([ended_s, *replies[-1:]])]))
    gaps = []
    times = list(faults)
    for struck, following in itertools.zip_longest(times, times[1:], fillvalue=math.inf):
        near = [
            later - earlier
            for earlier, later in pairs
            if struck < later and earlier < min(struck + AFTER_S, following)
        ]
        gaps.append(round(1000 * max(near, default=0.0), 1))
    return gaps


def slowest_ms(
    replied_s: Iterable[float], latencies_s: Iterable[float], faults: Iterable[float]
) -> list[float]:
    """Per fault, the longest that a single request took which was in flight then, or was sent within AFTER_S
    of it and before the next fault.

    A gap ends with anybody's reply; one client may wait on while all others are answered.
    """
    requests = [(replied - took, replied, took) for replied, took in zip(replied_s, latencies_s, strict=True)]
    times = list(faults)
    slowest = []
    for struck, following in itertools.zip_longest(times, times[1:], fillvalue=math.inf):
        until = min(struck + AFTER_S, following)
        near = [took for sent, replied, took in requests if replied > struck and sent < until]
        slowest.append(round(1000 * max(near, default=0.0), 1))
    return slowest


def at(values: Sequence[float], share: float) -> float:
    """The value that `share` of the sorted `values` do not exceed; 0 if there are none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class InjectedFault(msgspec.Struct, frozen=True, rename="camel"):
    """What was done, when (seconds since the load began), the longest time without a reply around it, and the
    slowest single request."""

    at_s: float
    what: str
    gap_ms: float
    slowest_ms: float = 0.0


class ChaosReport(msgspec.Struct, frozen=True, rename="camel"):
    """`availability`: share of requests that were answered within the graph's own deadline. `error`: why the
    scenario itself ended early, or ""."""

    scenario: str
    graph: str
    requests: int
    answered: int
    failed: int
    failures: dict[str, int]
    wrong: list[str]
    again: int
    availability: float
    latency_ms: dict[str, float]
    gap_ms: dict[str, float]
    faults: list[InjectedFault]
    seconds: float
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing failed and the scenario came to its end."""
        return not (self.failed or self.wrong or self.error) and self.requests > 0

    def text(self) -> str:
        """The report as text for people."""
        lines = [
            f"{fault.at_s:7.1f} s  {fault.what}: longest gap {fault.gap_ms:.0f} ms, slowest request "
            f"{fault.slowest_ms:.0f} ms"
            for fault in self.faults
        ]
        counts = (
            f"{self.answered} answered, {self.failed} failed, {self.again} attempts repeated under their key"
        )
        lines.append(f"{self.requests} requests in {self.seconds:.0f} s: {counts}")
        lines.append(f"availability {100 * self.availability:.3f} %")
        lines.append(
            "latency   " + "   ".join(f"{name} {value:.1f} ms" for name, value in self.latency_ms.items())
        )
        lines.append(
            "gaps      " + "   ".join(f"{name} {value:.0f} ms" for name, value in self.gap_ms.items())
        )
        lines += [f"  {count} x {why}" for why, count in self.failures.items()]
        lines += [f"  {problem}" for problem in self.wrong]
        if self.error:
            lines.append(f"the scenario did not come to its end: {self.error}")
        return "\n".join(lines) + "\n"


def summary(gaps: Sequence[float]) -> dict[str, float]:
    """Median and longest."""
    return {"median": round(statistics.median(gaps), 1), "longest": max(gaps)} if gaps else {}
