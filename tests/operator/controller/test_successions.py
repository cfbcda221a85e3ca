"""Another shape that goes on with the states, as the controller sees it: each look is by a controller that
has just been started."""

from dataclasses import replace

import pytest

from hams_operator.plan.names import ALLOW_STATE_LOSS, RESTART_LOST, ROLE
from hams_protocol.succession.decision import successions_tried_max
from hams_protocol.succession.records import Follows, Phase, Quiet, Succession, TakenOver
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology
from hams_wire import records, succession
from hams_wire.coordination.port import Delete

from ..plan.kit import PAIR, with_change
from .test_reconcile import TOPOLOGY, UID, Scene

WIDER = (
    with_change("from: count.y", "from: more.y")
    + """  - name: more
    model: {entrypoint: "m:More", image: "m:1"}
    inputs: [count.y]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
"""
)
RENAMED = with_change("name: count", "name: counter", with_change("count.y", "counter.y"))
CUT = (("F/0", 7), ("F/1", 9))
NEW = Topology(
    generation=3,
    sets=(
        ReplicaSet("F/0", 1, "f1-aa", ("f2-aa",)),
        ReplicaSet("F/1", 1, "f2-aa", ("f1-aa",)),
        ReplicaSet("count", 1, "c1-aa", ("c2-aa",)),
    ),
    tables=(SlotTable("pass", (Slot(1, "p1-aa"), Slot(1, "p2-aa"))), SlotTable("more", (Slot(1, "m1-aa"),))),
)


class Two(Scene):
    """Two shapes: what the processes of both write into etcd is written by hand."""

    def uid(self, number: int) -> str:
        return f"{UID}-r{number}" if number else UID

    def member(self, number: int, instance: str, of: str) -> None:
        self.write(
            records.member_key(self.uid(number), instance),
            records.encode_member(records.MemberRecord(of, "tcp:10.0.0.1:7070")),
        )

    def note(self, number: int, name: str, record: succession.Record) -> None:
        self.write(succession.key(self.uid(number), name), succession.encode(record))

    def record(self) -> Succession | None:
        read = self.etcd.read(succession.key(UID, succession.SUCCESSION))
        return None if read is None else succession.decode_succession(read.value)

    def follows(self, number: int) -> Follows | None:
        read = self.etcd.read(succession.key(self.uid(number), succession.FOLLOWS))
        return None if read is None else succession.decode_follows(read.value)

    def new_pod(self, number: int, name: str, role: dict[str, str], ready: bool = True) -> None:
        self.pod(name, {"hams.dev/incarnation": str(number), **role}, ready)

    async def there(self, number: int = 1) -> None:
        """All processes of another shape are up: those that take nothing over serve, the others wait."""
        self.member(number, "manager-aa", "manager")
        for op, names in (("pass", ("p1", "p2")), ("more", ("m1",))):
            for name in names:
                self.new_pod(number, name, {"hams.dev/operator": op})
                self.member(number, f"{name}-aa", op)
        self.write(
            records.topology_key(self.uid(number)), records.encode_topology(Topology(1, (), NEW.tables))
        )
        for of, names in (("F", ("f1", "f2")), ("count", ("c1", "c2"))):
            for name in names:
                self.write(succession.key(self.uid(number), succession.WAITING + f"{name}-aa"), of.encode())
        await self.reconcile()

    async def closed(self) -> None:
        """The frontends of the shape before hold back, and the controller goes on."""
        for name in ("pair-frontend-1-aa", "pair-frontend-2-aa"):
            self.note(0, succession.QUIET + name, Quiet(f"{UID}-r1"))
        await self.reconcile()

    def quiet(self) -> None:
        """They own one shard each, in which nothing is open."""
        self.note(0, succession.QUIET + "pair-frontend-1-aa", Quiet(f"{UID}-r1", True, (("F/0", 1, 7),)))
        self.note(0, succession.QUIET + "pair-frontend-2-aa", Quiet(f"{UID}-r1", True, (("F/1", 1, 9),)))

    def taken(self) -> None:
        """The new ones have what they need, and roles."""
        for name, of in (("f1", "F"), ("f2", "F"), ("c1", "count"), ("c2", "count")):
            self.note(1, succession.TAKEN + f"{name}-aa", TakenOver(of, CUT, loaded=name == "c1"))
            self.member(1, f"{name}-aa", of)
        self.write(records.topology_key(self.uid(1)), records.encode_topology(NEW))

    def phase(self) -> Phase | None:
        record = self.record()
        return None if record is None else record.phase


