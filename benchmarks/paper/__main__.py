"""The tables of the HAMS paper: six services, bare metal and the modes, overhead and recovery.

`hams bench paper [--part NAME] [--services SP,OLM] [--modes NonStop,Remus] [--short] [--out FILE.json]`: each
part adds its rows to the folder beside the file, and writes the page `index.html` there anew.
"""

import argparse
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace

import uvloop

from benchmarks.chain import machine
from benchmarks.paper import breakdown, divergence, estimate, overhead, recovery
from benchmarks.paper.files import as_json, check_folder, deliver_part
from benchmarks.paper.goals import ENDS, MODES_IN_ORDER
from benchmarks.paper.peers import measure
from benchmarks.paper.running import Failed, has_gpu
from benchmarks.paper.services import (
    BARE,
    FULL_BATCH,
    MODES,
    SERVICES,
    Service,
    Settings,
    read_times,
    too_little_memory,
)
from benchmarks.paper.tables import PARTS_MAX
from benchmarks.report import (
    Result,
    add_options,
    counted,
    in_short,
    one_of,
    rows_of,
    seconds,
    seed,
    several,
    whole,
)
from hams_operator.local.capacity import cores
from hams_operator.local.supervisor import CannotStart

SHORT = ("SP", "OLM")
SHORT_PARTS = ("overhead", "recovery")
Rows = list[dict[str, object]]


MODES_OF = {
    "ablations": MODES_IN_ORDER,
    "recovery": MODES,
    "divergence": MODES,
}
"""Modes of a part, where none are named; of all others the two ends."""

rows_max = 1024
"""Of a batch."""

KILLS = 10
PAIRS = 6
WINDOW_S = 10.0
SEED = 1


@dataclass(frozen=True)
class Run:
    """What one call measures. `modes`, `states`, `kills`: None where a part decides."""

    services: Sequence[Service]
    modes: Sequence[str] | None
    settings: Settings
    plan: overhead.Plan
    short: bool
    bytes_given: bool
    services_given: bool
    loads: Sequence[str]
    kills: int | None
    states: str | None

    def modes_of(self, part: str) -> Sequence[str]:
        """The modes of a part; the short form has no time for more than two."""
        return self.modes or (ENDS if self.short else MODES_OF.get(part, ENDS))

    def settings_of(self, part: str) -> Settings:
        """The settings of a part. The order of modes is judged with whole states, as the paper has them."""
        whole = self.states == "whole" if self.states is not None else part == "ablations"
        return replace(self.settings, whole=whole)

    def kills_of(self, part: str) -> int:
        """Kills of each kind."""
        if self.kills is not None:
            return self.kills
        return divergence.KILLS if part == "divergence" else KILLS

    @property
    def processes(self) -> Sequence[str]:
        """What is killed of a primary."""
        return ("both",) if self.short else recovery.PROCESSES

    @property
    def eased(self) -> bool:
        """Whether saturated load gets smaller states; those of real networks have one size."""
        small = cores() < overhead.CORES_FULL
        return small and not self.bytes_given and self.settings.models != REAL

    def services_of(self, part: str) -> Sequence[Service]:
        """Those that a part measures, of those asked for."""
        match part:
            case "divergence":
                return [divergence.SERVICE]
            case "scale" if not self.services_given:
                return [SERVICES[name] for name in overhead.SCALED]
            case "correlated":
                return [item for item in self.services if item.name in recovery.CORRELATED]
            case "peers":
                return [item for item in self.services if item.name in measure.SERVED]
            case _:
                return self.services

    def largest_of(self, part: str) -> Settings:
        """The settings of a part with its largest batch, as cells of a state grow with their rows, and its
        largest states."""
        settings = self.settings_of(part)
        if part in SIZED:
            return replace(settings, bytes=max(overhead.BYTES))
        if part == "batches":
            return replace(settings, batch=max(self.batches))
        if part == "overhead" and self.eased and set(self.loads) == {"Sat"}:
            return replace(settings, bytes=overhead.EASED)
        return settings

    @property
    def batches(self) -> Sequence[int]:
        """Rows of a batch, where they are varied."""
        return (1, FULL_BATCH) if self.short else overhead.BATCHES


