"""How long a part takes, told before it begins: whole evaluations take hours. Windows are exact; starts and
kills are what they took on two cores, with states of full size."""

from collections.abc import Iterable, Sequence

from benchmarks.paper.overhead import Plan
from benchmarks.paper.published import bare_ms
from benchmarks.paper.recovery import (
    AFTER_ANSWERS,
    CORRELATED,
    FIRST_ANSWERS,
    PROCESSES,
    QUIET_ANSWERS,
    UNSTORED_BATCHES,
)
from benchmarks.paper.services import CHECKPOINT_BATCHES, Service, replays

START_S = 25.0
"""Graphs are started, come into sync, are warmed up, and ended."""

KILL_S = 4.5
"""Everything is in sync before a kill and after it."""

KILL_ANSWERS = FIRST_ANSWERS + QUIET_ANSWERS + AFTER_ANSWERS
"""Answers that are waited for around a kill."""

PEER_KILL_S = 12.0
"""A kill beside Ray Serve, and what is waited for after it."""

STATELESS = 4
"""Operators without a state in a service, about."""


def of_pairs(
    services: Iterable[Service], modes: Sequence[str], settings: int, loads: int, plan: Plan
) -> float:
    """Seconds of pairs of windows, in so many settings that each start two graphs anew."""
    return sum(
        len(modes) * settings * (START_S + loads * 2 * plan.pairs * plan.of(service).window_s)
        for service in services
    )


def of_breakdown(services: Sequence[Service], modes: Sequence[str], seconds: float) -> float:
    """Of one graph for each mode and bare metal."""
    return len(services) * (1 + len(modes)) * (START_S + seconds)


def of_kills(services: Iterable[Service], modes: Sequence[str], kills: int, processes: int) -> float:
    """Of so many kills of each state in so many ways; if in all ways, of operators without state, too."""
    more = STATELESS if processes == len(PROCESSES) else 0
    return sum(
        START_S + (len(service.stateful) * processes * kills + more) * kill_s(service, mode)
        for service in services
        for mode in modes
    )


def of_correlated(services: Iterable[Service], modes: Sequence[str], kills: int) -> float:
    """Of kills of several at once."""
    return sum(
        len(CORRELATED.get(service.name, ())) * (START_S + kills * kill_s(service, mode))
        for service in services
        for mode in modes
    )


def of_peers(services: int, plan: Plan) -> float:
    """Of so many services in two systems: alone, saturated, and killed once."""
    return services * 2 * (START_S + 2 * plan.pairs * plan.window_s + PEER_KILL_S)


def kill_s(service: Service, mode: str) -> float:
    """One kill. Where states are run again, one is stored before, and what follows it is run twice."""
    batches = KILL_ANSWERS + (CHECKPOINT_BATCHES + 2 * UNSTORED_BATCHES if replays(mode) else 0)
    return KILL_S + batches * bare_ms(service.name) / 1000 / service.under_way("L2")


def said(seconds: float) -> str:
    """For people."""
    minutes = max(round(seconds / 60), 1)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"
