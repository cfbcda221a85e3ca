"""The controller as a process: `python -m hams_operator.controller`.

Health and metrics serve from the start, the webhook as soon as it has a certificate that the API server
trusts: on every replica. The replica that holds the Lease works; one that loses it ends, and is started
again. A replica is ready once its webhook listens; whether it leads is no matter of readiness.
"""

import asyncio
import hmac
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

import uvloop
from aiohttp import web

from hams_operator.controller import limits
from hams_operator.controller.etcd_cache import EtcdCache
from hams_operator.controller.etcd_keys import EtcdKeys
from hams_operator.controller.identities import Identities, IssuedIdentities, NoIdentities, metrics_token
from hams_operator.controller.kube import OWNED, PODS, Kube, KubeError, NoCluster, client_of
from hams_operator.controller.leading import Leading
from hams_operator.controller.options import ControllerOptions, options_from
from hams_operator.controller.reconcile import Reconciler
from hams_operator.controller.registrations import WatchEnded, watch_graphs
from hams_operator.controller.secrets import NotOwned
from hams_operator.controller.store import GraphKey, Store
from hams_operator.controller.watching import ObjectFollower
from hams_operator.controller.webhook import Webhook
from hams_operator.controller.workers import Workers
from hams_operator.plan.names import GRAPH
from hams_wire import logs
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.exposition import CONTENT_TYPE, Sample, exposition, of_process

log = logging.getLogger("hams.controller")

begin_wait_s = 10.0
"""The first look at a graph waits this long for etcd, and for all objects to be listed."""

unseen_pause_s = 2.0
"""Between two looks at a graph whose objects have not been listed yet."""

SELECTOR = f"app.kubernetes.io/managed-by=hams,{GRAPH}"


class Controller:
    """Everything that the leading replica does. `run` until cancelled, or until something of it ends that
    never should."""

    def __init__(
        self,
        kube: Kube,
        coordination: EtcdCoordination,
        options: ControllerOptions,
        identities: Identities,
        listen: Callable[[], None],
    ) -> None:
        """`listen` is called once kopf has taken the signals of the process for itself: to take them back."""
        self._options = options
        self._listen = listen
        self.workers: Workers[GraphKey] = Workers(self._work)
        self.store = Store(self.workers.enqueue)
        self.cache = EtcdCache(coordination, self._etcd_changed)
        self._reconciler = Reconciler(kube, self.store, self.cache, options.settings, identities)
        self._identities = identities
        self._keys: dict[str, GraphKey] = {}
        self._followers = [
            ObjectFollower(
                kube,
                resource,
                namespace,
                SELECTOR,
                self.store.put,
                partial(self.store.drop, resource.kind),
                heard,
            )
            for namespace in (options.namespaces or ("",))
            for resource, heard in (
                *((owned, partial(self.store.on_event, owned.kind)) for owned in OWNED.values()),
                (PODS, None),
            )
        ]

    def _etcd_changed(self, graph_uid: str) -> None:
        if not graph_uid:
            if not self.cache.away:
                self._identities.doubt()
            for every in self._keys.values():
                self.workers.enqueue(every)
        # a later incarnation
        key = self._keys.get(graph_uid) or self._keys.get(graph_uid.rpartition("-r")[0])
        if key is not None:
            self.workers.enqueue(key)

    async def _work(self, key: GraphKey) -> float | None:
        item = self.store.graph(key)
        unseen = [follower for follower in self._followers_of(key[0]) if not follower.synced.is_set()]
        goes = item is not None and "deletionTimestamp" in item["metadata"]
        # What is not seen is not missing. But a namespace that is deleted is there until its graphs are let
        # go, and we may see nothing else in it any more.
        if unseen and not (goes and all(follower.barred for follower in unseen)):
            return unseen_pause_s
        if item is not None:
            self._keys[item["metadata"]["uid"]] = key
        again_s = await self._reconciler.reconcile(key)
        if self.store.graph(key) is None:
            self._keys = {uid: other for uid, other in self._keys.items() if other != key}
        return again_s

    def _followers_of(self, namespace: str) -> Iterator[ObjectFollower]:
        return (item for item in self._followers if item.namespace in ("", namespace))

    async def _listed(self) -> None:
        """Wait for what there is to be known; not for ever. A namespace whose objects cannot be listed (it is
        being deleted, its RoleBinding is gone) holds up its own graphs only."""
        try:
            async with asyncio.timeout(begin_wait_s):
                for follower in self._followers:
                    await follower.synced.wait()
                await self.cache.read.wait()
        except TimeoutError:
            unseen = {item.namespace or "the cluster" for item in self._followers if not item.synced.is_set()}
            if unseen:
                log.warning("not listed yet: objects of %s", ", ".join(sorted(unseen)))
            if self.cache.away:
                log.warning("etcd does not answer: %s", self.cache.away)

    async def _check_again(self) -> None:
        """Certificates end without anything happening."""
        while True:
            # what was looked at holds as long: together not longer than that time
            await asyncio.sleep(limits.certificate_check_s / 2)
            for key in self._keys.values():
                self.workers.enqueue(key)

    async def run(self) -> None:
        """See the class."""
        stop, ready = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.run())
            group.create_task(self.cache.run())
            await self._listed()
            group.create_task(watch_graphs(self.store, self._options.namespaces, stop, ready))
            await ready.wait()
            self._listen()
            self.workers.begin()
            group.create_task(self._check_again())
            try:
                await asyncio.Event().wait()
            finally:
                stop.set()
                await self.workers.close()