Measured = Coroutine[None, None, Rows]


def _overhead(run: Run) -> Measured:
    modes, settings = run.modes_of("overhead"), run.settings_of("overhead")
    return overhead.overhead(run.services, modes, settings, run.plan, run.loads, eased=run.eased)


def _batches(run: Run) -> Measured:
    settings = [replace(run.settings_of("batches"), batch=size) for size in run.batches]
    return overhead.swept(run.services, run.modes_of("batches"), settings, "L1", run.plan)


def _ablations(run: Run) -> Measured:
    # Where one batch is under way, a model is idle while it is copied.
    modes, settings = run.modes_of("ablations"), run.settings_of("ablations")
    return overhead.swept(run.services, modes, [settings], "L2", run.plan)


def _scale(run: Run) -> Measured:
    settings = [replace(run.settings_of("scale"), bytes=part) for part in overhead.BYTES]
    return overhead.swept(run.services_of("scale"), run.modes_of("scale"), settings, "L1", run.plan)


def _recovery(run: Run) -> Measured:
    modes, settings = run.modes_of("recovery"), run.settings_of("recovery")
    return recovery.recovery(run.services, modes, settings, run.kills_of("recovery"), run.processes)


def _correlated(run: Run) -> Measured:
    modes, settings = run.modes_of("correlated"), run.settings_of("correlated")
    return recovery.correlated(run.services_of("correlated"), modes, settings, run.kills_of("correlated"))


def _divergence(run: Run) -> Measured:
    modes, settings = run.modes_of("divergence"), run.settings_of("divergence")
    return divergence.divergence(modes, settings, run.kills_of("divergence"))


def _breakdown(run: Run) -> Measured:
    modes, settings = run.modes_of("breakdown"), run.settings_of("breakdown")
    return breakdown.breakdown(run.services, modes, settings, run.plan.window_s)


def _peers(run: Run) -> Measured:
    return measure.peers(run.services_of("peers"), run.settings_of("peers"), run.plan)


