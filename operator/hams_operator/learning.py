"""Which operators of a graph learn a profile of their times, and what there is to say where none does."""

from collections.abc import Mapping

from hams_protocol.graph import SchedulePolicy


class NothingLearnt(Exception):
    """There is no such profile; the text says why."""


def learning(policies: Mapping[str, str], operator: str) -> tuple[str, ...]:
    """The operators with a profile: this one, or all of them if it is "". `policies`: each operator's. Raises
    NothingLearnt."""
    learns = tuple(name for name, policy in policies.items() if policy == SchedulePolicy.DISTRIBUTION)
    if operator and operator not in policies:
        raise NothingLearnt(f'no operator "{operator}"; there are: {", ".join(policies)}')
    if operator and operator not in learns:
        raise NothingLearnt(
            f"nothing is learnt of {operator}: its batch.policy is {policies[operator]}; Distribution learns"
        )
    if not learns:
        raise NothingLearnt("nothing is learnt: no operator has batch.policy Distribution")
    return (operator,) if operator else learns
