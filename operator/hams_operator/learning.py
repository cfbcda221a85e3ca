"""Which operators of a graph learn a profile of their times, and which of them a file of profiles is for."""

from collections.abc import Collection, Mapping

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


def assigned(profiles: Mapping[str, bytes], learns: Collection[str], operator: str) -> dict[str, bytes]:
    """The profile that each operator gets: those of the same name; `operator`, unless it is "", that of its
    name, or the only one there is. `learns`: operators with a profile. Raises NothingLearnt."""
    if operator:
        if operator not in profiles and len(profiles) > 1:
            raise NothingLearnt(
                f"expected a profile of {operator}, or only one; it has {', '.join(profiles)}"
            )
        return {operator: profiles.get(operator) or next(iter(profiles.values()))}
    fitting = {name: data for name, data in profiles.items() if name in learns}
    if not fitting:
        raise NothingLearnt(
            f"expected profiles of {', '.join(learns)}; it has {', '.join(profiles)}; name the OPERATOR that "
            "gets a single one"
        )
    return fitting
