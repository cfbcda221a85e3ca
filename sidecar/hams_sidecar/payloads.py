"""Payloads of the peer streams in the arena of this process: received where they will be used.

Most payloads of an edge have the same tensors in the same places: they share one description.
"""

from collections.abc import Sequence

from hams_protocol import messages
from hams_sidecar import limits
from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer
from hams_sidecar.chunks import ChunkTable, StateDifference
from hams_sidecar.datatypes import DATATYPES, fixed_nbytes
from hams_sidecar.payload import TensorPayload
from hams_wire.peers.errors import NoRoom
from hams_wire.peers.payload import Room, TensorInfo, shown


class ArenaFactory:
    """Makes `hams_sidecar.payload.TensorPayload`s in one arena (`hams_wire.peers.payload.PayloadFactory`).
    `urgent`: they may use its reserve."""

    def __init__(self, arena: Arena, *, urgent: bool = False) -> None:
        self._arena = arena
        self._urgent = urgent
        self._tensors: dict[tuple[TensorInfo, ...], tuple[TensorInfo, ...]] = {}

    def allocate(self, nbytes: int) -> Buffer:
        """A slot of the arena. Raises NoRoom."""
        try:
            return self._arena.allocate(nbytes, urgent=self._urgent)
        except (ArenaFull, ArenaTooSmall) as error:
            raise NoRoom(str(error)) from error

    def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> TensorPayload:
        """The payload in the slot it was received in. Raises ValueError for tensors that no model could be
        given."""
        assert isinstance(room, Buffer)
        known = self._tensors.get(tensors)
        if known is None:
            _check(tensors)
            if len(self._tensors) >= limits.descriptors_max:
                self._tensors.clear()
            known = self._tensors[tensors] = tensors
        return TensorPayload(known, room)

    def describe(self, payload: messages.Payload) -> tuple[Sequence[TensorInfo], Sequence[memoryview]]:
        """Descriptors and bytes in place."""
        if isinstance(payload, ChunkTable | StateDifference):
            return (), payload.views() or (memoryview(b""),)
        assert isinstance(payload, TensorPayload), f"not a payload of the sidecar: {payload!r}"
        return payload.tensors, (payload.buffer.view,)

    def sent(self, view: memoryview) -> None:
        """What is part of a large state is unmapped."""
        self._arena.unmap(view, limits.unmap_bytes_min)


def _check(tensors: tuple[TensorInfo, ...]) -> None:
    """Every tensor has rows, a known datatype and the bytes of its shape, and a name of its own. Raises
    ValueError."""
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ValueError(f"tensor {tensor.name!r}: expected once, found twice")
        names.add(tensor.name)
        if tensor.datatype not in DATATYPES:
            raise ValueError(
                f"tensor {tensor.name!r}: expected a datatype of the protocol, found {tensor.datatype!r}"
            )
        if not tensor.shape:
            raise ValueError(f"tensor {tensor.name!r}: expected rows in its first dimension, found shape ()")
        nbytes = fixed_nbytes(tensor.datatype, tensor.shape)
        if nbytes is not None and nbytes != tensor.nbytes:
            raise ValueError(
                f"tensor {tensor.name!r}: expected {shown(nbytes)} bytes for {tensor.datatype} of shape "
                f"{list(tensor.shape)}, found {tensor.nbytes}"
            )
