"""How the source reads, in numbers: the bounds of lines, functions and names that every change keeps."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
"""A machine with other work parses 120,000 lines slowly."""

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("sidecar", "operator", "model-sdk")
FOLDERS = (*PRODUCT, "tests", "tools", "benchmarks", "e2e", "images", "examples")
WRITTEN_BY_PROTOC = re.compile(r"_pb2(_grpc)?\.pyi?$")

columns_max = 110
function_lines_max = 60
shared_class_names_max = 16
"""Classes of one name in two modules of the product: a reader who searches for a name wants one answer."""
found_names_max = 60
"""`found` says how a value came, and not what it is."""
VAGUE_NAMES = frozenset({"kept", "told", "noted", "torn", "look", "turned"})
vague_names_max = 15
"""Uses in the product: `MemberRecord.kept` and `Follows.kept` are in etcd, where older versions read them."""
FREE_RELATIVE = re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose|Which|Where|When)\b")
"""First words of a riddle: a docstring begins with a noun or a verb. `Whether` and `How many` say what is
returned."""
free_relatives_max = 757
"""Docstrings of the product that begin so. This bound only falls."""
PRIVATE_OF_LIBRARIES = {"os._exit", "super()._start_asgi_task"}
"""No public name does the same: the end without clean-up after a fork; uvicorn's hook before the app."""
RETIRED = "HEIR LEASH ZYGOTE MORTALITY CHRONICLE STASH INQUEST CONDEMNED".lower().split()
"""Private words that the standard ones have replaced."""


@functools.cache
def sources(*folders: str) -> dict[str, str]:
    """The text of every Python file below `folders`, or of all, by its path. Made by protoc: none."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in folders or FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not WRITTEN_BY_PROTOC.search(path.name)
    }


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in sources().items()}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every use of a name: variables, attributes, parameters, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def docstrings_in(tree: ast.AST) -> Iterator[str]:
    """Every docstring: of modules, classes and functions, and those below a variable."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from docstrings_in(node)


def functions_in(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function, however deep. Expressions are passed over: they are most of a tree, and hold none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions_in(node)


def strange_private_uses(tree: ast.Module) -> set[str]:
    """Private names of another module that a module imports or reads from an object."""
    own = {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    }
    result = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            result |= {f"{alias.name} of {node.module}" for alias in node.names if private(alias.name)}
        elif isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            used = ast.unparse(node)
            if not re.match(r"(self|cls)\._\w+$", used):
                result.add(used)
    return result


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_replace"  # a named tuple's


def test_the_sources_are_there() -> None:
    assert len(sources()) > len(sources(*PRODUCT)) > 200


def test_no_line_is_wider_than_can_be_read_beside_a_diff() -> None:
    wide = [
        f"{name}:{number}"
        for name, text in sources().items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > columns_max
    ]
    assert wide == []


def test_every_function_fits_on_a_page() -> None:
    long = [
        f"{name}: {function.name}"
        for name, tree in trees().items()
        for function in functions_in(tree)
        if (function.end_lineno or 0) - function.lineno >= function_lines_max
    ]
    assert long == []


def test_few_classes_share_a_name() -> None:
    modules = defaultdict(set)
    for name, text in sources(*PRODUCT).items():
        for declared in re.findall(r"^class (\w+)", text, re.MULTILINE):
            modules[declared].add(name)
    shared = {name: places for name, places in modules.items() if len(places) > 1}
    assert len(shared) <= shared_class_names_max, shared


def test_a_name_says_what_a_thing_is() -> None:
    trees_with = [ast.parse(text) for text in sources().values() if re.search(r"\bfound\b", text)]
    uses = sum(name == "found" for tree in trees_with for name in names_in(tree))
    assert uses <= found_names_max


def test_no_name_of_the_product_says_only_what_became_of_a_thing() -> None:
    product = {name for name in trees() if name.startswith(PRODUCT)}
    assert product
    uses = [f"{name}: {used}" for name in product for used in names_in(trees()[name]) if used in VAGUE_NAMES]
    assert len(uses) <= vague_names_max, uses


def test_few_docstrings_begin_with_a_free_relative() -> None:
    riddles = sum(
        FREE_RELATIVE.match(text.lstrip()) is not None
        for name, tree in trees().items()
        if name.startswith(PRODUCT)
        for text in docstrings_in(tree)
    )
    assert 0 < riddles <= free_relatives_max


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_stays_retired(word: str) -> None:
    assert [name for name, text in sources().items() if re.search(rf"\b{word}\b", text)] == []


def test_the_core_knows_nothing_of_mutants() -> None:
    core = sources("sidecar/hams_protocol")
    assert core
    assert [name for name, text in core.items() if re.search(r"\bmutants?\b", text, re.IGNORECASE)] == []


def test_no_module_of_the_product_reads_the_private_names_of_another() -> None:
    suspects = {
        name: text
        for name, text in sources(*PRODUCT).items()
        if re.search(r"import[^#]*\b_[a-z]|(?<!\bself)(?<!\bcls)\._[a-z]", text)
    }
    uses = {
        f"{name}: {use}" for name, text in suspects.items() for use in strange_private_uses(ast.parse(text))
    }
    assert {use for use in uses if use.partition(": ")[2] not in PRIVATE_OF_LIBRARIES} == set()


def test_the_walk_over_private_names_sees_them() -> None:
    tree = ast.parse(
        "from a import _b\nclass C:\n    def _own(self): self._x = 1\n    def f(self, o):\n"
        "        return o._own(), o._x, o._y, self._z, self.o._w"
    )
    assert strange_private_uses(tree) == {"_b of a", "o._y", "self.o._w"}
