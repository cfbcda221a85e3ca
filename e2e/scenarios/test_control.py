"""F30, F27: what the data plane needs not: the API server, the controller, a member of etcd."""

import time

from e2e.scenarios.report import report
from e2e.scenarios.run import FULL, GONE_LATE_S, GraphRun
from hams_operator.chaos.scenarios import Aim, etcd_member_lost, without_controllers

AWAY_S = 600.0 if FULL else 30.0


def test_F30_the_api_server_is_away_and_a_primary_dies(chain: GraphRun) -> None:
    """The graph fails over by itself; pods and status catch up when the API server is back."""
    pod = chain.pod_of("b", "primary")
    uid = chain.pods()[pod]["metadata"]["uid"]
    epoch = chain.epoch_of("b")
    with chain.load():
        with chain.cluster.without_api():
            chain.note(f"kill the processes of {pod}")
            chain.cluster.kill_pods(uid)
            chain.until(lambda topology: topology["sets"]["b"]["epoch"] > epoch)
            chain.answered(50)
            chain.stalled(AWAY_S)
        chain.redundant(within_s=180)
    chain.gone_s = GONE_LATE_S
    report(chain, "F30 API server")
    assert not chain.failed()


def test_F30_the_controller_is_dead_and_a_primary_dies(chain: GraphRun) -> None:
    with chain.load():
        without_controllers(chain, Aim(operator="b"))
        assert not chain.failed()
    report(chain, "F30 controller")
    deadline = time.monotonic() + 60
    while chain.condition("Ready").get("status") != "True":
        assert time.monotonic() < deadline, "the status did not catch up"
        chain.stalled(0.2)


def test_F27_a_member_of_etcd_is_lost_and_a_primary_dies(chain: GraphRun) -> None:
    """Two of three serve on; the third finds its data again."""
    with chain.load():
        etcd_member_lost(chain, Aim(operator="b"))
    report(chain, "F27")
    assert not chain.failed()
