"""Copying leaves of a state out, from the CPU or from GPUs, without stopping the model's stream.

CPU leaves are read where they are. CUDA tensors go through the mirror of their device, on a side stream that
waits for the mark that the run left on the model's stream, so the next compute stage runs on the GPU
meanwhile. The bytes are there when a call returns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from hams_sdk.chunks import Piece
from hams_sdk.datatypes import is_tensor, torch_module
from hams_sdk.mirror import Mirror

Devices = Mapping[Any, Sequence[int]]
"""The leaves of each device, by their numbers, in the image's order."""

Spans = Sequence[tuple[int, int]]
"""The bytes [begin, end) of the image of each leaf."""


def mark() -> Any:
    """Events on the current streams of all devices in use, to be waited for by a capture; None without CUDA.
    Called by the run thread."""
    torch = torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return [torch.cuda.current_stream(device).record_event() for device in range(torch.cuda.device_count())]


def synchronize() -> None:
    """Wait until what was put in place on the devices is there."""
    torch = torch_module()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device lacked memory."""
    torch = torch_module()
    return torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)


def generator_states() -> list[Any]:
    """The state of the global generator of each device, in order; none without CUDA in use."""
    torch = torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return []
    return list(torch.cuda.get_rng_state_all())


def device_of(leaf: Any) -> Any:
    """The device that a leaf lies on; None if that is this host's memory."""
    return leaf.device if is_tensor(leaf) and leaf.device.type != "cpu" else None


class Staging:
    """What is kept from one capture of a state to the next, by device."""

    def __init__(self) -> None:
        self._mirrors: dict[Any, Mirror] = {}
        self._lacks_memory = False

    def compares(self, leaf: Any) -> bool:
        """Whether a leaf lies on a device that keeps something to compare it with."""
        mirror = self._mirrors.get(device_of(leaf))
        return mirror is not None and mirror.compares

    def take(
        self, devices: Devices, spans: Spans, leaves: Sequence[Any], after: Any, chunk_nbytes: int = 0
    ) -> dict[Any, list[tuple[int, int]] | None]:
        """Bring the leaves of all devices to this host. `after`: what `mark` returned. What may have been
        written of each device's, as `Mirror.take` says it."""
        for gone in [device for device in self._mirrors if device not in devices]:
            del self._mirrors[gone]
        written = {}
        for device, indices in devices.items():
            if device not in self._mirrors:
                self._mirrors[device] = Mirror(device, self._lacks_memory)
            on_device = [leaves[index] for index in indices]
            places = [spans[index] for index in indices]
            written[device] = self._mirrors[device].take(on_device, places, after or (), chunk_nbytes)
        return written

    def copy(
        self, devices: Devices, spans: Spans, leaves: Sequence[Any], image: memoryview, after: Any
    ) -> None:
        """Copy every leaf to its place of the image."""
        self.take(devices, spans, leaves, after)
        for leaf, (begin, end) in zip(leaves, spans, strict=True):
            if begin == end:
                continue
            memory = image[begin:end]
            if isinstance(leaf, bytes):
                np.copyto(np.frombuffer(memory, dtype=np.uint8), np.frombuffer(leaf, dtype=np.uint8))
            elif not is_tensor(leaf):
                np.copyto(np.frombuffer(memory, dtype=leaf.dtype).reshape(leaf.shape), leaf)
            elif (device := device_of(leaf)) is not None:
                np.copyto(np.frombuffer(memory, dtype=np.uint8), self._mirrors[device].bytes_of(begin, end))
            else:
                _as_tensor(memory, leaf).copy_(leaf.detach())

    def source(self, leaf: Any, begin: int, end: int) -> tuple[int, Any]:
        """Where the bytes [begin, end) of the image lie, contiguous, and what holds them: in place where a
        leaf is so; what was taken from a device in pinned memory."""
        if isinstance(leaf, bytes):
            array = np.frombuffer(leaf, dtype=np.uint8)
        elif not is_tensor(leaf):
            array = np.ascontiguousarray(leaf)
        elif (device := device_of(leaf)) is not None:
            array = self._mirrors[device].bytes_of(begin, end)
        else:
            plain = leaf.detach().resolve_conj().resolve_neg().contiguous()
            if not plain.data_ptr():  # of a subclass that wraps others, and has no memory of its own
                plain = torch_module().empty(leaf.shape, dtype=leaf.dtype, device="cpu").copy_(plain)
            return int(plain.data_ptr()), plain
        return int(array.ctypes.data), array

    def piece(self, device: Any, written: list[tuple[int, int]] | None) -> Piece:
        """All that was taken from a device."""
        mirror = self._mirrors[device]
        held = mirror.bytes_of(mirror.begin, mirror.end)
        return Piece(mirror.begin, mirror.end, int(held.ctypes.data), held, written=written)

    @contextmanager
    def beside(self, after: Any) -> Iterator[None]:
        """What is computed meanwhile, is so before the leaves are taken: a `state_dict` may compute."""
        with ExitStack() as streams:
            for mirror in self._mirrors.values():
                streams.enter_context(mirror.beside(after or ()))
            yield

    def release_devices(self) -> None:
        """The model lacked memory of a device: nothing is kept on any from now on."""
        self._lacks_memory = True
        for mirror in self._mirrors.values():
            mirror.drop_buffers()

    def settle(self) -> None:
        """The next capture is compared with this last one."""
        for mirror in self._mirrors.values():
            mirror.settle()

    def forget(self) -> None:
        """The next capture is compared with something else than the last one."""
        for mirror in self._mirrors.values():
            mirror.forget()


def _as_tensor(memory: memoryview, leaf: Any) -> Any:
    return (
        torch_module().from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(leaf.dtype).reshape(leaf.shape)
    )
