"""T7: what was aimed at, what was measured, met or missed, and the part of a batch's time that costs it.

A goal in per cent is met if the upper bound of the interval meets it and the run is a whole one. A shorter
run meets none; it misses one only if the lower bound does. Likewise of times after kills. A void run is no
result; what was not measured says so. All rows are of one machine: others do not compare.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.breakdown import PARTS
from benchmarks.paper.divergence import KILLS as DIVERGENCE_KILLS
from benchmarks.paper.overhead import EASED
from benchmarks.paper.paired import WINDOW_MIN_S, WINDOWS_MIN
from benchmarks.paper.recovery import UNSTORED_BATCHES
from benchmarks.paper.services import (
    BARE,
    CHECKPOINT_BATCHES,
    FULL_BATCH,
    MODES,
    PAPER_TIMES,
    SERVICES,
    replays,
)
from benchmarks.paper.tables import interval

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by part."""

HEADLINE: Mapping[str, object] = {
    "models": "emulated",
    "pace": "paper",
    "times": PAPER_TIMES,
    "state": "everything",
    "states": "chunks",
    "bytes": 1.0,
    "batch": FULL_BATCH,
    "rows_per_request": FULL_BATCH,
    "checkpoint_batches": CHECKPOINT_BATCHES,
}
"""Settings of the rows that goals are about, unless a goal says otherwise."""

LATENCY = (
    ("SA", "cells", 0.5),
    ("SA", "everything", 2.2),
    ("SP", "everything", 1.0),
    ("AP", "cells", 0.5),
    ("FD", "cells", 0.5),
    ("FD", "everything", 2.2),
    ("OLV", "everything", 0.5),
    ("OLM", "everything", 5.0),
)
"""Overhead of NonStop under L1 at a full batch, at most so many per cent."""

LATENCY_REAL = (("SA", 0.5), ("SP", 0.5), ("AP", 0.5), ("FD", 0.5), ("OLV", 0.5), ("OLM", 2.0))
"""The same with real networks, which only a GPU runs in time."""

LOST = (("cells", 0.5), ("everything", 2.0))
"""Throughput lost under Sat, at most so many per cent, in every service."""

CORE_MS = 2.1
"""Time of all proxies in the protocol core per batch: the paper's, for lineage."""

RECOVERED_MS = {"SA": 29.0, "SP": 35.0, "AP": 37.0, "FD": 35.0, "OLV": 63.0, "OLM": 33.0}
"""Median over the kills of a stateful primary: a quarter of the paper's."""

STATELESS_MS = 80.0
CORRELATED_MS = {("SP", "o3+o4"): 86.0, ("AP", "o2+o3"): 43.0, ("AP", "rollback"): 182.0}
KILLS_MIN = 10
"""Of each kind; of an operator without state one, as in the paper."""

TWO_OPERATORS = "hams bench overhead"
"""The name of another benchmark's rows among the parts."""

SPARSE_LOST, SPARSE_MS = 2.0, 3.0
"""What it may cost to replicate 50 MB of which 4 KiB change: per cent of the throughput, and latency."""

DENSE_PERCENT = 3.0
"""What chunks may cost more than whole states where everything changes: of the throughput, and of the median
latency with whole states."""

ORDERED = ("SP", "AP", "FD", "OLV", "OLM")
ENDS = ("NonStop", "Remus")
MODES_IN_ORDER = ("NonStop", "BufferedOutputs", "StopAndCopy", "Remus")
MET, MISSED, VOID, UNMEASURED, TOO_SHORT = "met", "missed", "void", "not measured", "too short"


@dataclass(frozen=True)
class Goal:
    """One line of T7."""

    what: str
    goal: str
    measured: str
    verdict: str
    costs: str = ""


def goals(rows: Rows) -> list[Goal]:
    """All of them, in the order of the page."""
    return [
        *_order(rows),
        *_latency(rows),
        *_lost(rows),
        *_core(rows),
        *_of_two_operators(rows),
        *_recovered(rows, "emulated"),
        *_recovered(rows, "real"),
        *_run_again(rows),
        *_correct(rows),
        *_divergence(rows),
    ]


# -- which rows, and whether they suffice


