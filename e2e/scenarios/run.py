"""What scenarios are written in: one graph on a cluster, under verified load, with its pods by role.

    with graph_on(installation, "chain") as run:
        with run.load(clients=4):
            run.delete(run.pod_of("b", "primary"), force=True)
            run.redundant()
    run.verify()

After a run: one reply per key, counts that are exactly 1..n, and a history that the independent checker
accepts.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml
from benchmarks.judged import odd

from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed, NotInTime, before_others, until
from e2e.cluster.layout import HISTORY, ROOT
from e2e.scenarios.certificates import by_hand
from e2e.scenarios.hits import Hits
from e2e.scenarios.install import NAMESPACE as SYSTEM
from e2e.scenarios.install import RELEASE, Installation, inner_etcd
from hams_graph import load as load_graph
from hams_history import lines as history
from hams_history.checker import check_directory
from hams_operator.plan.desired import desired
from hams_operator.plan.names import GraphRef, Settings
from hams_operator.plan.pods_seen import pod_of
from hams_protocol.graph import GraphData
from hams_wire.notes import header_of
from hams_wire.spec import encode_spec

NAMESPACE = "default"
READY_S = 120.0
REDUNDANT_S = 120.0
GONE_S = 90.0
GONE_LATE_S = 180.0
"""For a graph to go. After the API server was away, programs of Kubernetes look for it again after up to a
minute."""
KNOWN_S = 60.0
POLL_S = 0.05
POD_POLL_S = 0.5
"""Between two looks at pods: each starts a kubectl, which takes 0.15 s of a core from what is measured."""
EVENTS_SHOWN = 40
LOOK_S = 10
"""For each look at objects after a failure."""
STATELESS = "active"
CLIENTS_NICE = -15
"""Clients are elsewhere, and do not wait for the machines that they ask; while a pod starts they would get a
seventeenth of the cores, and measure their own delay."""
FULL = os.environ.get("FULL") == "1"
CALM = 1000 if FULL else 200
"""Replies before anything is done to the graph: what is usual here and now."""
ONE = ({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]},)
"""What clients ask, unless a graph wants something else."""


def hams(*words: object, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """The command, as a person types it."""
    command = [sys.executable, "-m", "hams_operator.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


class Agent:
    """The process in node 0's network, see `agent`."""

    def __init__(self, cluster: Cluster) -> None:
        path = os.pathsep.join(str(ROOT / part) for part in (".", "sidecar", "operator"))
        words = cluster.command_in(0, sys.executable, "-m", "e2e.scenarios.agent")
        self._log = (cluster.folders.state / "agent.log").open("ab")
        environment = {**os.environ, "PYTHONPATH": path}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        self._process = subprocess.Popen(words, **pipes, cwd=ROOT, env=environment, start_new_session=True)
        if cluster.recorded:
            before_others(self._process.pid, CLIENTS_NICE)

    def ask(self, do: str, **order: object) -> Any:
        """One command and its answer. Raises CommandFailed when the process has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "a pipe"
        assert stdout is not None, "a pipe"
        _write(stdin, {"do": do, **order})
        line = stdout.readline()
        if not line:
            raise CommandFailed(f"the agent in node 0's network has ended, see {self._log.name}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(10)
        self._log.close()


def _write(stream: IO[bytes], order: object) -> None:
    stream.write(json.dumps(order).encode() + b"\n")
    stream.flush()


@dataclass
class GraphRun(Hits):
    """One graph that runs.

    `ready_s`: from `kubectl apply` until the condition Ready. `faults`: when (monotonic) and what was done to
    it; `replies`: what clients got. `settles`: whether every request is complete in the end; it is not where
    a state was lost. `gone_s`: how long it may take to go.
    """

    installation: Installation
    name: str
    uid: str
    history: Path
    tensor: str
    wanted: dict[str, int]
    agent: Agent
    inputs: Sequence[dict[str, Any]] = ONE
    ready_s: float = 0.0
    settles: bool = True
    gone_s: float = GONE_S
    replies: list[dict[str, Any]] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    troubles: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[float, str]] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        """The cluster that it runs on."""
        return self.installation.cluster

    # -- looking ---------------------------------------------------------------------------------------------

    def resource(self) -> dict[str, Any]:
        """The ServiceGraph as the API server has it."""
        item: dict[str, Any] = json.loads(
            self.cluster.kubectl("get", "servicegraph", self.name, "-n", NAMESPACE, "-o", "json")
        )
        return item

    def condition(self, kind: str) -> dict[str, str]:
        """A condition of its status; {} when it has none yet."""
        conditions = self.resource().get("status", {}).get("conditions", ())
        return next((item for item in conditions if item["type"] == kind), {})

    def pods(self) -> dict[str, dict[str, Any]]:
        """Its pods by name."""
        items = json.loads(
            self.cluster.kubectl(
                "get", "pods", "-n", NAMESPACE, "-l", f"hams.dev/graph={self.name}", "-o", "json"
            )
        )["items"]
        return {item["metadata"]["name"]: item for item in items}

    def topology(self) -> dict[str, Any]:
        """Roles by instance, from etcd; or `error`, why they could not be read just now. See `known`."""
        seen: dict[str, Any] = self.agent.ask(
            "look", etcd=self.installation.etcd(), keys=str(self.installation.etcd_keys()), uid=self.uid
        )
        return seen

    def known(self) -> dict[str, Any]:
        """The topology, once etcd answers. Raises NotInTime."""
        seen: dict[str, Any] = {}

        def is_known() -> bool:
            seen.clear()
            seen.update(self.topology())
            return "error" not in seen

        until(is_known, KNOWN_S, "an answer of etcd", POLL_S)
        return seen

    def instance_of(self, operator: str, role: str) -> str:
        """The first of `instances_of`."""
        return self.instances_of(operator, role)[0]

    def instances_of(self, operator: str, role: str) -> list[str]:
        """Instance ids, one at least. Roles: primary, backup, active; frontend and manager by their own
        name."""
        topology = self.known()
        members = {name: of for name, of in topology["members"].items() if name not in topology["revoked"]}
        if operator in ("frontend", "manager"):
            kind = {"frontend": "F", "manager": "manager"}[operator]
            names = sorted(name for name, of in members.items() if of in (kind, operator))
        elif role == STATELESS:
            names = [name for name in topology["tables"][operator] if name]
        else:
            one = topology["sets"][operator]
            names = [one["primary"]] if role == "primary" else one["inSync"]
        assert names, f"no {role} of {operator} in {topology}"
        return [str(name) for name in names]

    def pod_of(self, operator: str, role: str) -> str:
        """The pod in which such an instance runs: who has ended is a member until its lease ends."""
        instances, pods = self.instances_of(operator, role), list(self.pods())
        running = (pod for instance in instances if (pod := pod_of(instance, pods)) is not None)
        pod = next(running, None)
        assert pod is not None, f"no pod for any of {instances}"
        return pod

    def objects(self) -> str:
        """Nodes, pods, endpoints and the last events as Kubernetes has them, for who reads of a failure."""
        looks = (
            ("get", "nodes"),
            ("get", "pods,endpointslices", "-n", NAMESPACE, "-o", "wide"),
            ("get", "pods", "-n", SYSTEM),
            ("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp"),
        )
        shown = []
        for words in looks:
            try:
                printed = self.cluster.kubectl(*words, f"--request-timeout={LOOK_S}s")
                shown.append("\n".join(printed.splitlines()[-EVENTS_SHOWN:]))
            except (CommandFailed, OSError, ValueError) as error:  # ValueError: it wrote no text
                shown.append(str(error))
        return "\n\n".join(shown)

    def why_not_redundant(self, topology: dict[str, Any]) -> str:
        """What is missing until every set has its backups in sync; empty: nothing."""
        if "error" in topology:
            return str(topology["error"])
        gone = set(topology["revoked"])
        for name, backups in self.wanted.items():
            replica_set = topology["sets"].get(name, {"primary": None, "inSync": []})
            if (
                replica_set["primary"] is None
                or replica_set["primary"] in gone
                or len(set(replica_set["inSync"]) - gone) < backups
            ):
                return f"{name}: {replica_set}"
        for name, owners in topology["tables"].items():
            if None in owners or gone.intersection(owners) or len(set(owners)) < len(owners):
                return f"{name}: {owners}"
        return ""

    def why_not_ready(self, topology: dict[str, Any]) -> str:
        """What is missing until every pod is Ready, and everybody who has a role has a pod that is there;
        empty: nothing."""
        pods = self.pods()
        for pod, item in pods.items():
            conditions = item.get("status", {}).get("conditions", ())
            if "deletionTimestamp" in item["metadata"] or not any(
                one["type"] == "Ready" and one["status"] == "True" for one in conditions
            ):
                return f"pod {pod} is not Ready"
        sets = [topology["sets"][name] for name in self.wanted]
        of_sets = [name for replica_set in sets for name in (replica_set["primary"], *replica_set["inSync"])]
        for instance in (*of_sets, *(name for owners in topology["tables"].values() for name in owners)):
            if pod_of(instance, list(pods)) is None:
                return f"{instance} has no pod any more"
        return ""

    def redundant(self, within_s: float = REDUNDANT_S) -> None:
        """Until nothing is missing. Raises AssertionError with what is."""
        last = ""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            topology, pause_s = self.topology(), POLL_S
            last = self.why_not_redundant(topology)
            if not last:
                pause_s = POD_POLL_S
                try:
                    last = self.why_not_ready(topology)
                except CommandFailed as error:
                    last = str(error)
            if not last:
                return
            time.sleep(pause_s)
        raise AssertionError(f"not redundant within {within_s:g} s: {last}")

    def until(self, holds: Callable[[dict[str, Any]], bool], within_s: float = REDUNDANT_S) -> None:
        """Until the topology is as wanted. Raises NotInTime, with what there is instead."""
        seen: dict[str, Any] = {}

        def is_wanted() -> bool:
            seen.clear()
            seen.update(self.topology())
            return "error" not in seen and holds(seen)

        try:
            until(is_wanted, within_s, "topology", POLL_S)
        except NotInTime as error:
            raise NotInTime(f"{error}: {seen.get('error') or seen['sets']}") from None

    def changed(self, within_s: float = 30.0) -> None:
        """Until the pod that was deleted last is Ready no more: from then on `redundant` speaks of what came
        after."""
        pod = self.faults[-1][1].rpartition(" ")[2]

        def gone() -> bool:
            present = self.pods().get(pod)
            return present is None or "deletionTimestamp" in present["metadata"]

        until(if_known(gone), within_s, f"end of {pod}", POD_POLL_S)

    def spare_pods(self) -> list[str]:
        """Pods whose end loses no state: of every set to which they belong another member is in sync, and
        lives."""
        topology = self.topology()
        if "error" in topology:
            return []
        pods = self.pods()
        well = [
            name
            for name, item in pods.items()
            if "deletionTimestamp" not in item["metadata"]
            and any(
                one["type"] == "Ready" and one["status"] == "True"
                for one in item.get("status", {}).get("conditions", ())
            )
        ]
        gone = set(topology["revoked"])
        needed: set[str] = set()
        for replica_set in topology["sets"].values():
            holders = [
                pod_of(name, well)
                for name in (replica_set["primary"], *replica_set["inSync"])
                if name and name not in gone
            ]
            living = {pod for pod in holders if pod is not None}
            if len(living) < 2:
                needed |= living
        return [name for name in well if name not in needed]

    def failed(self) -> list[dict[str, Any]]:
        """Requests whose final answer is no reply of the graph."""
        return [reply for reply in self.replies if reply["status"] != 200]

    def stalled(self, span_s: float) -> None:
        """Let a fault last. Progress is not asked for."""
        time.sleep(span_s)

    # -- hurting ---------------------------------------------------------------------------------------------

    def delete(self, pod: str, *, force: bool = False) -> None:
        """Delete a pod: gracefully, or with `--force --grace-period=0`. Does not wait for its end."""
        self.note(f"{'force ' if force else ''}delete {pod}")
        how = ["--force", "--grace-period=0"] if force else ["--wait=false"]
        self.cluster.kubectl("delete", "pod", pod, "-n", NAMESPACE, *how)

    def note(self, what: str) -> None:
        """Remember a fault and when it was."""
        self.faults.append((time.monotonic(), what))

    # -- load ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def load(self, clients: int = 4, *, keep: bool = False) -> Iterator[None]:
        """Clients that ask one request after another until the block ends; each request that they began is
        answered before it does."""
        address = self.cluster.kubectl(
            "get", "service", self.name, "-n", NAMESPACE, "-o", "jsonpath={.spec.clusterIP}"
        )
        url = f"http://{address}:8080"
        self.agent.ask(
            "load",
            url=url,
            graph=self.name,
            history=str(self.history) if self.cluster.recorded else "",
            inputs=self.inputs,
            tensors=[self.tensor],
            clients=clients,
            keep=keep,
        )
        try:
            self.answered(CALM)
            yield
            self.answered(20)
        finally:
            result = self.agent.ask("end")
            self.replies += result["done"]
            self.unanswered += result["unanswered"]
            for what, count in result["troubles"].items():
                self.troubles[what] = self.troubles.get(what, 0) + count

    def answered(self, count: int, within_s: float = 60) -> None:
        """Until so many more requests have been answered."""
        target = int(self.agent.ask("answered")) + count
        until(lambda: int(self.agent.ask("answered")) >= target, within_s, f"{count} more replies", POLL_S)

    # -- judging ---------------------------------------------------------------------------------------------

    def latencies_ms(self) -> list[float]:
        """Of every reply, sorted."""
        return sorted(1000 * (reply["answered"] - reply["asked"]) for reply in self.replies)

    def deleted_pods(self) -> set[str]:
        """Those that were asked to end by `delete`."""
        return {what.removeprefix("delete ") for _, what in self.faults if what.startswith("delete ")}

    def handed_over(self, asked: set[str]) -> bool:
        """Whether nobody was taken for dead, as an instance may be that gets no CPU: then roles have moved by
        handoffs alone.

        `asked`: the pods that were asked to end. Raises AssertionError if all of them were taken for dead.
        """
        revoked = self.known()["revoked"]
        dead = {pod_of(instance, list(asked)) for instance in revoked}
        assert asked - dead, f"nobody handed over: of {sorted(asked)}, taken for dead: {revoked}"
        return not revoked

    def members_on(self, node: str) -> set[str]:
        """Pods on a node that are in a set: each has something to hand over."""
        pods = self.pods()
        members = {
            name
            for replica_set in self.known()["sets"].values()
            for name in (replica_set["primary"], *replica_set["inSync"])
            if name
        }
        there = {pod_of(name, list(pods)) for name in members}
        return {pod for pod in there if pod is not None and pods[pod]["spec"]["nodeName"] == node}

    def executed_again(self, of: str) -> int:
        """How often an operator executed a request that had been executed before, by its history."""
        seen: set[str] = set()
        again = 0
        for line in self.lines("exec"):
            if line.get("op") == of:
                again += line["req"] in seen
                seen.add(line["req"])
        return again

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Lines of the history so far."""
        entries = []
        for file in self.recorded():
            for text in file.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one may be half written
                    if (line := json.loads(text))["t"] == kind:
                        entries.append(line)
        return entries

    def recorded(self) -> list[Path]:
        """Files of the history: those of this graph's pods, and those of clients and harness. Other graphs
        record beside it."""
        return sorted(
            [*self.history.glob("*.jsonl"), *self.installation.history.glob(f"{self.name}-*.jsonl")]
        )

    def gather(self) -> None:
        """Bring what pods have recorded into the run's own folder, where the checker and people look."""
        for file in self.installation.history.glob(f"{self.name}-*.jsonl"):
            shutil.copy2(file, self.history / file.name)
            file.unlink()

    def verify(self) -> None:
        """One reply per key, nothing failed, counts exactly 1..n, and a history without violation."""
        assert self.replies, "there was no load"
        assert not self.unanswered, (
            f"{len(self.unanswered)} requests were never answered; troubles {self.troubles}"
        )
        failed = [reply for reply in self.replies if reply["status"] != 200]
        assert not failed, f"{len(failed)} of {len(self.replies)} requests failed, the first: {failed[0]}"
        assert len({reply["key"] for reply in self.replies}) == len(self.replies)
        counts = sorted(int(reply["tensors"][self.tensor]) for reply in self.replies)
        assert counts == list(range(1, len(counts) + 1)), f"effects lost or doubled: {odd(counts)}"
        if self.cluster.recorded:
            self.gather()
            report = check_directory(self.history)
            assert report.ok, report.render()

    def verify_history(self) -> None:
        """What is asked of a run that lost a state: everybody got a reply, and the history has no violation
        but what it reports."""
        assert not self.unanswered, (
            f"{len(self.unanswered)} requests were never answered; troubles {self.troubles}"
        )
        assert not self.failed(), (
            f"{len(self.failed())} of {len(self.replies)} requests failed, the first: {self.failed()[0]}"
        )
        if self.cluster.recorded:
            self.gather()
            report = check_directory(self.history)
            assert report.ok, report.render()


