"""The files that components of a node read: containerd, CNI, kubelet, kube-proxy, CoreDNS, and the objects
that make DNS a Service.

Where a value is not the default, the reason stands beside it. Most reasons are two: the machine gives no
CAP_SYS_RESOURCE, and failures shall be noticed in seconds.
"""

import json

from e2e.cluster import certificates
from e2e.cluster.certificates import Authority
from e2e.cluster.layout import (
    CGROUP,
    DNS_SERVICE,
    PAUSE_IMAGE,
    Folders,
    kubernetes_timers,
    node_address,
    node_name,
    pod_network,
)

CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  # without CAP_SYS_RESOURCE oom_score_adj cannot be lowered, and runc dies trying (pause wants -998)
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{conf}/cni"
"""

KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {pki}/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: {pki}/{name}.crt
tlsPrivateKeyFile: {pki}/{name}.key
cgroupDriver: cgroupfs
# of its own: two kubelets on one root delete each other's pods as orphans
cgroupRoot: /{cgroup}/{name}
failCgroupV1: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [{dns}]
clusterDomain: cluster.local
resolvConf: {conf}/resolv.conf
failSwapOn: false
oomScoreAdj: 0
maxOpenFiles: 20000
# the machine's disk is shared: never evict for it, never delete images, which come from no registry
evictionHard: {{memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%,
  imagefs.available: 0%, imagefs.inodesFree: 0%}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
imageMinimumGCAge: 24h
# a lost node is noticed in seconds, or as late as anywhere
nodeStatusUpdateFrequency: {status_s}s
nodeStatusReportFrequency: 10s
nodeLeaseDurationSeconds: {lease_s}
syncFrequency: 10s
configMapAndSecretChangeDetectionStrategy: Watch
kubeAPIQPS: 100
kubeAPIBurst: 200
registryPullQPS: 0
eventRecordQPS: 0
serializeImagePulls: false
maxPods: 60
# how long a container that crashes again may be made to wait: 10, 20, 40 ... s as anywhere, or 1 s at most
featureGates: {{KubeletCrashLoopBackOffMax: true}}
crashLoopBackOff: {{maxContainerRestartPeriod: {restart_s}s}}
"""

KUBE_PROXY = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: {name}
oomScoreAdj: 0
nodePortAddresses: [primary]
clientConnection: {{kubeconfig: {state}/kube-proxy.kubeconfig}}
detectLocalMode: BridgeInterface
detectLocal: {{bridgeInterface: cni0}}
# nf_conntrack_max cannot be written outside the first network namespace
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
iptables: {{minSyncPeriod: 0s, syncPeriod: 30s}}
"""

COREDNS = """\
cluster.local:53 in-addr.arpa:53 {{
    bind {address}
    errors
    ready {address}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {state}/coredns.kubeconfig
        pods insecure
        ttl 1
    }}
    cache 1 {{
        disable denial
    }}
}}
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""

DNS_OBJECTS = f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: system:coredns}}
rules:
- {{apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}}
- {{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: system:coredns}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}}
subjects:
- {{kind: User, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccount:kube-system:coredns"}}
---
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system}}
spec:
  clusterIP: {DNS_SERVICE}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: kube-dns-host, namespace: kube-system, labels: {{kubernetes.io/service-name: kube-dns}}}}
addressType: IPv4
endpoints: [{{addresses: ["{node_address(0)}"], conditions: {{ready: true}}}}]
ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
"""


def cni(number: int) -> str:
    """The pods' network: a bridge per node. It enforces no NetworkPolicy."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "isDefaultGateway": True,
        "hairpinMode": True,  # a pod reaches itself through its Service
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_network(number)}]]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    return json.dumps({"cniVersion": "0.4.0", "name": "hams-e2e", "plugins": [bridge, ports]}, indent=1)


def write_control_plane(folders: Folders) -> None:
    """What node 0 reads besides."""
    (folders.state / "Corefile").write_text(COREDNS.format(address=node_address(0), state=folders.state))


def write_node(folders: Folders, authority: Authority, number: int) -> None:
    """A node's folders, files and certificate."""
    folder, name = folders.node(number), node_name(number)
    for part in ("lib/kubelet", "lib/cni", "lib/containerd", "lib/hams-history", "log", "conf/cni", "stop"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    conf = folder / "conf"
    certificates.make_node(authority, number, conf / "kubelet.kubeconfig")
    (conf / "resolv.conf").write_text("# no upstream: the cluster has no way out\n")
    (conf / "cni/10-bridge.conflist").write_text(cni(number))
    (conf / "containerd.toml").write_text(CONTAINERD.format(pause=PAUSE_IMAGE, conf=conf))
    (conf / "kubelet.yaml").write_text(
        KUBELET.format(
            pki=folders.pki,
            name=name,
            cgroup=CGROUP,
            dns=DNS_SERVICE,
            conf=conf,
            status_s=10 if kubernetes_timers() else 2,
            lease_s=40 if kubernetes_timers() else 8,
            restart_s=300 if kubernetes_timers() else 1,
        )
    )
    (conf / "kube-proxy.yaml").write_text(KUBE_PROXY.format(name=name, state=folders.state))
