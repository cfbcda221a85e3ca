"""How a measurement ends: its JSON in a file with a plot beside it, and on stdout a table for people or the
same JSON for programs."""

import argparse
import difflib
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, object]

counted_max = 100_000
"""Kills, clients or pairs of windows: more take weeks."""

seed_max = 999_999_999

DIGITS_MAX = 18
"""Of a whole number: longer ones are not read at all."""

SHOWN_CHARS = 60
"""Of a wrong value, in a message."""

seconds_max = 3600.0
"""Of one window."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--out` and `--output`, which every measurement has."""
    parser.add_argument(
        "--out",
        type=out_file,
        default=None,
        metavar="FILE.json",
        help="write the measurement there, and a plot of it to FILE.svg",
    )
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="print a table, or the JSON that --out writes and nothing else",
    )


def out_file(text: str) -> Path:
    """A file that can be written, which is found out before anything is measured. Makes its folder."""
    path = Path(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(f"expected a file FILE.json, found {text!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file FILE.json, found a folder: {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        for file in (path, path.with_suffix(".svg")):
            if file.exists():
                file.open("r+b").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot be written: {path}: {error.strerror or error}") from None
    return path


def counted(text: str) -> int:
    """How many of something are measured: of none there is no median."""
    return whole("a whole number", text, 1, counted_max)


def seed(text: str) -> int:
    """Decides what is drawn."""
    return whole("a whole number", text, 0, seed_max)


def whole(what: str, text: str, least: int, most: int) -> int:
    """A whole number between two others, or what was expected instead, for argparse."""
    digits = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
    if not (digits and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected {what} from {least} to {most}, found {in_short(text)}")
    return int(text)


def in_short(value: object) -> str:
    """A wrong value, for a message of one line."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def seconds(text: str) -> float:
    """How long something is measured."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= seconds_max:
        raise argparse.ArgumentTypeError(
            f"expected seconds above 0 and at most {seconds_max:g}, found {text!r}"
        )
    return value


def one_of(what: str, known: Sequence[str]) -> Callable[[str], str]:
    """Reads one of `known` for argparse; for anything else says what there is, and what was meant."""

    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(_unknown(what, text, known))
        return text

    return read


def several(what: str, known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """The same for some of `known`, separated by commas."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(_unknown(what, name, known))
            if names.count(name) > 1:
                raise argparse.ArgumentTypeError(f"{what} {name} is named twice")
        return names

    return read


def _unknown(what: str, text: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, list(known), 1, 0.5) or [
        name for name in known if name.lower() == text.lower()
    ]
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"no {what} {text!r}{hint} Known are {', '.join(known)}"


def deliver(
    result: Result,
    options: argparse.Namespace,
    table: Callable[[Result], None],
    plot: Callable[[Result, Path], None],
) -> None:
    """Write and print what was measured. Raises OSError if the file cannot be written; it has been printed
    then."""
    text = json.dumps(result, indent=1)
    if options.output == "json":
        print(text, flush=True)
    else:
        table(result)
    if options.out is not None:
        options.out.write_text(text + "\n")
        plot(result, options.out.with_suffix(".svg"))


def rows_of(result: Result) -> list[dict[str, Any]]:
    """The rows of a measurement that has rows."""
    rows = result["rows"]
    assert isinstance(rows, list)
    return rows


def ms(seconds: float, digits: int = 2) -> float:
    """Milliseconds as they are written down."""
    return round(1000 * seconds, digits)
