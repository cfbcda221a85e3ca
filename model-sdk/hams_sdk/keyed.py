"""State by key: sessions, caches, features of users, of which a batch touches a few.

`Keyed` is a mutable mapping whose rows lie in slabs of memory. Each entry holds its key, its row and when it
was written last, side by side: so a batch that writes k keys changes about k chunks of the state, and the
mapping, through which every write goes, knows which without a comparison. What is found by key and what is
free follows from the entries; so does whom the eviction takes, and a promoted backup evicts the same keys.
A load looks at the entries that differ. Their order by age is made when it is asked for: requests wait for a
load.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from hams_sdk.errors import ModelFault, StateFault

KEY_BYTES_MAX = 1024
"""A key of a `Keyed` mapping; each has that much room, of which 64 bytes are the default."""

KEYED_ROW_BYTES_MAX = 1 << 20
"""A row of a `Keyed` mapping."""

KEYED_ROWS_MAX = 1 << 26
"""Keys of a `Keyed` mapping."""

SLAB_BYTES = 1 << 20
"""A `Keyed` mapping grows by slabs of about so many bytes."""

Key = str | int | bytes
Value = Any
"""An array or scalar that fits the row, or bytes."""

Times = npt.NDArray[np.uint64]
"""When entries were written, by the clock of the mapping."""

Default = TypeVar("Default")

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


class KeyedFull(ModelFault):
    """The author's: one more key would be more than `max_keys`, and nothing is evicted."""


MISSING: Final = object()
"""No default was given."""


