"""Payloads of the peer streams in the arena of this process: received where they will be used.

Most payloads of an edge have the same tensors in the same places: they share one description.
"""

from collections.abc import Sequence

from hams_protocol import messages
from hams_sidecar import limits
from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall, Buffer
from hams_sidecar.payload import Payload
from hams_wire.peers.errors import NoRoom
from hams_wire.peers.payload import Room, TensorInfo


class ArenaFactory:
    """Makes `hams_sidecar.payload.Payload`s in one arena (`hams_wire.peers.payload.PayloadFactory`)."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._tensors: dict[tuple[TensorInfo, ...], tuple[TensorInfo, ...]] = {}

    def allocate(self, nbytes: int) -> Buffer:
        """A slot of the arena. Raises NoRoom."""
        try:
            return self._arena.allocate(nbytes)
        except (ArenaFull, ArenaTooSmall) as error:
            raise NoRoom(str(error)) from error

    def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> Payload:
        """The payload in the slot it was received in."""
        assert isinstance(room, Buffer)
        known = self._tensors.get(tensors)
        if known is None:
            if len(self._tensors) >= limits.descriptors_max:
                self._tensors.clear()
            known = self._tensors[tensors] = tensors
        return Payload(known, room)

    def describe(self, payload: messages.Payload) -> tuple[Sequence[TensorInfo], memoryview]:
        """Descriptors and bytes in place."""
        assert isinstance(payload, Payload), f"not a payload of the sidecar: {payload!r}"
        return payload.tensors, payload.buffer.view

    def sent(self, view: memoryview) -> None:
        """What is part of a large state is unmapped."""
        self._arena.unmap(view, limits.unmap_bytes_min)
