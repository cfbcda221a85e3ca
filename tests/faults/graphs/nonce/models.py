"""Every output carries a fresh nonce; states count exactly, so that a lost or doubled effect shows in a
reply."""

import os
import secrets
import time
from typing import Any

import numpy as np

import hams_sdk

ELEMENTS_TOO_MANY = 1 << 56
"""Refused at once, whatever the machine has: no address space is so large."""


def nonce(rows: int) -> np.ndarray:
    return np.frombuffer(secrets.token_bytes(8 * rows), np.int64).copy()


class Stamp(hams_sdk.Model):
    """Stateless: hands `x` on with a fresh nonce. A row of -13 kills the process, -14 raises."""

    nonce = staticmethod(nonce)

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        x = batch["x"]
        if (x == -13).any():
            os._exit(13)
        if (x == -14).any():
            raise ValueError("no minus fourteen, please")
        return {"x": x, "nonce": self.nonce(len(x))}


def no_nonce(rows: int) -> np.ndarray:
    return np.zeros(rows, np.int64)


class SameStamp(Stamp):
    """A `Stamp` that makes the same of the same input."""

    nonce = staticmethod(no_nonce)


class Gated(Stamp):
    """Loads until the file that HAMS_TEST_GATE names is there."""

    def initialize(self, config: dict[str, Any]) -> None:
        while not os.path.exists(os.environ["HAMS_TEST_GATE"]):
            time.sleep(0.05)


class Tally(hams_sdk.Model):
    """Stateful: counts rows and sums them up; both are part of the reply. The nonce of each batch is part of
    the state."""

    nonce = staticmethod(nonce)

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.count = np.zeros((), np.int64)
        self.total = np.zeros((), np.float64)
        self.last = np.zeros((), np.int64)
        self.ballast = np.zeros(int(config.get("stateBytes", 0)), np.uint8)
        return {"count": self.count, "total": self.total, "last": self.last, "ballast": self.ballast}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        x = batch["x"]
        if (x == -23).any():
            os._exit(23)
        if (x == -24).any():
            np.ones(ELEMENTS_TOO_MANY)
        fresh = self.nonce(len(x))
        count = self.count + np.arange(1, len(x) + 1, dtype=np.int64)
        total = self.total + np.cumsum(x.astype(np.float64))
        with update:
            self.count += len(x)
            self.total += float(x.sum())
            self.last[...] = fresh[-1]
            self.ballast[:64] += 1
        return {"x": x, "count": count, "total": total, "nonce": fresh}


class SameTally(Tally):
    """A `Tally` that makes the same of the same inputs in the same order."""

    nonce = staticmethod(no_nonce)


class Slow(Tally):
    """A `Tally` that takes `loadS` seconds to load, as models with weights do."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        time.sleep(float(config["loadS"]))
        return super().initialize(config)


class Odd(hams_sdk.Model):
    """Stateless, and wrong when asked to be: -41 gives NaN, -42 a wrong shape, -43 a wrong datatype, -44 a
    name nobody declared.

    -45 asks for more memory than there is.
    """

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        x = batch["x"]
        if (x == -41).any():
            return {"x": np.where(x == -41, np.float32("nan"), x)}
        if (x == -42).any():
            return {"x": np.stack([x, x])}
        if (x == -43).any():
            return {"x": x.astype(np.float64)}
        if (x == -44).any():
            return {"y": x}
        if (x == -45).any():
            np.ones(ELEMENTS_TOO_MANY)
        return {"x": x}


class Busy(Tally):
    """A `Tally` that holds the interpreter for `busyS` seconds when a row is -31."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.busy_s = float(config["busyS"])
        return super().initialize(config)

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        if (batch["x"] == -31).any():
            end = time.monotonic() + self.busy_s
            while time.monotonic() < end:
                pass
        return super().run(batch, update)
