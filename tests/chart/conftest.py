"""The chart as helm renders it. Without helm these tests are skipped by name, never passed: `make chart`
builds one."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster.layout import cache_folder

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "hams"
Objects = list[dict[str, Any]]
Render = Callable[..., Objects]


def find_helm() -> str | None:
    """The one that `make chart` has built, or any on PATH."""
    built = cache_folder() / "bin" / "helm"
    return str(built) if built.exists() else shutil.which("helm")


@pytest.fixture(scope="session")
def helm() -> str:
    result = find_helm()
    if result is None:
        pytest.skip("no helm here: make chart builds one")
    return result


@pytest.fixture
def render(helm: str, tmp_path: Path) -> Render:
    """The objects for some values."""

    def call(values: dict[str, Any] | None = None, *options: str) -> Objects:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values or {}))
        words = [
            helm,
            "template",
            "hams",
            str(CHART),
            "--namespace",
            "hams-system",
            "--values",
            str(file),
            *options,
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
        return [item for item in yaml.safe_load_all(done.stdout) if item]

    return call
