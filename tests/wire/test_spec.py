"""The compiled graph under etcd's `spec` key."""

import json

import pytest

from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Checkpoint,
    Edge,
    Feedback,
    FrontendSpec,
    Graph,
    GraphData,
    Input,
    Join,
    Mode,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    TensorSpec,
)
from hams_wire.spec import MalformedSpec, decode_spec, encode_spec


def graph() -> Graph:
    """One operator that uses every field there is."""
    op = Operator(
        "a",
        Join.INTERLEAVE,
        (Edge(FRONTEND, "a", (Input("x", "y", True),)),),
        (FRONTEND,),
        ((FRONTEND,), ("b", "c")),
        (TensorSpec("x", "FP32", (-1, 4), finite=True),),
        BatchPolicy(64, 0.002),
        ModelSpec("m:A", '{"a":1}', "image", "/python", (("A", "ä"),)),
        True,
        2,
        4,
        1,
        1,
        Checkpoint(60.0, 2, "/c"),
        Feedback((("x", "x"),), 8),
        '{"spec":{}}',
    )
    inputs = (TensorSpec("x", "FP32", (-1, 4), optional=True),)
    return Graph(
        GraphData(
            "g",
            "uid",
            Mode.NON_STOP,
            FrontendSpec(),
            3,
            RecoverySpec(),
            inputs,
            (ReplyTensor("x", (("a", "x"),), True),),
            (op,),
        )
    )


def test_a_graph_comes_back_as_it_was() -> None:
    decoded = decode_spec(encode_spec(graph()))
    assert decoded.data == graph().data
    assert decoded.operators["a"].lanes == ((FRONTEND,), ("b", "c"))
    assert isinstance(decoded.operators["a"].join, Join)


def test_equal_graphs_give_equal_bytes() -> None:
    assert encode_spec(graph()) == encode_spec(decode_spec(encode_spec(graph())))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a compiled graph: Input data was truncated"),
        (b"[]", "not a compiled graph: Expected `object`, got `array`"),
        (b"{}", "not a compiled graph: Object missing required field `format`"),
        (b"\xff", "not a compiled graph: JSON is malformed: invalid character (byte 0)"),
        (
            encode_spec(graph()).replace(b"hams-spec-1", b"hams-spec-2"),
            'a compiled graph of format "hams-spec-2"; this version reads "hams-spec-1"',
        ),
        (
            encode_spec(graph()).replace(b'"Interleave"', b'"Zip"'),
            "not a compiled graph: Invalid enum value 'Zip' - at `$.operators[0].join`",
        ),
        (
            encode_spec(graph()).replace(b'"managers":3', b'"managers":"3"'),
            "not a compiled graph: Expected `int`, got `str` - at `$.managers`",
        ),
    ],
)
def test_other_bytes_are_refused_with_the_place(data: bytes, message: str) -> None:
    with pytest.raises(MalformedSpec) as caught:
        decode_spec(data)
    assert str(caught.value) == message


def test_an_unknown_format_is_refused_before_its_graph_is_read() -> None:
    stored = json.loads(encode_spec(graph())) | {"format": "hams-spec-9", "graph": {"new": "shape"}}
    with pytest.raises(MalformedSpec, match='format "hams-spec-9"'):
        decode_spec(json.dumps(stored).encode())
