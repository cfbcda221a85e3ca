"""Who has no proof gets no answer: every port of a graph and of etcd but the inference endpoint, asked from a
node's network."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.commands import until
from e2e.cluster.layout import ROOT
from e2e.scenarios.certificates import ETCDCTL, secret
from e2e.scenarios.install import NAMESPACE as SYSTEM
from e2e.scenarios.install import RELEASE, Installation
from e2e.scenarios.run import NAMESPACE, GraphRun, graph_on
from hams_operator.controller.etcd_keys import user_of
from hams_operator.plan.names import GRPC_PORT, HTTP_PORT, PEER_PORT, PROBE_PORT
from hams_wire import records

GET = "GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def strangers_find(run: GraphRun, orders: list[dict[str, Any]]) -> list[str]:
    """What came of each attempt."""
    words = run.cluster.command_in(0, sys.executable, "-m", "e2e.scenarios.stranger")
    done = subprocess.run(
        words, input=json.dumps(orders) + "\n", capture_output=True, text=True, check=True, cwd=ROOT
    )
    answers: list[str] = json.loads(done.stdout)
    return answers


def files(run: GraphRun, name: str, folder: Path) -> Path:
    """What the pods of a graph mount."""
    folder.mkdir()
    for field, data in secret(run.cluster, NAMESPACE, f"{name}-hams-tls").items():
        (folder / field).write_bytes(data)
    return folder


def test_strangers_find_every_door_closed_but_the_inference_endpoints(
    chain: GraphRun, installation: Installation, tmp_path: Path
) -> None:
    attempts = doors(chain, installation, files(chain, chain.name, tmp_path / "own"))
    with chain.load():
        answers = dict(
            zip(
                (what for what, _ in attempts),
                strangers_find(chain, [order for _, order in attempts]),
                strict=True,
            )
        )
        chain.answered(50)
    open_ones = {what: answer for what, answer in answers.items() if "200 OK" in answer}
    assert set(open_ones) == {what for what in answers if what.startswith("open: ")}, open_ones
    closed = (
        "SSLError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "\x15",
        "HTTP/1.1 401",
        "HTTP/1.0 400",
    )
    unexpected = {
        what: answer
        for what, answer in answers.items()
        if what not in open_ones and answer and not answer.startswith(closed)
    }
    assert not unexpected
    assert all(
        answers[what].startswith("HTTP/1.1 401") for what in answers if what.endswith("without a token")
    )


def doors(chain: GraphRun, installation: Installation, own: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every port of etcd and of the graph's pods, each with how a stranger tries it; `own`: a certificate."""
    etcd = {
        "kind": "tls",
        "host": installation.etcd().removeprefix("https://").rpartition(":")[0],
        "port": 2379,
    }
    attempts: list[tuple[str, dict[str, Any]]] = [
        ("etcd without a certificate", {**etcd, "said": GET.format("/version")}),
        ("etcd in the clear", {**etcd, "kind": "plain", "said": GET.format("/version")}),
        (
            "etcd's members by a graph's certificate of peers",
            {**etcd, "folder": str(own), "said": GET.format("/version")},
        ),
    ]
    for name, pod in chain.pods().items():
        host = pod["status"]["podIP"]
        for port in (PEER_PORT, PROBE_PORT):
            attempts.append((f"{name} {port} in the clear", {"kind": "plain", "host": host, "port": port}))
            attempts.append(
                (f"{name} {port} without a certificate", {"kind": "tls", "host": host, "port": port})
            )
        for path in ("/livez", "/metrics"):
            attempts.append(
                (
                    f"{name} {path} without a token",
                    {"kind": "plain", "host": host, "port": PROBE_PORT, "said": GET.format(path)},
                )
            )
        for port in (2379, 2380, 2381, 22, 80, 443, 8000, 9090):
            attempts.append((f"{name} {port}", {"kind": "plain", "host": host, "port": port}))
        if "frontend" in name:
            attempts.append(
                (
                    f"open: {name}",
                    {"kind": "plain", "host": host, "port": HTTP_PORT, "said": GET.format("/v2/health/live")},
                )
            )
        else:
            attempts += [
                (f"{name} {port}", {"kind": "plain", "host": host, "port": port})
                for port in (HTTP_PORT, GRPC_PORT)
            ]
    return attempts


def test_a_graphs_user_of_etcd_sees_its_own_keys_only(chain: GraphRun) -> None:
    """As etcd itself says it; what it does with it, tests/wire/test_etcd_users.py tries."""

    def etcdctl(*words: str) -> str:
        return chain.cluster.kubectl("exec", "-n", SYSTEM, f"{RELEASE}-etcd-0", "--", *ETCDCTL, *words)

    with chain.load():
        chain.answered(10)
    assert "Authentication Status: true" in etcdctl("auth", "status")
    role = etcdctl("role", "get", user_of(chain.uid))
    allowed = [line.strip() for line in role.splitlines() if line.strip().startswith("[")]
    first, end = records.all_of(chain.uid)
    assert allowed
    # once for reading, once for writing
    assert all(line.startswith(f"[{first}, {end})") for line in allowed), role


def test_what_a_graph_had_in_etcd_and_beside_the_controller_goes_with_it(installation: Installation) -> None:
    if not installation.cluster.recorded:
        pytest.skip("looks into Secrets of the controller")
    with graph_on(installation, ROOT / "examples" / "chain" / "graph.yaml") as run:
        uid = run.uid
        assert secret(run.cluster, SYSTEM, f"graph-{uid}")["ca.key"]
    secret_of_graph = ("get", "secret", "-n", SYSTEM, f"graph-{uid}")
    until(
        lambda: not installation.cluster.kubectl_succeeds(*secret_of_graph),
        90,
        "end of the graph's authority",
        0.2,
    )
    users = installation.cluster.kubectl(
        "exec", "-n", SYSTEM, f"{RELEASE}-etcd-0", "--", *ETCDCTL, "user", "list"
    ).split()
    assert user_of(uid) not in users
