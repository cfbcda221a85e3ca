"""The state of a model: captured into bytes, and loaded back into the same objects.

What an image looks like says plan.py. Its size may change from version to version (optimizers grow,
opaque bytes vary); the *layout* may not: it lists the tensors that exist right after `initialize`, and an
image of another layout is refused by name, not loaded in part.

Capturing only reads; loading writes in place. Neither ever unpickles.
"""

import bisect
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hams_sdk import chunks, cuda, patch, tree
from hams_sdk.chunks import ALIGN
from hams_sdk.cuda import device_of
from hams_sdk.datatypes import is_tensor, leaf_nbytes, torch_module
from hams_sdk.errors import StateFault
from hams_sdk.keyed import Keyed
from hams_sdk.model import Constant, Opaque
from hams_sdk.plan import HEAD, MAGIC, Plan, Tracked, dtype_name, made_for, plan_of, shape_of
from hams_sdk.still import WATCHED_NBYTES_MIN, StillLeaves

LAYOUT_DIFFERENCES_MAX = 3
"""Differences named when a state does not fit."""

CONSTANT_AGAIN = 256
"""Leaves that were declared constant are compared in every one of so many captures."""

Space = Callable[[int], memoryview]
"""Called with the size of an image, returns writable memory of at least that many bytes."""


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """One tensor (or holder without tensors: datatype is its kind, shape empty) that exists right after
    `initialize`."""

    path: str
    datatype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path} {self.datatype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What a capture took. `nbytes` of the image; `seconds` from the start of the walk to the last byte
    copied; `changed`: the chunks that were written, as (first, how many), None: the image whole; bytes
    `compared`, and those of them and of the rest that were `copied`."""

    nbytes: int
    tensors: int
    seconds: float
    changed: list[tuple[int, int]] | None = None
    compared: int = 0
    copied: int = 0


class State:
    """The holders that `initialize` returned. One capture or load at a time; the caller sees to it that
    nothing writes meanwhile."""

    def __init__(self, holders: Mapping[str, Any] | None) -> None:
        """Raises StateFault for holders that cannot be captured or restored in place."""
        if holders is not None and not isinstance(holders, Mapping):
            raise StateFault(
                f"initialize returned a {type(holders).__name__}, expected a dict of state or None"
            )
        self._holders = {
            name: holder.holder if isinstance(holder, Constant) else holder
            for name, holder in (holders or {}).items()
        }
        self._constants = {name for name, holder in (holders or {}).items() if isinstance(holder, Constant)}
        self._keyed = [holder for holder in self._holders.values() if isinstance(holder, Keyed)]
        self._plan: Plan | None = None
        self._places: set[tuple[Any, ...]] = set()  # of what is tracked, in the image that is the base
        self._unchecked = 0
        for name, holder in self._holders.items():
            _check_holder(name, holder)
        writer = tree.Writer()
        entries: list[LayoutEntry] = []
        self._in_place: dict[str, LayoutEntry] = {}
        """Tensors that a load writes into, by path."""
        self._strict: set[str] = set()
        """Modules that take these and no others."""
        self._groups = {name: _groups_of(holder) for name, holder in self._holders.items()}
        for name, holder in self._holders.items():
            entries.append(LayoutEntry(name, _kind(holder), ()))
            if not isinstance(holder, Opaque):
                first = len(writer.leaves)
                writer.encode(_read(holder), name)
                tensors = [
                    LayoutEntry(path, dtype_name(leaf), shape_of(leaf))
                    for path, leaf in writer.leaves[first:]
                    if not isinstance(leaf, bytes) and not isinstance(holder, Keyed)
                ]
                entries += tensors
                if _keeps_shapes(holder):
                    self._in_place |= {entry.path: entry for entry in tensors}
                    self._strict |= {name} if _is_module(holder) and patch.takes_bytes(holder) else set()
        self.layout = tuple(entries)
        self.signature = hashlib.sha256("\n".join(map(str, self.layout)).encode()).hexdigest()[:32]
        self.estimate_nbytes = sum(leaf_nbytes(leaf) for _, leaf in writer.leaves) + 4096
        self._staging = cuda.Staging()
        self._density = chunks.Density()
        self.still = StillLeaves()
        self.open(False)

    def capture(self, space: Space, after: Any = None) -> CaptureReport:
        """Copy the state into memory from `space`. `after`: what `cuda.mark` returned once the state was
        written. Raises StateFault."""
        started = time.perf_counter()
        self.still.skip()
        with self._staging.beside(after):
            plan, leaves = self._planned()
        memory = space(plan.total)
        memory[: len(plan.head)] = plan.head
        for _, end in plan.spans:  # the memory was used before: equal states are equal images
            memory[end : end + -end % ALIGN] = bytes(-end % ALIGN)
        self._staging.copy(plan.devices, plan.spans, leaves, memory, after)
        return CaptureReport(plan.total, len(leaves), time.perf_counter() - started, copied=plan.total)

    def capture_changed(self, base: chunks.Table, space: Space, after: Any = None) -> CaptureReport:
        """As `capture`, but copy only the chunks that differ from `base`, one after another. Raises
        StateFault."""
        started = time.perf_counter()
        with self._staging.beside(after):
            plan, leaves = self._planned()
        written = self._staging.take(plan.devices, plan.spans, leaves, after, base.chunk_nbytes)
        self.still.begin()
        pieces = self._pieces(plan, leaves, written, base)
        self._check_constants(plan, pieces, base)
        differing, compared = chunks.changed(pieces, plan.paths, plan.total, base, self._density)
        self._note_still(plan, leaves, differing, base.chunk_nbytes)
        runs = chunks.runs_of(differing)
        size = base.chunk_nbytes
        spans = [(first * size, min((first + number) * size, plan.total)) for first, number in runs]
        copied = sum(end - begin for begin, end in spans)
        if copied:
            target = chunks.address_of(space(copied))
            for begin, end in spans:
                chunks.copy(pieces, begin, end, target)
                target += end - begin
        self.is_base()
        seconds = time.perf_counter() - started
        return CaptureReport(plan.total, len(leaves), seconds, runs, compared, copied)

    @property
    def constant_leaves(self) -> frozenset[str]:
        """The leaves that were declared constant, as of the last capture."""
        if self._plan is None:
            return frozenset()
        return frozenset(
            self._plan.paths[index] for index, leaf in self._plan.tracked.items() if leaf.keyed is None
        )

    def open(self, writable: bool) -> None:
        """Whether `Keyed` mappings may be written from now on."""
        for keyed in self._keyed:
            keyed.open(writable)

    def loaded(self) -> None:
        """The next capture is compared with another image than the last one: all of it is compared."""
        self._places = set()
        self.still.forget()
        self._staging.forget()

    def release_devices(self) -> None:
        """The model lacked memory of a device: captures keep nothing there from now on."""
        self._staging.release_devices()

    def is_base(self) -> None:
        """The next capture is compared with this last one, nothing having been written since."""
        self._places = set() if self._plan is None else set(map(self._plan.place, self._plan.tracked))
        self.still.settle()
        self._staging.settle()
        for keyed in self._keyed:
            keyed.captured()

    def _check_constants(self, plan: Plan, pieces: list[chunks.Piece], base: chunks.Table) -> None:
        """Compare what was declared constant: all of it from time to time, and always what a device says has
        changed near it. Raises StateFault if it has changed."""
        self._unchecked = (self._unchecked + 1) % CONSTANT_AGAIN
        for index, tracked in plan.tracked.items():
            begin, end = plan.spans[index]
            if tracked.keyed is not None or begin == end:
                continue
            at = chunks.holding(pieces, begin)
            piece = pieces[at]
            if self._unchecked and piece.written is not None:
                spans = chunks.written_within(piece, begin, end)
            elif plan.place(index) in self._places:
                spans = [(begin, end)]
            else:
                continue
            if not all(chunks.is_there(piece, first, last, base) for first, last in spans):
                raise StateFault(
                    f'state "{plan.paths[index]}" was declared constant (hams_sdk.constant), and has changed'
                )
            if piece.written is None:
                pieces[at] = replace(piece, written=[])

    def _planned(self) -> tuple[Plan, list[Any]]:
        """Where the state lies in an image, and its leaves. Raises StateFault."""
        writer = tree.Writer()
        trees: dict[str, Any] = {}
        tracked: dict[int, Tracked] = {}
        ranges: dict[str, slice] = {}
        for name, holder in self._holders.items():
            first = len(writer.leaves)
            trees[name] = writer.encode(_read(holder), name)
            ranges[name] = slice(first, len(writer.leaves))
            keyed = holder if isinstance(holder, Keyed) else None
            if keyed is not None or name in self._constants:
                # Of a mapping, the first leaf is what is always compared.
                for index in range(first + (name not in self._constants), len(writer.leaves)):
                    tracked[index] = Tracked(None if name in self._constants else keyed, name, index - first)
        basis = made_for(trees, writer)
        if self._plan is None or self._plan.made_for != basis:
            strict = [path for name in self._strict for path, _ in writer.leaves[ranges[name]]]
            self._check_shapes(dict(writer.leaves), strict)
            self._check_groups()
            layout = [[entry.path, entry.datatype, list(entry.shape)] for entry in self.layout]
            self._plan = plan_of(self.signature, layout, writer.leaves, tracked, basis)
        return self._plan, [leaf for _, leaf in writer.leaves]

    def _check_shapes(self, leaves: Mapping[str, Any], strict: Sequence[str]) -> None:
        """What is loaded in place has the shape that a fresh model gives it: one of another shape could be
        captured, and never be loaded; neither could one more of a module (`strict`: their paths). Raises
        StateFault."""
        expected: dict[str, LayoutEntry | None] = {**dict.fromkeys(strict), **self._in_place}
        for path, entry in expected.items():
            leaf = leaves.get(path)
            now = None if leaf is None else LayoutEntry(path, dtype_name(leaf), shape_of(leaf))
            if now != entry:
                raise StateFault(
                    f'state "{path}": expected {_brief(entry)}, as initialize returned it, found '
                    f"{_brief(now)}: it is loaded in place, so its shape may not change "
                    "(hams_sdk.Opaque, or a state_dict of your own, may hold what grows)"
                )

    def _check_groups(self) -> None:
        """A fresh optimizer takes as many groups, of as many parameters, as it has itself. Raises
        StateFault."""
        for name, groups in self._groups.items():
            if groups is not None and (now := _groups_of(self._holders[name])) != groups:
                raise StateFault(
                    f'state "{name}": expected an optimizer of groups of {groups} parameters, as initialize '
                    f"returned it, found {now}: no other could load it (add all groups in initialize; "
                    "`requires_grad` and `lr` may change later)"
                )

    def _pieces(
        self,
        plan: Plan,
        leaves: list[Any],
        written: Mapping[Any, list[tuple[int, int]] | None],
        base: chunks.Table,
    ) -> list[chunks.Piece]:
        """Where the bytes of the image are now, in their order. What a device has compared is one piece."""
        head = np.frombuffer(plan.head, dtype=np.uint8)
        pieces = [chunks.Piece(0, len(head), int(head.ctypes.data), head)]
        compared = {plan.devices[device][0]: device for device, spans in written.items() if spans is not None}
        skipped = {index for device in compared.values() for index in plan.devices[device][1:]}
        zeros = np.zeros(ALIGN, dtype=np.uint8)
        for index in plan.order:
            begin, end = plan.spans[index]
            if index in skipped:
                continue
            if index in compared:
                pieces.append(self._staging.piece(compared[index], written[compared[index]]))
                continue
            address, held = self._staging.source(leaves[index], begin, end)
            dirty = self._dirty(plan, index, leaves[index]) if index in plan.tracked else None
            piece = chunks.Piece(begin, end, address, held, index, dirty)
            if self._may_be_still(plan, index, leaves[index]) and address == _own_address(leaves[index]):
                pieces += self.still.split(piece, plan.paths[index], base)
            else:
                pieces.append(piece)
            if end % ALIGN:
                padding = end + -end % ALIGN
                pieces.append(chunks.Piece(end, padding, int(zeros.ctypes.data), zeros))
        return pieces

    def _may_be_still(self, plan: Plan, index: int, leaf: Any) -> bool:
        """True of a large leaf in this host's memory that nothing else knows the changes of."""
        begin, end = plan.spans[index]
        large = end - begin >= WATCHED_NBYTES_MIN
        on_host = not isinstance(leaf, bytes) and device_of(leaf) is None
        return large and on_host and index not in plan.tracked

    def _note_still(self, plan: Plan, leaves: list[Any], differing: list[int], chunk_nbytes: int) -> None:
        """Count what has changed of each large leaf."""
        for index, (begin, end) in enumerate(plan.spans):
            if self._may_be_still(plan, index, leaves[index]):
                first, last = begin // chunk_nbytes, (end - 1) // chunk_nbytes
                changed = bisect.bisect_right(differing, last) - bisect.bisect_left(differing, first)
                self.still.note(plan.paths[index], changed, last - first + 1)

    def _dirty(self, plan: Plan, index: int, leaf: Any) -> list[tuple[int, int]] | None:
        """What was written, of a leaf that is tracked and lies where it lay in the base: nothing of what is
        constant. None if it is not known, as where a device compares, but did not this time."""
        if self._staging.compares(leaf) or plan.place(index) not in self._places:
            return None
        keyed, begin = plan.tracked[index].keyed, plan.spans[index][0]
        written = [] if keyed is None else keyed.dirty_bytes(int(plan.paths[index].rpartition("/")[2]))
        return None if written is None else [(begin + first, begin + last) for first, last in written]

    def discard_gradients(self) -> None:
        """Set `.grad` of every tensor, parameter and optimized parameter of the state to None.

        A batch that raised after `backward()` leaves gradients behind. They are no part of an image, so
        loading one does not remove them, and the next step would learn from a request that took no effect.
        """
        torch = torch_module()
        if torch is None:
            return
        for holder in self._holders.values():
            for tensor in _with_gradient(holder):
                tensor.grad = None

    def load(self, data: memoryview) -> None:
        """Make the state that of an image, in place, without gradients.

        Raises StateFault; then nothing was written, unless a holder itself raised.
        """
        header, start = read_header(data)
        if header["signature"] != self.signature:
            raise StateFault(
                _difference(
                    [LayoutEntry(path, dtype, tuple(shape)) for path, dtype, shape in header["layout"]],
                    self.layout,
                )
            )
        self._check_image(header, data[start:])
        places = header["leaves"]

        def view(index: int) -> Any:
            _, dtype, shape, at, nbytes = places[index]
            return _leaf(data[start + at : start + at + nbytes], dtype, tuple(shape))

        def own(index: int) -> Any:
            leaf = view(index)
            return leaf.clone() if is_tensor(leaf) else leaf if isinstance(leaf, bytes) else leaf.copy()

        for name, holder in self._holders.items():
            # PyTorch's own modules copy what they are given; holders in general may keep it.
            copies = _is_module(holder) and patch.takes_bytes(holder)
            in_place = copies or isinstance(holder, np.ndarray | Keyed) or is_tensor(holder)
            value = tree.decode(header["trees"][name], view if in_place else own)
            if versions := header.get("versions"):
                tree.put_versions(value, name, versions)
            if isinstance(holder, Opaque):
                holder.set(value)
            elif isinstance(holder, np.ndarray):
                np.copyto(holder, value, casting="no")
            elif is_tensor(holder):
                with torch_module().no_grad():
                    holder.copy_(value)
            else:
                holder.load_state_dict(value)
        self.discard_gradients()
        cuda.synchronize()

    def load_changed(self, image: chunks.Table, changed: Sequence[int]) -> bool:
        """As `load`, of an image of which the state has all chunks but `changed`. False if they cannot be
        written alone: then nothing was, and the image is to be loaded whole."""
        if not all(patch.takes_bytes(holder) for holder in self._holders.values()):
            return False
        try:
            plan, leaves = self._planned()
        except StateFault:  # what a failed batch has left cannot be captured; what is loaded can
            return False
        if plan.total != image.nbytes:
            return False
        held = [patch.Leaf(*plan.spans[index], leaves[index]) for index in plan.order]
        if not patch.write(image, changed, plan.head, held):
            return False
        self.discard_gradients()
        cuda.synchronize()
        return True

    def _check_image(self, header: dict[str, Any], data: memoryview) -> None:
        """Decode every holder's tree without writing any: half a state is none. Raises StateFault."""
        places = header["leaves"]
        if set(header["trees"]) != set(self._holders):
            raise StateFault(
                f"expected the state of {sorted(self._holders)}, the image holds {sorted(header['trees'])}"
            )

        def view(index: int) -> Any:
            _, dtype, shape, at, nbytes = places[index]
            return _leaf(data[at : at + nbytes], dtype, tuple(shape))

        for name, holder in self._holders.items():
            try:
                value = tree.decode(header["trees"][name], view)
            except _MALFORMED as error:
                raise StateFault(f'state "{name}": the image cannot be read: {error!r}') from None
            if isinstance(holder, Opaque):
                expected, held = "bytes", _in_short(value)
            elif isinstance(holder, np.ndarray) or is_tensor(holder):
                expected, held = _in_short(holder), _in_short(value)
            else:
                continue
            if held != expected:
                raise StateFault(f'state "{name}": expected {expected}, the image holds {held}')


def _in_short(value: Any) -> str:
    """Its kind; of an array or a tensor datatype and shape, too."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return f"{_kind(value)} {dtype_name(value)} {list(shape_of(value))}"
    return type(value).__name__


def read_header(data: memoryview) -> tuple[dict[str, Any], int]:
    """Header of an image, and where its leaves begin. Raises StateFault if `data` is no image."""
    if len(data) < HEAD.size:
        raise StateFault(f"a state image has at least {HEAD.size} bytes, this has {len(data)}")
    magic, length = HEAD.unpack_from(data, 0)
    if magic != MAGIC or length > len(data) - HEAD.size:
        raise StateFault("not a state image, or one of another version of the SDK")
    start = (HEAD.size + length + ALIGN - 1) & ~(ALIGN - 1)
    try:
        header: dict[str, Any] = json.loads(bytes(data[HEAD.size : HEAD.size + length]))
        _check_header(header, len(data) - start)
    except _MALFORMED as error:
        raise StateFault(f"not a state image: its header cannot be read: {error!r}") from None
    return header, start


def _check_header(header: object, nbytes: int) -> None:
    """Everything that is read of a header later has its type, and every leaf lies within the `nbytes` behind
    it. Raises one of `_MALFORMED`."""
    if (
        not isinstance(header, dict)
        or not isinstance(header["signature"], str)
        or not isinstance(header["trees"], dict)
    ):
        raise TypeError("expected an object with a signature and trees")
    for modules in header.get("versions", {}).values():  # an older SDK writes none
        if not all(type(version) is int for version in modules.values()):
            raise TypeError("expected versions that are numbers")
    for path, dtype, shape in header["layout"]:
        if not (isinstance(path, str) and isinstance(dtype, str)):
            raise TypeError("expected texts in the layout")
        _check_shape(shape)
    for path, dtype, shape, at, size in header["leaves"]:
        if not (isinstance(path, str) and isinstance(dtype, str)):
            raise TypeError("expected texts in the leaves")
        _check_shape(shape)
        if not (type(at) is int and type(size) is int and at >= 0 and size >= 0 and at + size <= nbytes):
            raise ValueError(f"leaf {path!r} lies outside of the image")


def _check_shape(shape: object) -> None:
    if not isinstance(shape, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in shape):
        raise TypeError("expected a shape of dimensions from 0 on")


_MALFORMED = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
    StateFault,
)
"""What reading an image raises that this SDK did not write."""


def leaf_digests(data: memoryview) -> dict[str, str]:
    """A digest of every leaf of an image, and of each holder's tree (under its name), by path: what
    `hams-model check` compares."""
    header, start = read_header(data)
    digests = {
        name: hashlib.sha256(json.dumps(value).encode()).hexdigest()
        for name, value in header["trees"].items()
    }
    for path, dtype, shape, at, nbytes in header["leaves"]:
        digest = hashlib.sha256(f"{dtype}{shape}".encode())
        digest.update(data[start + at : start + at + nbytes])
        digests[path if path not in digests else f"{path} (data)"] = digest.hexdigest()
    return digests


def _check_holder(name: object, holder: Any) -> None:
    if not isinstance(name, str):
        raise StateFault(f"names of state are strings, got {name!r}")
    if isinstance(holder, np.ndarray):
        if holder.dtype.kind in "OV":
            raise StateFault(
                f'state "{name}": an array of {holder.dtype} cannot be captured; use hams_sdk.Opaque'
            )
        if not holder.flags.writeable:
            raise StateFault(f'state "{name}" is a read-only array: it could not be restored in place')
    elif not (
        isinstance(holder, Opaque)
        or is_tensor(holder)
        or (hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict"))
    ):
        raise StateFault(
            f'state "{name}" is a {type(holder).__qualname__}: expected a tensor, an array, something with '
            "state_dict and load_state_dict, "
            "or hams_sdk.Opaque(get, set)"
        )


def _kind(holder: Any) -> str:
    if isinstance(holder, Keyed):
        return holder.kind
    if isinstance(holder, Opaque):
        return "opaque"
    if isinstance(holder, np.ndarray):
        return "array"
    return "tensor" if is_tensor(holder) else f"state_dict of {type(holder).__qualname__}"


def _read(holder: Any) -> Any:
    if isinstance(holder, Opaque):
        data: Any = holder.get()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise StateFault(f"Opaque.get returned a {type(data).__name__}, expected bytes")
        return bytes(data)
    if isinstance(holder, np.ndarray) or is_tensor(holder):
        return holder
    return holder.state_dict()


def _leaf(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    """A leaf in place (bytes: a copy)."""
    if dtype == "bytes":
        return bytes(data)
    if not dtype.startswith("torch."):
        if not data:  # of the empty text not even an element has bytes
            return np.zeros(shape, dtype)
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    torch = torch_module()
    if torch is None:
        raise StateFault("the state holds torch tensors, but this model has not imported torch")
    kind = getattr(torch, dtype.removeprefix("torch."))
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8)).view(kind).reshape(shape)


def _own_address(leaf: Any) -> int:
    """The address of a leaf in this host's memory: not of a copy of it."""
    return int(leaf.data_ptr() if is_tensor(leaf) else leaf.ctypes.data)


def _with_gradient(holder: Any) -> Iterator[Any]:
    """The tensors of a holder that may have a gradient: of a module, of an optimizer (or what wraps one), or
    itself."""
    if is_tensor(holder):
        yield holder
    elif _is_module(holder):
        yield from holder.parameters()
    else:
        # Optimizers are told by what torch documents of them, as wrappers of one (accelerate, apex) are no
        # subclasses.
        groups = getattr(holder, "param_groups", None)
        for group in groups if isinstance(groups, list) else ():
            yield from group.get("params", ())


def _is_module(holder: Any) -> bool:
    torch = torch_module()
    return torch is not None and isinstance(holder, torch.nn.Module)


def _groups_of(holder: Any) -> list[int] | None:
    """How many parameters each group of one of PyTorch's optimizers has; None for all else, and for one that
    says itself what it loads."""
    torch = torch_module()
    if torch is None or not isinstance(holder, torch.optim.Optimizer):
        return None
    own = type(holder).load_state_dict is torch.optim.Optimizer.load_state_dict
    own = own and not getattr(holder, "_optimizer_load_state_dict_pre_hooks", None)
    return [len(group["params"]) for group in holder.param_groups] if own else None


def _keeps_shapes(holder: Any) -> bool:
    """Whether a load writes into the tensors that are there: a module may say otherwise."""
    if isinstance(holder, Keyed):
        return False
    if isinstance(holder, np.ndarray) or is_tensor(holder):
        return True
    if not _is_module(holder):
        return False
    # What torch asks each part to load its own tensors with; BatchNorm and others of its own have theirs.
    loaders = [getattr(type(part), "_load_from_state_dict", None) for part in holder.modules()]
    return type(holder).load_state_dict is torch_module().nn.Module.load_state_dict and all(
        getattr(loader, "__module__", "").startswith("torch.") for loader in loaders
    )


def _difference(theirs: list[LayoutEntry], ours: tuple[LayoutEntry, ...]) -> str:
    there, here = {entry.path: entry for entry in theirs}, {entry.path: entry for entry in ours}
    differences: list[str] = []
    for path in dict.fromkeys([*there, *here]):
        if there.get(path) != here.get(path):
            differences.append(
                f"{path}: image has {_brief(there.get(path))}, this model {_brief(here.get(path))}"
            )
    more = (
        f" and {len(differences) - LAYOUT_DIFFERENCES_MAX} more"
        if len(differences) > LAYOUT_DIFFERENCES_MAX
        else ""
    )
    return (
        "state layout mismatch: "
        + "; ".join(differences[:LAYOUT_DIFFERENCES_MAX] or ["other order of state"])
        + more
    )


def _brief(entry: LayoutEntry | None) -> str:
    return "none" if entry is None else f"{entry.datatype} {list(entry.shape)}".removesuffix(" []")
