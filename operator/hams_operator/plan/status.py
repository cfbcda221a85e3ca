"""The status that is true now: conditions, operators, and what `kubectl get sg` shows.

`Ready=True` only while the graph answers: every state has a primary and every slot an owner, registered and
in a ready pod, a frontend is ready, and the Service that leads to it is there and the graph's own.
`Redundant=True` only while every replica set has its backups in sync and standbys are warm. What is not known
is said to be unknown.

Tools that wait for objects (kubectl, Argo CD, Flux) follow the conventions of kstatus: `Reconciling=True`
while something is under way, `Stalled=True` where nothing goes on until a person does something, and
`observedGeneration` only of what was applied or refused. `Ready` and `Redundant` are about what runs: where
that is not what is asked for, they name the generation that runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hams_operator.plan.change import loss_of
from hams_operator.plan.names import FRONTEND_ROLE, GRAPH, MODEL, RESTART_LOST, ROLE, GraphRef, Json
from hams_operator.plan.pods_seen import Pod, homes, keeps_ending, named_in, role_of
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.modes import is_run_again
from hams_protocol.topology import ReplicaSet, Topology
from hams_protocol.wholeness import (
    DEGRADED,
    NOT_ASKED_FOR,
    READY,
    REDUNDANT,
    STATE_LOST,
    InstancesSeen,
    Lack,
    copies_wanted,
    wholeness,
    why_not,
)

CHANGE_REFUSED = "ChangeRefused"
"""Reason of Progressing=False when what runs is not what the resource asks for."""
REPLACING = "Replacing"
"""Reason of Progressing=True while another shape comes up beside the one that serves."""
REJECTED = "Rejected"
"""Reason of Progressing=False, and of Ready=False where nothing serves, while the API server refuses
something for good."""
NAME_TAKEN = "NameTaken"
"""As REJECTED, while an object of somebody else has the name of one of ours."""
UNSETTLED = (CHANGE_REFUSED, REPLACING, REJECTED, NAME_TAKEN)
"""Reasons of Progressing while another graph may run than the resource asks for."""

Missing = tuple[str, str]
"""Reason (one word) and message."""

ETCD_FULL: Missing = (
    "EtcdFull",
    "etcd has reached its quota and takes no writes: nothing can fail over or join",
)
"""Of Redundant, whatever else a graph lacks."""


@dataclass(frozen=True, slots=True)
class FailoverReport:
    """What the manager that committed an epoch has told of it."""

    epoch: int
    took_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimelinessReport:
    """What an instance has told of how it serves by deadlines: in time, of so many in the last minute.
    `policy`: its scheduling policy, "" of a frontend; `failed`: why that was replaced by Fifo, or ""."""

    of: str
    on_time: int
    total: int
    policy: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class KnownGraph:
    """What is known of a graph now. `registered`: whose each registered instance is. `etcd_away`: why etcd
    cannot be read, or "": then topology and registrations are what they last were. `etcd_full`: whether it
    takes no writes. `refused`: why another
    graph runs than is asked for, or "". `replacing`: what is known of another shape that comes up, or "".
    `problem`: what keeps Kubernetes from holding what it should; what serves serves on all the same.
    `unapplied`: why what is asked for could not be applied just now, or "". `rolling`: whose pods Kubernetes
    is replacing. `addressed`: whether the Service that `status.url` names is there, and of this graph; all
    incarnations have the same. `refusals`: of operators, frontend or manager, why Kubernetes makes no more
    pods of them; `warnings`: of pods, by name, what their newest Event warns of, where containers are not
    made. `failovers`, `versions` (epoch, version): what managers and primaries have told, by operator;
    `timeliness`: what instances have told of deadlines."""

    topology: Topology = field(default_factory=Topology)
    registered: Mapping[InstanceId, str] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    etcd_away: str = ""
    etcd_full: bool = False
    refused: str = ""
    replacing: str = ""
    problem: Missing | None = None
    unapplied: str = ""
    rolling: tuple[str, ...] = ()
    addressed: bool = True
    refusals: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    failovers: Mapping[str, FailoverReport] = field(default_factory=dict)
    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    timeliness: Mapping[InstanceId, TimelinessReport] = field(default_factory=dict)


def status_of(
    graph: Graph, place: GraphRef, world: KnownGraph, before: Json, generation: int, now: str
) -> Json:
    """The whole status. `before`: the one that stands there now; `generation`: metadata.generation; `now`:
    RFC 3339."""
    seen = _Seen(graph, place, world)
    ready, redundant = seen.why_not_ready(), seen.why_not_redundant()
    missing = ready or redundant
    held_up = _held_up(world)
    progressing = _progressing(world, held_up, missing)
    stalled = held_up or (
        ready if ready is not None and ready[0] == STATE_LOST and not world.replacing else None
    )
    observed = before.get("observedGeneration", 0) if world.unapplied else generation
    runs = _generation_that_runs(before) if held_up or world.unapplied or world.replacing else generation
    operators = [seen.operator(op.name, before, now) for op in graph.data.operators]
    failovers = [op["lastFailover"]["at"] for op in operators if "lastFailover" in op]
    failure = seen.failure()
    status: Json = {
        "observedGeneration": observed,
        "generation": world.topology.generation,
        "url": place.url,
        "message": held_up[1] if held_up else missing[1] if missing else seen.serving_message(operators),
        "replicas": sum(1 for pod in seen.pods if pod.of == FRONTEND_ROLE and not pod.deleting),
        "selector": f"{GRAPH}={place.name},{ROLE}={FRONTEND_ROLE}",
        "inSync": seen.in_sync(),
        "epoch": max((world.topology.find(op.name).epoch for op in graph.data.operators), default=0),
        "conditions": [
            _condition(READY, *_condition_of(ready, "Serving"), before, runs, now),
            _condition(REDUNDANT, *_condition_of(redundant, "InSync"), before, runs, now),
            _condition("Progressing", *progressing, before, generation, now),
            *_for_waiters(progressing, stalled, before, generation, now),
        ],
        "operators": operators,
    }
    on_time = seen.on_time_percent(FRONTEND)
    if on_time is not None:
        status["onTimePercent"] = on_time
    if failovers:
        status["lastFailoverTime"] = max(failovers)
    if failure is not None:
        status["lastFailureInfo"] = failure
    return status


def refusal(before: Json, problems: Missing, generation: int, now: str, ready: str = "False") -> Json:
    """The status of a graph that cannot be run as it stands: nothing else about it is known to have changed.
    `ready`: "Unknown" if it may answer."""
    conditions = [
        _condition(READY, ready, *problems, before, generation, now),
        _condition(REDUNDANT, "Unknown", *problems, before, generation, now),
        _condition("Progressing", "False", *problems, before, generation, now),
        *_for_waiters(("False", *problems), problems, before, generation, now),
    ]
    return {
        **before,
        "observedGeneration": generation,
        "message": problems[1].splitlines()[0],
        "conditions": conditions,
    }


def _for_waiters(
    progressing: tuple[str, str, str], stalled: Missing | None, before: Json, generation: int, now: str
) -> tuple[Json, Json]:
    """What is stalled is not reconciled; both are False where all is well."""
    going = progressing if stalled is None and progressing[0] == "True" else ("False", "Stable", "")
    stuck = ("False", "Stable", "") if stalled is None else ("True", *stalled)
    return (
        _condition("Reconciling", *going, before, generation, now),
        _condition("Stalled", *stuck, before, generation, now),
    )


def _generation_that_runs(before: Json) -> int:
    """What was asked for when `Ready` was last about it; 0 where nothing was applied yet."""
    ready: Json = next((item for item in before.get("conditions", []) if item["type"] == "Ready"), {})
    return int(ready.get("observedGeneration", 0))


def is_true(status: Json, kind: str) -> bool:
    """Whether a condition holds in a status."""
    return any(item["type"] == kind and item["status"] == "True" for item in status.get("conditions", []))


def serving(graph: Graph, place: GraphRef, world: KnownGraph) -> Callable[[InstanceId], bool]:
    """Whether an instance is registered and its pod serves its role."""
    return _Seen(graph, place, world).serves


def answers(graph: Graph, place: GraphRef, world: KnownGraph) -> bool:
    """Whether what runs answers a client that reaches it. That none does, for want of a Service, says nothing
    against the pods: another shape may take their place, or be told of in their stead, only if these do not
    serve."""
    return _Seen(graph, place, world).why_unserved() is None


class _Seen:
    """A graph at a place, and what is known of it, looked at from several sides."""

    def __init__(self, graph: Graph, place: GraphRef, world: KnownGraph) -> None:
        self.graph = graph
        self.place = place
        self.topology = world.topology
        self.world = world
        self.pods = tuple(pod for pod in world.pods if pod.incarnation == place.incarnation)
        self.homes = homes(set(world.registered) | named_in(world.topology), self.pods)

    @cached_property
    def lacks(self) -> list[Lack]:
        """What the graph itself lacks: nothing of pods, Services or what Kubernetes refuses is in it."""

        def serves(name: InstanceId, _: str) -> bool:
            return self.serves(name)  # a pod is ready only while its one role is served

        def warm(op: str) -> int:
            return sum(map(self.serves, self.standbys(op)))

        serving = InstancesSeen(serves, self.serves, warm, self.world.etcd_away)
        return wholeness(self.graph, self.topology, serving)

    def serves(self, instance: InstanceId) -> bool:
        """Whether an instance is registered (if etcd can be asked) and its pod says that its role is
        served."""
        pod = self.homes.get(instance)
        return (
            pod is not None
            and pod.ready
            and (instance in self.world.registered or bool(self.world.etcd_away))
        )

    def why_not_ready(self) -> Missing | None:
        """What keeps the graph from answering. A problem of objects keeps nothing from it that serves
        already, and that can be reached."""
        missing = self.why_unserved()
        if missing is None:
            return None if self.world.addressed else self._no_service()
        if missing[0] == STATE_LOST:
            return missing
        if self.world.problem is not None:
            return self.world.problem
        return self.why_not_started() or missing

    def why_not_started(self) -> Missing | None:
        """Why Kubernetes does not bring a pod up, in its own words or in those of the container that
        ended."""
        loop = self._crash_loop()
        if loop is not None and loop.failure is not None:
            last = f"last with exit code {loop.failure.exit_code}: {loop.failure.last_line}"
            if loop.failure.container == MODEL:
                return "ModelCrashLoop", f"the model of {loop.of} keeps ending, {last}"
            return "CrashLoop", f"{loop.of}: {loop.failure.container} of pod {loop.name} keeps ending, {last}"
        for of, why in self.world.refusals.items():
            return "PodsRefused", f"{of}: {why}"
        living = [pod for pod in self.pods if not pod.ready and not pod.deleting]
        for pod in living:
            if pod.unschedulable:
                return "Unschedulable", f"{pod.of}: pod {pod.name} is pending: {pod.unschedulable}"
        for pod in living:
            if pod.waiting:
                return "PodNotStarting", f"{pod.of}: pod {pod.name}: {pod.waiting}"
        for pod in living:
            if pod.name in self.world.warnings:
                return "PodNotStarting", f"{pod.of}: pod {pod.name}: {self.world.warnings[pod.name]}"
        return None

    def _no_service(self) -> Missing:
        """Every part serves, and `status.url` leads nowhere, or to somebody else."""
        gone = f"the Service {self.graph.data.name} is not there, or not of this graph"
        if self.world.problem is None:
            return "NoService", gone
        reason, message = self.world.problem
        return reason, f"{gone}: {message}"

    def why_unserved(self) -> Missing | None:
        """What keeps the parts of the graph from serving, whether they can be reached or not."""
        lack = next((lack for lack in self.lacks if lack.condition == READY), None)
        if lack is None:
            ready = any(pod.of == FRONTEND_ROLE and pod.ready and not pod.deleting for pod in self.pods)
            return None if ready else ("NoFrontend", "no frontend is ready")
        replica_set = self.topology.find(lack.of)
        if lack.reason != STATE_LOST or replica_set.may_restart:
            return lack.reason, lack.message
        return STATE_LOST, f"{lack.message} (annotation {RESTART_LOST}: {loss_of(replica_set, self.place)})"

    def why_not_redundant(self) -> Missing | None:
        """What is missing for the next failure to lose nothing, and why Kubernetes does not bring it, if it
        does not."""
        if self.world.etcd_full:
            return ETCD_FULL
        missing = why_not(REDUNDANT, self.lacks)
        cause = self.why_not_started() if missing is not None and missing[0] == DEGRADED else None
        return missing if missing is None or cause is None else (missing[0], f"{missing[1]}; {cause[1]}")

    def standbys(self, op: str) -> list[InstanceId]:
        """Registered instances of an operator without a role."""
        mine = [
            name
            for name, of in self.world.registered.items()
            if of == op and name not in self.topology.revoked
        ]
        return sorted(name for name in mine if role_of(self.topology, op, name) == "standby")

    def in_sync(self) -> str:
        """Backups in sync of backups wanted, over all states. One too many, after a scale down, makes up for
        none that is missing."""
        wanted = copies_wanted(self.graph)
        held = sum(min(len(self.topology.find(name).in_sync), most) for name, most in wanted.items())
        return f"{held}/{sum(wanted.values())}"

    def operator(self, name: str, before: Json, now: str) -> Json:
        """One operator as it is; its last failover is kept from `before`."""
        op = self.graph.operators[name]
        earlier: Json = next((item for item in before.get("operators", []) if item["name"] == name), {})
        entry: Json = {"name": name}
        if op.stateful:
            item = self.topology.find(name)
            entry |= {"epoch": item.epoch, "inSync": list(item.in_sync), "joining": list(item.joining)}
            if item.keepers:
                entry["keepers"] = list(item.keepers)
            if item.primary is not None and not item.lost:
                entry["primary"] = item.primary
            if item.restarted_in and not is_run_again(self.graph, name):
                entry["lastLoss"] = {
                    "epoch": item.restarted_in,
                    "version": item.end_of(item.restarted_in - 1) or 0,
                }
            version = self.version(item)
            if version is not None:
                entry["version"] = version
            failover = _failover(item, earlier, self.topology, self.world.failovers.get(name), now)
            if failover is not None:
                entry["lastFailover"] = failover
        else:
            slots = self.topology.table(name).slots
            entry["active"] = [slot.instance or "" for slot in slots]
            entry["epoch"] = max((slot.epoch for slot in slots), default=0)
        entry["standbys"] = self.standbys(name)
        on_time = self.on_time_percent(name)
        if on_time is not None:
            entry["onTimePercent"] = on_time
        failed = [item for item in self.timeliness(name) if item.failed]
        if failed:
            entry["policyReplaced"] = {"policy": failed[0].policy, "reason": failed[0].failed}
        return entry

    def timeliness(self, of: str) -> list[TimelinessReport]:
        """What registered instances of an operator, or frontends, have told of deadlines, by their ids."""
        reports = sorted(self.world.timeliness.items())
        return [item for name, item in reports if item.of == of and name in self.world.registered]

    def on_time_percent(self, of: str) -> int | None:
        """How much of the last minute was in time, rounded down; None: nothing was to be done by a
        deadline."""
        reports = self.timeliness(of)
        total = sum(item.total for item in reports)
        return 100 * sum(item.on_time for item in reports) // total if total else None

    def serving_message(self, operators: list[Json]) -> str:
        """What there is to say of a graph that lacks nothing."""
        replaced = [
            f"Fifo serves {item['name']} in place of {item['policyReplaced']['policy']}: "
            f"{item['policyReplaced']['reason']}"
            for item in operators
            if "policyReplaced" in item
        ]
        return "; ".join(["serving", *replaced])

    def version(self, item: ReplicaSet) -> int | None:
        """The newest durable version that was told: by the primary of this epoch, or by the commit that began
        the epoch."""
        reported = self.world.versions.get(item.name)
        return (
            reported[1] if reported is not None and reported[0] == item.epoch else item.end_of(item.epoch - 1)
        )

    def _crash_loop(self) -> Pod | None:
        """A model's comes first: it says most."""
        failed = [pod for pod in self.pods if keeps_ending(pod) and not pod.deleting]
        return min(failed, key=lambda pod: (not self._is_model(pod), pod.name), default=None)

    def _is_model(self, pod: Pod) -> bool:
        return pod.failure is not None and pod.failure.container == MODEL

    def failure(self) -> Json | None:
        """The model in a crash loop, if there is one."""
        pod = self._crash_loop()
        if pod is None or pod.failure is None or not self._is_model(pod):
            return None
        entry: Json = {
            "operator": pod.of,
            "instance": pod.name,
            "exitCode": pod.failure.exit_code,
            "log": pod.failure.log,
        }
        return entry | ({"at": pod.failure.at} if pod.failure.at else {})


