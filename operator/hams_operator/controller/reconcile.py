"""One look at one graph: what it should be, what is, the difference applied, the truth told.

Nothing is remembered from one look to the next but what can be read again: a controller that dies at any
await leaves nothing that the next one would double or forget. Kubernetes is written before status, and status
says only what was read.
"""

import asyncio
import datetime
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from hams_graph import InvalidGraph
from hams_operator import limits
from hams_operator.controller.identities import Identities
from hams_operator.controller.judging import Step
from hams_operator.controller.kube import EVENTS, GRAPHS, OWNED, PODS, Kube, KubeError
from hams_operator.controller.mirror import Known, Mirror
from hams_operator.controller.objects import Objects
from hams_operator.controller.reading import Aside, Busy
from hams_operator.controller.running import Running, Specs, incarnation_of, running
from hams_operator.controller.secrets import Foreign
from hams_operator.controller.store import REFUSAL, ROLLING, GraphKey, Store
from hams_operator.controller.successions import advance, give_up, given_up, refused
from hams_operator.controller.workers import Again
from hams_operator.plan.change import Decision, current, decide, restarts
from hams_operator.plan.desired import desired
from hams_operator.plan.difference import Difference, difference, is_ours, key_of
from hams_operator.plan.names import (
    COSTS,
    DELETION_COST,
    FIELD_MANAGER,
    FINALIZER,
    FRONTEND_ROLE,
    INCARNATION,
    OPERATOR,
    ROLE,
    GraphRef,
    Json,
    Settings,
)
from hams_operator.plan.news import ClusterEvent, news
from hams_operator.plan.permitted import read_permitted
from hams_operator.plan.pods_seen import Pod, pods_over, pods_silent, roles_of
from hams_operator.plan.status import (
    NAME_TAKEN,
    REJECTED,
    KnownGraph,
    Missing,
    Told,
    answers,
    refusal,
    serving,
    status_of,
)
from hams_protocol.graph import Graph
from hams_wire.errors import CoordinationError
from hams_wire.spec import encode_spec
from hams_wire.succession import Follows, Phase

pods_gone_s = 90.0
"""Of a deleted graph, pods that have not gone after this long (their node is away) hold the etcd keys no
longer."""

pod_unstarted_s = 15.0
"""A kubelet says that it has seen a pod within a second or two. One that has not for this long is most likely
away: Kubernetes goes on to bind pods to its node until it has been silent for 40 s."""

pod_creating_s = 10.0
"""Containers that are not made after this long lack something: then the pod's Events are asked."""

pod_look_s = 10.0
"""Between two looks at a pod that does not start."""

pods_asked_max = 3
"""Pods of a graph whose Events are asked for in one look."""

pod_silent_s = 8.0
"""A process that has lost its registration is not ready three seconds later, where a kubelet asks it. A pod
that still says Ready after this long is on a node that is away."""

pod_overdue_s = 10.0
"""A kubelet ends a pod when its grace is over; a busy one some seconds later. Where one is there for this
long afterwards, the node is away."""

pod_unseen_s = 2.0
"""The patience with pods that are bound to a node that is away."""

delete_grace_s = 5
"""Pods whose instances are over have nothing to hand over."""


