"""Make a failing history smaller: leave out faults, operators and requests as long as the same invariant
breaks."""

from collections.abc import Callable
from dataclasses import replace

from hams_sim import limits
from hams_sim.simulate import HistoryOutcome, Spec


def shrink(failed: HistoryOutcome, run: Callable[[Spec], HistoryOutcome]) -> HistoryOutcome:
    """The smallest failure found within a bounded number of runs."""
    best = failed
    runs = 0

    def still_fails(spec: Spec) -> bool:
        nonlocal best, runs
        if runs >= limits.shrink_runs_max:
            return False
        runs += 1
        outcome = run(spec)
        if outcome.what == failed.what:
            best = outcome
            return True
        return False

    for number in range(failed.fault_count):
        still_fails(replace(best.spec, drop_faults=best.spec.drop_faults | {number}))
    for name in failed.ops:
        if len(best.spec.drop_ops) + 1 < len(failed.ops):
            still_fails(replace(best.spec, drop_ops=best.spec.drop_ops | {name}))
    size = failed.calls // 2
    while size >= 1 and runs < limits.shrink_runs_max:
        for first in range(0, failed.calls, size):
            fresh = frozenset(range(first, min(first + size, failed.calls))) - best.spec.drop_calls
            if fresh:
                still_fails(replace(best.spec, drop_calls=best.spec.drop_calls | fresh))
        size //= 2
    return best