def _failover(
    item: ReplicaSet, earlier: Json, topology: Topology, reported: FailoverReport | None, now: str
) -> Json | None:
    """An epoch that began since the status before is a failover, or a handover. When, as far as it can be
    seen from here; how long it took, once the manager that committed it has told. What ran again is known of
    a handover only: nothing."""
    known = earlier.get("epoch", 0)
    last: Json | None = earlier.get("lastFailover")
    if item.epoch > max(known, 1):
        old = earlier.get("primary")
        if old is None:
            last = {"at": now, "reason": "not seen by this controller"}
        elif old == item.primary:
            last = {"at": now, "reason": f"{old} went back to its newest durable version"}
        elif old in topology.revoked:
            last = {"at": now, "reason": f"{old} was revoked"}
        else:
            last = {"at": now, "reason": f"{old} handed over", "reexecuted": 0}
    if last is not None and reported is not None and reported.epoch == item.epoch:
        last = {"at": last["at"], "took": f"{reported.took_ms}ms", "reason": reported.reason}
    return last


def _held_up(world: KnownGraph) -> Missing | None:
    """What only a person can solve, of what is asked for: the graph may serve all the same."""
    if world.problem is not None:
        reason, message = world.problem
        return reason, f"{message}; {world.refused}" if world.refused else message
    return (CHANGE_REFUSED, world.refused) if world.refused else None


def _progressing(world: KnownGraph, held_up: Missing | None, missing: Missing | None) -> tuple[str, str, str]:
    """Status, reason and message of what is under way."""
    if held_up is not None:
        return "False", *held_up
    if world.replacing:
        return "True", REPLACING, world.replacing
    if missing is not None and missing[0] != NOT_ASKED_FOR:
        return "True", "Recovering", missing[1]
    if world.unapplied:
        return "True", "Applying", f"what is asked for is not applied yet: {world.unapplied}"
    if world.rolling:
        return "True", "RollingOut", f"pods of {', '.join(world.rolling)} are replaced"
    return "False", "Stable", ""


def _condition_of(missing: Missing | None, good: str) -> tuple[str, str, str]:
    return ("True", good, "") if missing is None else ("False", *missing)


def _condition(
    kind: str, status: str, reason: str, message: str, before: Json, generation: int, now: str
) -> Json:
    earlier: Json = next((item for item in before.get("conditions", []) if item["type"] == kind), {})
    since = earlier["lastTransitionTime"] if earlier.get("status") == status else now
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:32768],
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }
