"""Identities of the parts of a graph: an authority of its own, a certificate by it that names the graph, and
etcd's user for it.

The authority's key lies in the controller's namespace, in a Secret `graph-UID`; what pods mount lies beside
the graph, in `NAME-hams-tls`, and belongs to it. Both are looked at once in `certificate_check_s` per graph,
and mended. docs/security.md says who proves what with it.
"""

import asyncio
import secrets as randomness
from typing import Protocol

from hams_operator.controller import limits
from hams_operator.controller.certificates import (
    Authority,
    Subject,
    authorities,
    bundle,
    good,
    issue,
    rotated,
    signer,
)
from hams_operator.controller.etcd_keys import Clock, EtcdKeys, user_of, utc
from hams_operator.controller.kube import SECRETS, Kube
from hams_operator.controller.secrets import Data, data_of, keep
from hams_operator.limits import etcd_poll_s
from hams_operator.plan.names import GraphRef
from hams_wire import records, tls
from hams_wire.coordination import etcd_users
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.errors import CoordinationError

metrics_token_check_s = 60.0
"""Between two looks at the token of metrics: graphs that begin together are given what one look has found."""

probe_token_bytes = 24
"""Of randomness in the token that the kubelet's probes bear."""


class Identities(Protocol):
    """What the reconciler asks for."""

    async def ensure(self, place: GraphRef, *, fresh: bool = False) -> str:
        """Have all that pods of this graph need to prove who they are; the token of their probes. `fresh`:
        most likely there is nothing of it yet. Raises KubeError, NotOwned, CoordinationError."""
        ...

    async def forget(self, owner_uid: str) -> None:
        """Remove what there is of a graph outside its namespace. Raises KubeError, CoordinationError."""
        ...

    def doubt(self) -> None:
        """Etcd was away, or went back: what it was asked to hold may not be there."""
        ...


class NoIdentities:
    """`tls.enabled: false`: nobody proves anything."""

    async def ensure(self, place: GraphRef, *, fresh: bool = False) -> str:
        """See `Identities.ensure`."""
        return ""

    async def forget(self, owner_uid: str) -> None:
        """See `Identities.forget`."""

    def doubt(self) -> None:
        """See `Identities.doubt`."""