async def begun(text: str = WIDER) -> Two:
    scene = Two()
    await scene.serving()
    scene.ask(text)
    await scene.settle()
    return scene


async def test_pods_are_looked_up_in_their_own_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a shape changes, no pod of either one is taken for dead because the other one does not know
    it."""
    monkeypatch.setattr("hams_operator.controller.pod_steps.pod_silent_s", 0.0)
    scene = await begun()
    await scene.there()
    for name in ("c1", "c2"):
        scene.new_pod(1, name, {"hams.dev/operator": "count"})
    await scene.reconcile()
    assert not [call for call in scene.kube.calls if call.startswith("delete Pod ")]
    scene.unregister("pair-count-2-aa")
    alone = ReplicaSet("count", 1, "pair-count-1-aa")
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], alone), TOPOLOGY.tables, ()))
    await scene.reconcile()
    assert [call for call in scene.kube.calls if call.startswith("delete Pod ")] == [
        "delete Pod pair-count-2"
    ], "one of the shape before that nobody is in any more"


async def test_from_the_first_look_to_the_last() -> None:
    scene = await begun()
    assert scene.follows(1) == Follows(UID, ("count",))
    assert ("Deployment", "shop", "pair-more-r1") in scene.kube.items
    assert (scene.condition("Progressing")["reason"], scene.phase()) == ("Replacing", None)
    assert "the states of count" in scene.condition("Progressing")["message"]
    assert scene.condition("Ready")["status"] == "True"
    await scene.there()
    assert scene.phase() is Phase.HOLD
    await scene.reconcile()
    assert scene.phase() is Phase.HOLD, "no frontend has said that it holds back"
    await scene.closed()
    assert scene.phase() is Phase.CLOSE
    await scene.reconcile()
    scene.quiet()
    await scene.reconcile()
    assert scene.phase() is Phase.CLOSE, "nothing has been taken over"
    scene.taken()
    await scene.reconcile()
    assert scene.phase() is Phase.DONE
    assert scene.follows(1) == Follows(UID, ("count",), done=True)
    assert scene.etcd.read(succession.key(UID, succession.ENDED)) is not None
    await scene.settle()
    assert ("Deployment", "shop", "pair-count") in scene.kube.items, (
        "the new frontends are not ready yet, the old ones pass on"
    )
    for name, of in (("f1", "frontend"), ("f2", "frontend")):
        scene.new_pod(1, name, {ROLE: of})
    for name in ("c1", "c2"):
        scene.new_pod(1, name, {"hams.dev/operator": "count"})
    await scene.settle()
    assert {item["metadata"]["name"] for item in scene.kube.of("Deployment")} >= {
        "pair-count",
        "pair-count-r1",
    }, "first of all the old frontends"
    assert ("Deployment", "shop", "pair-frontend") not in scene.kube.items
    for name in [name for kind, _, name in scene.kube.items if kind == "Pod" and name.startswith("pair-")]:
        del scene.kube.items["Pod", "shop", name]
    await scene.settle()
    assert all(item["metadata"]["name"].endswith("-r1") for item in scene.kube.of("Deployment"))
    assert not scene.etcd.snapshot(records.prefix_of(UID)).entries
    assert {"Replacing", "Replaced"} <= set(scene.events())
    scene.ask(PAIR)
    await scene.settle()
    assert scene.follows(2) == Follows(f"{UID}-r1", ("count",)), "and on from there"


async def test_a_shape_that_has_nobody_to_hand_its_state_over_is_not_asked_to_stop() -> None:
    scene = await begun()
    scene.etcd.transact((), (Delete(records.member_key(UID, "pair-count-1-aa")),))
    await scene.there()
    assert scene.phase() is None
    assert (
        "in the shape before, pair-count-1-aa, primary of count, does not serve it"
        in scene.condition("Progressing")["message"]
    )


@pytest.mark.parametrize("missing", ["manager", "a frontend", "an instance", "a pod"])
async def test_nobody_is_asked_to_stop_before_all_of_the_new_one_is_there(missing: str) -> None:
    scene = await begun()

    def write(key: str, value: bytes) -> None:
        names = {
            "manager": "members/manager-aa",
            "a frontend": "waiting/f2-aa",
            "an instance": "waiting/c2-aa",
        }
        if missing == "a pod" or not key.endswith(names[missing]):
            Scene.write(scene, key, value)

    scene.write = write  # type: ignore[method-assign]
    if missing == "a pod":
        new_pod = scene.new_pod
        scene.new_pod = lambda number, name, role, ready=True: (  # type: ignore[method-assign]
            new_pod(number, name, role, name != "m1")
        )
    await scene.there()
    assert scene.phase() is None


@pytest.mark.parametrize(
    "wrong",
    [
        "not loaded",
        "no copy",
        "another cut",
        "lost before",
        "a frontend without replies",
        "not quiet",
        "quiet in another epoch",
    ],
)
async def test_it_does_not_take_over_before_it_holds_everything(wrong: str) -> None:
    scene = await begun()
    await scene.there()
    await scene.closed()
    scene.quiet()
    scene.taken()
    sets = {item.name: item for item in NEW.sets}
    match wrong:
        case "not loaded":
            scene.note(1, succession.TAKEN + "c1-aa", TakenOver("count", CUT))
        case "no copy":
            sets["count"] = ReplicaSet("count", 1, "c1-aa", (), ("c2-aa",))
        case "lost before":
            sets["count"] = ReplicaSet("count", 2, "c1-aa", ("c2-aa",), restarted_in=2)
        case "another cut":
            scene.note(1, succession.TAKEN + "c2-aa", TakenOver("count", (("F/0", 6), ("F/1", 9))))
        case "a frontend without replies":
            scene.member(1, "f3-aa", "F")
        case "not quiet":
            scene.note(0, succession.QUIET + "pair-frontend-2-aa", Quiet(f"{UID}-r1", True, ()))
        case "quiet in another epoch":
            scene.note(0, succession.QUIET + "pair-frontend-2-aa", Quiet(f"{UID}-r1", True, (("F/1", 2, 9),)))
    scene.write(
        records.topology_key(scene.uid(1)),
        records.encode_topology(Topology(4, tuple(sets.values()), NEW.tables)),
    )
    await scene.settle()
    assert scene.phase() is (Phase.BACK if wrong == "another cut" else Phase.CLOSE)
    follows = scene.follows(1)
    assert follows is not None
    assert not follows.done


async def test_another_attempt_is_another_incarnation_and_in_the_end_it_is_refused() -> None:
    scene = await begun()
    for number in range(1, successions_tried_max + 1):
        await scene.there(number)
        record = scene.record()
        assert record is not None
        assert (record.to, record.phase, record.tries) == (scene.uid(number), Phase.HOLD, number)
        scene.note(
            0,
            succession.SUCCESSION,
            Succession(record.to, Phase.BACK, record.tries, record.asked, "too slow"),
        )
        await scene.settle()
        assert ("Deployment", "shop", f"pair-frontend-r{number}") not in scene.kube.items
    assert scene.condition("Progressing")["reason"] == "ChangeRefused"
    assert "too slow" in scene.condition("Progressing")["message"]
    assert scene.condition("Ready")["status"] == "True"
    scene.ask(WIDER)
    await scene.settle()
    assert ("Deployment", "shop", f"pair-more-r{successions_tried_max + 1}") in scene.kube.items, (
        "asked once more, it is tried once more"
    )


async def test_what_cannot_be_taken_over_is_not_tried_again() -> None:
    scene = await begun()
    await scene.there()
    await scene.closed()
    scene.quiet()
    scene.note(1, succession.TAKEN + "c1-aa", TakenOver("count", CUT, refused="the layout is another one"))
    await scene.settle()
    assert scene.phase() is Phase.BACK
    assert scene.condition("Progressing")["reason"] == "ChangeRefused"
    assert "the layout is another one" in scene.condition("Progressing")["message"]


@pytest.mark.parametrize("phase", [None, Phase.HOLD, Phase.CLOSE])
async def test_until_the_switch_it_can_be_asked_away_without_an_annotation(phase: Phase | None) -> None:
    scene = await begun()
    if phase is not None:
        await scene.there()
    if phase is Phase.CLOSE:
        await scene.closed()
    assert scene.phase() is phase
    scene.ask(PAIR)
    await scene.settle()
    record = scene.record()
    assert record is not None
    assert (record.to, record.phase) == (f"{UID}-r1", Phase.BACK)
    assert [item["metadata"]["name"] for item in scene.kube.of("ConfigMap")] == ["pair-graph"]
    assert (scene.condition("Ready")["status"], scene.condition("Progressing")["reason"]) == (
        "True",
        "Stable",
    )


async def test_after_the_switch_the_way_back_is_another_change() -> None:
    scene = await begun()
    await scene.there()
    await scene.closed()
    scene.quiet()
    scene.taken()
    await scene.reconcile()
    assert scene.phase() is Phase.DONE
    scene.ask(PAIR)
    await scene.settle()
    assert scene.follows(2) == Follows(f"{UID}-r1", ("count",))
    assert ("Deployment", "shop", "pair-frontend-r2") in scene.kube.items


async def test_a_state_that_nobody_goes_on_with_is_refused_and_the_others_are_kept_if_that_is_allowed() -> (
    None
):
    scene = Two(with_change("    inputs: [pass.y]", "    inputs: [first.y]") + FIRST)
    await scene.reconcile()
    scene.write(records.topology_key(UID), records.encode_topology(Topology(1)))
    scene.ask(RENAMED.replace("inputs: [pass.y]", "inputs: [first.y]") + FIRST)
    await scene.settle()
    assert "the state of count" in scene.condition("Progressing")["message"]
    scene.ask(RENAMED.replace("inputs: [pass.y]", "inputs: [first.y]") + FIRST, {ALLOW_STATE_LOSS: "true"})
    await scene.settle()
    assert scene.follows(1) == Follows(UID, ("first",))


FIRST = """  - name: first
    stateful: {backups: 1}
    model: {entrypoint: "m:Count", image: "m:1"}
    inputs: [pass.y]
    outputs: [{name: y, datatype: FP32, shape: [4]}]
