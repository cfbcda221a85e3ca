"""The tables of the HAMS paper: six services, bare metal and the modes, overhead and recovery.

`hams bench paper [--part NAME] [--services SP,OLM] [--modes NonStop,Remus] [--short] [--out FILE.json]`: each
part adds its rows to the folder beside the file, and writes the page `index.html` there anew.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import uvloop

from benchmarks.chain import machine
from benchmarks.paper import breakdown, divergence, overhead, recovery
from benchmarks.paper.files import deliver_parts
from benchmarks.paper.peers import measure
from benchmarks.paper.running import Failed
from benchmarks.paper.services import (
    FULL_BATCH,
    MODES,
    SERVICES,
    Service,
    Settings,
    read_times,
    too_little_memory,
)
from benchmarks.report import Result, add_options, rows_of
from hams_operator.local.capacity import cores
from hams_operator.local.supervisor import CannotStart

SHORT = ("SP", "OLM")
SHORT_PARTS = ("overhead", "recovery")
Rows = list[dict[str, object]]


@dataclass(frozen=True)
class Run:
    """What one call measures."""

    services: Sequence[Service]
    modes: Sequence[str]
    settings: Settings
    plan: overhead.Plan
    short: bool
    bytes_given: bool
    services_given: bool
    loads: Sequence[str]
    kills: int


def _overhead(run: Run) -> Coroutine[None, None, Rows]:
    eased = not run.bytes_given and cores() < overhead.CORES_FULL
    return overhead.overhead(run.services, run.modes, run.settings, run.plan, run.loads, eased=eased)


def _batches(run: Run) -> Coroutine[None, None, Rows]:
    sizes = (1, FULL_BATCH) if run.short else overhead.BATCHES
    settings = [replace(run.settings, batch=size) for size in sizes]
    return overhead.swept(run.services, run.modes, settings, "L1", run.plan)


def _ablations(run: Run) -> Coroutine[None, None, Rows]:
    # Where one batch is under way, a model is idle while it is copied.
    return overhead.swept(run.services, run.modes, [run.settings], "L2", run.plan)


def _scale(run: Run) -> Coroutine[None, None, Rows]:
    chosen = run.services if run.services_given else [SERVICES[name] for name in overhead.SCALED]
    settings = [replace(run.settings, bytes=part) for part in overhead.BYTES]
    return overhead.swept(chosen, run.modes, settings, "L1", run.plan)


def _recovery(run: Run) -> Coroutine[None, None, Rows]:
    processes = ("both",) if run.short else recovery.PROCESSES
    return recovery.recovery(run.services, run.modes, run.settings, run.kills, processes)


def _correlated(run: Run) -> Coroutine[None, None, Rows]:
    return recovery.correlated(run.services, run.modes, run.settings, run.kills)


def _divergence(run: Run) -> Coroutine[None, None, Rows]:
    return divergence.divergence(run.modes, run.settings, run.kills)


def _breakdown(run: Run) -> Coroutine[None, None, Rows]:
    return breakdown.breakdown(run.services, run.modes, run.settings, run.plan.window_s)


def _peers(run: Run) -> Coroutine[None, None, Rows]:
    return measure.peers(run.services, run.settings, run.plan)


PARTS: dict[str, Callable[[Run], Coroutine[None, None, Rows]]] = {
    "overhead": _overhead,
    "batches": _batches,
    "ablations": _ablations,
    "breakdown": _breakdown,
    "recovery": _recovery,
    "correlated": _correlated,
    "divergence": _divergence,
    "scale": _scale,
    "peers": _peers,
}
ALL = "all"
PEERS = "peers"
"""Part of all where Ray Serve is installed."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; 1 if anything failed, was lost or was doubled."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        run = _run(options)
    except ValueError as error:
        parser.error(str(error))
    results: dict[str, Result] = {}
    for part in _parts(options):
        try:
            rows = uvloop.run(_measured(PARTS[part], run))
        except (CannotStart, Failed, TimeoutError) as error:
            print(f"part {part}: {error or 'a graph was not ready in time'}", file=sys.stderr)
            return 1
        results[part] = {
            "bench": f"paper/{part}",
            "machine": machine(),
            "seed": run.plan.seed,
            "command": " ".join(["hams bench paper", *(arguments or [])]),
            "rows": rows,
        }
    deliver_parts(results, options)
    rows = [row for result in results.values() for row in rows_of(result)]
    return int(any(row.get("ok") is False or (row.get("failed") and "kills" in row) for row in rows))


