"""How one field of a graph file is read: its kind, its bounds, its default, and what is said when it is
wrong.

A field is declared once, beside its type: `replicas: int = field_of(Whole(1, 16), default=1, about="...")`.
The reader turns plain values into objects of such classes and notes every problem on the way. It always
returns a complete object: what could not be read is replaced by the default or by the rule's stand-in, so
that later checks can go on and all errors appear at once. An object that was read with problems must never be
used for more than finding further problems.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast, dataclass_transform

from hams_graph.document import Document, Plain
from hams_graph.problems import Path, Problem, did_you_mean, listed, nearest, shown, spell

graph_problems_max = 100
"""Problems reported of one graph: validation ends with the last of them."""

list_items_max = 256
"""Items in a list of tensors, inputs or sources."""

stand_in_chars_max = 1024
"""Of text that is too long, what further checks and messages see; or as much as the field allows."""


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=enum.StrEnum)


class TooManyProblems(Exception):
    """The document has at least `graph_problems_max` problems: looking for more helps nobody."""


class Notes:
    """The problems found so far in one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._known: set[Problem] = set()
        self._places: dict[Path, int] = {}
        self._above: set[Path] = set()

    def say(self, path: Path, message: str) -> None:
        """Note a problem at `path`; the same words about the same place are noted once. Raises
        TooManyProblems with the last that is noted."""
        problem = Problem(spell(path), message, self.document.line(path))
        if problem in self._known:
            return
        self._known.add(problem)
        self.problems.append(problem)
        self._places[path] = self._places.get(path, 0) + 1
        self._above.update(path[:length] for length in range(len(path) + 1))
        if len(self.problems) >= graph_problems_max:
            raise TooManyProblems

    def problems_at(self, path: Path) -> int:
        """How many problems there are at exactly this place."""
        return self._places.get(path, 0)

    def any_below(self, path: Path) -> bool:
        """Whether there is a problem at this place or below it."""
        return path in self._above


