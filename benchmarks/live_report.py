"""What is told of live runs of scheduling policies (`hams bench schedule --live`): rates beside those of
virtual time, and what a kill costs."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arrivals import Arrivals
from benchmarks.plots import bars, lines, reliability
from benchmarks.report import Result, rows_of
from benchmarks.workloads import Case, Trace
from hams_load.traffic import percentile

P99_S = 0.2
"""Times are scaled so that the P99 of a request alone is this: two cores keep up."""
WARM_UP_S = 15.0
AFTER_S = 2.0
GOAL_DIFFERENCE = 0.03
GOAL_AFTER_KILL = 0.85
GOAL_PREDICTED = 0.03
"""By how much the share of units in time may differ from the mean of the chances that were predicted."""
GOAL_PLAN = 0.05
"""Of one core, what plans may take."""
RELIABILITY = "hams_proxy_reliability_"


@dataclass(frozen=True)
class Cell:
    """One graph under one list of requests. `kill_s`: how often its primary is killed; 0: it has no state."""

    case: Case
    factor: float
    policy: str
    rho: float
    arrivals: Arrivals
    seconds: float
    seed: int
    kill_s: float

    @property
    def slo_s(self) -> float:
        """What a request has, in seconds of the live run."""
        return self.factor * P99_S


@dataclass
class Seen:
    """What the client saw: for each request whether it was in time; how late each was sent; what failed."""

    on_time: list[bool]
    lags_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    """Seconds since the trace began."""
    waited_s: dict[int, float] = field(default_factory=dict)
    """By request, from when it was due to its answer, whatever that says."""


def row_of(cell: Cell, trace: Trace, expected: list[bool], seen: Seen) -> dict[str, Any]:
    """What is told of a cell."""
    counted = [number for number, at in enumerate(trace.arrivals) if at >= WARM_UP_S]
    ours = np.array([seen.on_time[number] for number in counted], dtype=float)
    theirs = np.array([expected[number] for number in counted], dtype=float)
    difference = ours - theirs
    row: dict[str, Any] = {
        "case": cell.case.name,
        "slo": cell.factor,
        "policy": cell.policy,
        "requests": len(counted),
        "live": round(float(ours.mean()), 4),
        "virtual": round(float(theirs.mean()), 4),
        "difference": round(float(difference.mean()), 4),
        "error": round(float(difference.std() / np.sqrt(len(counted))), 4),
        "agrees": bool(abs(difference.mean()) <= GOAL_DIFFERENCE),
        "failed": seen.failed,
        "sent_late_p99_ms": round(1000.0 * percentile(seen.lags_s, 0.99), 1),
        "trace": trace.digest(),
    }
    if cell.kill_s:
        row |= after_kills(cell, trace, expected, seen)
    return row


def after_kills(cell: Cell, trace: Trace, expected: list[bool], seen: Seen) -> dict[str, Any]:
    """The requests sent in the windows after the kills, and apart from them those sent within an SLO before,
    some of which the kill met: live, and in virtual time, where nothing is killed.

    `around`: by second, from 4 s before the kills to 8 s after them, the share in time over all kills.
    """

    def numbers(low: float, high: float) -> list[int]:
        return [
            number
            for number, at in enumerate(trace.arrivals)
            if any(kill + low <= at < kill + high for kill in seen.kills)
        ]

    window, under_way = numbers(0.0, AFTER_S), numbers(-cell.slo_s, 0.0)
    waited_s = [seen.waited_s[number] for number in (*under_way, *window) if number in seen.waited_s]
    rate = _share(window, seen.on_time)
    return {
        "kills": [round(kill, 2) for kill in seen.kills],
        "requests_after_kill": len(window),
        "live_after_kill": rate,
        "virtual_after_kill": _share(window, expected),
        "slowest_ms": round(1000.0 * max(waited_s), 1) if waited_s else None,
        "requests_under_way": len(under_way),
        "live_under_way": _share(under_way, seen.on_time),
        "virtual_under_way": _share(under_way, expected),
        "stands": rate is not None and rate >= GOAL_AFTER_KILL,
        "around": [
            (second, _share(numbers(float(second), second + 1.0), seen.on_time)) for second in range(-4, 8)
        ],
    }


def _share(numbers: list[int], on_time: list[bool]) -> float | None:
    """The finish rate of some requests; None of none."""
    return round(sum([on_time[number] for number in numbers]) / len(numbers), 4) if numbers else None


def reliability_of(page: str) -> list[tuple[float, float, int]]:
    """From a page of metrics, for each band of predicted chances that had units: the mean of the chances, the
    share in time, and how many units. Those of the warm-up are among them; empty where nothing predicts."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in page.splitlines():
        if line.startswith(RELIABILITY):
            name, _, labels = line.removeprefix(RELIABILITY).partition("{")
            chance = labels.partition('chance="')[2].partition('"')[0]
            sums[chance][name.removesuffix("_total")] += float(line.rpartition(" ")[2])
    return [
        (round(band["chances"] / units, 4), round(band["kept"] / units, 4), int(units))
        for _, band in sorted(sums.items(), key=lambda item: float(item[0]))
        if (units := band["units"])
    ]


def forecast_of(page: str) -> dict[str, float] | None:
    """From a page of metrics: how many batches had their time predicted, their seconds as `predicted` and
    `measured`, and how many batches were chosen before much was learnt (`point`). After a kill these are the
    successor's, as the page of the primary went with it. None where nothing predicts."""
    names = {
        "hams_proxy_forecast_batches_total": "batches",
        "hams_proxy_forecast_seconds_total": "predicted",
        "hams_proxy_forecast_measured_seconds_total": "measured",
        "hams_proxy_decisions_total": "point",
    }
    sums: dict[str, float] = dict.fromkeys(names.values(), 0.0)
    for line in page.splitlines():
        name, _, labels = line.partition("{")
        column = names.get(name)
        if column is not None and (column != "point" or 'kind="point"' in labels):
            sums[column] += float(line.rpartition(" ")[2])
    return {name: round(value, 4) for name, value in sums.items()} if sums["batches"] else None


