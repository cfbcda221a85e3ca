"""Scheduling policies on 25 laws of execution times and five SLOs, in virtual time: the policies that
serve, an emulated model, one recorded trace for all.

`hams bench schedule [--short] [--cases GLOB] [--slo 1.5,3] [--rho .6] [--arrivals smooth|bursty] [--trace
FILE.csv] [--policies ...] [--information none|app|feature|both] [--requests N] [--seeds N] [--seed N]
[--law longest|length] [--orloj-b B] [--outages] [--cold] [--calibrated] [--overload LOAD] [--dag] [--micro]
[--live [--kill 20s] [--seconds S]] [--out FILE.json] [--output json]`. The exit status is 1 where
`distribution`, or `guarded` if it is among the policies, finishes fewer requests in time than another policy,
by more than 2 standard errors + 0.003. With
`--cold` the first 300 requests are not judged; the exit status is 1, too, where `distribution` is more than
0.02 behind itself with a profile. With `--overload` it is 1 where a goal is missed; with `--live`, where a
request was lost or a history is broken.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import schedule_dag, schedule_live, schedule_micro, schedule_overload
from benchmarks.arrivals import BY_NAME, Arrivals, NotCounted, counted
from benchmarks.chain import machine
from benchmarks.plots import finish_rates, heat_map, lines
from benchmarks.report import Result, add_options, deliver, rows_of
from benchmarks.schedule_calibrated import calibrated, print_published
from benchmarks.schedule_cells import COLD_ALLOWED, COLD_REQUESTS, PROFILED, Job, cells, judged, of_all
from benchmarks.virtual_time import BASELINES, GUARDED, INFORMATION, ORLOJ, OURS, POLICIES, PROFILE_SAMPLES
from benchmarks.workloads import CASES, LAWS, SLO_FACTORS, cases_named
from hams_schedule.score import RATE

SHORT_REQUESTS = 1_000
LARGEST_GAIN = 0.3
"""A gain from which on a cell of the picture is no darker."""
ALWAYS = ("out", "output", "seed", "short")
IN_VIRTUAL_TIME = (
    "cases",
    "slo",
    "rho",
    "arrivals",
    "trace",
    "policies",
    "information",
    "requests",
    "seeds",
    "cold",
    "law",
    "orloj_b",
    "outages",
)
FORMS: dict[str, tuple[str, ...]] = {
    "micro": (),
    "dag": ("requests", "seeds"),
    "live": ("cases", "slo", "rho", "arrivals", "policies", "kill", "seconds"),
    "overload": ("cases", "slo", "arrivals", "trace", "policies", "information", "requests"),
    "calibrated": ("cases", "slo", "information", "requests", "seeds", "cold"),
}
"""What each form of the benchmark reads beside `ALWAYS`."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit status whether `distribution` lost anywhere."""
    parser = argparse.ArgumentParser("hams bench schedule", description=__doc__)
    _add_options(parser)
    options = parser.parse_args(arguments)
    _refuse_what_plays_no_part(parser, options)
    options.arrivals_from = options.trace or BY_NAME[options.arrivals]
    if options.micro:
        return schedule_micro.main_of(options)
    if options.dag:
        return schedule_dag.main_of(options)
    if options.live:
        return schedule_live.main_of(options)
    if options.overload:
        return schedule_overload.main_of(options)
    jobs = jobs_of(options)
    if options.calibrated:
        jobs = calibrated(jobs)
    result = measure(jobs, options.law)
    deliver(result, options, print_table, plot)
    if options.calibrated and options.output == "text":
        print_published(result)
    return 1 if any(row["lost_to"] or row["guarded_lost_to"] for row in rows_of(result)) else 0


