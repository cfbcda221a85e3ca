"""Typed arrays out of the core's dataclasses, and back.

The core's messages are plain dataclasses that know nothing of a wire. From their annotations this module
derives, once at import, for each class a strict `msgspec` struct (an array: fields by position, types checked
in C) and two functions written as source, as `dataclasses` itself does, because a generic walk over fields
would cost several times the encoding. So the wire cannot drift from the messages: a new field is on the wire
as soon as it is in the class.

Rules that let neighbouring versions talk: fields are only added, at the end, with a default. A reader that
does not know a field ignores it; one that misses a field takes its default. A payload appears as its number
in the message's payload table. Members of a union are told apart by their place in it, so unions too grow
only at the end.

Never: `Any`, maps with free keys, references between values, recursion (the depth of a message is that of its
type).
"""

import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Annotated

import msgspec

from hams_protocol.messages import Payload

Refs = dict[int, tuple[int, Payload]]
"""Payloads of a message while it is being taken apart: id -> (number, payload)."""

Encode = Callable[[object, Refs], object]
Decode = Callable[[object, list[Payload]], object]

PayloadNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


class WireForm(typing.NamedTuple):
    """How one annotated type travels. `encode` and `decode` are None where msgspec does it as it is."""

    wire: object
    encode: Encode | None
    decode: Decode | None


def _encode_payload(value: object, refs: Refs) -> int:
    payload = typing.cast(Payload, value)
    number = refs.get(id(payload))
    if number is None:
        number = refs[id(payload)] = (len(refs), payload)
    return number[0]


def _decode_payload(number: object, payloads: list[Payload]) -> Payload:
    return payloads[typing.cast(int, number)]