def policy_seconds_of(page: str) -> dict[str, float]:
    """From a page of metrics, the seconds that policies took to `decide` and to `plan`. After a kill they are
    the successor's, as in `forecast_of`."""
    sums = {"decide": 0.0, "plan": 0.0}
    for line in page.splitlines():
        if line.startswith("hams_proxy_schedule_seconds_total{"):
            phase = line.partition('phase="')[2].partition('"')[0]
            sums[phase] += float(line.rpartition(" ")[2])
    return {phase: round(seconds, 4) for phase, seconds in sums.items()}


def policies_of(page: str) -> list[str]:
    """From a page of metrics, the policies that serve: a failed one has given way to `Fifo`."""
    labels = [line for line in page.splitlines() if line.startswith("hams_proxy_policy{")]
    return sorted({line.partition('name="')[2].partition('"')[0] for line in labels if line.endswith(" 1")})


def predicted_and_kept(bands: list[tuple[float, float, int]]) -> tuple[float, float] | None:
    """Of all units, the mean of the chances and the share in time; None of none."""
    units = sum([count for _, _, count in bands])
    if not units:
        return None
    predicted = sum([chance * count for chance, _, count in bands])
    return predicted / units, sum([share * count for _, share, count in bands]) / units


def print_table(result: Result) -> None:
    """For people."""
    print(
        f"load {result['rho']}, {result['arrivals']}, P99 alone {1000 * P99_S:g} ms, {result['seconds']:g} s "
        f"a cell after {WARM_UP_S:g} s; goals: live within {GOAL_DIFFERENCE:g} of virtual, "
        f"{GOAL_AFTER_KILL:g} in the {AFTER_S:g} s after a kill"
    )
    print(
        f"{'case':14} {'SLO':>4} {'policy':>12} {'requests':>8} {'live':>6} {'virtual':>7} {'diff':>7} "
        f"{'+-':>6} {'sent late':>9} {'load':>9}  goals"
    )
    for row in rows_of(result):
        before, after = row["load_average"]
        told = "met" if row["agrees"] else "MISSED"
        if "kills" in row:
            told += f"; kills: {len(row['kills'])}, " + ("met" if row["stands"] else "MISSED")
        print(
            f"{row['case']:14} {row['slo']:4g} {row['policy']:>12} {row['requests']:8} {row['live']:6.3f} "
            f"{row['virtual']:7.3f} {row['difference']:+7.3f} {row['error']:6.3f} "
            f"{row['sent_late_p99_ms']:6.1f} ms {before:4g} {after:4g}  {told}"
        )
        for when in ("after_kill", "under_way") if "kills" in row else ():
            print(
                f"    {when.replace('_', ' ')}: {row[f'requests_{when}']} requests, live "
                f"{_told(row[f'live_{when}'])}, virtual without a kill {_told(row[f'virtual_{when}'])}"
            )
        if row.get("slowest_ms") is not None:
            slowest = f"{row['slowest_ms']:g} ms"
            print(f"    slowest answer to a request that was open at a kill or came after it: {slowest}")
        told_of = predicted_and_kept(row["reliability"])
        if told_of is not None:
            predicted, kept = told_of
            verdict = "met" if abs(predicted - kept) <= GOAL_PREDICTED else "MISSED"
            print(
                f"    units run: {predicted:.3f} predicted to be in time at their operator, {kept:.3f} were; "
                f"goal within {GOAL_PREDICTED:g}: {verdict}"
            )
        if row.get("serve"):
            print(f"    at the end {' and '.join(row['serve'])} serve{'s' * (len(row['serve']) == 1)}")
        forecast = row.get("forecast")
        if forecast is not None:
            since = "since the last kill " if "kills" in row else ""
            print(
                f"    {forecast['batches']:.0f} batches {since}took {forecast['measured']:.2f} s, "
                f"{forecast['predicted']:.2f} predicted; {forecast['point']:.0f} chosen before learning"
            )
        if "plans" in row:
            verdict = "met" if row["plans"] <= GOAL_PLAN else "MISSED"
            print(f"    plans took {row['plans']:.2%} of a core; goal at most {GOAL_PLAN:.0%}: {verdict}")
        for problem in (*row["failed"][:5], *row["violations"][:5]):
            print(f"    {problem}")


def plot(result: Result, path: Path) -> None:
    """Live beside virtual; FILE-reliability.svg, predicted chances beside what came; with kills also
    FILE-kill.svg, the finish rate around them."""
    rows = rows_of(result)
    labels = [f"{row['case']} {row['slo']:g}x {row['policy']}" for row in rows]
    groups = {side: [float(row[side]) for row in rows] for side in ("live", "virtual")}
    bars(labels, groups, "finish rate", path)
    predicted = {label: row["reliability"] for label, row in zip(labels, rows, strict=True)}
    predicted = {label: bands for label, bands in predicted.items() if bands}
    if predicted:
        reliability(predicted, path.with_stem(f"{path.stem}-reliability"))
    if any("kills" in row for row in rows):
        series = {
            label: [math.nan if share is None else share for _, share in row["around"]]
            for label, row in zip(labels, rows, strict=True)
        }
        seconds = [second for second, _ in rows[0]["around"]]
        lines(seconds, series, "s since the kill", "finish rate", path.with_stem(f"{path.stem}-kill"))


def _told(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"
