"""Optional dependencies: every module that an extra brings is known, and a command that lacks one says so in
a sentence."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hams_operator import extras

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
OWN = {*SETTINGS["tool"]["importlinter"]["root_packages"], "hams_compiled"}
ALWAYS = {
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "prometheus_client": "prometheus-client",
    "rich": "rich",
    "typer": "typer",
    "uvloop": "uvloop",
    "yaml": "pyyaml",
}
"""Modules that every installation has, and the dependency that brings each."""

ALONG = {"pydantic": "fastapi", "starlette": "fastapi", "yarl": "aiohttp"}
"""Modules that come along with another one: where they lack, so does that."""

BLOCK = """
import sys

from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from hams_operator.cli.main import main
sys.argv[1:] = {arguments!r}
main()
"""


def imported(folder: str) -> set[str]:
    """Top-level names that the files below a folder import."""
    result: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        if "templates" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                result |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                result.add(node.module.partition(".")[0])
    return result


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", item, maxsplit=1)[0].lower() for item in requirements}


def test_every_module_that_is_imported_comes_with_all_installations_or_an_extra_that_is_known():
    result = imported("operator") | imported("sidecar")
    third = result - set(sys.stdlib_module_names) - OWN - set(ALONG)
    assert set(ALWAYS.values()) <= names(PROJECT["dependencies"])
    assert third <= set(ALWAYS) | set(extras.BRINGS), "say in extras.py which extra brings it"


def test_every_extra_that_is_named_exists_and_brings_what_is_said_of_it():
    for module, extra in extras.BRINGS.items():
        brought = names(PROJECT["optional-dependencies"][extra])
        package = {"sklearn": "scikit-learn", "grpc_reflection": "grpcio-reflection"}.get(module, module)
        if module != "torch":  # by hams-sdk[torch]
            assert package.replace("_", "-") in {name.replace("_", "-") for name in brought}, (module, extra)
    for extra, others in extras.INCLUDES.items():
        assert any(
            set(others) <= set(re.findall(r"\w+", item)) for item in PROJECT["optional-dependencies"][extra]
        )


@pytest.mark.parametrize(
    ("arguments", "missing", "sentence"),
    [
        (["status", "--namespace", "x"], "aiohttp", "hams status needs the extra [operator]"),
        (["chaos", "list"], "kubernetes", "hams chaos needs the extra [operator]"),
        (["logs", "a", "--context", "x"], "aiohttp", "hams logs needs the extra [operator]"),
        (["kill", "a", "--context", "x"], "aiohttp", "hams kill needs the extra [operator]"),
        (["up", "GRAPH"], "fastapi", "hams up needs the extra [local]"),
        (["up", "GRAPH"], "hams_sdk", "hams up needs the extra [local]"),
        (["demo"], "torch", "hams demo needs the extra [examples]"),
        (["load", "GRAPH"], "httptools", "hams load needs the extra [frontend]"),
    ],
)
def test_a_missing_extra_is_one_sentence_with_its_name(arguments, missing, sentence, tmp_path):
    graph = ROOT / "operator" / "hams_operator" / "templates" / "graph" / "graph.yaml"
    words = [str(graph) if word == "GRAPH" else word for word in arguments]
    done = subprocess.run(
        [sys.executable, "-c", BLOCK.format(names={missing}, arguments=words)],
        env={"HAMS_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"hams: {sentence}, which is not installed (no module {missing}); run: ")
    assert done.stderr.count("\n") == 1


def test_the_remedy_fits_the_installation(monkeypatch, tmp_path):
    assert extras.remedy("operator") == f"run: make -C {ROOT} setup"
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert extras.remedy("operator") == "run: pip install 'hams[operator]'"
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    assert "the wheel of hams-sdk" in extras.remedy("local")
