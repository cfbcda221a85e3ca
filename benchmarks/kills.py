"""Kills of instances that fill roles: which processes that hits, and when."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hams_operator.graph_status import View
from hams_operator.local.supervisor import Supervisor

Target = tuple[str, str, str]
"""(operator, role, process). The process is `model`, `proxy` or `both`. Of managers the leader is hit."""


@dataclass(frozen=True)
class Hit:
    """Processes to be killed, and the instances that they are of."""

    pids: tuple[int, ...]
    instances: frozenset[str]

    def kill(self) -> tuple[float, int]:
        """SIGKILL; when that was, by the loop's clock and by CLOCK_MONOTONIC in ns."""
        moment, moment_ns = asyncio.get_running_loop().time(), time.monotonic_ns()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself since it was seen
                os.kill(pid, signal.SIGKILL)
        return moment, moment_ns


async def aim(targets: Sequence[Target], supervisor: Supervisor, within_s: float) -> Hit:
    """What fills these roles, as soon as all of it is seen. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while (hit := _hit(targets, await supervisor.view())) is None:
            pass  # an instance did not answer the probe in time
    return hit


def _hit(targets: Sequence[Target], view: View) -> Hit | None:
    """None: one of the targets is not to be seen now."""
    pids: list[int | None] = []
    chosen: set[str] = set()
    for operator, role, process in targets:
        instances = [
            item
            for item in view.instances
            if (item.operator or item.role) == operator
            and item.role == role
            and (operator != "manager" or item.leader)
        ]
        if not instances:
            return None
        target = random.choice(instances)
        chosen.add(target.id)
        pids += [target.model_pid] if process != "proxy" else []
        pids += [target.proxy_pid] if process != "model" else []
    return Hit(tuple(pid for pid in pids if pid), frozenset(chosen))
