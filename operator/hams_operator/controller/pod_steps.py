"""Which pods of a graph go, and which role the others are labelled with. Pure.

Pods of which no kubelet says anything go: Kubernetes binds pods to a node that is away until it takes it for
dead. Pods whose instances are over go, others are labelled with their role; without etcd nobody knows. A pod
that is deleted on a node that is away is there until the node is back; its ReplicaSet makes another one
beside it at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hams_operator.controller.etcd_cache import Known
from hams_operator.controller.observation import Observation
from hams_operator.plan.pods_seen import Pod, pods_over, pods_silent, roles_of

pod_unstarted_s = 15.0
"""A kubelet says that it has seen a pod within a second or two. One that has not for this long is most likely
away: Kubernetes goes on to bind pods to its node until it has been silent for 40 s."""

pod_creating_s = 10.0
"""Containers that are not made after this long lack something: then the pod's Events are asked."""

pod_check_s = 10.0
"""Between two looks at a pod that does not start."""

pod_silent_s = 8.0
"""A process that has lost its registration is not ready three seconds later, where a kubelet asks it. A pod
that still says Ready after this long is on a node that is away."""

pod_overdue_s = 10.0
"""A kubelet ends a pod when its grace is over; a busy one some seconds later. Where one is there for this
long afterwards, the node is away."""

pod_unseen_s = 2.0
"""The patience with pods that are bound to a node that is away."""


@dataclass(frozen=True, slots=True)
class PodSteps:
    """`delete`: pods and why. `roles`: to be labelled, by pod. `silent_since`: of pods that have lost their
    registrations, by uid, on the loop's clock; `bound_since`: the same of pods that no kubelet has taken up.
    These are remembered from one look to the next."""

    delete: tuple[tuple[Pod, str], ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    silent_since: Mapping[str, float] = field(default_factory=dict)
    bound_since: Mapping[str, float] = field(default_factory=dict)


def pod_steps(seen: Observation, before: PodSteps) -> PodSteps:
    """`before`: what the look before has left; a controller that begins anew is patient anew. How long a pod
    has been bound is not read off the time that Kubernetes wrote: with a clock that is fast by that, no pod
    would ever be let start."""
    pods, now_s, silent_since = seen.pods, seen.at_s, before.silent_since
    bound = [pod for pod in pods if pod.bound_at and not pod.deleting]
    bound_since = {pod.uid: before.bound_since.get(pod.uid, now_s) for pod in bound}
    away = {pod.node for pod in pods if pod.gone_by and seen.age_s(pod.gone_by) >= pod_overdue_s}
    delete = [
        (pod, f"node {pod.node} does not start it")
        for pod in bound
        if now_s - bound_since[pod.uid] >= (pod_unseen_s if pod.node in away else pod_unstarted_s)
    ]
    if seen.etcd_away:
        return PodSteps(tuple(delete), silent_since=silent_since, bound_since=bound_since)
    still: dict[str, float] = {}
    roles: dict[str, str] = {}
    # Two shapes run at once while one takes over from the other, and no topology names pods of both.
    for number in sorted({pod.incarnation for pod in pods}):
        mine = tuple(pod for pod in pods if pod.incarnation == number)
        known = seen.in_etcd.get(number) or Known()
        silent = {pod.uid: silent_since.get(pod.uid, now_s) for pod in _silent(known, mine)}
        delete += [
            (pod, f"its instance is gone, and node {pod.node} does not say so")
            for pod in mine
            if pod.uid in silent and now_s - silent[pod.uid] >= pod_silent_s
        ]
        if not known.ended:
            over = pods_over(known.topology, known.registered, mine)
            delete += [(pod, "its instance was revoked") for pod in over]
        labelled = {pod.name: pod.role for pod in mine if not pod.deleting}
        wanted = roles_of(known.topology, known.registered, mine)
        roles |= {name: role for name, role in wanted.items() if labelled.get(name, role) != role}
        still |= silent
    return PodSteps(tuple(delete), roles, still, bound_since)


def _silent(known: Known, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Pods of one shape whose processes have lost their registrations, though they say Ready. One that has
    been taken over from ends as it is: its frontends need the others for what they pass on."""
    if known.ended or not known.topology.generation:
        return ()
    return tuple(pods_silent(known.topology, (*known.registered, *known.waiting), pods))


def next_check_s(seen: Observation, silent: Collection[str]) -> float | None:
    """When a pod that does not start will have to be looked at, or should be told of. `silent`: their
    uids."""
    left = []
    for pod in seen.pods:
        if pod.gone_by and seen.age_s(pod.gone_by) < pod_overdue_s:
            left.append(pod_overdue_s - seen.age_s(pod.gone_by))
        elif pod.bound_at and not pod.deleting:
            left.append(pod_unseen_s)
        elif pod.creating_since and not pod.deleting:
            left.append(max(pod_creating_s - seen.age_s(pod.creating_since), pod_check_s))
        elif pod.uid in silent:
            left.append(pod_silent_s)
    return min(left, default=None)


def not_created(seen: Observation) -> list[Pod]:
    """Pods whose containers are late."""
    return [
        pod
        for pod in sorted(seen.pods, key=lambda pod: pod.name)
        if pod.creating_since and not pod.deleting and seen.age_s(pod.creating_since) >= pod_creating_s
    ]
