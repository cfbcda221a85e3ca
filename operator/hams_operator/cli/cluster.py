"""Graphs on a Kubernetes cluster: what the API server and the graph's status say, by the user's rights.

Nothing here reaches a pod but through the API server, so that it works wherever kubectl does.
"""

import asyncio
import base64
import inspect
import json
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from hams_operator.cli import in_pod, in_pod_profile
from hams_operator.cli.forward import forwarded
from hams_operator.cli.output import check_namespace, complain
from hams_operator.cli.runs import OnLine, Reached, Target, chosen
from hams_operator.controller.kube import GRAPHS, PODS, KubeClient, KubeError, NoCluster, client_of
from hams_operator.graph_seen import ClusterGraph, status_of
from hams_operator.graph_status import GraphStatus, InstanceStatus
from hams_operator.learning import NothingLearnt, learning
from hams_operator.plan.names import (
    FRONTEND_ROLE,
    GRAPH,
    HTTP_PORT,
    MANAGER_ROLE,
    MODEL,
    PROXY,
    RESTART_LOST,
    Json,
)
from hams_operator.plan.pods_seen import Pod, pod_of, pod_seen
from hams_protocol.graph import SchedulePolicy
from hams_protocol.wholeness import STATE_LOST
from hams_wire.profiles import ProfileReport, decode_report

_KILLED = 128 + signal.SIGKILL