@contextlib.contextmanager
def graph_on(
    installation: Installation,
    file: Path,
    tensor: str = "count",
    inputs: Sequence[dict[str, Any]] = ONE,
    *,
    controller: bool = True,
) -> Iterator[GraphRun]:
    """A graph under a fresh name, applied and redundant, its history recorded; deleted afterwards. Its file
    names its images.

    `controller` False: the objects of `hams render` are applied by hand, and nothing follows what happens to
    them.
    """
    document = yaml.safe_load(file.read_text())
    cluster = installation.cluster
    name = document["metadata"]["name"] = f"{document['metadata']['name']}-{secrets.token_hex(2)}"
    own = cluster.folders.state / "runs" / name
    own.mkdir(parents=True)
    file = own / "graph.yaml"
    file.write_text(yaml.safe_dump(document))
    began = time.monotonic()
    uid = _applied(cluster, file, name) if controller else _applied_by_hand(cluster, file, name)
    graph = load_graph(file, uid=uid)
    wanted = {op.name: op.backups for op in graph.data.operators if op.stateful}
    wanted |= dict.fromkeys(graph.shard_names, graph.data.frontend.replicas - 1)
    _header(own, graph.data)
    agent = Agent(cluster)
    run = GraphRun(installation, name, uid, own, tensor, wanted, agent, inputs)
    try:
        if controller:
            cluster.kubectl(
                "wait",
                "--for=condition=Ready",
                f"servicegraph/{name}",
                "-n",
                NAMESPACE,
                f"--timeout={READY_S:.0f}s",
            )
            run.ready_s = time.monotonic() - began
        run.redundant()
        yield run
        run.redundant()
        if cluster.recorded and run.settles:
            settle(run)
    finally:
        agent.close()
        _delete(run, controller)


