"""The three models of the digits graph.

features -> learner -> monitor: an embedding without state, a network that learns from every labelled request,
and a tally of how well it does. What the learner has learnt and what the monitor has counted must survive any
failure: each labelled row counts exactly once. Only the learner needs torch, so the other processes start in
a blink.
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
    """A small network that takes one step of gradient descent per batch of labelled rows. It answers first
    and learns afterwards."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        import torch  # noqa: PLC0415 - takes seconds and memory; only this model pays

        torch.set_num_threads(1)  # a network of this size is slower on more
        self.torch = torch
        torch.manual_seed(int(config.get("seed", 7)))
        dim, hidden = int(config.get("dim", 32)), int(config.get("hidden", 64))
        self.net = torch.nn.Sequential(
            torch.nn.Linear(dim, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
        )
        self.rate = float(config.get("rate", 0.01))
        # Adam by hand: the first optimizer of torch.optim imports the whole compiler, a second and 150 MB in
        # every process.
        self.steps = torch.zeros((), dtype=torch.int64)
        self.mean = {name: torch.zeros_like(weight) for name, weight in self.net.named_parameters()}
        self.square = {name: torch.zeros_like(weight) for name, weight in self.net.named_parameters()}
        moments = {
            f"{kind}.{name}": one
            for kind, held in (("mean", self.mean), ("square", self.square))
            for name, one in held.items()
        }
        return {"net": self.net, "steps": self.steps, **moments}

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
                loss = self.torch.nn.functional.cross_entropy(logits[known], target[known])
                gradients = self.torch.autograd.grad(loss, list(self.net.parameters()))
                with update, self.torch.no_grad():
                    self._step(gradients)
        return {"label": logits.detach().argmax(1)}

    def _step(self, gradients: Any) -> None:
        """One step of Adam (Kingma and Ba 2015, algorithm 1, with its default decay rates), in place."""
        self.steps += 1
        done = int(self.steps)
        for (name, weight), gradient in zip(self.net.named_parameters(), gradients, strict=True):
            mean = self.mean[name].lerp_(gradient, 0.1)
            square = self.square[name].lerp_(gradient.square(), 0.001)
            weight.addcdiv_(
                mean / (1 - 0.9**done), (square / (1 - 0.999**done)).sqrt() + 1e-8, value=-self.rate
            )


class Monitor(hams_sdk.Model):
    """How good the answers were: labelled rows so far, accuracy over the newest `WINDOW_ROWS` of them, and
    who is taken for whom.

    Row by row, so the numbers do not depend on how requests were batched: row n of the stream always gets
    `seen` = n.
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
            return {
                "accuracy": np.full(rows, self._accuracy(int(self.seen)), np.float32),
                "seen": np.full(rows, self.seen, np.int64),
            }
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
