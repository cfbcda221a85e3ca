"""What a mode costs: it and bare metal run at once as two graphs, and are asked in turn, window by window.

Loads: L1, one batch under way; L2, two; Sat, as many as the longest path has operators, and one more. A row
for each service, mode, load and kind of request (a service that learns online trains and infers in turn).
"""

import itertools
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.chain import cpu_s
from benchmarks.paper.paired import (
    OTHERS_MAX,
    WANDER_MAX,
    Ratio,
    orders,
    rate,
    ratio_of_medians,
    ratio_of_rates,
    wander,
)
from benchmarks.paper.running import Failed, Running, Sample, cpu_of_family, running
from benchmarks.paper.services import BARE, Service, Settings
from benchmarks.report import ms

LOADS = ("L1", "L2", "Sat")
EASED = 1 / 8
"""Part of every state under saturated load, where there are fewer than `CORES_FULL` cores."""

CORES_FULL = 8
ROUND = 4


@dataclass(frozen=True)
class Plan:
    """How long is measured: pairs of windows, their length, and what is dropped at the begin of each."""

    pairs: int
    window_s: float
    drop_s: float
    seed: int

    def of(self, service: Service) -> "Plan":
        """SA's batches take 1.6 s: its windows are twice as long."""
        return replace(self, window_s=2 * self.window_s) if service.name == "SA" else self


Window = list[Sample]


async def measured(
    service: Service, mode: str, settings: Settings, loads: Iterable[str], plan: Plan
) -> list[dict[str, object]]:
    """The rows of one service and mode, over some loads."""
    plan = plan.of(service)
    rows: list[dict[str, object]] = []
    async with running(service, BARE, settings) as bare, running(service, mode, settings) as other:
        for graph in (bare, other):  # caches, connections and memory of the first batches
            await graph.window(service.under_way("Sat"), 1.0 if plan.window_s < 5 else 3.0, 0.0)
        for load in loads:
            rows += await _load(bare, other, load, plan)
    return rows


async def _load(bare: Running, other: Running, load: str, plan: Plan) -> list[dict[str, object]]:
    service, under_way = bare.service, bare.service.under_way(load)
    windows: dict[str, list[Window]] = {"bare": [], "mode": []}
    busy = {"bare": 0.0, "mode": 0.0}
    idle = {"bare": 0.0, "mode": 0.0}
    graphs = {"bare": bare, "mode": other}
    others_before, began = _others_s(), time.perf_counter()
    for first in orders(plan.pairs, plan.seed):
        for side in ("bare", "mode") if first else ("mode", "bare"):
            rest = "mode" if side == "bare" else "bare"
            before = {name: graph.cpu_s() for name, graph in graphs.items()}
            windows[side].append(await graphs[side].window(under_way, plan.window_s, plan.drop_s))
            busy[side] += graphs[side].cpu_s() - before[side]
            idle[rest] += graphs[rest].cpu_s() - before[rest]
    spent = plan.pairs * plan.window_s
    cpu: dict[str, object] = {
        **{f"{side}_busy_cores": round(busy[side] / spent, ROUND) for side in busy},
        **{f"{side}_idle_cores": round(idle[side] / spent, ROUND) for side in idle},
    }
    others = (_others_s() - others_before) / (time.perf_counter() - began)
    cpu["others_cores"] = round(others, ROUND)
    failed_over = [graph.name for graph in graphs.values() if await graph.failed_over()]
    kinds = ("train", "infer") if service.trains else ("all",)
    return [
        {
            "service": service.name,
            "mode": other.mode,
            "load": load,
            "kind": kind,
            **other.settings.said(service.name),
            "pairs": plan.pairs,
            "window_s": plan.window_s,
            **cpu,
            **(measures := compared(windows["bare"], windows["mode"], kind, plan.seed)),
            "failed_over": failed_over,
            "void": bool(measures["disturbed"] or failed_over or others > OTHERS_MAX),
        }
        for kind in (*kinds, *(("mean",) if service.trains else ()))
    ]


