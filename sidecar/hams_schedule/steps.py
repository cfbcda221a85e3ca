"""What an answer is worth by when it comes: it may lose parts of its worth before its deadline.

Steps are (seconds before `due`, share of the worth that is lost from then on), the earliest first and the
last at `due` itself; shares sum to 1. `due` is the end of it all: an answer after it is worth nothing. All
requests of an operator have the same steps, so the order of dues is the order of any step.
"""

import math
from typing import Final

from hams_schedule.limits import cost_steps_max

Steps = tuple[tuple[float, float], ...]

AT_ONCE: Final[Steps] = ((0.0, 1.0),)
"""All is lost at `due`: what holds where nobody says otherwise."""


def checked(steps: Steps) -> Steps:
    """The steps. Raises ValueError for what are none."""
    befores = [before for before, _ in steps]
    if (
        not 1 <= len(steps) <= cost_steps_max
        or befores != sorted(set(befores), reverse=True)
        or befores[-1] != 0.0
        or not all(math.isfinite(before) and share > 0.0 for before, share in steps)
        or not math.isclose(sum([share for _, share in steps]), 1.0)
    ):
        raise ValueError(
            f"expected 1 to {cost_steps_max} steps that descend to 0 and whose shares sum to 1, found {steps}"
        )
    return steps


def worth(steps: Steps, left: float) -> float:
    """What an answer is worth that comes `left` seconds before it is due, from 0 to 1."""
    return sum([share for before, share in steps if left >= before])
