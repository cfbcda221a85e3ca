"""The three models of the digits graph.

features -> learner -> monitor: an embedding without state, a network that learns from every labelled request, and a tally of how well
it does. What the learner has learnt and what the monitor has counted must survive any failure: each labelled row counts exactly once.
Only the learner needs torch, so the other processes start in a blink.
"""

from typing import Any

import numpy as np

import hams_sdk

SIDE = 8
CLASSES = 10
WINDOW_ROWS = 256


def cosine_basis(side: int) -> np.ndarray:
    """The orthonormal basis of the type-II discrete cosine transform: (frequency, position), float32."""
    frequency, position = np.mgrid[0:side, 0:side]
    basis = np.cos(np.pi * (2 * position + 1) * frequency / (2 * side)) * np.sqrt(2 / side)
    basis[0] /= np.sqrt(2)
    return basis.astype(np.float32)


class Features(hams_sdk.Model):
    """The `dim` lowest spatial frequencies of an image. No state, and the same for ever."""

    def initialize(self, config: dict[str, Any]) -> None:
        basis = cosine_basis(SIDE)
        both = np.kron(basis, basis)
        down, across = np.mgrid[0:SIDE, 0:SIDE]
        order = np.argsort((down + across).ravel(), kind="stable")
        self.projection = np.ascontiguousarray(both[order[: int(config.get("dim", 32))]].T) / 16

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        return {"embedding": batch["pixels"] @ self.projection}


class Learner(hams_sdk.Model):
    """A small network that takes one step of gradient descent per batch of labelled rows. It answers first and learns afterwards."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        import torch  # noqa: PLC0415 - takes seconds and memory; only this model pays

        torch.set_num_threads(1)  # a network of this size is slower on more
        self.torch = torch
        torch.manual_seed(int(config.get("seed", 7)))
        dim, hidden = int(config.get("dim", 32)), int(config.get("hidden", 64))
        self.net = torch.nn.Sequential(torch.nn.Linear(dim, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=float(config.get("rate", 0.01)))
        return {"net": self.net, "opt": self.opt}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        logits = self.net(batch.torch("embedding"))
        target = batch.torch("target")
        if target is not None:
            known = (target >= 0) & (target < CLASSES)
            for unit in batch.units:
                if not bool(known[unit.rows].all()):
                    batch.fail(unit, f"target must be from 0 to {CLASSES - 1}")
                    known[unit.rows] = False  # a request counts as a whole or not at all
            if bool(known.any()):
                self.opt.zero_grad(set_to_none=True)
                self.torch.nn.functional.cross_entropy(logits[known], target[known]).backward()
                with update:
                    self.opt.step()
        return {"label": logits.detach().argmax(1)}


class Monitor(hams_sdk.Model):
    """How good the answers were: labelled rows so far, accuracy over the newest `WINDOW_ROWS` of them, and who is taken for whom.

    Row by row, so the numbers do not depend on how requests were batched: row n of the stream always gets `seen` = n.
    """

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.confusion = np.zeros((CLASSES, CLASSES), np.int64)
        self.right = np.zeros(WINDOW_ROWS, np.uint8)
        self.seen = np.zeros((), np.int64)
        return {"confusion": self.confusion, "right": self.right, "seen": self.seen}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        label, target = batch["label"], batch["target"]
        if target is None:
            rows = len(label)
            return {"accuracy": np.full(rows, self._accuracy(int(self.seen)), np.float32), "seen": np.full(rows, self.seen, np.int64)}
        accuracy, seen = np.empty(len(label), np.float32), np.empty(len(label), np.int64)
        with update:
            for row, (answer, truth) in enumerate(zip(label, target, strict=True)):
                self.right[int(self.seen) % WINDOW_ROWS] = answer == truth
                self.confusion[truth, answer] += 1
                self.seen += 1
                seen[row], accuracy[row] = self.seen, self._accuracy(int(self.seen))
        return {"accuracy": accuracy, "seen": seen}

    def _accuracy(self, seen: int) -> float:
        held = min(seen, WINDOW_ROWS)
        return float(self.right[:held].sum()) / held if held else 0.0
