"""The fresh process of `hams-model check`: load a captured state, go on with the next batches, say what came
out.

`python -m hams_sdk.replay FOLDER`. Reads `plan.json`, `image` and `inputs.npz`, writes `answer.json`,
`outputs-{0,1}.npz` and `image-after`. Batches run twice from the same image, so that the caller can tell
chance from forgotten state.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hams_sdk.datatypes import Array, encode_bytes
from hams_sdk.engine import Engine, UnitInput, UnitOutput, load_model
from hams_sdk.fingerprint import fingerprint
from hams_sdk.specs import OperatorSpec

BatchInputs = list[UnitInput]


def save_batches(path: Path, spec: OperatorSpec, batches: list[BatchInputs]) -> list[list[dict[str, Any]]]:
    """Write the arrays of batches to an .npz; returns what JSON needs to know of them. BYTES go encoded, not
    pickled."""
    arrays: dict[str, Array] = {}
    index: list[list[dict[str, Any]]] = []
    for number, batch in enumerate(batches):
        index.append([])
        for place, unit in enumerate(batch):
            shapes: list[list[int] | None] = []
            for item, array in zip(spec.inputs, unit.arrays, strict=True):
                shapes.append(None if array is None else list(array.shape))
                if array is not None:
                    raw = (
                        np.frombuffer(encode_bytes(array.ravel().tolist()), dtype=np.uint8)
                        if item.datatype == "BYTES"
                        else array
                    )
                    arrays[f"{number}/{place}/{item.name}"] = raw
            index[-1].append(
                {"id": unit.id, "rows": unit.rows, "shapes": shapes, "parameters": dict(unit.parameters)}
            )
    with path.open("wb") as file:
        # numpy's stub takes no names that are no identifiers.
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return index


def load_batches(path: Path, spec: OperatorSpec, index: list[list[dict[str, Any]]]) -> list[BatchInputs]:
    """The inverse of `save_batches`."""
    from hams_sdk.datatypes import read_tensor  # noqa: PLC0415

    batches: list[BatchInputs] = []
    with np.load(path, allow_pickle=False) as arrays:
        for number, batch in enumerate(index):
            units: BatchInputs = []
            for place, unit in enumerate(batch):
                inputs: list[Array | None] = []
                for item, shape in zip(spec.inputs, unit["shapes"], strict=True):
                    if shape is None:
                        inputs.append(None)
                    else:
                        inputs.append(
                            read_tensor(
                                memoryview(arrays[f"{number}/{place}/{item.name}"]).cast("B"),
                                item.datatype,
                                tuple(shape),
                            )
                        )
                units.append(UnitInput(unit["id"], unit["rows"], inputs, unit["parameters"]))
            batches.append(units)
    return batches


def outputs_of(spec: OperatorSpec, results: list[list[UnitOutput] | str]) -> dict[str, Array]:
    """Outputs of batches as named byte arrays, to be compared."""
    outputs: dict[str, Array] = {}
    for number, result in enumerate(results):
        if isinstance(result, str):
            outputs[f"batch {number}"] = np.frombuffer(result.encode(), dtype=np.uint8)
            continue
        for place, unit in enumerate(result):
            said = f"{unit.route} {unit.error} {unit.refused}".encode()
            outputs[f"batch {number}, unit {place}"] = np.frombuffer(said, dtype=np.uint8)
            for item, (_, content) in zip(spec.outputs, unit.tensors, strict=False):
                raw = content if isinstance(content, bytes) else np.ascontiguousarray(content).tobytes()
                outputs[f"batch {number}, unit {place}, {item.name}"] = np.frombuffer(raw, dtype=np.uint8)
    return outputs


def run_all(engine: Engine, batches: list[BatchInputs]) -> list[list[UnitOutput] | str]:
    """Run batches, every boundary open. The outputs are copies."""
    results: list[list[UnitOutput] | str] = []
    for batch in batches:
        result = engine.run(batch, lambda: None)
        if result.units is not None:
            for unit in result.units:
                unit.tensors = [
                    (shape, content if isinstance(content, bytes) else content.copy())
                    for shape, content in unit.tensors
                ]
        results.append(result.units if result.units is not None else result.message)
    return results


def image_of(engine: Engine) -> bytearray:
    """The state, captured."""
    memory = bytearray()

    def space(nbytes: int) -> memoryview:
        memory.extend(bytes(nbytes))
        return memoryview(memory)

    engine.state.capture(space)
    return memory


def main(folder: Path) -> None:
    """Replay what lies in `folder`."""
    plan = json.loads((folder / "plan.json").read_text())
    sys.path[:0] = plan["path"]
    spec = OperatorSpec.parse(plan["operator"])
    engine = Engine(load_model(plan["entrypoint"]), spec)
    engine.initialize()
    image = memoryview(bytearray((folder / "image").read_bytes()))
    answer: dict[str, Any] = {"error": None}
    for attempt in (0, 1):
        if spec.stateful:
            started = time.perf_counter()
            try:
                engine.load(image)
            except Exception as error:  # noqa: BLE001 - `set` and `load_state_dict` are the model's code
                answer["error"] = f"{type(error).__name__}: {error}"
                break
            if attempt == 0:
                answer["load_s"] = time.perf_counter() - started
                answer["fingerprint"] = fingerprint(engine.model)
                (folder / "image-after").write_bytes(image_of(engine))
        batches = load_batches(folder / "inputs.npz", spec, plan["batches"])
        with (folder / f"outputs-{attempt}.npz").open("wb") as file:
            np.savez(file, **outputs_of(spec, run_all(engine, batches)))  # type: ignore[arg-type]
    (folder / "answer.json").write_text(json.dumps(answer))


def operator_json(spec: OperatorSpec) -> dict[str, Any]:
    """The JSON that `OperatorSpec.parse` reads."""
    return {
        **asdict(spec),
        "successors": sorted(spec.successors),
        "config": dict(spec.config),
        "warm_up": None,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
