"""The proof that the checks can fail: every known protocol bug is switched on in turn, and must be caught.

A mutant is sought where the rule that it breaks is needed: `FAULTS_FOR` names scenes (or kinds of faults),
`SHAPES_FOR` graphs. Caught means that a history breaks an invariant with the mutant, and holds without it.
`NOT_CAUGHT` says what is known of others, if there are any.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping

from hams_protocol.graph import Mode
from hams_protocol.modes import ModePolicy
from hams_sim.mutants import early, receipts
from hams_sim.mutants.catalogue import MUTANTS
from hams_sim.scenarios import SCENES
from hams_sim.shapes import SHAPES
from hams_sim.simulate import NOT_REPLAYED, HistoryOutcome, Spec
from hams_sim.workers import Worker, run_all

FAULTS_FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "complete-before-stored",
            "determinants-forgotten",
            "durable-before-stored",
            "replays-in-arrival-order",
            "replays-one-by-one",
            "stateless-not-asked",
        ),
        ("kill",),
    ),
    "replies-without-determinants": ("mixed",),
    "runs-unstored": ("mixed",),
    "stores-pending": ("mixed",),
    "told-unaware": ("mixed",),
    "accept-old-epoch": ("late-fan", "late-return"),
    "ack-set-shrinks-early": ("lost-race",),
    "ack-without-epoch": ("alone",),
    "conflict-for-same": ("F39",),
    "death-unheard": ("follower-dies",),
    "early-alone": ("mixed",),
    "early-counts-at-once": ("reply-undone",),
    "early-done-unsent": ("F1",),
    "early-forgotten": ("reply-told",),
    "early-not-held": ("replied-only", "reply-told"),
    "early-not-judged": ("reply-undone",),
    "early-told-again": ("F39",),
    "early-void-stays": ("reply-undone",),
    "deadline-early": ("F18", "F22"),
    "poison-at-first-death": ("F4",),
    "progress-forgotten": ("others-wait",),
    "waiting-counts-as-slow": ("others-wait",),
    "block-counts-dropped": ("dropped-follower",),
    "checkpoint-oldest": ("state-lost",),
    "checkpoint-speculative": ("state-lost",),
    "checkpoint-without-consumed": ("state-lost",),
    "learnt-when-sent": ("state-lost",),
    "lost-shard-reuses-ids": ("frontends-lost",),
    "lost-while-held": ("in-doubt",),
    "ticket-not-pending": ("no-key",),
    "tickets-forgotten": ("no-key",),
    "ticket-goes-with-its-reply": ("few-replies", "few-replies-copied"),
    "copy-without-unkept": ("few-replies-copied",),
    "half-the-replies-are-kept": ("few-replies-copied", "F41"),
    "copy-overtakes-topology": ("keeper-lags",),
    "owner-stays-doomed": ("keeper-hurt",),
    "empty-keeper-holds": ("keeper-hurt",),
    "unaware-keeper-is-empty": ("keeper-unseen",),
    "joiner-ends-unawares": ("handed-unawares",),
    "keeper-ends-unasked": ("keeper-hurt",),
    "keeper-takes-late-copy": ("keeper-unawares",),
    "begins-again-on-a-copy": ("keeper-hurt",),
    "answering-holder-is-given-up": ("unregistered-holder",),
    "stopped-manager-gives-up": ("state-lost",),
    "stopped-manager-does-not-doubt": ("stopped-managers",),
    "rolled-back-is-replaced": ("late-poison",),
    "stopped-keeper-ends": ("keeper-unawares",),
    "stems-unsaid": ("stems-unsaid",),
    "dead-keeper-is-needed": ("crosswise",),
    "fetches-for-ever": ("keeper-hurt",),
    "ack-without-value-id": ("stale-acks",),
    "act-before-commit": ("second-thoughts",),
    "adopted-under-new-id": ("F9",),
    "alone-without-deps": ("alone",),
    "apply-orphan": ("out-of-reach",),
    "attempt-not-awaited": ("innocents",),
    "begins-again-unasked": ("lost-early", "lost-late"),
    "late-replacement-not-awaited": ("replaced-twice",),
    "logged-before-said": ("lost-unsaid",),
    "complete-request-taken": ("echo",),
    "deps-not-transitive": ("F1",),
    "consumed-not-restored": ("F2",),
    "apply-with-gap": ("F21", "echo"),
    "copy-speculative": ("pending-alone", "alone"),
    "copy-without-consumed": ("pending-alone", "alone"),
    "copy-without-tickets": ("copied-log",),
    "copy-without-fan-inputs": ("copied-inputs",),
    "merge-unknown-epoch": ("unheard",),
    "durable-when-tainted": ("told-alone",),
    "ends-dropped-unheard": ("long-away",),
    "feedback-speculative": ("F1",),
    "handed-slot-forgotten": ("handed-slot",),
    "one-shard-asked": ("replied-only",),
    "orphan-adopted": ("adopted-orphan",),
    "first-answer-decides": ("second-backup",),
    "follower-answers": ("silent-primary",),
    "refusal-forgotten": ("echo",),
    "freeze-ignored": ("shards-3", "revoked-unawares"),
    "frozen-keeper-goes-on": ("keeper-unawares",),
    "frozen-takes-records": ("revoked-unawares",),
    "hand-over-unflushed": ("drains",),
    "highest-becomes-primary": ("uneven",),
    "holds-what-others-wait-for": ("rollout",),
    "ignore-taint": ("F6",),
    "inject-before-replicate": ("F39",),
    "durable-without-keeper": ("keeper-hurt",),
    "keeper-forgets": ("late-poison",),
    "keeper-let-go": ("keeper-unseen",),
    "keeper-not-asked": ("late-poison",),
    "keeper-without-consumed": ("late-poison",),
    "no-keeper": ("late-replacement",),
    "kept-never-asked": ("kept-alone",),
    "kept-pending": ("kept-alone",),
    "kept-without-consumed": ("kept-busy",),
    "key-table-not-derived": ("F39", "shards"),
    "leave-ack-set-before-shrink": ("lost-race",),
    "leaves-at-once": ("node-drain", "log-successor-dies"),
    "leaves-with-hand-over": ("successor-dies",),
    "goes-on-after-hand-over": ("both-end",),
    "successor-not-asked": ("both-end",),
    "hung-is-dead": ("all-hang",),
    "log-leaves-with-hand-over": ("log-successor-dies",),
    "lost-probe-counts": ("dies-among-starved",),
    "longest-log-wins": ("short-log",),
    "mix-fan-out-values": ("torn-fan",),
    "newest-fence-only": ("two-minds",),
    "no-fence": ("F6",),
    "no-slot-query": ("F9",),
    "no-window": ("F22",),
    "forward-of-any-epoch": ("late-news",),
    "lost-race-waits": ("late-news",),
    "news-not-awaited": ("late-news",),
    "old-epoch-log-taken": ("late-log",),
    "old-freeze-accepted": ("late-freeze",),
    "outbox-keeps-orphan": ("F1",),
    "outputs-not-resent": ("F10", "F1"),
    "poison-runs-for-ever": ("F4",),
    "proposals-pile-up": ("etcd-long-away",),
    "query-without-fence": ("slow-receivers",),
    "records-without-fan-inputs": ("silent-primary",),
    "record-ack-of-old-epoch": ("joins-twice",),
    "record-of-old-epoch": ("late-return", "adopted-orphan"),
    "reply-before-durable": ("F1",),
    "reply-before-replicate": ("two-replies",),
    "revoke-last-replica": ("dies-alone",),
    "revoked-goes-on": ("late-return", "revoked-unawares"),
    "rollback-to-pending": ("pending-alone",),
    "route-not-kept": ("F9",),
    "set-before-ack-set": ("second-thoughts", "joins-twice"),
    "shrink-from-outside": ("unleased",),
    "sink-keeps-orphan": ("F1", "F6"),
    "silent-leader-dropped": ("silent-primary",),
    "skip-without-deps": ("F1",),
    "slot-moves-while-busy": ("planned",),
    "slot-moves-while-served": ("slots-pass",),
    "probed-once": ("connecting",),
    "slot-goes-to-departed": ("slow-exit",),
    "manager-gives-to-departed": ("slow-exit",),
    "cut-off-judge-judges": ("apart",),
    "deaf-judge-judges": ("apart-alone",),
    "starved-judge-judges": ("F42",),
    "suspect-without-backup": ("innocents",),
    "unreadable-is-lost": ("unreadable",),
    "unreadable-runs": ("unreadable",),
    "tainted-primary-joins": ("tainted-lives",),
    "update-with-orphans": ("before-update",),
    "replaced-is-dead": ("replaced-alone",),
    "keeper-unaware-of-itself": ("late-replacement",),
    "oldest-not-asked-for": ("out-of-reach",),
    "rollback-drops-keeper": ("keeper-alone",),
    "found-unseen": ("dies-among-starved",),
    "dead-model-stays-dead": ("keeper-hurt",),
    "drained-stays": ("handed-unawares",),
    "durable-version-dropped": ("uneven",),
    "durable-before-rollback": ("keeper-alone",),
    "early-ask-ignored": ("early-ask",),
    "word-of-a-suspect": ("keeper-vouched",),
    "held-outputs-survive-failover": ("pending-alone", "alone"),
    "admits-while-closed": ("change-unheard",),
    "begins-at-another-cut": ("change-unheard",),
    "closed-reopens": ("change-mixed",),
    "closes-unasked": ("change",),
    "done-at-another-cut": ("change-unheard",),
    "done-unguarded": ("change-stale",),
    "done-while-open": ("change",),
    "done-without-copies": ("change",),
    "expired-not-told": ("change-twice",),
    "fetches-unclosed": ("change",),
    "first-table-taken": ("change-twice",),
    "holds-for-ever": ("change-abandoned",),
    "hopeless-tried-again": ("change-refused",),
    "opens-early": ("change",),
    "over-goes-on": ("change-mixed",),
    "own-replies-forgotten": ("change-twice",),
    "passed-on-twice": ("change-passing",),
    "pushed-out-forgotten": ("change-twice",),
    "quiet-of-another": ("change-unheard",),
    "quiet-of-old-epoch": ("change-unheard",),
    "refused-taken": ("change-refused",),
    "requests-not-held": ("change-twice",),
    "tries-not-counted": ("change-abandoned",),
    "waits-unquiet": ("change",),
    "whole-forgotten": ("change-twice",),
    "clean-though-unknown": ("receding-kept",),
    "end-with-lost-deps": ("receding",),
    "ends-stay": ("receding-together",),
    "epoch-forgets-deps": ("receding",),
    "held-version-dropped": ("receding",),
    "keeper-copies-pending": ("receding-kept",),
}
"""Which scenes make a mutant show up soonest, if not any fault."""

SHAPES_FOR: dict[str, tuple[str, ...]] = {
    "deps-not-transitive": ("diamond-interleave",),
    "feedback-speculative": ("feedback",),
    "feedback-budget-anew": ("feedback",),
    "complete-request-taken": ("single", "pair"),
    "lanes-share-fan": ("lanes",),
    "outbox-keeps-orphan": ("first", "diamond-first"),
    "route-not-kept": ("router",),
    "skip-without-deps": ("router",),
    "unsticky-slots": ("fan-stateless", "diamond-combine"),
}
"""Where a mutant shows up soonest, if not in all shapes of its scenes."""

MODE_FOR: dict[str, Mode] = {
    "complete-before-stored": Mode.LINEAGE_STASH,
    "complete-but-sent": Mode.REMUS,
    "determinants-forgotten": Mode.LINEAGE_STASH,
    "durable-before-stored": Mode.LINEAGE_STASH,
    "replays-in-arrival-order": Mode.LINEAGE_STASH,
    "replays-one-by-one": Mode.LINEAGE_STASH,
    "replies-without-determinants": Mode.LINEAGE_STASH,
    "runs-unstored": Mode.LINEAGE_STASH,
    "begins-again-unread": Mode.LINEAGE_STASH,
    "stateless-not-asked": Mode.LINEAGE_STASH,
    "stores-pending": Mode.LINEAGE_STASH,
    "told-unaware": Mode.LINEAGE_STASH,
    "held-outputs-survive-failover": Mode.REMUS,
    "release-before-durable": Mode.REMUS,
    "runs-while-copied": Mode.STOP_AND_COPY,
    "takeover-releases-at-once": Mode.BUFFERED_OUTPUTS,
}
"""The mode of which a mutant leaves out a rule, if not `NonStop`."""

POLICY_FOR: dict[str, str] = {
    "error-age-counted": "distribution",
    "late-and-run": "deadline",
    "reply-age-early": "distribution",
    "refusal-forgotten": "distribution",
    "refused-and-logged": "distribution",
    "reply-age-unsaid": "distribution",
    "shed-without-token": "deadline",
}
"""The scheduling policy under which a mutant shows up, if not `Fifo`."""

FIRST_FOR: dict[str, Spec] = {
    "complete-but-sent": Spec(50049, "diamond-combine", "mixed", mode=Mode.REMUS.value),
    "birth-lost-in-catch-up": Spec(383, "chain"),
    "done-unguarded": Spec(321, "sandwich", "change-stale"),
    "early-alone": Spec(1200005, "diamond-combine", "mixed", early_replies=True),
    "done-while-open": Spec(6, "single", "change"),
    "fetches-unclosed": Spec(6, "single", "change"),
    "refusal-forgotten": Spec(588, "sandwich", "echo", policy="distribution"),
    "passed-on-twice": Spec(2, "sandwich", "change-passing"),
}
"""The history that found a rare mutant while that was how the core was written. It is run first."""

HISTORIES_FOR: dict[str, int] = {
    "handed-slot-forgotten": 200,
    "holds-what-others-wait-for": 600,
    "attempt-not-awaited": 300,
    "accept-old-epoch": 600,
    "ack-without-epoch": 600,
    "leaves-at-once": 200,
    "deps-not-transitive": 200,
    "complete-request-taken": 200,
    "complete-without-close": 200,
    "copy-speculative": 200,
    "kept-pending": 200,
    "newest-fence-only": 300,
    "old-freeze-accepted": 200,
    "record-ack-of-old-epoch": 700,
    "reply-before-replicate": 200,
    "update-with-orphans": 300,
}
"""How many histories a rare mutant is given."""

HISTORIES_EACH = 100
"""How many all others are given."""

RARE = "a transcript kills it (tests/protocol/test_mutants_killed.py); of histories one in many hundreds did"
STOPPED = "a transcript kills it; nobody is stopped in histories for so long in just that moment"
NOT_CAUGHT: dict[str, str] = {
    "begins-at-another-cut": RARE,
    "born-before-it-was-made": (
        "a transcript kills it; nobody follows from before what came whole, and captured chunks have births"
    ),
    "clean-though-unknown": "a transcript kills it; of 600 histories of receding-kept none does any more",
    "durable-when-tainted": "a transcript kills it; of 3,000 histories of told-alone none does any more",
    "dead-counts-as-unheard": "a transcript kills it; it only makes a failover slower",
    "doubt-renewed": "a transcript kills it; it only makes a failover slower",
    "forward-of-any-epoch": (
        "a transcript kills it; a refusal, a handover and a failover must follow on each other"
    ),
    "lost-race-waits": "a transcript kills it; it only makes a failover slower",
    "feedback-outlives-origin": (
        "a transcript kills it (tests/protocol/test_mutants_killed.py); of histories one in some twenty "
        "thousand did"
    ),
    "closes-unasked": RARE,
    "complete-injected-again": RARE,
    "dead-model-stays-dead": RARE,
    "takeover-releases-at-once": RARE,
    "owner-stays-doomed": "a transcript kills it; no scene has three faults within one attempt",
    "empty-keeper-holds": "a transcript kills it; nothing known names a keeper that holds nothing",
    "stopped-manager-gives-up": STOPPED,
    "rolled-back-is-replaced": "a transcript kills it; one of 14,000 histories of late-poison did",
    "stopped-keeper-ends": STOPPED,
    "begins-again-on-a-copy": "a transcript kills it; the joiner of a lost state has to keep another one",
    "dead-keeper-is-needed": "a transcript kills it; it takes three faults, and keepers crosswise",
    "fetches-for-ever": "a transcript kills it; in histories who is alive can be reached in the end",
    "keeper-takes-late-copy": "a transcript kills it; nothing known names a keeper that holds nothing",
    "joiner-ends-unawares": "a transcript kills it; a state with one copy less is no loss",
    "keeper-ends-unasked": "a transcript kills it; a state with one copy less is no loss",
    "unaware-keeper-is-empty": "a transcript kills it; a primary would have to die as it names a keeper",
    "joiner-counts-behind": "a transcript kills it; logs of histories are copied in one part",
    "copies-mixed": "a transcript kills it; logs of histories are copied in one part",
    "closed-reopens": "a transcript kills it; etcd that loses a key is not among the faults",
    "first-table-taken": RARE,
    "out-of-reach-is-over": "a transcript kills it; a client may get a 504 at its deadline",
    "over-goes-on": RARE,
    "quiet-of-another": RARE,
    "quiet-of-old-epoch": RARE,
    "waits-unquiet": RARE,
    "whole-forgotten": "a transcript kills it; only losses beyond what is tolerated lead there",
    "durable-before-rollback": RARE,
    "early-copied-void": "a transcript kills it; who copies knows the end itself, unless that is long past",
    "early-done-unsettled": RARE,
    "early-not-held": "a transcript kills it; of 60 histories none did",
    "early-without-skips": "a transcript kills it; skips reach a frontend in few graphs that are drawn",
    "early-undone-lost": "a transcript kills it; only losses beyond what is tolerated lead there",
    "begins-again-unread": "a transcript kills it; no scene has a store that is so slow",
    "durable-version-dropped": RARE,
    "early-ask-ignored": RARE,
    "keeper-unaware-of-itself": RARE,
    "lost-probe-counts": RARE,
    "oldest-not-asked-for": RARE,
    "replaced-is-dead": RARE,
    "replies-without-determinants": "a transcript kills it; of 100 histories none did",
    "restart-takes-keeper": RARE,
    "runs-unstored": RARE,
    "stores-pending": RARE,
    "told-unaware": RARE,
    "rollback-drops-keeper": RARE,
    "silent-asked-to-go-back": RARE,
    "missed-epochs-unread": "a transcript kills it; who is in sync has missed nothing that was committed",
    "successor-untold": "a transcript kills it; the message may be late anyway, so no scene asserts it",
    "departed-substitute-counts": "a transcript kills it; a slot may be vacant for a moment",
    "attempt-gives-to-departed": "a transcript kills it; no recovery coincides with a graceful end there",
    "starting-is-dead": "a transcript kills it; who is registered in time is not suspected",
    "unregistered-judged": "a transcript kills it; watches do not lag so far, nor do links",
    "vacant-slot-open": "a transcript kills it; in histories a client gets an error that section 4 allows",
}
"""Mutants that the simulation has not caught, and what is known of them. `--mutants` leaves them out unless a
number of histories is asked for."""


def histories(name: str, count: int, seed: int) -> Iterator[Spec]:
    """Histories in which a mutant may be caught."""
    if name in FIRST_FOR:
        yield FIRST_FOR[name]
    faults = FAULTS_FOR.get(name, ("",))
    for number in range(count):
        fault = faults[number % len(faults)]
        everywhere = (
            SCENES[fault].shapes if fault in SCENES else tuple(shape for shape in SHAPES if shape != "random")
        )
        shapes = SHAPES_FOR.get(name, everywhere)
        mode = MODE_FOR[name].value if name in MODE_FOR else ""
        if mode and ModePolicy.of(MODE_FOR[name]).replays:
            shapes = tuple(shape for shape in shapes if shape not in NOT_REPLAYED)
        shape = shapes[(number // len(faults)) % len(shapes)]
        yield Spec(
            seed + number,
            shape,
            fault,
            mode=mode,
            policy=POLICY_FOR.get(name, ""),
            early_replies=name in early.MUTANTS,
            by_receipt=name in receipts.MUTANTS,
        )


def catch(name: str, count: int, seed: int, jobs: int) -> tuple[int, HistoryOutcome | None]:
    """Histories run until the mutant was caught, and the one that caught it; None if it got through.

    Caught means: this history breaks an invariant with the mutant, and holds without it.
    """
    ran = 0
    control = Worker(sources=True)
    try:
        for outcome in run_all(histories(name, count, seed), jobs, name):
            ran += 1
            if not outcome.ok and control.run(outcome.spec).ok:
                return ran, outcome
        return ran, None
    finally:
        control.close()


def run(count: int | None, seed: int, jobs: int, output: str) -> int:
    """All mutants, in as many histories each as asked for, or as it usually takes; 0 if every one was caught
    that once was."""
    rows: list[dict[str, object]] = []
    for name, mutant in sorted(MUTANTS.items()):
        if count is None and name in NOT_CAUGHT:
            ran, caught = 0, None
        else:
            ran, caught = catch(name, count or HISTORIES_FOR.get(name, HISTORIES_EACH), seed, jobs)
        rows.append(
            {
                "mutant": name,
                "rule": mutant.rule,
                "section": mutant.section,
                "histories": ran,
                "caught": caught.what if caught else "",
                "command": caught.spec.command() if caught else "",
            }
        )
        if output == "text":
            verdict = f"caught after {ran}" if caught else f"NOT CAUGHT in {ran}" if ran else "left out"
            sys.stdout.write(
                f"{name:32} {verdict:24} {caught.what if caught else NOT_CAUGHT.get(name, '')}\n"
            )
            sys.stdout.flush()
    if output == "json":
        sys.stdout.write(json.dumps(rows) + "\n")
    elif output == "markdown":
        sys.stdout.write(table(rows))
    return 0 if all(row["caught"] or row["mutant"] in NOT_CAUGHT for row in rows) else 1


PAGE = """# Mutants

Protocol bugs that the simulation must catch (`make sim-mutants`): each leaves out one rule of the protocol.
A mutant is caught by a history that breaks an invariant with it and holds without it. Scenes and graphs are
chosen so that the rule is needed; the number says how many histories that took. Section: of
[protocol.md](design/protocol.md), where the invariants stand too, in section 8. This page is
`hams sim --mutants --output markdown`.

| mutant | the rule it breaks | section | broken invariant | histories | scene |
| --- | --- | --- | --- | --- | --- |
"""

MISSED = """
Caught by histories only now and then:

| mutant | the rule it breaks | section | why (argued, not proven) |
| --- | --- | --- | --- |
"""


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """docs/mutants.md."""
    caught, missed = "", ""
    for row in rows:
        name = str(row["mutant"])
        about = f"| {name} | {row['rule']} | {row['section']} |"
        if row["caught"]:
            scenes = ", ".join(FAULTS_FOR.get(name, ("any fault",)))
            caught += f"{about} {row['caught']} | {row['histories']} | {scenes} |\n"
        else:
            missed += f"{about} {NOT_CAUGHT.get(name, 'not known')} |\n"
    return PAGE + caught + (MISSED + missed if missed else "")
