"""T7: what was aimed at, what was measured, met or missed, and the part of a batch's time that costs it.

A latency goal is met if the upper bound of the interval meets it. A void run is no result; what was not
measured says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.breakdown import PARTS
from benchmarks.paper.services import BARE, SERVICES
from benchmarks.paper.tables import interval

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by part."""

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

LOST = (("cells", 0.5), ("everything", 2.0))
"""Throughput lost under Sat, at most so many per cent, in every service."""

RECOVERED_MS = {"SA": 29.0, "SP": 35.0, "AP": 37.0, "FD": 35.0, "OLV": 63.0, "OLM": 33.0}
"""Median over the kills of a stateful primary: a quarter of the paper's."""

STATELESS_MS = 80.0
CORRELATED_MS = {("SP", "o3+o4"): 86.0, ("AP", "o2+o3"): 43.0, ("AP", "rollback"): 182.0}
ORDERED = ("SP", "AP", "FD", "OLV", "OLM")
MET, MISSED, VOID, UNMEASURED = "met", "missed", "void", "not measured"


@dataclass(frozen=True)
class Goal:
    """One line of T7."""

    what: str
    goal: str
    measured: str
    verdict: str
    costs: str = ""


def goals(rows: Rows) -> list[Goal]:
    """All of them, in the order of the evaluation's section 10."""
    return [*_order(rows), *_latency(rows), *_lost(rows), *_recovered(rows), *_correct(rows)]


def _latency(rows: Rows) -> Iterator[Goal]:
    for service, state, most in LATENCY:
        what = f"{service}: latency NonStop adds, one batch under way ({state})"
        row = _paired(rows, service, "NonStop", "L1", state, 1.0)
        if row is None:
            yield Goal(what, f"<= {most} %", "", UNMEASURED)
            continue
        percent = row["overhead_percent"]
        verdict = VOID if row["void"] else MET if percent["high"] <= most else MISSED
        costs = "" if verdict == MET else _costs(rows, service)
        yield Goal(what, f"<= {most} %", f"{interval(percent)} %, {row['added_ms']:.1f} ms", verdict, costs)


def _lost(rows: Rows) -> Iterator[Goal]:
    for state, most in LOST:
        for service in SERVICES:
            row = next(
                (
                    item
                    for item in rows.get("overhead", ())
                    if (item["service"], item["mode"], item["load"], item["state"])
                    == (service, "NonStop", "Sat", state)
                    and item["kind"] in ("all", "mean")
                ),
                None,
            )
            what = f"{service}: throughput NonStop loses, saturated ({state})"
            if row is None:
                yield Goal(what, f"<= {most} %", "", UNMEASURED)
                continue
            percent = row["lost_percent"]
            verdict = VOID if row["void"] else MET if percent["high"] <= most else MISSED
            part = "" if row["bytes"] == 1 else f", states 1/{round(1 / row['bytes'])}"
            yield Goal(what, f"<= {most} %", f"{interval(percent)} %{part}", verdict)


def _order(rows: Rows) -> Iterator[Goal]:
    """NonStop below the two ablations, and those below Remus, with intervals of the ends apart."""
    for service in ORDERED:
        what, goal = f"{service}: order of modes, two batches under way", "NonStop < S1, S2 <= Remus"
        mine = {
            mode: row
            for mode in ("NonStop", "BufferedOutputs", "StopAndCopy", "Remus")
            if (row := _paired(rows, service, mode, "L2", "everything", 1.0)) is not None
        }
        if not {"NonStop", "Remus"} <= set(mine):
            yield Goal(what, goal, "", UNMEASURED)
            continue
        said = ", ".join(f"{mode} {row['overhead_percent']['value']:.1f} %" for mode, row in mine.items())
        between = [row["overhead_percent"]["value"] for mode, row in mine.items() if mode not in ENDS]
        low, high = (mine[mode]["overhead_percent"] for mode in ENDS)
        apart = low["high"] < high["low"] and all(low["low"] <= it <= high["high"] for it in between)
        void = any(row["void"] for row in mine.values())
        missing = "" if len(mine) == 4 else " (S1 and S2 not measured)"
        yield Goal(what, goal, said + missing, VOID if void else MET if apart else MISSED)


