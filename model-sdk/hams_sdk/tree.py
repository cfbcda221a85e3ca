"""A `state_dict` as JSON and a list of tensors, and back.

What optimizers, schedulers and modules keep is a tree of dicts, lists and numbers around tensors. It travels
without pickle: the tree as tagged JSON, each tensor (and each bytes value) by its index. What cannot be put
back exactly is refused by path and type.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np

from hams_sdk.datatypes import is_tensor, torch_module
from hams_sdk.errors import StateFault

TREE_DEPTH_MAX = 64
"""Nesting of a `state_dict`."""

Json = Any
Leaf = Any
"""A torch tensor, numpy array or bytes."""


Versions = dict[str, dict[str, int]]
"""Of each `state_dict` of a module, by its path: which version of its class wrote each part, by its name."""


class Writer:
    """Collects the leaves of one tree, with their paths, and what PyTorch notes beside modules' entries."""

    def __init__(self) -> None:
        self.leaves: list[tuple[str, Leaf]] = []
        self.versions: Versions = {}

    def encode(self, value: Any, path: str, depth: int = 0) -> Json:
        """JSON for `value`; its tensors are appended to `leaves`. Raises StateFault that names what cannot be
        captured."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.ma.MaskedArray):
            raise StateFault(
                f'state "{path}" is a masked array, whose mask would be left out; keep data and mask as '
                "two arrays"
            )
        if is_tensor(value) or isinstance(value, np.ndarray | np.generic):
            return (
                {"leaf": self._add(path, value), "scalar": True}
                if isinstance(value, np.generic)
                else {"leaf": self._add(path, value)}
            )
        if isinstance(value, bytes | bytearray):
            return {"leaf": self._add(path, bytes(value))}
        if depth == TREE_DEPTH_MAX:
            raise StateFault(f'state "{path}" is nested deeper than {TREE_DEPTH_MAX} levels')
        if type(value) is list:
            return [self.encode(item, f"{path}/{index}", depth + 1) for index, item in enumerate(value)]
        for tag, kind in _SEQUENCES.items():
            if type(value) is kind:
                items = [self.encode(item, f"{path}/{index}", depth + 1) for index, item in enumerate(value)]
                if isinstance(value, collections.deque) and value.maxlen is not None:
                    return {"bounded": [value.maxlen, items]}
                return {tag: items}
        for tag, kind in _MAPPINGS.items():
            if type(value) is kind:
                if written_by := getattr(value, "_metadata", None):
                    self.versions[path] = _versions_of(written_by)
                return {
                    tag: [
                        [
                            self.encode(key, f"{path} (key)", depth + 1),
                            self.encode(item, f"{path}/{key}", depth + 1),
                        ]
                        for key, item in value.items()
                    ]
                }
        torch = torch_module()
        if torch is not None and isinstance(value, torch.Size):
            return {"tuple": list(value)}
        if torch is not None and isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if torch is not None and isinstance(value, torch.device):
            return {"device": str(value)}
        raise StateFault(
            f'state "{path}" holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be '
            "captured; use hams_sdk.Opaque"
        )

    def _add(self, path: str, leaf: Leaf) -> int:
        self.leaves.append((path, leaf))
        return len(self.leaves) - 1


def decode(tree: Json, leaf: Callable[[int], Leaf]) -> Any:
    """The value that `Writer.encode` made `tree` of; `leaf(i)` gives its tensors. Raises StateFault for a
    tree of another format."""
    if isinstance(tree, list):
        return [decode(item, leaf) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "leaf" in tree:
        value = leaf(tree["leaf"])
        return value[()] if tree.get("scalar") else value
    ((tag, content),) = tree.items()
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode(item, leaf) for item in content)
    if tag in _MAPPINGS:
        pairs = ((decode(key, leaf), decode(item, leaf)) for key, item in content)
        return _MAPPINGS[tag](dict(pairs)) if tag == "counter" else _MAPPINGS[tag](pairs)
    if tag == "bounded":
        return collections.deque((decode(item, leaf) for item in content[1]), content[0])
    if tag == "dtype":
        torch = torch_module()
        value = getattr(torch, content)
        if not isinstance(value, torch.dtype):
            raise StateFault(f"state image of another format: {content!r} is no dtype")
        return value
    if tag == "device":
        return torch_module().device(content)
    raise StateFault(f"state image of another format: unknown tag {tag!r}")


def put_versions(value: Any, path: str, versions: Versions) -> None:
    """Note in each `state_dict` of a module which versions wrote it, as `Writer` found them: a part reads
    what it takes for another version's in another way."""
    if isinstance(value, dict):
        if path in versions and type(value) is collections.OrderedDict:
            ordered: Any = value  # PyTorch has it as an attribute
            ordered._metadata = collections.OrderedDict(
                (name, {"version": version}) for name, version in versions[path].items()
            )
        for key, item in value.items():
            put_versions(item, f"{path}/{key}", versions)
    elif isinstance(value, list | tuple | collections.deque):
        for index, item in enumerate(value):
            put_versions(item, f"{path}/{index}", versions)


def _versions_of(metadata: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {name: about["version"] for name, about in metadata.items() if type(about.get("version")) is int}


_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
_MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "counter": collections.Counter,
}
