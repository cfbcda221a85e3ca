"""A client of the inference endpoint (Open Inference Protocol v2 over HTTP, binary tensor extension), for
load and the demo.

It never repeats a request by itself and tells what came of each attempt: an answer, or that no answer came.
"""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from hams_history.lines import tensor_digest
from hams_load.http import NoResponse, Pool, Response

Array = npt.NDArray[np.generic]

DTYPES: Mapping[str, str] = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
    "BYTES": "O",
}
"""Datatype name to numpy; BF16 as its 16 bits, as numpy has no such type."""


SHED_REASON = "deadline"
"""`reason` in the body of a 504 for a request that an operator did not run."""


class InferTensor(msgspec.Struct, frozen=True):
    """One tensor as it travels: little-endian bytes, BYTES elements behind their 4-byte lengths."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes

    def array(self) -> Array:
        """As numpy; BYTES as an object array of bytes."""
        if self.datatype != "BYTES":
            return np.frombuffer(self.data, DTYPES[self.datatype]).reshape(self.shape)
        texts, at = [], 0
        while at < len(self.data):
            end = at + 4 + int.from_bytes(self.data[at : at + 4], "little")
            texts.append(self.data[at + 4 : end])
            at = end
        array = np.empty(len(texts), object)
        array[:] = texts
        return array.reshape(self.shape)


class InferAnswer(msgspec.Struct, frozen=True):
    """What came back: HTTP status, tensors of a 200, else the error. `status` 0: no answer came, `error` says
    why. `shed`: an operator did not run the request, because its time was up or would be."""

    status: int
    tensors: tuple[InferTensor, ...] = ()
    error: str = ""
    retry_after_s: float = 0.0
    shed: bool = False

    @property
    def digest(self) -> str:
        """Of the tensors (history.md, rule 6)."""
        return digest(self.tensors)

    @property
    def again(self) -> bool:
        """Whether the same key may and should be sent again: nothing was kept under it, or nobody knows."""
        return self.status in (0, 429, 503, 504) and not self.shed

    def values(self) -> dict[str, Array]:
        """The tensors as arrays, by name."""
        return {tensor.name: tensor.array() for tensor in self.tensors}


def tensor(name: str, datatype: str, array: Array) -> InferTensor:
    """An array as a tensor of the given datatype; no value is changed by it. Raises ValueError."""
    if datatype == "BYTES":
        strange = next((item for item in array.ravel().tolist() if not isinstance(item, str | bytes)), None)
        if strange is not None:
            raise ValueError(
                f"tensor {name}: expected BYTES, found {type(strange).__name__} in an array of {array.dtype}"
            )
        parts = [item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel().tolist()]
        return InferTensor(
            name, datatype, array.shape, b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        )
    wanted = np.dtype(DTYPES[datatype])
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise ValueError(f"tensor {name}: expected {datatype}, found an array of {array.dtype}")
    return InferTensor(name, datatype, array.shape, np.ascontiguousarray(array, wanted).tobytes())


def digest(tensors: tuple[InferTensor, ...]) -> str:
    """Digest of a payload or reply, as the frontends write it into histories."""
    return tensor_digest((item.name, item.datatype, item.shape, item.data) for item in tensors)


class InferClient:
    """Keeps connections to one graph's endpoint: `async with InferClient(url, graph) as client`. `token`:
    what it bears, if the graph asks for one."""

    def __init__(self, url: str, graph: str, timeout_s: float, token: str = "") -> None:
        self._proof = {"authorization": f"Bearer {token}"} if token else {}
        self._path = f"/v2/models/{graph}/infer"
        self._pool = Pool(url, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    async def infer(
        self, tensors: tuple[InferTensor, ...], key: str, deadline_ms: float | None = None
    ) -> InferAnswer:
        """One attempt. `deadline_ms`: how long the client waits from now on; None: it does not say."""
        inputs = [
            {
                "name": item.name,
                "datatype": item.datatype,
                "shape": item.shape,
                "parameters": {"binary_data_size": len(item.data)},
            }
            for item in tensors
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(len(head)),
            "idempotency-key": key,
            **self._proof,
        }
        if deadline_ms is not None:
            headers["hams-deadline-ms"] = f"{deadline_ms:.3f}"
        try:
            return _answer(
                await self._pool.post(self._path, headers, b"".join((head, *(item.data for item in tensors))))
            )
        except NoResponse as error:
            return InferAnswer(0, error=str(error))


class _Sized(msgspec.Struct):
    binary_data_size: int


class _ReplyOutput(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: _Sized


class _Reply(msgspec.Struct):
    outputs: tuple[_ReplyOutput, ...]


class _Error(msgspec.Struct):
    error: str
    reason: str = ""


def _answer(response: Response) -> InferAnswer:
    body = response.body
    if response.status != 200:
        try:
            refused = msgspec.json.decode(body, type=_Error)
        except msgspec.MsgspecError:
            refused = _Error(body[:200].decode("utf-8", "replace"))
        after = response.headers.get("retry-after", "0")
        return InferAnswer(
            response.status,
            error=refused.error,
            retry_after_s=float(after) if after.isdecimal() else 0.0,
            shed=response.status == 504 and refused.reason == SHED_REASON,
        )
    tensors = []
    try:
        at = int(response.headers.get("inference-header-content-length", len(body)))
        for item in msgspec.json.decode(body[:at], type=_Reply).outputs:
            end = at + item.parameters.binary_data_size
            tensors.append(InferTensor(item.name, item.datatype, item.shape, body[at:end]))
            at = end
    except (msgspec.MsgspecError, ValueError) as error:
        return InferAnswer(502, error=f"not an answer of the protocol: {error}")
    return InferAnswer(200, tuple(tensors))
