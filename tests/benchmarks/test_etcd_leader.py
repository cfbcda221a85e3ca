"""The etcd whose leader `hams bench recovery` cuts off."""

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from benchmarks.etcd_leader import TIMERS, CutOff, Said, three_members

from benchmarks import etcd_leader
from hams_wire.coordination.etcd import EtcdCoordination

VALUES = Path(__file__).parents[2] / "charts" / "hams" / "values.yaml"


def test_its_timers_are_the_charts() -> None:
    etcd = yaml.safe_load(VALUES.read_text())["etcd"]
    heartbeat, election = etcd["heartbeatIntervalMs"], etcd["electionTimeoutMs"]
    assert (f"--heartbeat-interval={heartbeat}", f"--election-timeout={election}") == TIMERS
    assert election >= 5 * heartbeat, "etcd refuses less"


class _Member(NamedTuple):
    endpoint: str


async def test_a_leader_that_has_not_heard_of_the_next_one_is_not_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {
        "went on": Said(term=2, leads=True),
        "next one": Said(term=3, leads=True),
        "follower": Said(term=3, leads=False),
        "silent": Said(term=0, leads=False),
    }
    monkeypatch.setattr(etcd_leader, "ask", said.__getitem__)

    async def leader(*names: str) -> str | None:
        member = await etcd_leader.leader_of([_Member(name) for name in names], 2)
        return None if member is None else member.endpoint

    assert await leader("went on", "next one", "follower") == "next one"
    assert await leader("went on", "silent", "follower") is None
    assert await leader("went on", "silent", "silent") is None
    assert await leader("next one", "silent", "silent") is None


@pytest.mark.process
async def test_a_leader_that_is_cut_off_goes_on_once_the_others_have_another_one() -> None:
    async with three_members() as etcd:
        cut_off = await CutOff.aim(etcd, 20.0)
        term = max(etcd_leader.ask(member.endpoint).term for member in etcd.members)
        cut_off.strike()
        await cut_off.heal(20.0)
        next_one = await CutOff.aim(etcd, 20.0)
        assert next_one._leader is not None
        assert etcd_leader.ask(next_one._leader.endpoint).term > term
        client = EtcdCoordination(etcd.endpoints)
        try:
            await client.compare_and_swap("/written/afterwards", 0, b"1")
        finally:
            await client.close()
