"""`hams status`, `logs`, `kill` and `load` for graphs on a Kubernetes cluster: what the API server and the
graph's status say, by the user's rights.

Nothing here reaches a pod but through the API server, so that it works wherever kubectl does.
"""

import asyncio
import inspect
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from hams_graph.wholeness import READY, STATE_LOST
from hams_operator.cli import in_pod
from hams_operator.cli.kill import PROCESSES, ROLES, SIGNALS, pick
from hams_operator.cli.output import Output, check_lines, check_namespace, complain, console, print_json
from hams_operator.controller.kube import GRAPHS, PODS, KubeClient, KubeError, NoCluster, client_of
from hams_operator.local.observe import Condition, FailureInfo, InstanceStatus, Status
from hams_operator.plan.names import (
    FRONTEND_ROLE,
    GRAPH,
    MANAGER_ROLE,
    MODEL,
    PROXY,
    RESTART_LOST,
    Json,
    Place,
)
from hams_operator.plan.pods_seen import Pod, pod_of, pod_seen

_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster: a context of the kubeconfig and a namespace, each as given or None: then the
    kubeconfig's current one and the context's."""

    context: str | None = None
    namespace: str | None = None

    @property
    def given(self) -> bool:
        """Whether a cluster is meant at all, not this machine."""
        return self.context is not None or self.namespace is not None


@dataclass(frozen=True, slots=True)
class Found:
    """A graph on a cluster, and its pods."""

    item: Json
    pods: tuple[Pod, ...]


class Cluster:
    """One namespace of one cluster."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def graphs(self) -> list[Json]:
        """All graphs of the namespace."""
        page = await self.kube.page(GRAPHS, self.namespace, "")
        return list(page["items"])

    async def find(self, graph: str | None) -> Found:
        """The graph of that name; without a name the only one. Raises CommandError: exit 2 and the names if
        there are several."""
        there = await self.graphs()
        names = [item["metadata"]["name"] for item in there]
        if graph is not None and graph not in names:
            complain(
                f'no graph "{graph}" in namespace {self.namespace}'
                + (f"; there are: {', '.join(names)}" if names else "")
            )
        if graph is None and not there:
            complain(f"no graph in namespace {self.namespace}; create one with: kubectl apply -f FILE")
        if graph is None and len(there) > 1:
            complain(f"several graphs: {', '.join(names)}; choose one with --graph NAME", 2)
        item = there[0 if graph is None else names.index(graph)]
        return await self.whole(item)

    async def whole(self, item: Json) -> Found:
        """A graph with its pods."""
        page = await self.kube.page(PODS, self.namespace, f"{GRAPH}={item['metadata']['name']}")
        return Found(item, tuple(pod_seen(pod) for pod in page["items"]))

    async def run_in(self, pod: str, container: str, command: list[str], ends_with_it: bool = False) -> str:
        """What a command in a container writes to stdout. Raises CommandError with its stderr if it fails.
        `ends_with_it`: it may have ended the container, and so itself, after it has written."""
        query = [
            ("container", container),
            ("stdout", "true"),
            ("stderr", "true"),
            *(("command", word) for word in command),
        ]
        socket = await self.kube.socket(PODS.url(self.namespace, pod, "exec"), query)
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
        if status.get("status") == "Success" or (ends_with_it and written[1] and ended in ("", str(_KILLED))):
            return written[1].decode()
        why = (
            f"the command ended with exit code {ended}"
            if ended
            else status.get("message", "the connection ended")
        )
        complain(f"in pod {pod}: {written[2].decode('utf-8', 'replace').strip() or why}")


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


def status_of(seen: Found) -> Status:
    """As `hams status` shows a local run: the graph's status, one line per instance. Process ids of a pod
    mean nothing outside; there are none."""
    metadata, status = seen.item["metadata"], seen.item.get("status") or {}
    place = Place(metadata["name"], metadata["namespace"])
    failure = status.get("lastFailureInfo")
    log = tuple(str(failure.get("log", "")).splitlines()) if failure else ()
    return Status(
        metadata["name"],
        status.get("url", place.url),
        place.grpc,
        status.get("generation", 0),
        tuple(
            Condition(item["type"], item["status"], item["reason"], item["message"])
            for item in status.get("conditions", [])
        )
        or (Condition(READY, "Unknown", "NoStatus", "the controller has not looked at it yet"),),
        tuple(instances_of(seen)),
        (FailureInfo(failure["operator"], failure["instance"], failure.get("exitCode", 0), log),)
        if failure
        else (),
    )


