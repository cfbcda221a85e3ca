"""A cluster with the chart in it: images loaded, volumes for etcd, `helm install`, and everything Ready.

The chart is installed by helm itself; `helm` is built from its Go module by `make chart`, or any on PATH.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import Argument, run, until
from e2e.cluster.layout import HISTORY, ROOT
from e2e.scenarios.certificates import etcd_files

NAMESPACE = "hams-system"
RELEASE = "hams"
CHART = ROOT / "charts" / "hams"
IMAGES = ROOT / "out" / "images"
USER_ID = 65532
ETCD_MEMBERS = 3
ROLLED_OUT_S = 300
"""For three members of etcd to be replaced one after the other, beside a graph whose pods are."""


class Installation:
    """The chart on a cluster of this package. `history` is where every process of every graph records what it
    did."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history = cluster.folders.history
        self._etcd = ""
        self._etcd_keys: Path | None = None

    def install(self) -> None:
        """Install and wait until controller and etcd are Ready. Raises CommandFailed, NotInTime."""
        own: dict[str, object] = {}
        few = {"requests": {"cpu": "20m", "memory": "64Mi"}}
        persistence: dict[str, object] = {"enabled": False}
        if self.cluster.recorded:
            self._volumes()
            own["image"] = ""  # nothing can be pulled here: the local builder's
            persistence = {"storageClassName": "hams-e2e", "size": "1Gi"}
            if len(self.cluster.running()) >= ETCD_MEMBERS:  # a node with two of them takes etcd along
                own["spread"] = "DoNotSchedule"
        values = {
            "image": {"registry": os.environ.get("REGISTRY", "hams.local")},
            "history": {"hostPath": HISTORY if self.cluster.recorded else ""},
            "etcd": {**own, "persistence": persistence, "resources": few},
            "controller": {"resources": few, "watchNamespaces": ["*"]},
            "templates": {"pod": ["*"]},  # models of the tests find their libraries in a folder of the node
        }
        file = self.cluster.folders.state / "values.json"
        file.write_text(json.dumps(values))
        self._helm("upgrade", "--install", RELEASE, CHART, "--create-namespace", "--values", file)
        self.cluster.kubectl(
            "wait", "--for=condition=Established", "crd/servicegraphs.hams.dev", "--timeout=30s"
        )
        self._rolled_out()

    def test(self) -> str:
        """`helm test`; what it said. Raises CommandFailed."""
        return self._helm("test", RELEASE, "--timeout", "60s")

    def rendered(self) -> str:
        """What `helm template` makes of the chart with the values of the release; without the CRDs."""
        file = self.cluster.folders.state / "released.json"
        file.write_text(self._helm("get", "values", RELEASE, "--output", "json"))
        return self._helm("template", RELEASE, CHART, "--values", file)

    def etcd(self) -> str:
        """Where processes in a node's network reach etcd. Asked once: the API server may be away later."""
        if self._etcd:
            return self._etcd
        address = self.cluster.kubectl(
            "get", "service", "-n", NAMESPACE, f"{RELEASE}-etcd", "-o", "jsonpath={.spec.clusterIP}"
        )
        self._etcd = f"https://{address}:2379"
        return self._etcd

    def etcd_keys(self) -> Path:
        """What the harness shows etcd, which is then called `ETCD_NAME`. Read once, as above."""
        if self._etcd_keys is None:
            self._etcd_keys = etcd_files(self.cluster, NAMESPACE, RELEASE)
        return self._etcd_keys

    @contextlib.contextmanager
    def upgraded(self, **values: str) -> Iterator[None]:
        """`helm upgrade` as docs/upgrade.md says it, with other values; at the end of the block, however it
        ends, `helm rollback` to what was there.

        The block begins at once, before anything is replaced; afterwards the release is Ready as it was.
        Raises CommandFailed.
        """
        before = json.loads(self._helm("status", RELEASE, "--output", "json"))["version"]
        try:
            self._helm(
                "upgrade",
                RELEASE,
                CHART,
                "--reset-then-reuse-values",
                *(f"--set={path}={value}" for path, value in values.items()),
            )
            yield
        finally:
            self._helm("rollback", RELEASE, before)
            self._rolled_out()

    def _rolled_out(self) -> None:
        for name in (f"statefulset/{RELEASE}-etcd", f"deployment/{RELEASE}-controller"):
            self.cluster.kubectl("rollout", "status", "-n", NAMESPACE, name, f"--timeout={ROLLED_OUT_S}s")

    def _helm(self, *words: Argument) -> str:
        """What helm printed. Raises CommandFailed."""
        return run(helm(self.cluster), *words, "--namespace", NAMESPACE, env=self.cluster.environment())

    def _volumes(self) -> None:
        """A folder each: the cluster makes no volumes by itself. They can be mounted from every node, as all
        nodes see the machine's disk."""
        self.cluster.kubectl(
            "apply",
            "-f",
            "-",
            stdin=_objects({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        )
        volumes = []
        for number in range(ETCD_MEMBERS):
            folder = self.cluster.folders.state / f"etcd-{number}"
            folder.mkdir(exist_ok=True)
            shutil.chown(folder, USER_ID, USER_ID)
            volumes.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"hams-etcd-{number}"},
                    "spec": {
                        "storageClassName": "hams-e2e",
                        "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteOnce"],
                        "persistentVolumeReclaimPolicy": "Retain",
                        "hostPath": {"path": str(folder)},
                    },
                }
            )
        self.cluster.kubectl("apply", "-f", "-", stdin=_objects(*volumes))


def inner_etcd() -> str:
    """Where pods reach etcd: each member by its own name, as the chart tells the controller."""
    return ",".join(
        f"https://{RELEASE}-etcd-{number}.{RELEASE}-etcd-peers.{NAMESPACE}.svc:2379"
        for number in range(ETCD_MEMBERS)
    )


def helm(cluster: Cluster) -> Path:
    """The one in the cache, or on PATH; built if there is none. Raises CommandFailed."""
    return binaries.build_helm(cluster.folders.bin)


def archives() -> list[Path]:
    """Images of `make images`, in the order of loading. Raises FileNotFoundError when there are none."""
    tarballs = sorted(IMAGES.glob("*.tar"))
    if not tarballs:
        raise FileNotFoundError(f"no images in {IMAGES.relative_to(ROOT)}: make images")
    return tarballs


class OldImages(RuntimeError):
    """The cluster that is up has been started with other images than there are now; says which."""


def check_images(cluster: Cluster) -> None:
    """Raises OldImages where a pass would be one of other code than this, FileNotFoundError when there are no
    images."""
    if cluster.recorded and (names := cluster.outdated(archives())):
        raise OldImages(
            f"a cluster is up with other images than {IMAGES.relative_to(ROOT)} has now: "
            f"{', '.join(names)}; end it with: python -m e2e.cluster down"
        )


def ready(
    cluster: Cluster, selector: str, count: int, namespace: str = "default", within_s: float = 120
) -> None:
    """Until so many pods are Ready. Raises NotInTime."""
    until(
        lambda: len(ready_pods(cluster, selector, namespace)) >= count,
        within_s,
        f"{count} pods of {selector} Ready",
        0.1,
    )


def ready_pods(cluster: Cluster, selector: str, namespace: str = "default") -> list[str]:
    """Names of Ready pods that are not about to go."""
    items = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]
    return [
        item["metadata"]["name"]
        for item in items
        if "deletionTimestamp" not in item["metadata"]
        and any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in item.get("status", {}).get("conditions", ())
        )
    ]


def _objects(*objects: object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
