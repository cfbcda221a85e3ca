"""What a mutant is: a rule of the protocol that a hasty implementer would leave out, and the edits of the
core's sources that leave it out.

The core knows nothing of mutants. An edit names a function and replaces some text in it, which must be there
exactly once: a change of a rule changes its mutants too, or a test says so. The edited function is compiled,
and its code takes the place of the original's (`on`), so every reference to the function sees it. That works
with the core's sources alone, not with its machine code (HAMS_PURE=1).
"""

import ast
import importlib
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType


class MutantError(Exception):
    """A mutant cannot be switched on: its function or its text is not there, or the core is machine code."""


@dataclass(frozen=True)
class Edit:
    """In `function` of the core's `module`, e.g. `Vertex.deliver` of `vertex`, the text `old` becomes `new`.

    Both are whole lines whose common indentation is left out, or a part of one line.
    """

    module: str
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """`rule`: what it does wrong, as a sentence. `section`: of protocol.md, where the rule stands."""

    rule: str
    section: str
    edits: tuple[Edit, ...]


class Switch:
    """What is switched on now."""

    def __init__(self) -> None:
        self._originals: list[tuple[FunctionType, CodeType]] = []

    def on(self, edits: Iterable[Edit]) -> None:
        """Make these edits, in place of those made before. Raises MutantError."""
        self.off()
        functions: dict[tuple[str, str], list[Edit]] = {}
        for edit in edits:
            functions.setdefault((edit.module, edit.function), []).append(edit)
        for (name, qualified), of_function in functions.items():
            module = importlib.import_module(f"hams_protocol.{name}")
            function = function_of(module, qualified)
            self._originals.append((function, function.__code__))
            function.__code__ = code_of(module, qualified, edited(module, qualified, of_function))

    def off(self) -> None:
        """The core is as it is written."""
        for function, code in self._originals:
            function.__code__ = code
        self._originals.clear()


def function_of(module: ModuleType, qualified: str) -> FunctionType:
    """The function of that qualified name; of a property the one that reads it."""
    owner: object = module
    value: object = None
    for part in qualified.split("."):
        value = vars(owner).get(part)
        owner = value
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod):
        value = value.__func__
    if not isinstance(value, FunctionType):
        raise MutantError(
            f"expected a function {qualified} in {module.__name__} that is not compiled (HAMS_PURE=1), found"
            f" {type(value).__name__}"
        )
    return value


def edited(module: ModuleType, qualified: str, edits: Iterable[Edit]) -> str:
    """The module's source with these edits of one function."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    lines = source.splitlines()
    node = _definition(ast.parse(source), qualified, module.__name__)
    text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    for edit in edits:
        text = _replaced(text, edit)
    return "\n".join([*lines[: node.lineno - 1], text, *lines[node.end_lineno or 0 :]]) + "\n"


def code_of(module: ModuleType, qualified: str, source: str) -> CodeType:
    """The code of a function in a changed source of its module."""
    waiting = [compile(source, str(module.__file__), "exec")]
    while waiting:
        code = waiting.pop()
        if code.co_qualname == qualified:
            return code
        waiting += [item for item in code.co_consts if isinstance(item, CodeType)]
    raise MutantError(f"{module.__name__} has no function {qualified}")


def _definition(tree: ast.Module, qualified: str, module: str) -> ast.FunctionDef | ast.ClassDef:
    node_of_name: ast.Module | ast.FunctionDef | ast.ClassDef = tree
    for part in qualified.split("."):
        inner = [
            node
            for node in node_of_name.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        if len(inner) != 1:
            raise MutantError(f"expected one {qualified} in {module}, found {len(inner)}")
        node_of_name = inner[0]
    assert not isinstance(node_of_name, ast.Module), "a qualified name has a part"
    return node_of_name


def _replaced(text: str, edit: Edit) -> str:
    """With `old` as whole lines at some indentation, or else as a part of a line."""
    places: list[tuple[str, str]] = []
    for indent in {line[: len(line) - len(line.lstrip())] for line in text.splitlines()}:
        old, new = textwrap.indent(edit.old, indent), textwrap.indent(edit.new, indent)
        places += [(f"\n{old}\n", f"\n{new}\n")] * f"\n{text}\n".count(f"\n{old}\n")
    if not places:
        places = [(edit.old, edit.new)] * text.count(edit.old)
    if len(places) != 1:
        raise MutantError(
            f"expected the text of a mutant once in {edit.function} of {edit.module}, found it {len(places)}"
            f" times: {edit.old!r}"
        )
    old, new = places[0]
    return f"\n{text}\n".replace(old, new).strip("\n")