def _parts(options: argparse.Namespace) -> list[str]:
    """What was asked for; all in their order, Ray Serve only where it is installed."""
    if options.part is None:
        return list(SHORT_PARTS) if options.short else ["overhead"]
    if options.part != ALL:
        return [options.part]
    return [part for part in PARTS if part != PEERS or measure.missing() is None]


async def _measured(part: Callable[[Run], Coroutine[None, None, Rows]], run: Run) -> Rows:
    return await part(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hams bench paper", "hams bench paper [OPTIONS]", __doc__)
    add_options(parser)
    parser.add_argument("--part", type=_one_of("part", [*PARTS, ALL]), default=None)
    parser.add_argument("--services", type=_several("service", list(SERVICES)), default=None)
    parser.add_argument("--modes", type=_several("mode", list(MODES)), default=None)
    parser.add_argument(
        "--loads", type=_several("load", overhead.LOADS), default=overhead.LOADS, help="of part overhead"
    )
    parser.add_argument("--models", choices=("emulated", "real"), default="emulated")
    parser.add_argument("--pace", choices=("paper", "none"), default="paper")
    parser.add_argument("--state", choices=("everything", "cells"), default="everything")
    parser.add_argument(
        "--bytes", type=_part_of_one, default=None, metavar="1/8", help="a part of every state"
    )
    parser.add_argument("--batch", type=_rows, default=FULL_BATCH, help="rows of a batch")
    parser.add_argument("--rows-per-request", type=int, choices=(1, 64), default=64)
    parser.add_argument("--times", default=None, metavar="FILE", help="device times, or `light`")
    parser.add_argument("--short", action="store_true", help="SP and OLM, a few windows: does it run?")
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of windows")
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def _run(options: argparse.Namespace) -> Run:
    """Raises ValueError with what cannot be measured."""
    times = {} if options.times is None else read_times(options.times)
    settings = Settings(
        models=options.models,
        pace=options.pace,
        state=options.state,
        bytes=1.0 if options.bytes is None else options.bytes,
        batch=options.batch,
        single_rows=options.rows_per_request == 1,
        times=times,
    )
    if options.part == "peers" and (said := measure.missing()) is not None:
        raise ValueError(said)
    names = options.services or (SHORT if options.short else tuple(SERVICES))
    services = [SERVICES[name] for name in names]
    modes = options.modes or ("NonStop", "Remus")
    for mode in modes:
        if (said := too_little_memory(services, mode, settings)) is not None:
            raise ValueError(said)
    plan = (
        overhead.Plan(2, 3.0, 0.5, options.seed)
        if options.short
        else overhead.Plan(options.pairs, options.window_s, min(1.0, options.window_s / 4), options.seed)
    )
    return Run(
        services,
        modes,
        settings,
        plan,
        options.short,
        options.bytes is not None,
        options.services is not None,
        ("L1",) if options.short else options.loads,
        1 if options.short else options.kills,
    )


def _one_of(what: str, known: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(_unknown(what, text, known))
        return text

    return read


def _several(what: str, known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(_unknown(what, name, known))
        return tuple(text.split(","))

    return read


def _unknown(what: str, text: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, list(known), 1, 0.5) or [
        name for name in known if name.lower() == text.lower()
    ]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"no {what} {text!r}{hint} Known are {', '.join(known)}"


def _part_of_one(text: str) -> float:
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"expected a part such as 1/8, above 0 and at most 1, found {text!r}"
        )
    return value


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"expected rows from 1 to 1024, found {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
