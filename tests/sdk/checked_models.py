"""Models for `hams-model check`: one that fits, and one for each way not to."""

import contextlib
import os
import random
import time
from typing import Any

import numpy as np

import hams_sdk


class Good(hams_sdk.Model):
    """Everything declared."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.total = np.zeros(2, np.float32)
        self.count = 0
        return {
            "total": self.total,
            "count": hams_sdk.Opaque(lambda: str(self.count).encode(), self.set_count),
        }

    def set_count(self, data: bytes) -> None:
        self.count = int(data)

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        total = self.total + batch["x"].sum(axis=0)
        with update:
            self.total[:] = total
            self.count += 1
        return {"y": batch["x"] + total * self.count}


class Forgets(Good):
    """The count is not declared."""

    def initialize(self, config: dict[str, Any]) -> Any:
        return {"total": super().initialize(config)["total"]}


class RandomWeights(Good):
    """Weights drawn at start and not declared."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.weights = np.random.default_rng().random(2, dtype=np.float32)
        return super().initialize(config)

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": super().run(batch, update)["y"] * self.weights}


class Early(Good):
    """Writes in the compute stage."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        self.total += 1
        return super().run(batch, update)


class WrongShape(Good):
    """One column too few."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": super().run(batch, update)["y"][:, :1]}


class Chance(Good):
    """A fresh nonce in every output."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": super().run(batch, update)["y"] + np.float32(random.random())}


class BadRestore(Good):
    """`set` does not put back what `get` gave."""

    def set_count(self, data: bytes) -> None:
        self.count = int(data) + 1


class Torch(hams_sdk.Model):
    """Module and optimizer."""

    def initialize(self, config: dict[str, Any]) -> Any:
        import torch

        self.net = torch.nn.Linear(2, 2)
        self.opt = torch.optim.Adam(self.net.parameters())
        return {"net": self.net, "opt": self.opt} if config.get("all", True) else {"net": self.net}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        out = self.net(batch.torch("x"))
        self.opt.zero_grad()
        out.square().mean().backward()
        with update:
            self.opt.step()
        return {"y": out}


class LeavesRows(Good):
    """Collects rows in a list that is empty between runs, unless one raises."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.rows: list[Any] = []
        return super().initialize(config)

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        self.rows.append(batch["x"].sum(axis=0))
        total = self.total + sum(self.rows)
        with update:
            self.total[:] = total
        self.rows.clear()
        return {"y": batch["x"] + total}


class LeavesRowsByChance(LeavesRows):
    """The same with dropout."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": super().run(batch, update)["y"] + np.float32(random.random())}


class Clock(Good):
    """Tells a time, which no seed makes alike."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": super().run(batch, update)["y"] + np.float32(time.perf_counter_ns() % 65536)}


class ZeroesAfterwards(Torch):
    """Gradients are zero between runs, unless one raises after `backward`."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        out = self.net(batch.torch("x"))
        out.square().mean().backward()
        with update:
            self.opt.step()
            self.opt.zero_grad()
        return {"y": out}


class Picky(Good):
    """Takes no row but its own."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        if not (batch["x"] == 7).all():
            raise ValueError("not a seven")
        return super().run(batch, update)


class ReturnsNothing(Good):
    """Forgets to say what its state is."""

    def initialize(self, config: dict[str, Any]) -> Any:
        super().initialize(config)


class Stateless(hams_sdk.Model):
    """A function."""

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {"y": batch["x"] + 1}


class TriesInUpdate(Good):
    """The first line under `with update:` does nothing: an exception there would skip the end of `with`."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        total = self.total + batch["x"].sum(axis=0)
        with update:
            try:
                self.total[:] = total
            finally:
                self.count += 1
            while True:
                break
            pass  # noqa: PIE790 - it is what this is about
        return {"y": batch["x"] + total + np.float32(self.count)}


class NeverLeaves(Good):
    """Enters the update stage by hand, and does not leave it."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        total = self.total + batch["x"].sum(axis=0)
        update.__enter__()
        self.total[:] = total
        self.count += 1
        return {"y": batch["x"] + total + np.float32(self.count)}


