"""An API server without nodes, with an etcd for HAMS and one controller beside it: processes on loopback,
gone with whoever started them.

Nothing runs in it: there is no controller manager, no scheduler and no kubelet. The controller has the
account and the rights that the chart gives it, and certificates everywhere as the chart makes them, unless it
is told to do without (`clear`).
"""

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient

from e2e.cluster import binaries, certificates, components
from e2e.cluster.commands import NotInTime, run
from e2e.cluster.layout import ROOT, Folders, node_address
from hams_operator.controller.kube import SECRETS, KubeClient, KubeError, configuration_of
from hams_operator.local.parent_death_signal import ending_with_parent
from hams_operator.local.ports import free_ports
from hams_operator.plan.names import Json

SYSTEM = "hams-system"
RELEASE = "hams"
MEMBERS, METRICS = f"{RELEASE}-etcd-tls", f"{RELEASE}-metrics"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
"""Kinds of the chart's objects that are of use without nodes."""
START_S = 120.0
"""The API server, or the controller, is there within this time."""
END_S = 10.0
"""A process that was asked to end is killed after this time."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One of them."""

    name: str
    pid: int

    def cpu_s(self) -> float:
        """Processor time so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self, name: str) -> int:
        """`VmRSS`, or `VmHWM`: the most so far. MB of 10^6 bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 // 10**6 for line in lines if line.startswith(name))

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