def chosen(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows that compare: those with the headline's settings, and what else is `wanted`. Settings that a
    row does not have, as rows of other parts, are not asked for."""
    asked = {**HEADLINE, **wanted}
    return [row for row in rows if all(row.get(name, value) == value for name, value in asked.items())]


def is_whole(row: Row) -> bool:
    """Whether a pair was measured for as long as the evaluation says."""
    return bool(row["windows"] >= WINDOWS_MIN and row.get("window_s", 0) >= WINDOW_MIN_S)


def judged(row: Row, percent: Mapping[str, float], most: float) -> str:
    """The verdict over a pair, of which `percent` should be `most`."""
    if row["void"]:
        return VOID
    if is_whole(row):
        return MET if percent["high"] <= most else MISSED
    return MISSED if percent["low"] > most else TOO_SHORT


def _paired(rows: Iterable[Row], **wanted: object) -> Row | None:
    """The headline row of a pair: everything that the service does."""
    return next((row for row in chosen(rows, **wanted) if row["kind"] in ("all", "mean")), None)


# -- pairs


def _latency(rows: Rows) -> Iterator[Goal]:
    emulated = [(service, state, most, "emulated") for service, state, most in LATENCY]
    real = [(service, "everything", most, "real") for service, most in LATENCY_REAL]
    for service, state, most, models in (*emulated, *real):
        networks = "" if models == "emulated" else ", real networks"
        what = f"{service}: latency NonStop adds, one batch under way ({state}{networks})"
        row = _paired(
            rows.get("overhead", ()), service=service, mode="NonStop", load="L1", state=state, models=models
        )
        if row is None:
            yield Goal(what, f"<= {most} %", "", UNMEASURED)
            continue
        percent = row["overhead_percent"]
        verdict = judged(row, percent, most)
        costs = "" if verdict == MET else _costs(rows, service, state, models)
        yield Goal(what, f"<= {most} %", f"{interval(percent)} %, {row['added_ms']:.1f} ms", verdict, costs)


def _lost(rows: Rows) -> Iterator[Goal]:
    for state, most in LOST:
        for service in SERVICES:
            what = f"{service}: throughput NonStop loses, saturated ({state})"
            mine = [row for row in rows.get("overhead", ()) if row["service"] == service]
            each = (
                _paired(mine, mode="NonStop", load="Sat", state=state, bytes=part) for part in (1.0, EASED)
            )
            row = next((item for item in each if item is not None), None)
            if row is None:
                yield Goal(what, f"<= {most} %", "", UNMEASURED)
                continue
            percent = row["lost_percent"]
            part = "" if row["bytes"] == 1 else f", states 1/{round(1 / row['bytes'])}"
            yield Goal(what, f"<= {most} %", f"{interval(percent)} %{part}", judged(row, percent, most))


def _core(rows: Rows) -> Iterator[Goal]:
    """One number of a run without windows, training and inferring together."""
    for service in SERVICES:
        what = f"{service}: time of all proxies in the core per batch, NonStop"
        row = next(iter(chosen(rows.get("breakdown", ()), service=service, mode="NonStop")), None)
        if row is None:
            yield Goal(what, f"<= {CORE_MS} ms", "", UNMEASURED)
            continue
        took = row["core_ms_per_batch"]
        yield Goal(what, f"<= {CORE_MS} ms", f"{took:.1f} ms", MET if took <= CORE_MS else MISSED)


def _of_two_operators(rows: Rows) -> Iterator[Goal]:
    """The rows of `hams bench overhead` with its largest state: what changes a little, and what changes
    everywhere, which chunks must not make worse than whole states."""
    mine = [row for row in rows.get(TWO_OPERATORS, ()) if row["mode"] == "NonStop" and row["state_mb"] == 50]
    by = {(row["changed"], row["delta"]): row for row in mine}
    what = "hams bench overhead, 50 MB of which"
    sparse, dense, whole = by.get(("4 KiB", "Auto")), by.get(("all", "Auto")), by.get(("all", "Off"))
    for name, field, most in (
        ("throughput lost", "throughput_loss_percent", SPARSE_LOST),
        ("latency added", "latency_added_ms", SPARSE_MS),
    ):
        yield _cell(f"{what} 4 KiB change: {name}", sparse, field, most)
        yield _cell(
            f"{what} all change: {name}", dense, field, None if whole is None else _dense(whole, field)
        )


def _dense(whole: Row, field: str) -> float:
    """The most that is allowed where everything changes, by the row with whole states."""
    more = DENSE_PERCENT if field.endswith("percent") else whole["p50_ms"] * DENSE_PERCENT / 100
    return round(float(whole[field] + more), 2)


def _cell(what: str, row: Row | None, field: str, most: float | None) -> Goal:
    """One number without an interval; `most` is None where what it is compared with was not measured."""
    unit = "%" if field.endswith("percent") else "ms"
    goal = f"<= whole states + {DENSE_PERCENT:g} %" if most is None else f"<= {most:g} {unit}"
    if row is None or most is None:
        return Goal(what, goal, "", UNMEASURED)
    verdict = MET if row[field] <= most else MISSED
    short = row.get("seconds", 0.0) < WINDOW_MIN_S
    return Goal(what, goal, f"{row[field]:.1f} {unit}", TOO_SHORT if short else verdict)


def _order(rows: Rows) -> Iterator[Goal]:
    """Bare metal at most as slow as NonStop; the two ablations between the lower bound of NonStop and the
    upper one of Remus, as all four are alike where nothing can be hidden; these two apart, by intervals."""
    both = (*rows.get("ablations", ()), *rows.get("overhead", ()))
    for service in ORDERED:
        what = f"{service}: order of modes, two batches under way (whole states)"
        goal = (
            "bare metal <= NonStop; both ablations between it and Remus, by intervals; NonStop < Remus, apart"
        )
        mine = {
            mode: row
            for mode in MODES_IN_ORDER
            if (row := _paired(both, service=service, mode=mode, load="L2", states="whole")) is not None
        }
        said = ", ".join(f"{mode} {row['overhead_percent']['value']:.1f} %" for mode, row in mine.items())
        yield Goal(what, goal, said, _ordered(mine))


def _ordered(mine: Mapping[str, Row]) -> str:
    if len(mine) < len(MODES_IN_ORDER):
        return UNMEASURED
    if any(row["void"] for row in mine.values()):
        return VOID
    between = [row["overhead_percent"]["value"] for mode, row in mine.items() if mode not in ENDS]
    low, high = (mine[mode]["overhead_percent"] for mode in ENDS)
    apart = low["high"] < high["low"] and all(low["low"] <= it <= high["high"] for it in between)
    apart = apart and low["high"] >= 0  # below it bare metal would be slower, which is no order of ours
    if all(map(is_whole, mine.values())):
        return MET if apart else MISSED
    return MISSED if low["low"] > high["high"] else TOO_SHORT


def _costs(rows: Rows, service: str, state: str, models: str) -> str:
    """Which parts of a batch's time grew most from bare metal to NonStop; of a learner's one that trains."""
    mine = chosen(rows.get("breakdown", ()), service=service, state=state, models=models)
    parts = {row["mode"]: row["parts_ms"] for row in mine if row.get("kind") != "infer"}
    if not {BARE, "NonStop"} <= set(parts):
        return ""
    nonstop, bare = parts["NonStop"], parts[BARE]
    grown = {name: nonstop[name] - bare[name] for name in PARTS if name in nonstop and name in bare}
    largest = sorted(grown, key=lambda name: -grown[name])[:2]
    return ", ".join(f"{name} + {grown[name]:.1f} ms" for name in largest if grown[name] > 0)


# -- kills


def _recovered(rows: Rows, models: str) -> Iterator[Goal]:
    """Of real networks the same times are asked; several at once are killed in emulated ones only."""
    nonstop = chosen(rows.get("recovery", ()), mode="NonStop", models=models)
    how = "median" if models == "emulated" else "median, real networks"
    for service, most in RECOVERED_MS.items():
        mine = [row for row in nonstop if row["service"] == service and not _is_stateless(row)]
        yield _time(f"{service}: a stateful primary killed, recovered ({how})", most, mine)
    what = f"an operator without state killed, recovered ({how})"
    yield _time(what, STATELESS_MS, [row for row in nonstop if _is_stateless(row)])
    if models == "real":
        return
    for (service, case), most in CORRELATED_MS.items():
        mine = chosen(rows.get("correlated", ()), mode="NonStop", service=service, case=case)
        yield _time(f"{service}: {case}, recovered (median)", most, mine)


def _is_stateless(row: Row) -> bool:
    return "stateless" in row["case"]


def times_of(mine: Iterable[Row]) -> list[float]:
    """After each kill that was recovered from, ms."""
    steps = [parts for row in mine for parts in row["samples_ms"]["steps"]]
    return sorted(parts["recovered"] for parts in steps if "recovered" in parts)


def _time(what: str, most: float, mine: Sequence[Row]) -> Goal:
    goal, times = f"<= {most:g} ms", times_of(mine)
    if not times:
        return Goal(what, goal, "", UNMEASURED)
    median = statistics.median(times)
    said = f"{median:.0f} ms over {_kills(times)}"
    if all(map(_killed_enough, mine)):
        return Goal(what, goal, said, MET if median <= most else MISSED)
    return Goal(what, goal, said, MISSED if times[0] > most else TOO_SHORT)


def _kills(times: Sequence[float]) -> str:
    return f"{len(times)} kill{'s' if len(times) > 1 else ''}"


def _killed_enough(row: Row) -> bool:
    least = 1 if _is_stateless(row) else DIVERGENCE_KILLS if row["case"] == "divergence" else KILLS_MIN
    return bool(row["kills"] >= least)


def _run_again(rows: Rows) -> Iterator[Goal]:
    """LineageStash recovers, in no less than the batches that it runs again took; and how much longer that is
    than NonStop's time."""
    recovery = rows.get("recovery", ())
    goal = f"recovers, nothing lost; no less than {UNSTORED_BATCHES} batches took"
    for service in SERVICES:
        what = f"{service}: LineageStash, a state run again (median)"
        mine = [
            row
            for row in chosen(recovery, service=service, mode="LineageStash")
            if not _is_stateless(row) and row["recovered_ms"] is not None
        ]
        times = times_of(mine)
        if not times:
            yield Goal(what, goal, "", UNMEASURED)
            continue
        median = statistics.median(times)
        beside = [row for row in chosen(recovery, service=service, mode="NonStop") if not _is_stateless(row)]
        other = times_of(beside)
        ratio = f", {median / statistics.median(other):.1f} x NonStop" if other else ""
        yield Goal(what, goal, f"{median:.0f} ms over {_kills(times)}{ratio}", _ran_again(mine))


def _ran_again(mine: Sequence[Row]) -> str:
    if any(not row["ok"] or row["failed"] for row in mine):
        return MISSED
    far = [row for row in mine if row.get("unstored_batches", 0) >= UNSTORED_BATCHES]
    batch_ms = [row["unstored_ms"] / row["unstored_batches"] for row in far]
    if any(row["recovered_ms"] < UNSTORED_BATCHES * took for row, took in zip(far, batch_ms, strict=True)):
        return MISSED
    return MET if len(far) == len(mine) and all(map(_killed_enough, mine)) else TOO_SHORT


def _correct(rows: Rows) -> Iterator[Goal]:
    """Where a lost state is run again, other goals say what is promised."""
    parts = ("recovery", "correlated", "divergence")
    mine = [row for part in parts for row in rows.get(part, ()) if not replays(row["mode"])]
    what = "failed, lost or doubled over all kills"
    if not mine:
        yield Goal(what, "0", "", UNMEASURED)
        return
    wrong = sum(not row["ok"] or row["failed"] > 0 for row in mine)
    kills, modes = sum(row["kills"] for row in mine), {row["mode"] for row in mine}
    said = (
        f"{wrong} of {len(mine)} kinds of kill, {kills} kills in {', '.join(sorted(modes, key=MODES.index))}"
    )
    verdict = _none(wrong, mine)
    if verdict == MET and modes < set(MODES_IN_ORDER):  # of a mode that nobody killed nothing is known
        verdict = TOO_SHORT
    yield Goal(what, "0", said, verdict)


def _divergence(rows: Rows) -> Iterator[Goal]:
    """Two visible values of one unit: none where states are replicated, some where they are run again."""
    seen = [row for row in rows.get("divergence", ()) if "two_values" in row]
    mine = [row for row in seen if not replays(row["mode"])]
    what = "units with two visible values, a random learner killed"
    two = sum(row["two_values"] + row["differing"] for row in mine)
    said = f"{two} of {sum(row['requests'] for row in mine)} requests"
    yield Goal(what, "0", said if mine else "", _none(two, mine) if mine else UNMEASURED)
    again = sorted((row for row in seen if replays(row["mode"])), key=lambda row: row["checkpoint_batches"])
    said = ", ".join(
        f"{row['two_values']} of {row['requests']} (stored every {row['checkpoint_batches']})"
        for row in again
    )
    guilty = any(row["two_values"] for row in again)
    verdict = MET if guilty else MISSED if again and all(map(_killed_enough, again)) else TOO_SHORT
    yield Goal(f"{what}, LineageStash", "> 0: it is found guilty", said, verdict if again else UNMEASURED)


def _none(number: int, mine: Sequence[Row]) -> str:
    """The verdict over what must not happen: once is enough to miss it, and few kills prove nothing."""
    return MISSED if number else MET if all(map(_killed_enough, mine)) else TOO_SHORT
