"""Numbers of a scenario, printed and kept in `out/e2e/numbers.jsonl`: what the documents quote."""

import json
import math
import os
import statistics
import time

from e2e.cluster.layout import ROOT
from e2e.scenarios.run import GraphRun
from hams_operator.chaos.report import gaps_ms as gaps_around
from hams_operator.chaos.report import slowest_ms as slowest_around

FILE = ROOT / "out" / "e2e" / "numbers.jsonl"
DEADLINE_S = 30.0
"""Of a request, `frontend.requestTimeout` of the graph: later replies count as unavailability."""


def gaps_ms(run: GraphRun) -> list[float]:
    """Per fault, the longest time without any reply that began soon after it, and before the next. What was
    before the first reply and is behind the last one is no gap."""
    times = sorted(float(reply["answered"]) for reply in run.replies)
    return gaps_around(times, [struck for struck, _ in run.faults], times[0], times[-1]) if times else []


def slowest_ms(run: GraphRun) -> list[float]:
    """Per fault, the longest that a single request took which was in flight then, or was sent soon after and
    before the next fault."""
    replied = [float(reply["answered"]) for reply in run.replies]
    latencies = [float(reply["answered"]) - float(reply["asked"]) for reply in run.replies]
    return slowest_around(replied, latencies, [struck for struck, _ in run.faults])


def _percentiles(values: list[float]) -> dict[str, float]:
    """Of sorted values."""
    return {
        name: round(values[min(len(values) - 1, int(at * len(values)))], 1)
        for name, at in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        if values
    }


def report(run: GraphRun, scenario: str, **more: object) -> float:
    """Write one line; the share of requests that were answered in time."""
    latencies = run.latencies_ms()
    first = min((struck for struck, _ in run.faults), default=math.inf)
    calm = sorted(
        1000 * (reply["answered"] - reply["asked"]) for reply in run.replies if reply["answered"] < first
    )
    in_time = sum(1 for value in latencies if value <= 1000 * DEADLINE_S)
    share = in_time / max(1, len(latencies) + len(run.unanswered))
    gaps, slowest = gaps_ms(run), slowest_ms(run)
    line = {
        "scenario": scenario,
        "at": int(time.time()),
        "load": [round(value, 1) for value in os.getloadavg()[:2]],
        "readyS": round(run.ready_s, 1),
        "requests": len(latencies),
        "failed": len(run.failed()),
        "unanswered": len(run.unanswered),
        "inTime": round(share, 5),
        "latencyMs": _percentiles(latencies),
        "calmMs": _percentiles(calm),
        "gapMs": {"median": round(statistics.median(gaps), 1), "max": max(gaps), "all": gaps} if gaps else {},
        "slowestMs": {"max": max(slowest), "all": slowest} if slowest else {},
        "troubles": run.troubles,
        **more,
    }
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    print(json.dumps(line))
    return share
