"""What each scenario does to a graph, in which order, told by a graph that writes everything down."""

from collections.abc import Mapping

import pytest

from hams_operator.chaos.port import Run
from hams_operator.chaos.scenarios import CATALOGUE, Aim, find


class Written:
    """A graph of `pass` without state and `count` with one: a `Run` that remembers."""

    operators: Mapping[str, bool] = {"pass": False, "count": True}

    def __init__(self) -> None:
        self.said: list[str] = []
        self.epoch = 1
        self.primary = 1
        self.spare = ["g-pass-1", "g-manager-1"]

    def pod_of(self, operator: str, role: str) -> str:
        return f"g-{operator}-{self.primary if role == 'primary' else role}"

    def pods_of(self, operator: str) -> list[str]:
        return [f"g-{operator}-1", f"g-{operator}-2"]

    def spare_pods(self) -> list[str]:
        return self.spare

    def epoch_of(self, operator: str) -> int:
        return self.epoch

    def condition(self, kind: str) -> Mapping[str, str]:
        return {}

    def redundant(self, within_s: float = 1.0) -> None:
        self.said.append("redundant")

    def changed(self, within_s: float = 1.0) -> None:
        self.said.append("changed")

    def moved(self, operator: str, epoch: int, within_s: float = 1.0) -> None:
        assert epoch == self.epoch
        self.epoch, self.primary = self.epoch + 1, self.primary + 1
        self.said.append("moved")

    def answered(self, count: int, within_s: float = 1.0) -> None:
        self.said.append("answered")

    def stalled(self, span_s: float) -> None:
        self.said.append("stalled")

    def note(self, what: str) -> None:
        self.said.append(what)

    def delete(self, pod: str, *, force: bool = False) -> None:
        self.said.append(f"{'force ' if force else ''}delete {pod}")

    def node_of(self, pod: str) -> str:
        return f"node-of-{pod}"

    def drain(self, node: str) -> None:
        self.said.append(f"drain {node}")

    def undrain(self, node: str) -> None:
        self.said.append(f"undrain {node}")

    def delete_controllers(self, *, force: bool = False) -> None:
        self.said.append(f"{'force ' if force else ''}delete controllers")

    def stop_controllers(self) -> None:
        self.said.append("stop controllers")

    def start_controllers(self) -> None:
        self.said.append("start controllers")

    def lose_etcd_member(self) -> None:
        self.said.append("lose a member")

    def etcd_whole(self, within_s: float = 1.0) -> None:
        self.said.append("etcd whole")

    def change_model(self, operator: str, image: str = "") -> None:
        self.said.append(f"change {operator} {image}".rstrip())

    def replaced(self, operator: str, within_s: float = 1.0) -> None:
        self.said.append(f"replaced {operator}")


def done(name: str, aim: Aim | None = None) -> list[str]:
    run = Written()
    accepted: Run = run
    find(name).strike(accepted, aim or Aim(times=1, duration_s=0.01, every_s=0.002))
    return run.said


def test_each_role_in_turn_and_the_graph_whole_in_between() -> None:
    pause = ["changed", "redundant"]
    first = [*["delete g-count-1", *pause], *["delete g-count-backup", *pause]]
    rest = [
        *["delete g-pass-active", *pause],
        *["delete g-frontend-frontend", *pause],
        *["delete g-manager-manager", *pause],
    ]
    assert done("F11") == [*first, *rest]
    assert done("F11", Aim(role="active", times=1)) == ["delete g-pass-active", *pause], (
        "it needs no operator"
    )
    assert done("F12", Aim(operator="pass", times=2)) == ["force delete g-pass-active", *pause] * 2
    assert done("F12", Aim(operator="frontend", times=1)) == ["force delete g-frontend-frontend", *pause]
    assert done("F12", Aim(operator="count", role="backup", times=1)) == [
        "force delete g-count-backup",
        *pause,
    ]


def test_a_graph_has_the_roles_of_its_operators() -> None:
    others = ["delete g-frontend-frontend", "delete g-manager-manager"]
    keeping, passing = {"count": True, "sum": True}, {"pass": False, "last": False}
    for operators, own in (
        (keeping, ["delete g-count-1", "delete g-count-backup"]),
        (passing, ["delete g-pass-active"]),
    ):
        run = Written()
        run.operators = operators
        find("F11").strike(run, Aim(times=1))
        assert [name for name in run.said if name.startswith("delete")] == [*own, *others]


