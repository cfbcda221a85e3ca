"""What tokens, replies and state records carry: tensors in one buffer of an arena.

The core sees only `nbytes`. A state image is a payload without tensors: bytes that only the model SDK reads.
Payloads are immutable and share memory freely; equality is identity.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hams_protocol.messages import Payload
from hams_sidecar import limits
from hams_sidecar.arena import Arena, Buffer
from hams_sidecar.blocks import round_up
from hams_sidecar.chunks import ChunkTable, StateDifference, count, table_of
from hams_sidecar.datatypes import NUMPY, decode_bytes, encode_bytes
from hams_wire.peers.payload import TensorInfo, WholePayload, content_of

Tensor = TensorInfo
"""One tensor, as peers describe it: at `offset` of the payload's buffer (a multiple of 64 where we wrote
it)."""


class TensorPayload(WholePayload):
    """Tensors and the buffer they lie in; the memory lives as long as the payload."""

    __slots__ = ("buffer", "tensors")
    defect = ""

    def __init__(self, tensors: tuple[Tensor, ...], buffer: Buffer) -> None:
        self.tensors = tensors
        self.buffer = buffer

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.buffer.nbytes

    @property
    def rows(self) -> int:
        """Leading dimension of its tensors: how much of a batch it fills. 0 for a state image."""
        return self.tensors[0].shape[0] if self.tensors else 0

    @property
    def batch_key(self) -> str:
        """Units whose payloads differ in this never share a batch: names of the tensors present, and the
        shape of one row."""
        return _batch_key(self.tensors)

    @property
    def content(self) -> str:
        """See `hams_wire.peers.payload.content_of`."""
        return content_of(self.tensors, [self.view(tensor) for tensor in self.tensors])

    def born_after(self, version: int, newest: int) -> Payload | None:
        """See `Payload`. Of one that came whole nobody knows what changed before it."""
        if version < newest or self.tensors or count(self.nbytes) > limits.chunks_max:
            return None
        return StateDifference(self.nbytes)

    def laid_over(self, base: Payload, since: int, version: int) -> Payload | None:
        """See `Payload`: its bytes are those of a `chunks.StateDifference`."""
        if isinstance(base, TensorPayload) and not base.tensors and count(base.nbytes) <= limits.chunks_max:
            base = ChunkTable.cut(base.buffer, since)
        return table_of(self.buffer, base, version) if isinstance(base, ChunkTable) else None

    def find(self, name: str) -> Tensor | None:
        """The tensor of this name, None if it is absent."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        return None

    def view(self, tensor: Tensor) -> memoryview:
        """The bytes of one of its tensors, in place."""
        return self.buffer.view[tensor.offset : tensor.offset + tensor.nbytes]

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Tensor `name` as a read-only array in place (BYTES: a new object array). Raises KeyError,
        ValueError for bad BYTES."""
        tensor = self.find(name)
        if tensor is None:
            raise KeyError(name)
        data = self.view(tensor).toreadonly()
        if tensor.datatype == "BYTES":
            return decode_bytes(data, int(np.prod(tensor.shape, dtype=np.int64))).reshape(tensor.shape)
        return np.frombuffer(data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)

    def __repr__(self) -> str:
        return (
            f"TensorPayload({', '.join(f'{t.name}: {t.datatype}{list(t.shape)}' for t in self.tensors)}; "
            f"{self.nbytes} bytes)"
        )


@lru_cache(maxsize=limits.descriptors_max)
def _batch_key(tensors: tuple[Tensor, ...]) -> str:
    return " ".join(f"{tensor.name}{tensor.shape[1:]}" for tensor in tensors)


def layout(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> tuple[tuple[Tensor, ...], int]:
    """Place tensors (name, datatype, shape, nbytes) one after another, each aligned: their descriptors and
    the bytes they take in all."""
    placed: list[Tensor] = []
    at = 0
    for name, datatype, shape, nbytes in tensors:
        at = round_up(at)
        placed.append(Tensor(name, datatype, shape, at, nbytes))
        at += nbytes
    return tuple(placed), at


def pack(arena: Arena, arrays: Iterable[tuple[str, str, npt.NDArray[np.generic]]]) -> TensorPayload:
    """Copy (name, datatype, array) into a new payload. The arrays must have the datatype's numpy type (BYTES:
    objects of bytes). Raises ArenaFull."""
    described: list[tuple[str, str, tuple[int, ...], int]] = []
    contents: list[npt.NDArray[np.generic] | bytes] = []
    for name, datatype, array in arrays:
        if datatype == "BYTES":
            encoded = encode_bytes(array.ravel().tolist())
            contents.append(encoded)
            described.append((name, datatype, array.shape, len(encoded)))
        else:
            if array.dtype != NUMPY[datatype]:
                raise ValueError(f"tensor {name!r}: expected {datatype}, got an array of {array.dtype}")
            contents.append(array)
            described.append((name, datatype, array.shape, array.nbytes))
    tensors, total = layout(described)
    payload = TensorPayload(tensors, arena.allocate(total))
    for tensor, content in zip(tensors, contents, strict=True):
        target = payload.view(tensor)
        if isinstance(content, bytes):
            target[:] = content
        else:
            np.copyto(np.frombuffer(target, dtype=content.dtype).reshape(content.shape), content)
    return payload


def image(arena: Arena, data: bytes | memoryview, *, urgent: bool = False) -> TensorPayload:
    """Copy raw bytes (a state image) into a payload without tensors. Raises ArenaFull."""
    buffer = arena.allocate(len(data), urgent=urgent)
    buffer.view[:] = data
    return TensorPayload((), buffer)
