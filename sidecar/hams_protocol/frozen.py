"""Immutable values that are cheap to build.

Events, effects and messages are frozen, slotted dataclasses. `dataclass(frozen=True)` pays one
`object.__setattr__` per field and instance, which is most of the cost of a protocol step, so the freeze is
enforced where it costs nothing: by mypy, through `dataclass_transform(frozen_default=True)`, and by the
test-suite, which switches `ENFORCE` on before the core is imported.
"""

from dataclasses import dataclass, field, make_dataclass, replace
from typing import TypeVar, dataclass_transform

ENFORCE = False

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make `cls` a slotted dataclass whose fields never change after construction; equality and hash are by
    value."""
    if ENFORCE:
        return dataclass(frozen=True, slots=True)(cls)
    return dataclass(slots=True, unsafe_hash=True)(cls)


Listed = tuple[tuple[str, str] | tuple[str, str, object], ...]
"""Fields of a class: name, annotation, and the default if there is one."""


def marked(cls: type[object], fields: Listed) -> None:
    """Give a compiled value class (tools/native.py) the marks of the dataclass that it is in the sources,
    defaults included.

    Raises AttributeError if `cls` is no compiled class.
    """
    template = make_dataclass(
        cls.__name__,
        [(item[0], item[1], field(default=item[2]) if len(item) == 3 else field()) for item in fields],
    )
    for mark in ("__dataclass_fields__", "__dataclass_params__", "__match_args__"):
        setattr(cls, mark, getattr(template, mark))
    annotated(cls, fields)


def annotated(cls: type[object], fields: Listed) -> None:
    """Give a compiled class the annotations that it has in the sources, as text."""
    cls.__annotations__ = {item[0]: item[1] for item in fields}


def replaced(value: T, **changes: object) -> T:
    """`dataclasses.replace` for such classes."""
    return replace(value, **changes)  # type: ignore[type-var]
