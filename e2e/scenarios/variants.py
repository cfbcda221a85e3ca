"""Graphs that differ from an example in little, by a scenario's need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.layout import ROOT

CHAIN = ROOT / "examples" / "chain" / "graph.yaml"


def variant(folder: Path, name: str, change: Callable[[dict[str, Any]], None], of: Path = CHAIN) -> Path:
    """A file with the graph `of`, its spec changed, under another name."""
    document = yaml.safe_load(of.read_text())
    document["metadata"]["name"] = name
    change(document["spec"])
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def operator(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """One of its operators."""
    entry: dict[str, Any] = next(item for item in spec["operators"] if item["name"] == name)
    return entry