def _applied(cluster: Cluster, file: Path, name: str) -> str:
    """The uid of the graph's resource, which the controller follows from now on."""
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", file)
    return cluster.kubectl("get", "servicegraph", name, "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}")


def _applied_by_hand(cluster: Cluster, file: Path, name: str) -> str:
    """The uid of a graph whose objects were rendered and applied, without a resource of its own."""
    place = GraphRef(name, NAMESPACE)
    compiled = load_graph(file, uid=place.graph_uid())
    settings = Settings(etcd=inner_etcd(), history=HISTORY if cluster.recorded else "")
    items = list(desired(compiled, encode_spec(compiled).decode(), place, settings, "by-hand"))
    items.insert(0, by_hand(cluster, SYSTEM, RELEASE, place))
    cluster.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    return place.graph_uid()


def _delete(run: GraphRun, controller: bool) -> None:
    cluster, name = run.cluster, run.name
    if controller:
        cluster.kubectl("delete", "servicegraph", name, "-n", NAMESPACE, "--wait=false")
        gone(cluster, name, run.gone_s, lambda: not deployments(cluster, name))
    else:
        kinds = "deployment,service,configmap,secret,poddisruptionbudget,networkpolicy"
        cluster.kubectl("delete", kinds, "-n", NAMESPACE, "-l", f"hams.dev/graph={name}", "--wait=true")
    # No instance is left that could take states over, and pods would wait for one until their grace is over.
    cluster.kubectl(
        "delete", "pods", "-n", NAMESPACE, "-l", f"hams.dev/graph={name}", "--force", "--grace-period=0"
    )
    gone(cluster, name, run.gone_s, lambda: not run.pods())


