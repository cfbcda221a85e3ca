"""Payloads of a chosen size."""

from collections.abc import Iterator

import numpy as np


def stream(payload_bytes: int = 4096, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Requests without end, one row each: x (1, payload_bytes // 4) FP32."""
    random = np.random.default_rng(seed)
    pool = random.random((16, 1, max(1, payload_bytes // 4)), np.float32)
    while True:
        yield from ({"x": x} for x in pool)
