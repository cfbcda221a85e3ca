"""kopf's part: it watches ServiceGraphs and tells the store. Handlers decide nothing, keep nothing, and never
write to the resource."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

import kopf

from hams_operator.controller import limits
from hams_operator.controller.kube import GRAPHS
from hams_operator.controller.store import Store
from hams_operator.plan.names import Json

if TYPE_CHECKING:
    from kopf._core.engines.peering import Identity

GROUP, VERSION = GRAPHS.api_version.split("/")


class _NoDiffBase(kopf.DiffBaseStorage):
    """A memory of handled changes that holds nothing: kopf asks it before each event, though only handlers of
    changes, of which there are none, would use it."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[object] | None = None) -> kopf.BodyEssence:
        """An empty essence, instead of a copy of the resource."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """No essence: none is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store no essence."""


class _Pauses:
    """Between attempts of a request, without an end. After the last one kopf gives up, for all namespaces: a
    single one where the API server says no would end the controller of all graphs."""

    def __iter__(self) -> Iterator[float]:
        pause_s = limits.kube_pause_s
        while True:
            yield pause_s
            pause_s = min(2 * pause_s, limits.kube_pause_max_s)


class WatchEnded(Exception):
    """Ours: ServiceGraphs are not seen any more."""


def registry_of(store: Store) -> kopf.OperatorRegistry:
    """Handlers that feed `store`."""
    registry = kopf.OperatorRegistry()

    async def on_event(event: kopf.RawEvent, **_: object) -> None:
        item: Json = dict(event["object"])
        key = item["metadata"]["namespace"], item["metadata"]["name"]
        if event["type"] == "DELETED":
            store.drop_graph(key, str(item["metadata"].get("uid", "")))
        else:
            store.put_graph({"apiVersion": GRAPHS.api_version, "kind": GRAPHS.kind, **item})

    async def on_login(**connection: object) -> kopf.ConnectionInfo | None:
        settings = cast(kopf.OperatorSettings, connection["settings"])
        return kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(
            settings=settings
        )

    kopf.on.login(registry=registry)(on_login)
    kopf.on.event(GROUP, VERSION, GRAPHS.plural, registry=registry)(on_event)
    return registry


def settings_of() -> kopf.OperatorSettings:
    """kopf as a watcher only: no annotations, no Events, no peering of its own."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.networking.error_backoffs = _Pauses()
    settings.queueing.idle_timeout = 1.0
    return settings


async def watch_graphs(
    store: Store, namespaces: tuple[str, ...], stop: asyncio.Event, ready: asyncio.Event
) -> None:
    """Watch until `stop` is set. Raises WatchEnded if kopf gives up before: a controller that sees no graphs
    must not go on as if there were none."""
    await kopf.operator(
        registry=registry_of(store),
        settings=settings_of(),
        standalone=True,
        # else it asks for the user's name, and in our image the user has none
        identity=cast("Identity", "hams-controller"),
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
        ready_flag=ready,
    )
    if not stop.is_set():
        raise WatchEnded("kopf has stopped to watch ServiceGraphs")
