"""Which cluster scenarios run on: `CLUSTER=own` (the default, made by this package), `kind` or `existing`
(the current context of kubectl).

`kind` and `existing` are written from their documentation and have not been tried. What they cannot do raises
NotPossible, and the scenario that wanted it is skipped by name: only the own cluster cuts links, kills nodes
and programs of the control plane, and records histories on one disk.
"""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from e2e.cluster.cluster import Cluster, NotPossible
from e2e.cluster.commands import Argument, run, succeeds
from e2e.cluster.layout import NODES_MAX, ROOT, Folders

FOLDER = ROOT / "out" / "e2e" / "cluster"
"""What scenarios leave of a cluster that is not ours: logs, recorded runs."""
KIND_NAME = "hams-e2e"
AGENT_POD = "hams-e2e-agent"
AGENT_SOURCES = (
    "e2e/__init__.py",
    "e2e/scenarios/__init__.py",
    "e2e/scenarios/agent.py",
    "e2e/scenarios/clients.py",
)


class ExistingCluster(Cluster):
    """The cluster of kubectl's current context. Images are in its registry, under the name that REGISTRY
    gives; it is left as it is found."""

    recorded = False

    def __init__(self) -> None:
        super().__init__(Folders(FOLDER, FOLDER / "state"))

    def build(self) -> None:
        """Raises NotPossible without kubectl or a cluster."""
        self.folders.state.mkdir(parents=True, exist_ok=True)
        if shutil.which("kubectl") is None or not self.kubectl_succeeds("get", "--raw=/readyz"):
            raise NotPossible("CLUSTER=existing: kubectl reaches no cluster in its current context")

    def up(self, nodes: int, archives: Sequence[Path]) -> None:
        """Nothing: it is there."""

    def down(self) -> None:
        """Only what was put there."""
        self.kubectl("delete", "pod", AGENT_POD, "--ignore-not-found", "--wait=false")

    def running(self) -> list[int]:
        """As if all its nodes were up."""
        return [0]

    def outdated(self, archives: Sequence[Path]) -> list[str]:
        """None that could be told from here: images are its registry's affair."""
        return []

    def environment(self) -> dict[str, str]:
        """The caller's own."""
        return dict(os.environ)

    def kubectl(self, *words: Argument, stdin: str = "") -> str:
        """Raises CommandFailed."""
        return run("kubectl", *words, stdin=stdin.encode(), env=self.environment())

    def kubectl_succeeds(self, *words: Argument) -> bool:
        """Whether kubectl ends with 0."""
        return succeeds("kubectl", *words, env=self.environment())

    def load(self, archives: Sequence[Path]) -> None:
        """Raises NotPossible: there is no way into its nodes."""
        raise NotPossible("CLUSTER=existing: push images to its registry (make images REGISTRY=...)")

    def command_in(self, number: int, *words: Argument) -> list[str]:
        """The command line that runs Python in a pod: the agent's files are laid there first."""
        if not self.kubectl_succeeds("get", "pod", AGENT_POD):
            self._lay_agent()
        return [
            "kubectl",
            "exec",
            "-i",
            AGENT_POD,
            "--",
            "python3",
            *map(str, words[1:]),
        ]

    def _lay_agent(self) -> None:
        data = {path.replace("/", "."): (ROOT / path).read_text() for path in AGENT_SOURCES}
        items = [{"key": path.replace("/", "."), "path": path} for path in AGENT_SOURCES]
        registry = os.environ.get("REGISTRY", "hams.local")
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": AGENT_POD},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "agent",
                        "image": f"{registry}/hams-sidecar:0.1.0",
                        "command": ["python3", "-c", "import signal; signal.sigwait({signal.SIGTERM})"],
                        "workingDir": "/agent",
                        "volumeMounts": [{"name": "files", "mountPath": "/agent"}],
                    }
                ],
                "volumes": [{"name": "files", "configMap": {"name": AGENT_POD, "items": items}}],
            },
        }
        objects = [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": AGENT_POD}, "data": data},
            pod,
        ]
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )
        self.kubectl("wait", "--for=condition=Ready", f"pod/{AGENT_POD}", "--timeout=60s")

    # -- what only the own cluster can -----------------------------------------------------------------------

    def stop(self, number: int, component: str = "") -> None:
        """Raises NotPossible."""
        raise NotPossible("only CLUSTER=own stops nodes and their programs")

    def start(self, number: int, component: str = "") -> None:
        """Raises NotPossible."""
        raise NotPossible("only CLUSTER=own starts nodes and their programs")

    def kill_pods(self, *uids: str) -> None:
        """Raises NotPossible."""
        raise NotPossible("only CLUSTER=own sees the processes of pods")

    def deaf(self, uid: str, address: str) -> AbstractContextManager[None]:
        """Raises NotPossible."""
        raise NotPossible("only CLUSTER=own enters the networks of pods")

    def _link(self, number: int, up: bool) -> None:
        raise NotPossible("only CLUSTER=own cuts nodes off")


class KindCluster(ExistingCluster):
    """kind (Kubernetes in Docker): made for the run and deleted after it. Images must be in Docker:
    `make images BUILDER=docker`."""

    def build(self) -> None:
        """Raises NotPossible without kind, docker or kubectl."""
        self.folders.state.mkdir(parents=True, exist_ok=True)
        missing = [name for name in ("kind", "docker", "kubectl") if shutil.which(name) is None]
        if missing:
            raise NotPossible(f"CLUSTER=kind: not installed here: {', '.join(missing)}")

    def up(self, nodes: int, archives: Sequence[Path]) -> None:
        """Raises CommandFailed."""
        if not 1 <= nodes <= NODES_MAX:
            raise NotPossible(f"a cluster has 1 to {NODES_MAX} nodes; asked for {nodes}")
        roles = ["control-plane", *("worker" for _ in range(nodes - 1))]
        config = {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": role} for role in roles],
        }
        file = self.folders.state / "kind.yaml"
        file.write_text(json.dumps(config))
        run("kind", "create", "cluster", "--name", KIND_NAME, "--config", file, "--wait", "120s")
        images = run(
            "docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "reference=hams.local/*"
        ).split()
        run("kind", "load", "docker-image", "--name", KIND_NAME, *images)

    def running(self) -> list[int]:
        """Whether it is there."""
        return [0] if KIND_NAME in run("kind", "get", "clusters").split() else []

    def down(self) -> None:
        """Delete it."""
        run("kind", "delete", "cluster", "--name", KIND_NAME)


def chosen(name: str | None = None) -> Cluster:
    """The cluster that CLUSTER names. Raises NotPossible for another name."""
    wanted = name or os.environ.get("CLUSTER") or "own"
    kinds: dict[str, type[Cluster]] = {"own": Cluster, "kind": KindCluster, "existing": ExistingCluster}
    if wanted not in kinds:
        raise NotPossible(f"CLUSTER is one of {', '.join(kinds)}; found {wanted}")
    return kinds[wanted]()
