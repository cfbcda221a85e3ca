"""The compilation of the core: what is written out for the compiler means what the sources mean, and is used only where it fits them."""

import dataclasses
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tools import native

import hams_compiled
from hams_protocol.stateful import machine

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
    assert [(field.name, field.default) for field in dataclasses.fields(made.Value)][2][0] == "rest"
    assert dataclasses.replace(value, name="c") == made.Value("c", made.Pair(1, "x"), (7,))
    assert made.Value.__match_args__ == ("name", "pair", "rest")
    assert made.Empty() == made.Empty()
    assert made.Value("a", made.Pair(1, "x")).rest == ()


def test_a_module_without_such_classes_is_left_as_it_is() -> None:
    assert native.plain("x = 1  # one\n") == "x = 1  # one\n"


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


def test_only_a_complete_compilation_of_these_very_sources_is_used(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_tests_themselves_run_on_the_sources() -> None:
    assert machine.__file__ is not None
    assert machine.__file__.endswith(".py")


def test_sources_and_compilation_give_the_same_history() -> None:
    """One seed, both ways: the same numbers of events and effects. Without a compilation both are the sources."""
    command = [str(Path(sys.executable).with_name("hams")), "sim", "--seed", "5", "--histories", "3", "--jobs", "1", "--output", "json"]
    results = []
    for pure in ("0", "1"):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HAMS_PURE": pure}, check=True)
        results.append({key: value for key, value in json.loads(done.stdout).items() if key != "histories_per_s"})
    assert results[0] == results[1]