def if_known(holds: Callable[[], bool]) -> Callable[[], bool]:
    """A look by kubectl, to be repeated: what the API server does not answer is not so yet."""

    def again() -> bool:
        try:
            return holds()
        except CommandFailed:
            return False

    return again


def gone(cluster: Cluster, name: str, within_s: float, is_gone: Callable[[], bool]) -> None:
    """Wait until it is. Raises NotInTime, which says what is left, and what holds it."""
    try:
        until(if_known(is_gone), within_s, f"end of {name}", 0.2)
    except NotInTime as error:
        columns = (
            "KIND:.kind,NAME:.metadata.name,GOES:.metadata.deletionTimestamp,"
            "GRACE:.metadata.deletionGracePeriodSeconds,BY:.metadata.finalizers"
        )
        kinds = "deployments,replicasets,pods,servicegraphs"
        left = cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", f"custom-columns={columns}")
        raise NotInTime(f"{error}; what is left:\n{left}") from None


def deployments(cluster: Cluster, name: str) -> list[str]:
    """Those of a graph."""
    return cluster.kubectl(
        "get", "deployments", "-n", NAMESPACE, "-l", f"hams.dev/graph={name}", "-o", "name"
    ).split()


def settle(run: GraphRun, within_s: float = 60) -> None:
    """Every request complete, so that the history may be judged to its end."""

    def unfinished() -> set[str]:
        return {line["req"] for line in run.lines("log")} - {line["req"] for line in run.lines("complete")}

    until(lambda: not unfinished(), within_s, "all requests complete", 0.2)


def _header(folder: Path, data: GraphData) -> None:
    """The first line of a history: the graph."""
    writer = history.HistoryWriter(folder, history.HEADER_NAME)
    writer.write(header_of(data))
    writer.close()


def keep_history(run: GraphRun, target: Path) -> None:
    """Copy a history for whoever wants to know what happened."""
    run.gather()
    shutil.copytree(run.history, target, dirs_exist_ok=True)
