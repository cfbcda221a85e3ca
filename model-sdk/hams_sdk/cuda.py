"""Copying leaves of a state out, from the CPU or from GPUs, without stopping the model's stream.

CPU leaves are copied straight into the image. CUDA tensors go through pinned memory on a side stream that
waits for the mark that the run left on the model's stream, so the next compute stage runs on the GPU
meanwhile; the copy is complete when `copy` returns. Pinned buffers are kept and reused: pinning is slow.
"""

from typing import Any

import numpy as np

from hams_sdk.datatypes import is_tensor, torch_module

Copy = tuple[Any, memoryview]
"""A leaf and the memory it goes to; never empty."""


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


def generator_states() -> list[Any]:
    """The state of the global generator of each device, in order; none without CUDA in use."""
    torch = torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return []
    return list(torch.cuda.get_rng_state_all())


class Staging:
    """Side streams and pinned buffers of one state."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}
        self._pinned: dict[Any, Any] = {}  # device -> pinned bytes

    def copy(self, copies: list[Copy], after: Any) -> None:
        """Copy every leaf to its memory; returns when all bytes are there."""
        on_device: dict[Any, list[Copy]] = {}
        for leaf, memory in copies:
            if isinstance(leaf, bytes):
                np.copyto(np.frombuffer(memory, dtype=np.uint8), np.frombuffer(leaf, dtype=np.uint8))
            elif not is_tensor(leaf):
                np.copyto(np.frombuffer(memory, dtype=leaf.dtype).reshape(leaf.shape), leaf)
            elif leaf.device.type == "cpu":
                _as_tensor(memory, leaf).copy_(leaf.detach())
            else:
                on_device.setdefault(leaf.device, []).append((leaf, memory))
        staged = [
            (device, group, self._enqueue(device, [(leaf, len(memory)) for leaf, memory in group], after))
            for device, group in on_device.items()
        ]
        for device, group, pinned in staged:
            self._streams[device].synchronize()
            at = 0
            for _, memory in group:
                np.copyto(np.frombuffer(memory, dtype=np.uint8), pinned[at : at + len(memory)])
                at += _aligned(len(memory))

    def sources(self, leaves: list[Any], after: Any) -> list[tuple[int, Any]]:
        """Where the bytes of each leaf lie in this process' memory, contiguous, and what holds them: in place
        where they are so; those on a device are copied to pinned memory."""
        found: list[tuple[int, Any]] = [(0, None)] * len(leaves)
        on_device: dict[Any, list[int]] = {}
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, bytes):
                array = np.frombuffer(leaf, dtype=np.uint8)
            elif not is_tensor(leaf):
                array = np.ascontiguousarray(leaf)
            elif leaf.device.type == "cpu":
                plain = leaf.detach().resolve_conj().resolve_neg().contiguous()
                found[index] = int(plain.data_ptr()), plain
                continue
            else:
                on_device.setdefault(leaf.device, []).append(index)
                continue
            found[index] = int(array.ctypes.data), array
        for device, indices in on_device.items():
            sizes = [int(leaves[index].nbytes) for index in indices]
            group = [(leaves[index], size) for index, size in zip(indices, sizes, strict=True)]
            pinned = self._enqueue(device, group, after)
            self._streams[device].synchronize()
            at = int(pinned.ctypes.data)
            for index, size in zip(indices, sizes, strict=True):
                found[index] = at, pinned
                at += _aligned(size)
        return found

    def _enqueue(self, device: Any, group: list[tuple[Any, int]], after: Any) -> Any:
        """Start the copies of leaves of so many bytes from one device into pinned memory; returns that
        memory."""
        torch = torch_module()
        total = sum(_aligned(nbytes) for _, nbytes in group)
        pinned = self._pinned.get(device)
        if pinned is None or pinned.nbytes < total:
            pinned = self._pinned[device] = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        for event in after or ():
            stream.wait_event(event)
        with torch.no_grad(), torch.cuda.stream(stream):
            at = 0
            for leaf, nbytes in group:
                target = pinned[at : at + nbytes].view(leaf.dtype).reshape(leaf.shape)
                # The caller holds the leaf until the stream is synchronised, so its memory is not handed out
                # again meanwhile.
                target.copy_(leaf.detach(), non_blocking=True)
                at += _aligned(nbytes)
        return pinned.numpy()


def _aligned(nbytes: int) -> int:
    return (nbytes + 63) & ~63


def _as_tensor(memory: memoryview, leaf: Any) -> Any:
    return (
        torch_module().from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(leaf.dtype).reshape(leaf.shape)
    )
