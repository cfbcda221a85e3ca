"""Where requests come from."""

import itertools
import sys

import numpy as np
import pytest

from hams_load.errors import BadData
from hams_load.samples import as_request, from_npz, generated, samples

from .graphs import GRAPH


def test_data_that_does_not_fit_the_graph_is_named():
    with pytest.raises(ValueError, match="expected x, text, found z"):
        as_request(GRAPH, {"x": np.zeros((1, 1), np.float32), "z": np.zeros(1)})
    with pytest.raises(ValueError, match="tensor x is missing"):
        as_request(GRAPH, {"text": np.array([b"a"], object)})
    with pytest.raises(ValueError, match="expected FP32, found an array of <U1"):
        as_request(GRAPH, {"x": np.array([["a"]])})
    with pytest.raises(ValueError, match=r"tensor x: expected the shape \['rows', -1\], found \[1\]"):
        as_request(GRAPH, {"x": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match="tensor text: expected BYTES, found int"):
        as_request(GRAPH, {"x": np.zeros((1, 1), np.float32), "text": np.array([5])})


def test_generated_requests_have_the_declared_shapes():
    match = as_request(GRAPH, next(generated(GRAPH)))
    assert [(item.name, item.datatype, item.shape) for item in match] == [
        ("x", "FP32", (1, 4)),
        ("text", "BYTES", (1,)),
    ]


def test_a_file_of_arrays_is_read_row_by_row_and_again(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(3, dtype=np.float32).reshape(3, 1))
    rows = [row["x"].tolist() for row in itertools.islice(from_npz(tmp_path / "d.npz"), 4)]
    assert rows == [[[0.0]], [[1.0]], [[2.0]], [[0.0]]]
    np.savez(tmp_path / "bad.npz", x=np.zeros(3), y=np.zeros(2))
    with pytest.raises(BadData, match="one common number of rows"):
        from_npz(tmp_path / "bad.npz")
    (tmp_path / "no.npz").write_text("no")
    with pytest.raises(BadData, match=r"expected a \.npz file"):
        from_npz(tmp_path / "no.npz")


def test_data_py_beside_the_models_is_preferred(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "data", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "graph.yaml").touch()
    (tmp_path / "data.py").write_text(
        "import numpy as np\ndef stream():\n    while True:\n        yield {'x': np.full((1, 2), 7, "
        "np.float32)}\n"
    )
    assert next(samples(GRAPH, tmp_path / "graph.yaml", None))[0].array().tolist() == [[7.0, 7.0]]
    sys.modules.pop("data", None)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def stream():\n    yield {'x': [1]}\n", "tensor x: expected a NumPy array, found list"),
        ("def stream():\n    yield 7\n", "expected a dictionary of NumPy arrays, found int"),
        ("def stream():\n    return iter(())\n", "data ended after 0 requests"),
        ("def stream():\n    return []\n", "data ended after 0 requests"),
        ("def stream():\n    return 7\n", "'int' object is not iterable"),
        ("def stream():\n    yield 1 / 0\n", "data cannot be had: ZeroDivisionError"),
        ("1 / 0\n", "cannot be used: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_data_py_is_said_before_anything_is_sent(tmp_path, monkeypatch, code, said):
    monkeypatch.delitem(sys.modules, "data", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "data.py").write_text(code)
    with pytest.raises(BadData, match=said):
        samples(GRAPH, tmp_path / "graph.yaml", None)
    sys.modules.pop("data", None)