def _refuse_what_plays_no_part(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """One form at a time, with the options that it reads; cases and policies that are there."""
    forms = [name for name in FORMS if getattr(options, name)]
    if len(forms) > 1:
        parser.error(f"expected one of --{' and --'.join(forms)}")
    form = forms[0] if forms else ""
    allowed = FORMS.get(form, IN_VIRTUAL_TIME)
    for name, value in vars(options).items():
        if name not in (*allowed, *FORMS, *ALWAYS) and value != parser.get_default(name):
            of = f"with --{form}" if form else "without --live"
            parser.error(f"--{name.replace('_', '-')}: plays no part {of}")
    if options.trace and options.arrivals != parser.get_default("arrivals"):
        parser.error("expected --trace or --arrivals, found both")
    if options.cold and options.requests <= COLD_REQUESTS:
        parser.error(f"--requests: expected more than {COLD_REQUESTS} with --cold, which are not judged")
    if not cases_named(options.cases):
        parser.error(
            f"no case is named {options.cases!r}; there are {', '.join(case.name for case in CASES)}"
        )
    served = {"live": schedule_live.POLICIES, "overload": schedule_overload.ALL_POLICIES}.get(form, POLICIES)
    for name in options.policies or ():
        if name not in served:
            parser.error(
                f"--policies: nothing is served by {name!r}; expected policies of {', '.join(served)}"
            )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--short", action="store_true", help="25 cells of few requests, in 90 s")
    parser.add_argument("--cases", default="", metavar="GLOB", help="separated by commas")
    parser.add_argument("--slo", type=_numbers, default=(), help="in P99s of the stand-alone time")
    parser.add_argument("--rho", type=_load, default=0.6, help="load; 1 is what batches of 8 keep up with")
    parser.add_argument("--arrivals", choices=tuple(BY_NAME), default="bursty")
    parser.add_argument(
        "--trace",
        type=_file,
        metavar="FILE.csv",
        help="in place of --arrivals: calls by minute, at the load of --rho",
    )
    parser.add_argument("--policies", type=_policies, default=None)
    parser.add_argument("--information", choices=INFORMATION, default="app", help="what requests tell")
    parser.add_argument("--requests", type=_count, default=10_000, help="of each trace")
    parser.add_argument("--seeds", type=_count, default=1, help="traces of each case")
    parser.add_argument("--seed", type=_count, default=1, help="the first seed")
    parser.add_argument(
        "--law",
        choices=tuple(LAWS),
        default="longest",
        help="what a batch takes: by its longest member and a share for each further row, or rows x length",
    )
    parser.add_argument(
        "--orloj-b", type=_rate, default=RATE / 1000.0, metavar="B", help="of Orloj's costs, per ms"
    )
    parser.add_argument(
        "--outages", action="store_true", help="the model is lost for 2 P99s every 60, with its batch"
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help=f"`distribution` begins without a profile; the first {COLD_REQUESTS} requests are not judged",
    )
    parser.add_argument(
        "--calibrated", action="store_true", help="each case at the load where Orloj does as published"
    )
    parser.add_argument(
        "--overload", type=_load, default=0.0, metavar="LOAD", help="how soon is told what is not run"
    )
    parser.add_argument("--dag", action="store_true", help="three stages: how deadlines are split")
    parser.add_argument("--micro", action="store_true", help="what a decision costs, 10,000 requests pending")
    parser.add_argument("--live", action="store_true", help="real processes, beside virtual time")
    parser.add_argument(
        "--kill", type=_interval, default=0.0, metavar="20s", help="with --live: kill the primary so often"
    )
    parser.add_argument("--seconds", type=_interval, default=60.0, help="of each cell with --live")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, found {text!r}") from None
    if not all(0.0 < number < 1000.0 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected numbers between 0 and 1000, found {text!r}")
    return numbers


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = -1.0
    if not 0.0 < load <= 10.0:
        raise argparse.ArgumentTypeError(f"expected a load above 0, 10 at most, found {text!r}")
    return load


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 1e-9 <= rate <= 1.0:
        raise argparse.ArgumentTypeError(f"expected 1e-9 to 1 per ms, found {text!r}")
    return rate


def _file(text: str) -> Arrivals:
    try:
        return counted(Path(text))
    except (NotCounted, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0 and len(text) < 9):
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return int(text)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"expected policies of {', '.join(POLICIES)}, found {name!r}")
    return names


def _interval(text: str) -> float:
    number = text.strip().removesuffix("s")
    try:
        seconds = float(number)
    except ValueError:
        seconds = -1.0
    if not 1.0 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"expected a duration of 1s to 3600s, found {text!r}")
    return seconds


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """One job per case and seed, so that processes share the work evenly."""
    cases = cases_named(options.cases)
    policies = options.policies or (OURS, *BASELINES, *ORLOJ)
    requests, factors = options.requests, options.slo or SLO_FACTORS
    if options.short:
        requests, factors = min(requests, SHORT_REQUESTS), factors[:1] if len(factors) < 5 else (2.0,)
    return [
        Job(
            LAWS[options.law](case),
            factors,
            policies,
            options.rho,
            options.arrivals_from,
            options.information,
            requests,
            tuple(range(options.seed, options.seed + options.seeds)),
            0 if options.cold else PROFILE_SAMPLES,
            orloj_rate=1000.0 * options.orloj_b,
            outages=options.outages,
        )
        for case in cases
    ]


def measure(jobs: Sequence[Job], law: str) -> Result:
    """All jobs, of cases under one law of batches."""
    rows = [row for rows in of_all(cells, jobs) for row in rows]
    first = jobs[0]
    return {
        "bench": "schedule",
        "machine": machine(),
        "rho": first.rho if len({job.rho for job in jobs}) == 1 else "calibrated",
        "arrivals": first.arrivals.name,
        "information": first.information,
        "requests": first.requests,
        "seeds": list(first.seeds),
        "law": law,
        "orloj_b_per_ms": first.orloj_rate / 1000.0,
        "outages": first.outages,
        "not_judged": COLD_REQUESTS if first.cold else 0,
        "rows": judged(rows),
    }


