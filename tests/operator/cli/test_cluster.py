"""`hams status` and `hams kill` of a graph on a cluster, from what the API server holds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hams_operator.cli.cluster import Cluster, connect
from hams_operator.cli.kill import pick
from hams_operator.cli.output import CommandError
from hams_operator.cli.runs import Target
from hams_operator.graph_seen import ClusterGraph, status_of
from hams_operator.plan.pods_seen import Pod

Json = dict[str, Any]

OPERATORS = [
    {"name": "pass", "epoch": 3, "active": ["g-pass-1-aa", "g-pass-1-aa"], "standbys": ["g-pass-2-bb"]},
    {
        "name": "count",
        "epoch": 2,
        "primary": "g-count-1-cc",
        "inSync": ["g-count-2-dd"],
        "joining": [],
        "standbys": [],
    },
]
PODS = (
    Pod("g-pass-1", "pass", ready=True),
    Pod("g-pass-2", "pass", ready=True),
    Pod("g-count-1", "count", ready=True),
    Pod("g-count-2", "count", ready=True),
    Pod("g-count-3", "count"),
    Pod("g-frontend-1", "frontend", ready=True),
    Pod("g-manager-2", "manager", ready=True),
    Pod("g-manager-1", "manager", ready=True),
    Pod("g-manager-0", "manager", deleting=True),
)
GRAPH: Json = {
    "metadata": {"name": "g", "namespace": "n"},
    "status": {"url": "http://g.n.svc:8080", "generation": 7, "operators": OPERATORS, "conditions": []},
}


def test_status_has_an_instance_for_every_role_and_every_other_pod() -> None:
    status = {
        item.id: (item.operator, item.role, item.leader)
        for item in status_of(ClusterGraph(GRAPH, PODS)).instances
    }
    assert status == {
        "g-pass-1-aa": ("pass", "active", False),
        "g-pass-2-bb": ("pass", "standby", False),
        "g-count-1-cc": ("count", "primary", False),
        "g-count-2-dd": ("count", "backup", False),
        "g-count-3": ("count", "starting", False),
        "g-frontend-1": (None, "frontend", False),
        "g-manager-1": (None, "manager", True),
        "g-manager-2": (None, "manager", False),
    }


def test_the_primary_is_what_kill_hits_unless_told_otherwise() -> None:
    status = status_of(ClusterGraph(GRAPH, PODS))
    assert pick(status, "count", None, False, None).id == "g-count-1-cc"
    assert pick(status, "count", "backup", False, None).id == "g-count-2-dd"
    assert pick(status, "manager", None, True, None).id == "g-manager-1"


@pytest.mark.parametrize(
    ("mode", "warned"),
    [
        (None, ()),
        ("NonStop", ()),
        ("OfTomorrow", ()),
        ("None", ("mode None protects nothing: what a failed instance held is lost",)),
        ("Remus", ("mode Remus is a baseline for measurements: no user wants it",)),
        (
            "LineageStash",
            (
                "mode LineageStash is a baseline for measurements: it promises one answer and no loss for "
                "deterministic models only",
            ),
        ),
    ],
)
def test_a_mode_that_protects_less_is_warned_of(mode: str | None, warned: tuple[str, ...]) -> None:
    spec = {} if mode is None else {"mode": mode}
    assert status_of(ClusterGraph({**GRAPH, "spec": spec}, PODS)).warnings == warned


def test_a_graph_without_a_status_is_said_to_be_unknown() -> None:
    status = status_of(ClusterGraph({"metadata": {"name": "g", "namespace": "n"}}, ()))
    assert [(item.type, item.status) for item in status.conditions] == [("Ready", "Unknown")]
    assert status.grpc == "g.n.svc:8081"


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts:
- {name: c, context: {cluster: k, user: u, namespace: team}}
- {name: d, context: {cluster: k, user: u}}
clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: x}}]
"""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one that is used."""
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    return file


@pytest.mark.parametrize(
    ("target", "namespace"),
    [
        (Target("c"), "team"),
        (Target("d"), "default"),
        (Target(), "team"),
        (Target("c", "other"), "other"),
        (Target(None, "other"), "other"),
    ],
)
async def test_the_namespace_is_the_contexts_unless_another_is_asked_for(
    kubeconfig: Path, target: Target, namespace: str
) -> None:
    async with connect(target) as cluster:
        assert cluster.namespace == namespace


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "expected a kubeconfig in KUBECONFIG"),
        ("text", "expected a kubeconfig in KUBECONFIG"),
        ("- a", "expected a kubeconfig in KUBECONFIG"),
        ("a: [", "expected a kubeconfig in KUBECONFIG"),
        (b"\xff\xfe\x00", "expected a kubeconfig in KUBECONFIG"),
        (KUBECONFIG.replace("name: k,", "name: other,"), "Expected object with name k"),
        (KUBECONFIG.replace("current-context: c", "current-context: e"), "Expected object with name e"),
        (KUBECONFIG.replace("token: x", "tokenFile: /nowhere"), "/nowhere: No such file or directory"),
        (
            KUBECONFIG.replace('server: "http:', 'certificate-authority-data: "!!!", server: "https:'),
            "KUBECONFIG: ",
        ),
        (None, "there is no kubeconfig KUBECONFIG"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_said_in_a_line(
    kubeconfig: Path, written: str | bytes | None, said: str
) -> None:
    kubeconfig.unlink()
    if written is not None:
        kubeconfig.write_bytes(written if isinstance(written, bytes) else written.encode())

    async def work() -> None:
        async with connect(Target()):
            pass

    with pytest.raises(CommandError) as raised:
        asyncio.run(work())
    assert str(raised.value).startswith("no cluster to talk to: ")
    assert said.replace("KUBECONFIG", str(kubeconfig)) in str(raised.value)
    assert "\n" not in str(raised.value)


class Exec:
    """The API server's answer to an exec: what was written on each channel."""

    def __init__(self, *written: tuple[int, bytes]) -> None:
        self.written = [
            aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, bytes([channel]) + data, None)
            for channel, data in written
        ]

    async def socket(self, path: str, query: Any) -> Any:
        return self._messages()

    async def _messages(self) -> Any:
        for message in self.written:
            yield message


def failed(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    text = "command terminated with non-zero exit code: error executing command [python3 -c ...]"
    return json.dumps({"status": "Failure", "message": text, "details": {"causes": causes}}).encode()


async def test_a_command_that_ended_with_its_container_has_done_what_it_said() -> None:
    for end in ([(3, failed(137))], []):
        there = Cluster(Exec((1, b'{"proxy": '), (1, b"7}"), *end), "n")  # type: ignore[arg-type]
        assert await there.run_in("p", "proxy", ["x"], may_end_container=True) == '{"proxy": 7}'


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([(3, failed(137))], "in pod p: the command ended with exit code 137"),
        ([(1, b"{}"), (3, failed(1))], "in pod p: the command ended with exit code 1"),
        ([(2, b"no python3\n"), (3, failed(127))], "in pod p: no python3"),
        ([], "in pod p: the connection ended"),
    ],
)
async def test_a_command_that_failed_says_why_in_a_line(written: list[tuple[int, bytes]], said: str) -> None:
    cluster = Cluster(Exec(*written), "n")  # type: ignore[arg-type]
    with pytest.raises(CommandError) as raised:
        await cluster.run_in("p", "proxy", ["x"], may_end_container=True)
    assert str(raised.value) == said
