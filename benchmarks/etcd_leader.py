"""An etcd of three members whose leader is cut off: it hangs until the others have another one."""

import asyncio
import contextlib
import json
import signal
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from hams_operator.local.etcd import EtcdProcess, LocalEtcd

TIMERS = ("--heartbeat-interval=40", "--election-timeout=400")
"""Of the members, in ms: those of the chart."""

ASK_S = 1.0
"""A member that has not told within this time who leads is cut off itself."""

LOOK_S = 0.02
"""Between two questions who leads."""


class Member(Protocol):
    """Of an etcd."""

    @property
    def endpoint(self) -> str:
        """The URL it answers at."""


M = TypeVar("M", bound=Member)


@contextlib.asynccontextmanager
async def three_members() -> AsyncIterator[LocalEtcd]:
    """An etcd of its own, in memory. Raises EtcdNotStarted."""
    with tempfile.TemporaryDirectory(prefix="hams-etcd-", dir="/dev/shm") as folder:
        async with await LocalEtcd.start(Path(folder), members=3, extra=TIMERS) as etcd:
            yield etcd


class CutOff:
    """The leader, while it hangs; nobody if there is no etcd to hurt."""

    def __init__(self, etcd: LocalEtcd | None, leader: EtcdProcess | None) -> None:
        self._etcd = etcd
        self._leader = leader

    @classmethod
    async def aim(cls, etcd: LocalEtcd | None, within_s: float) -> "CutOff":
        """Who leads now. Raises TimeoutError."""
        if etcd is None:
            return cls(None, None)
        async with asyncio.timeout(within_s):
            while (leader := await leader_of(etcd.members, _most(etcd))) is None:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        return cls(etcd, leader)

    def strike(self) -> None:
        """It hangs."""
        if self._leader is not None:
            self._leader.signal(signal.SIGSTOP)

    async def heal(self, within_s: float) -> None:
        """It goes on once the others have another leader. Raises TimeoutError."""
        if self._etcd is None or self._leader is None:
            return
        others = [member for member in self._etcd.members if member is not self._leader]
        try:
            async with asyncio.timeout(within_s):
                while await leader_of(others, _most(self._etcd)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        finally:
            self._leader.signal(signal.SIGCONT)


class Said(NamedTuple):
    """What a member says of itself."""

    term: int
    leads: bool


def _most(etcd: LocalEtcd) -> int:
    return len(etcd.members) // 2 + 1


async def leader_of(members: Sequence[M], most: int) -> M | None:
    """The one of `members` that says that it leads, in a term that so many know and nobody has left.

    A leader that went on after it had hung says so too until it hears of the next one.
    """
    asked = [asyncio.to_thread(ask, member.endpoint) for member in members]
    said = await asyncio.gather(*asked)
    last = max(one.term for one in said)
    if sum(one.term == last for one in said) < most:
        return None
    return next(
        (member for member, one in zip(members, said, strict=True) if one.leads and one.term == last),
        None,
    )


def ask(endpoint: str) -> Said:
    """What the member there says of itself: of term 0 if it says nothing within ASK_S."""
    request = urllib.request.Request(f"{endpoint}/v3/maintenance/status", b"{}")
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            status = json.load(answer)
    except (OSError, HTTPException, ValueError):
        return Said(0, False)
    leads = status.get("leader") == status["header"]["member_id"]
    return Said(int(status["raftTerm"]), bool(leads))