def print_table(result: Result) -> None:
    """For people."""
    rows = rows_of(result)
    policies = list(rows[0]["rates"])
    names = {name: name.removeprefix("orloj-") if name.startswith("orloj") else name[:8] for name in policies}
    print(
        f"load {result['rho']}, {result['arrivals']}, known of requests: {result['information']}, "
        f"{result['requests']} requests, seeds {result['seeds']}; finish rates; orloj by mean, p25, p50, p75"
    )
    if result["law"] != "longest" or result["outages"]:
        lost = ", the model is lost for 2 P99s every 60" if result["outages"] else ""
        print(f"a batch takes what its {result['law']} says{lost}")
    print(f"{'case':20} {'SLO':>4} " + " ".join(f"{names[name]:>9}" for name in policies) + "  lost to")
    for row in rows:
        rates = " ".join(f"{row['rates'][name]:9.3f}" for name in policies)
        lost_to = row["lost_to"] + [f"{GUARDED} to {name}" for name in row["guarded_lost_to"]]
        print(f"{row['case']:20} {row['slo']:4g} {rates}  {', '.join(lost_to)}")
    for factor in dict.fromkeys(row["slo"] for row in rows):
        of_factor = [row["rates"] for row in rows if row["slo"] == factor]
        means = " ".join(f"{np.mean([rates[name] for rates in of_factor]):9.3f}" for name in policies)
        print(f"{'mean':20} {factor:4g} {means}")
    _print_verdicts(rows, policies)


def _print_verdicts(rows: list[dict[str, Any]], policies: list[str]) -> None:
    """In how many cells ours are as good as others."""
    others = not {*BASELINES, *ORLOJ}.isdisjoint(policies)
    for name, lost_to in ((OURS, "lost_to"), (GUARDED, "guarded_lost_to")):
        if name in policies and others:
            kept = sum(not set(row[lost_to]) - {PROFILED} for row in rows)
            print(f"{kept} of {len(rows)} cells: {name} is at least as good as all others")
    if OURS in policies and GUARDED in policies:
        gains = [row["rates"][GUARDED] - row["rates"][OURS] for row in rows]
        print(f"{GUARDED} less {OURS}: mean {np.mean(gains):+.4f}, {min(gains):+.4f} to {max(gains):+.4f}")
    if PROFILED in policies:
        behind = [row["rates"][PROFILED] - row["rates"][OURS] for row in rows]
        kept = sum(PROFILED not in row["lost_to"] for row in rows)
        print(
            f"{kept} of {len(rows)} cells: {OURS} is within {COLD_ALLOWED} of itself with a profile, after "
            f"{COLD_REQUESTS} requests; mean {np.mean(behind):.4f} behind, {max(behind):.4f} at most"
        )


def plot(result: Result, path: Path) -> None:
    """Finish rate over SLO: a small plot per case; in FILE-mean.svg the mean over all cases; in
    FILE-gains.svg what `distribution` gains over the best of the others."""
    rows = rows_of(result)
    shown = {(row["case"], row["slo"]): _compared(row) for row in rows}
    cases = list(dict.fromkeys(row["case"] for row in rows))
    factors = list(dict.fromkeys(row["slo"] for row in rows))
    names = list(_compared(rows[0]))
    finish_rates(
        {
            case: {name: [(factor, shown[case, factor][name]) for factor in factors] for name in names}
            for case in cases
        },
        path,
    )
    means = {
        name: [float(np.mean([shown[case, factor][name] for case in cases])) for factor in factors]
        for name in names
    }
    across = "SLO, in P99s of the stand-alone time"
    label = f"finish rate, load {result['rho']}, {result['arrivals']}"
    lines(factors, means, across, label, path.with_stem(f"{path.stem}-mean"))
    others = [name for name in names if name not in (OURS, GUARDED, PROFILED)]
    if OURS in names and others:
        gains = [
            [
                shown[case, factor][OURS] - max(shown[case, factor][name] for name in others)
                for factor in factors
            ]
            for case in cases
        ]
        columns = [f"{factor:g}x" for factor in factors]
        unit = "finish rate less that of the best of the others"
        heat_map(cases, columns, gains, LARGEST_GAIN, unit, path.with_stem(f"{path.stem}-gains"))


def _compared(row: dict[str, Any]) -> dict[str, float]:
    """Rates by policy, Orloj by one statistic only."""
    rates = {name: float(rate) for name, rate in row["rates"].items() if name not in ORLOJ}
    return rates | ({"orloj": float(row["rates"][row["orloj"]])} if row["orloj"] else {})