class Schema:
    """Shapes by type; each class is compiled once."""

    def __init__(self) -> None:
        self._shapes: dict[object, WireForm] = {
            Payload: WireForm(PayloadNumber, _encode_payload, _decode_payload)
        }

    def shape(self, annotation: object) -> WireForm:
        """The shape of a type as it stands in an annotation. Raises TypeError for what does not travel."""
        known = self._shapes.get(annotation)
        if known is None:
            known = self._shapes[annotation] = self._compile(annotation)
        return known

    def _compile(self, annotation: object) -> WireForm:
        if isinstance(annotation, type):
            if dataclasses.is_dataclass(annotation):
                return self._dataclass(annotation, None)
            if annotation in (str, int, float, bool, types.NoneType) or issubclass(annotation, enum.Enum):
                return WireForm(annotation, None, None)
            if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
                return self._named_tuple(annotation)
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is tuple:
            return self._many(inner[0]) if len(inner) == 2 and inner[1] is Ellipsis else self._row(inner)
        if origin in (types.UnionType, typing.Union):
            return self._union(annotation, inner)
        raise TypeError(f"no wire form for {annotation!r}")

    def _named_tuple(self, cls: type) -> WireForm:
        for field, annotation in typing.get_type_hints(cls).items():
            if self.shape(annotation).encode is not None:
                raise TypeError(f"{cls.__name__}.{field}: a named tuple travels only if its fields are plain")
        return WireForm(cls, None, None)

    def _many(self, item: object) -> WireForm:
        shape = self.shape(item)
        wire = types.GenericAlias(tuple, (shape.wire, ...))
        if shape.encode is None or shape.decode is None:
            return WireForm(wire, None, None)
        names: dict[str, object] = {"encode": shape.encode, "decode": shape.decode}
        return WireForm(
            wire,
            typing.cast(Encode, _function("value, refs", "[encode(item, refs) for item in value]", names)),
            typing.cast(
                Decode,
                _function("value, payloads", "tuple([decode(item, payloads) for item in value])", names),
            ),
        )

    def _row(self, items: tuple[object, ...]) -> WireForm:
        shapes = [self.shape(item) for item in items]
        wire = types.GenericAlias(tuple, tuple(shape.wire for shape in shapes))
        if all(shape.encode is None for shape in shapes):
            return WireForm(wire, None, None)
        names: dict[str, object] = {}
        out, back = [], []
        for index, shape in enumerate(shapes):
            out.append(_call(f"value[{index}]", f"e{index}", "refs", shape.encode, names))
            back.append(_call(f"value[{index}]", f"d{index}", "payloads", shape.decode, names))
        return WireForm(
            wire,
            typing.cast(Encode, _function("value, refs", f"({', '.join(out)},)", names)),
            typing.cast(Decode, _function("value, payloads", f"({', '.join(back)},)", names)),
        )

    def _union(self, annotation: object, members: tuple[object, ...]) -> WireForm:
        present = [item for item in members if item is not types.NoneType]
        if len(present) == 1:
            shape = self.shape(present[0])
            wire = operator.or_(shape.wire, None)
            if shape.encode is None:
                return WireForm(wire, None, None)
            names: dict[str, object] = {"encode": shape.encode, "decode": shape.decode}
            return WireForm(
                wire,
                typing.cast(
                    Encode, _function("value, refs", "None if value is None else encode(value, refs)", names)
                ),
                typing.cast(
                    Decode,
                    _function("value, payloads", "None if value is None else decode(value, payloads)", names),
                ),
            )
        if all(isinstance(item, type) and dataclasses.is_dataclass(item) for item in present) and len(
            present
        ) == len(members):
            return self._choice(tuple(typing.cast("type", item) for item in present))
        if all(item in (str, int, float, bool, types.NoneType) for item in members):
            return WireForm(annotation, None, None)
        raise TypeError(f"no wire form for {annotation!r}")

    def _choice(self, members: tuple[type, ...]) -> WireForm:
        shapes = [self._dataclass(member, number) for number, member in enumerate(members)]
        encoders = {
            member: typing.cast(Encode, shape.encode) for member, shape in zip(members, shapes, strict=True)
        }
        decoders = {typing.cast("type", shape.wire): typing.cast(Decode, shape.decode) for shape in shapes}
        wire = functools.reduce(operator.or_, decoders)
        return WireForm(
            wire,
            lambda value, refs: encoders[type(value)](value, refs),
            lambda value, payloads: decoders[type(value)](value, payloads),
        )

    def _dataclass(self, cls: type, tag: int | None) -> WireForm:
        """`tag`: the number in front of the fields that tells members of a union apart, None outside of
        unions."""
        hints = typing.get_type_hints(cls)
        fields: list[tuple[str, object] | tuple[str, object, object]] = []
        out: list[str] = [] if tag is None else [str(tag)]
        back: list[str] = []
        names: dict[str, object] = {"make": cls}
        for index, field in enumerate(dataclasses.fields(cls)):
            shape = self.shape(hints[field.name])
            decode = shape.decode
            if field.default_factory is not dataclasses.MISSING:
                raise TypeError(f"{cls.__name__}.{field.name}: a default made by a function")
            if field.default is dataclasses.MISSING:
                fields.append((field.name, shape.wire))
            elif decode is None or field.default in (None, ()):
                fields.append((field.name, shape.wire, field.default))
            else:
                fields.append((field.name, operator.or_(shape.wire, msgspec.UnsetType), msgspec.UNSET))
                decode = _or_default(decode, field.default)
            out.append(_call(f"value.{field.name}", f"e{index}", "refs", shape.encode, names))
            back.append(_call(f"value.{field.name}", f"d{index}", "payloads", decode, names))
        wire = msgspec.defstruct(f"{cls.__name__}Wire", fields, array_like=True, gc=False, tag=tag)
        return WireForm(
            wire,
            typing.cast(Encode, _function("value, refs", f"({', '.join(out)},)", names)),
            typing.cast(Decode, _function("value, payloads", f"make({', '.join(back)})", names)),
        )


def _or_default(decode: Decode, default: object) -> Decode:
    """For a field that an older peer does not send, and whose default has a wire form of its own."""
    return lambda value, payloads: default if value is msgspec.UNSET else decode(value, payloads)


def _call(value: str, name: str, rest: str, function: object, names: dict[str, object]) -> str:
    """Source of `value`, converted by `function` unless that is None."""
    if function is None:
        return value
    names[name] = function
    return f"{name}({value}, {rest})"


def _function(arguments: str, expression: str, names: dict[str, object]) -> object:
    """A function of one expression. Its source stems from the core's field names alone, never from anything
    received."""
    scope = dict(names)
    exec(f"def function({arguments}): return {expression}", scope)
    return scope["function"]
