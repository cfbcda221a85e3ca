"""Texts of two kinds: chat messages and articles."""

from collections.abc import Iterator

import numpy as np

KINDS = {"chat": (15, 25), "article": (90, 110)}
"""Fewest and most words of each kind."""

TEXT = """
A model that reads takes longer for a long text than for a short one, and a batch takes as long as its longest
text. Who asks does not care about batches: an answer that comes too late is no answer.
"""
WORDS = TEXT.split()


def texts(seed: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs of kind and text without end; half of them of each kind, in any order."""
    random = np.random.default_rng(seed)
    kinds = list(KINDS)
    while True:
        kind = kinds[int(random.integers(len(kinds)))]
        fewest, most = KINDS[kind]
        yield kind, " ".join(random.choice(WORDS, int(random.integers(fewest, most + 1))))


def stream(seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Requests without end, one text each."""
    for _, text in texts(seed):
        yield {"text": np.array([text.encode()], object)}
