"""What a proxy's /metrics say of its scheduling policy."""

import pytest

from hams_protocol.graph import BatchPolicy, SchedulePolicy, WhenLate
from hams_sidecar.proxy_metrics import _schedule
from hams_wire.scheduling import PolicyQueue


@pytest.mark.parametrize("policy", [SchedulePolicy.DEADLINE, SchedulePolicy.DISTRIBUTION])
def test_a_policy_is_named_and_what_it_has_learnt_is_told_of_those_who_learn(policy: SchedulePolicy) -> None:
    samples = list(_schedule(PolicyQueue(BatchPolicy(4, 0.0, policy, WhenLate.RUN))))
    names = [item.name for item in samples]
    assert names[0] == "hams_proxy_policy"
    assert samples[0].labels == {"name": policy.value}
    assert ("hams_proxy_profile_samples" in names) == (policy is SchedulePolicy.DISTRIBUTION)
    assert len(names) == len(set(names))
