"""List, then watch, for as long as it takes: what an informer does, for kinds of which only the labelled
objects matter.

kopf watches ServiceGraphs; it filters labels on its own side, so watching pods through it would mean reading
every pod of a cluster.
"""

import asyncio
import logging
from collections.abc import Callable

from hams_operator.controller import limits
from hams_operator.controller.kube import HEARD, Heard, Kube, KubeError, Resource
from hams_operator.plan.names import Json

log = logging.getLogger("hams.controller")


class ObjectFollower:
    """Keeps somebody up to date about the labelled objects of one kind in one namespace ("": all).

    `put(item)` for each that is there or has changed, and of which `heard` does not say that it is no news;
    `gone(namespace, name)` for each that no longer is. `synced` is set after the first list.
    `barred`: we may not list them, by the API server's last word.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        namespace: str,
        selector: str,
        put: Callable[[Json], None],
        gone: Callable[[str, str], None],
        heard: Heard | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self.barred = False
        self._kube = kube
        self._resource = resource
        self.namespace = namespace
        self._selector = selector
        self._put = put
        self._gone = gone
        self._heard = heard
        self._known: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        pause_s = limits.kube_pause_s
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.barred = False
                    self.synced.set()
                version = await self._watch(version)
                pause_s = limits.kube_pause_s
            except KubeError as error:
                if error.status == 410:  # the changes in between are forgotten
                    version = ""
                    continue
                self.barred = error.status == 403
                log.warning("%s are not seen: %s", self._resource.plural, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.kube_pause_max_s)
                version = "" if error.status else version

    async def _list(self) -> str:
        there: set[tuple[str, str]] = set()
        after = ""
        while True:
            page = await self._kube.page(self._resource, self.namespace, self._selector, after)
            for item in page.get("items") or []:
                item.setdefault("kind", self._resource.kind)
                item.setdefault("apiVersion", self._resource.api_version)
                there.add(_key(item))
                self._put(item)
            after = page["metadata"].get("continue", "")
            if not after:
                break
        for namespace, name in self._known - there:
            self._gone(namespace, name)
        self._known = there
        return str(page["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        async for event in self._kube.watch(
            self._resource, self.namespace, self._selector, version, self._heard
        ):
            item = event["object"]
            if event["type"] == "ERROR":
                raise KubeError(int(item.get("code", 0)), str(item.get("message", "the watch was ended")))
            version = item["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._known.discard(_key(item))
                self._gone(*_key(item))
            elif event["type"] != "BOOKMARK":
                self._known.add(_key(item))
                if event["type"] != HEARD:
                    self._put(item)
        return version


def _key(item: Json) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