class Keyed(MutableMapping[Key, Value]):
    """A mapping from keys to rows, to be returned by `initialize` among its state.

    `mapping[key]` is a view of a row that cannot be written; `mapping[key] = value` copies. Writes are
    allowed in the update stage, and before `initialize` returns; elsewhere they raise ModelFault. Iteration
    goes from the key that was written longest ago to the newest, and so does the eviction. To read a key is
    no write: `touch` makes it the newest.
    """

    def __init__(
        self,
        *,
        row: Any,
        keys: type[str] | type[int] | type[bytes],
        max_keys: int,
        evict: str = "refuse",
        key_bytes: int = 64,
        row_bytes: int = 0,
    ) -> None:
        """`row`: a NumPy datatype, with a shape if need be, as `np.dtype((np.float32, (384,)))`; or `bytes`,
        of at most `row_bytes`. `keys`: what keys are; of texts and bytes at most `key_bytes` (text in UTF-8).
        `evict`: what gives way when there are `max_keys` keys: "lru" the one written longest ago, "refuse"
        none, which is KeyedFull. Raises StateFault for what cannot be."""
        self._keys: type[Any] = keys
        self._is_bytes = row is bytes
        self._row = np.dtype((np.void, row_bytes)) if self._is_bytes and row_bytes else np.dtype(row)
        self._check(row, max_keys, evict, key_bytes, row_bytes)
        self.max_keys = max_keys
        self._evicts = evict == "lru"
        self._key_bytes = 8 if keys is int else key_bytes
        fields: list[Any] = [("written", "<u8"), ("key_bytes", "<u2"), ("row_bytes", "<u4")]
        fields += [("key", np.dtype((np.void, self._key_bytes))), ("row", self._row)]
        self._entry = np.dtype(fields)
        self._per_slab = max(SLAB_BYTES // self._entry.itemsize, 1)
        self._writable = True
        self._clock = np.zeros(1, dtype=np.uint64)
        self._slabs: list[npt.NDArray[np.uint8]] = []
        self._entries: list[npt.NDArray[Any]] = []
        self._places: dict[Key, int] = {}
        self._ages = _Ages(self._written, self._written_at)
        self._free: list[int] = []
        self.dirty: set[int] | None = None

    def _check(self, row: Any, max_keys: int, evict: str, key_bytes: int, row_bytes: int) -> None:
        if self._keys not in (str, int, bytes):
            raise StateFault(f"Keyed: expected keys=str, int or bytes, found {self._keys!r}")
        if evict not in ("lru", "refuse"):
            raise StateFault(f'Keyed: expected evict="lru" or "refuse", found {evict!r}')
        if not 1 <= max_keys <= KEYED_ROWS_MAX:
            raise StateFault(f"Keyed: expected max_keys from 1 to {KEYED_ROWS_MAX}, found {max_keys}")
        if not 1 <= key_bytes <= KEY_BYTES_MAX:
            raise StateFault(f"Keyed: expected key_bytes from 1 to {KEY_BYTES_MAX}, found {key_bytes}")
        if self._is_bytes and row_bytes < 1:
            raise StateFault("Keyed: rows of bytes need row_bytes, the longest")
        if self._row.hasobject or not 1 <= self._row.itemsize <= KEYED_ROW_BYTES_MAX:
            raise StateFault(
                f"Keyed: expected rows of 1 to {KEYED_ROW_BYTES_MAX} bytes and no objects, found {self._row}"
            )

    @property
    def kind(self) -> str:
        """What it is, for the layout of a state: equal where a state of one can be taken over by another."""
        row = f"bytes[{self._row.itemsize}]" if self._is_bytes else str(self._row)
        return f"keyed {row} by {self._keys.__name__}[{self._key_bytes}]"

    # -- as a mapping ----------------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Value:
        return self._value(self._places[self._checked(key)])

    def __setitem__(self, key: Key, value: Value) -> None:
        self._may_write()
        name = self._checked(key)
        content, nbytes = self._fitting(value)
        self._put(name, content, nbytes)

    def __delitem__(self, key: Key) -> None:
        self._may_write()
        self._free_entry(self._places.pop(self._checked(key)))

    def pop(self, key: Key, default: Any = MISSING) -> Any:
        """Drop a key; its value, copied. Raises KeyError, unless a default is given."""
        if default is not MISSING and key not in self:
            return default
        value = self[key]
        value = value if self._is_bytes else value.copy()  # a record too is a view of its row
        del self[key]
        return value

    def popitem(self) -> tuple[Key, Value]:
        """Drop the oldest key; it, and its value, copied. Raises KeyError where there is none."""
        for key in self:
            return key, self.pop(key)
        raise KeyError("popitem: no key is here")

    def __iter__(self) -> Iterator[Key]:
        names = list(self._places)
        places = np.fromiter(self._places.values(), dtype=np.int64, count=len(names))
        return iter([names[at] for at in np.argsort(self._written()[places]).tolist()])

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def clear(self) -> None:
        """Drop all keys."""
        self._may_write()
        for place in self._places.values():
            self._free_entry(place)
        self._places.clear()

    def touch(self, key: Key) -> None:
        """Make a key the newest, as if it had been written. Raises KeyError."""
        self._may_write()
        name = self._checked(key)
        self._stamp(self._places[name])

    # -- many at once ----------------------------------------------------------------------------------------

    def read(self, keys: Sequence[Key] | npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The rows of these keys, copied, and which of them there are; the others are zero. Not for rows of
        bytes."""
        self._no_bytes("read")
        names = self._names(keys)
        rows: npt.NDArray[Any] = np.zeros(len(names), dtype=self._row)
        places = [self._places.get(name, -1) for name in names]
        known = np.array([place >= 0 for place in places], dtype=np.bool_)
        for index, place in enumerate(places):
            if place >= 0:
                rows[index] = self._entry_at(place)["row"]
        return rows, known

    def write(self, keys: Sequence[Key] | npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
        """Set the rows of these keys, in their order. Not for rows of bytes. Raises KeyedFull, ModelFault;
        then none was set, but for what was evicted."""
        self._no_bytes("write")
        self._may_write()
        names = self._names(keys)
        array = np.asarray(rows)
        wanted = (len(names), *self._row.shape)
        if array.shape != wanted or not np.can_cast(array.dtype, self._row.base, "same_kind"):
            raise ModelFault(
                f"expected rows of {self._row.base} {list(wanted)}, found {array.dtype} {list(array.shape)}"
            )
        fresh = len({name for name in names if name not in self._places})
        if not self._evicts and len(self._places) + fresh > self.max_keys:
            raise KeyedFull(self._full())
        if not array.flags.owndata:
            array = array.copy()  # it may be of rows in here, which change as others are set or let go of
        for name, row in zip(names, array, strict=True):
            self._put(name, row, self._row.itemsize)

    # -- as state --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """For a capture: the slabs themselves."""
        return {"clock": self._clock, "slabs": list(self._slabs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave. Raises StateFault for what is no such thing, with nothing
        changed."""
        clock, slabs = state.get("clock"), state.get("slabs")
        if not isinstance(clock, np.ndarray) or clock.shape != (1,) or not isinstance(slabs, list):
            raise StateFault("Keyed: expected a clock and slabs")
        for slab in slabs:
            if not isinstance(slab, np.ndarray) or slab.dtype != np.dtype(np.uint8):
                raise StateFault("Keyed: expected slabs of bytes")
            if slab.nbytes != self._per_slab * self._entry.itemsize:
                raise StateFault(
                    f"Keyed: expected slabs of {self._per_slab} entries, found {slab.nbytes} bytes"
                )
        if self._places:
            self._differs_by(slabs)
        else:
            self._begin_with([slab.copy() for slab in slabs])
        self.dirty = None
        self._clock[:] = clock
        self._ages.forget()
        self._free = np.flatnonzero(self._written() == 0).tolist()

    def _begin_with(self, slabs: list[npt.NDArray[np.uint8]]) -> None:
        """Make these the slabs, and the index anew. Raises StateFault, with nothing changed."""
        entries = [slab.view(self._entry) for slab in slabs]
        every = np.concatenate(entries) if entries else np.zeros(0, dtype=self._entry)
        used = np.flatnonzero(every["written"])
        places = dict(zip(self._keys_of(every[used]), used.tolist(), strict=True))
        self._check_count(len(places), len(used))
        self._slabs, self._entries, self._places = slabs, entries, places

    def _differs_by(self, slabs: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Take over slabs, of which most entries are those that are here. Raises StateFault, with nothing
        changed."""
        rows = (self._per_slab, self._entry.itemsize)
        nothing: npt.NDArray[np.uint8] = np.zeros(self._per_slab * self._entry.itemsize, dtype=np.uint8)
        number_max = max(len(slabs), len(self._slabs))
        there = [*self._slabs, *[nothing] * (number_max - len(self._slabs))]
        wanted = [*slabs, *[nothing] * (number_max - len(slabs))]
        gone: list[Key] = []
        came: list[Key] = []
        places: list[int] = []
        for number, (old, new) in enumerate(zip(there, wanted, strict=True)):
            if np.array_equal(old, new):
                continue
            at = np.flatnonzero((old.reshape(rows) != new.reshape(rows)).any(axis=1))
            before, after = old.view(self._entry)[at], new.view(self._entry)[at]
            gone += self._keys_of(before[before["written"] > 0])
            used = after["written"] > 0
            came += self._keys_of(after[used])
            places += (number * self._per_slab + at[used]).tolist()
        left, keys = set(gone), set(came)
        if len(keys) < len(came) or any(key in self._places and key not in left for key in keys):
            raise StateFault("Keyed: expected each key once")
        count = len(self._places) - len(gone) + len(came)
        self._check_count(count, count)
        for key in gone:
            del self._places[key]
        self._places.update(zip(came, places, strict=True))
        del self._slabs[len(slabs) :], self._entries[len(slabs) :]
        for mine, slab in zip(self._slabs, slabs, strict=False):
            np.copyto(mine, slab)
        for slab in slabs[len(self._slabs) :]:
            self._slabs.append(slab.copy())
            self._entries.append(self._slabs[-1].view(self._entry))

    def _check_count(self, keys: int, entries: int) -> None:
        if keys > self.max_keys or keys < entries:
            raise StateFault(f"Keyed: expected at most {self.max_keys} keys, each once, found {entries}")

    def open(self, writable: bool) -> None:
        """Whether writes are allowed from now on: by the engine, around the update stage."""
        self._writable = writable

    def dirty_bytes(self, slab: int) -> list[tuple[int, int]] | None:
        """Which bytes of a slab were written since `captured`; None: unknown."""
        if self.dirty is None:
            return None
        size = self._entry.itemsize
        first = slab * self._per_slab
        inside = sorted(place - first for place in self.dirty if first <= place < first + self._per_slab)
        return [(place * size, (place + 1) * size) for place in inside]

    def captured(self) -> None:
        """A capture has copied all of it."""
        self.dirty = set()

    # -- entries ---------------------------------------------------------------------------------------------

    def _put(self, name: Key, content: Any, nbytes: int) -> None:
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= self.max_keys:
                if not self._evicts:
                    raise KeyedFull(self._full())
                content = np.array(content)  # it may be the very row that is let go of
                oldest = self._ages.oldest()
                slab, at = divmod(oldest, self._per_slab)
                del self._places[self._keys_of(self._entries[slab][at : at + 1])[0]]
                self._free_entry(oldest)
            place = self._places[name] = self._take()
            entry = self._entry_at(place)
            raw = _raw(name)
            entry["key_bytes"], entry["key"] = len(raw), np.void(raw.ljust(self._key_bytes, b"\0"))
        entry = self._entry_at(place)
        entry["row"], entry["row_bytes"] = content, nbytes
        self._stamp(place)

    def _stamp(self, place: int) -> None:
        self._clock += np.uint64(1)
        self._entry_at(place)["written"] = self._clock[0]
        self._ages.wrote(place)
        self._mark(place)

    def _take(self) -> int:
        """The first free entry; a further slab if there is none."""
        if not self._free:
            first = len(self._slabs) * self._per_slab
            self._slabs.append(np.zeros(self._per_slab * self._entry.itemsize, dtype=np.uint8))
            self._entries.append(self._slabs[-1].view(self._entry))
            self._free = list(range(first, first + self._per_slab))
        return heapq.heappop(self._free)

    def _free_entry(self, place: int) -> None:
        slab, at = divmod(place, self._per_slab)
        size = self._entry.itemsize
        self._slabs[slab][at * size : (at + 1) * size] = 0
        heapq.heappush(self._free, place)
        self._ages.freed(place)
        self._mark(place)

    def _mark(self, place: int) -> None:
        if self.dirty is not None:
            self.dirty.add(place)

    def _written(self) -> Times:
        parts = [entries["written"] for entries in self._entries]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)

    def _written_at(self, place: int) -> int:
        return int(self._entry_at(place)["written"])

    def _entry_at(self, place: int) -> Any:
        slab, at = divmod(place, self._per_slab)
        return self._entries[slab][at]

    def _keys_of(self, entries: npt.NDArray[Any]) -> list[Key]:
        """The keys of entries in use. Raises StateFault for one that is no text."""
        names: bytes = entries["key"].tobytes()
        if self._keys is int:
            integers: list[Key] = np.frombuffer(names, dtype="<i8").tolist()
            return integers
        size = self._key_bytes
        ends = enumerate(entries["key_bytes"].tolist())
        parts: list[Key] = [names[at * size : at * size + nbytes] for at, nbytes in ends]
        if self._keys is bytes:
            return parts
        try:
            return [str(part, "utf-8") for part in parts if isinstance(part, bytes)]
        except UnicodeDecodeError:
            raise StateFault("Keyed: a key is no text") from None

    def _value(self, place: int) -> Value:
        slab, at = divmod(place, self._per_slab)
        if self._is_bytes:
            entry = self._entries[slab][at]
            return bytes(entry["row"].tobytes()[: int(entry["row_bytes"])])
        row = self._entries[slab]["row"][at : at + 1]
        row.flags.writeable = False
        return row[0]

    # -- checks ----------------------------------------------------------------------------------------------

    def _may_write(self) -> None:
        if not self._writable:
            raise ModelFault("a Keyed mapping was written outside `with update:`")

    def _no_bytes(self, what: str) -> None:
        if self._is_bytes:
            raise ModelFault(f"Keyed.{what} is for rows of arrays; this one holds bytes: one key at a time")

    def _names(self, keys: Iterable[Any] | npt.NDArray[Any]) -> list[Key]:
        names = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
        return [self._checked(name) for name in names]

    def _checked(self, key: Any) -> Key:
        """The key itself. Raises ModelFault for one that cannot be."""
        if type(key) is not self._keys:
            if self._keys is int and isinstance(key, np.integer):
                key = int(key)
            else:
                raise ModelFault(f"expected a key of type {self._keys.__name__}, found {key!r:.60}")
        if isinstance(key, int):
            if not _INT_MIN <= key <= _INT_MAX:
                raise ModelFault(f"expected a key of 64 bits, found {key!r:.60}")
            return key
        name: str | bytes = key
        if len(_raw(name)) > self._key_bytes:
            raise ModelFault(
                f"expected a key of at most {self._key_bytes} bytes, found one of {len(_raw(name))}"
            )
        return name

    def _fitting(self, value: Any) -> tuple[Any, int]:
        """What is put into the row, and its bytes. Raises ModelFault for what does not fit."""
        size = self._row.itemsize
        if self._is_bytes:
            if not isinstance(value, bytes | bytearray | memoryview):
                raise ModelFault(f"expected a value of bytes, found a {type(value).__name__}")
            data = bytes(value)  # a memoryview counts its elements, which may have several bytes
            if len(data) > size:
                raise ModelFault(f"expected a value of at most {size} bytes, found one of {len(data)}")
            return np.void(data.ljust(size, b"\0")), len(data)
        array = np.asarray(value)
        if array.shape != self._row.shape or not np.can_cast(array.dtype, self._row.base, "same_kind"):
            raise ModelFault(
                f"expected a row of {self._row.base} {list(self._row.shape)}, found {array.dtype} "
                f"{list(array.shape)}"
            )
        return array, size

    def _full(self) -> str:
        return f"expected at most {self.max_keys} keys (max_keys), found one more; evict='lru' makes room"


class _Ages:
    """Which entry was written longest ago: places sorted by age when that was first asked for after a load,
    and behind them those that were written since."""

    def __init__(self, written: Callable[[], Times], written_at: Callable[[int], int]) -> None:
        """When each entry was written, and one of them; 0: it is free."""
        self._written = written
        self._written_at = written_at
        self._sorted: npt.NDArray[np.int64] | None = np.zeros(0, dtype=np.int64)
        self._next = 0
        self._newest = 0
        self._since: OrderedDict[int, None] = OrderedDict()

    def forget(self) -> None:
        """Any entry may have changed."""
        self._sorted = None
        self._since.clear()

    def wrote(self, place: int) -> None:
        """This one is the newest."""
        if self._sorted is not None:
            self._since[place] = None
            self._since.move_to_end(place)

    def freed(self, place: int) -> None:
        """This one is not in use any more."""
        self._since.pop(place, None)

    def oldest(self) -> int:
        """The one in use that was written longest ago. Raises StopIteration if none is."""
        if self._sorted is None:
            times = self._written()
            used = np.flatnonzero(times)
            self._sorted, self._next = used[np.argsort(times[used], kind="stable")], 0
            self._newest = int(times.max(initial=0))
        while self._next < len(self._sorted):
            place = int(self._sorted[self._next])
            if 0 < self._written_at(place) <= self._newest:
                return place
            self._next += 1  # written since, or freed
        return next(iter(self._since))


def _raw(name: Key) -> bytes:
    if isinstance(name, int):
        return name.to_bytes(8, "little", signed=True)
    return name.encode() if isinstance(name, str) else name