"""


# -- pods of two shapes --------------------------------------------------------------------------------------


def deleted(scene: Two) -> list[str]:
    return [call.split()[-1] for call in scene.kube.calls if call.startswith("delete Pod")]


async def test_a_revoked_instance_of_the_shape_that_serves_is_made_again_while_another_one_comes_up() -> None:
    scene = await begun()
    await scene.there()
    moved = ReplicaSet("count", 2, "pair-count-1-aa", ())
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], moved), TOPOLOGY.tables, ("pair-count-2-aa",)))
    await scene.reconcile()
    assert deleted(scene) == ["pair-count-2"]


async def test_who_has_been_taken_over_from_is_left_to_end_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frontends pass on what they hold, and need the others for that, whoever may have lost its
    registration meanwhile."""
    scene = await begun()
    await scene.there()
    await scene.closed()
    scene.quiet()
    await scene.reconcile()
    scene.taken()
    await scene.reconcile()
    assert scene.phase() is Phase.DONE
    monkeypatch.setattr("hams_operator.controller.pod_steps.pod_silent_s", 0.0)
    scene.unregister("pair-count-2-aa")
    alone = ReplicaSet("count", 1, "pair-count-1-aa")
    scene.topology(Topology(6, (*TOPOLOGY.sets[:2], alone), TOPOLOGY.tables, ()))
    await scene.reconcile()
    assert not deleted(scene)