class FieldRule(Protocol[T_co]):
    """Reads one kind of value. `read` notes what is wrong and then returns a stand-in."""

    def read(self, value: Plain, path: Path, notes: Notes) -> T_co:
        """The value as the program wants it."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    def read(self, value: Plain, path: Path, notes: Notes) -> int:
        """The number, or `least` as stand-in."""
        if isinstance(value, bool) or not isinstance(value, int):
            notes.say(path, f"expected a whole number, found {shown(value)}")
            return self.least
        if not self.least <= value <= self.most:
            notes.say(path, f"must be from {self.least} to {self.most}, found {value}")
            return self.least
        return value


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION_WHOLE = re.compile(rf"(?:{_DURATION.pattern})+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Duration:
    """A time span with its unit: `2ms`, `30s`, `1m30s`, `1h`; seconds in the program. Plain 0 is allowed
    where `least_s` is 0."""

    least_s: float
    most_s: float

    def read(self, value: Plain, path: Path, notes: Notes) -> float:
        """Seconds, or `least_s` as stand-in."""
        text = "0s" if value in (0, "0") and not isinstance(value, bool) else value
        if not isinstance(text, str) or not _DURATION_WHOLE.fullmatch(text):
            unit = (
                f'; did you mean "{value}s" or "{value}ms"?'
                if isinstance(value, int | float) and not isinstance(value, bool)
                else ""
            )
            notes.say(path, f'expected a duration such as "150ms", "30s" or "5m", found {shown(value)}{unit}')
            return self.least_s
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))
        if not self.least_s <= seconds <= self.most_s:
            notes.say(
                path, f"must be from {duration(self.least_s)} to {duration(self.most_s)}, found {value}"
            )
            return self.least_s
        return seconds


_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)")
_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of memory as Kubernetes writes it: `256Mi`, `1G`, `1048576`; bytes in the program."""

    least: int
    most: int

    def read(self, value: Plain, path: Path, notes: Notes) -> int:
        """Bytes, or `least` as stand-in."""
        match = (
            _QUANTITY.fullmatch(str(value))
            if isinstance(value, int | str) and not isinstance(value, bool)
            else None
        )
        if match is None:
            near = re.fullmatch(r"([0-9.]+) ?([kKmMgGtT])(i?)[bB]?", str(value))
            hint = f'; did you mean "{near[1]}{near[2].upper()}i"?' if near else ""
            notes.say(
                path, f'expected an amount of memory such as "64Mi" or "1Gi", found {shown(value)}{hint}'
            )
            return self.least
        nbytes = int(float(match[1]) * _BYTES[match[2]])
        if not self.least <= nbytes <= self.most:
            notes.say(path, f"must be from {quantity(self.least)} to {quantity(self.most)}, found {value}")
            return self.least
        return nbytes


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def read(self, value: Plain, path: Path, notes: Notes) -> bool:
        """The flag, or False as stand-in."""
        if not isinstance(value, bool):
            notes.say(path, f"expected true or false, found {shown(value)}")
            return False
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches `pattern` as a whole; `what` says in words what that is. The stand-in for other text
    is the text itself."""

    what: str
    pattern: str = r"[\s\S]*"
    most: int = 1024
    least: int = 0

    def read(self, value: Plain, path: Path, notes: Notes) -> str:
        """The text; "" as stand-in for what is none."""
        if not isinstance(value, str):
            quotes = "; write it in quotes" if isinstance(value, int | float) else ""
            notes.say(path, f"expected {self.what}, found {shown(value)}{quotes}")
            return ""
        if not value and self.least:
            notes.say(path, f"expected {self.what}, found nothing")
        elif len(value) > self.most:
            notes.say(path, f"is {len(value)} characters long, {self.most} at most are allowed")
        elif not re.fullmatch(self.pattern, value):
            notes.say(path, f"expected {self.what}, found {shown(value)}")
        return value[: max(self.most, stand_in_chars_max)]


@dataclass(frozen=True, slots=True)
class OneOf(Generic[E]):
    """One of the values of an enumeration. `slips` names the right word for words from elsewhere (`float32`
    for `FP32`)."""

    options: type[E]
    slips: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def read(self, value: Plain, path: Path, notes: Notes) -> E:
        """The member; the first one as stand-in."""
        choices = [option.value for option in self.options]
        if isinstance(value, str) and value in choices:
            return self.options(value)
        if isinstance(value, str) and value.lower() in self.slips:
            notes.say(
                path,
                f"expected {listed(choices)}, found {shown(value)}; did you mean "
                f'"{self.slips[value.lower()]}"?',
            )
        else:
            guess = did_you_mean(value, choices) if isinstance(value, str) else ""
            notes.say(path, f"expected {listed(choices)}, found {shown(value)}{guess}")
        return next(iter(self.options))


@dataclass(frozen=True, slots=True)
class Json:
    """A mapping whose content is not looked at; `keys` are the ones it may have at its top, if given."""

    keys: tuple[str, ...] = ()

    def read(self, value: Plain, path: Path, notes: Notes) -> dict[str, Plain]:
        """The mapping; empty as stand-in."""
        if not isinstance(value, dict):
            notes.say(path, f"expected a mapping, found {shown(value)}")
            return {}
        for key in value:
            if self.keys and key not in self.keys:
                notes.say(
                    (*path, key),
                    f"no such field here; expected {listed(self.keys)}{did_you_mean(key, self.keys)}",
                )
        self._check_numbers(value, path, notes)
        return value

    def _check_numbers(self, value: Plain, path: Path, notes: Notes) -> None:
        """JSON, which this becomes on its way to the model, has no infinity and no NaN."""
        if isinstance(value, float) and not math.isfinite(value):
            notes.say(path, f"expected a finite number, found {shown(value)}")
        elif isinstance(value, dict):
            for key, item in value.items():
                self._check_numbers(item, (*path, key), notes)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._check_numbers(item, (*path, index), notes)


@dataclass(frozen=True, slots=True)
class Pairs:
    """A mapping of names to text, in the order given."""

    name: Text
    value: Text

    def read(self, value: Plain, path: Path, notes: Notes) -> tuple[tuple[str, str], ...]:
        """(name, text) pairs; none as stand-in."""
        if not isinstance(value, dict):
            notes.say(
                path, f"expected a mapping of {self.name.what} to {self.value.what}, found {shown(value)}"
            )
            return ()
        return tuple(
            (self.name.read(key, (*path, key), notes), self.value.read(item, (*path, key), notes))
            for key, item in value.items()
        )


@dataclass(frozen=True, slots=True)
class Many(Generic[T]):
    """A list of `least` to `most` items; `what` names one of them."""

    item: FieldRule[T]
    what: str
    least: int = 0
    most: int = list_items_max

    def read(self, value: Plain, path: Path, notes: Notes) -> tuple[T, ...]:
        """The items; none as stand-in."""
        if not isinstance(value, list):
            notes.say(path, f"expected a list, found {shown(value)}")
            return ()
        if len(value) < self.least:
            notes.say(path, f"is empty; expected at least one {self.what}")
        if len(value) > self.most:
            notes.say(path, f"has {len(value)} items, {self.most} at most are allowed")
        return tuple(
            self.item.read(item, (*path, position), notes) for position, item in enumerate(value[: self.most])
        )


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A mapping that is an object of its own. `short` is the field that a bare text stands for, if that is
    allowed."""

    cls: type[T]
    short: str = ""

    def read(self, value: Plain, path: Path, notes: Notes) -> T:
        """The object, complete even if `value` was not."""
        if self.short and isinstance(value, str):
            value = {self.short: value}
        if not isinstance(value, dict):
            wanted = "text or a mapping" if self.short else "a mapping"
            notes.say(
                path,
                f"expected {wanted}, found {shown(value)}"
                + ('; write "{}" for the defaults' if value is None or value is True else ""),
            )
            value = None
        return _read_fields(self.cls, value, path, notes)


