"""One operator's declaration out of a ServiceGraph file, for `hams-model check`.

Reads only what a model meets: its inputs with the datatypes and shapes of what feeds them, outputs,
successors, config. The full validation of a graph is `hams validate`; what is looked at here gets an error
with its path.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hams_sdk.datatypes import NUMPY
from hams_sdk.errors import UsageError
from hams_sdk.specs import OperatorSpec, TensorSpec


def read_operator(path: Path, entrypoint: str, operator: str | None) -> OperatorSpec:
    """The operator called `operator`, or the only one of that entrypoint. Raises UsageError."""
    try:
        document = _parse(path)
        return _find(document["spec"], entrypoint, operator)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except KeyError as error:
        raise UsageError(f"{path}: no {error.args[0]}") from error
    except (TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a ServiceGraph ({error}); `hams validate` says more") from error


def _parse(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    try:
        import yaml  # noqa: PLC0415 - the SDK needs numpy only
    except ImportError as error:
        raise UsageError(
            f"{path}: reading YAML needs PyYAML (pip install hams-sdk[check]); or give a .json file"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {error}") from error


def _find(spec: Mapping[str, Any], entrypoint: str, name: str | None) -> OperatorSpec:
    operators = {str(item["name"]): item for item in spec["operators"]}
    if name is None:
        fitting = [
            key for key, item in operators.items() if item.get("model", {}).get("entrypoint") == entrypoint
        ]
        if len(fitting) != 1:
            which = (
                f"operators {', '.join(fitting)} all run {entrypoint}"
                if fitting
                else f"no operator runs {entrypoint} (operators: {', '.join(operators)})"
            )
            raise UsageError(f"{which}; say which with --operator")
        name = fitting[0]
    if name not in operators:
        raise UsageError(f'no operator "{name}"; there are {", ".join(operators)}')
    chosen = operators[name]
    sources = {"request": _tensors("spec.inputs", spec.get("inputs", []))}
    for key, item in operators.items():
        sources[key] = _tensors(f"operator {key}: outputs", item.get("outputs", []))
    inputs: dict[str, TensorSpec] = {}
    for index, item in enumerate(chosen.get("inputs", [])):
        for tensor in _input(f"operator {name}: inputs[{index}]", item, sources):
            inputs.setdefault(tensor.name, tensor)
    successors = {
        key
        for key, item in operators.items()
        for entry in item.get("inputs", [])
        if _source(entry).partition(".")[0] == name
    }
    replies = [
        source
        for item in spec.get("outputs", [])
        for source in (item["from"] if isinstance(item["from"], list) else [item["from"]])
    ]
    if any(str(source).partition(".")[0] == name for source in replies):
        successors.add("reply")
    if chosen.get("feedback"):
        successors.add("request")
    config = chosen.get("model", {}).get("config") or {}
    warm_up = chosen.get("model", {}).get("warmUp") or {}
    return OperatorSpec(
        name,
        tuple(inputs.values()),
        tuple(sources[name].values()),
        frozenset(successors),
        "stateful" in chosen,
        config,
        dict(warm_up.get("row") or {}) if warm_up.get("enabled", True) else None,
    )


def _tensors(where: str, items: Any) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for index, item in enumerate(items):
        datatype = str(item.get("datatype"))
        if datatype != "BYTES" and datatype not in NUMPY:
            raise UsageError(f"{where}[{index}]: unknown datatype {datatype!r}")
        shape = tuple(int(size) for size in item.get("shape", []))
        specs[str(item["name"])] = TensorSpec(
            str(item["name"]), datatype, shape, bool(item.get("optional")), bool(item.get("finite"))
        )
    return specs


def _source(item: Any) -> str:
    return str(item["from"] if isinstance(item, Mapping) else item)


def _input(where: str, item: Any, sources: Mapping[str, Mapping[str, TensorSpec]]) -> list[TensorSpec]:
    long = item if isinstance(item, Mapping) else {}
    upstream, _, tensor = _source(item).partition(".")
    if upstream not in sources or (tensor and tensor not in sources[upstream]):
        raise UsageError(f"{where}: nothing is called {_source(item)!r}")
    chosen = [sources[upstream][tensor]] if tensor else list(sources[upstream].values())
    return [
        TensorSpec(
            str(long.get("as", spec.name)),
            spec.datatype,
            spec.shape,
            spec.optional or bool(long.get("optional")),
            spec.finite,
        )
        for spec in chosen
    ]