ENDS = ("NonStop", "Remus")


def _recovered(rows: Rows) -> Iterator[Goal]:
    for service, most in RECOVERED_MS.items():
        times = [
            parts["recovered"]
            for row in rows.get("recovery", ())
            if (row["service"], row["mode"]) == (service, "NonStop") and "stateless" not in row["case"]
            for parts in row["samples_ms"]["steps"]
            if "recovered" in parts
        ]
        yield _time(f"{service}: a stateful primary killed, recovered (median)", most, times)
    stateless = [
        parts["recovered"]
        for row in rows.get("recovery", ())
        if row["mode"] == "NonStop" and "stateless" in row["case"]
        for parts in row["samples_ms"]["steps"]
        if "recovered" in parts
    ]
    yield _time("an operator without state killed, recovered (median)", STATELESS_MS, stateless)
    for (service, case), most in CORRELATED_MS.items():
        times = [
            parts["recovered"]
            for row in rows.get("correlated", ())
            if (row["service"], row["mode"], row["case"]) == (service, "NonStop", case)
            for parts in row["samples_ms"]["steps"]
            if "recovered" in parts
        ]
        yield _time(f"{service}: {case}, recovered (median)", most, times)


def _time(what: str, most: float, times: Sequence[float]) -> Goal:
    goal = f"<= {most:g} ms"
    if not times:
        return Goal(what, goal, "", UNMEASURED)
    ordered = sorted(times)
    median = ordered[len(ordered) // 2]
    said = f"{median:.0f} ms over {len(ordered)} kill{'s' if len(ordered) > 1 else ''}"
    return Goal(what, goal, said, MET if median <= most else MISSED)


def _correct(rows: Rows) -> Iterator[Goal]:
    judged = [row for part in ("recovery", "correlated", "divergence") for row in rows.get(part, ())]
    what = "failed, lost or doubled over all kills"
    if judged:
        wrong = sum(not row["ok"] or row["failed"] > 0 for row in judged)
        kills = sum(row["kills"] for row in judged)
        yield Goal(what, "0", f"{wrong} of {len(judged)} kinds of kill, {kills} kills", _zero(wrong))
    else:
        yield Goal(what, "0", "", UNMEASURED)
    seen = rows.get("divergence", ())
    what = "requests with two visible answers, a random learner killed"
    if seen:
        differing = sum(row["differing"] for row in seen)
        asked = sum(row["asked_again"] for row in seen)
        yield Goal(what, "0", f"{differing} of {asked}", _zero(differing))
    else:
        yield Goal(what, "0", "", UNMEASURED)


def _zero(number: int) -> str:
    return MISSED if number else MET


def _paired(rows: Rows, service: str, mode: str, load: str, state: str, part: float) -> Row | None:
    """The headline row of a pair: everything that the service does, at a full batch."""
    return next(
        (
            row
            for row in (*rows.get("overhead", ()), *rows.get("ablations", ()))
            if (row["service"], row["mode"], row["load"], row["state"], row["bytes"], row["batch"])
            == (service, mode, load, state, part, 64)
            and row["kind"] in ("all", "mean")
        ),
        None,
    )


def _costs(rows: Rows, service: str) -> str:
    """Which parts of a batch's time grew most from bare metal to NonStop."""
    parts = {row["mode"]: row["parts_ms"] for row in rows.get("breakdown", ()) if row["service"] == service}
    if not {BARE, "NonStop"} <= set(parts):
        return ""
    grown = {name: parts["NonStop"][name] - parts[BARE][name] for name in PARTS}
    largest = sorted(grown, key=lambda name: -grown[name])[:2]
    return ", ".join(f"{name} + {grown[name]:.1f} ms" for name in largest if grown[name] > 0)
