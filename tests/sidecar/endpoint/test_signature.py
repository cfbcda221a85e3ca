"""Shapes that lie: every dimension and the rows are bounded where a signature is checked, for both
transports."""

import itertools
import json

import pytest
from tests.sidecar.endpoint.doubles import graph

from hams_protocol.graph import TensorSpec
from hams_sidecar.endpoint import open_inference_pb2 as pb
from hams_sidecar.endpoint.errors import RequestRefused, shown
from hams_sidecar.endpoint.grpc_codec import decode_request as decode_grpc
from hams_sidecar.endpoint.json_data import run_through
from hams_sidecar.endpoint.rest_codec import KnownHeads, decode_request
from hams_sidecar.endpoint.signature import Signature, dimension_max, rows_without_data_max

VARIABLE = Signature(graph(TensorSpec("x", "FP32", (-1,))))
BOUNDARIES = (-(2**63), -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**400)


def as_json(signature: Signature, datatype: str, shape: list[int]) -> object:
    body = {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": []}]}
    return run_through(decode_request(json.dumps(body).encode(), None, signature, KnownHeads()))


def as_binary(signature: Signature, datatype: str, shape: list[int]) -> object:
    described = {
        "name": "x",
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": 0},
    }
    head = json.dumps({"inputs": [described]}).encode()
    return run_through(decode_request(head, str(len(head)), signature, KnownHeads()))


def as_grpc(signature: Signature, datatype: str, shape: list[int]) -> object:
    message = pb.ModelInferRequest(raw_input_contents=[b""])
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return run_through(decode_grpc(message, message.raw_input_contents, signature))


FORMS = (as_json, as_binary, as_grpc)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("shape", list(itertools.permutations(BOUNDARIES, 2)))
def test_F37_no_shape_without_data_passes_but_rows_that_hold_nothing(form, datatype, shape) -> None:
    """A product of 0 needs no data, whatever the other dimension says; a client's -1 is no declared -1."""
    if form is as_grpc and any(not -(2**63) <= dim < 2**63 for dim in shape):
        return  # no such message
    signature = Signature(graph(TensorSpec("x", datatype, (-1,))))
    if shape == (1, 0):
        assert form(signature, datatype, list(shape)).tensors[0].shape == shape
        return
    with pytest.raises(RequestRefused, match=r"tensor 'x'|rows") as result:
        form(signature, datatype, list(shape))
    assert result.value.status == 400
    assert len(result.value.message) < 500


@pytest.mark.parametrize("form", FORMS)
def test_F37_rows_without_data_are_as_many_as_a_batch_may_have(form) -> None:
    assert form(VARIABLE, "FP32", [rows_without_data_max, 0]).tensors[0].shape == (rows_without_data_max, 0)
    with pytest.raises(RequestRefused, match=f"at most {rows_without_data_max} rows"):
        form(VARIABLE, "FP32", [rows_without_data_max + 1, 0])


def test_rows_that_bring_their_bytes_are_as_many_as_come() -> None:
    rows = rows_without_data_max + 1
    signature = Signature(graph(TensorSpec("x", "BOOL", ()), TensorSpec("y", "FP32", (-1,), optional=True)))
    message = pb.ModelInferRequest(raw_input_contents=[bytes(rows), b""])
    message.inputs.add(name="x", datatype="BOOL", shape=[rows])
    message.inputs.add(name="y", datatype="FP32", shape=[rows, 0])
    assert len(run_through(decode_grpc(message, message.raw_input_contents, signature)).tensors) == 2


def test_the_largest_dimension_may_be_declared_and_sent() -> None:
    assert VARIABLE.expect("x", "FP32", (1, dimension_max)) == 4 * dimension_max
    with pytest.raises(RequestRefused, match=f"from 0 to {dimension_max}"):
        VARIABLE.expect("x", "FP32", (1, dimension_max + 1))


def test_what_is_shown_of_a_mistake_is_bounded() -> None:
    nested = [[10**5000] * 10**4] * 10**4
    for item in ("x" * 10**6, [1] * 10**6, 10**5000, -(10**5000), nested, ("a" * 10**6,) * 3):
        assert len(shown(item)) < 200
