"""The etcd whose leader `hams bench recovery` cuts off."""

from pathlib import Path

import pytest
import yaml
from benchmarks.etcd_leader import TIMERS, CutOff, three_members

from hams_wire.coordination.etcd import EtcdCoordination

VALUES = Path(__file__).parents[2] / "charts" / "hams" / "values.yaml"


def test_its_timers_are_the_charts() -> None:
    etcd = yaml.safe_load(VALUES.read_text())["etcd"]
    heartbeat, election = etcd["heartbeatIntervalMs"], etcd["electionTimeoutMs"]
    assert (f"--heartbeat-interval={heartbeat}", f"--election-timeout={election}") == TIMERS
    assert election >= 5 * heartbeat, "etcd refuses less"


@pytest.mark.process
async def test_a_leader_that_is_cut_off_goes_on_once_the_others_have_another_one() -> None:
    async with three_members() as etcd:
        first = await CutOff.aim(etcd, 20.0)
        first.strike()
        await first.heal(20.0)
        second = await CutOff.aim(etcd, 20.0)
        assert second._leader is not first._leader
        client = EtcdCoordination(etcd.endpoints)
        try:
            await client.compare_and_swap("/written/afterwards", 0, b"1")
        finally:
            await client.close()
