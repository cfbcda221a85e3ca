"""A run's own etcd, started again whenever it ends: without it the graph serves, and no failure is made up
for.

It comes back on its ports and its data, so that every client finds it again and the topology is the old one.
What it wrote is in the kernel's hands and survives its end, synced or not. But before 3.5.5 an etcd of one
member may answer before it writes: killed in between, it comes back without its last answers. Processes of
the graph refuse a topology older than the one they know, and their logs say that etcd's history went back; a
new run is the way out. An etcd whose data are gone is not started: an empty one would tell the graph's
processes that there is no graph.
"""

import asyncio
import logging

from hams_operator.graph_status import said
from hams_operator.local import limits
from hams_operator.local.etcd import EtcdProcess
from hams_operator.local.places import pause_after

log = logging.getLogger("hams.local")


async def keep(member: EtcdProcess) -> None:
    """Start `member` again each time it ends, after a pause that grows up to `restart_pause_max_s` while it
    ends young; until cancelled.

    A start by other code meanwhile is left alone: there is one process at any time.
    """
    loop = asyncio.get_running_loop()
    pause_s = limits.restart_pause_s
    while True:
        started_s = loop.time()
        status = await member.wait()
        pause_s = pause_after(
            pause_s, loop.time() - started_s < limits.restart_young_s, limits.restart_pause_s
        )
        log.error(
            "etcd ended with %s; it is started again in %g s%s",
            said(status),
            pause_s,
            _reason(member, status),
        )
        await asyncio.sleep(pause_s)
        while not await _started(member):
            pause_s = pause_after(pause_s, True, limits.restart_pause_s)
            await asyncio.sleep(pause_s)


async def _started(member: EtcdProcess) -> bool:
    try:
        if not member.has_data:
            log.error(
                "etcd is not started again: its data below %s are gone. The graph serves on without "
                "failovers; end it with: hams down",
                member.data,
            )
            return False
        await member.start()
    except OSError as error:
        # data that cannot be read, no room for its log, no process to be had: this may pass
        log.error(
            "etcd cannot be started again: %s: %s", error.filename or member.log, error.strerror or error
        )
        return False
    log.warning("etcd has been started again")
    return True


def _reason(member: EtcdProcess, status: int) -> str:
    """What it said, if it ended by itself: a taken port, a full disk. Where it went on saying more stands in
    its log."""
    if status < 0:
        return ""
    try:
        return f": {member.last_error()} (log: {member.log})"
    except OSError as error:
        return f" (log: {member.log}: {error.strerror})"