class Exits(Good):
    """Ends its process with the status of success."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        raise SystemExit(0)


class WantsArguments(Good):
    """Cannot be made without arguments."""

    def __init__(self, size: int) -> None:
        self.size = size


class WritesInput(Good):
    """Writes into an array of the batch."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        batch["x"][:] = 0
        return super().run(batch, update)


class AsksForMore(Good):
    """Asks for an input that the operator does not have."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": batch["z"]}


class TakesNothing(Good):
    """`run` cannot be called with a batch."""

    def run(self) -> Any:  # type: ignore[override]
        return {}


class HasNoRun(hams_sdk.Model):
    """Forgot the one method that it needs."""


class Awaits(Good):
    """`run` is a coroutine."""

    async def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return super().run(batch, update)


class Yields(Good):
    """`run` is a generator."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        yield super().run(batch, update)


class RunIsNumber(Good):
    """`run` cannot be called."""

    run = 3  # type: ignore[assignment]


class WantsNoConfig(Good):
    """`initialize` takes nothing."""

    def initialize(self) -> Any:  # type: ignore[override]
        return {}


class Misspells(Good):
    """Uses an attribute that it does not have."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": batch["x"] * self.factr}  # type: ignore[attr-defined]


class TakesBatchForArray(Good):
    """Calculates with the batch itself."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        return {"y": batch * 2}  # type: ignore[operator]


class CallsUpdate(Good):
    """Does not enter the update stage but calls it."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        update()  # type: ignore[operator]
        return super().run(batch, update)


class AsksForConfig(Good):
    """Wants a setting that the graph does not give."""

    def initialize(self, config: dict[str, Any]) -> Any:
        return {"factor": np.array(config["factor"])}


class ForgetsReturn(Good):
    """Forgot its `return`."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        super().run(batch, update)


class ForksAndReturns(Good):
    """Forks, and both processes come back."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        os.fork()
        return super().run(batch, update)


class ForksAndEnds(Good):
    """Forks, and the child ends where it should."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return super().run(batch, update)


class Talks(Good):
    """Prints."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        print("a line of the model")
        return super().run(batch, update)


class OneLine(Good):
    """`run` is one line."""

    def run(self, batch: hams_sdk.Batch) -> Any:  # type: ignore[override]
        return {"y": batch["x"]}


class Sessions(hams_sdk.Model):
    """A mapping by key, and weights that never change."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.weights = np.ones(1 << 19, np.float32)
        self.users = hams_sdk.Keyed(row=np.dtype((np.float32, (2,))), keys=int, max_keys=16, evict="lru")
        weights = hams_sdk.constant(self.weights) if config.get("constant", True) else self.weights
        return {"users": self.users, "weights": weights}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        names = (np.abs(batch["x"][:, 0]) * 10).astype(np.int64) % 30
        with update:
            rows, _ = self.users.read(names)
            rows += batch["x"] * self.weights[0]
            self.users.write(names, rows)
        return {"y": rows}


class BehindItsBack(Sessions):
    """Writes the memory of the mapping itself."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        result = super().run(batch, update)
        with contextlib.suppress(IndexError):
            self.users._entries[0]["row"][4000] += 1
        return result


class Grows(Good):
    """Its array gets another shape with the third batch, or with the one after all that are run first."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.grows_at = config.get("at", 3)
        return super().initialize(config)

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            self.count += 1
            if self.count == self.grows_at:
                self.total.resize(3, refcheck=False)
        return {"y": batch["x"]}


class CannotBeCaptured(Good):
    """What gives the count raises later."""

    def initialize(self, config: dict[str, Any]) -> Any:
        return {**super().initialize(config), "count": hams_sdk.Opaque(self.get_count, self.set_count)}

    def get_count(self) -> bytes:
        if self.count == 2:
            raise RuntimeError("the count is locked")
        return b"0"


class NotConstant(Sessions):
    """Writes what it has declared constant."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            self.weights += 1
        return {"y": batch["x"]}
