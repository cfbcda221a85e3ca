"""Models that behave, and models that do not. Imported by the model processes that the tests start."""

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import hams_sdk


class Echo(hams_sdk.Model):
    """Stateless: y = 2 x."""

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {"y": batch["x"] * np.float32(2)}


class Parent(hams_sdk.Model):
    """Stateless: each run leaves a child behind, which holds what its parent holds; y is its process id."""

    def run(self, batch: hams_sdk.Batch) -> Any:
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # in case that the test does not end it
            signal.pause()
        return {"y": np.full_like(batch["x"], child)}


class Sum(hams_sdk.Model):
    """Stateful: a running sum over all rows, and a journal of the units seen."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.total = np.zeros(config.get("dim", 2), dtype=np.float32)
        self.journal: list[str] = []
        self.thread = threading.get_ident()
        return {"total": self.total, "journal": hams_sdk.Opaque(self.pack, self.unpack)}

    def pack(self) -> bytes:
        return "\n".join(self.journal).encode()

    def unpack(self, data: bytes) -> None:
        self.journal[:] = data.decode().split("\n") if data else []

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        assert threading.get_ident() == self.thread
        sums = batch["x"].sum(axis=0)
        with update:
            self.total += sums
            self.journal += [unit.id for unit in batch.units]
        return {"y": np.repeat(self.total[None], batch.rows, axis=0)}


class Whole(hams_sdk.Model):
    """Stateful without a boundary: the whole run is the update stage."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.total = np.zeros(2, dtype=np.float32)
        return {"total": self.total}

    def run(self, batch: hams_sdk.Batch) -> Any:
        self.total += batch["x"].sum(axis=0)
        return {"y": np.repeat(self.total[None], batch.rows, axis=0)}


class Naughty(Sum):
    """Does what the first element of x says."""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        what = int(batch["x"][0, 0])
        rows = np.array(batch["x"])
        if what == 1:
            with update:
                self.total += 100
                raise ValueError("one\n is\n not welcome")
        if what == 2:
            return {"y": rows.astype(np.float64)}
        if what == 3:
            return {"y": rows[:, :1]}
        if what == 4:
            rows[-1, -1] = np.nan
            with update:
                self.total += rows.sum(axis=0)
        if what == 5:
            return hams_sdk.Outputs({"y": rows}, routes=[["nowhere"]])
        if what == 6:
            return {"z": rows}
        if what == 7:
            os._exit(7)
        if what == 8:
            threading.Event().wait()
        if what == 9:
            sys.stdout.write("x" * (4 << 20) + "\n")
            sys.stderr.write("x" * (4 << 20) + "\n")
        if what == 10:
            batch["x"][:] = 0
        if what == 11:
            batch.fail(batch.units[0], "eleven fails")
        if what == 12:
            batch.refuse(batch.units[0])
        if what == 13:
            with update:
                self.total += 1
            with update:
                self.total += 1
        if what == 14:
            try:
                with update:
                    self.total += 1
            except BaseException:  # noqa: BLE001 - what a careless author writes
                return {"y": rows}
        if what == 15:
            return hams_sdk.Outputs(
                {"y": rows}, routes=[["reply"] if index % 2 else [] for index in range(len(batch.units))]
            )
        if what == 16:
            sys.exit(3)
        if what == 17:
            return None
        return {"y": rows}


class Growing(hams_sdk.Model):
    """Opaque state that changes size with every update; the capture is slow enough to be caught by a compute
    stage."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.data = b""
        self.beside = 0
        return {"data": hams_sdk.Opaque(lambda: self.data, self.set)}

    def set(self, data: bytes) -> None:
        self.data = data

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            self.data = bytes([int(batch["x"][0, 1])]) * int(batch["x"][0, 0])
        return {"y": np.full((batch.rows, 2), len(self.data), dtype=np.float32)}


class Stuck(hams_sdk.Model):
    """Its state can be neither told nor taken any more once its data is `stuck`."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.data = b""
        return {"data": hams_sdk.Opaque(self.get, self.set)}

    def get(self) -> bytes:
        if self.data == b"stuck":
            time.sleep(3600)
        return self.data

    def set(self, data: bytes) -> None:
        if data == b"1":
            time.sleep(3600)
        self.data = data

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            self.data = b"stuck" if batch["x"][0, 0] else b"1"
        return {"y": batch["x"]}


