"""Where everything of a state's image lies.

An image describes itself: magic, header length, JSON header (layout, tree of each holder, versions of
modules, leaves with dtype, shape and place), then the leaves, each aligned. A plan is made anew only when
leaves come or go, or have another datatype, shape or device, or when a number in a tree has changed: a
model may have hundreds of them.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hams_sdk import cuda
from hams_sdk.chunks import ALIGN
from hams_sdk.datatypes import is_tensor, leaf_nbytes
from hams_sdk.errors import StateFault
from hams_sdk.keyed import Keyed
from hams_sdk.tree import Versions, Writer

HEADER_STEP_BYTES = 1024
"""The header of a state image is padded to a multiple of this, so that a number in it which becomes longer
moves no leaf: leaves that move count as changed."""

MAGIC = b"HAMSST01"
HEAD = struct.Struct("<8sQ")


class Tracked(NamedTuple):
    """A leaf of which is known what was written: one of a `Keyed`, or constant (None). `holder`: the name of
    what it belongs to, and `number`: which of that one's leaves it is."""

    keyed: Keyed | None
    holder: str
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """`paths` of the leaves, and as `spans` their bytes [begin, end) of the image. `order`: those that have
    bytes, as they lie; `devices`: those of them on each device, which lie together.

    `tracked`: leaves of which is known what was written. `made_for` tells whether the plan holds.
    """

    head: bytes
    total: int
    paths: list[str]
    spans: list[tuple[int, int]]
    order: list[int]
    devices: dict[Any, list[int]]
    tracked: dict[int, Tracked]
    made_for: tuple[str, list[Any], Versions]

    def place(self, index: int) -> tuple[Any, ...]:
        """All that tells a leaf that is tracked from another one, or from what it was. Not its number, which
        leaves of other holders move."""
        tracked = self.tracked[index]
        return tracked.holder, tracked.number, self.spans[index], self.made_for[1][index]


def made_for(trees: Mapping[str, Any], writer: Writer) -> tuple[str, list[Any], Versions]:
    """All that a plan depends on."""
    kinds = [(path, _kind(leaf)) for path, leaf in writer.leaves]
    return json.dumps(trees, separators=(",", ":")), kinds, writer.versions


def plan_of(
    signature: str,
    layout: Sequence[Sequence[Any]],
    leaves: Sequence[tuple[str, Any]],
    tracked: dict[int, Tracked],
    basis: tuple[str, list[Any], Versions],
) -> Plan:
    """Place everything. Raises StateFault for leaves that cannot be captured."""
    placed: list[list[Any]] = [
        [path, dtype_name(leaf), list(shape_of(leaf)), 0, leaf_nbytes(leaf)] for path, leaf in leaves
    ]
    devices = [cuda.device_of(leaf) for _, leaf in leaves]

    def order(index: int) -> tuple[int, str]:
        grows = (
            2 if placed[index][1] == "bytes" else int(index in tracked and tracked[index].keyed is not None)
        )
        return grows, str(devices[index] or "")

    # What grows comes last: what lies behind would move with it. What lies on a device lies together.
    at = 0
    for index in sorted(range(len(placed)), key=order):
        placed[index][3] = at
        at += (placed[index][4] + ALIGN - 1) & ~(ALIGN - 1)
    beside = {"signature": signature, "layout": layout, "versions": basis[2], "leaves": placed}
    rest = json.dumps(beside, separators=(",", ":"))
    header = f'{{"trees":{basis[0]},{rest[1:]}'.encode()
    header += b" " * (-(HEAD.size + len(header)) % HEADER_STEP_BYTES)
    head = HEAD.pack(MAGIC, len(header)) + header
    spans = [(len(head) + place[3], len(head) + place[3] + place[4]) for place in placed]
    with_bytes = sorted((index for index in range(len(placed)) if placed[index][4]), key=spans.__getitem__)
    together: dict[Any, list[int]] = {}
    for index in with_bytes:
        if devices[index] is not None:
            together.setdefault(devices[index], []).append(index)
    paths = [path for path, _ in leaves]
    return Plan(head, len(head) + at, paths, spans, with_bytes, together, tracked, basis)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, bytes):
        return len(leaf)
    if is_tensor(leaf):
        return leaf.dtype, leaf.shape, leaf.device, leaf.layout
    return leaf.dtype.str, leaf.shape


def shape_of(leaf: Any) -> tuple[int, ...]:
    """The shape of a leaf, as its image has it."""
    return (len(leaf),) if isinstance(leaf, bytes) else tuple(leaf.shape)


def dtype_name(leaf: Any) -> str:
    """The datatype of a leaf, as its image has it. Raises StateFault for what cannot be captured."""
    if isinstance(leaf, bytes):
        return "bytes"
    if is_tensor(leaf):
        if str(leaf.layout) != "torch.strided":
            raise StateFault(f"a tensor of layout {leaf.layout} cannot be captured; use hams_sdk.Opaque")
        return str(leaf.dtype)
    if leaf.dtype.kind in "OV":
        raise StateFault(f"an array of {leaf.dtype} cannot be captured; use hams_sdk.Opaque")
    return str(leaf.dtype.str)
