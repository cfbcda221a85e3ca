"""The architectures of the paper's services: as large as they must be, and the same service with them."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "paper"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.parametrize(
    ("name", "parameters", "mib"),
    [
        ("VGG19", 143_667_240, 548.05),
        ("MobileNetV2", 3_504_872, 13.37),
        ("InceptionV3", 23_834_568, 90.92),
    ],
)
def test_the_three_networks_have_exactly_their_parameters(name: str, parameters: int, mib: float) -> None:
    from paper import nets

    with torch.device("meta"):
        net = getattr(nets, name)()
    assert nets.parameters_of(net) == parameters
    assert 4 * parameters / 2**20 == pytest.approx(mib, abs=0.01)


@pytest.mark.parametrize(
    "name", ["sa-o1", "sa-o2", "sa-o3", "sp-o2", "sp-o4", "ap-o2", "ap-o3", "fd-o2", "fd-o4"]
)
def test_recurrent_networks_are_as_large_as_the_papers(name: str) -> None:
    from paper import nets

    with torch.device("meta"):
        net = nets.recurrent(name)
    size = 4 * nets.parameters_of(net) / 2**20
    tolerance = 0.05 if isinstance(net, nets.DeconvLSTM) else 0.01
    assert size == pytest.approx(nets.SIZES_MIB[name], rel=tolerance)


@pytest.mark.parametrize("service", ["sa", "sp", "ap", "fd"])
def test_graph_files_name_the_networks_and_their_sizes(service: str) -> None:
    from paper import nets

    graph = yaml.safe_load((EXAMPLE / f"{service}.yaml").read_text())
    for operator in graph["spec"]["operators"]:
        config = operator["model"]["config"]
        if "stateful" in operator:
            assert config["net"] == f"{service}-{operator['name']}"
            assert config["sizeMiB"] == nets.SIZES_MIB[config["net"]]


def test_a_deconv_lstm_keeps_the_cells_that_the_emulated_one_does() -> None:
    from paper import nets, state

    with torch.device("meta"):
        net = nets.recurrent("ap-o2")
    values = 2 * net.layers * net.channels * net.SIDE**2
    assert 4 * values == pytest.approx(state.CELL_BYTES["deconv"], rel=0.05)


def real(tmp_path: Path, service: str, config: dict[str, Any]) -> Path:
    """The graph of a service with real models, in a folder where they are."""
    graph = yaml.safe_load((EXAMPLE / f"{service}.yaml").read_text())
    for operator in graph["spec"]["operators"]:
        model = operator["model"]
        model["entrypoint"] = model["entrypoint"].replace("paper.models", "paper.real")
        model["config"] |= {"computeMs": 0, "updateMs": 0, "rows": 1} | config
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


@pytest.mark.parametrize("service", ["sp", "olm"])
def test_a_service_with_real_networks_counts_and_answers_as_the_emulated_one(
    service: str, example: Any, tmp_path: Path
) -> None:
    from paper.data import SOURCES

    running = example("paper", str(real(tmp_path, service, {})))
    emulated = example("paper", f"{service}.yaml")
    for tensors in itertools.islice(SOURCES[service](1, 0), 2):
        reply, other = running.request(tensors), emulated.request(tensors)
        assert {name: value.shape for name, value in reply.items()} == {
            name: value.shape for name, value in other.items()
        }
        for name in reply:
            if name.endswith("count"):
                assert np.array_equal(reply[name], other[name])


def test_a_stage_of_a_real_learner_ends_when_its_device_has_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    from paper import real

    import hams_sdk
    from hams_sdk.batch import Unit

    stages: list[str] = []
    monkeypatch.setattr(real, "done", lambda: stages.append("done"))
    model = real.Learn()
    model.initialize({"net": "mobilenet", "seed": 1})
    tensors = {"frame": np.zeros((1, 32, 32), np.float32), "label": np.ones(1, np.int64)}
    batch = hams_sdk.Batch(tensors, [Unit("0", 0, slice(0, 1), {})], 1)

    @contextlib.contextmanager
    def update() -> Iterator[None]:
        stages.append("update begins")
        yield
        stages.append("update ends")

    model.run(batch, update())
    assert stages == ["done", "update begins", "done", "update ends"]


def test_where_there_is_no_gpu_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from paper import real

    waited: list[str] = []
    stream = type("Stream", (), {"synchronize": lambda self: waited.append("stream")})
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    real.done()
    assert waited == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    real.done()
    assert waited == ["stream"]


def test_the_auto_pilot_sees_moves_and_plans_with_real_networks(example: Any, tmp_path: Path) -> None:
    from paper.data import SOURCES
    from paper.nets import _RECURRENT, DeconvLSTM

    small = {**_RECURRENT, "ap-o2": lambda: DeconvLSTM(16)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paper.nets._RECURRENT", small)
        running = example("paper", str(real(tmp_path, "ap", {"state": "cells"})))
        replies = [running.request(tensors) for tensors in itertools.islice(SOURCES["ap"](1, 0), 3)]
    assert [int(reply["o3-count"][0]) for reply in replies] == [1, 2, 3]
    assert all(reply["command"][0] in (0, 1, 2, 3) for reply in replies)


def test_the_cheapest_way_is_the_same_by_search_and_by_relaxation() -> None:
    from paper.search import a_star, relaxed

    grids = np.random.default_rng(0).uniform(0.5, 2.5, (20, 7, 7)).astype(np.float32)
    assert [a_star(grid) for grid in grids] == pytest.approx(relaxed(grids).tolist(), rel=1e-5)


def test_forecasts_find_a_rule_that_is_there() -> None:
    from paper.search import arima, nearest

    steps = np.arange(17, dtype=np.float32)
    lines = np.stack([1 + 0.5 * steps, 3 + 0.1 * steps, 2 - 0.2 * steps])
    assert arima(lines[:, :16]) == pytest.approx(lines[:, 16], rel=1e-3)
    waves = np.stack([np.tile([1.0, 2.0, 3.0, 4.0], 5)[:17], np.tile([2.0, 5.0], 9)[:17]])
    assert nearest(waves[:, :16]) == pytest.approx(waves[:, 16])
