"""A reader: it counts the words of texts, and takes as long as a device that pads would."""

import time
from typing import Any

import numpy as np

import hams_sdk

FIXED_S = 0.002
"""What a run takes besides reading."""

GROWTH = 0.25
"""What a further row adds, as a share of what the first one takes: the device is not full."""


class Reader(hams_sdk.Model):
    """Counts the words of each text and finds the longest one. No state.

    All rows of a batch are padded to its longest text, as on a GPU. `msPerWord`: what a word of it takes; the
    device is emulated, by waiting.
    """

    def initialize(self, config: dict[str, Any]) -> None:
        self.word_s = float(config.get("msPerWord", 2.0)) / 1000

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        began = time.monotonic()
        texts = [text.split() for text in batch["text"]]
        longest = np.empty(len(texts), object)
        longest[:] = [max(words, key=len, default=b"") for words in texts]
        until = began + run_s(max(map(len, texts)), len(texts), self.word_s)
        time.sleep(max(until - time.monotonic(), 0.0))
        return {"words": np.array([len(words) for words in texts], np.int64), "longest": longest}


def run_s(words: int, rows: int, word_s: float) -> float:
    """The time of a batch of `rows`, whose longest text has `words` words."""
    return FIXED_S + words * word_s * (1 - GROWTH + GROWTH * rows)
