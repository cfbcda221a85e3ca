"""Whether anybody sees two answers to one request when a model that adds in any order is killed (Figure 3).

OLM's learner adds noise of 1e-7 to its sums. It is killed again and again under two batches, each request is
sent once more under its key when it has been answered, and the recorded history is judged: an answer that
follows from a state that no longer is would be one more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.chain import redundant
from benchmarks.judged import complete, judged
from benchmarks.kills import aim
from benchmarks.paper.clients import asking
from benchmarks.paper.recovery import ANSWERS_S, recorded
from benchmarks.paper.running import READY_S, running
from benchmarks.paper.services import SERVICES, Settings

NOISE = 1e-7
SERVICE = SERVICES["OLM"]


async def divergence(modes: Sequence[str], settings: Settings, kills: int) -> list[dict[str, object]]:
    """A row for each mode."""
    return [await _mode(mode, replace(settings, more={"noise": NOISE}), kills) for mode in modes]


async def _mode(mode: str, settings: Settings, kills: int) -> dict[str, object]:
    (operator,) = SERVICE.stateful
    async with recorded() as (history, _):
        async with running(SERVICE, mode, settings, standby=True, history=history) as graph:
            async with asking(graph, SERVICE.under_way("L2"), again=True) as log:
                for _ in range(kills):
                    await redundant(graph.supervisor, READY_S)
                    await log.more(6, ANSWERS_S)
                    hit = await aim([(operator, "primary", "both")], graph.supervisor, ANSWERS_S)
                    hit.kill()
                    await log.more(6, ANSWERS_S)
                await redundant(graph.supervisor, READY_S)  # the history is judged with its copies in sync
            await complete(history)
        verdict = await asyncio.to_thread(judged, history, dict(log.numbers))
    clean = verdict["ok"] and not log.differing and not log.failed
    return {
        "service": SERVICE.name,
        "mode": mode,
        "case": "divergence",
        **settings.said(),
        "noise": NOISE,
        "kills": kills,
        "requests": len(log.answered),
        "failed": log.failed,
        "asked_again": log.asked_again,
        "differing": len(log.differing),
        **verdict,
        "ok": clean,
    }