PARTS: dict[str, Callable[[Run], Measured]] = {
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
REAL = "real"
EMULATED_ONLY = {"scale": "it varies the size of states", "divergence": "it adds noise to a model's sums"}
"""Parts that real networks cannot run."""
SIZED = ("scale",)
"""Parts that decide themselves how large states are."""

PEERS = "peers"
"""Part of all where Ray Serve is installed."""

WINDOWS = ("overhead", "batches", "ablations", "scale", "peers")
USED_BY = {
    "services": [part for part in PARTS if part != "divergence"],
    "modes": [part for part in PARTS if part != "peers"],
    "loads": ["overhead"],
    "batch": [part for part in PARTS if part != "batches"],
    "bytes": [part for part in PARTS if part not in SIZED],
    "kills": ["recovery", "correlated", "divergence"],
    "pairs": WINDOWS,
    "window_s": [*WINDOWS, "breakdown"],
    "seed": WINDOWS,
}
"""Options that not all parts use."""
SHORTENED = ("loads", "kills", "pairs", "window_s")
"""What `--short` decides itself."""


def takes_s(part: str, run: Run) -> float:
    """About how long a part takes."""
    modes, kills = run.modes_of(part), run.kills_of(part)
    match part:
        case "overhead":
            return estimate.of_pairs(run.services, modes, 1, len(run.loads), run.plan)
        case "batches":
            return estimate.of_pairs(run.services, modes, len(run.batches), 1, run.plan)
        case "scale":
            return estimate.of_pairs(run.services_of("scale"), modes, len(overhead.BYTES), 1, run.plan)
        case "breakdown":
            return estimate.of_breakdown(run.services, modes, run.plan.window_s)
        case "recovery":
            return estimate.of_kills(run.services, modes, kills, len(run.processes))
        case "correlated":
            return estimate.of_correlated(run.services, modes, kills)
        case "peers":
            return estimate.of_peers(len(run.services_of("peers")), run.plan)
        case "divergence":
            return estimate.of_kills([divergence.SERVICE], divergence.runs(modes), kills, 1)
        case _:
            return estimate.of_pairs(run.services, modes, 1, 1, run.plan)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; 1 if anything failed, was lost or was doubled. Each part is delivered when it is
    measured, and one that fails keeps no other from being measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        run = _run(options)
        parts = _measured_parts(options, run)
        if options.out is not None:
            check_folder(options.out, parts)
    except ValueError as error:
        parser.error(str(error))
    failed = []
    times = {part: takes_s(part, run) for part in parts}
    each = ", ".join(f"{part} {estimate.said(took)}" for part, took in times.items())
    print(f"about {estimate.said(sum(times.values()))}: {each}", file=sys.stderr, flush=True)
    results: dict[str, Result] = {}
    for part in parts:
        rows = _rows_of_part(part, run)
        if rows is None:
            failed.append(part)
            continue
        results[part] = {
            "bench": f"paper/{part}",
            "machine": machine(),
            "seed": run.plan.seed,
            "command": " ".join(["hams bench paper", *(arguments or [])]),
            "rows": rows,
        }
        try:
            deliver_part(part, results, options)
        except (OSError, ValueError) as error:  # the next part may fit, or somebody makes room
            print(f"part {part} was measured and not written: {error}", file=sys.stderr, flush=True)
            failed.append(part)
    if options.output == "json" and results:
        print(as_json(results), flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; the other parts are done", file=sys.stderr)
    measured = [row for result in results.values() for row in rows_of(result)]
    lost = any(row.get("ok") is False or (row.get("failed") and "kills" in row) for row in measured)
    return int(bool(failed) or lost)


def _rows_of_part(part: str, run: Run) -> Rows | None:
    """None, and what happened on stderr, if it could not be measured."""
    rows: Rows | None = None
    try:
        rows = uvloop.run(_measured(PARTS[part], run))
    except* (CannotStart, Failed, TimeoutError) as errors:  # clients fail in groups
        said = ", ".join(dict.fromkeys(str(error) for error in _each(errors)))
        print(f"part {part}: {said or 'a graph was not ready in time'}", file=sys.stderr, flush=True)
    return rows


def _each(errors: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        yield from _each(error) if isinstance(error, BaseExceptionGroup) else (error,)


def _parts(options: argparse.Namespace) -> list[str]:
    """What was asked for; all in their order, but for Ray Serve where it is not installed, and what real
    networks cannot run."""
    if options.part is None:
        return list(SHORT_PARTS) if options.short else ["overhead"]
    if options.part != ALL:
        return [options.part]
    left_out = {PEERS} if measure.missing() is not None else set()
    if options.models == REAL:
        left_out |= EMULATED_ONLY.keys()
    return [part for part in PARTS if part not in left_out]


def _measured_parts(options: argparse.Namespace, run: Run) -> list[str]:
    """Those of which a service was asked for. Raises ValueError if there is none."""
    parts = [part for part in _parts(options) if run.services_of(part)]
    if not parts:
        of_all = replace(run, services=list(SERVICES.values())).services_of(options.part)
        names = ", ".join(service.name for service in of_all)
        raise ValueError(f"--services: part {options.part} measures {names} only")
    return parts


async def _measured(part: Callable[[Run], Measured], run: Run) -> Rows:
    return await part(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hams bench paper", "hams bench paper [OPTIONS]", __doc__)
    add_options(parser)
    parser.add_argument(
        "--part",
        type=one_of("part", [*PARTS, ALL]),
        default=None,
        help=f"{', '.join(PARTS)}, or {ALL} (default: overhead)",
    )
    parser.add_argument(
        "--services",
        type=several("service", list(SERVICES)),
        default=None,
        help=f"of {','.join(SERVICES)} (default: all; part scale: {','.join(overhead.SCALED)}; correlated "
        f"has {','.join(recovery.CORRELATED)}, peers {','.join(measure.SERVED)}, divergence "
        f"{divergence.SERVICE.name})",
    )
    parser.add_argument(
        "--modes",
        type=_modes,
        default=None,
        help=f"of {','.join(MODES)} (default: {','.join(ENDS)}; part ablations: all but LineageStash; "
        "recovery and divergence: all)",
    )
    parser.add_argument(
        "--loads",
        type=several("load", overhead.LOADS),
        default=None,
        help="of part overhead: L1,L2,Sat, batches under way: one, two, enough to keep all operators busy "
        "(default: all)",
    )
    _add_settings(parser)
    parser.add_argument("--short", action="store_true", help="SP and OLM, a few windows: does it run?")
    parser.add_argument(
        "--kills",
        type=counted,
        default=None,
        help=f"of each kind ({KILLS}; part divergence: {divergence.KILLS})",
    )
    parser.add_argument("--pairs", type=counted, default=None, help=f"pairs of windows ({PAIRS})")
    parser.add_argument("--window-s", type=seconds, default=None, help=f"length of a window ({WINDOW_S:g})")
    parser.add_argument(
        "--seed", type=seed, default=None, help=f"draws which graph begins a pair of windows ({SEED})"
    )
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """What the graphs of a measurement have in common."""
    parser.add_argument(
        "--models", choices=("emulated", REAL), default="emulated", help="real: networks on a GPU"
    )
    parser.add_argument(
        "--pace", choices=("paper", "none"), default="paper", help="none: operators wait for no device time"
    )
    parser.add_argument(
        "--state",
        choices=("everything", "cells"),
        default="everything",
        help="what a state is: a whole module, or only what changes",
    )
    parser.add_argument(
        "--states",
        choices=("whole", "chunks"),
        default=None,
        help="how states travel: all of them, or the chunks that changed (part ablations: whole; others: "
        "chunks)",
    )
    parser.add_argument(
        "--bytes", type=_part_of_one, default=None, metavar="1/8", help="a part of every state"
    )
    parser.add_argument("--batch", type=_rows, default=None, help=f"rows of a batch ({FULL_BATCH})")
    parser.add_argument(
        "--rows-per-request",
        type=_rows,
        default=None,
        help="1: a batch is as many requests of one row (default: one request)",
    )
    parser.add_argument("--times", default=None, metavar="FILE", help="device times, or `light`")


def _run(options: argparse.Namespace) -> Run:
    """Raises ValueError with what cannot be measured."""
    times = {} if options.times is None else read_times(options.times)
    settings = Settings(
        models=options.models,
        pace=options.pace,
        state=options.state,
        bytes=1.0 if options.bytes is None else options.bytes,
        batch=options.batch or FULL_BATCH,
        single_rows=_single_rows(options),
        times=times,
    )
    _check_used(options)
    if options.part == "peers" and (said := measure.missing()) is not None:
        raise ValueError(said)
    if options.models == REAL:
        _check_real(options)
    names = options.services or (SHORT if options.short else tuple(SERVICES))
    drawn_by = SEED if options.seed is None else options.seed
    services = [SERVICES[name] for name in names]
    window_s = options.window_s or WINDOW_S
    plan = (
        overhead.Plan(2, 3.0, 0.5, drawn_by)
        if options.short
        else overhead.Plan(options.pairs or PAIRS, window_s, min(1.0, window_s / 4), drawn_by)
    )
    run = Run(
        services,
        options.modes,
        settings,
        plan,
        options.short,
        options.bytes is not None,
        options.services is not None,
        ("L1",) if options.short else options.loads or overhead.LOADS,
        1 if options.short else options.kills,
        options.states,
    )
    _check_times(options, run)
    _check_gpu(options, run)
    _check_memory(options, run)
    return run


def _check_gpu(options: argparse.Namespace, run: Run) -> None:
    """Raises ValueError for real networks without a GPU, but for single rows, which show whether they run."""
    parts = _measured_parts(options, run)
    if options.models != REAL or has_gpu():
        return
    for part in parts:
        if run.largest_of(part).batch != 1:
            raise ValueError(
                f"--models real: part {part} expected a GPU, found none that torch can use; --batch 1 shows "
                "on a CPU whether they run, in all parts but batches"
            )


def _single_rows(options: argparse.Namespace) -> bool:
    """Whether a batch is many requests. Raises ValueError if it is neither that nor one."""
    rows, batch = options.rows_per_request, options.batch or FULL_BATCH
    if rows not in (None, 1, batch):
        raise ValueError(f"--rows-per-request: expected 1 or a batch's {batch}, found {rows}")
    return bool(rows == 1)


def _check_memory(options: argparse.Namespace, run: Run) -> None:
    """Raises ValueError if a part's states are larger than the machine."""
    for part in _measured_parts(options, run):
        needs = [
            (service, mode, run.largest_of(part))
            for mode in run.modes_of(part)
            for service in run.services_of(part)
        ]
        if (said := too_little_memory(needs, sized=part in SIZED)) is not None:
            raise ValueError(said)


def _check_times(options: argparse.Namespace, run: Run) -> None:
    """Raises ValueError for device times that no operator would wait for."""
    times = run.settings.times
    if options.times is None:
        return
    if options.pace == "none":
        raise ValueError("--times: with --pace none operators wait for no device time; leave one of them out")
    parts = _measured_parts(options, run)
    names = [name for name in SERVICES if any(SERVICES[name] in run.services_of(part) for part in parts)]
    if not set(times) & set(names):
        raise ValueError(
            f"--times {options.times}: has times of {', '.join(times)}; measured are {', '.join(names)}"
        )


def _check_used(options: argparse.Namespace) -> None:
    """Raises ValueError for an option that nothing which is measured uses."""
    for option, users in USED_BY.items():
        if getattr(options, option) is None:
            continue
        name, parts = f"--{option.replace('_', '-')}", _parts(options)
        if options.short and option in SHORTENED:
            raise ValueError(f"{name}: --short decides that; leave one of them out")
        if not set(parts) & set(users):
            raise ValueError(f"{name}: part {parts[0]} does not use it; {', '.join(users)} would")


def _check_real(options: argparse.Namespace) -> None:
    """Raises ValueError for what real networks have no setting of."""
    if options.bytes not in (None, 1.0):
        raise ValueError(
            "--bytes: real networks have states of one size; leave it out, or have --models emulated"
        )
    for part in _parts(options):
        if part in EMULATED_ONLY:
            raise ValueError(f"part {part} needs --models emulated: {EMULATED_ONLY[part]}")


def _modes(text: str) -> tuple[str, ...]:
    if BARE in text.split(","):
        raise argparse.ArgumentTypeError(
            f"{BARE} is bare metal, which every mode is measured beside; expected some of {', '.join(MODES)}"
        )
    return several("mode", list(MODES))(text)


def _part_of_one(text: str) -> float:
    part, _, of = text.partition("/")
    try:
        value = float(part) / float(of or "1")
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 1 / PARTS_MAX <= value <= 1:
        raise argparse.ArgumentTypeError(
            f"expected a part such as 1/8, from 1/{PARTS_MAX} to 1, found {in_short(text)}"
        )
    return value


def _rows(text: str) -> int:
    return whole("rows", text, 1, rows_max)


if __name__ == "__main__":
    sys.exit(main())