def instances_of(seen: Found) -> list[InstanceStatus]:
    """Instances with a role by the status, and pods that have none there: frontends, managers, and those that
    are still starting."""
    listed: list[InstanceStatus] = []
    living = {pod.name: pod for pod in seen.pods if not pod.deleting}
    for op in (seen.item.get("status") or {}).get("operators", []):
        epoch, name = op.get("epoch", 0), op["name"]
        roles = [
            ("primary", [op["primary"]] if "primary" in op else []),
            ("backup", op.get("inSync", [])),
            ("joining", op.get("joining", [])),
        ]
        roles += [
            ("active", list(dict.fromkeys(filter(None, op.get("active", []))))),
            ("standby", op.get("standbys", [])),
        ]
        for role, instances in roles:
            shown = 0 if role in ("standby", "joining") else epoch
            listed += [
                InstanceStatus(item, name, role, False, shown, op.get("version"), None, None)
                for item in instances
            ]
    known = {pod_of(item.id, living) for item in listed}
    leader = min((pod.name for pod in living.values() if pod.of == MANAGER_ROLE and pod.ready), default=None)
    for pod in sorted(living.values(), key=lambda pod: pod.name):
        if pod.of in (FRONTEND_ROLE, MANAGER_ROLE):
            listed.append(InstanceStatus(pod.name, None, pod.of, pod.name == leader, 0, None, None, None))
        elif pod.name not in known:
            listed.append(InstanceStatus(pod.name, pod.of, "starting", False, 0, None, None, None))
    return listed


def status(target: Target, graph: str | None, every: bool, output: Output) -> int:
    """Show one graph, or all of the namespace."""

    async def work() -> tuple[list[Status], str]:
        async with connect(target) as cluster:
            if not every:
                return [status_of(await cluster.find(graph))], cluster.namespace
            return [
                status_of(await cluster.whole(item)) for item in await cluster.graphs()
            ], cluster.namespace

    seen, namespace = asyncio.run(work())
    if output is Output.JSON:
        print_json(seen if every else seen[0])
        return 0
    from hams_operator.cli.table import table  # noqa: PLC0415 - rich, only where it is shown

    terminal = console()
    for number, item in enumerate(seen):
        if number:
            terminal.print("")
        terminal.print(table(item))
    if not seen:
        terminal.print(f"no graph in namespace {namespace}")
    return 0


def logs(target: Target, operator: str, graph: str | None, lines: int, follow: bool, output: Output) -> int:
    """The last lines of an operator's pods; with `follow` what those that are there now go on to say."""
    check_lines(lines)

    def say(name: str, line: str) -> None:
        sys.stdout.write(
            (json.dumps({"process": name, "line": line}) if output is Output.JSON else f"{name} | {line}")
            + "\n"
        )
        if follow:
            sys.stdout.flush()

    async def tell(cluster: Cluster, pod: str, container: str) -> None:
        query = {"container": container, "tailLines": str(lines), **({"follow": "true"} if follow else {})}
        name = f"{pod}.{container}" if container in (MODEL, PROXY) else pod
        try:
            async for line in cluster.kube.lines(PODS.url(cluster.namespace, pod, "log"), query):
                say(name, line)
        except KubeError as error:
            if error.status not in (400, 404):  # 400: the container has not started yet
                raise
            say(name, f"({error})")

    async def work() -> None:
        async with connect(target) as cluster:
            seen = await cluster.find(graph)
            pods = sorted(pod.name for pod in seen.pods if pod.of == operator)
            if not pods:
                complain(
                    f'no pods of "{operator}"; there are: {", ".join(sorted({pod.of for pod in seen.pods}))}'
                )
            containers = [operator] if operator in (FRONTEND_ROLE, MANAGER_ROLE) else [PROXY, MODEL]
            todo = [tell(cluster, pod, container) for pod in pods for container in containers]
            if follow:
                await asyncio.gather(*todo)
            else:
                for item in todo:
                    await item

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        return 130
    return 0


