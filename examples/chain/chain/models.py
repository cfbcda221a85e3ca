"""Trivial models for measurements: one without state, one with as much state as asked for. Numpy only."""

import time
from typing import Any

import numpy as np

import hams_sdk


class Pass(hams_sdk.Model):
    """Hands on what it got. No state."""

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        return {"x": batch["x"]}


class Count(hams_sdk.Model):
    """Hands on what it got and counts rows. `stateBytes` of ballast are part of the state, `touchedBytes` of
    it change with every batch; `touchedStride`: of these one in so many.

    `readOnly`: the state is only looked at, so nothing is captured or shipped. `waitS`: emulated device time,
    spent waiting, per batch. `initializeS`: so long it takes to start, as a model that loads weights does.
    `stamp`: the first element of each row becomes its count, so that the reply shows it wherever in a graph
    this model is.
    """

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        time.sleep(float(config.get("initializeS", 0.0)))
        self.count = np.zeros((), np.int64)
        self.ballast = np.zeros(int(config.get("stateBytes", 4096)), np.uint8)
        self.touched = min(int(config.get("touchedBytes", 4096)), self.ballast.size)
        self.stride = int(config.get("touchedStride", 1))
        self.read_only = bool(config.get("readOnly", False))
        self.wait_s = float(config.get("waitS", 0.0))
        self.stamp = bool(config.get("stamp", False))
        return {"count": self.count, "ballast": self.ballast}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        x = batch["x"]
        count = self.count + np.arange(1, len(x) + 1, dtype=np.int64)
        if self.stamp:
            x = x.copy()
            x[:, 0] = count
        if self.wait_s:
            time.sleep(self.wait_s)
        if self.read_only:
            return {"x": x, "count": count}
        with update:
            self.count += len(x)
            self.ballast[: self.touched : self.stride] += 1
        return {"x": x, "count": count}
