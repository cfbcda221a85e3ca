"""Some chunks of an image, written straight into the memory of a state that has all others already: a load
costs what differs (proto/model.md, 5).

Only where the memory that a holder shows is the memory that it works with, and loading means nothing more:
arrays, tensors, and PyTorch's own ways of modules and optimizers. Any other holder may show copies, derive
something when it loads, or from what another one holds. A state that has one is loaded whole.
"""

import bisect
import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hams_sdk.chunks import Table
from hams_sdk.datatypes import is_tensor, torch_module

_OPTIMIZER_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_MODULE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_MODULE_STEPS = ("_load_from_state_dict", "_save_to_state_dict")


class Leaf(NamedTuple):
    """A tensor of the state as it is now, and its bytes [begin, end) of the image."""

    begin: int
    end: int
    tensor: Any


class _Write(NamedTuple):
    """`nbytes` from an address that go to `offset` within a tensor."""

    tensor: Any
    offset: int
    address: int
    nbytes: int


def takes_bytes(holder: Any) -> bool:
    """Whether what the holder shows is what it works with, and whether it need not hear of a load."""
    if isinstance(holder, np.ndarray) or is_tensor(holder):
        return _is_exact(holder)
    torch = torch_module()
    if torch is None:
        return False
    if isinstance(holder, torch.optim.Optimizer):
        return _is_plain_optimizer(holder)
    return isinstance(holder, torch.nn.Module) and all(_is_plain_module(part) for part in holder.modules())


def write(image: Table, changed: Sequence[int], head: bytes, leaves: Sequence[Leaf]) -> bool:
    """Write the chunks `changed`. False if a tensor does not lie in memory as in an image, or if the image
    has another `head` than the state: then nothing was written. `leaves` in ascending order."""
    for index in range(min(-(-len(head) // image.chunk_nbytes), len(image.addresses))):
        part = head[index * image.chunk_nbytes :][: image.size(index)]
        if part != ctypes.string_at(image.addresses[index], len(part)):
            return False
    begins = [leaf.begin for leaf in leaves]
    writes: list[_Write] = []
    for index in changed:
        begin, address = index * image.chunk_nbytes, image.addresses[index]
        end = begin + image.size(index)
        before = max(bisect.bisect_right(begins, begin) - 1, 0)
        for leaf in leaves[before : bisect.bisect_left(begins, end)]:
            first, last = max(begin, leaf.begin), min(end, leaf.end)
            if first >= last:
                continue
            if not _is_plain(leaf.tensor):
                return False
            _add(writes, _Write(leaf.tensor, first - leaf.begin, address + first - begin, last - first))
    for item in writes:
        _put(item)
    return True


def _is_plain_module(module: Any) -> bool:
    own = torch_module().nn.Module
    if not _has_only(module, own, ("state_dict", "load_state_dict", "set_extra_state"), _MODULE_HOOKS):
        return False
    # PyTorch's own layers replace these two, to read what earlier versions of them wrote.
    replaced = [getattr(type(module), name, None) for name in _MODULE_STEPS]
    return not any(name in vars(module) for name in _MODULE_STEPS) and all(
        str(getattr(method, "__module__", "")).startswith("torch.nn.modules.") for method in replaced
    )


def _is_plain_optimizer(optimizer: Any) -> bool:
    own = torch_module().optim.Optimizer
    setter = getattr(type(optimizer), "__setstate__", None)
    if not str(getattr(setter, "__module__", "")).startswith("torch.optim."):
        return False
    if not _has_only(optimizer, own, ("state_dict", "load_state_dict"), _OPTIMIZER_HOOKS):
        return False
    # A load gives each place of a shared tensor one of its own: then they may differ.
    groups = [value for group in optimizer.param_groups for name, value in group.items() if name != "params"]
    states = [value for state in optimizer.state.values() for value in state.values()]
    spans = sorted(
        (item.data_ptr(), item.data_ptr() + item.nbytes)
        for item in [*groups, *states]
        if is_tensor(item) and item.nbytes
    )
    return all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def _has_only(holder: Any, base: Any, methods: Sequence[str], hooks: Sequence[str]) -> bool:
    """Whether these methods are those of `base`, and nobody has registered a hook. What another version of
    PyTorch may lack counts as a hook."""
    same = all(
        getattr(type(holder), name) is getattr(base, name) and name not in vars(holder) for name in methods
    )
    return same and not any(getattr(holder, name, True) for name in hooks)


def _is_exact(tensor: Any) -> bool:
    """Whether nothing but NumPy or PyTorch itself would hear of a write."""
    if isinstance(tensor, np.ndarray):
        return type(tensor) in (np.ndarray, np.memmap)
    torch = torch_module()
    return torch is not None and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _is_plain(tensor: Any) -> bool:
    """Whether its bytes lie in memory as they lie in an image, and may be written there."""
    if not _is_exact(tensor):
        return False
    if isinstance(tensor, np.ndarray):
        return tensor.flags.c_contiguous and tensor.flags.writeable
    return bool(tensor.is_contiguous()) and not (tensor.is_conj() or tensor.is_neg())


def _add(writes: list[_Write], item: _Write) -> None:
    """What lies side by side, here and there, is written in one piece."""
    if writes:
        tensor, offset, address, nbytes = writes[-1]
        if tensor is item.tensor and (offset + nbytes, address + nbytes) == (item.offset, item.address):
            writes[-1] = _Write(tensor, offset, address, nbytes + item.nbytes)
            return
    writes.append(item)


def _put(item: _Write) -> None:
    tensor, offset, nbytes = item.tensor, item.offset, item.nbytes
    if isinstance(tensor, np.ndarray):
        ctypes.memmove(int(tensor.ctypes.data) + offset, item.address, nbytes)
    elif tensor.device.type == "cpu":
        ctypes.memmove(int(tensor.data_ptr()) + offset, item.address, nbytes)
    else:
        torch = torch_module()
        place: Any = (ctypes.c_uint8 * nbytes).from_address(item.address)
        with torch.no_grad():
            there = tensor.detach().reshape(-1).view(torch.uint8)[offset : offset + nbytes]
            there.copy_(torch.from_numpy(np.frombuffer(place, dtype=np.uint8)))