def kill(
    target: Target,
    operator: str | None,
    graph: str | None,
    role: str | None,
    leader: bool,
    instance: str | None,
    process: str,
    number: str,
    output: Output,
) -> int:
    """Send a signal to an instance's processes, from inside its pod, and say which."""
    number = number.removeprefix("SIG")
    if number not in SIGNALS:
        complain(f"--signal: expected {', '.join(SIGNALS)}, found {number}", 2)
    if process not in PROCESSES:
        complain(f"--process: expected {', '.join(PROCESSES)}, found {process}", 2)
    if role is not None and role not in ROLES:
        complain(f"--role: expected {', '.join(ROLES)}, found {role}", 2)
    if operator is None and instance is None:
        complain("kill what? Expected an operator, frontend or manager, or --instance ID", 2)

    async def work() -> tuple[InstanceStatus, dict[str, int]]:
        async with connect(target) as cluster:
            seen = await cluster.find(graph)
            chosen = pick(status_of(seen), operator, role, leader, instance)
            names = [pod.name for pod in seen.pods]
            pod = chosen.id if chosen.id in names else pod_of(chosen.id, names)
            if pod is None:
                complain(f"{chosen.id} has no pod any more")
            container = PROXY if chosen.operator else chosen.role
            said = await cluster.run_in(
                pod,
                container,
                ["python3", "-I", "-S", "-c", inspect.getsource(in_pod), process, number],
                ends_with_it=True,
            )
            return chosen, json.loads(said)

    chosen, hit = asyncio.run(work())
    if not hit:
        complain(f"{chosen.id} has no living {'process' if process == 'both' else process} any more")
    if output is Output.JSON:
        print_json(
            {
                "instance": chosen.id,
                "operator": chosen.operator,
                "role": chosen.role,
                "signal": number,
                "pids": hit,
            }
        )
    else:
        what = " and ".join(f"{name} {pid}" for name, pid in hit.items())
        place = (
            f"{chosen.role} of {chosen.operator}"
            if chosen.operator
            else chosen.role + (" (leader)" if chosen.leader else "")
        )
        sys.stdout.write(f"{signal.Signals[f'SIG{number}'].name}: {chosen.id}, {place}: {what}\n")
    return 0


def restart(target: Target, operator: str, graph: str | None, output: Output) -> int:
    """Say that a lost state shall begin again: the controller tells the graph. Holds for this loss only."""

    async def work() -> str:
        async with connect(target) as cluster:
            item = (await cluster.find(graph)).item
            name = item["metadata"]["name"]
            lost = [
                condition
                for condition in (item.get("status") or {}).get("conditions", [])
                if condition["reason"] == STATE_LOST
            ]
            asked = next(
                (
                    word
                    for condition in lost
                    for word in re.findall(r"\S+@\d+", condition["message"])
                    if word.startswith(f"{operator}@")
                ),
                None,
            )
            if asked is None:
                complain(
                    f"the state of {operator} is not lost, as the status of {name} says"
                    + (f": {lost[0]['message']}" if lost else "")
                )
            body: Json = {
                "metadata": {
                    "resourceVersion": item["metadata"]["resourceVersion"],
                    "annotations": {RESTART_LOST: asked},
                }
            }
            await cluster.kube.merge(GRAPHS, cluster.namespace, name, body)
            return str(name)

    name = asyncio.run(work())
    if output is Output.JSON:
        print_json({"graph": name, "restarts": operator})
    else:
        sys.stdout.write(
            f"the state of {operator} begins again, from its newest checkpoint if there is one\n"
        )
    return 0


_LOOK_S = 0.5
"""How long what was seen of the frontends holds."""


# -- a way to the graph's Service ----------------------------------------------------------------------------


@asynccontextmanager
async def forwarded(target: Target, graph: str, port: int) -> AsyncIterator[str]:
    """A URL on this machine whose connections end in the graph's ready frontends, one after the other,
    through the API server."""
    async with connect(target) as cluster:
        seen = await cluster.find(graph)
        loop = asyncio.get_running_loop()
        turn, looked_at, ready = 0, -1.0, list[str]()
        looking = asyncio.Lock()
        open_ones: set[asyncio.Task[None]] = set()

        async def choose() -> str | None:
            nonlocal turn, looked_at, ready
            async with looking:
                if loop.time() - looked_at > _LOOK_S:
                    there = await cluster.whole(seen.item)
                    ready = sorted(
                        pod.name
                        for pod in there.pods
                        if pod.of == FRONTEND_ROLE and pod.ready and not pod.deleting
                    )
                    looked_at = loop.time()
            turn += 1
            return ready[turn % len(ready)] if ready else None

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                pod = await choose()
                if pod is not None:
                    path = PODS.url(cluster.namespace, pod, "portforward")
                    await _pump(reader, writer, await cluster.kube.socket(path, [("ports", str(port))]))
            except (KubeError, ConnectionError):
                pass  # the client sees its connection break, as it would without us
            finally:
                writer.close()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(serve(reader, writer))
            open_ones.add(task)
            task.add_done_callback(open_ones.discard)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in list(open_ones):
                task.cancel()
            await asyncio.gather(*open_ones, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: aiohttp.ClientWebSocketResponse
) -> None:
    """Both ways until either ends. Channel 0 is data, 1 errors; the first message of each names the port."""

    async def up() -> None:
        while data := await reader.read(1 << 16):
            await socket.send_bytes(b"\0" + data)

    async def down() -> None:
        begun: set[int] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if channel != 0 and data:
                return
            if data:
                writer.write(data)
                await writer.drain()

    tasks = [asyncio.ensure_future(way()) for way in (up, down)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await socket.close()
