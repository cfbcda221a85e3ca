"""The port through which the controller talks to Kubernetes, and its one real implementation, on the
`kubernetes` client.

Every failure is a `KubeError`: the API server's own word (`status` is its HTTP code), or `status` 0 where
none came. Nothing is repeated here: the controller looks again at everything and decides anew, so an unknown
outcome needs no case of its own.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
import msgspec
import yaml
import yarl
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException

from hams_operator.plan.names import FIELD_MANAGER, Json

kube_request_s = 15.0
"""The API server answers a request within this time, or the outcome is unknown."""

kube_connections_max = 600
"""Connections to the API server: `hams load` takes one for each of its own, the controller never more than
its workers and watches."""

kube_watch_s = 300
"""The API server ends a watch after this long; it is begun anew where it ended."""

kube_silent_s = 70.0
"""A watch without a word for this long is begun anew where it ended: bookmarks come every 60 s, and of an API
server whose machine is gone nothing tells."""

kube_page_items = 500
"""Objects in one page of a list."""


APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
HEARD = "HEARD"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind: where its objects lie. `path`: of the API group, such as `apis/apps/v1`."""

    kind: str
    path: str
    plural: str

    @property
    def api_version(self) -> str:
        """As objects name it."""
        return self.path.split("/", 1)[1]

    def url(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path of all objects, those of a namespace, or one."""
        parts = [
            self.path,
            *(["namespaces", namespace] if namespace else []),
            self.plural,
            *([name] if name else []),
            *([sub] if sub else []),
        ]
        return "/" + "/".join(parts)


GRAPHS = Resource("ServiceGraph", "apis/hams.dev/v1alpha1", "servicegraphs")
PODS = Resource("Pod", "api/v1", "pods")
NODES = Resource("Node", "api/v1", "nodes")
EVENTS = Resource("Event", "api/v1", "events")
SECRETS = Resource("Secret", "api/v1", "secrets")
LEASES = Resource("Lease", "apis/coordination.k8s.io/v1", "leases")
WEBHOOKS = Resource(
    "ValidatingWebhookConfiguration",
    "apis/admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations",
)
OWNED = {
    item.kind: item
    for item in (
        Resource("ConfigMap", "api/v1", "configmaps"),
        Resource("Service", "api/v1", "services"),
        Resource("Deployment", "apis/apps/v1", "deployments"),
        Resource("PodDisruptionBudget", "apis/policy/v1", "poddisruptionbudgets"),
        Resource("NetworkPolicy", "apis/networking.k8s.io/v1", "networkpolicies"),
    )
}
"""Kinds of the objects of a graph."""


Heard = Callable[[str, str, str, Callable[[], Json]], bool]
"""Whether an object as it is now is no news: its namespace, name and version, and how to have the whole of
it."""


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_EVENTS = msgspec.json.Decoder(_Event)
_OBJECTS = msgspec.json.Decoder(_Object)


def _event(line: bytes, heard: Heard | None) -> Json:
    """To read the whole of an object takes five times as long as to read whose version it is."""
    event = _EVENTS.decode(line)
    if heard is not None and event.type in ("ADDED", "MODIFIED"):
        metadata = _OBJECTS.decode(event.object).metadata
        if heard(
            metadata.namespace,
            metadata.name,
            metadata.resourceVersion,
            partial(msgspec.json.decode, event.object),
        ):
            return {"type": HEARD, "object": {"metadata": msgspec.structs.asdict(metadata)}}
    return {"type": event.type, "object": msgspec.json.decode(event.object)}


class KubeError(Exception):
    """The API server's refusal (`status`: its HTTP code), or no answer (`status` 0: the outcome is not
    known)."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def permanent(self) -> bool:
        """Whether asking for the same again is of no use until something changes."""
        return self.status in (400, 403, 405, 422)


