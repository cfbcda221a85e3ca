"""Whom `hams kill` means."""

import pytest

from hams_operator.cli.kill import pick
from hams_operator.cli.output import CommandError
from hams_operator.graph_status import GraphStatus, InstanceStatus


def instance(name: str, operator: str | None, role: str, leader: bool = False) -> InstanceStatus:
    return InstanceStatus(name, operator, role, leader, 1, None, 1, 2)


STATUS = GraphStatus(
    "g",
    "",
    "",
    1,
    (),
    (
        instance("a-1", "a", "primary"),
        instance("a-2", "a", "backup"),
        instance("b-1", "b", "active"),
        instance("b-2", "b", "active"),
        instance("b-3", "b", "standby"),
        instance("frontend-1", None, "frontend"),
        instance("manager-1", None, "manager", leader=True),
        instance("manager-2", None, "manager"),
    ),
)


def test_by_default_the_one_that_works_is_meant():
    assert pick(STATUS, "a", None, False, None).id == "a-1"
    assert {pick(STATUS, "b", None, False, None).id for _ in range(100)} == {"b-1", "b-2"}


def test_a_role_a_leader_and_an_id_narrow_it_down():
    assert pick(STATUS, "a", "backup", False, None).id == "a-2"
    assert pick(STATUS, "manager", None, True, None).id == "manager-1"
    assert pick(STATUS, "frontend", None, False, None).id == "frontend-1"
    assert pick(STATUS, None, None, False, "b-3").id == "b-3"
    assert pick(STATUS, "b", None, False, "b-3").id == "b-3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("c", None, False, None), 'no instance of "c" runs; expected a, b, frontend or manager'),
        (("a", "joining", False, None), r"a has no joining now; it has: a-1 \(primary\), a-2 \(backup\)"),
        (("a", None, False, "b-1"), 'no instance "b-1" of a runs; these do: a-1, a-2'),
        (("a", None, True, None), "no leader runs now"),
        (("manager", "backup", False, None), "--role is for operators"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(arguments, message):
    with pytest.raises(CommandError, match=message):
        pick(STATUS, *arguments)
