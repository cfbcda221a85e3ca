"""`hams sim`: run many histories on all cores, say what they reached, and print the command that replays each
failure."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import hams_compiled
from hams_protocol.graph import Mode
from hams_protocol.modes import ModePolicy
from hams_sim import limits
from hams_sim.arguments import drops_of, parse
from hams_sim.mutants import hunt
from hams_sim.scenarios import SCENES
from hams_sim.shapes import SHAPES
from hams_sim.shrink import shrink
from hams_sim.simulate import NOT_REPLAYED, PLAIN, HistoryOutcome, Spec
from hams_sim.workers import Worker, WorkerDied, run_all

DECIDES = (
    "seed",
    "shape",
    "fault",
    "mutant",
    "drop",
    "mode",
    "policy",
    "random_models",
    "early_replies",
    "by_receipt",
)
"""The options that decide what histories are, beside the core's sources: a chunk of others is not done."""

HISTORIES = 1000
"""How many are run if nothing is said."""
WEIGHTS = {"random": 3}
"""How many turns a shape gets when all take turns; one if not listed."""


def say(text: str) -> None:
    """The failure in a line for people."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def specs(options: argparse.Namespace) -> Iterator[Spec]:
    """The histories asked for."""
    drops = drops_of(options.drop)
    turns = [name for name in SHAPES for _ in range(WEIGHTS.get(name, 1))]
    if options.shape:
        turns = [options.shape]
    elif options.fault in SCENES:
        turns = list(SCENES[options.fault].shapes)
    if options.mode and ModePolicy.of(Mode(options.mode)).replays:
        turns = [name for name in turns if name not in NOT_REPLAYED]
    for number in range(options.histories):
        yield Spec(
            options.seed + number,
            turns[number % len(turns)],
            "" if options.fault == PLAIN else options.fault,
            frozenset(int(item) for item in drops["fault"]),
            frozenset(int(item) for item in drops["call"]),
            drops["op"],
            options.mode,
            options.policy,
            options.random_models,
            options.early_replies,
            options.by_receipt,
        )


class Tally:
    """What all histories together did."""

    def __init__(self) -> None:
        self.histories = 0
        self.calls = 0
        self.events = 0
        self.sim_s = 0.0
        self.faults: Counter[str] = Counter()
        self.coverage: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.failures: list[HistoryOutcome] = []
        self.guilty: Counter[str] = Counter()

    def add(self, outcome: HistoryOutcome) -> None:
        """Count one history."""
        self.histories += 1
        self.calls += outcome.calls
        self.events += outcome.events
        self.sim_s += outcome.sim_s
        self.faults += outcome.faults
        self.coverage += outcome.coverage
        self.shapes[outcome.spec.shape] += 1
        if not outcome.ok and outcome.is_promised:
            self.failures.append(outcome)
        elif not outcome.ok:
            self.guilty[outcome.what] += 1

    def as_json(self, took_s: float) -> dict[str, object]:
        """The result as JSON for programs."""
        return {
            "histories": self.histories,
            "histories_per_s": round(self.histories / took_s, 1),
            "requests": self.calls,
            "events": self.events,
            "simulated_s": round(self.sim_s, 1),
            "faults": dict(self.faults.most_common()),
            "coverage": dict(self.coverage.most_common()),
            "shapes": dict(self.shapes),
            "not_promised": dict(self.guilty),
            "failures": [
                {"invariant": item.what, "message": item.message, "command": item.spec.command()}
                for item in self.failures
            ],
        }

    def render(self, took_s: float) -> str:
        """The result as text for people."""
        text = [
            f"{self.histories} histories in {took_s:.1f} s ({self.histories / took_s:.1f}/s), {self.calls} "
            "requests, "
            f"{self.events} events, {self.sim_s:.0f} simulated seconds",
            f"faults   {sum(self.faults.values())}: "
            + ", ".join(f"{name} {count}" for name, count in self.faults.most_common(14)),
            "reached  " + ", ".join(f"{name} {count}" for name, count in self.coverage.most_common(40)),
            "shapes   " + ", ".join(f"{name} {count}" for name, count in self.shapes.most_common()),
        ]
        return "\n".join(text)


def run(options: argparse.Namespace, jobs: int, tally: Tally) -> None:
    """All histories asked for, a chunk at a time; those that the progress file names are left out."""
    enough = (lambda outcome: not outcome.ok) if options.mutant else None
    wanted = specs(options)
    progress = ProgressFile(options.progress, options)
    for first in range(0, options.histories, limits.chunk_histories):
        chunk = list(islice(wanted, limits.chunk_histories))
        if progress.has(first):
            continue
        began, failed = time.monotonic(), len(tally.failures)
        for outcome in run_all(chunk, jobs, options.mutant, enough):
            tally.add(outcome)
            if not outcome.ok and options.output == "text":
                verdict = "FAILED" if outcome.is_promised else "not promised,"
                say(f"{verdict} {outcome.what}: {outcome.spec.command()}")
        fresh = tally.failures[failed:]
        progress.note(first, len(chunk), fresh)
        if options.histories > limits.chunk_histories and options.output == "text":
            rate = len(chunk) / (time.monotonic() - began)
            say(
                f"seeds {chunk[0].seed} to {chunk[-1].seed}: {len(fresh)} of {len(chunk)} violate an "
                f"invariant ({rate:.1f}/s)"
            )
        if fresh and enough is not None:
            return


class BadProgress(Exception):
    """The progress file cannot be read, or is another kind of file; the text says where."""


class ProgressFile:
    """Which chunks have been run, one JSON object per line: a long run goes on where it ended. Failures stand
    there with their commands."""

    def __init__(self, path: Path | None, options: argparse.Namespace) -> None:
        self._path = path
        self._about = {name: getattr(options, name) for name in DECIDES}
        self._about["core"] = hams_compiled.digest(Path(__file__).resolve().parent.parent)
        self._done: set[int] = set()
        if path is not None:
            try:
                path.touch()
                lines = path.read_text(errors="replace").splitlines()
            except OSError as error:
                raise BadProgress(f"--progress {path}: {error.strerror}") from None
            for number, line in enumerate(lines, 1):
                try:
                    entry = json.loads(line)
                    about, first, count = entry["about"], int(entry["first"]), int(entry["count"])
                except (ValueError, TypeError, KeyError):
                    raise BadProgress(
                        f"--progress {path}, line {number}: expected what an earlier run noted, found "
                        f"{line[:80]!r}"
                    ) from None
                if about == self._about and count == min(limits.chunk_histories, options.histories - first):
                    self._done.add(first)

    def has(self, first: int) -> bool:
        """Whether the chunk that begins so many histories after the first seed has been run."""
        return first in self._done

    def note(self, first: int, count: int, failures: Sequence[HistoryOutcome]) -> None:
        """One more chunk is done."""
        if self._path is not None:
            entry = {
                "about": self._about,
                "first": first,
                "count": count,
                "failures": [item.spec.command() for item in failures],
            }
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def main(args: Sequence[str] | None = None) -> int:
    """Run; 0 if every history held (with `--mutant`: if it was caught), else 1; 2 if the call was wrong."""
    options = parse(args)
    try:
        return _run(options)
    except BadProgress as error:
        sys.stderr.write(f"hams sim: {error}\n")
        return 2
    except WorkerDied as error:
        sys.stderr.write(f"hams sim: {error}\n")
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.mutants:
        return hunt.run(options.histories, options.seed, options.jobs, options.output)
    options.histories = HISTORIES if options.histories is None else options.histories
    jobs = max(1, min(options.jobs, options.histories))
    began = time.monotonic()
    tally = Tally()
    run(options, jobs, tally)
    took_s = time.monotonic() - began
    if tally.failures and not (options.no_shrink or options.mutant or options.drop):
        worker = Worker()
        tally.failures[0] = shrink(tally.failures[0], worker.run)
        worker.close()
    if options.output == "json":
        say(json.dumps(tally.as_json(took_s)))
    else:
        say(tally.render(took_s))
        for outcome in tally.failures[:1]:
            say(
                f"\n{outcome.message}\n"
                + "\n".join(f"  fault {number}: {text}" for number, text in enumerate(outcome.schedule))
            )
            say(f"\nreplay: {outcome.spec.command()}")
        if options.random_models:
            counts = ", ".join(f"{what} {count}" for what, count in sorted(tally.guilty.items()))
            say(f"{sum(tally.guilty.values())} histories violate what is promised for other models: {counts}")
        say(
            f"no invariant {'that is promised ' if options.random_models else ''}was violated"
            if not tally.failures
            else f"{len(tally.failures)} histories violate an invariant"
        )
    if options.mutant:
        return 0 if tally.failures else 1
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
