"""What the models keep: cells that change with every batch, weights that do not, and weights that do.

Sizes are those of the paper's Figure 9. Bytes are real: they are captured, sent and received like any state.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paper.device import number

MIB = 1 << 20
SIZE_MIB_MAX = 1 << 16
"""Of one state, in MiB."""
PAGE_WORDS = 1024
"""FP32 values of a page of 4 KiB. An update stage of a dense state writes one of them in each page: a device
would write them all, without the host's CPU, and what must be copied is the same."""

CELL_BYTES = {"lstm": 16 << 10, "deconv": 512 << 10}
"""Cells of one row: two layers of an LSTM, 1024 wide, h and c; the maps of a DeconvLSTM's layers, h and c."""

NARROW = 16
"""Width of the recurrence that is really computed, within the cells."""


def words(nbytes: float) -> int:
    """FP32 values in about so many bytes, at least those that the narrow recurrence needs."""
    return max(int(nbytes) // 4, 2 * NARROW)


class Cells:
    """Cells of every row of a batch, (rows, values) FP32, dense."""

    def __init__(self, config: Mapping[str, Any], rows: int) -> None:
        width = words(CELL_BYTES[config.get("cells", "lstm")] * part(config))
        self.values = np.zeros((rows, width), np.float32)

    def read(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Narrow h and c of the first `rows`; only to be read."""
        own = np.arange(rows) % len(self.values)
        return self.values[own, :NARROW], self.values[own, NARROW : 2 * NARROW]

    def write(self, hidden: np.ndarray, memory: np.ndarray) -> None:
        """Narrow h and c of the next batch, and one word of every page of those rows."""
        rows = min(len(hidden), len(self.values))
        self.values[:rows, 2 * NARROW :: PAGE_WORDS] += 1
        self.values[:rows, :NARROW] = hidden[:rows]
        self.values[:rows, NARROW : 2 * NARROW] = memory[:rows]


def weights(config: Mapping[str, Any]) -> np.ndarray:
    """Weights of `sizeMiB`, times `bytes`, resident: pages of zeros would be one page of the kernel's. Raises
    ValueError."""
    size = number(config, "sizeMiB")
    if not 0 < size <= SIZE_MIB_MAX:
        raise ValueError(f"sizeMiB: expected a number above 0 and at most {SIZE_MIB_MAX}, found {size:g}")
    return np.full(words(size * MIB * part(config)), 0.01, np.float32)


def part(config: Mapping[str, Any]) -> float:
    """`bytes`: how much of every state there is, 1 if it is left out. Raises ValueError."""
    value = number(config, "bytes", 1.0)
    if not 0 < value <= 1:
        raise ValueError(f"bytes: expected a part of every state, above 0 and at most 1, found {value:g}")
    return value


def touch(values: np.ndarray) -> None:
    """A write into every page of a dense state."""
    values[::PAGE_WORDS] += np.float32(1)
