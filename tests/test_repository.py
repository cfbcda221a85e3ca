"""The repository keeps its own promises: one version, locked dependencies, frozen types, typed packages."""

import ast
import functools
import re
import sys
import tomllib
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from hams_protocol.frozen import frozen

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    "sidecar/hams_protocol",
    "sidecar/hams_schedule",
    "sidecar/hams_wire",
    "sidecar/hams_checkpoints",
    "sidecar/hams_sidecar",
    "sidecar/hams_history",
    "sidecar/hams_sim",
    "operator/hams_graph",
    "operator/hams_load",
    "operator/hams_operator",
    "model-sdk/hams_sdk",
]


def project(folder: str) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return table


def names(requirements: list[str]) -> set[str]:
    return {
        re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")
        for requirement in requirements
    }


def declared() -> set[str]:
    """Every third-party name that either project depends on, in any extra."""
    result: set[str] = set()
    for folder in (".", "model-sdk"):
        data = project(folder)
        result |= names(data["dependencies"])
        for extra in data["optional-dependencies"].values():
            result |= names(extra)
    return result - {"hams", "hams-sdk"}


def test_both_wheels_carry_the_same_version() -> None:
    assert project(".")["version"] == project("model-sdk")["version"]


def test_both_wheels_lead_to_the_same_page() -> None:
    urls = project(".")["urls"]
    assert urls == project("model-sdk")["urls"]
    assert re.fullmatch(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/\S*)?", urls["Homepage"]), urls


def test_the_model_sdk_depends_on_numpy_only() -> None:
    assert names(project("model-sdk")["dependencies"]) == {"numpy"}


def test_every_declared_dependency_is_locked() -> None:
    locked = {
        line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }
    # `make setup` installs what the lock holds, and this only who asks for it
    aside = names(project(".")["optional-dependencies"]["minilm"])
    assert declared() - aside - locked == set(), "run `make lock`"


def test_the_lock_names_versions_digests_and_no_place() -> None:
    lines = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    form = r"[a-z0-9.-]+==[A-Za-z0-9.+!-]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    assert [line for line in lines if not re.fullmatch(form, line)] == []


def test_every_declared_dependency_has_its_line_in_the_docs() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text().lower().replace("_", "-")
    assert {name for name in declared() if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_says_what_it_is(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
    assert (ROOT / package / "__init__.py").read_text().lstrip().startswith('"""')


def test_the_folders_operator_and_model_sdk_are_no_packages() -> None:
    """`operator/__init__.py` would shadow the standard library's `operator` for whoever starts Python in the
    root."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "model-sdk" / "__init__.py").exists()


def test_a_frozen_value_cannot_be_changed_in_the_tests() -> None:
    @frozen
    class Value:
        number: int

    value: Any = Value(1)
    with pytest.raises(FrozenInstanceError):
        value.number = 2


def imported_roots(tree: ast.AST) -> set[str]:
    """The top-level package of every absolute import, wherever in the module it stands."""
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            result.add(node.module.split(".")[0])
    return result


def test_the_core_imports_the_standard_library_and_itself_only() -> None:
    """The import contracts in pyproject.toml name what is forbidden; this one catches third parties nobody
    thought of."""
    foreign = {
        f"{path.name}: {root}"
        for path in sorted((ROOT / "sidecar" / "hams_protocol").rglob("*.py"))
        for root in imported_roots(ast.parse(path.read_text()))
        if root not in sys.stdlib_module_names | {"hams_protocol", "__future__"}
    }
    assert foreign == set()


def test_scheduling_imports_the_standard_library_and_immutable_values_only() -> None:
    foreign = {
        f"{path.name}: {root}"
        for path in sorted((ROOT / "sidecar" / "hams_schedule").rglob("*.py"))
        for root in imported_roots(ast.parse(path.read_text()))
        if root not in sys.stdlib_module_names | {"hams_schedule"}
    }
    assert foreign == set()


INPUT_OUTPUT = {
    "asyncio",
    "grpc",
    "kopf",
    "kubernetes",
    "os",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
    "hams_wire",
}
KUBERNETES = {"kopf", "kubernetes"}


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("hams_graph", INPUT_OUTPUT),
        ("hams_load", KUBERNETES),
        ("hams_operator/plan", INPUT_OUTPUT),
        ("hams_operator/manager", KUBERNETES),
        ("hams_operator/local", KUBERNETES),
    ],
)
def test_no_part_of_the_control_plane_reaches_beyond_its_task(folder: str, forbidden: set[str]) -> None:
    """Graphs and plans are pure; load, managers and local clusters know no Kubernetes."""
    sources = sorted((ROOT / "operator" / folder).rglob("*.py"))
    assert sources
    reached = {
        f"{path.name}: {root}"
        for path in sources
        for root in imported_roots(ast.parse(path.read_text())) & forbidden
    }
    assert reached == set()


def test_the_model_sdk_imports_numpy_and_optionally_torch_only() -> None:
    allowed = sys.stdlib_module_names | {"hams_sdk", "numpy", "torch"}
    foreign = {
        f"{path.name}: {root}"
        for path in sorted((ROOT / "model-sdk" / "hams_sdk").rglob("*.py"))
        for root in imported_roots(ast.parse(path.read_text())) - allowed
    }
    # `hams-model check` reads graph files with PyYAML where it is installed; a serving process never imports
    # it (tests/sdk/test_state.py).
    assert foreign == {"graphfile.py: yaml"}


def test_the_import_walk_sees_imports_inside_functions() -> None:
    assert imported_roots(
        ast.parse("import os.path\ndef f():\n    from numpy.linalg import det\nfrom . import x")
    ) == {"os", "numpy"}


@functools.cache
def names_read() -> frozenset[str]:
    """Every name and attribute that the product's code reads."""
    read: set[str] = set()
    for folder in PACKAGES:
        for file in (ROOT / folder).rglob("*.py"):
            for item in ast.walk(ast.parse(file.read_text())):
                if isinstance(item, ast.Attribute):
                    read.add(item.attr)
                elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load):
                    read.add(item.id)
    return frozenset(read)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_bound_binds(package: str) -> None:
    """A bound is a name in a `limits.py`, or one in lower case in the module of what it bounds."""
    declared_here = {
        name.id
        for file in (ROOT / package).rglob("*.py")
        for statement in ast.parse(file.read_text()).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for name in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(name, ast.Name) and (name.id[0].islower() or file.name == "limits.py")
    }
    assert declared_here
    assert declared_here - names_read() == set(), "used by nothing"


MEASURED_WITH = re.compile(
    r"\b(paper[./](models|device|real|nets|state)|computeMs|updateMs|sizeMiB|VGG|MobileNet|"
    r"Inception|DeconvLSTM|OLV|OLM)"
)
"""Words of the services and devices that the product is measured with."""


@pytest.mark.parametrize("package", PACKAGES)
def test_the_product_knows_no_service_and_no_device_that_it_is_measured_with(package: str) -> None:
    """No flag, hook or branch for a benchmark: what is measured is what users run."""
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert [file.name for file in files if MEASURED_WITH.search(file.read_text())] == []


def test_the_words_that_the_product_must_not_know_are_those_of_the_examples() -> None:
    folder = ROOT / "examples" / "paper"
    used = "\n".join(file.read_text() for file in [*folder.glob("*.yaml"), *folder.glob("paper/*.py")])
    assert {word[0] for word in MEASURED_WITH.findall(used)} >= {
        "paper.models",
        "computeMs",
        "updateMs",
        "sizeMiB",
        "VGG",
        "MobileNet",
        "Inception",
        "DeconvLSTM",
    }
