"""A model process that lies about its outputs breaks the contract, and nothing of what it said reaches the
graph."""

import json
import struct
from pathlib import Path
from time import monotonic
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
from hams_sidecar.model.session import BatchInModel

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


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ({}, 0.0),
        ({"seconds": 3.0}, 3.0),
        ({"seconds": 3.0, "update_s": 1.5, "not_yet_known": [1]}, 4.5),
        ({"seconds": 0, "update_s": 0}, 0.0),
        ({"seconds": -3.0}, 0.0),
        ({"seconds": 5.0, "update_s": -3.0}, 0.0),
        ({"seconds": 8.0, "update_s": 8.0}, 0.0),
        ({"seconds": 1e308, "update_s": 1e308}, 0.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("kind", "body"), [(6, {"units": []}), (7, {"message": "no"})], ids=["done", "failed"]
)
def test_times_that_are_absent_or_cannot_be_are_unknown(
    kind: int, body: dict[str, Any], said: dict[str, Any], believed: float
) -> None:
    """The run was sent ten seconds ago."""
    batch = BatchInModel(1, (), [])
    batch.sent_at = monotonic() - 10.0
    data = json.dumps({"batch": 1, "updated": False, **body, **said}).encode()
    (frame,) = frames.FrameReader().feed(struct.pack("<IBBH", len(data), kind, frames.FRAMES, 0) + data)
    assert isinstance(frame, frames.Done | frames.Failed)
    assert batch.own_s(frame) == believed


@pytest.mark.parametrize("said", ["1e999", "NaN", '"1"', "[]"])
def test_times_that_are_no_numbers_break_the_contract(said: str) -> None:
    data = f'{{"batch": 1, "updated": false, "units": [], "seconds": {said}}}'.encode()
    with pytest.raises(frames.BadModelFrame, match="Done frame"):
        frames.FrameReader().feed(struct.pack("<IBBH", len(data), 6, frames.FRAMES, 0) + data)
