"""The programs of a node: command lines, and what each waits for before it is started."""

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.layout import (
    API_PORT,
    SERVICE_NETWORK,
    Folders,
    kubernetes_timers,
    node_address,
    node_name,
)

API = "api"
"""Wait until the API server says it is ready."""


@dataclass(frozen=True)
class Component:
    """One program. `after`: `tcp:HOST:PORT`, `unix:PATH`, `file:PATH` or `api`. `control`: of the control
    plane, which has machines of its own elsewhere."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    control: bool = False


def components(folders: Folders, number: int) -> list[Component]:
    """Those of a node; node 0 has the control plane besides."""
    return [*(_control_plane(folders) if number == 0 else ()), *_node(folders, number)]


def etcd(folders: Folders, data: Path, port: int = 2379, peer_port: int = 2380) -> tuple[str, ...]:
    """The command line of an etcd that outlives no crash of the machine, on loopback."""
    command = _flags(
        folders.bin / "etcd",
        data_dir=data,
        listen_client_urls=f"http://127.0.0.1:{port}",
        advertise_client_urls=f"http://127.0.0.1:{port}",
        listen_peer_urls=f"http://127.0.0.1:{peer_port}",
        initial_advertise_peer_urls=f"http://127.0.0.1:{peer_port}",
        initial_cluster=f"default=http://127.0.0.1:{peer_port}",
        log_level="warn",
    )
    return (*command, "--unsafe-no-fsync")


def apiserver(folders: Folders, address: str, port: int = API_PORT, etcd_port: int = 2379) -> tuple[str, ...]:
    """The command line of an API server; `address`: under which its Service reaches it."""
    pki = folders.pki
    return _flags(
        folders.bin / "kube-apiserver",
        etcd_servers=f"http://127.0.0.1:{etcd_port}",
        advertise_address=address,
        secure_port=port,
        service_cluster_ip_range=SERVICE_NETWORK,
        allow_privileged="true",
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        client_ca_file=pki / "ca.crt",
        tls_cert_file=pki / "apiserver.crt",
        tls_private_key_file=pki / "apiserver.key",
        service_account_issuer="https://kubernetes.default.svc.cluster.local",
        service_account_key_file=pki / "sa.pub",
        service_account_signing_key_file=pki / "sa.key",
        kubelet_certificate_authority=pki / "ca.crt",
        kubelet_client_certificate=pki / "apiserver-kubelet-client.crt",
        kubelet_client_key=pki / "apiserver-kubelet-client.key",
        kubelet_preferred_address_types="InternalIP",
        requestheader_client_ca_file=pki / "front-proxy-ca.crt",
        requestheader_allowed_names="front-proxy-client",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        requestheader_group_headers="X-Remote-Group",
        requestheader_username_headers="X-Remote-User",
        proxy_client_cert_file=pki / "front-proxy-client.crt",
        proxy_client_key_file=pki / "front-proxy-client.key",
        # 300 by default: pods of a dead node move after 5 s
        default_not_ready_toleration_seconds=300 if kubernetes_timers() else 5,
        default_unreachable_toleration_seconds=300 if kubernetes_timers() else 5,
        v=1,
    )


def _control_plane(folders: Folders) -> list[Component]:
    state, pki = folders.state, folders.pki
    manager = _flags(
        folders.bin / "kube-controller-manager",
        kubeconfig=state / "kcm.kubeconfig",
        authentication_kubeconfig=state / "kcm.kubeconfig",
        authorization_kubeconfig=state / "kcm.kubeconfig",
        bind_address="127.0.0.1",
        leader_elect="false",
        use_service_account_credentials="true",
        service_account_private_key_file=pki / "sa.key",
        root_ca_file=pki / "ca.crt",
        cluster_signing_cert_file=pki / "ca.crt",
        cluster_signing_key_file=pki / "ca.key",
        node_monitor_period="5s" if kubernetes_timers() else "1s",
        node_monitor_grace_period="40s" if kubernetes_timers() else "10s",
        horizontal_pod_autoscaler_sync_period="2s",
        kube_api_qps=200,
        kube_api_burst=400,
        v=1,
    )
    scheduler = _flags(
        folders.bin / "kube-scheduler",
        kubeconfig=state / "scheduler.kubeconfig",
        authentication_kubeconfig=state / "scheduler.kubeconfig",
        authorization_kubeconfig=state / "scheduler.kubeconfig",
        bind_address="127.0.0.1",
        leader_elect="false",
        v=1,
    )
    return [
        Component("etcd", etcd(folders, folders.node(0) / "etcd"), control=True),
        Component(
            "kube-apiserver", apiserver(folders, node_address(0)), ("tcp:127.0.0.1:2379",), control=True
        ),
        Component("kube-controller-manager", manager, (API,), control=True),
        Component("kube-scheduler", scheduler, (API,), control=True),
        # only after its role exists, or it gives up watching
        Component(
            "coredns",
            (str(folders.bin / "coredns"), "-conf", str(state / "Corefile")),
            (f"file:{state}/dns-objects",),
            control=True,
        ),
    ]


def _node(folders: Folders, number: int) -> list[Component]:
    conf = folders.node(number) / "conf"
    kubelet = _flags(
        folders.bin / "kubelet",
        config=conf / "kubelet.yaml",
        kubeconfig=conf / "kubelet.kubeconfig",
        hostname_override=node_name(number),
        node_ip=node_address(number),
        v=2,
    )
    proxy = _flags(folders.bin / "kube-proxy", config=conf / "kube-proxy.yaml", v=1)
    return [
        Component(
            "containerd",
            ("/usr/bin/containerd", "--config", str(conf / "containerd.toml"), "--log-level=info"),
        ),
        Component("kubelet", kubelet, ("unix:/run/containerd/containerd.sock", API)),
        Component("kube-proxy", proxy, (API,)),
    ]


def _flags(program: Path, **flags: object) -> tuple[str, ...]:
    return (str(program), *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()))
