"""Emulated device time: a stage of a model ends no earlier than its device would have ended it, and not
before what it gave to a real one is done.

The deadline is absolute, `begin + t(rows)`, so what the host computes meanwhile is hidden as it would be
beside a kernel. Waiting sleeps: no CPU, no lock. Copies, network and the host's own work are not emulated.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

FULL_ROWS = 64
"""Rows of the batch for which times are given."""

FIXED_SHARE = 0.08
"""Part of a full batch's time that a batch of any size takes."""


def nothing() -> None:
    """What an emulated device is waited for beside its time."""


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A number of an operator's `config`. Raises ValueError if it is none, and where it has no default, if it
    is not there."""
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number, found {'none' if value is None else repr(value)}")
    return float(value)


class Device:
    """The device of one model. `compute_s` and `update_s`: what its two stages take for `FULL_ROWS` rows.
    `done`: returns when a real device has done what it was given."""

    def __init__(self, compute_s: float, update_s: float = 0.0, done: Callable[[], None] = nothing) -> None:
        """Raises ValueError for a time that is negative or no number."""
        for name, value in (("computeMs", compute_s), ("updateMs", update_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: expected milliseconds, 0 or more, found {1000 * value:g}")
        self.compute_s = compute_s
        self.update_s = update_s
        self.done = done

    @staticmethod
    def of(config: Mapping[str, Any], done: Callable[[], None] = nothing) -> "Device":
        """The device that an operator's `config` describes: `computeMs`, `updateMs`, both 0 if left out.

        Raises ValueError.
        """
        compute_s, update_s = (number(config, name, 0.0) / 1000 for name in ("computeMs", "updateMs"))
        return Device(compute_s, update_s, done)

    def compute(self, rows: int) -> Any:
        """The compute stage of a batch: `with device.compute(rows): ...`."""
        return self._stage(self.compute_s * share(rows))

    def update(self, rows: int) -> Any:
        """The update stage of a batch."""
        return self._stage(self.update_s * share(rows))

    @contextmanager
    def _stage(self, seconds: float) -> Iterator[None]:
        deadline = time.monotonic() + seconds
        yield
        self.done()
        left_s = deadline - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


def share(rows: int) -> float:
    """Time of a batch of `rows`, as a part of a full one's."""
    return FIXED_SHARE + (1 - FIXED_SHARE) * rows / FULL_ROWS
