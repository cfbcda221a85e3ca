"""The compilation of the core: what is written out for the compiler means what the sources mean, and is used
only where it fits them."""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools import machine_code, native

import hams_compiled
from hams_protocol.stateful import machine
from hams_sim.simulate import HistoryOutcome, Spec
from hams_sim.worker import outcome_to
from hams_sim.workers import Worker

SIDECAR = Path(hams_compiled.__file__).parent


def test_no_star_stands_on_the_right_side_of_in() -> None:
    """`x in (*a, b)` ends mypyc with an internal error, and nobody notices before the next compilation."""
    for path in (SIDECAR / "hams_protocol").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(
                isinstance(item, ast.In | ast.NotIn) for item in node.ops
            ):
                stars = [item for side in node.comparators for item in getattr(side, "elts", ())]
                assert not any(isinstance(item, ast.Starred) for item in stars), f"{path.name}:{node.lineno}"


def _classes(package: str) -> dict[str, ast.ClassDef]:
    """All classes at the top of a package's modules, by name."""
    return {
        node.name: node
        for path in (SIDECAR / package).rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def _attributes(cls: ast.ClassDef, declared: bool) -> set[str]:
    """Attributes that a class assigns, in its body or through `self`; `declared`: those with a type only."""
    targets: list[ast.expr] = []
    for node in ast.walk(cls):
        if isinstance(node, ast.AnnAssign):
            targets.append(node.target)
        elif isinstance(node, ast.Assign) and not declared:
            targets += node.targets
    of_self = {
        node.attr
        for node in targets
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    in_body = {
        item.target.id
        for item in cls.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return of_self | in_body


def test_no_class_of_the_simulator_declares_an_attribute_of_its_base_anew() -> None:
    """mypyc refuses another type there, and nobody notices before the next compilation."""
    classes = _classes("hams_sim")
    for name, cls in classes.items():
        bases = [item.id for item in cls.bases if isinstance(item, ast.Name)]
        while bases:
            base = classes.get(bases.pop())
            if base is not None:
                assert not _attributes(cls, True) & _attributes(base, False), f"{name} of {base.name}"
                bases += [item.id for item in base.bases if isinstance(item, ast.Name)]


SOURCE = '''"""A module."""

from typing import NamedTuple

from hams_protocol.frozen import frozen


class Pair(NamedTuple):
    """Two."""

    left: int
    right: str


@frozen
class Value:
    """A value."""

    name: str
    pair: Pair
    rest: tuple[int, ...] = ()

    def first(self) -> int:
        """The first."""
        return self.rest[0]


@frozen
class Empty:
    """Nothing in it."""
'''


def _module(source: str) -> types.ModuleType:
    made = types.ModuleType("written")
    sys.modules["written"] = made  # annotations are resolved in the module of their class
    exec(compile(source, "written", "exec"), made.__dict__)
    return made


def test_what_is_written_out_behaves_like_the_source() -> None:
    made = _module(native.plain(SOURCE))
    value = made.Value("a", made.Pair(1, "x"), (7,))
    assert value.first() == 7
    assert value == made.Value("a", made.Pair(1, "x"), (7,)) != made.Value("b", made.Pair(1, "x"), (7,))
    assert hash(value) == hash(made.Value("a", made.Pair(1, "x"), (7,)))
    assert repr(value) == "Value(name='a', pair=Pair(left=1, right='x'), rest=(7,))"
    assert dataclasses.is_dataclass(made.Value)
    assert [(field.name, field.default) for field in dataclasses.fields(made.Value)] == [
        ("name", dataclasses.MISSING),
        ("pair", dataclasses.MISSING),
        ("rest", ()),
    ]
    assert dataclasses.replace(value, name="c") == made.Value("c", made.Pair(1, "x"), (7,))
    assert made.Value.__match_args__ == ("name", "pair", "rest")
    assert made.Empty() == made.Empty()
    assert made.Value("a", made.Pair(1, "x")).rest == ()


def test_a_module_without_such_classes_is_left_as_it_is() -> None:
    assert native.plain("x = 1  # one\n") == "x = 1  # one\n"


WIRE = ("tests/wire/test_peers_codec.py", "tests/wire/test_versions.py", "tests/wire/test_spec.py")
"""What depends on the marks of the core's classes, beside the core."""
SCHEDULE = (
    "calibration",
    "distribution",
    "ordering",
    "pending",
    "profile",
    "score",
    "serving",
    "shapes",
    "speed",
    "stored",
)
"""Tests of policies that make no class of their own of a compiled one. The compiler takes liberties with
numbers: `sum(...) / sum(...)` was a TypeError, and so was an integer where a float is declared."""


def compilation() -> Path | None:
    """The compilation of these sources, if this machine has one."""
    made = hams_compiled.folder() / hams_compiled.digest(SIDECAR)
    return made if (made / ".complete").is_file() else None


@pytest.fixture(params=["written out", "machine code"])
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that holds the core in the form that the compiler is given, or in the one that it made."""
    if request.param == "machine code":
        made = compilation()
        if made is None:
            pytest.skip("nothing is compiled here: tools/compile.py")
        return made
    for path in hams_compiled.sources(SIDECAR):
        copy = tmp_path / path.relative_to(SIDECAR)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(native.plain(path.read_text(encoding="utf-8")), encoding="utf-8")
    return tmp_path


def test_every_class_of_the_core_has_the_defaults_of_its_source(form: Path) -> None:
    """Of each field of each class: both forms say the same, so both fill in the same for a neighbour that
    does not send it."""
    tell = (
        "import dataclasses, importlib, json, sys; import hams_protocol.messages as m\n"
        "assert m.__file__.startswith(sys.argv[1]), m.__file__\n"
        "found = {}\n"
        "for name in sys.argv[2:]:\n"
        "    module = importlib.import_module(name)\n"
        "    for cls in vars(module).values():\n"
        "        if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == name:\n"
        "            found[name + '.' + cls.__name__] = [[f.name, repr(f.default)] for f in "
        "dataclasses.fields(cls)]\n"
        "print(json.dumps(found))"
    )
    names = [
        ".".join(path.relative_to(SIDECAR).with_suffix("").parts)
        for path in hams_compiled.sources(SIDECAR)
        if path.stem not in ("__init__", "frozen")
    ]
    reports = []
    for folder in (form, SIDECAR):
        done = subprocess.run(
            [sys.executable, "-c", tell, str(folder), *names],
            capture_output=True,
            text=True,
            env={**os.environ, "HAMS_PURE": "1", "PYTHONPATH": str(folder)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        reports.append(json.loads(done.stdout.replace("<dataclasses._MISSING_TYPE object", "<MISSING")))
    assert len(reports[0]) > 100
    strip = re.compile(r" at 0x[0-9a-f]+")
    assert strip.sub("", json.dumps(reports[0])) == strip.sub("", json.dumps(reports[1]))


@pytest.mark.parametrize(
    "files", [WIRE, [f"tests/schedule/test_{name}.py" for name in SCHEDULE]], ids=["wire", "schedule"]
)
def test_tests_pass_on_the_other_form_of_the_core(form: Path, files: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        cwd=SIDECAR.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "HAMS_PURE": "1", "PYTHONPATH": str(form), "HAMS_TEST_CORE": str(form)},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in hams_compiled.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    return tmp_path


def test_a_changed_source_is_another_compilation(tree: Path) -> None:
    before = hams_compiled.digest(tree)
    assert hams_compiled.digest(tree) == before
    (tree / "hams_protocol" / "__init__.py").write_text("x = 1\n")
    assert hams_compiled.digest(tree) != before


def test_only_a_complete_compilation_of_these_very_sources_is_used(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "compiled"
    monkeypatch.setattr(hams_compiled, "folder", lambda: home)
    monkeypatch.setattr(sys, "path", [str(tree)])
    monkeypatch.delenv("HAMS_PURE", raising=False)
    assert hams_compiled.activate() is None
    made = home / hams_compiled.digest(tree)
    made.mkdir(parents=True)
    assert hams_compiled.activate() is None, "not complete"
    (made / ".complete").touch()
    monkeypatch.setenv("HAMS_PURE", "1")
    assert hams_compiled.activate() is None, "switched off"
    monkeypatch.delenv("HAMS_PURE")
    assert hams_compiled.activate() == str(made)
    assert sys.path == [str(made), str(tree)]
    hams_compiled.deactivate()
    assert sys.path == [str(tree)]


def test_only_a_complete_simulator_of_these_very_sources_beside_their_core_is_used(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, home = tmp_path / "compiled", tmp_path / "compiled-simulator"
    monkeypatch.setattr(hams_compiled, "folder", lambda: core)
    monkeypatch.setattr(hams_compiled, "simulator_folder", lambda: home)
    monkeypatch.delenv("HAMS_PURE", raising=False)
    (tree / "hams_wire").mkdir()
    shell = tree / "hams_wire" / "shell.py"
    shell.write_text("")
    names = hams_compiled.digest(tree), hams_compiled.digest(tree, hams_compiled.SIMULATED)
    stamps = core / names[0] / ".complete", home / names[1] / ".complete"
    assert hams_compiled.simulator(tree) is None
    for stamp in stamps:
        stamp.parent.mkdir(parents=True)
    stamps[0].touch()
    assert hams_compiled.simulator(tree) is None, "not complete"
    stamps[1].touch()
    assert hams_compiled.simulator(tree) == str(home / names[1])
    stamps[0].unlink()
    assert hams_compiled.simulator(tree) is None, "its core is not compiled"
    stamps[0].touch()
    monkeypatch.setenv("HAMS_PURE", "1")
    assert hams_compiled.simulator(tree) is None, "switched off"
    monkeypatch.delenv("HAMS_PURE")
    shell.write_text("x = 1\n")
    assert hams_compiled.digest(tree) == names[0], "histories are named by their core alone"
    assert hams_compiled.simulator(tree) is None, "an edited shell is another simulator"


ANSWERS = """
import sys
from hams_sim import another

for line in sys.stdin:
    print(another.ANSWER, flush=True)
"""


def test_simulating_processes_run_the_compiled_simulator_and_those_of_mutants_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(1, "single")
    (tmp_path / "hams_sim").mkdir()
    (tmp_path / "hams_sim" / "__init__.py").touch()
    (tmp_path / "hams_sim" / "worker.py").write_text(ANSWERS)
    answer = outcome_to(HistoryOutcome(spec, what="the compiled one"))
    (tmp_path / "hams_sim" / "another.py").write_text(f"ANSWER = {answer!r}\n")
    monkeypatch.setattr(hams_compiled, "simulator", lambda root: str(tmp_path))
    for sources, what in ((False, "the compiled one"), (True, "")):
        worker = Worker(sources)
        assert worker.run(spec).what == what
        worker.close()


def test_the_tests_themselves_run_on_the_sources() -> None:
    assert machine.__file__ is not None
    assert machine.__file__.endswith(".py")


def test_sources_and_compilation_give_the_same_history() -> None:
    """Some seeds, both ways: the same numbers of events and effects. Without a compilation both are the
    sources; with one of the simulator, that is compared as well."""
    command = [
        str(Path(sys.executable).with_name("hams")),
        "sim",
        "--seed",
        "5",
        "--histories",
        "3",
        "--jobs",
        "1",
        "--output",
        "json",
    ]
    results = []
    for pure in ("0", "1"):
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "HAMS_PURE": pure}, check=True
        )
        results.append(
            {key: value for key, value in json.loads(done.stdout).items() if key != "histories_per_s"}
        )
    assert results[0] == results[1]


def test_a_compilation_that_a_wheel_brought_is_used_like_one_that_was_made_here(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = tmp_path / hams_compiled.IN_WHEEL
    monkeypatch.setattr(hams_compiled, "folders", lambda: (tmp_path / "none", brought))
    monkeypatch.setattr(sys, "path", [str(tree)])
    monkeypatch.delenv("HAMS_PURE", raising=False)
    made = brought / hams_compiled.digest(tree)
    made.mkdir(parents=True)
    (made / ".complete").touch()
    assert hams_compiled.activate() == str(made)
    hams_compiled.deactivate()
    (tree / "hams_protocol" / "__init__.py").write_text("x = 1\n")
    assert hams_compiled.activate() is None, "an edited installation runs its sources"


def test_a_wheel_carries_no_compilation_of_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).resolve().parents[1]
    hook = machine_code.MachineCode(str(root), {}, None, None, str(tmp_path), "wheel")
    data = {"force_include": {}}
    hook.initialize("standard", data)
    assert data == {"force_include": {}}, "pure without being asked"
    other = tmp_path / "0123456789abcdef"
    other.mkdir()
    (other / ".complete").touch()
    monkeypatch.setenv("HAMS_MACHINE_CODE", str(other))
    with pytest.raises(ValueError, match="expected a whole compilation of these sources"):
        hook.initialize("standard", data)
    made = tmp_path / hams_compiled.digest(root / "sidecar")
    (made / "hams_protocol").mkdir(parents=True)
    (made / "hams_protocol" / "graph.so").touch()
    monkeypatch.setenv("HAMS_MACHINE_CODE", str(made))
    with pytest.raises(ValueError, match="expected a whole compilation"):
        hook.initialize("standard", data)
    (made / ".complete").touch()
    hook.initialize("standard", data)
    inside = set(data["force_include"].values())
    assert {f"hams_machine_code/{made.name}/hams_protocol/graph.so", "hams_compiled.pth"} <= inside
    assert data["tag"].endswith(f"-manylinux_2_17_{os.uname().machine}")


def test_a_wheel_says_which_glibc_its_machine_code_needs(tmp_path: Path) -> None:
    machine = os.uname().machine
    module = tmp_path / "hams_protocol" / "graph.so"
    module.parent.mkdir()
    module.write_bytes(b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.34\0")
    assert machine_code.platform_of(tmp_path) == f"manylinux_2_34_{machine}"
    for other in (b"libssl.so.3", b"libc.musl-x86_64.so.1"):
        module.write_bytes(b"\0libc.so.6\0" + other + b"\0GLIBC_2.2.5\0")
        assert machine_code.platform_of(tmp_path) == f"linux_{machine}", "runs only where that library is"


def _of_the_tool(expression: str) -> str:
    """What an expression over the names of tools/compile.py is there."""
    tools = Path(native.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", f"from compile import *\nfrom compile import _taken\nprint({expression})"],
        cwd=tools,
        env={**os.environ, "PYTHONPATH": str(tools)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_flags_that_the_compiler_does_not_take_are_left_out() -> None:
    assert _of_the_tool("_taken(['false'])") == "()"
    assert _of_the_tool("_taken(['true']) == FLAGS") == "True"


@pytest.mark.parametrize(("module", "is_compiled"), [("json", False), ("numpy.linalg._umath_linalg", True)])
def test_a_module_that_was_not_compiled_is_no_compilation(module: str, is_compiled: bool) -> None:
    """A linker may leave out what it does not understand, and end as if all were well."""
    check = _of_the_tool("CHECK")
    done = subprocess.run([sys.executable, "-c", check, module], capture_output=True, check=False)
    assert (done.returncode == 0) is is_compiled, done.stderr
