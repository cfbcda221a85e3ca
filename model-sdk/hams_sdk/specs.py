"""What an operator declares: its tensors and where its outputs may go, as the proxy (or the graph file) tells
it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hams_sdk.datatypes import NUMPY
from hams_sdk.errors import ContractBroken


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: KServe datatype, shape of one row (-1: variable), whether it may be absent, whether NaN and
    infinity are errors."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    finite: bool = False

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the shape of one row is allowed."""
        return len(shape) == len(self.shape) and all(
            want in (-1, got) for want, got in zip(self.shape, shape, strict=True)
        )

    def describe(self, rows: int) -> str:
        """Datatype and shape for messages."""
        return f"{self.datatype} {[rows, *self.shape]}"

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> "TensorSpec":
        """From the JSON form of proto/model.md. Raises ContractBroken."""
        spec = cls(
            str(data["name"]),
            str(data["datatype"]),
            tuple(int(n) for n in data["shape"]),
            bool(data.get("optional")),
            bool(data.get("finite")),
        )
        if spec.datatype != "BYTES" and spec.datatype not in NUMPY:
            raise ContractBroken(f'tensor "{spec.name}": unknown datatype {spec.datatype!r}')
        return spec


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """One operator. `successors`: the names that a route may hold, `reply` and `request` included where they
    apply.

    `warm_up`: None if the model is not run before it is ready; else one row by input name, {} for a made-up
    one.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    successors: frozenset[str] = frozenset()
    stateful: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    warm_up: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> "OperatorSpec":
        """From the `operator` member of a setup frame. Raises ContractBroken."""
        try:
            return cls(
                str(data["name"]),
                tuple(TensorSpec.parse(item) for item in data["inputs"]),
                tuple(TensorSpec.parse(item) for item in data["outputs"]),
                frozenset(data["successors"]),
                bool(data["stateful"]),
                dict(data["config"]),
                None if data.get("warm_up") is None else dict(data["warm_up"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ContractBroken(f"setup frame: {error!r}") from error
