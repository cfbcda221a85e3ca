"""Each command once, whatever the place where graphs run."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.operator.chaos.test_live import GRAPH, PODS, STATUS
from tests.operator.controller.fakes import FakeKube

from hams_operator.cli import cluster, inspect, kill, runs
from hams_operator.cli.cluster import Cluster
from hams_operator.cli.output import CommandError, Output
from hams_operator.cli.runs import Reached, Target
from hams_operator.controller.kube import KubeError

Json = dict[str, Any]
THERE = Target(namespace="n")


class Kube(FakeKube):
    """One whose pods have logs and take commands."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[list[str]] = []

    async def lines(self, path: str, query: dict[str, str]) -> AsyncIterator[str]:
        if "count-2" in path:
            raise KubeError(400, "container is waiting to start")
        yield f"{path.rpartition('/pods/')[2]} {query['container']} {query['tailLines']}"


class Pods(Cluster):
    """The namespace, with what is run in its pods noted."""

    async def run_in(
        self,
        pod: str,
        container: str,
        command: list[str],
        may_end_container: bool = False,
        stdin: bytes = b"",
    ) -> str:
        self.kube.commands.append([pod, container, *command[-2:]])  # type: ignore[attr-defined]
        return json.dumps({"model": 8, "proxy": 7})


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> Kube:
    kube = Kube()
    for item in (GRAPH, *PODS):
        kube.put(item)

    @asynccontextmanager
    async def connect(target: Target) -> AsyncIterator[Cluster]:
        assert target == THERE
        yield Pods(kube, "n")  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "connect", connect)
    return kube


def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_the_status_of_one_graph_is_shown_or_of_all(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.status(THERE, None, False, Output.JSON)
    assert shown(capsys)["graph"] == "g"
    inspect.status(THERE, None, True, Output.JSON)
    assert [item["graph"] for item in shown(capsys)] == ["g"]
    kube.items.clear()
    assert inspect.status(THERE, None, True, Output.TEXT) == 0
    assert capsys.readouterr().out == "no graph in namespace n\n"


@pytest.mark.parametrize(
    ("graph", "names", "said"),
    [
        (None, [], "no graph runs here; start one"),
        ("a", [], 'no graph "a" runs here; start one'),
        ("a", ["b", "c"], 'no graph "a" runs here; there are: b, c'),
        (None, ["b", "c"], "several graphs: b, c; choose one with --graph NAME"),
    ],
)
def test_which_graph_is_meant_has_to_be_clear(graph: str | None, names: list[str], said: str) -> None:
    with pytest.raises(CommandError) as raised:
        runs.chosen(graph, names, "runs here", "start one")
    assert (str(raised.value), raised.value.code) == (said, 2 if said.startswith("several") else 1)


def test_the_only_graph_needs_no_name() -> None:
    assert runs.chosen(None, ["b"], "", "") == runs.chosen("b", ["a", "b"], "", "") == "b"


def test_of_no_graph_there_is_no_status(kube: Kube) -> None:
    with pytest.raises(CommandError, match='no graph "other" in namespace n; there are: g'):
        inspect.status(THERE, "other", False, Output.TEXT)


def test_a_signal_goes_to_the_pod_of_the_instance_that_is_meant(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kill.kill(THERE, "count", None, None, False, None, "both", "SIGKILL", Output.TEXT)
    assert kube.commands == [["g-count-1", "proxy", "both", "KILL"]]
    assert capsys.readouterr().out == "SIGKILL: g-count-1-aa, primary of count: model 8 and proxy 7\n"
    kill.kill(THERE, "frontend", None, None, False, "g-frontend-2", "both", "STOP", Output.JSON)
    assert kube.commands[1:] == [["g-frontend-2", "frontend", "both", "STOP"]]
    assert shown(capsys)["signal"] == "STOP"


def test_logs_are_those_of_the_pods_and_what_cannot_be_read_says_why(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect.logs(THERE, "count", None, 5, False, 0, Output.TEXT)
    assert capsys.readouterr().out.splitlines() == [
        "g-count-1.proxy | g-count-1/log proxy 5",
        "g-count-1.model | g-count-1/log model 5",
        "g-count-2.proxy | (container is waiting to start)",
        "g-count-2.model | (container is waiting to start)",
    ]
    inspect.logs(THERE, "manager", None, 5, True, 0, Output.JSON)
    assert shown(capsys) == {"process": "g-manager-1", "line": "g-manager-1/log manager 5"}
    with pytest.raises(CommandError, match='no pods of "nobody"; there are: count, frontend, manager, pass'):
        inspect.logs(THERE, "nobody", None, 5, False, 0, Output.TEXT)


@pytest.mark.parametrize("loss", ["count@4", "count@4-r1"])
def test_a_lost_state_begins_again_by_an_annotation_that_names_the_loss(
    kube: Kube, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    with pytest.raises(CommandError, match=r"the state of count is not lost, as the status of g says$"):
        inspect.restart(THERE, "count", None, Output.TEXT)
    message = f"no replica of the state of count is left (annotation hams.dev/restart-lost: {loss})"
    lost = {"type": "Ready", "status": "False", "reason": "StateLost", "message": message}
    kube.put({**GRAPH, "status": {**STATUS, "conditions": [lost]}})
    with pytest.raises(CommandError, match="the state of pass is not lost, as the status of g says: no rep"):
        inspect.restart(THERE, "pass", None, Output.TEXT)
    inspect.restart(THERE, "count", None, Output.JSON)
    assert shown(capsys) == {"graph": "g", "restarts": "count"}
    annotations = kube.items["ServiceGraph", "n", "g"]["metadata"]["annotations"]
    assert annotations == {"hams.dev/restart-lost": loss}


def test_the_endpoint_is_reached_on_this_machine(kube: Kube) -> None:
    async def ask(there: runs.Runs) -> Reached:
        async with there.reach("g") as reached:
            return reached

    reached = runs.on_runs(THERE, ask)
    assert reached.url.startswith("http://127.0.0.1:")
    assert reached.history is None
