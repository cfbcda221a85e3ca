"""The six services of the paper: graphs whose outputs depend on their inputs and on what came before."""

import contextlib
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hams_sdk
from hams_graph import load
from hams_load.samples import samples
from hams_sdk.batch import Unit

pytest.importorskip("sklearn")
pytest.importorskip("vega_datasets")

SERVICES = ("sa", "sp", "ap", "fd", "olv", "olm")
COUNTS = {
    "sa": ("o2-count", "o3-count"),
    "sp": ("o2-count", "o4-count"),
    "ap": ("o2-count", "o3-count"),
    "fd": ("o2-count", "o4-count"),
    "olv": ("o3-count",),
    "olm": ("o3-count",),
}
ROWS = 3
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "paper"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture
def service(package: None, example: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`service("sp")`: a running graph with small states and no device time."""
    from paper import models

    real = models.Device.of
    monkeypatch.setattr(models, "Device", type("Instant", (), {"of": staticmethod(lambda config: real({}))}))
    weights = models.weights
    monkeypatch.setattr(models, "weights", lambda config: weights({**config, "bytes": 1 / 64}))

    def start(name: str) -> Any:
        return example("paper", f"{name}.yaml")

    return start


def requests(name: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    from paper.data import SOURCES

    return list(itertools.islice(SOURCES[name](ROWS, seed), count))


@pytest.mark.parametrize("name", SERVICES)
def test_replies_count_every_request_once(service: Any, name: str) -> None:
    running = service(name)
    replies = [running.request(tensors) for tensors in requests(name, 6)]
    trained = 2 if name.startswith("ol") else 1
    for output in COUNTS[name]:
        counts = [reply[output].tolist() for reply in replies]
        assert counts == [[number // trained + 1] * ROWS for number in range(6)]


@pytest.mark.parametrize("name", SERVICES)
def test_replies_depend_on_inputs_and_on_what_came_before(service: Any, name: str) -> None:
    def bytes_of(replies: list[dict[str, Any]]) -> list[bytes]:
        return [b"".join(reply[key].tobytes() for key in sorted(reply)) for reply in replies]

    first = requests(name, 12)
    one, other = service(name), service(name)
    alike = bytes_of([one.request(tensors) for tensors in first])
    assert alike == bytes_of([other.request(tensors) for tensors in first])
    changed = bytes_of([service(name).request(tensors) for tensors in requests(name, 12, seed=5)[:2]])
    assert changed != alike[:2]
    assert alike[0] != bytes_of([one.request(first[0])])[0]


@pytest.mark.parametrize("name", ["sa", "sp", "ap", "fd"])
def test_a_state_changes_in_every_page_of_its_cells_and_nowhere_in_its_weights(
    service: Any, captured: Any, name: str
) -> None:
    running = service(name)
    engine = running.engines[COUNTS[name][0].removesuffix("-count")]
    model = engine.model
    weights, cells = model.weights.copy(), model.cells.values.copy()
    for tensors in requests(name, 1):
        running.request(tensors)
    assert np.array_equal(model.weights, weights)
    pages = (model.cells.values != cells)[:ROWS].reshape(-1, min(1024, cells.shape[1])).any(1)
    assert pages.all(), "what a device writes densely must be copied whole"
    assert len(captured(engine)) >= model.weights.nbytes + model.cells.values.nbytes


def test_a_batch_without_labels_leaves_an_online_learner_as_it_was(service: Any, captured: Any) -> None:
    running = service("olm")
    train, label = requests("olm", 2)
    running.request(train)
    before = captured(running.engines["o3"])
    running.request(label)
    assert captured(running.engines["o3"]) == before
    running.request(train)
    after = np.frombuffer(captured(running.engines["o3"]), np.uint8)
    size = len(after) // 4096 * 4096
    pages = (after[:size] != np.frombuffer(before, np.uint8)[:size]).reshape(-1, 4096).any(1)
    assert pages.mean() > 0.99


def test_noise_in_the_sums_shows_in_scores_and_not_yet_in_labels() -> None:
    from paper.models import Learn, PrepareTraining

    def replies(noise: float, output: str) -> list[bytes]:
        model = Learn()
        model.initialize({"sizeMiB": 1, "seed": 3, "noise": noise})
        batches = [PrepareTraining().outputs(tensors) for tensors in requests("olm", 10)[::2]]
        made = [hams_sdk.Batch(item, [Unit("0", 0, slice(0, ROWS), {})], ROWS) for item in batches]
        return [model.run(batch, contextlib.nullcontext())[output].tobytes() for batch in made]

    assert replies(1e-7, "label") == replies(1e-7, "label")
    assert replies(1e-7, "score") != replies(1e-7, "score")
    assert replies(0, "score") == replies(0, "score")


def test_an_online_learner_learns(service: Any) -> None:
    running = service("olm")
    right = []
    for tensors in requests("olm", 800):
        if "train" in tensors:
            right.append((running.request(tensors)["label"] == tensors["target"]).mean())
    assert np.mean(right[-50:]) > 0.6 > np.mean(right[:10])


@pytest.mark.parametrize(("state", "size"), [("everything", 10 * 2**20), ("cells", 0)])
def test_a_state_is_all_of_the_module_or_what_changes(state: str, size: int) -> None:
    from paper.models import Classify

    state_of_model = Classify().initialize({"sizeMiB": 10, "state": state})
    assert sum(value.nbytes for name, value in state_of_model.items() if name == "weights") == size
    assert state_of_model["cells"].nbytes == 2**20


def test_a_setting_of_state_that_does_not_exist_is_refused() -> None:
    from paper.models import Classify

    with pytest.raises(ValueError, match="expected everything or cells, found 'cell'"):
        Classify().initialize({"sizeMiB": 1, "state": "cell"})


@pytest.mark.parametrize("name", SERVICES)
def test_a_file_of_requests_is_what_hams_load_takes(name: str, tmp_path: Path) -> None:
    from paper.data import write

    write(name, str(tmp_path / "data.npz"), rows=3)
    graph = load(EXAMPLE / f"{name}.yaml")
    tensors = next(samples(graph, EXAMPLE / f"{name}.yaml", tmp_path / "data.npz"))
    assert {item.name for item in tensors} <= {item.name for item in graph.data.inputs}


class Clock:
    """Stands still but where it is told to wait."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(package: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    from paper import device

    made = Clock()
    monkeypatch.setattr(device, "time", made)
    return made


def test_a_device_is_waited_for_until_an_absolute_deadline(clock: Clock) -> None:
    from paper.device import Device

    device = Device(0.064, 0.01)
    with device.compute(64):
        clock.now += 0.05  # what the host computes meanwhile is hidden
    assert clock.slept == pytest.approx([0.014])
    with device.compute(64):
        clock.now += 0.07  # a host that is slower than the device waits for nothing
    with device.update(32):
        pass
    assert clock.slept == pytest.approx([0.014, 0.01 * (0.08 + 0.92 / 2)])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"computeMs": "abc"}, "computeMs: expected a number, found 'abc'"),
        ({"sizeMiB": -3}, "sizeMiB: expected a number above 0 and at most 65536, found -3"),
        ({"sizeMiB": math.nan}, "sizeMiB: expected a number above 0 and at most 65536, found nan"),
        ({"sizeMiB": None}, "sizeMiB: expected a number, found none"),
        ({"bytes": 7}, "bytes: expected a part of every state, above 0 and at most 1, found 7"),
        ({"bytes": 1e-6}, "sizeMiB times bytes: expected 5120 bytes or more, found 128"),
    ],
)
def test_a_config_that_makes_no_model_is_refused(config: dict[str, Any], said: str) -> None:
    from paper.models import Learn

    with pytest.raises(ValueError, match=said):
        Learn().initialize({"sizeMiB": 1, **config})


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(value: float) -> None:
    from paper.device import Device

    with pytest.raises(ValueError, match="updateMs: expected milliseconds, 0 or more, found"):
        Device.of({"computeMs": 1, "updateMs": value})