def test_random_deletions_hit_spare_pods_only_and_the_same_ones_for_one_seed() -> None:
    said = done("random")
    assert {name.split()[-1] for name in said if "delete" in name} <= {"g-pass-1", "g-manager-1"}
    assert said[-1] == "redundant"
    run = Written()
    run.spare = []
    find("F14").strike(run, Aim(duration_s=0.005, every_s=0.001))
    assert not [name for name in run.said if "delete" in name], "the last replica of a state is never hit"


def test_a_promoted_backup_dies_only_after_it_was_promoted() -> None:
    assert done("F33")[:3] == ["force delete g-count-1", "moved", "force delete g-count-2"]


def test_what_may_lose_a_state_is_over_when_the_graph_is_whole_again() -> None:
    assert done("F13") == ["force delete g-count-1", "force delete g-count-2", "changed", "redundant"]
    assert done("F33")[3:] == ["changed", "redundant"]


def test_a_node_of_frontends_can_be_drained_too() -> None:
    assert done("F15", Aim(operator="frontend"))[0] == "drain node-of-g-frontend-frontend"
    assert done("F15", Aim(operator="count", role="backup"))[0] == "drain node-of-g-count-backup"
    assert done("F15", Aim(operator="pass"))[0] == "drain node-of-g-pass-active"


def test_what_was_taken_away_is_given_back_though_the_scenario_fails() -> None:
    class Broken(Written):
        def redundant(self, within_s: float = 1.0) -> None:
            raise TimeoutError("not redundant")

        def answered(self, count: int, within_s: float = 1.0) -> None:
            raise TimeoutError("no replies")

    class Unending(Written):
        def stop_controllers(self) -> None:
            raise TimeoutError("their end")

    cases = (
        (Broken(), "F15", "undrain node-of-g-count-1"),
        (Broken(), "F30", "start controllers"),
        (Unending(), "F30", "start controllers"),
    )
    for run, name, back in cases:
        with pytest.raises(TimeoutError):
            find(name).strike(run, Aim())
        assert run.said[-1] == back


def test_a_member_of_etcd_goes_with_a_primary_and_is_waited_for() -> None:
    assert done("F27/etcd-member") == [
        "lose a member",
        "force delete g-count-1",
        "changed",
        "redundant",
        "etcd whole",
    ]


def test_upgrades_go_operator_by_operator() -> None:
    assert done("upgrade") == ["change pass", "replaced pass", "change count", "replaced count", "redundant"]
    aim = Aim(operator="count", image="m:2")
    assert done("upgrade-failover", aim) == [
        "change count m:2",
        "force delete g-count-1",
        "replaced count",
        "redundant",
    ]
    assert done("F31", Aim(times=1))[:2] == ["change count", "force delete controllers"]


def test_scenarios_are_found_by_id_and_name_and_others_are_named() -> None:
    assert find("F34/upgrade-failover").name == "upgrade-failover"
    assert find("drain").id == "F15"
    assert len({(item.id, item.name) for item in CATALOGUE}) == len(CATALOGUE)
    with pytest.raises(ValueError, match=r"no scenario .F99.; there are F11/graceful"):
        find("F99")
    with pytest.raises(ValueError, match='no operator "coutn"; there are pass, count, frontend, manager'):
        done("F12", Aim(operator="coutn"))
    with pytest.raises(ValueError, match='count has no role "active"; there are primary, backup'):
        done("F11", Aim(operator="count", role="active"))
    with pytest.raises(
        ValueError,
        match='the graph has no role "successor"; there are primary, backup, active, frontend, manager',
    ):
        done("F11", Aim(role="successor"))
    with pytest.raises(ValueError, match='pass has no role "primary"; there are active'):
        done("F11", Aim(operator="pass", role="primary"))
    for name in ("F31", "F34"):
        with pytest.raises(ValueError, match="frontend has no model"):
            done(name, Aim(operator="frontend"))
    for name in ("F27", "F33"):
        with pytest.raises(ValueError, match="keeps no state"):
            done(name, Aim(operator="pass"))
