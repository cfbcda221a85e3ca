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
        if document is None:
            raise UsageError("is empty; expected one ServiceGraph")
        if not isinstance(document, Mapping):
            raise UsageError(f"expected a ServiceGraph, found {_shown(document)}")
        return _find(_mapping("spec", _needed("", document, "spec")), entrypoint, operator)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path}: not a ServiceGraph ({error}); `hams validate` says more") from error


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"not JSON: {error.msg} (line {error.lineno})") from error
    try:
        import yaml  # noqa: PLC0415 - the SDK needs numpy only
    except ImportError as error:
        raise UsageError(
            "reading YAML needs PyYAML (pip install hams-sdk[check]); or give a .json file"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark is not None else ""
        raise UsageError(f"not YAML: {error.problem}{line}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"not YAML: {' '.join(str(error).split())}") from error


def _shown(value: Any) -> str:
    if isinstance(value, list) and value:
        return "a list"
    if isinstance(value, Mapping) and value:
        return "a mapping"
    return json.dumps(value, default=str)


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: expected a mapping, found {_shown(value)}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: expected a list, found {_shown(value)}")
    return value


def _needed(where: str, item: Mapping[str, Any], field: str) -> Any:
    if field not in item:
        raise UsageError(f"{where}{'.' if where else ''}{field}: is missing")
    return item[field]


def _find(spec: Mapping[str, Any], entrypoint: str, name: str | None) -> OperatorSpec:
    operators: dict[str, Mapping[str, Any]] = {}
    places: dict[str, str] = {}
    for index, item in enumerate(_list("spec.operators", _needed("spec", spec, "operators"))):
        where = f"spec.operators[{index}]"
        key = str(_needed(where, _mapping(where, item), "name"))
        model = _mapping(f"{where}.model", item.get("model") or {})
        for part in ("config", "warmUp"):
            _mapping(f"{where}.model.{part}", model.get(part) or {})
        for part in ("inputs", "outputs"):
            _list(f"{where}.{part}", item.get(part, []))
        operators[key], places[key] = item, where
    for index, item in enumerate(_list("spec.outputs", spec.get("outputs", []))):
        _needed(f"spec.outputs[{index}]", _mapping(f"spec.outputs[{index}]", item), "from")
    if name is None:
        name = _only_user_of(entrypoint, operators)
    if name not in operators:
        raise UsageError(f'no operator "{name}"; there are {", ".join(operators)}')
    chosen = operators[name]
    sources = {"request": _tensors("spec.inputs", spec.get("inputs", []))}
    for key, item in operators.items():
        sources[key] = _tensors(f"{places[key]}.outputs", item.get("outputs", []))
    inputs: dict[str, TensorSpec] = {}
    for index, item in enumerate(chosen.get("inputs", [])):
        for tensor in _input(f"{places[name]}.inputs[{index}]", item, sources):
            inputs.setdefault(tensor.name, tensor)
    config = chosen.get("model", {}).get("config") or {}
    warm_up = chosen.get("model", {}).get("warmUp") or {}
    return OperatorSpec(
        name,
        tuple(inputs.values()),
        tuple(sources[name].values()),
        frozenset(_successors(spec, operators, name)),
        "stateful" in chosen,
        config,
        dict(warm_up.get("row") or {}) if warm_up.get("enabled", True) else None,
    )


def _only_user_of(entrypoint: str, operators: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the one operator that runs `entrypoint`."""
    entrypoints = {key: (item.get("model") or {}).get("entrypoint") for key, item in operators.items()}
    fitting = [key for key, other in entrypoints.items() if other == entrypoint]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{key} runs {other}" for key, other in entrypoints.items())
    which = (
        f"operators {', '.join(fitting)} all run {entrypoint}"
        if fitting
        else f"no operator runs {entrypoint}; {there}"
    )
    raise UsageError(f"{which}; say which with --operator")


def _successors(spec: Mapping[str, Any], operators: Mapping[str, Mapping[str, Any]], name: str) -> set[str]:
    """The names by which the outputs of operator `name` may be routed: operators, `reply` and `request`."""
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
    if operators[name].get("feedback"):
        successors.add("request")
    return successors


def _tensors(where: str, items: Any) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for index, item in enumerate(_list(where, items)):
        place = f"{where}[{index}]"
        name = str(_needed(place, _mapping(place, item), "name"))
        datatype = str(item.get("datatype"))
        if datatype != "BYTES" and datatype not in NUMPY:
            raise UsageError(f"{place}: unknown datatype {datatype!r}")
        shape = _list(f"{place}.shape", item.get("shape", []))
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                raise UsageError(f"{place}.shape[{axis}]: expected a number, found {_shown(size)}")
        specs[name] = TensorSpec(
            name, datatype, tuple(shape), bool(item.get("optional")), bool(item.get("finite"))
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
            # where a request leaves its tensor out, an input that is not is skipped
            bool(long.get("optional")),
            spec.finite,
        )
        for spec in chosen
    ]
