"""Load: what is sent, what is judged, what is counted."""

import asyncio
import itertools
import sys

import msgspec
import numpy as np
import pytest

from hams_graph import load_text
from hams_operator.cli.http import NoResponse, Pool, endpoint
from hams_operator.cli.inference import Answer, Client, Tensor, tensor
from hams_operator.cli.load import as_json, as_text, shape_judge
from hams_operator.cli.output import CommandError, seconds
from hams_operator.cli.samples import as_request, from_npz, generated, samples
from hams_operator.cli.traffic import Traffic, percentile
from hams_wire.history import HistoryWriter

GRAPH = load_text(
    """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP32, shape: [-1]}, {name: text, datatype: BYTES, shape: [], optional: true}]
  outputs: [{name: y, from: a.y}]
  operators:
  - name: a
    model: {entrypoint: "m:A"}
    inputs: [request.x, {from: request.text, optional: true}]
    outputs: [{name: y, datatype: INT64, shape: [-1, 2]}]
"""
)
X = (Tensor("x", "FP32", (1, 1), bytes(4)),)


def test_durations_are_read_as_people_write_them():
    assert [seconds(text) for text in ("60s", "500ms", "2m", "1h", "7")] == [60.0, 0.5, 120.0, 3600.0, 7.0]
    for text in ("", "s", "-1s", "0", "1d", "nan"):
        with pytest.raises(CommandError):
            seconds(text)


def test_percentiles_are_values_that_occurred():
    values = [float(number) for number in range(100)]
    assert (
        percentile(values, 0.5),
        percentile(values, 0.99),
        percentile(values, 1.0),
        percentile([], 0.5),
    ) == (50.0, 99.0, 99.0, 0.0)


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[True, False]]), np.array([b"a", b""], object)],
)
def test_tensors_come_back_as_they_went(array):
    datatype = {"f": "FP32", "b": "BOOL", "O": "BYTES"}[array.dtype.kind]
    back = tensor("t", datatype, array).array()
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


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
    found = as_request(GRAPH, next(generated(GRAPH)))
    assert [(item.name, item.datatype, item.shape) for item in found] == [
        ("x", "FP32", (1, 4)),
        ("text", "BYTES", (1,)),
    ]


def test_a_file_of_arrays_is_read_row_by_row_and_again(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(3, dtype=np.float32).reshape(3, 1))
    rows = [row["x"].tolist() for row in itertools.islice(from_npz(tmp_path / "d.npz"), 4)]
    assert rows == [[[0.0]], [[1.0]], [[2.0]], [[0.0]]]
    np.savez(tmp_path / "bad.npz", x=np.zeros(3), y=np.zeros(2))
    with pytest.raises(CommandError, match="one common number of rows"):
        from_npz(tmp_path / "bad.npz")
    (tmp_path / "no.npz").write_text("no")
    with pytest.raises(CommandError, match=r"expected a \.npz file"):
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
    with pytest.raises(CommandError, match=said):
        samples(GRAPH, tmp_path / "graph.yaml", None)
    sys.modules.pop("data", None)


async def test_data_that_goes_bad_on_the_way_ends_the_load_with_one_complaint_after_the_answers():
    def source():
        yield X
        yield X
        raise CommandError("no more of it")

    client = Scripted(lambda _: [good()])
    traffic = Traffic(client, source(), 1e6, 20)
    with pytest.raises(CommandError, match="no more of it"):
        await traffic.run()
    assert (traffic.tally.sent, traffic.tally.ok) == (2, 2)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "https://x",
        "http://",
        "http://x:0",
        "http://x:70000",
        "http://x y",
        "http://u@x",
        "http://x/?a",
        "",
    ],
)
def test_only_a_url_that_can_be_asked_is_taken(url):
    with pytest.raises(ValueError, match="expected a URL like "):
        endpoint(url)


def test_an_endpoint_has_a_port_and_a_path():
    assert endpoint("http://[::1]:8081/graphs/") == ("::1", 8081, "/graphs")
    assert endpoint("http://example") == ("example", 80, "")


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ((Tensor("y", "INT64", (1, 5, 2), bytes(80)),), None),
        ((), None),  # skipped
        ((Tensor("y", "INT32", (1, 5, 2), bytes(40)),), "expected INT64"),
        ((Tensor("y", "INT64", (2, 5, 2), bytes(160)),), "expected INT64 [1, -1, 2]"),
        ((Tensor("y", "INT64", (1, 5), bytes(40)),), "got INT64 [1, 5]"),
        ((Tensor("z", "INT64", (1, 5, 2), bytes(80)),), "output z is not declared"),
        ((Tensor("y", "INT64", (1, 0, 2), b""), Tensor("y", "INT64", (1, 0, 2), b"")), "came twice"),
    ],
)
def test_replies_are_judged_by_what_the_graph_declares(tensors, problem):
    found = shape_judge(GRAPH)(X, Answer(200, tensors))
    assert found is None if problem is None else problem in found


