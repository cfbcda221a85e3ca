"""F11 and F12: pods of each role are deleted, gracefully and by force, under load. Nothing is lost, doubled or answered wrongly."""

import pytest

from e2e.scenarios.run import GraphRun

ROLES = [("b", "primary"), ("b", "backup"), ("frontend", "frontend"), ("manager", "manager")]


@pytest.mark.parametrize(("operator", "role"), ROLES, ids=[role for _, role in ROLES])
def test_F11_a_pod_is_deleted_gracefully(chain: GraphRun, operator: str, role: str) -> None:
    with chain.load():
        chain.delete(chain.pod_of(operator, role))
        chain.redundant()
    failed = [reply for reply in chain.replies if reply["status"] != 200]
    assert not failed
    assert chain.executed_again("b") == 0, "a handoff executes nothing again"


@pytest.mark.parametrize(("operator", "role"), ROLES, ids=[role for _, role in ROLES])
def test_F12_a_pod_is_deleted_by_force(chain: GraphRun, operator: str, role: str) -> None:
    with chain.load():
        chain.delete(chain.pod_of(operator, role), force=True)
        chain.redundant()
    assert not [reply for reply in chain.replies if reply["status"] != 200]