async def test_what_was_said_of_a_loss_of_one_shape_is_not_said_of_the_next() -> None:
    """Each shape counts its epochs from 1, and the annotation stays where it is."""
    scene = await begun()
    await scene.there()
    await scene.closed()
    scene.quiet()
    await scene.reconcile()
    scene.taken()
    await scene.settle()
    for name, role in (("f1", "frontend"), ("f2", "frontend")):
        scene.new_pod(1, name, {ROLE: role})
    for name in ("c1", "c2"):
        scene.new_pod(1, name, {"hams.dev/operator": "count"})
    lost = replace(NEW.find("count"), epoch=3, lost=True)
    key = records.topology_key(scene.uid(1))
    scene.write(key, records.encode_topology(NEW.with_set(lost).next()))

    def may_restart() -> bool:
        read = scene.etcd.read(key)
        assert read is not None
        return records.decode_topology(read.value).find("count").may_restart

    scene.ask(WIDER, {RESTART_LOST: "count@3"})  # of the first shape, long ago
    await scene.settle()
    assert not may_restart()
    assert "hams.dev/restart-lost: count@3-r1)" in scene.condition("Ready")["message"]
    scene.ask(WIDER, {RESTART_LOST: "count@3-r1"})
    await scene.settle()
    assert may_restart()
