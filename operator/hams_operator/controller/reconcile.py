"""One look at one graph: what is there is observed, what is to be done is planned, that is performed, and the
truth is told.

Nothing is remembered from one look to the next but what can be read again: a controller that dies at any
await leaves nothing that the next one would double or forget. Kubernetes is written before status, and status
says only what was read.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from hams_graph import InvalidGraph
from hams_operator import limits
from hams_operator.controller.etcd_cache import EtcdCache
from hams_operator.controller.identities import Identities
from hams_operator.controller.kube import EVENTS, GRAPHS, OWNED, PODS, Kube, KubeError
from hams_operator.controller.objects import Objects
from hams_operator.controller.observation import Observation, place_of
from hams_operator.controller.planning import GraphPlan, plan_of
from hams_operator.controller.pod_steps import PodSteps, next_check_s, not_created, pod_steps
from hams_operator.controller.publishing import publish, rfc3339_now
from hams_operator.controller.running import incarnation_of
from hams_operator.controller.secrets import NotOwned
from hams_operator.controller.store import GraphKey, Store
from hams_operator.controller.successions import advance, give_up
from hams_operator.controller.worker_thread import Busy, WorkerThread
from hams_operator.controller.workers import Requeue
from hams_operator.plan.change import Decision, restarts
from hams_operator.plan.desired import desired
from hams_operator.plan.difference import Difference, difference, is_ours, key_of
from hams_operator.plan.names import (
    COSTS,
    DELETION_COST,
    FINALIZER,
    FRONTEND_ROLE,
    INCARNATION,
    ROLE,
    GraphRef,
    Json,
    Settings,
)
from hams_operator.plan.permitted import read_permitted
from hams_operator.plan.pods_seen import Pod
from hams_operator.plan.status import NAME_TAKEN, REJECTED, Missing, refusal, serving, status_of
from hams_protocol.graph import Graph
from hams_protocol.succession.decision import Step
from hams_protocol.succession.records import Follows
from hams_wire.errors import CoordinationError
from hams_wire.spec import encode_spec

pods_gone_s = 90.0
"""Of a deleted graph, pods that have not gone after this long (their node is away) hold the etcd keys no
longer."""

pods_asked_max = 3
"""Pods of a graph whose Events are asked for in one look."""

delete_grace_s = 5
"""Pods whose instances are over have nothing to hand over."""


log = logging.getLogger("hams.controller")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Performed:
    """What came of a plan. `problem`: what only a person can solve; `failed`: what another attempt may;
    `step`: of a shape that takes states over."""

    problem: Missing | None
    failed: KubeError | CoordinationError | None
    step: Step


class Reconciler:
    """`reconcile(key)` does what there is to do for one graph, and returns after how many seconds it is to be
    called again though nothing happens, or None. Raises `Requeue` where that could not be done now."""

    def __init__(
        self, kube: Kube, store: Store, cache: EtcdCache, settings: Settings, identities: Identities
    ) -> None:
        self._kube = kube
        self._store = store
        self._cache = cache
        self._settings = settings
        self._identities = identities
        self._objects = Objects(kube, store)
        self._worker = WorkerThread("graphs")
        self._steps: dict[GraphKey, PodSteps] = {}
        self._ending_since: dict[GraphKey, float] = {}

    async def reconcile(self, key: GraphKey) -> float | None:
        """Reconcile one graph once."""
        item = self._store.graph(key)
        if item is None:
            self._store.forget(key)
            self._steps.pop(key, None)
            self._ending_since.pop(key, None)
            return None
        try:
            if item["metadata"].get("deletionTimestamp"):
                await self._end(key, item)
            else:
                self._ending_since.pop(key, None)  # of another one that had this name
                await self._tend(key, item)
        except KubeError as error:
            raise Requeue(str(error), error.retry_after_s) from None
        except CoordinationError as error:
            raise Requeue(f"etcd: {error}", limits.etcd_poll_s) from None
        return next_check_s(self._observe(key, item), self._steps.get(key, PodSteps()).silent_since)

    def _observe(self, key: GraphKey, item: Json) -> Observation:
        """What is there now, as last heard."""
        place = place_of(item)
        return Observation(
            item,
            place,
            datetime.datetime.now(datetime.UTC),
            asyncio.get_running_loop().time(),
            tuple(self._store.objects(key)),
            self._store.pods(key),
            {
                incarnation_of(uid, place): self._cache.of(uid).copy()
                for uid in self._cache.uids(place.owner_uid)
            },
            self._cache.away,
            self._cache.full,
        )

    # -- a graph that shall run ------------------------------------------------------------------------------

    async def _tend(self, key: GraphKey, item: Json) -> None:
        if FINALIZER not in (item["metadata"].get("finalizers") or []):
            await self._hold(key, item)
        read = await self._read(item)
        seen = self._observe(key, item)
        plan = plan_of(seen, read)
        if plan.decision is None:
            assert plan.problem is not None, "no decision without a problem"
            ready = "Unknown" if plan.unread else "False"
            status = refusal(
                item.get("status") or {}, plan.problem, seen.generation, rfc3339_now(), ready=ready
            )
            await publish(self._kube, self._store, item, status, None)
            if plan.unread:
                raise Requeue(plan.problem[1], limits.etcd_poll_s)
            return
        performed = await self._perform(key, seen, plan, plan.decision, read)
        seen = self._observe(key, item)  # status says what is there now, not what was planned
        await self._write_status(key, seen, plan.decision, performed)
        if performed.failed is not None:
            raise performed.failed
        if performed.problem is not None and performed.problem[0] == NAME_TAKEN:
            # nobody tells when it goes: Secrets and unlabelled objects are not followed
            raise Requeue(performed.problem[1])
        if seen.etcd_away and seen.known(plan.decision.place).spec != encode_spec(plan.decision.graph):
            raise Requeue(f"etcd: {seen.etcd_away}", limits.etcd_poll_s)

    async def _read(self, item: Json) -> Graph | InvalidGraph:
        """The graph that the resource asks for, or what is wrong with it."""
        try:
            return await self._apart(read_permitted, item, place_of(item).graph_uid(), self._settings)
        except InvalidGraph as error:
            return error

    async def _apart(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What costs more the larger a graph is: one graph may delay itself, not the loop."""
        try:
            return await self._worker.run(function, *arguments, **named)
        except Busy as busy:
            raise Requeue(str(busy)) from None

    # -- performing ------------------------------------------------------------------------------------------

    async def _perform(
        self,
        key: GraphKey,
        seen: Observation,
        plan: GraphPlan,
        decision: Decision,
        read: Graph | InvalidGraph,
    ) -> _Performed:
        failed: KubeError | CoordinationError | None = None
        problem: Missing | None = None
        step = Step(None)
        try:
            for old_uid, uid in plan.gives_up:
                await give_up(self._cache, old_uid, uid, "another shape is asked for")
            if plan.gives_up:
                seen = self._observe(key, seen.item)
                plan = plan_of(seen, read)
            problem = await self._have(key, seen, decision, plan.given_up)
            step = await self._advance(self._observe(key, seen.item), decision)
        except (KubeError, CoordinationError) as error:
            failed, problem = error, _rejected(error) or problem
        try:
            await self._tend_pods(key, self._observe(key, seen.item))
        except KubeError as error:
            failed, problem = failed or error, problem or _rejected(error)
        return _Performed(problem, failed, step)

    async def _advance(self, seen: Observation, decision: Decision) -> Step:
        """The next step of a shape that takes states over, if there is one."""
        follows = seen.known(decision.place).follows
        if follows is None or follows.done or seen.etcd_away:
            return Step(None)
        old = seen.running.graphs.get(incarnation_of(follows.uid, decision.place))
        if old is None:
            return Step(None, f"the graph {follows.uid}, whose states it goes on with, cannot be read")
        serves = serving(decision.graph, decision.place, seen.world(decision))
        return await advance(self._cache, old, decision.graph, seen.generation, serves)

    async def _have(
        self, key: GraphKey, seen: Observation, decision: Decision, given_up: frozenset[int]
    ) -> Missing | None:
        """Have Kubernetes and etcd hold what the decision says; a problem that only a person can solve."""
        place = decision.place
        compiled = encode_spec(decision.graph)
        if not self._cache.away:
            if decision.inherited:  # before it begins: its processes ask at their start
                old_uid = replace(place, incarnation=decision.follows).graph_uid()
                await self._cache.ensure_follows(place.graph_uid(), Follows(old_uid, decision.inherited))
            await self._cache.ensure_spec(place.graph_uid(), compiled)
        try:
            probe_token = await self._identities.ensure(
                place, fresh=FINALIZER not in (seen.item["metadata"].get("finalizers") or [])
            )
        except NotOwned as error:
            return NAME_TAKEN, str(error)
        wanted = await self._apart(
            desired, decision.graph, compiled.decode(), place, self._settings, probe_token
        )
        seen = self._observe(key, seen.item)
        follows = seen.known(place).follows
        serves = seen.answers(decision) and (follows is None or follows.done)
        changes = await self._apart(
            difference, wanted, list(seen.objects), place.owner_uid, replaceable=serves, given_up=given_up
        )
        not_owned = changes.not_owned or await self._bring(seen, place, changes)
        if not_owned:
            return NAME_TAKEN, f"{', '.join(not_owned)}: there already, and not of this graph"
        await self._take_away(self._store.pods(key), place, changes)
        if place.incarnation and serves and not changes.delete:
            await self._clear_past(self._store.pods(key), place)
        return None

    async def _bring(self, seen: Observation, place: GraphRef, changes: Difference) -> list[str]:
        """Have what shall be there; or the names that are somebody else's."""
        held = {key_of(item) for item in seen.objects}
        missing = [item for item in changes.apply if key_of(item) not in held]
        if _names(seen.item.get("status") or {}, NAME_TAKEN):
            # to make things and take them back, once is enough
            not_owned = await self._objects.not_owned(place, missing)
            if not_owned:
                return not_owned
        not_owned, there = await self._objects.make(place, missing)
        if not not_owned:
            await self._objects.apply(
                place, [item for item in changes.apply if item in there or key_of(item) in held]
            )
        return not_owned

    async def _take_away(self, pods: tuple[Pod, ...], place: GraphRef, changes: Difference) -> None:
        with_frontends = {str(pod.incarnation) for pod in pods if pod.of == FRONTEND_ROLE} - {
            str(place.incarnation)
        }
        for item in changes.delete:
            kind, metadata = item["kind"], item["metadata"]
            labels = metadata.get("labels") or {}
            if labels.get(INCARNATION) in with_frontends and labels.get(ROLE) != FRONTEND_ROLE:
                continue  # what they still have to answer needs all the others
            log.info("%s/%s: delete %s %s", place.namespace, place.name, kind, metadata["name"])
            await self._kube.delete(OWNED[kind], place.namespace, metadata["name"], metadata["uid"])

    async def _clear_past(self, pods: tuple[Pod, ...], place: GraphRef) -> None:
        """Etcd keys of earlier incarnations, once none of their pods is left."""
        alive = {replace(place, incarnation=pod.incarnation).graph_uid() for pod in pods}
        for uid in self._cache.uids(place.owner_uid):
            if incarnation_of(uid, place) < place.incarnation and uid not in alive:
                await self._cache.clear(uid)

    async def _tend_pods(self, key: GraphKey, seen: Observation) -> None:
        steps = self._steps[key] = pod_steps(seen, self._steps.get(key, PodSteps()))
        for pod, why in steps.delete:
            log.info("%s/%s: delete pod %s: %s", *key, pod.name, why)
            await self._kube.delete(PODS, key[0], pod.name, pod.uid, delete_grace_s)
        for name, role in steps.roles.items():
            annotations = {DELETION_COST: str(COSTS.get(role, 0))}
            try:
                await self._kube.merge(
                    PODS, key[0], name, {"metadata": {"labels": {ROLE: role}, "annotations": annotations}}
                )
            except KubeError as error:
                if error.status != 404:
                    raise

    async def _hold(self, key: GraphKey, item: Json) -> None:
        """Before anything is written to etcd: the resource goes only after its keys."""
        metadata = item["metadata"]
        finalizers = [*(metadata.get("finalizers") or []), FINALIZER]
        with self._store.writing(GRAPHS.kind, *key):
            held = await self._kube.merge(
                GRAPHS, key[0], key[1], {"metadata": {"uid": metadata["uid"], "finalizers": finalizers}}
            )
            self._store.put_graph(held, ours=True)

    # -- telling ---------------------------------------------------------------------------------------------

    async def _write_status(
        self, key: GraphKey, seen: Observation, decision: Decision, performed: _Performed
    ) -> None:
        """Write the status that is true now."""
        shown, failed, problem = seen.shown(decision), performed.failed, performed.problem
        world = replace(
            seen.world(shown),
            problem=problem,
            warnings=await self._warnings(key, seen),
            unapplied="" if failed is None or problem is not None else str(failed),
            replacing="" if shown is decision else seen.replacing(decision, performed.step),
        )
        for name in restarts(seen.annotations, world.topology, shown.place):
            await self._cache.allow_restart(shown.place.graph_uid(), name)
        before = seen.item.get("status") or {}
        status = status_of(shown.graph, shown.place, world, before, seen.generation, rfc3339_now())
        await publish(self._kube, self._store, seen.item, status, shown.graph)

    async def _warnings(self, key: GraphKey, seen: Observation) -> dict[str, str]:
        """What the newest Event warns of, of pods whose containers are not made: a missing Secret or volume
        is told nowhere else. A few will do."""
        warnings = {}
        for pod in not_created(seen)[:pods_asked_max]:
            selector = f"involvedObject.uid={pod.uid},type=Warning"
            try:
                events = (await self._kube.page(EVENTS, key[0], "", fields=selector)).get("items") or []
            except KubeError as error:
                log.warning("%s/%s: events of pod %s are not seen: %s", *key, pod.name, error)
                break
            if events:
                newest = max(events, key=_when)
                warnings[pod.name] = f"{newest.get('reason', '')}: {newest.get('message', '')}"
        return warnings

    # -- a graph that shall go -------------------------------------------------------------------------------

    async def _end(self, key: GraphKey, item: Json) -> None:
        """Objects and pods first, then the etcd keys, then the resource itself. Before that its processes are
        told, lest they wait for successors."""
        metadata = item["metadata"]
        if FINALIZER not in (metadata.get("finalizers") or []):
            return
        seen = self._observe(key, item)
        place = seen.place
        try:
            if not self._cache.away:
                await self._cache.end_all(place.owner_uid)
        except CoordinationError as error:
            log.warning("%s/%s: its processes may wait for successors before they end: %s", *key, error)
        await self._let_go(key, place)
        ending = ("Ending", "the graph is being deleted")
        status = refusal(item.get("status") or {}, ending, seen.generation, rfc3339_now())
        await publish(self._kube, self._store, item, status, None)
        seen = self._observe(key, item)
        left = seen.pods or any(held["kind"] == "Deployment" for held in seen.objects)
        # From when its pods were told, not from when it was deleted: nobody may have been here for long.
        since = self._ending_since.setdefault(key, seen.at_s)
        if left and seen.at_s - since < pods_gone_s:
            raise Requeue("its pods are going", 1.0)
        await self._cache.clear_all(place.owner_uid)
        await self._identities.forget(place.owner_uid)
        finalizers = [name for name in metadata["finalizers"] if name != FINALIZER]
        try:
            await self._kube.merge(
                GRAPHS, key[0], key[1], {"metadata": {"uid": metadata["uid"], "finalizers": finalizers}}
            )
        except KubeError as error:
            if error.status not in (404, 409):  # gone, or another one of that name by now
                raise
        self._ending_since.pop(key, None)
        log.info("%s/%s has ended", *key)

    async def _let_go(self, key: GraphKey, place: GraphRef) -> None:
        """Delete the objects and pods of a graph that goes. What may not be deleted holds nothing up for
        ever: a namespace that is deleted takes our RoleBinding along, and what is in it."""
        for held in self._store.objects(key):
            metadata = held["metadata"]
            if is_ours(held, place.owner_uid) and not metadata.get("deletionTimestamp"):
                # else its ReplicaSet would go on to make pods, which would find no graph in etcd and bring it
                first = held["kind"] == "Deployment"
                with _left_to_others():
                    await self._kube.delete(
                        OWNED[held["kind"]], key[0], metadata["name"], metadata["uid"], dependents_first=first
                    )
        for pod in self._store.pods(key):
            if not pod.deleting:
                with _left_to_others():
                    await self._kube.delete(PODS, key[0], pod.name, pod.uid)


@contextmanager
def _left_to_others() -> Iterator[None]:
    """What we may not delete."""
    try:
        yield
    except KubeError as error:
        if error.status != 403:
            raise
        log.warning("left to others: %s", error)


def _rejected(error: KubeError | CoordinationError) -> Missing | None:
    """What the API server says no to for good."""
    return (REJECTED, str(error)) if isinstance(error, KubeError) and error.permanent else None


def _when(event: Json) -> str:
    """When an Event was seen last, RFC 3339."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(at) for at in times if at), "")


def _names(status: Json, reason: str) -> bool:
    """Whether a condition has this reason."""
    return any(item.get("reason") == reason for item in status.get("conditions", []))
