"""What the wire needs to know of payloads: nothing but descriptors and bytes.

The core passes payloads through, the sidecar owns their memory; this port stands between. An arriving payload
is received straight into the room its factory gave, so the bytes are copied from the kernel once, to the
place where they will be used.
"""

import hashlib
import mmap
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from hams_protocol.messages import Payload
from hams_wire import limits
from hams_wire.peers.errors import NoRoom

tensors_per_payload_max = 65_536
"""Tensor descriptors in one payload; a captured state has one per parameter."""

tensor_rank_max = 64
"""Dimensions of one tensor."""

defect_chars_max = 500
"""Characters kept of what is wrong with a payload: it becomes the text of an error reply."""

heap_room_mapped_bytes_min = 256 * 1024
"""Room for a payload of this size is mapped, so that a claim takes memory only as its bytes arrive."""

content_page_bytes = 4096
content_pages_max = 256
"""Where states are replayed, a value is named by its bytes: by so many pages of each tensor at most, 1 MiB,
which takes a millisecond."""


class TensorInfo(NamedTuple):
    """One tensor of a payload: Open Inference datatype, shape with the leading dimension of rows, and where
    its bytes lie."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def defect_of(tensors: Sequence[TensorInfo], nbytes: int) -> str:
    """What is wrong with the descriptors of a payload of `nbytes`, "" if nothing is: what every receiver
    checks, whatever its memory is."""
    if len(tensors) > tensors_per_payload_max:
        return f"{len(tensors)} tensors, at most {tensors_per_payload_max} are taken"
    for tensor in tensors:
        if len(tensor.shape) > tensor_rank_max:
            return (
                f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions, at most "
                f"{tensor_rank_max} are taken"
            )
        for dimension in tensor.shape:
            if not 0 <= dimension <= limits.dimension_max:
                return (
                    f"tensor {tensor.name!r} has a dimension of {shown(dimension)}, "
                    f"expected 0 to {limits.dimension_max}"
                )
        if not (tensor.offset >= 0 and tensor.nbytes >= 0 and tensor.offset + tensor.nbytes <= nbytes):
            return (
                f"tensor {tensor.name!r} lies at bytes {shown(tensor.offset)} to "
                f"{shown(tensor.offset + tensor.nbytes)} of a payload of {nbytes} bytes"
            )
    return ""


def shown(number: int) -> str:
    """A number for people: one of hundreds of digits is not written out (and Python refuses to write
    thousands)."""
    return str(number) if number.bit_length() <= 128 else f"a number of {number.bit_length()} bits"


class Room(Protocol):
    """Memory for one arriving payload; lives as long as the object or any view of it."""

    @property
    def view(self) -> memoryview:
        """All of it: writable, contiguous, one byte per item."""
        ...


class PayloadFactory(Protocol):
    """Makes payloads out of received bytes, and bytes out of payloads."""

    def allocate(self, nbytes: int) -> Room:
        """Room for exactly `nbytes` bytes, contents undefined. Raises NoRoom; must not wait."""
        ...

    def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> Payload:
        """The payload whose bytes have all arrived; `defect_of` found nothing wrong. Raises ValueError if a
        descriptor is not acceptable here."""
        ...

    def describe(self, payload: Payload) -> tuple[Sequence[TensorInfo], Sequence[memoryview]]:
        """Descriptors of a payload, and its bytes in place: one view or several, one after another."""
        ...

    def sent(self, view: memoryview) -> None:
        """These bytes of a payload (a large piece) have been given to the kernel: this process need not look
        at them for a while."""
        ...


def content_of(tensors: Iterable[TensorInfo], views: Iterable[memoryview]) -> str:
    """A name for the bytes of tensors; of large ones a sample of pages goes into it, for the loop waits."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.datatype} {tensor.shape} ".encode())
    for view in views:
        data = view.cast("B")
        step = max(len(data) // content_pages_max, content_page_bytes)
        for start in range(0, len(data), step):
            digest.update(data[start : start + content_page_bytes])
    return digest.hexdigest()


class WholePayload:
    """What a payload says that is neither a batch's nor made of chunks (`hams_protocol.messages.Payload`):
    the base of those that are, too."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """No rows: it fills nothing of a batch."""
        return 0

    @property
    def batch_key(self) -> str:
        """No key, as it is in no batch."""
        return ""

    @property
    def defect(self) -> str:
        """No defect: it can be read."""
        return ""

    @property
    def content(self) -> str:
        """No name by content, as it is no value."""
        return ""

    @property
    def fresh_nbytes(self) -> int:
        """All of its bytes: it shares nothing with the version before."""
        return self.nbytes

    def born_after(self, version: int, newest: int) -> Payload | None:
        """No difference: it travels whole."""
        return None

    def laid_over(self, base: Payload, since: int, version: int) -> Payload | None:
        """No result: it is whole, and no difference to a base."""
        return None


class Unreadable(WholePayload):
    """A payload that has arrived whole and cannot be read here: its descriptors as they came, its bytes, and
    why (`defect`).

    A log entry, a record or a token with such a payload is held and passed on like any other, so that all
    instances hold the same; only an instance that would run a model on it, or make a reply of it, finds that
    it cannot (protocol.md, section 3).
    """

    __slots__ = ("defect", "descriptors", "room")
    defect: str

    def __init__(self, descriptors: "msgspec.Raw | tuple[TensorInfo, ...]", room: Room, defect: str) -> None:
        self.descriptors = descriptors
        self.room = room
        self.defect = defect[:defect_chars_max]

    @property
    def nbytes(self) -> int:
        """The size of the room that its bytes came into."""
        return len(self.room.view)

    def __repr__(self) -> str:
        return f"Unreadable({self.nbytes} bytes: {self.defect})"


class HeapRoom:
    """Room in ordinary memory, which the kernel gives page by page as bytes are written: a claim alone takes
    none."""

    __slots__ = ("view",)

    def __init__(self, nbytes: int) -> None:
        self.view = memoryview(
            mmap.mmap(-1, nbytes) if nbytes >= heap_room_mapped_bytes_min else bytearray(nbytes)
        )


class HeapPayload(WholePayload):
    """A payload in ordinary memory, for processes that only pass payloads on or look at metadata (managers,
    tests). Equality is by content."""

    __slots__ = ("data", "tensors")
    defect = ""

    def __init__(self, tensors: tuple[TensorInfo, ...], data: memoryview) -> None:
        self.tensors = tensors
        self.data = data

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return len(self.data)

    @property
    def rows(self) -> int:
        """Leading dimension of its tensors; 0 if it has none."""
        return self.tensors[0].shape[0] if self.tensors else 0

    @property
    def batch_key(self) -> str:
        """Names of the tensors, and the shape of one row."""
        return " ".join(f"{tensor.name}{tensor.shape[1:]}" for tensor in self.tensors)

    @property
    def content(self) -> str:
        """See `content_of`."""
        return content_of(self.tensors, [self.data[item.offset :][: item.nbytes] for item in self.tensors])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeapPayload) and self.tensors == other.tensors and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.tensors)

    def __repr__(self) -> str:
        return f"HeapPayload({len(self.tensors)} tensors, {self.nbytes} bytes)"


class HeapFactory:
    """Payloads in ordinary memory, at most `capacity` bytes in one."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity

    def allocate(self, nbytes: int) -> HeapRoom:
        """Room of its own for each payload. Raises NoRoom over the capacity."""
        if nbytes > self.capacity:
            raise NoRoom(f"a payload of {nbytes} bytes, at most {self.capacity} are taken here")
        return HeapRoom(nbytes)

    def build(self, tensors: tuple[TensorInfo, ...], room: Room) -> HeapPayload:
        """Everything is accepted."""
        return HeapPayload(tensors, room.view)

    def describe(self, payload: Payload) -> tuple[Sequence[TensorInfo], Sequence[memoryview]]:
        """Only its own payloads."""
        assert isinstance(payload, HeapPayload), f"not a payload of this factory: {payload!r}"
        return payload.tensors, (payload.data,)

    def sent(self, view: memoryview) -> None:
        """Ordinary memory stays as it is."""
