"""One of two replicas acts: the one that holds the Lease. It renews it; a replica that could not for
`lease_renew_s` ends itself, before another one can have it.

Optimistic locking by resourceVersion decides between two that try at once; the clock is this machine's own,
read from the moment a change of the Lease was seen, never compared with a time that another machine wrote.
"""

import asyncio
import datetime
import logging

from hams_operator.controller.kube import LEASES, Kube, KubeError
from hams_operator.plan.names import Json

lease_s = 15
"""A controller that has not renewed its lease for this long is taken for dead."""

lease_renew_s = 10.0
"""One that could not renew it for this long ends itself: nobody else can have it by then."""

lease_pause_s = 2.0
"""Between two looks at the lease."""


log = logging.getLogger("hams.controller")

LEASE = "hams-controller"


class Election:
    """`won` is set once we hold the lease; `run` returns when we have lost it."""

    def __init__(self, kube: Kube, namespace: str, identity: str) -> None:
        self.won = asyncio.Event()
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0

    async def run(self) -> None:
        """Take the lease and keep it; returns when it is lost."""
        loop = asyncio.get_running_loop()
        renewed_at = loop.time()
        while True:
            asked_at = loop.time()
            left_s = lease_renew_s - (asked_at - renewed_at if self.won.is_set() else 0.0)
            try:
                async with asyncio.timeout(left_s):
                    held = await self._try(asked_at)
            except KubeError as error:
                log.warning("the lease: %s", error)
                held = False
            except TimeoutError:
                log.warning("the lease: no answer within %.1f s", left_s)
                held = False
            if held:
                renewed_at = asked_at
                if not self.won.is_set():
                    log.info("%s leads", self._identity)
                    self.won.set()
            elif self.won.is_set() and loop.time() - renewed_at >= lease_renew_s:
                log.error("%s leads no longer: the lease could not be renewed", self._identity)
                return
            ends_s = renewed_at + lease_renew_s - loop.time() if self.won.is_set() else lease_pause_s
            await asyncio.sleep(max(0.0, min(lease_pause_s, ends_s)))

    async def _try(self, now: float) -> bool:
        lease = await self._kube.get(LEASES, self._namespace, LEASE)
        if lease is None:
            fresh = {
                "apiVersion": LEASES.api_version,
                "kind": "Lease",
                "metadata": {"name": LEASE},
                "spec": self._spec({}),
            }
            return await self._write(fresh, new=True)
        spec: Json = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if (holder, spec.get("renewTime", "")) != self._seen:
            self._seen, self._seen_at = (holder, spec.get("renewTime", "")), now
        expired = now - self._seen_at > float(spec.get("leaseDurationSeconds") or lease_s)
        if holder not in ("", self._identity) and not expired:
            return False
        return await self._write({**lease, "spec": self._spec(spec)}, new=False)

    async def _write(self, lease: Json, *, new: bool) -> bool:
        try:
            if new:
                await self._kube.create(LEASES, self._namespace, lease)
            else:
                await self._kube.replace(LEASES, self._namespace, LEASE, lease)
        except KubeError as error:
            if error.status == 409:
                return False
            raise
        return True

    def _spec(self, before: Json) -> Json:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": lease_s,
            "acquireTime": before.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not before else 1),
        }

    async def resign(self) -> None:
        """Let the other one begin at once."""
        if not self.won.is_set():
            return
        try:
            lease = await self._kube.get(LEASES, self._namespace, LEASE)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                await self._write(
                    {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}},
                    new=False,
                )
        except KubeError as error:
            log.info("the lease is left to expire: %s", error)
