"""The proof that the checks can fail: every known protocol bug is switched on in turn, and must be caught."""

import json
import sys
from collections.abc import Iterator

from hams_protocol import mutants
from hams_sim.shapes import SHAPES
from hams_sim.simulate import Outcome, Spec
from hams_sim.workers import Worker, run_all

SHAPES_FOR: dict[str, tuple[str, ...]] = {name: ("pair", "single") for name in ("kept-never-asked", "kept-pending", "kept-without-consumed")}
"""Where a mutant shows up soonest, if not in all shapes alike."""
FAULTS_FOR: dict[str, str] = dict.fromkeys(("kept-never-asked", "kept-pending", "kept-without-consumed"), "F33")
"""Which scenario makes a mutant show up soonest, if not any fault."""


def histories(name: str, count: int, seed: int) -> Iterator[Spec]:
    """Histories in which a mutant may be caught."""
    shapes = SHAPES_FOR.get(name, tuple(shape for shape in SHAPES if shape != "random"))
    for number in range(count):
        yield Spec(seed + number, shapes[number % len(shapes)], FAULTS_FOR.get(name, ""))


def catch(name: str, count: int, seed: int, jobs: int) -> tuple[int, Outcome | None]:
    """Histories run until the mutant was caught, and the one that caught it; None if it got through.

    Caught means: this history breaks an invariant with the mutant, and holds without it.
    """
    ran = 0
    control = Worker()
    try:
        for outcome in run_all(histories(name, count, seed), jobs, name):
            ran += 1
            if not outcome.ok and control.run(outcome.spec).ok:
                return ran, outcome
        return ran, None
    finally:
        control.close()


def run(count: int, seed: int, jobs: int, output: str) -> int:
    """All mutants; 0 if every one was caught."""
    rows = []
    for name, rule in sorted(mutants.REGISTRY.items()):
        ran, caught = catch(name, count, seed, jobs)
        rows.append(
            {
                "mutant": name,
                "rule": rule,
                "histories": ran,
                "caught": caught.what if caught else "",
                "command": caught.spec.command() if caught else "",
            }
        )
        if output == "text":
            sys.stdout.write(
                f"{name:32} {'caught after ' + str(ran) if caught else 'NOT CAUGHT in ' + str(ran):24} {caught.what if caught else ''}\n"
            )
            sys.stdout.flush()
    if output == "json":
        sys.stdout.write(json.dumps(rows) + "\n")
    return 0 if all(row["caught"] for row in rows) else 1


def table(rows: list[dict[str, object]]) -> str:
    """docs/mutants.md."""
    text = ["# Mutants", "", "Protocol bugs that the simulation must catch, and after how many histories it does (`make sim-mutants`).", ""]
    text += ["| mutant | the rule it breaks | caught by | histories |", "| --- | --- | --- | --- |"]
    text += [f"| {row['mutant']} | {row['rule']} | {row['caught'] or 'not caught'} | {row['histories']} |" for row in rows]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(run(600, 1, 2, "text"))
