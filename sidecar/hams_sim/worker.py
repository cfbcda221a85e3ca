"""One simulating process: reads a history's name as a line of JSON, writes what came of it as a line of JSON.

Its parent fixes the seed of string hashes, so that the same name gives the same history in every process.
"""

import gc
import json
import signal
import sys
from collections import Counter

from hams_sim.mutants.catalogue import switch_off, switch_on
from hams_sim.simulate import HistoryOutcome, Spec, simulate


def spec_from(text: str) -> tuple[Spec, str]:
    """A history's name, and the mutant to switch on ("" for none)."""
    raw = json.loads(text)
    spec = Spec(
        raw["seed"],
        raw["shape"],
        raw.get("fault", ""),
        frozenset(raw.get("drop_faults", ())),
        frozenset(raw.get("drop_calls", ())),
        frozenset(raw.get("drop_ops", ())),
        raw.get("mode", ""),
        raw.get("policy", ""),
        raw.get("random_models", False),
        raw.get("early_replies", False),
        raw.get("by_receipt", False),
    )
    return spec, raw.get("mutant", "")


def spec_to(spec: Spec, mutant: str) -> str:
    """The line that `spec_from` reads."""
    return json.dumps(
        {
            "seed": spec.seed,
            "shape": spec.shape,
            "fault": spec.fault,
            "drop_faults": sorted(spec.drop_faults),
            "drop_calls": sorted(spec.drop_calls),
            "drop_ops": sorted(spec.drop_ops),
            "mode": spec.mode,
            "policy": spec.policy,
            "random_models": spec.random_models,
            "early_replies": spec.early_replies,
            "by_receipt": spec.by_receipt,
            "mutant": mutant,
        }
    )


def outcome_to(outcome: HistoryOutcome) -> str:
    """What came of a history, without its name."""
    return json.dumps(
        {
            "what": outcome.what,
            "message": outcome.message,
            "calls": outcome.calls,
            "events": outcome.events,
            "sim_s": outcome.sim_s,
            "faults": outcome.faults,
            "coverage": outcome.coverage,
            "fault_count": outcome.fault_count,
            "ops": outcome.ops,
            "schedule": outcome.schedule,
        }
    )


def outcome_from(spec: Spec, text: str) -> HistoryOutcome:
    """The outcome of `spec` as a worker wrote it."""
    raw = json.loads(text)
    return HistoryOutcome(
        spec,
        raw["what"],
        raw["message"],
        raw["calls"],
        raw["events"],
        raw["sim_s"],
        Counter(raw["faults"]),
        Counter(raw["coverage"]),
        raw["fault_count"],
        tuple(raw["ops"]),
        tuple(raw["schedule"]),
    )


def main() -> int:
    """Serve until the input ends. Ctrl-C is for the parent, which ends the input. Where the parent has been
    killed, this process ends as it writes.

    A history is a megabyte of small objects in cycles. They are collected after it, and not within, which is
    a fifth slower; nor after several, which is a tenth slower: so few are in the processor's cache yet.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    gc.disable()
    gc.collect()
    gc.freeze()  # the modules: without them a collection takes half the time
    for line in sys.stdin:
        spec, mutant = spec_from(line)
        if mutant:
            switch_on(mutant)
        else:
            switch_off()
        sys.stdout.write(outcome_to(simulate(spec)) + "\n")
        sys.stdout.flush()
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