@dataclass
class Bare:
    """`start` it; then `kube` asks its API server as an administrator, and `metrics` its controller. Whoever
    closes `stack` ends all of it."""

    folders: Folders
    stack: ExitStack
    clear: bool = False
    processes: dict[str, Process] = field(default_factory=dict)
    kube: KubeClient = field(init=False)

    async def start(self) -> None:
        """Returns when the controller leads. Raises CommandFailed, NotInTime, NotPossible."""
        binaries.build(self.folders.bin)
        helm = binaries.build_helm(self.folders.bin)
        api_port, etcd_port, peer_port, self._hams_port, hams_peer_port, self._health_port = free_ports(6)
        folders = self.folders
        authority = certificates.make_control_plane(folders.pki, folders.state)
        self._server = f"https://127.0.0.1:{api_port}"
        authority.kubeconfig("admin", folders.kubeconfig, self._server)
        self._begin(
            "etcd of the API server", components.etcd(folders, folders.state / "etcd", etcd_port, peer_port)
        )
        self._begin(
            "API server",
            (
                *components.apiserver(folders, node_address(0), api_port, etcd_port),
                "--bind-address=127.0.0.1",
            ),
        )
        configuration = configuration_of()
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(folders.kubeconfig), client_configuration=configuration
        )
        self.kube = KubeClient(ApiClient(configuration))
        await _there(self._answers, "the API server")
        self._install(helm)
        etcd = components.etcd(folders, folders.state / "hams-etcd", self._hams_port, hams_peer_port)
        if self.clear:
            self._begin("etcd of HAMS", etcd)
        self._begin("controller", (sys.executable, "-m", "hams_operator.controller"), self._environment())
        if not self.clear:
            self._begin("etcd of HAMS", await self._with_certificates(etcd))
        await _there(self._leads, "the controller")

    async def close(self) -> None:
        """Ask for nothing more."""
        if hasattr(self, "kube"):
            await self.kube.close()

    async def metrics(self) -> dict[str, float]:
        """What the controller counts. Raises OSError, aiohttp.ClientError, KubeError."""
        headers = {}
        if not self.clear:
            secret = await self.kube.get(SECRETS, SYSTEM, METRICS) or {"data": {"token": ""}}
            headers["Authorization"] = f"Bearer {base64.b64decode(secret['data']['token']).decode()}"
        url = f"http://127.0.0.1:{self._health_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            lines = (await answer.text()).splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("hams_")}

    def _begin(self, name: str, words: tuple[str, ...], environment: dict[str, str] | None = None) -> None:
        """A process that ends with this one; what it says goes to a file."""
        log = self.stack.enter_context((self.folders.state / f"{name}.log").open("wb"))
        started = subprocess.Popen(
            ending_with_parent(*words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            cwd=self.folders.state,
        )
        self.stack.callback(_end, started)
        self.processes[name] = Process(name, started.pid)

    def _environment(self) -> dict[str, str]:
        environment = {
            "POD_NAME": "controller-0",
            "POD_NAMESPACE": SYSTEM,
            "HAMS_HEALTH_PORT": str(self._health_port),
            "HAMS_METRICS_SECRET": METRICS,
        }
        environment["KUBECONFIG"] = str(self._account())
        if self.clear:
            return environment | {"HAMS_TLS": "false", "HAMS_ETCD": f"http://127.0.0.1:{self._hams_port}"}
        secrets = {"HAMS_ETCD_SECRET": f"{RELEASE}-etcd-ca", "HAMS_ETCD_MEMBERS_SECRET": MEMBERS}
        return environment | secrets | {"HAMS_ETCD": f"https://localhost:{self._hams_port}"}

    def _kubectl(self, *words: str, stdin: str = "") -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.folders.kubeconfig)}
        return run(self.folders.bin / "kubectl", *words, stdin=stdin.encode(), env=environment)

    def _install(self, helm: Path) -> None:
        """The CRD, and of the chart what the controller may do."""
        self._kubectl("create", "namespace", SYSTEM)
        self._kubectl("create", "-f", str(ROOT / "crds/hams.dev_servicegraphs.yaml"))
        self._kubectl("wait", "--for=condition=Established", "crd/servicegraphs.hams.dev")
        rendered = run(helm, "template", RELEASE, ROOT / "charts/hams", "--namespace", SYSTEM)
        objects = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] in RIGHTS]
        self._kubectl("create", "--namespace", SYSTEM, "-f", "-", stdin=yaml.safe_dump_all(objects))

    def _account(self) -> Path:
        """A kubeconfig with the token of the controller's account."""
        token = self._kubectl(
            "create", "token", f"{RELEASE}-controller", "--namespace", SYSTEM, "--duration=24h"
        ).strip()
        config = yaml.safe_load(self.folders.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        file = self.folders.state / "controller.kubeconfig"
        file.touch(0o600)
        file.write_text(yaml.safe_dump(config))
        return file

    async def _with_certificates(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The command line of an etcd with certificates, as the chart starts it: once the controller has made
        what it mounts."""
        secret: Json = {}

        async def made() -> bool:
            secret.update(await self.kube.get(SECRETS, SYSTEM, MEMBERS) or {})
            return bool(secret)

        await _there(made, "etcd's certificates")
        files = {name: self.folders.state / name for name in ("tls.crt", "tls.key", "ca.crt")}
        for name, file in files.items():
            file.write_bytes(base64.b64decode(secret["data"][name]))
        secured = [item.replace("http:", "https:") if "client-urls" in item else item for item in words]
        more = (
            f"--cert-file={files['tls.crt']}",
            f"--key-file={files['tls.key']}",
            f"--trusted-ca-file={files['ca.crt']}",
        )
        return (
            *secured,
            *more,
            "--client-cert-auth",
            "--tls-min-version=TLS1.3",
            "--enable-grpc-gateway=false",
        )

    async def _answers(self) -> bool:
        try:
            return [line async for line in self.kube.lines("/readyz", {})] == ["ok"]
        except KubeError:
            return False

    async def _leads(self) -> bool:
        if self.processes["controller"].ended:
            raise NotInTime(
                f"the controller has ended: {(self.folders.state / 'controller.log').read_text()[-2000:]}"
            )
        try:
            metrics = await self.metrics()
        except (OSError, aiohttp.ClientError):
            return False
        return metrics.get("hams_controller_leads") == 1 and metrics.get("hams_controller_etcd_away") == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _there(is_there: Callable[[], Awaitable[bool]], what: str) -> None:
    end = time.monotonic() + START_S
    while not await is_there():
        if time.monotonic() > end:
            raise NotInTime(f"{what}: not within {START_S:g} s")
        await asyncio.sleep(0.2)
