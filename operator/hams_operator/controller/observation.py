"""What a look has seen of one graph at one moment: the resource, its objects and pods, and what etcd holds of
each of its incarnations.

A value: what is planned, and what status says, follows from it alone. Nothing here asks anybody.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hams_operator.controller.etcd_cache import Known
from hams_operator.controller.running import Running, incarnation_of, running
from hams_operator.controller.store import REFUSAL, ROLLING
from hams_operator.plan.change import Decision
from hams_operator.plan.difference import is_ours, key_of
from hams_operator.plan.names import INCARNATION, OPERATOR, ROLE, GraphRef, Json
from hams_operator.plan.pods_seen import Pod
from hams_operator.plan.status import FailoverReport, KnownGraph, TimelinessReport, answers
from hams_protocol.succession.decision import Step
from hams_protocol.succession.records import Phase


@dataclass(frozen=True)
class Observation:
    """`item`: the resource as it stood when the look began; `place`: where it is, of incarnation 0.
    `in_etcd`: by incarnation. `etcd_away`: why etcd cannot be read, or "": then `in_etcd` is what it last
    was. `etcd_full`: whether it takes no writes. `at_s`: the moment, on the loop's clock, which does not
    jump; `at`: the same as Kubernetes tells times."""

    item: Json
    place: GraphRef
    at: datetime.datetime
    at_s: float
    objects: tuple[Json, ...] = ()
    pods: tuple[Pod, ...] = ()
    in_etcd: Mapping[int, Known] = field(default_factory=dict)
    etcd_away: str = ""
    etcd_full: bool = False

    @property
    def generation(self) -> int:
        """Of the resource."""
        return int(self.item["metadata"].get("generation", 0))

    @property
    def annotations(self) -> Mapping[str, str]:
        """Of the resource."""
        return self.item["metadata"].get("annotations") or {}

    def age_s(self, since: str) -> float:
        """Seconds since a time of Kubernetes, RFC 3339."""
        return (self.at - datetime.datetime.fromisoformat(since)).total_seconds()

    @cached_property
    def running(self) -> Running:
        """What has been begun, out of Kubernetes and etcd."""
        return running(
            self.place,
            self.objects,
            lambda: {
                replace(self.place, incarnation=number).graph_uid(): (known.spec, known.has_run)
                for number, known in self.in_etcd.items()
            },
        )

    def known(self, place: GraphRef) -> Known:
        """What etcd holds of an incarnation."""
        return self.in_etcd.get(place.incarnation) or Known()

    def newest_used(self) -> int:
        """The newest incarnation that has run, though nothing may be left of it but keys in etcd: a new one
        with its number would find them."""
        incarnations = self.in_etcd.values()
        run = [number for number, known in self.in_etcd.items() if known.has_run]
        to = [incarnation_of(known.succession.to, self.place) for known in incarnations if known.succession]
        return max((*run, *to, *(pod.incarnation for pod in self.pods)), default=0)

    def world(self, decision: Decision) -> KnownGraph:
        """What the status of an incarnation is made of."""
        known = self.known(decision.place)
        address = "Service", decision.place.name
        return KnownGraph(
            topology=known.topology,
            registered=known.registered,
            pods=self.pods,
            etcd_away=self.etcd_away,
            etcd_full=self.etcd_full,
            refused=decision.refused,
            addressed=any(
                key_of(item) == address and is_ours(item, decision.place.owner_uid) for item in self.objects
            ),
            refusals=self._said_of_deployments(decision.place, REFUSAL),
            rolling=tuple(sorted(self._said_of_deployments(decision.place, ROLLING))),
            failovers={
                name: FailoverReport(item.epoch, item.took_ms, item.reason)
                for name, item in known.failovers.items()
            },
            versions={name: (item.epoch, item.version) for name, item in known.versions.items()},
            timeliness={
                name: TimelinessReport(
                    item.of, item.on_time, item.on_time + item.late + item.shed, item.policy, item.failed
                )
                for name, item in known.timeliness.items()
            },
        )

    def _said_of_deployments(self, place: GraphRef, what: str) -> dict[str, str]:
        """What the store has kept of their statuses, by operator, frontend or manager."""
        messages = {}
        for item in self.objects:
            why = (item.get("status") or {}).get(what, "")
            labels = item["metadata"].get("labels") or {}
            if why and labels.get(INCARNATION) == str(place.incarnation):
                messages[labels.get(OPERATOR) or labels.get(ROLE, "")] = why
        return messages

    def answers(self, decision: Decision) -> bool:
        """Whether that incarnation answers requests."""
        return answers(decision.graph, decision.place, self.world(decision))

    def shown(self, decision: Decision) -> Decision:
        """Which incarnation the status is about: as long as the one decided for does not answer, the newest
        that does, or the one before. Not where one that has taken over has lost a state since: a person
        decides of that, by what the status says."""
        known = self.known(decision.place)
        took_over = known.follows is not None and known.follows.done
        if self.answers(decision) or (took_over and any(item.lost for item in known.topology.sets)):
            return decision
        others = [
            Decision(graph, replace(decision.place, incarnation=number))
            for number, graph in sorted(self.running.graphs.items(), reverse=True)
        ]
        serving = [other for other in others if other.place != decision.place and self.answers(other)]
        before = [other for other in others if other.place.incarnation < decision.place.incarnation]
        return next(iter(serving + before), decision)

    def replacing(self, decision: Decision, step: Step) -> str:
        """What there is to say of the shape that comes up."""
        follows = self.known(decision.place).follows
        if follows is None:
            return "another shape of the graph comes up beside this one, and takes over when it serves"
        record = self.known(
            replace(self.place, incarnation=incarnation_of(follows.uid, self.place))
        ).succession
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


def place_of(item: Json) -> GraphRef:
    """Where a resource is, of incarnation 0."""
    metadata = item["metadata"]
    return GraphRef(metadata["name"], metadata["namespace"], metadata["uid"])
