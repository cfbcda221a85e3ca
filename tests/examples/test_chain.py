"""The chains for measurements."""

import contextlib
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("file", ["graph.yaml", "stateless.yaml", "mixed.yaml"])
def test_what_goes_in_comes_out_and_is_counted(example: Any, file: str) -> None:
    chain = example("chain", file)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    replies = [chain.request({"x": x}) for _ in range(2)]
    for reply in replies:
        np.testing.assert_array_equal(reply["x"], x)
    if file != "stateless.yaml":
        assert [reply["count"].tolist() for reply in replies] == [[1, 2, 3], [4, 5, 6]]


def test_the_state_is_as_large_as_asked_for(example: Any, captured: Any) -> None:
    chain = example("chain")
    assert 4096 <= len(captured(chain.engines["a"])) < 8192


def test_a_stamp_shows_the_count_in_what_is_handed_on(example: Any) -> None:
    example("chain")
    from chain.models import Count

    model = Count()
    model.initialize({"stamp": True})
    x = np.zeros((2, 3), np.float32)
    x.flags.writeable = False
    assert model.run({"x": x}, contextlib.nullcontext())["x"].tolist() == [[1, 0, 0], [2, 0, 0]]
    assert model.run({"x": x}, contextlib.nullcontext())["x"].tolist() == [[3, 0, 0], [4, 0, 0]]


def test_payloads_have_the_size_asked_for(example: Any) -> None:
    example("chain")
    from chain.data import stream

    assert next(stream(1 << 20))["x"].nbytes == 1 << 20
