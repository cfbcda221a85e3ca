"""Statistics of two things that were measured in turn: ratio, interval, and whether the run counts at all.

A machine that is shared wanders by a quarter within an hour. So bare metal and a mode are asked in turn,
window by window, and compared is what lies side by side in time.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
WANDER_MAX = 0.03
"""A run whose bare metal wanders by more than this between windows is disturbed, and judged void."""

OTHERS_MAX = 0.25
"""Cores that others may take meanwhile; a run beside more is void. Two graphs fill two cores at times, and
what is taken from one of them is missing then."""

WINDOWS_MIN = 12
WINDOW_MIN_S = 10.0
"""So many windows that are so long are a whole run; a shorter one can miss a goal, and meets none."""


@dataclass(frozen=True)
class Ratio:
    """Of a mode to bare metal: its value, and the bounds of a bootstrap interval of 95 %."""

    value: float
    low: float
    high: float


Windows = Sequence[Sequence[float]]
"""Of each window what was measured in it."""


def ratio_of_medians(bare: Windows, mode: Windows, seed: int) -> Ratio:
    """Of the medians of all that was measured; pairs of windows are drawn again."""
    return _ratio(bare, mode, lambda windows: float(np.median(np.concatenate(windows))), seed)


def ratio_of_rates(bare: Sequence[float], mode: Sequence[float], seed: int) -> Ratio:
    """Of mean rates, one of each window."""
    return _ratio(
        [[value] for value in bare],
        [[value] for value in mode],
        lambda windows: float(np.mean(np.concatenate(windows))),
        seed,
    )


def _ratio(bare: Windows, mode: Windows, of: Callable[[list[np.ndarray]], float], seed: int) -> Ratio:
    """Raises ValueError if there is nothing to compare."""
    if len(bare) != len(mode) or not bare or not all(map(len, itertools.chain(bare, mode))):
        raise ValueError(f"expected pairs of windows with samples, found {len(bare)} and {len(mode)}")
    ours, theirs = [np.asarray(item) for item in mode], [np.asarray(item) for item in bare]
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = random.integers(0, len(bare), len(bare))
        drawn.append(of([ours[at] for at in chosen]) / of([theirs[at] for at in chosen]))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Ratio(of(ours) / of(theirs), float(low), float(high))


def wander(bare: Windows) -> float:
    """How far apart the medians of bare metal's windows lie, as a part of their median."""
    medians = [float(np.median(window)) for window in bare]
    return (max(medians) - min(medians)) / float(np.median(medians))


def rate(ended: Sequence[float]) -> float:
    """Per second, of the times at which something ended: from the first to the last, so that a window that
    holds few is not rounded."""
    ordered = sorted(ended)
    if len(ordered) < 2 or ordered[-1] == ordered[0]:
        return float("nan")
    return (len(ordered) - 1) / (ordered[-1] - ordered[0])


def orders(pairs: int, seed: int) -> list[bool]:
    """Of each pair of windows whether bare metal goes first."""
    return [bool(item) for item in np.random.default_rng(seed).integers(0, 2, pairs)]
