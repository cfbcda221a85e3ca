"""Certificates of one cluster, by the `openssl` command: P-256, a few milliseconds each."""

import base64
import json
import subprocess
from pathlib import Path

from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.layout import API_PORT, API_SERVICE, node_address, node_name

DAYS = "3650"
"""How long they hold: longer than any cluster for tests lives."""


class Authority:
    """A folder of keys and certificates, with the authorities `ca` and `front-proxy-ca` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def make_authority(self, name: str) -> None:
        """A self-signed authority."""
        self.make_key(name)
        usage = [
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        ]
        certificate = self.folder / f"{name}.crt"
        run(
            "openssl",
            "req",
            "-x509",
            "-new",
            "-key",
            self._key(name),
            "-days",
            DAYS,
            "-subj",
            f"/CN={name}",
            *usage,
            "-out",
            certificate,
        )

    def make_key(self, name: str) -> None:
        """A private key."""
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self._key(name))

    def make_public(self, name: str) -> None:
        """The public half of a key, as NAME.pub."""
        run("openssl", "ec", "-in", self._key(name), "-pubout", "-out", self.folder / f"{name}.pub")

    def make(self, name: str, user: str, group: str = "", names: str = "", by: str = "ca") -> None:
        """A certificate for a server and client. `user`, `group`: as Kubernetes reads them; `names`:
        subjectAltName."""
        self.make_key(name)
        subject = (f"/O={group}" if group else "") + f"/CN={user}"
        extensions = "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n"
        extensions += "extendedKeyUsage=serverAuth,clientAuth\n"
        extensions += f"subjectAltName={names}\n" if names else ""
        settings = self.folder / f"{name}.ext"
        settings.write_text(extensions)
        request = run("openssl", "req", "-new", "-key", self._key(name), "-subj", subject).encode()
        signer: list[str | Path] = [
            "-CA",
            self.folder / f"{by}.crt",
            "-CAkey",
            self._key(by),
            "-CAcreateserial",
        ]
        certificate = self.folder / f"{name}.crt"
        run(
            "openssl",
            "x509",
            "-req",
            *signer,
            "-days",
            DAYS,
            "-extfile",
            settings,
            "-out",
            certificate,
            stdin=request,
        )

    def kubeconfig(self, name: str, file: Path, server: str) -> None:
        """A kubeconfig with everything inside, readable by its owner only."""
        certificate, key, authority = (
            base64.b64encode(path.read_bytes()).decode()
            for path in (self._crt(name), self._key(name), self._crt("ca"))
        )
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "hams-e2e",
            "clusters": [
                {"name": "hams-e2e", "cluster": {"server": server, "certificate-authority-data": authority}}
            ],
            "users": [
                {"name": name, "user": {"client-certificate-data": certificate, "client-key-data": key}}
            ],
            "contexts": [{"name": "hams-e2e", "context": {"cluster": "hams-e2e", "user": name}}],
        }
        file.write_text(json.dumps(content, indent=1))
        file.chmod(0o600)

    def _key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def _crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"


def verifies(folder: Path, name: str, by: str = "ca") -> bool:
    """Whether a certificate is one of its authority's."""
    done = subprocess.run(
        ["openssl", "verify", "-CAfile", folder / f"{by}.crt", folder / f"{name}.crt"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def make_control_plane(folder: Path, state: Path) -> Authority:
    """Everything but the nodes' own certificates. Raises CommandFailed."""
    authority = Authority(folder)
    authority.make_authority("ca")
    authority.make_authority("front-proxy-ca")
    services = ",".join(
        f"DNS:kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local")
    )
    authority.make(
        "apiserver",
        "kube-apiserver",
        names=f"{services},DNS:localhost,IP:127.0.0.1,IP:{API_SERVICE},IP:{node_address(0)}",
    )
    authority.make("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
    authority.make("front-proxy-client", "front-proxy-client", by="front-proxy-ca")
    authority.make("admin", "admin", "system:masters")
    authority.make("kcm", "system:kube-controller-manager")
    authority.make("scheduler", "system:kube-scheduler")
    authority.make("kube-proxy", "system:kube-proxy")
    authority.make("coredns", "system:serviceaccount:kube-system:coredns")
    authority.make_key("sa")
    authority.make_public("sa")
    for name in ("admin", "kcm", "scheduler", "coredns"):
        authority.kubeconfig(name, state / f"{name}.kubeconfig", f"https://127.0.0.1:{API_PORT}")
    authority.kubeconfig(
        "kube-proxy", state / "kube-proxy.kubeconfig", f"https://{node_address(0)}:{API_PORT}"
    )
    if not verifies(folder, "admin"):
        raise CommandFailed(f"certificates in {folder} do not verify")
    return authority


def make_node(authority: Authority, number: int, file: Path) -> None:
    """A node's certificate, as client and as server of its kubelet, and its kubeconfig."""
    name = node_name(number)
    authority.make(
        name, f"system:node:{name}", "system:nodes", f"DNS:{name},IP:{node_address(number)},IP:127.0.0.1"
    )
    authority.kubeconfig(name, file, f"https://{node_address(0)}:{API_PORT}")
