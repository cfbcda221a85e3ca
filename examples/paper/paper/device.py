"""Emulated device time: a stage of a model ends no earlier than its device would have ended it.

The deadline is absolute, `begin + t(rows)`, so what the host computes meanwhile is hidden as it would be
beside a kernel. Waiting sleeps: no CPU, no lock. Copies, network and the host's own work are not emulated.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

FULL_ROWS = 64
"""Rows of the batch for which times are given."""

FIXED_SHARE = 0.08
"""Part of a full batch's time that a batch of any size takes."""


class Device:
    """The device of one model. `compute_s` and `update_s`: what its two stages take for `FULL_ROWS` rows."""

    def __init__(self, compute_s: float, update_s: float = 0.0) -> None:
        """Raises ValueError for a time that is negative or no number."""
        for name, value in (("computeMs", compute_s), ("updateMs", update_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: expected milliseconds, 0 or more, found {1000 * value:g}")
        self.compute_s = compute_s
        self.update_s = update_s

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Device":
        """The device that an operator's `config` describes: `computeMs`, `updateMs`, both 0 if left out.

        Raises ValueError.
        """
        return Device(float(config.get("computeMs", 0.0)) / 1000, float(config.get("updateMs", 0.0)) / 1000)

    def compute(self, rows: int) -> Any:
        """The compute stage of a batch: `with device.compute(rows): ...`."""
        return _stage(self.compute_s * share(rows))

    def update(self, rows: int) -> Any:
        """The update stage of a batch."""
        return _stage(self.update_s * share(rows))


def share(rows: int) -> float:
    """Time of a batch of `rows`, as a part of a full one's."""
    return FIXED_SHARE + (1 - FIXED_SHARE) * rows / FULL_ROWS


@contextmanager
def _stage(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    yield
    left_s = deadline - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
