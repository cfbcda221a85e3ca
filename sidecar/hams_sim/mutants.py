"""The proof that the checks can fail: every known protocol bug is switched on in turn, and must be caught.

A mutant is sought where the rule that it breaks is needed: `FAULTS_FOR` names scenes (or kinds of faults), `SHAPES_FOR` graphs. Caught
means that a history breaks an invariant with the mutant, and holds without it. `NOT_CAUGHT` says what is known of the others.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping

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
    "attempt-not-awaited": ("innocents",),
    "complete-request-taken": ("echo",),
    "consumed-not-restored": ("F2",),
    "apply-with-gap": ("F21", "echo"),
    "copy-speculative": ("pending-alone", "alone"),
    "copy-without-consumed": ("pending-alone", "alone"),
    "merge-unknown-epoch": ("late-news",),
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
    "leaves-at-once": ("node-drain",),
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
    "rollback-to-pending": ("pending-alone",),
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

HISTORIES_FOR: dict[str, int] = {
    "attempt-not-awaited": 300,
    "leaves-at-once": 200,
    "kept-pending": 200,
    "deps-not-transitive": 200,
    "reply-before-replicate": 200,
    "update-with-orphans": 300,
}
"""How many histories a rare mutant is given."""

HISTORIES_EACH = 100
"""How many all others are given."""

NOT_CAUGHT: dict[str, str] = {
    "ack-without-value-id": "rare: a lost token, and a late acknowledgement of the value that it replaces, from the same owner in the same epoch",
    "act-before-commit": "superfluous for safety: what is held and not applied is not durable; an attempt that fails costs a copy",
    "apply-orphan": "superfluous beside the fence: the commit that makes a record orphan ends the epoch it is from",
    "longest-log-wins": "rare: three frontends whose logs differ, and two takeovers in a row",
    "merge-unknown-epoch": "rare: a token of a new epoch must hide an orphan of the old one, at a receiver that knows neither",
    "mix-fan-out-values": "not judged: where two values of a fan-out can meet, the checks do not hold either one against a reply (section 4)",
    "newest-fence-only": "superfluous for safety: a primary that learns an end below its state stops by itself",
    "no-fence": "superfluous for safety: a primary that learns an end below its state stops by itself, and its set fails over one commit later",
    "old-epoch-log-taken": "rare: entries of an old epoch must arrive in their new epoch's place",
    "old-freeze-accepted": "superfluous for safety: the answer is to an attempt that is over; the primary drops that backup after a stall",
    "outbox-keeps-orphan": "superfluous for safety: every receiver refuses orphans, and the successor takes the place; it costs what is sent in vain",
    "query-without-fence": "rare: receivers that learn of a new slot owner by its question alone, and a living predecessor",
    "record-ack-of-old-epoch": "rare: one primary in two epochs with the same joiner in both",
    "revoke-last-replica": "rare: a revoked frontend is the only one left of a shard; seeds 60321 and 60456 led there before it was refused",
    "rollback-to-pending": "rare: a primary alone goes back, and then what it went back to is lost upstream",
    "route-not-kept": "rare: the heir of a router's slot finds skips only",
    "shrink-from-outside": "superfluous for safety: the primary counts on the member until it learns better; it gives redundancy away",
    "unknown-hides-orphan": "superfluous for safety: what is orphan waits in a stash instead of being dropped",
    "suspect-without-backup": "not judged: the simulation spares the last replica of a state; tests/protocol/test_poison.py tells of it",
    "slot-moves-while-busy": "superfluous for safety: the heir asks the successors like after a failure; it costs executions",
}
"""Mutants that the simulation has not caught, and why. `--mutants` leaves them out unless a number of histories is asked for."""


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


def run(count: int | None, seed: int, jobs: int, output: str) -> int:
    """All mutants, in as many histories each as asked for, or as it usually takes; 0 if every one was caught that once was."""
    rows: list[dict[str, object]] = []
    for name, rule in sorted(mutants.REGISTRY.items()):
        if count is None and name in NOT_CAUGHT:
            ran, caught = 0, None
        else:
            ran, caught = catch(name, count or HISTORIES_FOR.get(name, HISTORIES_EACH), seed, jobs)
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
            verdict = f"caught after {ran}" if caught else f"NOT CAUGHT in {ran}" if ran else "left out"
            sys.stdout.write(f"{name:32} {verdict:24} {caught.what if caught else NOT_CAUGHT.get(name, '')}\n")
            sys.stdout.flush()
    if output == "json":
        sys.stdout.write(json.dumps(rows) + "\n")
    elif output == "markdown":
        sys.stdout.write(table(rows))
    return 0 if all(row["caught"] or row["mutant"] in NOT_CAUGHT for row in rows) else 1


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """docs/mutants.md."""
    text = ["# Mutants", ""]
    text += ["Protocol bugs that the simulation must catch (`make sim-mutants`): each leaves out one rule of the protocol. A mutant is caught by a"]
    text += ["history that breaks an invariant with it and holds without it. Scenes and graphs are chosen so that the rule is needed; the number"]
    text += ["says how many histories that took. This page is `hams sim --mutants --output markdown`.", ""]
    text += ["| mutant | the rule it breaks | section | broken invariant | histories | scene |", "| --- | --- | --- | --- | --- | --- |"]
    missed: list[str] = []
    for row in rows:
        name, rule = str(row["mutant"]), str(row["rule"])
        rule, _, section = rule.removesuffix(")").partition(" (section")
        if row["caught"]:
            spot = ", ".join(FAULTS_FOR.get(name, ("any fault",)))
            text.append(f"| {name} | {rule} | {section.removeprefix('s').strip()} | {row['caught']} | {row['histories']} | {spot} |")
        else:
            missed.append(f"| {name} | {rule} | {section.removeprefix('s').strip()} | {NOT_CAUGHT.get(name, 'not known')} |")
    text += [
        "",
        "Not caught so far, in 60 to 500 histories each:",
        "",
        "| mutant | the rule it breaks | section | why (argued, not proven) |",
        "| --- | --- | --- | --- |",
        *missed,
    ]
    return "\n".join(text) + "\n"