class Reshaping(hams_sdk.Model):
    """Its table grows by a row with each update, though it is loaded in place."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.table = np.zeros((1, 2), dtype=np.float32)
        return {"steps": np.zeros((), np.int64), "table": self.table}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            self.table.resize((len(self.table) + 1, 2), refcheck=False)
        return {"y": batch["x"]}


class Inconstant(hams_sdk.Model):
    """Writes the weights that it has declared constant, and has them compared at every capture."""

    def initialize(self, config: dict[str, Any]) -> Any:
        hams_sdk.state.CONSTANT_AGAIN = 1
        self.weights = np.zeros(1 << 16, dtype=np.float32)
        return {"steps": np.zeros((), np.int64), "weights": hams_sdk.constant(self.weights)}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            self.weights[1 << 15] += 1
        return {"y": batch["x"]}


class Gated(hams_sdk.Model):
    """Its capture waits for a file that the test makes; tells through files where it stands."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.dir = config["dir"]
        self.numbers = np.zeros(1000, dtype=np.int64)
        self.captured = 0
        return {"numbers": self.numbers, "gate": hams_sdk.Opaque(self.get, lambda data: None)}

    def get(self) -> bytes:
        self.captured += 1
        if self.captured > 1:
            open(os.path.join(self.dir, f"capturing-{self.captured}"), "w").close()
            while not os.path.exists(os.path.join(self.dir, "go")):
                time.sleep(0.001)
        return b""

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        before = int(self.numbers.sum())
        with update:
            self.numbers += 1
        return {"y": np.full((batch.rows, 2), before, dtype=np.float32)}


class Words(hams_sdk.Model):
    """Stateless: optional BYTES and variable dimensions."""

    def run(self, batch: hams_sdk.Batch) -> Any:
        words, x = batch["words"], batch["x"]
        if words is None:
            words = np.array([[b"none"]] * batch.rows, dtype=object)
        units = [
            [str(unit.parameters.get("tag", "")).encode()]
            for unit in batch.units
            for _ in range(unit.rows.stop - unit.rows.start)
        ]
        return {
            "words": np.concatenate([words, np.array(units, dtype=object)], axis=1),
            "x": np.repeat(x, 3, axis=1),
        }


class Learner(hams_sdk.Model):
    """torch: a module, an optimizer with lazily made state, a scheduler."""

    def initialize(self, config: dict[str, Any]) -> Any:
        import torch

        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, config.get("hidden", 4)),
            torch.nn.BatchNorm1d(config.get("hidden", 4)),
            torch.nn.Linear(config.get("hidden", 4), 2),
        )
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 2)
        self.half = torch.zeros(3, dtype=torch.bfloat16, device=config.get("device", "cpu"))
        self.net.to(config.get("device", "cpu"))
        self.device = config.get("device", "cpu")
        return {"net": self.net, "opt": self.opt, "schedule": self.schedule, "half": self.half}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        out = self.net(batch.torch("x", self.device))
        loss = (out - 1).square().mean()
        self.opt.zero_grad()
        loss.backward()
        with update:
            self.opt.step()
            self.schedule.step()
            self.half += 1
        return {"y": out}


class FailsToStart(hams_sdk.Model):
    """initialize raises."""

    def initialize(self, config: dict[str, Any]) -> Any:
        raise RuntimeError("no weights here")

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {}


class LeavesAtStart(hams_sdk.Model):
    """initialize leaves, as scripts do."""

    def initialize(self, config: dict[str, Any]) -> Any:
        sys.exit("no weights: run download.py first")

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {}


class Table(hams_sdk.Model):
    """Stateful: a megabyte, of which each row of x adds its second number at the place that is its first."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.table = np.zeros(1 << 18, dtype=np.float32)
        self.journal: list[float] = []
        return {"table": self.table, "count": hams_sdk.Opaque(self.pack, self.unpack)}

    def pack(self) -> bytes:
        return np.array(self.journal).tobytes()

    def unpack(self, data: bytes) -> None:
        self.journal[:] = np.frombuffer(data).tolist()

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            for place, value in batch["x"].tolist():
                self.table[int(place)] += value
                self.journal.append(value)
        return {"y": batch["x"]}


class SlowTable(Table):
    """Its load takes a while."""

    def unpack(self, data: bytes) -> None:
        time.sleep(0.6)
        super().unpack(data)


class Rows(hams_sdk.Model):
    """Stateful: a megabyte and a half of plain rows. A row that begins with 7 fails once it is written."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.rows = np.zeros((1 << 17) + 3, dtype=np.float32)
        self.sums = np.zeros(1 << 17)
        return {"rows": self.rows, "sums": self.sums}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        with update:
            for place, value in batch["x"].tolist():
                self.rows[int(place)] += value
                self.sums[int(place) // 2] += value
                if int(place) == 7:
                    raise ValueError("seven")
        return {"y": batch["x"]}
