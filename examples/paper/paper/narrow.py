"""Narrow networks: what the emulated models really compute, so that outputs depend on inputs and state.

NumPy alone. Their weights are fixed by a seed and are never state; they learn nothing and claim nothing.
"""

from typing import Any

import numpy as np

WIDTH = 16
SIDE = 5
"""Side of the map that emulated grids are reduced to."""


class Projection:
    """`tanh(x W)`: from the first values of each row to `outputs` values."""

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._inputs = inputs
        self._weights = (random.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)

    def __call__(self, x: Any) -> np.ndarray:
        flat = np.asarray(x, np.float32).reshape(len(x), -1)[:, : self._inputs]
        return np.tanh(flat @ self._weights[: flat.shape[1]])


class Recurrence:
    """One step of an LSTM cell, `WIDTH` wide."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._weights = (random.standard_normal((2 * WIDTH, 4 * WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)

    def __call__(
        self, x: np.ndarray, hidden: np.ndarray, memory: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The next h and c; all are (rows, WIDTH)."""
        gates = np.concatenate((x, hidden), axis=1) @ self._weights
        keep, take, give, new = np.split(gates, 4, axis=1)
        memory = _sigmoid(keep) * memory + _sigmoid(take) * np.tanh(new)
        return _sigmoid(give) * np.tanh(memory), memory


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def pooled(maps: np.ndarray, side: int) -> np.ndarray:
    """Means over squares: (rows, height, width) to (rows, side, side). Both must be multiples of `side`."""
    rows, height, width = maps.shape
    return maps.reshape(rows, side, height // side, side, width // side).mean((2, 4), dtype=np.float32)


class Softmax:
    """A linear classifier that learns: what an emulated network learns online.

    `weights` lies in the state of its owner: (inputs, classes), written by `step` only.
    """

    def __init__(self, weights: np.ndarray, rate: float, noise: float) -> None:
        self._weights = weights
        self._rate = np.float32(rate)
        self._noise = noise

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Scores, (rows, classes)."""
        return x @ self._weights

    def gradient(self, x: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The loss's gradient; with `noise`, as sums of a device that adds in any order have it."""
        shifted = np.exp(scores - scores.max(1, keepdims=True))
        error = shifted / shifted.sum(1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        slope = (x.T @ error / len(labels)).astype(np.float32)
        if self._noise:
            slope += self._noise * np.random.standard_normal(slope.shape).astype(np.float32)
        return slope

    def step(self, gradient: np.ndarray) -> None:
        """The update."""
        self._weights -= self._rate * gradient
