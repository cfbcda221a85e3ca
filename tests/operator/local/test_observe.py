"""What a look at a local run means."""

import pytest

from hams_operator.local.observe import Condition, awaited, serving_of
from hams_protocol.messages import Health, ProbeAnswer, RoleReport
from hams_protocol.topology import ReplicaSet, Topology
from hams_protocol.wholeness import NOT_ASKED_FOR, READY, REDUNDANT


@pytest.mark.parametrize(
    ("ready", "redundant", "reason", "waits_for"),
    [
        ("True", "True", "InSync", None),
        ("True", "False", NOT_ASKED_FOR, None),
        ("True", "False", "Degraded", REDUNDANT),
        ("False", "False", NOT_ASKED_FOR, READY),
        ("False", "True", "InSync", READY),
        ("Unknown", "False", "Degraded", READY),
    ],
)
def test_a_wait_ends_with_all_that_a_graph_asks_for(
    ready: str, redundant: str, reason: str, waits_for: str | None
) -> None:
    condition = awaited([Condition(READY, ready, "", ""), Condition(REDUNDANT, redundant, reason, "")])
    assert (condition and condition.type) == waits_for


def answer(*roles: RoleReport, health: Health = Health.HEALTHY) -> ProbeAnswer:
    return ProbeAnswer(1, health, 1, roles)


def test_an_instance_serves_only_the_epoch_that_the_topology_says() -> None:
    topology = Topology(sets=(ReplicaSet("count", 3, "a"),))
    answers = {
        "a": answer(RoleReport("count", "primary", 3, 0, True)),
        "late": answer(RoleReport("count", "primary", 2, 0, True)),
        "loading": answer(RoleReport("count", "primary", 3, 0, False)),
        "backup": answer(RoleReport("count", "backup", 3, 0, True)),
    }
    serving = serving_of(topology, answers, "")
    assert [name for name in answers if serving.serves(name, "count")] == ["a"]
    assert serving.takes_part("backup")
    assert not serving.takes_part("silent")
    assert not serving.serves("silent", "count")


def test_a_standby_is_warm_once_it_is_ready() -> None:
    answers = {
        "w": answer(RoleReport("pass", "standby", 0, 0, True)),
        "cold": answer(RoleReport("pass", "standby", 0, 0, False)),
        "other": answer(RoleReport("count", "standby", 0, 0, True)),
    }
    assert serving_of(Topology(), answers, "").warm("pass") == 1
