"""Write the tables of docs/configuration.md anew from the typed model of the ServiceGraph
(operator/hams_graph/resource.py).

    .venv/bin/python tools/configuration.py           rewrites the file between its marks
    .venv/bin/python tools/configuration.py --check   exit 1 if that would change it

What stands outside the marks is written by hand. tests/test_docs.py runs the check.
"""

import enum
import sys
from pathlib import Path

from hams_graph import fields
from hams_graph import resource as rs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
BEGIN = "<!-- from here on written by tools/configuration.py -->"
END = "<!-- to here -->"


def main(arguments: list[str]) -> int:
    """The command."""
    text = PAGE.read_text(encoding="utf-8")
    fresh = page(text)
    if arguments == ["--check"]:
        if fresh != text:
            sys.stderr.write(
                f"{PAGE.name} is not what the typed model says; run: .venv/bin/python "
                "tools/configuration.py\n"
            )
        return 0 if fresh == text else 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


def page(text: str) -> str:
    """The page with its tables written anew. Raises ValueError if a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name}: expected the marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def tables() -> str:
    """One table per object of the file, depth first."""
    return "\n".join(_table("spec", rs.GraphSpec))


def paths() -> list[str]:
    """Every field as a path, such as `spec.operators[].batch.maxRows`."""
    return [row[0] for row in _rows("spec", rs.GraphSpec, deep=True)]


def _table(path: str, cls: type) -> list[str]:
    about = (cls.__doc__ or "").strip()
    lines = [
        f"### `{path}`",
        "",
        about,
        "",
        "| field | value | default | what it means |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{key}` | {value} | {default} | {meaning} |"
        for key, value, default, meaning in _rows(path, cls, deep=False)
    ]
    lines.append("")
    for given in fields.given_fields(cls).values():
        below = _below(given.rule)
        if below is not None:
            lines += _table(f"{path}.{given.key}{_many(given.rule)}", below)
    return lines


def _rows(path: str, cls: type, *, deep: bool) -> list[tuple[str, str, str, str]]:
    rows = []
    for given in fields.given_fields(cls).values():
        here = f"{path}.{given.key}{_many(given.rule)}" if deep else given.key
        rows.append((here, _value(given.rule), _default(given), given.about.replace("|", "\\|")))
        below = _below(given.rule)
        if deep and below is not None:
            rows += _rows(here, below, deep=True)
    return rows


def _below(rule: object) -> type | None:
    if isinstance(rule, fields.Part):
        return rule.cls
    return _below(rule.item) if isinstance(rule, fields.Many) else None


def _many(rule: object) -> str:
    return "[]" if isinstance(rule, fields.Many) else ""


def _value(rule: object) -> str:
    match rule:
        case fields.Whole():
            return f"whole number, {rule.least} to {rule.most}"
        case fields.Duration():
            return f"duration, {fields.duration(rule.least_s)} to {fields.duration(rule.most_s)}"
        case fields.Quantity():
            return f"memory, {fields.quantity(rule.least)} to {fields.quantity(rule.most)}"
        case fields.Flag():
            return "`true` or `false`"
        case fields.OneOf():
            return ", ".join(f"`{option.value}`" for option in rule.options)
        case fields.Json():
            return "mapping" + (f" of {', '.join(f'`{key}`' for key in rule.keys)}" if rule.keys else "")
        case fields.Pairs():
            return f"mapping of {rule.name.what} to {rule.value.what}"
        case fields.Many():
            text = "text or " if isinstance(rule.item, fields.Part) and rule.item.short else ""
            return f"list of {text}objects, {rule.least} to {rule.most}"
        case fields.Part():
            return "object"
        case fields.Text():
            return rule.what.replace("|", "\\|")
        case rs.RowShape():
            return f"list of sizes, {rs.shape_dims_max} at most"
        case rs.Sources():
            return "text, or list of texts"
    raise ValueError(f"no words for the rule {rule!r}")


def _default(given: fields.Given) -> str:
    if given.required:
        return "required"
    value = given.default
    match value:
        case None:
            return "absent"
        case bool():
            return f"`{str(value).lower()}`"
        case enum.Enum():
            return f"`{value.value}`"
        case "" | () | {}:
            return "empty"
    match given.rule:
        case fields.Duration():
            assert isinstance(value, float)
            return f"`{fields.duration(value)}`"
        case fields.Quantity():
            assert isinstance(value, int)
            return f"`{fields.quantity(value)}`"
        case fields.Part():
            return "its defaults"
    return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