async def serve(options: ControllerOptions) -> int:
    """Run one replica until it is asked to end (0) or its lease is lost (1)."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)

    listen()
    kube = await client_of()
    ended = loop.create_task(asked.wait())
    keys = EtcdKeys(kube, options) if options.settings.etcd.startswith("https:") else None
    if keys is not None:
        begun = loop.create_task(keys.begin())
        await asyncio.wait((ended, begun), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            begun.cancel()
            await kube.close()
            return 0
    coordination = EtcdCoordination(options.settings.etcd, None if keys is None else keys.tls)
    identities: Identities = NoIdentities()
    if options.settings.tls:
        identities = IssuedIdentities(
            kube, options.namespace, options.metrics_secret, None if keys is None else coordination, keys
        )
    election = Leading(client_of, options.namespace, options.pod)
    controller = Controller(kube, coordination, options, identities, listen)
    webhook = Webhook(kube, options) if options.webhook_service else None
    runner = await _health(options, election, controller, kube, webhook)
    elected = loop.create_task(election.run())
    tasks = [ended, elected]
    if keys is not None:
        tasks.append(loop.create_task(keys.run()))
    if webhook is not None:
        tasks.append(loop.create_task(webhook.run()))

    async def lead() -> None:
        await election.won.wait()
        await controller.run()

    tasks.append(loop.create_task(lead()))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return 0 if ended in done else 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await election.resign()
        await runner.cleanup()
        await coordination.close()
        await kube.close()


async def _health(
    options: ControllerOptions, election: Leading, controller: Controller, kube: Kube, webhook: Webhook | None
) -> web.AppRunner:
    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if webhook is not None and not webhook.listens:  # why, is in the log: strangers may ask here
            return web.Response(status=503, text="the webhook does not listen yet\n")
        return web.Response(text="ok\n")

    token, read_at = b"", 0.0

    async def metrics(request: web.Request) -> web.Response:
        nonlocal token, read_at
        if options.settings.tls:
            now = asyncio.get_running_loop().time()
            # strangers do not make us ask the API server
            if not token or now - read_at > limits.certificate_check_s:
                try:
                    token, read_at = (
                        await metrics_token(kube, options.namespace, options.metrics_secret),
                        now,
                    )
                except (KubeError, NotOwned) as error:
                    return web.Response(status=503, text=f"the token of metrics: {error}\n")
            if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), b"Bearer " + token):
                return web.Response(
                    status=401,
                    text=f"expected Authorization: Bearer and the token in Secret {options.metrics_secret}\n",
                )
        page = exposition((*_samples(controller, election.won.is_set(), kube.requests), *of_process()))
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, None, options.health_port).start()
    return runner


def _samples(controller: Controller, leads: bool, requests: int) -> Iterator[Sample]:
    """Of graphs, only who leads says anything: what another replica has of them, if anything, is old."""
    yield Sample("hams_controller_leads", "Whether this replica works.", int(leads))
    yield Sample("hams_controller_graphs", "ServiceGraphs that there are.", controller.store.graphs)
    yield Sample("hams_controller_rounds_total", "Looks at a graph.", controller.workers.rounds)
    yield Sample(
        "hams_controller_failures_total", "Looks that failed and are repeated.", controller.workers.failures
    )
    yield Sample("hams_controller_kube_requests_total", "Requests to the API server.", requests)
    yield Sample(
        "hams_controller_etcd_away",
        "Whether etcd cannot be read.",
        int(bool(controller.cache.away) and leads),
    )
    yield Sample(
        "hams_controller_etcd_full",
        "Whether etcd takes no writes, as it has reached its quota.",
        int(controller.cache.full and leads),
    )
    about = "Whether a condition of a graph's status is True; 0 where it is False or Unknown."
    for (namespace, graph), kind, holds in controller.store.conditions() if leads else ():
        yield Sample(
            "hams_controller_graph_condition",
            about,
            int(holds),
            {"namespace": namespace, "graph": graph, "type": kind},
        )


def main() -> int:
    """Entry point."""
    try:
        options = options_from(os.environ)
    except ValueError as error:
        sys.stderr.write(f"hams-controller: {error}\n")
        return 2
    logs.configure(options.log_level, options.settings.log_format)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("hams.wire").setLevel(logging.WARNING)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(options))
    except (OSError, NoCluster) as error:
        log.error("%s", error)
    except ExceptionGroup as group:
        known, others = group.split((WatchEnded, OSError))
        if others is not None:
            raise others from None
        assert known is not None, "not an empty group"
        log.error("%s", known.exceptions[0])
    return 1
