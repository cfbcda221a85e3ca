"""YAML text -> plain values with the line of each, and nothing else.

YAML as people read it (1.2): only `true` and `false` are booleans, `on`, `12:30` and dates are text. Anchors,
aliases and merge keys work. Refused, with line: duplicate keys, keys that are not text, tags, a value that
contains itself, a document that unfolds beyond the limits. Of several documents in one file the one
ServiceGraph is taken, so a file for `kubectl apply` may hold other objects too. Never builds Python objects
from tags and never reads files.
"""

import math
import re
from dataclasses import dataclass, field

import yaml

from hams_graph.problems import InvalidGraph, Path, Problem, spell

graph_file_bytes_max = 1 << 20
"""Size of a graph file; Kubernetes stores objects up to about 1.5 MB."""

graph_file_values_max = 100_000
"""Values a graph file may unfold to, aliases followed: the bound against files that explode."""

graph_file_depth_max = 64
"""Levels of nesting in a graph, in a file or an object."""

graph_number_chars_max = 64
"""Characters of one number in a graph file."""


Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""What JSON knows."""


@dataclass(frozen=True, slots=True)
class Document:
    """The plain values of one document and the line each path stands on (empty if it came from Kubernetes,
    not from text)."""

    root: Plain
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """The line of `path`, else of the nearest path above it that has one; 0 if there is none."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 (core schema)."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def read_text(text: str, kind: str) -> Document:
    """The one document of `kind` in `text`; raises InvalidGraph if there is none, more than one, or it is not
    plain YAML."""
    if len(text.encode()) > graph_file_bytes_max:
        raise InvalidGraph(
            [
                Problem(
                    "document",
                    f"larger than {graph_file_bytes_max >> 10} KiB; large data does not belong into a graph",
                )
            ]
        )
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise InvalidGraph([Problem("document", f"not YAML: {what}", mark.line + 1 if mark else 0)]) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidGraph([Problem("document", f"not YAML: {' '.join(str(error).split())}")]) from None
    nodes = [
        node
        for node in nodes
        if not (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null")
    ]
    if not nodes:
        raise InvalidGraph([Problem("document", f"is empty; expected one {kind}")])
    chosen = nodes if len(nodes) == 1 else [node for node in nodes if _kind(node) == kind]
    if len(chosen) != 1:
        raise InvalidGraph(
            [
                Problem(
                    "document",
                    f"the file has {len(nodes)} documents, {len(chosen)} of them of kind {kind}; expected "
                    "exactly one",
                )
            ]
        )
    return _Unfolding().document(chosen[0])


def _kind(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(
        (
            value.value
            for key, value in node.value
            if key.value == "kind" and isinstance(value, yaml.ScalarNode)
        ),
        None,
    )


class _Unfolding:
    """Follows the nodes of one document, aliases included, and notes what is wrong on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.lines: dict[Path, int] = {}
        self._within: set[int] = set()
        self._values = 0

    def document(self, node: yaml.Node) -> Document:
        root = self._value(node, ())
        if self.problems:
            raise InvalidGraph(self.problems)
        return Document(root, self.lines)

    def _say(self, path: Path, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(spell(path), message, node.start_mark.line + 1))

    def _value(self, node: yaml.Node, path: Path) -> Plain:
        self._values += 1
        if self._values > graph_file_values_max:
            self._say(path, node, f"the document unfolds to more than {graph_file_values_max} values")
            raise InvalidGraph(self.problems)
        if len(path) > graph_file_depth_max:
            self._say(path, node, f"nested deeper than {graph_file_depth_max} levels")
            raise InvalidGraph(self.problems)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._within:
            self._say(path, node, "contains itself through an alias")
            return None
        self._within.add(id(node))
        value: Plain = (
            self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        )
        self._within.remove(id(node))
        return value

    def _sequence(self, node: yaml.Node, path: Path) -> Plain:
        if node.tag != "tag:yaml.org,2002:seq":
            self._say(path, node, f"the tag {node.tag} is not known here")
        return [self._value(child, (*path, position)) for position, child in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Plain]:
        if node.tag != "tag:yaml.org,2002:map":
            self._say(path, node, f"the tag {node.tag} is not known here")
        mapping: dict[str, Plain] = {}
        first: dict[str, int] = {}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        for key, child in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                merged.append((key, child))
            elif not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:null":
                self._say(path, key, "a key must be text")
            elif key.value in first:
                self._say((*path, key.value), key, f"is given twice; the first is on line {first[key.value]}")
            else:
                first[key.value] = key.start_mark.line + 1
                self.lines[(*path, key.value)] = key.start_mark.line + 1
                mapping[key.value] = self._value(child, (*path, key.value))
        for key, child in merged:
            for source in child.value if isinstance(child, yaml.SequenceNode) else [child]:
                if not isinstance(source, yaml.MappingNode):
                    self._say(path, key, "<< takes a mapping, or a list of mappings")
                    continue
                below = self._value(source, path)
                if isinstance(below, dict):
                    mapping = below | mapping
        return mapping

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Plain:
        kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), node.value
        if kind == "str":
            return str(text)
        if kind == "null":
            return None
        if kind == "bool":
            return bool(text.lower() == "true")
        if kind in ("int", "float") and len(text) > graph_number_chars_max:
            self._say(
                path,
                node,
                f"a number of {len(text)} characters, at most {graph_number_chars_max} are read",
            )
            return 0
        if kind == "int":
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if kind == "float":
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            if not math.isfinite(number):
                self._say(path, node, f"{text} is not a number that JSON knows")
            return number
        self._say(path, node, f"the tag {node.tag} is not known here")
        return None


def out_of_bounds(root: Plain) -> tuple[Path, str] | None:
    """A place that is nested too deep, or a whole number beyond 64 bits, which nothing else that reads a
    graph could hold. None if there is none."""
    waiting: list[tuple[Path, Plain]] = [((), root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, int) and value.bit_length() > 63:
            return path, f"expected a number of at most 64 bits, found one of {value.bit_length() + 1}"
        if isinstance(value, dict | list):
            if len(path) >= graph_file_depth_max:
                return path, f"nested deeper than {graph_file_depth_max} levels"
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [((*path, at), item) for at, item in items]
    return None


def fits(value: Plain, most: int) -> bool:
    """Whether `value` as compact JSON has about `most` characters or fewer. Looks no further than that, and
    no nesting is too deep for it."""
    left, waiting = most, [value]
    while waiting and left >= 0:
        node = waiting.pop()
        if isinstance(node, dict):
            left -= 2 + sum(4 + len(key) for key in node)
            waiting += node.values()
        elif isinstance(node, list):
            left -= 2 + len(node)
            waiting += node
        elif isinstance(node, str):
            left -= 2 + len(node)
        else:
            left -= node.bit_length() // 4 + 1 if isinstance(node, int) else 4
    return left >= 0
