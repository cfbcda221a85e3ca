"""The digits that scikit-learn ships: 1797 images of 8 x 8 pixels from the UCI repository, written by 43
people."""

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits


def stream(seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Labelled requests without end, one row each, shuffled anew in every round: pixels (1, 64) FP32 in
    0..16, target (1,) INT64."""
    data = load_digits()
    pixels, target = data.data.astype(np.float32), data.target.astype(np.int64)
    random = np.random.default_rng(seed)
    while True:
        for row in random.permutation(len(target)):
            yield {"pixels": pixels[row : row + 1], "target": target[row : row + 1]}


def write(path: str) -> None:
    """All labelled rows as a .npz for `hams load --data`."""
    data = load_digits()
    np.savez_compressed(path, pixels=data.data.astype(np.float32), target=data.target.astype(np.int64))


if __name__ == "__main__":
    import sys

    write(sys.argv[1] if len(sys.argv) > 1 else "digits.npz")