log = logging.getLogger("hams.controller")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A resource as it stands: where, and what it asks for; `problem` if it asks for something that cannot
    be, `unread` if what runs is not known. `unborn`: incarnations that wait to take states over, and have
    served nobody; `given_up`: those that never will."""

    item: Json
    place: GraphRef
    decision: Decision | None
    problem: Missing | None
    unread: str = ""
    unborn: frozenset[int] = frozenset()
    given_up: frozenset[int] = frozenset()

    @property
    def generation(self) -> int:
        return _generation(self.item)


class Reconciler:
    """`look(key)` does what there is to do for one graph, and returns after how many seconds it is to be
    looked at though nothing happens, or None. Raises `Again` where that could not be done now."""

    def __init__(
        self, kube: Kube, store: Store, mirror: Mirror, settings: Settings, identities: Identities
    ) -> None:
        self._kube = kube
        self._store = store
        self._mirror = mirror
        self._settings = settings
        self._identities = identities
        self._objects = Objects(kube, store)
        self._aside = Aside("graphs")
        self._silent_since: dict[GraphKey, dict[str, float]] = {}

    async def look(self, key: GraphKey) -> float | None:
        """One look."""
        item = self._store.graph(key)
        if item is None:
            self._store.forget(key)
            self._silent_since.pop(key, None)
            return None
        try:
            if item["metadata"].get("deletionTimestamp"):
                await self._end(key, item)
            else:
                await self._tend(key, item)
        except KubeError as error:
            raise Again(str(error), error.retry_after_s) from None
        except CoordinationError as error:
            raise Again(f"etcd: {error}", limits.etcd_look_s) from None
        return self._again_s(key)

    def _again_s(self, key: GraphKey) -> float | None:
        """When a pod that does not start will have to be looked at, or should be told of."""
        left = []
        for pod in self._store.pods(key):
            if pod.gone_by and _age_s(pod.gone_by) < pod_overdue_s:
                left.append(pod_overdue_s - _age_s(pod.gone_by))
            elif pod.bound_at and not pod.deleting:
                left.append(pod_unseen_s)
            elif pod.creating_since and not pod.deleting:
                left.append(max(pod_creating_s - _age_s(pod.creating_since), pod_look_s))
            elif pod.uid in self._silent_since.get(key, ()):
                left.append(pod_silent_s)
        return min(left, default=None)

    # -- a graph that shall run ------------------------------------------------------------------------------

    async def _tend(self, key: GraphKey, item: Json) -> None:
        if FINALIZER not in (item["metadata"].get("finalizers") or []):
            await self._hold(key, item)
        read = await self._read(item)
        asked = self._asked(key, item, read)
        if asked.unread:
            held_back = ("SpecUnreadable", asked.unread)
            status = refusal(item.get("status") or {}, held_back, asked.generation, _now(), ready="Unknown")
            await self._tell(key, asked, status, None)
            raise Again(asked.unread, limits.etcd_look_s)
        if asked.decision is None:
            assert asked.problem is not None, "no decision without a problem"
            await self._tell(
                key, asked, refusal(item.get("status") or {}, asked.problem, asked.generation, _now()), None
            )
            return
        decision = asked.decision
        failed: KubeError | CoordinationError | None = None
        problem: Missing | None = None
        step = Step(None)
        try:
            if await self._give_up_others(asked, decision):
                asked = self._asked(key, item, read)
            problem = await self._have(key, asked, decision)
            step = await self._advance(key, asked, decision)
        except (KubeError, CoordinationError) as error:
            failed, problem = error, _rejected(error) or problem
        try:
            await self._tend_pods(key, decision.place)
        except KubeError as error:
            failed, problem = failed or error, problem or _rejected(error)
        shown = self._shown(key, decision)
        world = replace(
            self._world(key, shown, asked.problem, problem),
            warnings=await self._warnings(key),
            unapplied="" if failed is None or problem is not None else str(failed),
            replacing="" if shown is decision else self._replacing(decision, step),
        )
        for name in restarts(item["metadata"].get("annotations") or {}, world.topology):
            await self._mirror.allow_restart(shown.place.graph_uid(), name)
        before = item.get("status") or {}
        status = status_of(shown.graph, shown.place, world, before, asked.generation, _now())
        await self._tell(key, asked, status, shown.graph)
        if failed is not None:
            raise failed
        if problem is not None and problem[0] == NAME_TAKEN:
            raise Again(
                problem[1]
            )  # nobody tells when it goes: Secrets and unlabelled objects are not followed
        if self._mirror.away and self._mirror.of(decision.place.graph_uid()).spec != encode_spec(
            decision.graph
        ):
            raise Again(f"etcd: {self._mirror.away}", limits.etcd_look_s)

    async def _read(self, item: Json) -> Graph | InvalidGraph:
        """The graph that the resource asks for, or what is wrong with it."""
        metadata = item["metadata"]
        uid = GraphRef(metadata["name"], metadata["namespace"], metadata["uid"]).graph_uid()
        try:
            return await self._apart(read_permitted, item, uid, self._settings)
        except InvalidGraph as error:
            return error

    async def _apart(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What costs more the larger a graph is: one graph may delay itself, not the loop."""
        try:
            return await self._aside.run(function, *arguments, **named)
        except Busy as busy:
            raise Again(str(busy)) from None

    def _asked(self, key: GraphKey, item: Json, read: Graph | InvalidGraph) -> _Asked:
        metadata = item["metadata"]
        place = GraphRef(metadata["name"], metadata["namespace"], metadata["uid"])
        known = self._running(key, place)
        if known.unread:
            return _Asked(item, place, None, None, known.unread)
        told = {
            incarnation_of(uid, place): self._mirror.of(uid) for uid in self._mirror.uids(place.owner_uid)
        }
        over = {
            number
            for number, notice in told.items()
            if notice.succession is not None and notice.succession.phase is Phase.DONE
        }
        gone = frozenset(
            number for number in told if given_up(number, told, lambda uid: incarnation_of(uid, place))
        )
        begun = {number: graph for number, graph in known.graphs.items() if number not in over | gone}
        # Where nothing of its predecessor is left, it has served, whatever an etcd restored from a backup
        # says: its states are all there is.
        unborn = frozenset(
            number
            for number in begun
            if (notice := told.get(number))
            and notice.follows
            and not notice.follows.done
            and incarnation_of(notice.follows.uid, place) in begun
        )
        if known.graphs and not begun:
            return _Asked(
                item,
                place,
                None,
                None,
                "another shape has taken over, and neither its ConfigMap nor etcd holds its graph: nothing "
                "is changed",
            )
        asked = self._decided(key, item, read, place, begun, known.whole, unborn)
        return replace(asked, unborn=unborn, given_up=gone)

    def _decided(
        self,
        key: GraphKey,
        item: Json,
        read: Graph | InvalidGraph,
        place: GraphRef,
        begun: dict[int, Graph],
        whole: frozenset[int],
        unborn: frozenset[int],
    ) -> _Asked:
        metadata = item["metadata"]
        if isinstance(read, InvalidGraph):  # the webhook is off, or was
            problem = ("Invalid", "\n".join(map(str, read.problems)))
            if not begun:
                return _Asked(item, place, None, problem)
            incarnation = current(begun, whole)
            as_before = Decision(
                begun[incarnation],
                replace(place, incarnation=incarnation),
                f"{problem[1]}\nUntil then it runs as before",
            )
            return _Asked(item, place, as_before, None)
        decision = decide(
            read.data,
            place,
            begun,
            metadata.get("annotations") or {},
            whole,
            lambda: self._used(key, place),
            unborn,
        )
        if begun and decision.place.incarnation not in begun:
            incarnation, why = current(begun, whole), ""
            if self._mirror.away:
                why = f"another shape begins when etcd is there: {self._mirror.away}"
            elif decision.kept:
                incarnation = decision.follows
                record = self._mirror.of(replace(place, incarnation=incarnation).graph_uid()).succession
                why = refused(record, _generation(item))
            if why:
                decision = Decision(
                    begun[incarnation],
                    replace(place, incarnation=incarnation),
                    f"{why}. Until then it runs as before",
                )
        return _Asked(item, place, decision, None)

    def _used(self, key: GraphKey, place: GraphRef) -> int:
        """The newest incarnation that has run, though nothing may be left of it but keys in etcd: a new one
        with its number would find them."""
        told = {uid: self._mirror.of(uid) for uid in self._mirror.uids(place.owner_uid)}
        run = [uid for uid, notice in told.items() if notice.has_run] + [
            notice.succession.to for notice in told.values() if notice.succession is not None
        ]
        return max(
            (
                *(incarnation_of(uid, place) for uid in run),
                *(pod.incarnation for pod in self._store.pods(key)),
            ),
            default=0,
        )

    def _serves(self, key: GraphKey, decision: Decision) -> bool:
        return answers(decision.graph, decision.place, self._world(key, decision, None, None))

    def _shown(self, key: GraphKey, decision: Decision) -> Decision:
        """Which incarnation the status is about: as long as the one decided for does not answer, the newest
        that does, or the one before."""
        if self._serves(key, decision):
            return decision
        place, graphs = decision.place, self._running(key, decision.place).graphs
        others = [
            Decision(graphs[number], replace(place, incarnation=number))
            for number in sorted(graphs, reverse=True)
        ]
        serving = [other for other in others if other.place != place and self._serves(key, other)]
        before = [other for other in others if other.place.incarnation < place.incarnation]
        return next(iter(serving + before), decision)

    def _running(self, key: GraphKey, place: GraphRef) -> Running:
        """What has been begun, out of Kubernetes and etcd."""

        def specs() -> Specs:
            known = {uid: self._mirror.of(uid) for uid in self._mirror.uids(place.owner_uid)}
            return {uid: (item.spec, item.has_run) for uid, item in known.items()}

        return running(place, self._store.objects(key), specs)

    async def _give_up_others(self, asked: _Asked, decision: Decision) -> bool:
        """Before anything of a shape that was to take over is taken away, it is settled in etcd that it never
        will. Whether there was one."""
        others = [number for number in asked.unborn if number != decision.place.incarnation]
        for number in others:
            uid = replace(decision.place, incarnation=number).graph_uid()
            follows = self._mirror.of(uid).follows
            if follows is not None:
                await give_up(self._mirror, follows.uid, uid, "another shape is asked for")
        return bool(others)

    async def _advance(self, key: GraphKey, asked: _Asked, decision: Decision) -> Step:
        """The next step of a shape that takes states over, if there is one."""
        follows = self._mirror.of(decision.place.graph_uid()).follows
        if follows is None or follows.done or self._mirror.away:
            return Step(None)
        old = self._running(key, decision.place).graphs.get(incarnation_of(follows.uid, decision.place))
        if old is None:
            return Step(None, f"the graph {follows.uid}, whose states it goes on with, cannot be read")
        serves = serving(decision.graph, decision.place, self._world(key, decision, None, None))
        return await advance(self._mirror, old, decision.graph, asked.generation, serves)

    def _replacing(self, decision: Decision, step: Step) -> str:
        """What there is to say of the shape that comes up."""
        follows = self._mirror.of(decision.place.graph_uid()).follows
        if follows is None:
            return "another shape of the graph comes up beside this one, and takes over when it serves"
        record = self._mirror.of(follows.uid).succession
        states = f"the states of {', '.join(follows.kept)}"
        if follows.done:
            return f"another shape of the graph has taken over {states}, and is about to serve"
        if record is None or record.to != decision.graph.data.uid:
            before = (
                f" (attempt {record.tries + 1}; the last one was taken back: {record.why})"
                if record is not None and record.tries
                else ""
            )
            return (
                f"another shape of the graph comes up beside this one, and takes over {states} when it is "
                f"there: {step.why}{before}"
            )
        if record.phase is Phase.BACK:
            return f"another shape of the graph has not taken over {states}: {record.why}"
        return (
            f"another shape of the graph takes over {states}, requests wait meanwhile: "
            f"{step.why or record.phase.value}"
        )

    async def _have(self, key: GraphKey, asked: _Asked, decision: Decision) -> Missing | None:
        """Have Kubernetes and etcd hold what the decision says; a problem that only a person can solve."""
        place = decision.place
        compiled = encode_spec(decision.graph)
        if not self._mirror.away:
            if decision.kept:  # before it begins: its processes ask at their start
                old_uid = replace(place, incarnation=decision.follows).graph_uid()
                await self._mirror.ensure_follows(place.graph_uid(), Follows(old_uid, decision.kept))
            await self._mirror.ensure_spec(place.graph_uid(), compiled)
        try:
            probe_token = await self._identities.ensure(
                place, fresh=FINALIZER not in (asked.item["metadata"].get("finalizers") or [])
            )
        except Foreign as error:
            return NAME_TAKEN, str(error)
        wanted = await self._apart(
            desired, decision.graph, compiled.decode(), place, self._settings, probe_token
        )
        follows = self._mirror.of(place.graph_uid()).follows
        serves = self._serves(key, decision) and (follows is None or follows.done)
        held = self._store.objects(key)
        changes = await self._apart(
            difference, wanted, held, place.owner_uid, replaceable=serves, given_up=asked.given_up
        )
        foreign = changes.foreign or await self._bring(asked, place, changes, held)
        if foreign:
            return NAME_TAKEN, f"{', '.join(foreign)}: there already, and not of this graph"
        await self._take_away(key, place, changes)
        if place.incarnation and serves and not changes.delete:
            await self._clear_past(key, place)
        return None

    async def _bring(
        self, asked: _Asked, place: GraphRef, changes: Difference, held: list[Json]
    ) -> list[str]:
        """Have what shall be there; or the names that are somebody else's."""
        seen = {key_of(item) for item in held}
        missing = [item for item in changes.apply if key_of(item) not in seen]
        if _names(
            asked.item.get("status") or {}, NAME_TAKEN
        ):  # to make things and take them back, once is enough
            foreign = await self._objects.strangers(place, missing)
            if foreign:
                return foreign
        foreign, there = await self._objects.make(place, missing)
        if not foreign:
            await self._objects.apply(
                place, [item for item in changes.apply if item in there or key_of(item) in seen]
            )
        return foreign

    async def _take_away(self, key: GraphKey, place: GraphRef, changes: Difference) -> None:
        with_frontends = {
            str(pod.incarnation) for pod in self._store.pods(key) if pod.of == FRONTEND_ROLE
        } - {str(place.incarnation)}
        for item in changes.delete:
            kind, metadata = item["kind"], item["metadata"]
            labels = metadata.get("labels") or {}
            if labels.get(INCARNATION) in with_frontends and labels.get(ROLE) != FRONTEND_ROLE:
                continue  # what they still have to answer needs all the others
            log.info("%s/%s: delete %s %s", place.namespace, place.name, kind, metadata["name"])
            await self._kube.delete(OWNED[kind], place.namespace, metadata["name"], metadata["uid"])

    async def _clear_past(self, key: GraphKey, place: GraphRef) -> None:
        """Etcd keys of earlier incarnations, once none of their pods is left."""
        alive = {replace(place, incarnation=pod.incarnation).graph_uid() for pod in self._store.pods(key)}
        for uid in self._mirror.uids(place.owner_uid):
            if incarnation_of(uid, place) < place.incarnation and uid not in alive:
                await self._mirror.clear(uid)

    def _world(
        self, key: GraphKey, decision: Decision, invalid: Missing | None, problem: Missing | None
    ) -> KnownGraph:
        known = self._mirror.of(decision.place.graph_uid())
        address = "Service", decision.place.name
        return KnownGraph(
            topology=known.topology,
            registered=dict(known.registered),
            pods=self._store.pods(key),
            etcd_away=self._mirror.away,
            refused=decision.refused,
            problem=problem or invalid,
            addressed=any(
                key_of(item) == address and is_ours(item, decision.place.owner_uid)
                for item in self._store.objects(key)
            ),
            refusals=self._told_by_deployments(key, decision.place, REFUSAL),
            rolling=tuple(sorted(self._told_by_deployments(key, decision.place, ROLLING))),
            failovers={
                name: Told(item.epoch, item.took_ms, item.reason) for name, item in known.failovers.items()
            },
            versions={name: (item.epoch, item.version) for name, item in known.versions.items()},
        )

    def _told_by_deployments(self, key: GraphKey, place: GraphRef, what: str) -> dict[str, str]:
        """What the store has kept of their statuses, by operator, frontend or manager."""
        messages = {}
        for item in self._store.objects(key):
            why = (item.get("status") or {}).get(what, "")
            labels = item["metadata"].get("labels") or {}
            if why and labels.get(INCARNATION) == str(place.incarnation):
                messages[labels.get(OPERATOR) or labels.get(ROLE, "")] = why
        return messages

    async def _warnings(self, key: GraphKey) -> dict[str, str]:
        """What the newest Event warns of, of pods whose containers are not made: a missing Secret or volume
        is told nowhere else. A few will do."""
        late = [
            pod
            for pod in sorted(self._store.pods(key), key=lambda pod: pod.name)
            if pod.creating_since and not pod.deleting and _age_s(pod.creating_since) >= pod_creating_s
        ]
        warnings = {}
        for pod in late[:pods_asked_max]:
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

    async def _tend_pods(self, key: GraphKey, place: GraphRef) -> None:
        """Pods of which no kubelet says anything go: Kubernetes binds pods to a node that is away until it
        takes it for dead. Pods whose instances are over go, others are labelled with their role; without etcd
        nobody knows.

        A pod that is deleted on a node that is away is there until the node is back; its ReplicaSet makes
        another one beside it at once.
        """
        pods = self._store.pods(key)
        silent = {pod.node for pod in pods if pod.gone_by and _age_s(pod.gone_by) >= pod_overdue_s}
        for pod in pods:
            patience_s = pod_unseen_s if pod.node in silent else pod_unstarted_s
            if pod.bound_at and not pod.deleting and _age_s(pod.bound_at) >= patience_s:
                log.info("%s/%s: delete pod %s: node %s does not start it", *key, pod.name, pod.node)
                await self._kube.delete(PODS, key[0], pod.name, pod.uid, delete_grace_s)
        if self._mirror.away:
            return
        shapes: list[tuple[Known, tuple[Pod, ...]]] = [
            (
                self._mirror.of(replace(place, incarnation=number).graph_uid()),
                tuple(pod for pod in pods if pod.incarnation == number),
            )
            for number in sorted({pod.incarnation for pod in pods})
        ]
        silent_since: dict[str, float] = {}
        for known, mine in shapes:
            silent_since |= self._silence_of(key, known, mine)
        self._silent_since[key] = silent_since
        for known, mine in shapes:
            await self._tend_shape(key, known, mine)

    async def _tend_shape(self, key: GraphKey, known: Known, pods: tuple[Pod, ...]) -> None:
        """`pods`: of one shape, `known`: of the same one. Two run at once while one takes over from the
        other, and no topology names pods of both."""
        topology, registered = known.topology, known.registered
        silent_since, now_s = self._silent_since[key], asyncio.get_running_loop().time()
        for pod in pods:
            since_s = silent_since.get(pod.uid)
            if since_s is None or now_s - since_s < pod_silent_s:
                continue
            log.info(
                "%s/%s: delete pod %s: its instance is gone, and node %s does not say so",
                *key,
                pod.name,
                pod.node,
            )
            await self._kube.delete(PODS, key[0], pod.name, pod.uid, delete_grace_s)
        for pod in () if known.ended else pods_over(topology, registered, pods):
            log.info("%s/%s: delete pod %s: its instance was revoked", *key, pod.name)
            await self._kube.delete(PODS, key[0], pod.name, pod.uid, delete_grace_s)
        labels = {pod.name: pod.role for pod in pods if not pod.deleting}
        for name, role in roles_of(topology, registered, pods).items():
            if labels.get(name, role) != role:
                try:
                    annotations = {DELETION_COST: str(COSTS.get(role, 0))}
                    await self._kube.merge(
                        PODS, key[0], name, {"metadata": {"labels": {ROLE: role}, "annotations": annotations}}
                    )
                except KubeError as error:
                    if error.status != 404:
                        raise

    def _silence_of(self, key: GraphKey, known: Known, pods: tuple[Pod, ...]) -> dict[str, float]:
        """Since when pods of one shape have been silent, by uid. That is remembered from one look to the
        next; a controller that begins anew is patient anew. One that has been taken over from ends as it is:
        its frontends need the others for what they pass on."""
        if known.ended or not known.topology.generation:
            return {}
        now_s = asyncio.get_running_loop().time()
        before = self._silent_since.get(key, {})
        silent = pods_silent(known.topology, (*known.registered, *known.waiting), pods)
        return {pod.uid: before.get(pod.uid, now_s) for pod in silent}

    async def _hold(self, key: GraphKey, item: Json) -> None:
        """Before anything is written to etcd: the resource goes only after its keys."""
        metadata = item["metadata"]
        finalizers = [*(metadata.get("finalizers") or []), FINALIZER]
        with self._store.writing(GRAPHS.kind, *key):
            held = await self._kube.merge(
                GRAPHS, key[0], key[1], {"metadata": {"uid": metadata["uid"], "finalizers": finalizers}}
            )
            self._store.put_graph(held, ours=True)

    # -- a graph that shall go -------------------------------------------------------------------------------

    async def _end(self, key: GraphKey, item: Json) -> None:
        """Objects and pods first, then the etcd keys, then the resource itself. Before that its processes are
        told, lest they wait for successors."""
        metadata = item["metadata"]
        if FINALIZER not in (metadata.get("finalizers") or []):
            return
        place = GraphRef(metadata["name"], metadata["namespace"], metadata["uid"])
        try:
            if not self._mirror.away:
                await self._mirror.end_all(place.owner_uid)
        except CoordinationError as error:
            log.warning("%s/%s: its processes may wait for successors before they end: %s", *key, error)
        for held in self._store.objects(key):
            mine = any(
                owner.get("uid") == place.owner_uid for owner in held["metadata"].get("ownerReferences") or []
            )
            if mine and not held["metadata"].get("deletionTimestamp"):
                first = (
                    held["kind"] == "Deployment"
                    # else its ReplicaSet would go on to make pods, which would find no graph in etcd and
                    # bring it
                )
                await self._kube.delete(
                    OWNED[held["kind"]],
                    place.namespace,
                    held["metadata"]["name"],
                    held["metadata"]["uid"],
                    dependents_first=first,
                )
        for pod in self._store.pods(key):
            if not pod.deleting:
                await self._kube.delete(PODS, place.namespace, pod.name, pod.uid)
        ending = ("Ending", "the graph is being deleted")
        await self._tell(
            key,
            _Asked(item, place, None, ending),
            refusal(item.get("status") or {}, ending, _generation(item), _now()),
            None,
        )
        left = self._store.pods(key) or any(held["kind"] == "Deployment" for held in self._store.objects(key))
        if left and _age_s(metadata["deletionTimestamp"]) < pods_gone_s:
            raise Again("its pods are going", 1.0)
        await self._mirror.clear_all(place.owner_uid)
        await self._identities.forget(place.owner_uid)
        finalizers = [name for name in metadata["finalizers"] if name != FINALIZER]
        try:
            await self._kube.merge(
                GRAPHS, key[0], key[1], {"metadata": {"uid": metadata["uid"], "finalizers": finalizers}}
            )
        except KubeError as error:
            if error.status not in (404, 409):  # gone, or another one of that name by now
                raise
        log.info("%s/%s has ended", *key)

    # -- telling ---------------------------------------------------------------------------------------------

    async def _tell(self, key: GraphKey, asked: _Asked, status: Json, graph: Graph | None) -> None:
        """Write the status if it is another one, and first what a person wants to see of the change: an Event
        too many is better than one lost."""
        before = asked.item.get("status") or {}
        if status == before:
            return
        events = news(graph, before, status) if graph is not None else _refused(before, status)
        for entry in events:
            await self._publish(asked, entry, status)
        same = {"apiVersion": asked.item["apiVersion"], "kind": asked.item["kind"]}
        metadata = {
            "name": key[1],
            "namespace": key[0],
            "uid": asked.item["metadata"]["uid"],
        }  # of no other one that has that name by now
        body = {**same, "metadata": metadata, "status": status}
        with self._store.writing(GRAPHS.kind, *key):
            held = await self._kube.apply(GRAPHS, key[0], key[1], body, "status")
            self._store.put_graph(held, ours=True)

    async def _publish(self, asked: _Asked, entry: ClusterEvent, status: Json) -> None:
        """Its name is made of what it says, so that it is not said twice."""
        metadata = asked.item["metadata"]
        said = f"{metadata['uid']} {entry.reason} {entry.message} {status.get('generation')}"
        now = _now()
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{hashlib.sha256(said.encode()).hexdigest()[:16]}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": asked.item["apiVersion"],
                "kind": asked.item["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "reason": entry.reason,
            "message": entry.message[:1000],
            "type": "Warning" if entry.warning else "Normal",
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._kube.create(EVENTS, metadata["namespace"], event)
        except KubeError as error:
            if error.status != 409:
                log.warning("an event is not published: %s", error)


def _refused(before: Json, status: Json) -> tuple[ClusterEvent, ...]:
    ready = status["conditions"][0]
    known = any(
        item.get("reason") == ready["reason"] and item.get("message") == ready["message"]
        for item in before.get("conditions", [])
    )
    return (
        ()
        if known
        else (ClusterEvent(ready["reason"], ready["message"], warning=ready["reason"] != "Ending"),)
    )


def _rejected(error: KubeError | CoordinationError) -> Missing | None:
    """What the API server says no to for good."""
    return (REJECTED, str(error)) if isinstance(error, KubeError) and error.permanent else None


def _when(event: Json) -> str:
    """When an Event was seen last, RFC 3339."""
    series = event.get("series") or {}
    told = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(at) for at in told if at), "")


def _names(status: Json, reason: str) -> bool:
    """Whether a condition has this reason."""
    return any(item.get("reason") == reason for item in status.get("conditions", []))


def _generation(item: Json) -> int:
    return int(item["metadata"].get("generation", 0))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _age_s(since: str) -> float:
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(since)).total_seconds()