@dataclass(frozen=True, slots=True)
class Given:
    """How a field is declared: the key in the file, its rule, and what it means (also its description in the
    CRD)."""

    key: str
    rule: FieldRule[object]
    about: str
    required: bool
    default: object


class _Required(enum.Enum):
    REQUIRED = 0


def field_of(
    rule: FieldRule[T], *, about: str, key: str = "", default: T | _Required = _Required.REQUIRED
) -> T:
    """Declares a field of a `part`. Without `default` the field must be given; `key` if it is not the
    camel-cased name."""
    required = isinstance(default, _Required)
    metadata = {"given": Given(key, rule, about, required, None if required else default)}
    if required:
        return cast(T, dataclasses.field(metadata=metadata))
    if isinstance(default, dict):
        return cast(T, dataclasses.field(default_factory=dict, metadata=metadata))
    return cast(T, dataclasses.field(default=default, metadata=metadata))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field_of,))
def part(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass whose fields are read from a file."""
    return dataclass(frozen=True, slots=True, kw_only=True, eq=True)(cls)


def given_fields(cls: type) -> dict[str, Given]:
    """The declared fields of a `part` by attribute name, keys filled in: `request_timeout_s` is
    `requestTimeout` in the file."""
    fields_given = {}
    for item in dataclasses.fields(cls):
        given: Given = item.metadata["given"]
        fields_given[item.name] = dataclasses.replace(given, key=given.key or _camel(item.name))
    return fields_given


def _camel(name: str) -> str:
    first, *rest = name.removesuffix("_s").split("_")
    return first + "".join(part.capitalize() for part in rest)


def _read_fields(cls: type[T], value: dict[str, Plain] | None, path: Path, notes: Notes) -> T:
    """An object of `cls`. With `value` None nothing is said about missing fields: that the whole is missing
    has been said."""
    declared = given_fields(cls)
    keys = {given.key for given in declared.values()}
    unknown = [key for key in value or {} if key not in keys]
    meant = {nearest(key, keys) for key in unknown[:graph_problems_max]}
    for key in unknown:
        guess = did_you_mean(key, keys)
        notes.say(
            (*path, key), "unknown field" + (guess or f"; known here: {listed(sorted(keys), last='and')}")
        )
    read: dict[str, object] = {}
    for name, given in declared.items():
        if value is not None and given.key in value:
            here = (*path, given.key)
            known = notes.problems_at(here)
            read[name] = given.rule.read(value[given.key], here, notes)
            if not given.required and not isinstance(given.rule, Part) and notes.problems_at(here) > known:
                read[name] = given.default
        elif given.required:
            if value is not None and given.key not in meant:
                notes.say((*path, given.key), f"is missing: {given.about}")
            read[name] = given.rule.read(None, (*path, given.key), Notes(Document(None)))
    return cls(**read)


def duration(seconds: float) -> str:
    """`0.15` -> `150ms`, `90` -> `90s`: as it would be written in a file."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:g}s"
    return f"{seconds * 1000:g}ms"


def bytes_of(text: str) -> int | None:
    """`256Mi` -> `268435456`; None for what is no amount of memory."""
    match = _QUANTITY.fullmatch(text)
    return None if match is None else int(float(match[1]) * _BYTES[match[2]])


def quantity(amount: int) -> str:
    """`268435456` -> `256Mi`: as it would be written in a file."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if amount and amount % _BYTES[unit] == 0:
            return f"{amount // _BYTES[unit]}{unit}"
    return str(amount)
