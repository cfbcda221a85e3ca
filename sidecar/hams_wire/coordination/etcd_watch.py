"""A watch of a real etcd: a driver that follows one stream, and finds another when it breaks, stalls or lags
behind compaction.

The driver reads ahead of its consumer by at most `watch_events_max` events. A stream that is silent is asked
for a sign of life, so that a member that hangs is noticed without any traffic. The revision in such a sign is
never relied on: up to etcd 3.5.7 it may run ahead of events.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol, Self

import grpc.aio

from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd_errors import Forgotten, RevisionNotReached, classify
from hams_wire.coordination.etcd_members import EtcdMember, Members
from hams_wire.coordination.etcd_stream import Stream
from hams_wire.coordination.etcd_values import changes_of, range_of
from hams_wire.coordination.follower import WatchFollower, below
from hams_wire.coordination.port import Deleted, Event, Put, Snapshot, Watch
from hams_wire.errors import AccessDenied, AuthExpired, Closed, CoordinationError
from hams_wire.limits import etcd_connect_s, etcd_probe_answer_s

etcd_probe_s = 1.0
"""A stream that has been silent for this long is asked for a sign of life."""

watch_events_max = 1024
"""Events of one watch read ahead of its consumer; beyond that etcd keeps them."""

WatchStream = Stream[pb.WatchRequest, pb.WatchResponse]


class WatchClient(Protocol):
    """What a watch needs of the client it belongs to."""

    async def get_prefix_at(self, prefix: str, revision: int) -> Snapshot: ...

    async def pause(self, attempt: int) -> None: ...


class _Broken(Exception):
    """This stream is over; the next attempt may go to another member (`sick`: the fault was the member's)."""

    def __init__(self, sick: bool) -> None:
        self.sick = sick


class EtcdWatch(Watch):
    """A watch of an etcd; see `Watch`."""

    def __init__(self, reader: WatchClient, members: Members, prefix: str, after: Snapshot) -> None:
        self._reader = reader
        self._members = members
        self._prefix = prefix
        self._follower = WatchFollower(below(prefix, after))
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(watch_events_max)
        self._ending: CoordinationError = Closed("the watch was closed")
        self._live = False
        self._steady = False
        self._denied = False
        self._driver = asyncio.create_task(self._drive(), name=f"watch {prefix}")
        self._driver.add_done_callback(self._finish)

    @property
    def live(self) -> bool:
        """See `Watch.live`."""
        return self._live

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._driver.done()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self.closed and self._events.empty():
            raise self._ending
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # for whoever else waits
            raise self._ending
        return event

    async def close(self) -> None:
        """See `Watch.close`."""
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(None)

    # ---- the driver ----

    async def _drive(self) -> None:
        attempt = 0
        while True:
            try:
                member = await self._members.find()
                if member is not None:
                    self._steady = False
                    try:
                        await self._follow(member)
                    except _Broken as broken:
                        if broken.sick:
                            self._members.pass_over(member)
                    attempt = 0 if self._steady else attempt
                await self._reader.pause(attempt)
                attempt += 1
            except (AccessDenied, Closed) as error:
                self._ending = error
                return

    def _finish(self, driver: asyncio.Task[None]) -> None:
        """Wake the waiter for an event that will not come."""
        if not driver.cancelled() and (bug := driver.exception()) is not None:
            self._ending = Closed(f"the watch of {self._prefix!r} failed: {bug!r}")
        if self._events.empty():
            self._events.put_nowait(None)

    async def _follow(self, member: EtcdMember) -> None:
        """Follow one stream until it breaks: raises `_Broken`, `AccessDenied` or `Closed`."""
        try:
            stream = member.watch(await member.metadata())
        except AuthExpired:
            raise _Broken(sick=False) from None
        except CoordinationError as error:
            if isinstance(error, AccessDenied | Closed):
                raise
            raise _Broken(sick=True) from None
        try:
            await self._create(stream, member)
            self._live = True
            await self._deliver(stream, member)
        except TimeoutError:
            raise _Broken(sick=True) from None
        except grpc.aio.AioRpcError as error:
            refused = classify(error, "Watch", member.address)
            if isinstance(refused, AccessDenied):
                raise refused from None
            if isinstance(refused, AuthExpired):
                member.forget_token()
            raise _Broken(sick=not isinstance(refused, AuthExpired)) from None
        finally:
            self._live = False
            await stream.close()

    async def _create(self, stream: WatchStream, member: EtcdMember) -> None:
        start, end = range_of(self._prefix)
        request = pb.WatchCreateRequest(
            key=start, range_end=end, start_revision=self._follower.next_revision, fragment=True
        )
        await stream.write(pb.WatchRequest(create_request=request), etcd_connect_s)
        response = await stream.read(etcd_probe_answer_s)
        if response is None or not response.created:
            raise _Broken(sick=True)
        if response.canceled:
            self._cancelled(response, member)
        self._denied = False
        await self._check()

    async def _check(self) -> None:
        """Is this the history followed so far? A cluster restored from a backup answers otherwise, even if
        its revisions have caught up."""
        try:
            if self._follower.agrees((await self._read(self._follower.anchor)).entries):
                return
            restored = True
        except RevisionNotReached:
            restored = True
        except Forgotten:
            # Not left to the stream: before etcd 3.5.18 a watch from the compacted revision itself misses
            # deletions at that revision.
            restored = False
        await self._emit(self._follower.resync(await self._read(), restored))
        self._steady = True
        raise _Broken(sick=False)

    async def _deliver(self, stream: WatchStream, member: EtcdMember) -> None:
        parts: list[Put | Deleted] = []
        while True:
            response = await self._next(stream)
            if response is None:
                raise _Broken(sick=True)
            if response.canceled and response.compact_revision:
                self._steady = True
                await self._emit(self._follower.resync(await self._read(), restored=False))
                raise _Broken(sick=False)
            if response.canceled:
                self._cancelled(response, member)
            parts += changes_of(response.events)
            if not response.fragment and parts:
                self._steady = True
                await self._emit(self._follower.apply(parts))
                parts = []

    async def _next(self, stream: WatchStream) -> pb.WatchResponse | None:
        """The next response; a silent member has to give a sign of life, else `TimeoutError`."""
        try:
            return await stream.read(etcd_probe_s)
        except TimeoutError:
            await stream.write(
                pb.WatchRequest(progress_request=pb.WatchProgressRequest()), etcd_probe_answer_s
            )
            response = await stream.read(etcd_probe_answer_s)
            self._steady = True
            return response

    def _cancelled(self, response: pb.WatchResponse, member: EtcdMember) -> None:
        """Etcd ended the watch. A forgotten token looks like a missing permission to some versions, so the
        first refusal renews it."""
        refused = "permission denied" in response.cancel_reason or "auth token" in response.cancel_reason
        if refused and self._denied:
            raise AccessDenied(f"Watch of {self._prefix!r} at {member.address}: {response.cancel_reason}")
        if refused:
            self._denied = True
            member.forget_token()
        raise _Broken(sick=not refused)

    async def _read(self, revision: int = 0) -> Snapshot:
        try:
            return await self._reader.get_prefix_at(self._prefix, revision)
        except CoordinationError as error:
            if isinstance(error, AccessDenied | Closed | Forgotten | RevisionNotReached):
                raise
            raise _Broken(sick=False) from None

    async def _emit(self, events: Iterable[Event]) -> None:
        for event in events:
            await self._events.put(event)