class IssuedIdentities:
    """`etcd`, `keys`: None where etcd is spoken to in the clear; then a graph has no user there."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        metrics_secret: str,
        etcd: EtcdCoordination | None,
        keys: EtcdKeys | None,
        clock: Clock = utc,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._metrics_secret = metrics_secret
        self._etcd = etcd
        self._keys = keys
        self._clock = clock
        self._known: dict[str, tuple[float, str]] = {}
        self._metrics = 0.0, b""
        self._locked_until_s = 0.0
        self._doubts = 0

    async def ensure(self, place: GraphRef, *, fresh: bool = False) -> str:
        """See `Identities.ensure`."""
        known = self._known.get(place.owner_uid)
        now_s = asyncio.get_running_loop().time()
        if known is not None and now_s < known[0]:
            return known[1]
        doubts = self._doubts
        away = await self._allow(place, fresh)
        if now_s >= self._metrics[0]:
            token = await metrics_token(self._kube, self._namespace, self._metrics_secret)
            self._metrics = now_s + metrics_token_check_s, token
        metrics = self._metrics[1]
        secret = await keep(
            self._kube,
            self._namespace,
            _secret_of(place.owner_uid),
            lambda held: self._with_authority(held, place),
            fresh=fresh,
        )
        held = authorities(secret["ca.crt"], secret["ca.key"])
        probes = secret[tls.PROBE_TOKEN]
        fixed = {
            tls.AUTHORITY: bundle(held),
            tls.IDENTITY: identity_of(place).encode(),
            tls.PROBE_TOKEN: probes,
            tls.METRICS_TOKEN: tls.sealed(metrics),
        }
        metadata = place.metadata(place.secret)
        await keep(
            self._kube,
            place.namespace,
            place.secret,
            lambda mounted: self._mounted(mounted, fixed, held, place),
            metadata,
            fresh=fresh,
        )
        if doubts == self._doubts:
            self._known[place.owner_uid] = (
                now_s + (etcd_poll_s if away else limits.certificate_check_s / 2),
                probes.decode(),
            )
        return probes.decode()

    async def forget(self, owner_uid: str) -> None:
        """See `Identities.forget`."""
        self._known.pop(owner_uid, None)
        if self._etcd is not None:
            await etcd_users.forget(self._etcd, user_of(owner_uid))
        await self._kube.delete(SECRETS, self._namespace, _secret_of(owner_uid))

    def doubt(self) -> None:
        """See `Identities.doubt`."""
        self._doubts += 1
        self._known.clear()
        self._locked_until_s = 0.0

    async def _allow(self, place: GraphRef, fresh: bool) -> bool:
        """The user in etcd comes before the certificate that makes somebody that user; and before any user,
        etcd asks who one is.

        With etcd away, a graph that has its certificate goes on without: True then. Raises CoordinationError,
        KubeError.
        """
        if self._etcd is None or self._keys is None:
            return False
        uid = place.owner_uid
        try:
            now_s, doubts = asyncio.get_running_loop().time(), self._doubts
            if self._keys.own and now_s >= self._locked_until_s:
                await etcd_users.lock(self._etcd)
                if doubts == self._doubts:
                    self._locked_until_s = now_s + limits.certificate_check_s / 2
            await etcd_users.allow(self._etcd, user_of(uid), records.all_of(uid), fresh=fresh)
        except CoordinationError:
            if tls.ETCD_CERTIFICATE not in data_of(
                await self._kube.get(SECRETS, place.namespace, place.secret)
            ):
                raise
            return True
        return False

    def _with_authority(self, held: Data, place: GraphRef) -> Data:
        try:
            before = authorities(held["ca.crt"], held["ca.key"])
        except (KeyError, ValueError):
            before = ()
        after = rotated(before, f"{place.namespace}/{place.name}"[:64], self._clock())
        token = held.get(tls.PROBE_TOKEN) or _token()
        return {
            "ca.crt": bundle(after),
            "ca.key": b"".join(item.key for item in after),
            tls.PROBE_TOKEN: token,
        }

    def _mounted(self, held: Data, fixed: Data, trusted: tuple[Authority, ...], place: GraphRef) -> Data:
        now = self._clock()
        wanted = [(tls.CERTIFICATE, tls.KEY, signer(trusted, now), Subject(uris=(identity_of(place),)))]
        data = dict(fixed)
        if self._keys is not None:
            data[tls.ETCD_AUTHORITY] = self._keys.trust
            wanted.append(
                (
                    tls.ETCD_CERTIFICATE,
                    tls.ETCD_KEY,
                    self._keys.client_authority,
                    Subject(user_of(place.owner_uid), serves=False),
                )
            )
        for name, key_name, authority, subject in wanted:
            certificate, key = held.get(name, b""), held.get(key_name, b"")
            if not good(certificate, key, authority, subject, now, limits.leaf_renew_days):
                certificate, key = issue(authority, subject, now, limits.leaf_days)
            data |= {name: certificate, key_name: key}
        return data


async def metrics_token(kube: Kube, namespace: str, secret: str) -> bytes:
    """What Prometheus bears when it asks any part of any graph, or the controller. Raises KubeError,
    NotOwned."""
    return (
        await keep(kube, namespace, secret, lambda held: held if held.get("token") else {"token": _token()})
    )["token"]


def identity_of(place: GraphRef) -> str:
    """What certificates of a graph's parts name."""
    return f"spiffe://hams/{place.namespace}/{place.name}"


def _secret_of(owner_uid: str) -> str:
    return f"graph-{owner_uid}"


def _token() -> bytes:
    return randomness.token_urlsafe(probe_token_bytes).encode()
