"""What the harness proves who it is by; and what the controller makes for a graph, made by hand where there
is none."""

import base64
import datetime
import json
from pathlib import Path

from e2e.cluster.cluster import Cluster
from hams_operator.controller import limits
from hams_operator.controller.certificates import Authority, Subject, fresh_authority, issue
from hams_operator.controller.etcd_keys import user_of
from hams_operator.controller.identities import identity_of
from hams_operator.plan.names import GraphRef
from hams_wire import records, tls

ETCDCTL = (
    "etcdctl",
    "--endpoints=https://localhost:2379",
    "--cacert=/etc/etcd-tls/ca.crt",
    "--cert=/etc/etcd-tls/client.crt",
    "--key=/etc/etcd-tls/client.key",
)
"""In a member's own container."""


def secret(cluster: Cluster, namespace: str, name: str) -> dict[str, bytes]:
    """What a Secret holds."""
    document = json.loads(cluster.kubectl("get", "secret", "-n", namespace, name, "-o", "json"))
    return {field: base64.b64decode(value) for field, value in document["data"].items()}


def etcd_files(cluster: Cluster, namespace: str, release: str) -> Path:
    """A folder with `ca.crt`, `client.crt` and `client.key`: etcd's root."""
    folder = cluster.folders.state / "etcd-keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    held = secret(cluster, namespace, f"{release}-etcd-tls")
    for name in ("ca.crt", "client.crt", "client.key"):
        (folder / name).write_bytes(held[name])
    return folder


def by_hand(cluster: Cluster, namespace: str, release: str, place: GraphRef) -> dict[str, object]:
    """The Secret that pods of a graph mount, and etcd's user for it."""
    now = datetime.datetime.now(datetime.UTC)
    held = secret(cluster, namespace, f"{release}-etcd-ca")
    own, user = fresh_authority(place.name, now, limits.leaf_days), user_of(place.graph_uid())
    certificate, key = issue(own, Subject(uris=(identity_of(place),)), now, limits.leaf_days)
    etcd_certificate, etcd_key = issue(
        Authority(held["ca.crt"], held["ca.key"]), Subject(user, serves=False), now, limits.leaf_days
    )
    member = f"{release}-etcd-0"
    for words in (
        ("role", "add", user),
        (
            "role",
            "grant-permission",
            user,
            "readwrite",
            "--prefix=true",
            records.prefix_of(place.graph_uid()),
        ),
        ("user", "add", user, "--no-password"),
        ("user", "grant-role", user, user),
    ):
        cluster.kubectl("exec", "-n", namespace, member, "--", *ETCDCTL, *words)
    data = {
        tls.CERTIFICATE: certificate,
        tls.KEY: key,
        tls.AUTHORITY: own.certificate,
        tls.IDENTITY: identity_of(place).encode(),
        tls.ETCD_AUTHORITY: held["ca.crt"],
        tls.ETCD_CERTIFICATE: etcd_certificate,
        tls.ETCD_KEY: etcd_key,
        tls.PROBE_TOKEN: b"by-hand",
        tls.METRICS_TOKEN: b"by-hand",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": place.metadata(place.secret),
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
