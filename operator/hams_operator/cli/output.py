"""How commands speak: text for people, one JSON value for programs, errors as one clear line on stderr."""

import re
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

pipe_columns = 10_000
"""A table that is written to no terminal is never cut: a program that reads it may want a whole name."""


class Output(StrEnum):
    """The forms of `--output`."""

    TEXT = "text"
    JSON = "json"


class CommandError(Exception):
    """What the user is told, and the exit code: 1 it did not work, 2 the call was wrong."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def complain(message: str, code: int = 1) -> NoReturn:
    """End the command with one line."""
    raise CommandError(message, code) from None


def print_json(value: object) -> None:
    """One JSON value, indented, on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def console(*, stderr: bool = False) -> "Console":
    """A terminal for text, or what stands in for one."""
    from rich.console import Console  # noqa: PLC0415 - 50 ms that JSON and errors need not pay

    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = pipe_columns
    return made


def check_namespace(name: str | None) -> None:
    """Raises CommandError for what no namespace of Kubernetes can be called."""
    if name is not None and not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        complain(f"--namespace: expected a name of lower-case letters, digits and dashes, found {name!r}", 2)


def check_lines(lines: int) -> None:
    """Raises CommandError for less than none."""
    if lines < 0:
        complain(f"--lines: expected 0 or more, found {lines}", 2)


def seconds(text: str) -> float:
    """`60s`, `500ms`, `2m`, `1h` or plain seconds. Raises CommandError."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
    number = text.strip().rstrip("hms")
    unit = text.strip()[len(number) :]
    try:
        value = float(number) * units[unit]
    except (KeyError, ValueError):
        complain(f"expected a duration like 60s, 500ms or 2m, found {text!r}", 2)
    if not 0 < value < 1e7:
        complain(f"expected a duration above 0, found {text!r}", 2)
    return value
