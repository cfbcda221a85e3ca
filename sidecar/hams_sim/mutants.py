"""The proof that the checks can fail: every known protocol bug is switched on in turn, and must be caught.

A mutant is sought where the rule that it breaks is needed: `FAULTS_FOR` names scenes (or kinds of faults), `SHAPES_FOR` graphs. Caught
means that a history breaks an invariant with the mutant, and holds without it. `SUPERFLUOUS` are rules that another rule makes safe.
"""

import json
import sys
from collections.abc import Iterator, Mapping

from hams_protocol import mutants
from hams_sim.scenarios import SCENES
from hams_sim.shapes import SHAPES
from hams_sim.simulate import Outcome, Spec
from hams_sim.workers import Worker, run_all

FAULTS_FOR: dict[str, tuple[str, ...]] = {
    "accept-old-epoch": ("late-fan", "late-return"),
    "ack-set-shrinks-early": ("lost-race",),
    "ack-without-epoch": ("alone",),
    "ack-without-value-id": ("stale-acks",),
    "act-before-commit": ("revoked-unawares", "uneven"),
    "adopted-under-new-id": ("F9",),
    "alone-without-deps": ("alone",),
    "apply-orphan": ("F6", "F1"),
    "complete-request-taken": ("echo",),
    "consumed-not-restored": ("F2",),
    "copy-speculative": ("F5",),
    "copy-without-consumed": ("F33",),
    "feedback-speculative": ("F1",),
    "freeze-ignored": ("shards-3", "revoked-unawares"),
    "frozen-takes-records": ("revoked-unawares",),
    "hand-over-unflushed": ("drains",),
    "highest-becomes-primary": ("uneven",),
    "ignore-taint": ("F6",),
    "inject-before-replicate": ("F39",),
    "kept-never-asked": ("kept-alone",),
    "kept-pending": ("kept-alone",),
    "kept-without-consumed": ("kept-alone",),
    "key-table-not-derived": ("F39", "shards"),
    "leave-ack-set-before-shrink": ("lost-race",),
    "longest-log-wins": ("shards-3",),
    "mix-fan-out-values": ("torn-fan",),
    "no-fence": ("F6",),
    "no-slot-query": ("F9",),
    "no-window": ("F22",),
    "old-epoch-log-taken": ("revoked-unawares", "shards-3", "shards"),
    "old-freeze-accepted": ("echo",),
    "outbox-keeps-orphan": ("F6", "F1"),
    "outputs-not-resent": ("F10", "F1"),
    "poison-runs-for-ever": ("F4",),
    "query-without-fence": ("slow-receivers",),
    "record-ack-of-old-epoch": ("alone-echo", "echo"),
    "record-of-old-epoch": ("echo", "late-return"),
    "reply-before-durable": ("F1",),
    "reply-before-replicate": ("two-replies",),
    "revoke-last-replica": ("shards", "lost-race"),
    "revoked-goes-on": ("late-return", "revoked-unawares"),
    "rollback-to-pending": ("alone",),
    "route-not-kept": ("F9",),
    "shrink-from-outside": ("lost-race", "shards"),
    "sink-keeps-orphan": ("F1", "F6"),
    "skip-without-deps": ("F1",),
    "slot-moves-while-busy": ("drains",),
    "update-with-orphans": ("before-update",),
}
"""Which scenes make a mutant show up soonest, if not any fault."""

SHAPES_FOR: dict[str, tuple[str, ...]] = {
    "feedback-speculative": ("feedback",),
    "complete-request-taken": ("single", "pair"),
    "longest-log-wins": ("single",),
    "mix-fan-out-values": ("fan-stateless", "fan-stateful"),
    "route-not-kept": ("router",),
    "skip-without-deps": ("router",),
    "unsticky-slots": ("fan-stateless", "diamond-combine"),
}
"""Where a mutant shows up soonest, if not in all shapes of its scenes."""

HISTORIES_FOR: dict[str, int] = {}
"""How many histories a rare mutant is given."""

SUPERFLUOUS: dict[str, str] = {}
"""Mutants that nothing can catch, and why."""


def histories(name: str, count: int, seed: int) -> Iterator[Spec]:
    """Histories in which a mutant may be caught."""
    faults = FAULTS_FOR.get(name, ("",))
    for number in range(count):
        fault = faults[number % len(faults)]
        everywhere = SCENES[fault].shapes if fault in SCENES else tuple(shape for shape in SHAPES if shape != "random")
        shapes = SHAPES_FOR.get(name, everywhere)
        yield Spec(seed + number, shapes[(number // len(faults)) % len(shapes)], fault)


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


def run(count: int, seed: int, jobs: int, output: str, only: str = "") -> int:
    """All mutants (or one); 0 if every one was caught that can be."""
    rows: list[dict[str, object]] = []
    for name, rule in sorted(mutants.REGISTRY.items()):
        if only not in ("", name):
            continue
        ran, caught = catch(name, HISTORIES_FOR.get(name, count), seed, jobs)
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
    return 0 if all(row["caught"] or row["mutant"] in SUPERFLUOUS for row in rows) else 1


def table(rows: list[Mapping[str, object]]) -> str:
    """docs/mutants.md."""
    text = ["# Mutants", "", "Protocol bugs that the simulation must catch, and after how many histories it does (`make sim-mutants`).", ""]
    text += ["| mutant | the rule it breaks | caught by | histories |", "| --- | --- | --- | --- |"]
    text += [f"| {row['mutant']} | {row['rule']} | {row['caught'] or 'not caught'} | {row['histories']} |" for row in rows]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(run(600, 1, 2, "text"))