class Scripted(Client):
    """A client whose answers are written down: per key a list, the last one for ever."""

    def __init__(self, answers) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def infer(self, tensors, key):
        self.asked.append(key)
        number = int(key.rpartition("-")[2])
        script = self.answers(number)
        return script[min(self.asked.count(key), len(script)) - 1]


def good(value: int = 0) -> Answer:
    return Answer(200, (tensor("y", "INT64", np.array([[[value, value]]])),))


async def run(answers, count: int = 20, **more):
    client = Scripted(answers)
    return client, await Traffic(
        client, itertools.repeat(X), 1e6, count, judge=shape_judge(GRAPH), resend=True, **more
    ).run()


async def test_each_request_has_its_key_and_every_tenth_is_sent_again():
    client, tally = await run(lambda _: [good()])
    assert tally.good
    assert (tally.sent, tally.ok, tally.resent, tally.attempts) == (20, 20, 2, 22)
    assert len(set(client.asked)) == 20
    assert as_json(tally)["good"] is True


async def test_what_nobody_knows_is_sent_again_under_the_same_key_and_a_refusal_is_not():
    client, tally = await run(
        lambda number: (
            [Answer(0), Answer(503), good()]
            if number == 3
            else [Answer(400, error="bad")]
            if number == 4
            else [good()]
        )
    )
    assert sum(key.endswith("-3") for key in client.asked) == 3
    assert sum(key.endswith("-4") for key in client.asked) == 1
    assert (tally.ok, dict(tally.failed)) == (19, {"400: bad": 1})
    assert not tally.good
    assert "1 x 400: bad" in as_text(tally, True)


async def test_another_reply_under_the_same_key_is_doubled():
    _, tally = await run(lambda number: [good(1), good(2)] if number == 10 else [good()])
    assert tally.doubled == 1
    assert not tally.good


async def test_a_wrong_reply_is_off_even_if_all_were_answered():
    _, tally = await run(
        lambda number: [Answer(200, (Tensor("q", "FP32", (1,), bytes(4)),))] if number == 5 else [good()]
    )
    assert tally.ok == tally.sent
    assert not tally.good


async def test_calls_and_returns_are_recorded(tmp_path):
    history = HistoryWriter(tmp_path, "client-1")
    await run(
        lambda number: [Answer(409, error="conflict")] if number == 1 else [good()], count=2, history=history
    )
    history.close()
    lines = [msgspec.json.decode(line) for line in (tmp_path / "client-1.jsonl").read_bytes().splitlines()]
    assert sorted((line["t"], line.get("status")) for line in lines) == [
        ("call", None), ("call", None), ("call", None), ("ret", "conflict"), ("ret", "ok"), ("ret", "ok"),
    ]  # fmt: skip
    assert len({line["client"] for line in lines}) == 3
    assert len({line["digest"] for line in lines if line["t"] == "call"}) == 1


async def serve(answers: list[bytes]):
    """A server that gives each request the next answer; b"" closes the connection."""
    left = list(answers)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(
                int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            )
            answer = left.pop(0)
            if not answer:
                break
            writer.write(answer)
        writer.close()

    return await asyncio.start_server(one, "127.0.0.1", 0)


async def test_the_pool_keeps_connections_and_never_repeats_by_itself():
    plain = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\ncontent-length: 2\r\n\r\nno"
    server = await serve([plain, b"", b"garbage\r\n\r\n", plain])
    pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 30)
    found = await pool.post("/x", {}, b"body")
    assert (found.status, found.headers["retry-after"], found.body) == (503, "2", b"no")
    with pytest.raises(NoResponse, match="broke"):
        await pool.post("/x", {}, b"body")
    with pytest.raises(NoResponse, match="not HTTP"):
        await pool.post("/x", {}, b"body")
    assert (await pool.post("/x", {}, b"body")).status == 503
    pool.close()
    server.close()
    with pytest.raises(NoResponse, match="cannot connect"):
        await pool.post("/x", {}, b"body")
    with pytest.raises(ValueError, match="expected a URL"):
        Pool("ftp://x", 1)


async def test_a_token_is_borne_by_each_request_and_none_by_default():
    said: list[bytes] = []

    async def one(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            said.append(head)
            length = next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(b'HTTP/1.1 401 Unauthorized\r\ncontent-length: 14\r\n\r\n{"error": "x"}')

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    asked = (tensor("x", "FP32", np.zeros(1, np.float32)),)
    async with Client(url, "g", 5) as without, Client(url, "g", 5, "secret") as bearing:
        answers = [await client.infer(asked, "key") for client in (without, bearing)]
    server.close()
    assert [b"authorization" in head.lower() for head in said] == [False, True]
    assert b"authorization: Bearer secret\r\n" in said[1]
    assert [(answer.status, answer.error, answer.again) for answer in answers] == [(401, "x", False)] * 2
