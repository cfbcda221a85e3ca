"""Two models to start from: one without state, one with.

Prove each fit before it runs in the graph:
    hams-model check models:Scale --graph graph.yaml
    hams-model check models:Mean --graph graph.yaml
"""

from typing import Any

import numpy as np

import hams_sdk


class Scale(hams_sdk.Model):
    """Multiplies by a factor. Without state: any instance may answer any request."""

    def initialize(self, config: dict[str, Any]) -> None:
        self.factor = np.float32(config.get("factor", 1.0))

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        return {"scaled": batch["value"] * self.factor}


class Mean(hams_sdk.Model):
    """The mean of everything it ever saw. What `initialize` returns is the state: it is copied to the backup
    after every batch."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.sum = np.zeros((), np.float64)
        self.count = np.zeros((), np.int64)
        return {"sum": self.sum, "count": self.count}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        # Compute stage: read the state, do not write it; the previous version is still being captured beside
        # this.
        values = batch["scaled"]
        sums = self.sum + np.cumsum(values, dtype=np.float64)
        counts = self.count + np.arange(1, len(values) + 1)
        # Update stage: the state is written here and nowhere else, in place.
        with update:
            self.sum[...] = sums[-1]
            self.count[...] = counts[-1]
        return {"mean": (sums / counts).astype(np.float32), "count": counts}
