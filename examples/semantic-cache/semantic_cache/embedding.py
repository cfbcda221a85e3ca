"""Sentences as vectors, so that the same question in other words lies near.

The one here counts character trigrams, hashed: nothing to download and quick, but it knows spelling, not
meaning. An encoder that knows meaning fits in its place: any function
`(list of texts) -> float32 array (texts, dim)`, named in the graph as `embedder: "module:function"`.
"""

import zlib

import numpy as np

DIM = 256


def trigrams(texts: list[str], dim: int = DIM) -> np.ndarray:
    """(texts, dim) FP32, each row of length 1 (0 for a text without letters or digits). The same text gives
    the same row everywhere."""
    result = np.zeros((len(texts), dim), np.float32)
    for row, text in enumerate(texts):
        words = "".join(letter.lower() if letter.isalnum() else " " for letter in text).split()
        for word in words:
            padded = f"  {word} "
            for at in range(len(padded) - 2):
                result[row, zlib.crc32(padded[at : at + 3].encode()) % dim] += 1
    lengths = np.linalg.norm(result, axis=1, keepdims=True)
    return result / np.where(lengths, lengths, 1)
