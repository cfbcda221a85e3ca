"""The digits graph on real data."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")


@pytest.fixture
def digits(example: Any) -> Any:
    return example("digits")


def labelled(count: int, seed: int = 0) -> list[dict[str, Any]]:
    from digits.data import stream

    return list(itertools.islice(stream(seed), count))


def test_it_learns_from_labelled_requests(digits: Any) -> None:
    replies = [digits.request(tensors) for tensors in labelled(1500)]
    assert [int(reply["seen"][0]) for reply in replies] == list(range(1, 1501))
    assert replies[-1]["quality"][0] > 0.85
    assert replies[20]["quality"][0] < 0.6, "it knew nothing at the start"


def test_the_monitor_counts_what_the_learner_answered(digits: Any) -> None:
    requests = labelled(300)
    replies = [digits.request(tensors) for tensors in requests]
    right = [
        int(reply["label"][0] == tensors["target"][0])
        for reply, tensors in zip(replies, requests, strict=True)
    ]
    assert replies[-1]["quality"][0] == pytest.approx(np.mean(right[-256:]), abs=1e-6)
    confusion = digits.engines["monitor"].model.confusion
    assert (confusion.sum(), np.trace(confusion)) == (300, sum(right))


def test_without_a_target_nothing_is_learnt_or_counted(digits: Any, captured: Any) -> None:
    for tensors in labelled(5):
        digits.request(tensors)
    before = [captured(digits.engines[name]) for name in ("learner", "monitor")]
    reply = digits.request({"pixels": labelled(1, seed=1)[0]["pixels"]})
    assert (reply["seen"].tolist(), reply["label"].shape) == ([5], (1,))
    assert [captured(digits.engines[name]) for name in ("learner", "monitor")] == before


def test_a_fresh_copy_with_the_captured_state_goes_on_the_same(
    digits: Any, example: Any, captured: Any
) -> None:
    requests = labelled(120)
    for tensors in requests[:60]:
        digits.request(tensors)
    other = example("digits")
    for name in ("learner", "monitor"):
        other.engines[name].load(memoryview(bytearray(captured(digits.engines[name]))))
    for tensors in requests[60:]:
        mine, theirs = digits.request(tensors), other.request(tensors)
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_a_target_that_is_no_digit_is_refused_and_leaves_no_trace(digits: Any, captured: Any) -> None:
    digits.request(labelled(1)[0])
    before = captured(digits.engines["learner"])
    with pytest.raises(Exception, match="learner: target must be from 0 to 9"):
        digits.request({"pixels": np.zeros((2, 64), np.float32), "target": np.array([3, 10])})
    assert captured(digits.engines["learner"]) == before


def test_the_embedding_keeps_the_coarse_of_an_image(digits: Any) -> None:
    from digits.models import Features, cosine_basis

    basis = cosine_basis(8)
    np.testing.assert_allclose(basis @ basis.T, np.eye(8), atol=1e-6)
    whole = Features()
    whole.initialize({"dim": 64})
    pixels = labelled(1)[0]["pixels"]
    np.testing.assert_allclose(
        np.linalg.norm(pixels @ whole.projection), np.linalg.norm(pixels) / 16, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import digits.models", "torch"),
        ("import digits.models; digits.models.Learner().initialize({})", "torch._dynamo"),
    ],
    ids=["only the learner needs torch", "the learner does without torch's compiler"],
)
def test_a_process_starts_light(code: str, absent: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    program = f"{code}; import sys; print({absent!r} in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
