"""What a model is given per run: the rows of several requests, side by side.

Arrays are read-only, C-contiguous and valid until `run` returns. The arrays of a batch of one unit lie in
memory that the proxy still needs for others, so they are mapped read-only.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hams_sdk.datatypes import Array, torch_module
from hams_sdk.errors import NoSuchInput
from hams_sdk.limits import MESSAGE_CHARS_MAX

Scalar = bool | int | float | str


class Unit:
    """One request's share of a batch: `rows` is its slice of every array, `parameters` what the client sent
    along."""

    __slots__ = ("id", "index", "parameters", "rows")

    def __init__(self, id: str, index: int, rows: slice, parameters: Mapping[str, Scalar]) -> None:
        self.id = id
        self.index = index
        self.rows = rows
        self.parameters = parameters

    def __repr__(self) -> str:
        return f"Unit({self.id!r}, rows {self.rows.start}:{self.rows.stop})"


class Batch:
    """`batch[name]`: an array (rows, *shape), or None if an optional input is absent (in all units alike).
    `units`: whose rows they are."""

    __slots__ = ("_arrays", "_bf16", "errors", "refused", "rows", "units")

    def __init__(
        self,
        arrays: Mapping[str, Array | None],
        units: list[Unit],
        rows: int,
        bf16: frozenset[str] = frozenset(),
    ) -> None:
        self._arrays = arrays
        self._bf16 = bf16
        self.units = units
        self.rows = rows
        self.errors: dict[int, str] = {}
        self.refused: set[int] = set()

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except KeyError:
            raise NoSuchInput(f'no input "{name}"; inputs are {", ".join(self._arrays)}') from None

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return self.rows

    def torch(self, name: str, device: Any = None) -> Any:
        """Input `name` as a torch tensor of its own (a copy, so it may be written), on `device`; None if it
        is absent. Not for BYTES."""
        array = self[name]
        if array is None:
            return None
        tensor = torch_module().from_numpy(array.copy())
        if name in self._bf16:
            tensor = tensor.view(torch_module().bfloat16)
        return tensor if device is None else tensor.to(device)

    def fail(self, unit: Unit, message: str) -> None:
        """`message` is this unit's error and its reply; the rest of the batch is as it was."""
        self.errors[self._index(unit)] = str(message)[:MESSAGE_CHARS_MAX]  # all of them go in one frame

    def refuse(self, unit: Unit) -> None:
        """This unit's value is not acceptable: a First join tries the next one."""
        self.refused.add(self._index(unit))

    def _index(self, unit: Unit) -> int:
        if not any(unit is one for one in self.units):
            raise ValueError(f"expected one of batch.units, got {unit!r}")
        return unit.index
