"""How fast a machine is beside the one that a profile was learnt on: another GPU, another processor.

Whoever takes a stored profile over compares its first batches with what they were expected to take. Where
they are off by one factor, the profile is scaled, and need not be learnt anew batch by batch.

What is compared are sums, whose ratio is right whatever the law: a median is not, where short and long
requests cannot be told apart. What chance makes of it is known from the laws. The first batches of a
process take longer than later ones, so both halves have to say the same, and the later one says by how
much.
"""

import math
from typing import Final

from hams_schedule.limits import speed_batches, speed_held_max

SAME: Final = math.log(1.25)
"""A machine that differs by less is the same: learning as usual follows it."""
SURE: Final = 4.0
"""Standard errors by which the ratio has to be off."""
FACTOR_MAX: Final = 100.0
"""A profile that is further off is of something else."""


class FirstBatch:
    """A batch that is learnt once the speed is known. It was expected to take `expected_s`, with `variance`;
    0: that is a guess, and compared with nothing."""

    __slots__ = ("expected_s", "members", "now", "rows", "time", "variance", "weight")

    def __init__(self, members: list[int], rows: int, time: float, now: float, weight: float) -> None:
        self.members = members
        self.rows = rows
        self.time = time
        self.now = now
        self.weight = weight
        self.expected_s = 0.0
        self.variance = 0.0


class Speed:
    """The first batches after a profile was taken over."""

    def __init__(self) -> None:
        self.held: list[FirstBatch] = []

    def leave(self, classes: set[int]) -> None:
        """Others have these classes now."""
        self.held = [batch for batch in self.held if not classes.intersection(batch.members)]

    def factor(self, samples: int) -> float:
        """By how much batches take longer here than where the profile was learnt, from `samples`; 1 if that
        is nothing, 0 while it is not known."""
        compared = [batch for batch in self.held if batch.expected_s > 0.0 and batch.weight == 1.0]
        if len(compared) < speed_batches:
            return 1.0 if len(self.held) >= speed_held_max else 0.0
        half = len(compared) // 2
        first, second, both = ratio(compared[:half]), ratio(compared[half:]), ratio(compared)
        if min(abs(first), abs(second)) < SAME or first * second < 0.0:
            return 1.0
        if abs(both) < SURE * error(compared, samples) or abs(second) > math.log(FACTOR_MAX):
            return 1.0
        return math.exp(second)


def ratio(batches: list[FirstBatch]) -> float:
    """The logarithm of what batches took over what they were expected to take."""
    took, expected = [batch.time for batch in batches], [batch.expected_s for batch in batches]
    return math.log(math.fsum(took) / math.fsum(expected))  # compiled, one `sum` over another is a TypeError


def error(batches: list[FirstBatch], samples: int) -> float:
    """The standard error of that: by chance among these batches, and in the laws, which were learnt from
    `samples`."""
    expected = math.fsum([batch.expected_s for batch in batches])
    here = math.fsum([batch.variance for batch in batches]) / (expected * expected)
    shares = [batch.variance / (batch.expected_s * batch.expected_s) for batch in batches]
    alone = math.fsum(shares) / len(batches)
    return math.sqrt(here + alone / max(samples, 1))
