"""A model process that lies about its outputs breaks the contract, and nothing of what it said reaches the
graph."""

from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.model.conftest import one_operator

from hams_protocol.effects import BatchUnit
from hams_protocol.graph import TensorSpec
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.messages import Meta
from hams_sidecar.arena import Arena
from hams_sidecar.model import frames
from hams_sidecar.model.link import ModelLink

UNIT = BatchUnit(UnitId(RequestId(0, 1), ()), Meta(), ())
VARIABLE = TensorSpec("y", "FP32", (-1, -1))
TEXT = TensorSpec("y", "BYTES", (-1,))


def result(directory: Path, spec: TensorSpec, tensor: tuple[int, int, list[int]]) -> Any:
    arena = Arena(1 << 20, path=directory / "arena")
    link = ModelLink(one_operator(stateful=False, outputs=(spec,)), "op", arena, arena, lambda event: None)
    return link._result(UNIT, 1, arena.allocate(64), frames.UnitDone(tensors=[tensor]))


def test_what_is_true_is_taken(tmp_path: Path) -> None:
    assert result(tmp_path, VARIABLE, (0, 8, [1, 2, 1])).payload.tensors[0].shape == (1, 2, 1)


@pytest.mark.parametrize(
    ("spec", "tensor"),
    [
        (VARIABLE, (0, 4, [1, -1, -1])),
        (VARIABLE, (0, 0, [1, 0, 1 << 63])),
        (VARIABLE, (0, 0, [1, 0, 10**400])),
        (TEXT, (0, 5, [1, -1])),
        (TEXT, (0, 0, [1, 1 << 64])),
        (VARIABLE, (-4, 4, [1, 1, 1])),
        (VARIABLE, (64, 4, [1, 1, 1])),
        (VARIABLE, (0, 8, [1, 1, 1])),
        (VARIABLE, (0, 8, [2, 1, 1])),
        (VARIABLE, (0, 4, [1, 1])),
    ],
    ids=repr,
)
def test_a_shape_that_lies_breaks_the_contract(
    tmp_path: Path, spec: TensorSpec, tensor: tuple[int, int, list[int]]
) -> None:
    with pytest.raises(ValueError, match="output y"):
        result(tmp_path, spec, tensor)