def _others_s() -> float:
    """CPU seconds of the machine that were neither this process's, which is the client, nor those of what it
    has started: two graphs, their etcd and managers."""
    return cpu_s() - cpu_of_family(os.getpid())


def compared(bare: Sequence[Window], mode: Sequence[Window], kind: str, seed: int) -> dict[str, object]:
    """What the windows of one kind of batch say. `mean`: of train and infer, which are asked in turn.

    Raises Failed if a window holds no batch: it is too short.
    """
    ours, theirs = (
        [_latencies(window, kind) for window in mode],
        [_latencies(window, kind) for window in bare],
    )
    rates = [rate([item.ended for item in window]) for window in mode]
    bare_rates = [rate([item.ended for item in window]) for window in bare]
    if not all(map(len, (*ours, *theirs))) or not np.isfinite([*rates, *bare_rates]).all():
        raise Failed("a window held fewer than two batches: --window-s makes it longer")
    latency = ratio_of_medians(theirs, ours, seed)
    throughput = ratio_of_rates(bare_rates, rates, seed)
    wandered = wander(theirs)
    base, own = (float(np.median(np.concatenate(side))) for side in (theirs, ours))
    return {
        "bare_ms": ms(base, 3),
        "mode_ms": ms(own, 3),
        "added_ms": ms(own - base, 3),
        "overhead_percent": _percent(latency),
        "bare_per_s": round(float(np.mean(bare_rates)), ROUND),
        "mode_per_s": round(float(np.mean(rates)), ROUND),
        "lost_percent": _percent(Ratio(2 - throughput.value, 2 - throughput.high, 2 - throughput.low)),
        "windows": 2 * len(ours),
        "wander_percent": round(100 * wandered, 2),
        "disturbed": wandered > WANDER_MAX,
        "samples_ms": {
            "bare": [[ms(value, 3) for value in window] for window in theirs],
            "mode": [[ms(value, 3) for value in window] for window in ours],
        },
    }


def _latencies(window: Window, kind: str) -> list[float]:
    """Of the batches of a kind. Mean: of one that trains and the next one that infers."""
    if kind != "mean":
        return [item.ended - item.began for item in window if item.kind == kind]
    train, infer = _latencies(window, "train"), _latencies(window, "infer")
    return [(one + other) / 2 for one, other in zip(train, infer, strict=False)]


def _percent(ratio: Ratio) -> dict[str, float]:
    """What a ratio is above 1, and its interval."""
    return {
        "value": round(100 * (ratio.value - 1), 3),
        "low": round(100 * (ratio.low - 1), 3),
        "high": round(100 * (ratio.high - 1), 3),
    }


async def overhead(
    services: Sequence[Service],
    modes: Sequence[str],
    settings: Settings,
    plan: Plan,
    loads: Sequence[str],
    *,
    eased: bool,
) -> list[dict[str, object]]:
    """The loads with the states as they are; if `eased`, Sat with smaller ones."""
    rows: list[dict[str, object]] = []
    whole = [load for load in loads if not (eased and load == "Sat")]
    for service in services:
        for mode in modes:
            if whole:
                rows += await measured(service, mode, settings, whole, plan)
            if len(whole) < len(loads):
                rows += await measured(service, mode, replace(settings, bytes=EASED), ("Sat",), plan)
    return rows


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of a batch, over which the overhead is measured."""

BYTES = (1 / 64, 1 / 16, 1 / 4, 1.0)
SCALED = ("FD", "OLV")
"""Parts of every state, and the services in which the overhead is measured over them: where it begins."""


async def swept(
    services: Sequence[Service], modes: Sequence[str], sizes: Iterable[Settings], load: str, plan: Plan
) -> list[dict[str, object]]:
    """Overhead over several settings, under one load."""
    every = itertools.product(services, modes, list(sizes))
    return [row for service, mode, one in every for row in await measured(service, mode, one, (load,), plan)]
