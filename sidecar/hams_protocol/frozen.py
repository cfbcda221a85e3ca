"""Immutable values that are cheap to build.

Events, effects and messages are frozen, slotted dataclasses. `dataclass(frozen=True)` pays one `object.__setattr__` per field and
instance, which is most of the cost of a protocol step, so the freeze is enforced where it costs nothing: by mypy, through
`dataclass_transform(frozen_default=True)`, and by the test-suite, which switches `ENFORCE` on before the core is imported.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

ENFORCE = False

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make `cls` a slotted dataclass whose fields never change after construction; equality and hash are by value."""
    if ENFORCE:
        return dataclass(frozen=True, slots=True)(cls)
    return dataclass(slots=True, unsafe_hash=True)(cls)
