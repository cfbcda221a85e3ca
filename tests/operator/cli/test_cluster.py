"""`hams status` and `hams kill` of a graph on a cluster, from what the API server holds."""

import json
import os
import subprocess
import sys
from typing import Any

from hams_operator.cli.cluster import STRIKE, Found, status_of
from hams_operator.cli.kill import pick
from hams_operator.plan.pods_seen import Pod

Json = dict[str, Any]

OPERATORS = [
    {"name": "pass", "epoch": 3, "active": ["g-pass-1-aa", "g-pass-1-aa"], "standbys": ["g-pass-2-bb"]},
    {"name": "count", "epoch": 2, "primary": "g-count-1-cc", "inSync": ["g-count-2-dd"], "joining": [], "standbys": []},
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
    found = {item.id: (item.operator, item.role, item.leader) for item in status_of(Found(GRAPH, PODS)).instances}
    assert found == {
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
    status = status_of(Found(GRAPH, PODS))
    assert pick(status, "count", None, False, None).id == "g-count-1-cc"
    assert pick(status, "count", "backup", False, None).id == "g-count-2-dd"
    assert pick(status, "manager", None, True, None).id == "g-manager-1"


def test_a_graph_without_a_status_is_said_to_be_unknown() -> None:
    found = status_of(Found({"metadata": {"name": "g", "namespace": "n"}}, ()))
    assert [(item.type, item.status) for item in found.conditions] == [("Ready", "Unknown")]
    assert found.grpc == "g.n.svc:8081"


def test_what_runs_in_the_pod_finds_the_processes_by_their_command_lines(tmp_path: Any) -> None:
    """With a signal that does nothing to them, and whatever else runs here left alone."""
    idle = "import time; time.sleep(60)"
    proxy = subprocess.Popen([sys.executable, "-c", idle, "-m", "hams_sidecar.proxy", "--hams-test"])
    try:
        script = STRIKE.replace('os.listdir("/proc")', f'["{proxy.pid}", "{os.getpid()}"]')
        said = subprocess.run([sys.executable, "-I", "-S", "-c", script, "both", "CONT"], capture_output=True, check=True, text=True).stdout
        assert json.loads(said) == {"proxy": proxy.pid}
    finally:
        proxy.kill()
        proxy.wait()
