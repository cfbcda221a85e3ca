"""One history of a change of shape from one seed: run the graph, ask for another shape, hurt processes of
both, heal, wait, judge."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from hams_history.checker import check
from hams_history.lines import FaultLine, HealLine
from hams_sim import checks, limits
from hams_sim.errors import Broken
from hams_sim.etcd import Etcd
from hams_sim.faults import Fault, Faults
from hams_sim.strikes import OF_ONE
from hams_sim.succession.asks import CallClient
from hams_sim.succession.controller import SimController
from hams_sim.succession.incarnation import SimIncarnation
from hams_sim.succession.plan import Kinds, SuccessionPlan
from hams_sim.succession.resource import SimResource
from hams_sim.succession.store import SimStore

ASKED_AFTER_S = 0.1
"""The change is asked for so long after the first clients may come."""

BURST_CALLS = 10
"""So many calls come when the first change is about to hold requests back, whenever they were to come."""

settled_after_s = 60.0
"""After the last fault a change of shape is over, or refused, within this long: attempts that are given up,
each after half of the time that requests have."""


class SuccessionFaults:
    """Does faults to both shapes, the controller and etcd. `counts`: how many of each kind struck."""

    def __init__(self, resource: SimResource, rng: Random) -> None:
        self._resource = resource
        self._rng = rng
        self.counts: Counter[str] = Counter()
        self._of: dict[str, Faults] = {}
        self._undo: list[Callable[[], None]] = []

    def plan(self, faults: list[Fault]) -> None:
        """Put the schedule where its phases begin."""
        for fault in faults:
            if fault.trigger:
                self._resource.on_phase.setdefault(fault.trigger, []).append(self._later(fault))
            else:
                self._later(fault)()

    def _later(self, fault: Fault) -> Callable[[], None]:
        def arm() -> None:
            self._resource.clock.after(fault.at, self._strike, fault)

        return arm

    def heal_all(self) -> None:
        """No fault is left."""
        self._resource.on_phase.clear()
        self._resource.healing = True
        undo, self._undo = self._undo, []
        for call in undo:
            call()
        for graph in self._resource.incarnations:
            graph.healing = True
            if graph.uid in self._of:
                self._of[graph.uid].heal_all()

    def _strike(self, fault: Fault) -> None:
        if self._resource.healing:
            return
        side, _, role = fault.victim.partition("/")
        if side == "controller":
            self._hurt_controller(fault)
        elif side == "waiting":
            self._hurt_waiting(fault)
        elif side == "record":
            self._forget()
        elif side == "resource":
            self._count(fault)
            self._resource.delete()
        elif fault.kind == "slow-record":
            self._slow_record(fault, self._side(side))
        elif not side:
            self._hurt_etcd(fault)
        else:
            graph = self._side(side)
            if graph is not None:
                self._hurt_graph(graph, replace(fault, victim=role, trigger="", at=0.0))

    def _side(self, side: str) -> SimIncarnation | None:
        if side == "old":
            present = self._resource.present()
            return present if self._resource.coming() else self._before(present)
        return self._resource.coming() or self._resource.present()

    def _before(self, present: SimIncarnation) -> SimIncarnation:
        if present.follows is None:
            return present
        before = self._resource.incarnation(present.follows.uid)
        return present if before.is_removed else before

    def _count(self, fault: Fault) -> None:
        where = fault.victim.partition("/")[0] or "etcd"
        self.counts[f"{fault.kind} {where} in {fault.trigger or 'the beginning'}"] += 1

    def _hurt_graph(self, graph: SimIncarnation, fault: Fault) -> None:
        faults = self._of.setdefault(graph.uid, Faults(graph, graph.fault_rng))
        before = sum(faults.counts.values())
        faults.strike(fault)
        if sum(faults.counts.values()) > before:
            self.counts[f"{fault.kind} {fault.victim.partition(':')[0]}"] += 1
            if fault.kind in OF_ONE and fault.span_s:
                self._resume_later(graph, fault.span_s)

    def _resume_later(self, graph: SimIncarnation, span_s: float) -> None:
        """What has piled up in a process that stood still happens when it goes on."""

        def resume() -> None:
            for process in list(graph.processes):
                process.resumed()

        self._resource.clock.after(span_s + 0.0001, resume)
        self._undo.append(lambda: self._resource.clock.after(0.0001, resume))

    def _hurt_controller(self, fault: Fault) -> None:
        self._count(fault)
        resource, controller = self._resource, self._resource.controller
        if fault.kind == "kill":
            controller.alive = False

            def restart() -> None:
                if not resource.controller.alive:
                    resource.controller = SimController(resource)

            resource.clock.after(fault.span_s, restart)
            self._undo.append(restart)
            return

        def over() -> None:
            controller.paused = controller.cut = False
            resource.controller_slow = 1.0
            controller.resumed()

        if fault.kind == "slow-watch":
            resource.controller_slow = fault.amount
        controller.paused, controller.cut = fault.kind == "pause", fault.kind == "cut-etcd"
        resource.clock.after(fault.span_s, over)
        self._undo.append(over)

    def _hurt_waiting(self, fault: Fault) -> None:
        waiting = self._resource.waiting()
        if waiting:
            self._count(fault)
            process = self._rng.choice(waiting)
            process.end()
            process.incarnation.processes.remove(process)
            self._resource.clock.after(0.2, process.incarnation.start, process.of)

    def _forget(self) -> None:
        """What is over is over, though its record is removed from etcd."""
        present = self._resource.present()
        if present.follows is not None:
            self.counts["record removed"] += 1
            self._resource.store.put(present.follows.uid, "succession", None)

    def _slow_record(self, fault: Fault, graph: SimIncarnation | None) -> None:
        """A frontend hears late of the record, and of topologies only from its peers."""
        frontends = [] if graph is None else graph.frontends()
        if frontends:
            self._count(fault)
            process = self._rng.choice(frontends)
            process.slow = fault.amount

            def over() -> None:
                process.slow = 1.0

            self._resource.clock.after(fault.span_s, over)
            self._undo.append(over)

    def _hurt_etcd(self, fault: Fault) -> None:
        self._count(fault)
        resource, store = self._resource, self._resource.store
        graphs = list(resource.incarnations)
        targets: list[SimStore | Etcd] = [store, *[graph.etcd for graph in graphs]]
        if fault.kind == "etcd-away":
            for target in targets:
                target.away += 1

            def back() -> None:
                for target in targets:
                    target.away -= 1
                for graph in graphs:
                    for node in graph.living():
                        graph.etcd.resync(node)

        else:
            for target in targets:
                target.lose_request = target.lose_reply = fault.amount

            def back() -> None:
                for target in targets:
                    target.lose_request = target.lose_reply = 0.0

        once = [back]

        def over() -> None:
            if once:
                once.pop()()

        for graph in graphs:
            graph.calm.hurt("", fault.span_s)
        resource.clock.after(fault.span_s, over)
        self._undo.append(over)


class ChangeHistory:
    """One history: `resource` is its world, `faults` what is done to it."""

    def __init__(self, plan: SuccessionPlan, kinds: Kinds, seed: str, early_replies: bool = False) -> None:
        self.plan = plan
        self.kinds = kinds
        self.resource = SimResource(seed, plan.graphs[0], plan.behaviours, plan.refuses, early_replies)
        self.resource.answers_s = kinds.answers_s
        self.faults = SuccessionFaults(self.resource, Random(f"{seed}/faults"))

    def run(self, faults: list[Fault], dropped_calls: frozenset[int]) -> None:
        """Run it to its end, and judge it. Raises Broken."""
        resource = self.resource
        self._begin()
        start = resource.clock.now
        for call in self.plan.calls:
            if call.number not in dropped_calls:
                client = CallClient(resource, call)
                resource.clients.append(client)
                resource.clock.at(start + call.at, client.start)
        resource.clock.at(start + ASKED_AFTER_S, self._ask, faults)
        resource.clock.run(start + self.plan.span_s + 1.5)
        self.faults.heal_all()
        if resource.deleted:
            resource.clock.run(resource.clock.now + limits.settle_s)
            _judge_lines(resource)
            return
        resource.present().recorder.lines.append(HealLine(what="all", at=resource.clock.now))
        _settle(resource)
        _judge(resource)
        if self.kinds.strict:
            _nothing_failed(resource)

    def _burst(self) -> None:
        """Some calls come just when requests begin to be held back."""
        resource, rng = self.resource, Random(f"{len(self.plan.calls)}/burst")
        fresh = [client for client in resource.clients if not client.attempts]

        def come() -> None:
            for client in fresh[-BURST_CALLS:]:
                if not client.attempts:
                    resource.clock.after(0.006 * rng.random(), client.start)

        resource.on_phase.setdefault("hold", []).append(come)

    def _begin(self) -> None:
        clock, first = self.resource.clock, self.resource.incarnations[0]
        while not checks.converged(first):
            if clock.now > limits.ready_after_s:
                raise Broken("I7", f"a fresh graph is not ready: {checks.what_is_open(first)}")
            clock.run(clock.now + 0.05)
        first.recorder.lines.append(FaultLine(what="faults begin", at=clock.now))

    def _ask(self, faults: list[Fault]) -> None:
        """The first change is asked for; the second one is at its phase."""
        resource, plan = self.resource, self.plan
        resource.ask_for(plan.graphs[1])
        if len(plan.graphs) > 2:

            def again() -> None:
                resource.clock.after(plan.second_after_s, resource.ask_for, plan.graphs[2])

            resource.on_phase.setdefault(plan.second_at, []).append(again)
        self._burst()
        self.faults.plan(faults)


def _settle(resource: SimResource) -> None:
    """Until the change is over or refused, every call is answered, and the shape that serves is whole."""
    clock = resource.clock
    healed = since = clock.now
    while clock.now < since + limits.settle_s:
        clock.run(clock.now + limits.settle_step_s)
        for graph in resource.incarnations:
            if graph.events > limits.events_max:
                raise Broken("I6", f"{graph.events} events in {graph.uid}: a livelock")
        open_ = what_is_open(resource)
        if open_:
            since = clock.now
            if clock.now > healed + settled_after_s:
                raise Broken("I7", f"{settled_after_s} s after the last fault: {open_}")


def what_is_open(resource: SimResource) -> str:
    """Why a history is not over, for people; "" if it is."""
    present, coming = resource.present(), resource.coming()
    if resource.calls_open:
        waiting = [
            f"c{client.call.number}" for client in resource.clients if not client.status and client.attempts
        ]
        return f"calls without answer: {waiting[:8]}"
    if coming is not None:
        record = resource.store.value(present.uid, "succession")
        return f"{coming.uid} has not taken over from {present.uid}: {record}"
    if resource.wanted is not present.graph and not resource.refused:
        return f"{present.uid} serves, and another graph is asked for"
    others = [graph.uid for graph in resource.incarnations if graph is not present and not graph.is_removed]
    if others:
        return f"{others} are still there"
    return "" if checks.converged(present) else checks.what_is_open(present)


def _judge(resource: SimResource) -> None:
    """What must hold at the end, beyond what single steps have shown."""
    present = resource.present()
    checks.compare_states(present)
    present.recorder.lines.append(checks.final_line(present))
    _judge_lines(resource)
    for client in resource.clients:
        name = f"c{client.call.number}"
        if client.status in ("410", "503", "429") and not resource.may_expire:
            raise Broken("I1", f"{name} was told {client.status}, though every reply is kept")
        if client.status == "error" and client.said == "broken" and not client.broke:
            raise Broken("I1", f"{name} failed, though its connection did not")


def _judge_lines(resource: SimResource) -> None:
    """The history of each incarnation."""
    for graph in resource.incarnations:
        report = check(graph.recorder.lines)
        promised = [item for item in report.violations if checks.is_promised(graph, item)]
        if report.problems or promised:
            raise Broken("+".join(sorted(report.broken)) or "history", f"{graph.uid}: {report.render()}")
        resource.coverage.update(graph.coverage)


def _nothing_failed(resource: SimResource) -> None:
    """Where nothing was hurt, every call has a reply."""
    if resource.coverage["phase back"]:
        raise Broken("I7", "a change of shape was taken back without a fault")
    for client in resource.clients:
        if client.status not in ("ok", "error", "409", "left") or client.broke:
            raise Broken("I1", f"c{client.call.number} was told {client.status} without a fault")