class Kube(Protocol):
    """What the controller asks of Kubernetes. `requests`: how many were sent."""

    requests: int

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object; None if there is none."""
        ...

    async def create(self, resource: Resource, namespace: str, item: Json) -> Json:
        """A new object; status 409 if there is one of that name."""
        ...

    async def replace(self, resource: Resource, namespace: str, name: str, item: Json) -> Json:
        """The object as a whole; status 409 if it has changed since it was read."""
        ...

    async def apply(self, resource: Resource, namespace: str, name: str, item: Json, sub: str = "") -> Json:
        """Server-side apply under our field manager; what others own by force becomes ours."""
        ...

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """A JSON merge patch."""
        ...

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str = "",
        grace_s: int | None = None,
        *,
        dependents_first: bool = False,
    ) -> None:
        """Delete, if it is still the one with this `uid`. What is gone already, or another by now, is fine.
        Dependents go in the background, or `dependents_first`: then it is there until they are gone, and
        makes no new ones."""
        ...

    async def page(
        self, resource: Resource, namespace: str, selector: str, after: str = "", fields: str = ""
    ) -> Json:
        """A page of a list; `after`: the `continue` of the one before; `fields`: a selector of fields."""
        ...

    def watch(
        self, resource: Resource, namespace: str, selector: str, version: str, heard: Heard | None = None
    ) -> AsyncIterator[Json]:
        """Changes since `version`, bookmarks included, until the API server ends it. What `heard` says is no
        news comes as HEARD, metadata alone."""
        ...


class KubeClient:
    """`Kube` on the `kubernetes` client. `namespace`: where the user's kubeconfig looks if nothing else is
    said."""

    def __init__(self, client: ApiClient, namespace: str = "default") -> None:
        self._client = client
        self.namespace = namespace
        self.requests = 0

    async def close(self) -> None:
        """Hang up."""
        await self._client.rest_client.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """See `Kube.get`."""
        try:
            return await self._ask("GET", resource.url(namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, resource: Resource, namespace: str, item: Json) -> Json:
        """See `Kube.create`. A field that the API server does not know is refused, as an apply refuses it."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._ask("POST", resource.url(namespace), body=item, query=query)

    async def replace(self, resource: Resource, namespace: str, name: str, item: Json) -> Json:
        """See `Kube.replace`."""
        return await self._ask(
            "PUT", resource.url(namespace, name), body=item, query={"fieldManager": FIELD_MANAGER}
        )

    async def apply(self, resource: Resource, namespace: str, name: str, item: Json, sub: str = "") -> Json:
        """See `Kube.apply`."""
        # an apply looks at fields by itself, and again if asked to
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Ignore"}
        return await self._ask(
            "PATCH", resource.url(namespace, name, sub), body=item, query=query, content_type=APPLY
        )

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """See `Kube.merge`."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Ignore"}
        return await self._ask(
            "PATCH", resource.url(namespace, name), body=patch, query=query, content_type=MERGE
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str = "",
        grace_s: int | None = None,
        *,
        dependents_first: bool = False,
    ) -> None:
        """See `Kube.delete`."""
        body: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if dependents_first else "Background",
        }
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._ask("DELETE", resource.url(namespace, name), body=body)
        except KubeError as error:
            if error.status not in (404, 409):
                raise

    async def page(
        self, resource: Resource, namespace: str, selector: str, after: str = "", fields: str = ""
    ) -> Json:
        """See `Kube.page`."""
        query = {
            "labelSelector": selector,
            **({"fieldSelector": fields} if fields else {}),
            "limit": str(kube_page_items),
            **({"continue": after} if after else {}),
        }
        return await self._ask("GET", resource.url(namespace), query=query)

    async def watch(
        self, resource: Resource, namespace: str, selector: str, version: str, heard: Heard | None = None
    ) -> AsyncIterator[Json]:
        """See `Kube.watch`."""
        query = {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
        }
        query["timeoutSeconds"] = str(kube_watch_s)
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=kube_request_s,
            sock_read=kube_silent_s,
        )
        response = await self._send("GET", resource.url(namespace), query, None, "", timeout)
        try:
            async for line in response.content:
                if line.strip():
                    yield _event(line, heard)
        except aiohttp.SocketTimeoutError:
            return
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeError(0, f"the watch of {resource.plural} broke: {error}") from None
        finally:
            response.close()

    async def evict(self, namespace: str, pod: str) -> None:
        """Ask for a pod's eviction; status 429 while its budget does not permit it."""
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        await self._ask("POST", PODS.url(namespace, pod, "eviction"), body=body)

    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncIterator[str]:
        """What a path answers, line by line, for as long as it goes on: logs."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=kube_request_s)
        response = await self._send("GET", path, query, None, "", timeout)
        try:
            async for line in response.content:
                yield line.decode("utf-8", "replace").rstrip("\n")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeError(0, f"{path} broke: {error}") from None
        finally:
            response.close()

    async def socket(self, path: str, query: Sequence[tuple[str, str]]) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket into a pod: exec or portforward. Only after another request."""
        session = self._client.rest_client.pool_manager
        assert session is not None, "made by the first request"
        headers: dict[str, str] = {}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        url = f"{self._client.configuration.host}{path}?{urlencode(query)}"
        try:
            return await session.ws_connect(
                url, headers=headers, protocols=("v4.channel.k8s.io",), max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            raise KubeError(error.status, f"{path}: {error.message}") from None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise KubeError(0, f"{path}: {error}") from None

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=kube_request_s)
        response = await self._send(method, path, query, body, content_type, timeout)
        try:
            answer: Json = msgspec.json.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeError(0, f"{method} {path}: no answer: {error}") from None
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        self.requests += 1
        headers = {
            "Accept": "application/json",
            **({"Content-Type": content_type} if body is not None else {}),
        }
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = await self._request(method, url, headers, body, timeout)
            if response.status < 300:
                return response
            text = await response.text(errors="replace")  # a proxy before it may write in any encoding
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise KubeError(0, f"{method} {path}: no answer: {str(error) or type(error).__name__}") from None
        try:
            message = str(msgspec.json.decode(text).get("message", text))
        except (ValueError, AttributeError):
            message = text
        retry = response.headers.get("Retry-After", "0")
        raise KubeError(
            response.status,
            f"{method} {path}: {message.strip()[:2000]}",
            float(retry) if retry.isdigit() else 0.0,
        )

    async def _request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Json | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The client makes the session, with its certificates; then most requests go to it directly: the
        client's own JSON takes as long as the rest of a request. Its ways around (proxies, another name in
        TLS) are left to it."""
        rest = self._client.rest_client
        session: aiohttp.ClientSession | None = rest.pool_manager
        if session is None or rest.proxy or rest.configuration.tls_server_name:
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            return response
        data = None if body is None else msgspec.json.encode(body)
        return await session.request(
            method, yarl.URL(url, encoded=True), headers=headers, data=data, timeout=timeout
        )


class NoCluster(Exception):
    """No cluster is configured here; the text says why."""


def configuration_of() -> Configuration:
    """The client's, before it is told where its cluster is. A session that trusts the environment reads
    .netrc and looks for a proxy before each request, both in threads: the former is nothing that Kubernetes
    knows, the latter does not change."""
    configuration = Configuration()
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    return configuration


def _some_exists(files: str) -> bool:
    """Whether there is one of these files, which are as KUBECONFIG has them."""
    return any(os.path.exists(os.path.expanduser(path)) for path in files.split(os.pathsep) if path)


async def client_of(context: str | None = None) -> KubeClient:
    """A client, from the pod's account or, outside a cluster, from the user's kubeconfig, whose context may
    name a namespace. Raises NoCluster."""
    configuration, loader = configuration_of(), None
    configuration.connection_pool_maxsize = kube_connections_max
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        if context is None and "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        elif not _some_exists(files):
            raise NoCluster(f"no cluster to talk to: there is no kubeconfig {files}")
        else:
            loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                files, context, configuration
            )
        client = ApiClient(configuration)
    except ConfigException as error:
        raise NoCluster(f"no cluster to talk to: {error}") from None
    except OSError as error:
        raise NoCluster(
            f"no cluster to talk to: {error.filename or files}: {error.strerror or error}"
        ) from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # it takes for granted what a file holds
        raise NoCluster(
            f"no cluster to talk to: expected a kubeconfig in {files}: {' '.join(str(error).split())}"
        ) from None
    chosen = {} if loader is None else loader.current_context["context"]
    return KubeClient(client, str(chosen.get("namespace") or "default"))
