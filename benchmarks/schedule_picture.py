"""A picture of what policies make of the same few requests: docs/pictures/policies.svg, in virtual time.

    hams bench schedule-picture --out docs/pictures/policies.svg

Rows are policies, boxes are batches, bars in a box are its requests. The same command writes the same bytes.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arrivals import SMOOTH
from benchmarks.virtual_time import Request, known, policy_of, profiles_of, run
from benchmarks.workloads import CASES, trace_of, worker_of
from hams_schedule.scheduler import BatchTiming, SchedulerPort

CASE = "std-1"
"""Two kinds of requests, 20 and 100 ms in the mean."""
LOAD, SEED, COUNT, SLO_S = 1.0, 4, 26, 0.4
SHOWN = {"fifo": "in order of arrival", "distribution": "by deadlines and laws"}
SHORT_MS = 60.0
"""A request that takes less alone is called short."""

WIDTH, LEFT, RIGHT, TOP, LANE, UNIT = 720, 20, 20, 58, 150, 8
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-labelledby="title desc">
  <title id="title">What two policies make of the same requests</title>
  <desc id="desc">{about}</desc>
  <style>
    text {{ font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }}
    .name {{ font-weight: 600; }}
    .page {{ fill: #ffffff; stroke: #d0d7de; }} .axis {{ stroke: #d0d7de; }}
    .batch {{ fill: none; stroke: #8c959f; }}
    .short {{ fill: #54aeff; }} .long {{ fill: #0550ae; }} .late {{ fill: #cf222e; }}
    .shed {{ fill: none; stroke: #cf222e; stroke-width: 2; }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3; }} .page {{ fill: #0d1117; stroke: #30363d; }} .axis {{ stroke: #30363d; }}
      .batch {{ stroke: #7d8590; }} .short {{ fill: #79c0ff; }} .long {{ fill: #1f6feb; }}
      .late {{ fill: #f85149; }} .shed {{ stroke: #f85149; }}
    }}
  </style>
  <rect class="page" x="0.5" y="0.5" width="{inner_width}" height="{inner_height}"/>
{body}
</svg>
"""


@dataclass
class Ran:
    """One batch: from when to when, and its requests."""

    starts: float
    ends: float
    units: list[Request]


class Watched:
    """A policy, and what it did."""

    def __init__(self, policy: SchedulerPort[Request]) -> None:
        self._policy = policy
        self.batches: list[Ran] = []
        self.shed: list[tuple[float, Request]] = []
        self.add = policy.add
        self.take = policy.take
        self.deadline = policy.deadline
        self.plan = policy.plan

    def late(self, now: float) -> list[Request]:
        """See `Scheduler`."""
        units = self._policy.late(now)
        self.shed += [(now, unit) for unit in units]
        return units

    def started(self, batch: int, units: list[Request], now: float) -> None:
        """See `Scheduler`."""
        self.batches.append(Ran(now, now, units))
        self._policy.started(batch, units, now)

    def finished(self, batch: int, timing: BatchTiming, now: float) -> None:
        """See `Scheduler`."""
        self.batches[-1].ends = now
        self._policy.finished(batch, timing, now)


def served(name: str) -> tuple[Watched, int]:
    """What a policy did with the trace, and how many requests were in time."""
    case = next(case for case in CASES if case.name == CASE)
    profiles = profiles_of(case, "app", SEED)
    watched = Watched(policy_of(name, case, SLO_S, profiles, SEED))
    outcome = run(
        watched,  # type: ignore[arg-type]
        trace_of(case, LOAD, SMOOTH, COUNT, SEED),
        worker_of(case),
        SLO_S,
        lambda app, feature: profiles.classify(*known("app", app, feature)),
    )
    return watched, sum(outcome.on_time)


def _lane(name: str, watched: Watched, good: int, top: float, scale: float) -> Iterator[str]:
    """The SVG of one policy."""
    floor = top + LANE - 34
    yield f'  <text class="name" x="{LEFT}" y="{top + 2:g}">{SHOWN[name]}</text>'
    yield f'  <text x="{WIDTH - RIGHT}" y="{top + 2:g}" text-anchor="end">{good} of {COUNT} in time</text>'
    yield f'  <line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor:g}" y2="{floor:g}"/>'
    for ran in watched.batches:
        x, width = LEFT + scale * ran.starts, scale * (ran.ends - ran.starts)
        height = (UNIT + 2) * len(ran.units) + 2
        box = f'x="{x:.1f}" y="{floor - height:g}" width="{width:.1f}" height="{height}"'
        yield f'  <rect class="batch" {box}/>'
        for place, unit in enumerate(sorted(ran.units, key=lambda unit: -unit.alone)):
            kind = "late" if ran.ends > unit.due else "short" if 1000 * unit.alone < SHORT_MS else "long"
            y, length = floor - (UNIT + 2) * (place + 1), max(scale * unit.alone - 3, 2)
            yield (
                f'  <rect class="{kind}" x="{x + 1.5:.1f}" y="{y:g}" width="{length:.1f}" height="{UNIT}"/>'
            )
    for number, (at, _) in enumerate(watched.shed):
        x, y = LEFT + scale * at, floor + 10 + 9 * (number % 2)
        yield f'  <path class="shed" d="M{x - 3:.1f} {y - 3:g} l6 6 m0 -6 l-6 6"/>'


def _legend(last_ms: float) -> Iterator[str]:
    """The SVG of what colours mean."""
    kinds = ("short", "short", 20, 14), ("long", "long", 90, 28), ("late", "ends late", 170, 20)
    for kind, text, x, width in kinds:
        yield f'  <rect class="{kind}" x="{x}" y="16" width="{width}" height="{UNIT}"/>'
        yield f'  <text x="{x + width + 6}" y="24">{text}</text>'
    yield '  <path class="shed" d="M274 17 l6 6 m0 -6 l-6 6"/><text x="288" y="24">refused early</text>'
    about = f"boxes are batches, over {last_ms:.0f} ms"
    yield f'  <text x="{WIDTH - RIGHT}" y="24" text-anchor="end">{about}</text>'


def picture() -> str:
    """The SVG."""
    ran = {name: served(name) for name in SHOWN}
    last = max(batch.ends for watched, _ in ran.values() for batch in watched.batches)
    scale = (WIDTH - LEFT - RIGHT) / last
    body = [*_legend(1000 * last)]
    for number, (name, (watched, good)) in enumerate(ran.items()):
        body += _lane(name, watched, good, TOP + LANE * number, scale)
    counts = ", ".join(f"{SHOWN[name]} {good}" for name, (_, good) in ran.items())
    about = (
        f"{COUNT} requests of 20 or 100 ms, each due {1000 * SLO_S:.0f} ms after it came. In time: {counts}."
    )
    height = TOP + LANE * len(ran)
    return PICTURE.format(
        width=WIDTH,
        height=height,
        inner_width=WIDTH - 1,
        inner_height=height - 1,
        about=about,
        body="\n".join(body),
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser("hams bench schedule-picture", description="picture of two policies")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/policies.svg"), metavar="FILE.svg")
    given = parser.parse_args(arguments)
    given.out.write_text(picture(), encoding="utf-8")
    print(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
