"""Requests of the six services, from data that packages bring along; nothing is downloaded.

Frames are digits of scikit-learn (8 x 8, drawn large as 32 x 32), prices are those of vega_datasets, texts
are pages of the standard library's `pydoc_data.topics`. Speech is synthesised from words: no package brings
any.

    python -m paper.data sp sp.npz && hams load sp.yaml --data sp.npz
"""

import sys
import zlib
from collections.abc import Callable, Iterator

import numpy as np

WORDS = 16
FRAMES, COEFFICIENTS = 64, 16
SCALE = 4
"""A pixel of a digit becomes a square of this side."""

Request = dict[str, np.ndarray]


def texts() -> list[bytes]:
    """Stretches of `WORDS` words of Python's own reference."""
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte that only two services read

    words = " ".join(topics[name] for name in sorted(topics)).split()
    return [" ".join(words[at : at + WORDS]).encode() for at in range(0, len(words) - WORDS, WORDS)]


def prices() -> np.ndarray:
    """Every stretch of `WORDS` closing prices of one company, (stretches, WORDS) FP32, its mean 1."""
    from vega_datasets import data  # noqa: PLC0415 - brings pandas

    table = data.stocks().sort_values(["symbol", "date"])
    stretches = [
        np.lib.stride_tricks.sliding_window_view(group["price"].to_numpy(np.float32), WORDS)
        for _, group in table.groupby("symbol")
    ]
    together = np.concatenate(stretches)
    return together / together.mean(1, keepdims=True)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Frames (1797, 32, 32) FP32 of 0..16, and what they show, (1797,) INT64."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    data = load_digits()
    frames = data.images.astype(np.float32).repeat(SCALE, axis=1).repeat(SCALE, axis=2)
    return frames, data.target.astype(np.int64)


def speech(text: bytes) -> np.ndarray:
    """Features of spoken words, (FRAMES, COEFFICIENTS) FP32: a tone of its own for every word."""
    frames = np.zeros((FRAMES, COEFFICIENTS), np.float32)
    each = FRAMES // WORDS
    for number, word in enumerate(text.lower().split()[:WORDS]):
        tone = zlib.crc32(word)
        heights = np.array([(tone >> bit) & 3 for bit in range(0, 2 * COEFFICIENTS, 2)], np.float32)
        frames[number * each : (number + 1) * each] = heights / 3
    return frames


def sa(rows: int, seed: int = 0) -> Iterator[Request]:
    """Speech."""
    random = np.random.default_rng(seed)
    said = texts()
    while True:
        yield {"speech": np.stack([speech(said[at]) for at in random.integers(0, len(said), rows)])}


def sp(rows: int, seed: int = 0) -> Iterator[Request]:
    """Texts and prices."""
    random = np.random.default_rng(seed)
    said, series = np.array(texts(), object), prices()
    while True:
        yield {
            "text": said[random.integers(0, len(said), rows)],
            "prices": series[random.integers(0, len(series), rows)],
        }


def ap(rows: int, seed: int = 0) -> Iterator[Request]:
    """Frames of one camera."""
    random = np.random.default_rng(seed)
    frames, _ = digits()
    while True:
        yield {"frame": frames[random.integers(0, len(frames), rows)]}


def fd(rows: int, seed: int = 0) -> Iterator[Request]:
    """Frames of two cameras."""
    left, right = ap(rows, seed), ap(rows, seed + 1)
    for one, other in zip(left, right, strict=True):
        yield {"left": one["frame"], "right": other["frame"]}


def ol(rows: int, seed: int = 0) -> Iterator[Request]:
    """Frames with labels to learn from, and frames to label, in turn."""
    random = np.random.default_rng(seed)
    frames, labels = digits()
    while True:
        chosen = random.integers(0, len(frames), rows)
        yield {"train": frames[chosen], "target": labels[chosen]}
        yield {"image": frames[random.integers(0, len(frames), rows)]}


SOURCES: dict[str, Callable[[int, int], Iterator[Request]]] = {
    "sa": sa,
    "sp": sp,
    "ap": ap,
    "fd": fd,
    "olv": ol,
    "olm": ol,
}


def write(service: str, path: str, rows: int = 512) -> None:
    """A .npz for `hams load --data`, a request for every row. Raises KeyError for an unknown service."""
    request = next(SOURCES[service](rows, 0))
    plain = {name: array.astype(bytes) if array.dtype == object else array for name, array in request.items()}
    np.savez_compressed(path, **plain)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SOURCES:
        sys.exit(f"usage: python -m paper.data {'|'.join(SOURCES)} FILE.npz")
    write(sys.argv[1], sys.argv[2])
