"""A model that only waits: a batch takes what a law says, and no CPU.

Its input tells how long a request takes alone. `hams bench schedule --live` puts it behind real proxies.
Nothing of HAMS but the SDK is imported here.
"""

import time
from typing import Any

import numpy as np

import hams_sdk

SPIN_S = 0.0003
"""The end of a wait that is not slept: a sleep ends late by about so much."""


class Emulated(hams_sdk.Model):
    """Takes `fixedS + max(alone) * (1 - growth + growth * rows)` seconds, and says so. No state."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.fixed_s = float(config["fixedS"])
        self.growth = float(config["growth"])

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        began = time.monotonic()
        longest_s = float(batch["alone"].max())
        took_s = self.fixed_s + longest_s * (1.0 - self.growth + self.growth * batch.rows)
        wait_until(began + took_s)
        return {"seconds": np.full(batch.rows, took_s)}


class Counting(Emulated):
    """The same, and counts rows: that is its state."""

    def initialize(self, config: dict[str, Any]) -> Any:
        super().initialize(config)
        self.count = np.zeros((), np.int64)
        return {"count": self.count}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:  # type: ignore[override]
        outputs = super().run(batch)
        with update:
            self.count += batch.rows
        return outputs


def wait_until(instant: float) -> None:
    """Sleep, then spin, until the monotonic clock says so."""
    left_s = instant - time.monotonic() - SPIN_S
    if left_s > 0.0:
        time.sleep(left_s)
    while time.monotonic() < instant:
        pass
