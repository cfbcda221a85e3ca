"""What a manager tells people of a failover: from the first suspicion to the commit, once, and of those moves
only that it committed itself."""

from dataclasses import replace

from hams_operator.manager.failover_log import FailoverLog
from hams_protocol.effects import Effect, Propose
from hams_protocol.events import CasSettled, Event, Tick, TopologyLearnt
from hams_protocol.graph import FrontendSpec, Graph, GraphData, Mode, RecoverySpec
from hams_protocol.knowledge import Knowledge
from hams_protocol.topology import ReplicaSet, Topology
from hams_wire.records import FailoverRecord

GRAPH = Graph(GraphData("g", "uid", Mode.NON_STOP, FrontendSpec(), 1, RecoverySpec(), (), (), ()))
BEFORE = Topology(4, (ReplicaSet("a", 1, "a-1", ("a-2",)), ReplicaSet("b", 1, "b-1")))
AFTER = Topology(5, (ReplicaSet("a", 2, "a-2", (), (), ((1, 7),)), ReplicaSet("b", 1, "b-1")), (), ("a-1",))


class Machine:
    """A manager's machine as far as it is looked at."""

    def __init__(self) -> None:
        self.knowledge = Knowledge(GRAPH)
        self.suspects: dict[str, str] = {}
        self.answer: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, TopologyLearnt | CasSettled):
            self.knowledge.learn(event.topology, event.revision)
        return self.answer

    def deadline(self) -> float:
        return float("inf")


class Scene:
    def __init__(self) -> None:
        self.machine = Machine()
        self.reported: list[tuple[str, FailoverRecord]] = []
        self.failover_log = FailoverLog(
            self.machine,  # type: ignore[arg-type]
            lambda name, record: self.reported.append((name, record)),
        )
        self.failover_log.step(TopologyLearnt(BEFORE, 4), 0.0)

    def suspect(self, instance: str, at: float, reason: str = "its connection broke") -> None:
        self.machine.suspects = {**self.machine.suspects, instance: reason}
        self.failover_log.step(Tick(), at)

    def propose(self, topology: Topology, at: float) -> None:
        self.machine.answer = [Propose(4, topology)]
        self.failover_log.step(Tick(), at)
        self.machine.answer = []


def test_a_failover_took_from_the_first_suspicion_until_its_commit() -> None:
    scene = Scene()
    scene.suspect("a-1", 1.0)
    scene.suspect("a-1", 1.01)  # probed again
    scene.propose(AFTER, 1.02)
    scene.failover_log.step(CasSettled(AFTER, 5, committed=True), 1.034)
    assert scene.reported == [("a", FailoverRecord(2, 34, "a-1: its connection broke"))]


def test_it_is_told_once_also_where_the_watch_was_faster_than_the_answer() -> None:
    scene = Scene()
    scene.suspect("a-1", 1.0)
    scene.propose(AFTER, 1.02)
    scene.machine.suspects = {}
    scene.failover_log.step(TopologyLearnt(AFTER, 5), 1.03)
    scene.failover_log.step(CasSettled(AFTER, 5, committed=True), 1.04)
    scene.failover_log.step(TopologyLearnt(AFTER, 5), 1.05)
    assert [name for name, _ in scene.reported] == ["a"]


def test_a_revocation_that_came_first_does_not_stop_the_clock() -> None:
    scene = Scene()
    scene.suspect("a-1", 1.0)
    revoked = replace(BEFORE, generation=5, revoked=("a-1",))
    scene.machine.suspects = {}
    scene.failover_log.step(TopologyLearnt(revoked, 5), 1.1)
    moved = replace(AFTER, generation=6)
    scene.propose(moved, 1.2)
    scene.failover_log.step(CasSettled(moved, 6, committed=True), 1.25)
    assert scene.reported == [("a", FailoverRecord(2, 250, "a-1: its connection broke"))]


def test_a_set_that_went_back_with_another_names_whose_end_it_was() -> None:
    scene = Scene()
    scene.suspect("a-1", 1.0)
    both = replace(AFTER, sets=(AFTER.sets[0], ReplicaSet("b", 2, "b-1", (), (), ((1, 3),))))
    scene.propose(both, 1.1)
    scene.failover_log.step(CasSettled(both, 5, committed=True), 1.2)
    assert dict(scene.reported)["b"] == FailoverRecord(2, 200, "a-1: its connection broke")


def test_what_another_manager_committed_or_a_primary_handed_over_is_not_told() -> None:
    scene = Scene()
    scene.suspect("a-1", 1.0)
    scene.propose(AFTER, 1.1)
    scene.failover_log.step(CasSettled(AFTER, 5, committed=False), 1.2)
    handed = Topology(6, (ReplicaSet("a", 3, "a-1", ("a-2",)), ReplicaSet("b", 1, "b-1")))
    scene.failover_log.step(TopologyLearnt(handed, 6), 2.0)
    assert scene.reported == []


def test_who_is_cleared_is_suspected_anew_the_next_time() -> None:
    scene = Scene()
    scene.suspect("a-1", 1.0)
    scene.machine.suspects = {}
    scene.failover_log.step(Tick(), 2.0)
    scene.suspect("a-1", 5.0, "silent for 0.200 s")
    scene.propose(AFTER, 5.1)
    scene.failover_log.step(CasSettled(AFTER, 5, committed=True), 5.2)
    assert scene.reported == [("a", FailoverRecord(2, 200, "a-1: silent for 0.200 s"))]
