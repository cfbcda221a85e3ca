"""The client of the inference endpoint."""

import asyncio

import numpy as np
import pytest

from hams_load.inference import InferClient, tensor


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[True, False]]), np.array([b"a", b""], object)],
)
def test_tensors_come_back_as_they_went(array):
    datatype = {"f": "FP32", "b": "BOOL", "O": "BYTES"}[array.dtype.kind]
    back = tensor("t", datatype, array).array()
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


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
    async with InferClient(url, "g", 5) as without, InferClient(url, "g", 5, "secret") as bearing:
        answers = [await client.infer(asked, "key") for client in (without, bearing)]
    server.close()
    assert [b"authorization" in head.lower() for head in said] == [False, True]
    assert b"authorization: Bearer secret\r\n" in said[1]
    assert [(answer.status, answer.error, answer.again) for answer in answers] == [(401, "x", False)] * 2


async def test_a_deadline_goes_along_and_a_request_that_was_shed_is_told_from_one_without_a_reply():
    said: list[bytes] = []
    bodies = [b'{"error": "x", "operator": "b", "reason": "deadline", "begun": true}', b'{"error": "y"}']

    async def one(reader, writer):
        for body in bodies:
            head = await reader.readuntil(b"\r\n\r\n")
            said.append(head.lower())
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            await reader.readexactly(int(length))
            writer.write(b"HTTP/1.1 504 Late\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    asked = (tensor("x", "FP32", np.zeros(1, np.float32)),)
    async with InferClient(url, "g", 5) as client:
        shed, late = await client.infer(asked, "one", 180.0), await client.infer(asked, "two")
    server.close()
    assert b"hams-deadline-ms: 180.000\r\n" in said[0]
    assert b"hams-deadline-ms" not in said[1]
    assert [(answer.shed, answer.again) for answer in (shed, late)] == [(True, False), (False, True)]
