"""Certificates around etcd: of its members, of the controller, and of each graph.

One authority signs for who listens and who dials, another for the members among themselves: a graph's
certificate lets nobody join the cluster. The controller is etcd's `root`, a graph the user that `user_of`
names (`hams_wire.coordination.etcd_users` says what it may do). For an etcd of the user's own the Secret with
its authorities is given (`ca.crt`, `client-ca.crt`, `client-ca.key`), and nothing is made for members.

The controller's own certificate lies in files, as the client reads it from there; they are in a folder that
nobody else can read.
"""

import asyncio
import datetime
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from hams_operator.controller import limits
from hams_operator.controller.certificates import (
    Authority,
    Subject,
    authorities,
    fresh_authority,
    good,
    issue,
)
from hams_operator.controller.kube import SECRETS, Kube, KubeError
from hams_operator.controller.options import ControllerOptions
from hams_operator.controller.secrets import Data, NotOwned, data_of, keep
from hams_wire.coordination.etcd_members import Tls
from hams_wire.coordination.etcd_users import ROOT

etcd_authority_days = 3650
"""etcd reads the authorities that it trusts at its start only, so they are not replaced automatically
(docs/security.md)."""


log = logging.getLogger("hams.controller")

Clock = Callable[[], datetime.datetime]


class NoEtcdKeys(Exception):
    """The Secret with etcd's authorities is not there, or is not what it should be."""


def user_of(graph_uid: str) -> str:
    """The user of etcd that a graph is."""
    return f"hams-{graph_uid}"


def utc() -> datetime.datetime:
    """The present time in UTC."""
    return datetime.datetime.now(datetime.UTC)


class EtcdKeys:
    """`tls`, `trust` and `client_authority` are good once `begin` has returned."""

    def __init__(self, kube: Kube, options: ControllerOptions, clock: Clock = utc) -> None:
        self._kube = kube
        self._options = options
        self._clock = clock
        self._folder = tempfile.TemporaryDirectory(prefix="hams-etcd-")
        folder = Path(self._folder.name)
        self.tls = Tls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
        self.trust = b""
        self._authority: Authority | None = None

    @property
    def own(self) -> bool:
        """Whether etcd is the chart's."""
        return bool(self._options.etcd_members_secret)

    @property
    def client_authority(self) -> Authority:
        """The authority that signs for clients of etcd."""
        assert self._authority is not None, "begin first"
        return self._authority

    async def begin(self) -> None:
        """Wait until there are keys."""
        pause_s = limits.kube_pause_s
        while True:
            try:
                await self.reconcile()
            except (KubeError, NoEtcdKeys, NotOwned) as error:
                log.warning("etcd's certificates: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.kube_pause_max_s)
            else:
                return

    async def run(self) -> None:
        """Renew what is about to end, until cancelled."""
        while True:
            await asyncio.sleep(limits.certificate_check_s)
            await self.begin()

    async def reconcile(self) -> None:
        """Have everything that there should be now. Raises KubeError, NoEtcdKeys, NotOwned."""
        if self.own:
            held = await keep(
                self._kube, self._options.namespace, self._options.etcd_secret, self._with_authorities
            )
            self._authority, self.trust = Authority(held["ca.crt"], held["ca.key"]), held["ca.crt"]
            peers = Authority(held["peer-ca.crt"], held["peer-ca.key"])
            await keep(
                self._kube,
                self._options.namespace,
                self._options.etcd_members_secret,
                lambda data: self._of_members(data, peers),
            )
        else:
            self._authority, self.trust = await self._given()
        self._write_own()

    async def _given(self) -> tuple[Authority, bytes]:
        name = self._options.etcd_secret
        held = data_of(await self._kube.get(SECRETS, self._options.namespace, name))
        try:
            (authority,) = authorities(held["client-ca.crt"], held["client-ca.key"])
            return authority, held["ca.crt"]
        except (KeyError, ValueError) as error:
            wanted = (
                "expected ca.crt (who signed for etcd), client-ca.crt and client-ca.key (who signs for its "
                "clients)"
            )
            raise NoEtcdKeys(f"Secret {name}: {wanted}: {error!r}") from None

    def _with_authorities(self, held: Data) -> Data:
        """etcd reads the authorities that it trusts at its start only, so what is there stays."""
        try:
            authorities(held["ca.crt"] + held["peer-ca.crt"], held["ca.key"] + held["peer-ca.key"])
        except (KeyError, ValueError):
            made, peers = (
                fresh_authority(name, self._clock(), etcd_authority_days)
                for name in ("hams-etcd-ca", "hams-etcd-peer-ca")
            )
            return {
                "ca.crt": made.certificate,
                "ca.key": made.key,
                "peer-ca.crt": peers.certificate,
                "peer-ca.key": peers.key,
            }
        return held

    def _of_members(self, held: Data, peers: Authority) -> Data:
        """etcd reads certificates and keys at every handshake: these are replaced under it. `client`: of the
        commands that look after a member."""
        hosts = [urlsplit(item).hostname or "" for item in self._options.settings.etcd.split(",")]
        member, parts = (
            Subject(hosts=tuple(dict.fromkeys((*hosts, *_service(hosts[0]), "localhost")))),
            Subject(hosts=tuple(hosts)),
        )
        signers = (
            ("tls", self.client_authority, member),
            ("peer", peers, parts),
            ("client", self.client_authority, Subject(ROOT, serves=False)),
        )
        data: dict[str, bytes] = {"ca.crt": self.trust, "peer-ca.crt": peers.certificate}
        for name, authority, subject in signers:
            certificate, key = held.get(f"{name}.crt", b""), held.get(f"{name}.key", b"")
            if not good(certificate, key, authority, subject, self._clock(), limits.leaf_renew_days):
                certificate, key = issue(authority, subject, self._clock(), limits.leaf_days)
            data |= {f"{name}.crt": certificate, f"{name}.key": key}
        return data

    def _write_own(self) -> None:
        assert self.tls.certificate is not None
        assert self.tls.key is not None
        subject = Subject(ROOT, serves=False)
        try:
            there = self.tls.certificate.read_bytes(), self.tls.key.read_bytes()
        except FileNotFoundError:
            there = b"", b""
        if not good(*there, self.client_authority, subject, self._clock(), limits.leaf_renew_days):
            there = issue(self.client_authority, subject, self._clock(), limits.leaf_days)
        for path, data in (
            (self.tls.authority, self.trust),
            (self.tls.certificate, there[0]),
            (self.tls.key, there[1]),
        ):
            if not path.exists() or path.read_bytes() != data:
                fresh = path.with_suffix(".new")
                fresh.write_bytes(data)
                os.replace(fresh, path)


def _service(member: str) -> tuple[str, ...]:
    """The Service in front of all members, from the name of one: `hams-etcd-0.hams-etcd-peers.NAMESPACE.svc`
    belongs to `hams-etcd`."""
    pod, _, rest = member.partition(".")
    name, domain = pod.rpartition("-")[0], rest.partition(".")[2]
    return (f"{name}.{domain}",) if name and domain else ()