class Cluster:
    """One namespace of one cluster."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def graphs(self) -> list[Json]:
        """All graphs of the namespace."""
        page = await self.kube.page(GRAPHS, self.namespace, "")
        return list(page["items"])

    async def find(self, graph: str | None) -> ClusterGraph:
        """The graph of that name; without a name the only one. Raises CommandError: exit 2 and the names if
        there are several."""
        there = {item["metadata"]["name"]: item for item in await self.graphs()}
        name = chosen(graph, list(there), self.where, "create one with: kubectl apply -f FILE")
        return await self.whole(there[name])

    async def whole(self, item: Json) -> ClusterGraph:
        """A graph with its pods."""
        return ClusterGraph(item, await self.pods(item["metadata"]["name"]))

    async def pods(self, graph: str) -> tuple[Pod, ...]:
        """The pods of a graph, as they are now."""
        page = await self.kube.page(PODS, self.namespace, f"{GRAPH}={graph}")
        return tuple(pod_seen(pod) for pod in page["items"])

    @property
    def where(self) -> str:
        """See `Runs`."""
        return f"in namespace {self.namespace}"

    async def every(self) -> list[GraphStatus]:
        """See `Runs`."""
        return [status_of(await self.whole(item)) for item in await self.graphs()]

    async def status(self, graph: str | None) -> GraphStatus:
        """See `Runs`."""
        return status_of(await self.find(graph))

    async def strike(self, graph: str, instance: InstanceStatus, process: str, number: str) -> dict[str, int]:
        """See `Runs`."""
        names = [pod.name for pod in await self.pods(graph)]
        pod = instance.id if instance.id in names else pod_of(instance.id, names)
        if pod is None:
            complain(f"{instance.id} has no pod any more")
        container = PROXY if instance.operator else instance.role
        program = ["python3", "-I", "-S", "-c", inspect.getsource(in_pod), process, number]
        hit: dict[str, int] = json.loads(await self.run_in(pod, container, program, may_end_container=True))
        return hit

    async def logs(
        self, graph: str | None, operator: str, lines: int, follow: bool, earlier: int, on_line: OnLine
    ) -> None:
        """See `Runs`. Of the pods that are there now; nothing is kept of earlier ones."""
        seen = await self.find(graph)
        pods = sorted(pod.name for pod in seen.pods if pod.of == operator)
        if not pods:
            complain(
                f'no pods of "{operator}"; there are: {", ".join(sorted({pod.of for pod in seen.pods}))}'
            )
        containers = [operator] if operator in (FRONTEND_ROLE, MANAGER_ROLE) else [PROXY, MODEL]
        query = {"tailLines": str(lines), **({"follow": "true"} if follow else {})}
        todo = [self._copy_log(pod, container, query, on_line) for pod in pods for container in containers]
        if follow:
            await asyncio.gather(*todo)
        else:
            for item in todo:
                await item

    async def _copy_log(self, pod: str, container: str, query: dict[str, str], on_line: OnLine) -> None:
        name = f"{pod}.{container}" if container in (MODEL, PROXY) else pod
        try:
            path = PODS.url(self.namespace, pod, "log")
            async for line in self.kube.lines(path, {"container": container, **query}):
                on_line(name, line)
        except KubeError as error:
            if error.status not in (400, 404):  # 400: the container has not started yet
                raise
            on_line(name, f"({error})")

    @asynccontextmanager
    async def reach(self, graph: str) -> AsyncIterator[Reached]:
        """See `Runs`. Connections go through the API server to the ready frontends, one after the other."""
        await self.find(graph)

        async def ready() -> list[str]:
            pods = [pod for pod in await self.pods(graph) if pod.of == FRONTEND_ROLE]
            return sorted(pod.name for pod in pods if pod.ready and not pod.deleting)

        async with forwarded(self.kube, self.namespace, HTTP_PORT, ready) as url:
            yield Reached(url)

    async def profile(self, graph: str | None, operator: str) -> list[ProfileReport]:
        """See `Runs`. Each pod is asked by a program that runs in it."""
        seen = await self.find(graph)
        operators = _learning(seen, operator)
        pods = [pod.name for pod in seen.pods if pod.of in operators and pod.ready and not pod.deleting]
        program = _program("show")
        pages = await asyncio.gather(*(self.run_in(pod, PROXY, program) for pod in sorted(pods)))
        reports = [decode_report(page.encode()) for page in pages if page.strip()]
        return sorted(reports, key=lambda item: (item.operator, item.instance))

    async def forget(self, graph: str | None, operator: str) -> list[str]:
        """See `Runs`. One pod of each operator writes it."""
        seen = await self.find(graph)
        operators = _learning(seen, operator)
        for name in operators:
            await self.run_in(_one_pod(seen, name), PROXY, _program("forget"))
        return list(operators)

    async def stored(self, graph: str | None, operator: str) -> dict[str, bytes]:
        """See `Runs`. A pod of each operator reads it."""
        seen = await self.find(graph)
        values: dict[str, bytes] = {}
        for name in _learning(seen, operator):
            values[name] = base64.b64decode(await self.run_in(_one_pod(seen, name), PROXY, _program("read")))
        return values

    async def give(self, graph: str | None, profiles: Mapping[str, bytes]) -> bool:
        """See `Runs`. A pod of each operator writes it."""
        seen = await self.find(graph)
        for name, data in profiles.items():
            text = base64.b64encode(data)
            program = _program("give", "/proc", str(len(text)))
            await self.run_in(_one_pod(seen, name), PROXY, program, stdin=text)
        return True

    async def restart(self, graph: str | None, operator: str) -> str:
        """See `Runs`. The controller tells the graph; it holds for this loss only."""
        item = (await self.find(graph)).item
        name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
        conditions = (item.get("status") or {}).get("conditions", [])
        lost = [condition["message"] for condition in conditions if condition["reason"] == STATE_LOST]
        states = [state for message in lost for state in re.findall(r"\S+@\d+(?:-r\d+)?", message)]
        asked = next((state for state in states if state.startswith(f"{operator}@")), None)
        if asked is None:
            why = f": {lost[0]}" if lost else ""
            complain(f"the state of {operator} is not lost, as the status of {name} says{why}")
        body = {"metadata": {"resourceVersion": version, "annotations": {RESTART_LOST: asked}}}
        await self.kube.merge(GRAPHS, self.namespace, name, body)
        return str(name)

    async def run_in(
        self,
        pod: str,
        container: str,
        command: list[str],
        may_end_container: bool = False,
        stdin: bytes = b"",
    ) -> str:
        """What a command in a container writes to stdout. Raises CommandError with its stderr if it fails.
        `may_end_container`: it may have ended the container, and so itself, after it has written. `stdin`:
        what it reads there, and no end of it follows."""
        query = [
            ("container", container),
            ("stdout", "true"),
            ("stderr", "true"),
            *([("stdin", "true")] if stdin else []),
            *(("command", argument) for argument in command),
        ]
        socket = await self.kube.socket(PODS.url(self.namespace, pod, "exec"), query)
        if stdin:
            await socket.send_bytes(b"\0" + stdin)
        written = {1: b"", 2: b"", 3: b""}
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                written[message.data[0]] = written.get(message.data[0], b"") + message.data[1:]
        status = json.loads(written[3] or b"{}")
        causes = {
            cause.get("reason"): cause.get("message")
            for cause in (status.get("details") or {}).get("causes") or []
        }
        ended = causes.get("ExitCode", "")
        if status.get("status") == "Success" or (
            may_end_container and written[1] and ended in ("", str(_KILLED))
        ):
            return written[1].decode()
        why = (
            f"the command ended with exit code {ended}"
            if ended
            else status.get("message", "the connection ended")
        )
        complain(f"in pod {pod}: {written[2].decode('utf-8', 'replace').strip() or why}")


def _program(*words: str) -> list[str]:
    """The command that runs `in_pod_profile` in a pod."""
    return ["python3", "-I", "-S", "-c", inspect.getsource(in_pod_profile), *words]


def _one_pod(seen: ClusterGraph, operator: str) -> str:
    """A ready pod of an operator, which reaches etcd. Raises CommandError."""
    pods = [pod.name for pod in seen.pods if pod.of == operator and pod.ready and not pod.deleting]
    if not pods:
        complain(f"no pod of {operator} is ready, so none reaches what is stored of its times")
    return min(pods)


def _learning(seen: ClusterGraph, operator: str) -> tuple[str, ...]:
    """The operators whose times are learnt: this one, or all of them. Raises CommandError."""
    metadata, spec = seen.item["metadata"], seen.item["spec"]
    policies = {
        op["name"]: (op.get("batch") or {}).get("policy", SchedulePolicy.FIFO.value)
        for op in spec.get("operators", [])
    }
    try:
        return learning(policies, operator)
    except NothingLearnt as error:
        complain(f"{metadata['name']}: {error}")


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Cluster]:
    """Talk to a cluster. Raises CommandError where that does not work."""
    check_namespace(target.namespace)
    try:
        kube = await client_of(target.context)
    except NoCluster as error:
        complain(str(error))
    try:
        yield Cluster(kube, target.namespace or kube.namespace)
    except KubeError as error:
        complain(str(error))
    finally:
        await kube.close()
