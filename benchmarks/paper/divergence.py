"""Whether anybody sees two answers to one request when a model that adds in any order is killed (Figure 3).

OLM's learner adds noise of 1e-7 to its sums. It is killed again and again under two batches. What two answers
are is read from the recorded history: two visible values of one unit, of which a client, a durable state or
another operator used one each. A client alone cannot see it: a request that is sent again under its key gets
the stored reply. It is counted beside.

A mode that runs a lost state again promises one answer for deterministic models only. That such a learner is
found guilty there, and the more the longer it runs between two stored states, is the result and no failure.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.chain import redundant
from benchmarks.judged import complete, judged
from benchmarks.kills import aim
from benchmarks.paper.clients import asking
from benchmarks.paper.recovery import ANSWERS_S, recorded
from benchmarks.paper.running import READY_S, running
from benchmarks.paper.services import SERVICES, Settings, replays

NOISE = 1e-7
SERVICE = SERVICES["OLM"]
KILLS = 50
"""As in the paper."""

INTERVALS = (10, 50, 150)
"""Batches between two stored states, where a mode stores them."""

ANSWERS = 6
COUNTS_ON_MODELS = frozenset({"I1", "I2", "I4"})
"""What a mode that runs lost states again promises for deterministic models only."""


def runs(modes: Sequence[str]) -> list[str]:
    """The mode of each row."""
    return [mode for mode in modes for _ in range(len(INTERVALS) if replays(mode) else 1)]


async def divergence(modes: Sequence[str], settings: Settings, kills: int) -> list[dict[str, object]]:
    """A row for each mode; for each interval, where states are stored and run again."""
    noisy = replace(settings, more={"noise": NOISE})
    return [
        await _mode(mode, replace(noisy, checkpoint_batches=batches), kills)
        for mode in modes
        for batches in (INTERVALS if replays(mode) else (settings.checkpoint_batches,))
    ]


async def _mode(mode: str, settings: Settings, kills: int) -> dict[str, object]:
    (operator,) = SERVICE.stateful
    # Half of an interval is what a kill finds unstored on average.
    answers = max(ANSWERS, settings.checkpoint_batches // 2) if replays(mode) else ANSWERS
    async with recorded() as (history, _):
        async with running(SERVICE, mode, settings, standby=True, history=history) as graph:
            async with asking(graph, SERVICE.under_way("L2"), again=True) as log:
                for _ in range(kills):
                    await redundant(graph.supervisor, READY_S)
                    await log.more(answers, ANSWERS_S)
                    hit = await aim([(operator, "primary", "both")], graph.supervisor, ANSWERS_S)
                    hit.kill()
                    await log.more(ANSWERS, ANSWERS_S)
                await redundant(graph.supervisor, READY_S)  # the history is judged with its copies in sync
            await complete(history)
        verdict = await asyncio.to_thread(judged, history, dict(log.numbers))
    return {
        "service": SERVICE.name,
        "mode": mode,
        "case": "divergence",
        **settings.said(SERVICE.name),
        "noise": NOISE,
        "kills": kills,
        "requests": len(log.answered),
        "failed": log.failed,
        "errors": log.errors,
        "asked_again": log.asked_again,
        "differing": len(log.differing),
        **verdict,
        **guilt(mode, verdict, log.failed, len(log.differing)),
    }


def guilt(mode: str, verdict: Mapping[str, Any], failed: int, differing: int) -> dict[str, object]:
    """`two_values`: violations of I2. `ok`: nothing that the mode promises such a model was broken."""
    broken = verdict["broken"]
    sound = verdict["ok"] and not differing
    if replays(mode):
        sound = COUNTS_ON_MODELS.issuperset(broken) and not (
            verdict["invalid_lines"] or verdict["wrong_counts"]
        )
    return {"two_values": broken.get("I2", 0), "ok": bool(sound and not failed)}
