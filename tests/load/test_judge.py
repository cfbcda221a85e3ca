"""What a reply must look like."""

import pytest

from hams_load.inference import InferAnswer, InferTensor
from hams_load.judge import shape_judge

from .graphs import GRAPH, X


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ((InferTensor("y", "INT64", (1, 5, 2), bytes(80)),), None),
        ((), None),  # skipped
        ((InferTensor("y", "INT32", (1, 5, 2), bytes(40)),), "expected INT64"),
        ((InferTensor("y", "INT64", (2, 5, 2), bytes(160)),), "expected INT64 [1, -1, 2]"),
        ((InferTensor("y", "INT64", (1, 5), bytes(40)),), "got INT64 [1, 5]"),
        ((InferTensor("y", "INT64", (), bytes(8)),), "got INT64 []"),
        ((InferTensor("z", "INT64", (1, 5, 2), bytes(80)),), "output z is not declared"),
        (
            (InferTensor("y", "INT64", (1, 0, 2), b""), InferTensor("y", "INT64", (1, 0, 2), b"")),
            "came twice",
        ),
    ],
)
def test_replies_are_judged_by_what_the_graph_declares(tensors, problem):
    verdict = shape_judge(GRAPH)(X, InferAnswer(200, tensors))
    assert verdict is None if problem is None else problem in verdict
