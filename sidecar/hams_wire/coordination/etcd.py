"""A client of a real etcd, behind the port `Coordination`.

Each call goes to one member at a time. What was certainly not applied (no connection, a refusal that etcd
gives before it proposes) goes to the next member until the budget of the call, `etcd_call_s`, is used up; a
read goes on after any failure but a refusal of the caller. **A write that was sent and not answered is never
sent again**: it raises `Unknown`, as soon as its member turns out to be silent or to have another leader.
docs/adr/0003-etcd-client.md says why no client library stands behind it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc.aio
from google.protobuf.message import Message

from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd_errors import GARBLED, LeaderChanged, classify
from hams_wire.coordination.etcd_lease import LeaseRenewer
from hams_wire.coordination.etcd_members import EtcdMember, Members, Tls, User, parse_endpoints
from hams_wire.coordination.etcd_values import entry_of, found_instead, key_bytes, range_of, transaction
from hams_wire.coordination.etcd_watch import EtcdWatch
from hams_wire.coordination.port import Compare, KeyValue, Operation, Permit, Snapshot, Write
from hams_wire.coordination.registration import Registration, Registrations
from hams_wire.errors import (
    AccessDenied,
    AuthExpired,
    Closed,
    CoordinationError,
    InvalidCall,
    LeaseGone,
    Lost,
    NoSpace,
    NotApplied,
    Unavailable,
    Unknown,
)
from hams_wire.limits import etcd_call_s, etcd_pause_max_s, etcd_probe_answer_s, etcd_transaction_items_max

if TYPE_CHECKING:
    from hams_wire.coordination.etcd_members import Unary, UnaryCall

etcd_attempt_s = 0.5
"""With several members, a read that one of them has not answered after this long goes to the next."""

etcd_write_s = 0.25
"""With several members, one that has not answered a write after this long is asked for a sign of life
(`etcd_probe_answer_s`), and again each time that it passes."""

etcd_pause_s = 0.05
"""Pause between two rounds over all members, none of which could serve."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class EtcdCoordination:
    """One client; implements `Coordination`. To be made inside a running event loop, and closed.

    `endpoints`: `http://a:2379,http://b:2379`; host names are resolved anew at each connection. https needs
    `tls`. `call_s`: budget of one call.
    """

    def __init__(
        self,
        endpoints: str,
        tls: Tls | None = None,
        user: User | None = None,
        call_s: float = etcd_call_s,
        jitter: random.Random | None = None,
    ) -> None:
        addresses, secure = parse_endpoints(endpoints)
        if secure and tls is None:
            raise InvalidCall(
                f"etcd endpoints {endpoints!r} are https: the authority that signed etcd's certificate is "
                "needed"
            )
        self.members = Members(addresses, tls if secure else None, user)
        self._call_s = call_s
        self._jitter = jitter if jitter is not None else random.Random()
        self._closed = False
        self._watches: list[EtcdWatch] = []
        self._registrations = Registrations(self)

    # ---- Coordination ----

    async def get(self, key: str) -> KeyValue | None:
        """See `Coordination.get`."""
        request = pb.RangeRequest(key=key_bytes(key))
        response = await self._call("Range", lambda member: member.range, request, safe=True)
        return entry_of(response.kvs[0]) if response.kvs else None

    async def get_prefix(self, prefix: str) -> Snapshot:
        """See `Coordination.get_prefix`."""
        return await self.get_prefix_at(prefix, 0)

    async def compare_and_swap(self, key: str, expected: int, value: bytes, lease: int = 0) -> int:
        """See `Coordination.compare_and_swap`."""
        return await self.transact((Compare(key, expected),), (Write(key, value, lease),))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> int:
        """See `Coordination.transact`."""
        if max(len(compares), len(operations)) > etcd_transaction_items_max:
            raise InvalidCall(
                f"{len(compares)} comparisons and {len(operations)} operations in one transaction, expected "
                f"at most {etcd_transaction_items_max} each"
            )
        request = transaction(compares, operations)
        response = await self._call("Txn", lambda member: member.txn, request, safe=False)
        if response.succeeded and response.header.revision > 0:
            return response.header.revision
        current = found_instead(response)
        if response.succeeded or len(current) != len(compares):
            raise Unknown(f"Txn: {GARBLED}")
        pairs = zip(compares, current, strict=True)
        wrong = next(
            (
                (item, entry)
                for item, entry in pairs
                if item.mod_revision != (entry.mod_revision if entry else 0)
            ),
            None,
        )
        what = (
            f"{wrong[0].key} is at revision {wrong[1].mod_revision if wrong[1] else 0}, expected "
            f"{wrong[0].mod_revision}"
            if wrong
            else "refused"
        )
        raise NotApplied(what, current)

    def watch(self, prefix: str, after: Snapshot) -> EtcdWatch:
        """See `Coordination.watch`."""
        if self._closed:
            raise Closed("the client was closed")
        self._watches = [watch for watch in self._watches if not watch.closed]
        watch = EtcdWatch(self, self.members, prefix, after)
        self._watches.append(watch)
        return watch

    async def register(
        self, key: str, value: bytes, ttl_s: int, permit: Permit | None = None
    ) -> Registration:
        """See `Coordination.register`."""
        return await self._registrations.begin(key, value, ttl_s, permit)

    async def revoke(self, lease: int) -> None:
        """See `Coordination.revoke`."""
        request = pb.LeaseRevokeRequest(ID=lease)
        try:
            await self._call("LeaseRevoke", lambda member: member.revoke, request, safe=True)
        except LeaseGone:
            return

    async def close(self) -> None:
        """See `Coordination.close`."""
        self._closed = True
        watches, self._watches = self._watches, []
        await self._registrations.close()
        for watch in watches:
            await watch.close()
        await self.members.close()

    # ---- what registrations and watches need ----

    async def get_prefix_at(self, prefix: str, revision: int) -> Snapshot:
        """As it was at `revision`, 0: now. Raises `Forgotten` and `NotReached` too."""
        start, end = range_of(prefix)
        request = pb.RangeRequest(key=start, range_end=end, revision=revision)
        response = await self._call("Range", lambda member: member.range, request, safe=True)
        return Snapshot(response.header.revision, tuple(entry_of(item) for item in response.kvs))

    async def grant(self, ttl_s: int) -> int:
        """See `Registrar.grant`."""
        request = pb.LeaseGrantRequest(TTL=ttl_s)
        response = await self._call("LeaseGrant", lambda member: member.grant, request, safe=True)
        if response.ID <= 0:  # with lease 0 a key stays for ever
            raise Unavailable(f"LeaseGrant: {GARBLED}")
        return response.ID

    async def keep(self, lease: int, ttl_s: int) -> None:
        """See `Registrar.keep`."""
        keeper = LeaseRenewer(self.members, lease, ttl_s)
        attempt = 0
        while True:
            before = keeper.renewals
            member = await self.members.find()
            if member is not None and await keeper.keep(member):
                return
            attempt = 0 if keeper.renewals > before else attempt
            await self.pause(attempt)
            attempt += 1

    async def pause(self, attempt: int) -> None:
        """See `Registrar.pause`: none before the first, then doubling, each between half and the whole of it
        so that clients do not march in step."""
        if self._closed:
            raise Closed("the client was closed")
        delay_s = min(etcd_pause_s * 2 ** min(attempt - 1, 16), etcd_pause_max_s) if attempt else 0.0
        await asyncio.sleep(delay_s * self._jitter.uniform(0.5, 1.0))

    async def is_full(self) -> bool:
        """See `Coordination.is_full`. etcd answers this through its log, so it is not to be asked often."""
        request = pb.AlarmRequest(action=pb.AlarmRequest.GET)
        answer = await self._call(
            "Alarm",
            lambda member: member.administration("Alarm", pb.AlarmResponse, "Maintenance"),
            request,
            safe=True,
        )
        return any(item.alarm == pb.NOSPACE for item in answer.alarms)

    # ---- administration, for the controller, the local runtime and for tests ----

    async def administer(self, method: str, request: Message, response: type[Response]) -> Response:
        """A method of the service Auth that may be repeated (`etcd_users.py`). Raises `AlreadyThere` and
        `NotThere` too."""
        return await self._call(
            method, lambda member: member.administration(method, response), request, safe=True
        )

    async def cluster(self, method: str, request: Message, response: type[Response]) -> Response:
        """A method of the service Cluster, which is about etcd's own members. None is repeated here."""
        return await self._call(
            method, lambda member: member.administration(method, response, "Cluster"), request, safe=False
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when etcd answers a linearizable read; raises the last error when `timeout_s` is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            try:
                await self.get("hams/ready")
            except CoordinationError as error:
                if isinstance(error, AccessDenied):
                    return  # it answers, and lets us see our own keys only
                if not error.retryable or loop.time() >= deadline_s:
                    raise
            else:
                return

    async def compact(self, revision: int) -> None:
        """Make etcd forget all changes before `revision`."""
        request = pb.CompactionRequest(revision=revision, physical=True)
        await self._call("Compact", lambda member: member.compact, request, safe=False)

    # ---- one call ----

    async def _call(
        self,
        name: str,
        method: "Callable[[EtcdMember], Unary[Request, Response]]",
        request: Request,
        safe: bool,
    ) -> Response:
        """Call the current member, then others, within the budget; `safe`: repeating it changes nothing,
        whatever became of the last attempt."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._call_s
        renewed = False
        while True:
            error: CoordinationError = Lost(f"{name}: no member of etcd can be reached")
            for _ in range(len(self.members)):
                if self._closed:
                    raise Closed("the client was closed")
                member = await self.members.find()
                if member is None:
                    break
                left_s = deadline_s - loop.time()
                timeout_s = (
                    self._call_s
                    if not safe
                    else min(left_s, etcd_attempt_s)
                    if len(self.members) > 1
                    else left_s
                )
                try:
                    return await self._attempt(
                        name, method(member), request, member, max(timeout_s, etcd_pause_s), safe
                    )
                except AuthExpired as refused:
                    member.forget_token()
                    if member.has_user and (not safe or renewed):
                        raise
                    renewed = True
                    # with a certificate: users or roles were changed just then, and nothing was applied
                    error = refused
                except NoSpace:
                    raise
                except Unknown as refused:
                    if not isinstance(refused, LeaderChanged):  # that one is well; another may be the former
                        self.members.pass_over(member)
                    if not safe:
                        raise
                    error = Unavailable(str(refused))
                except (Lost, Unavailable) as refused:
                    self.members.pass_over(member)
                    error = refused
                if loop.time() >= deadline_s:
                    raise error
            if loop.time() + etcd_pause_s >= deadline_s:
                raise error
            await asyncio.sleep(etcd_pause_s)

    async def _attempt(
        self,
        name: str,
        method: "Unary[Request, Response]",
        request: Request,
        member: EtcdMember,
        timeout_s: float,
        safe: bool,
    ) -> Response:
        metadata = await member.metadata(fresh=not safe)
        try:
            call = method(request, timeout=timeout_s, metadata=metadata)
            answer = (
                await call
                if safe or len(self.members) == 1
                else await self._unless_given_up(call, name, member)
            )
        except grpc.aio.AioRpcError as error:
            raise classify(error, name, member.address) from None
        except grpc.aio.UsageError as error:
            raise Closed(f"{name} at {member.address}: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            # Hanging up cancels the call and not the caller.
            text = f"{name} at {member.address}: the client was closed in the meantime"
            raise (Closed(text) if safe else Unknown(text)) from None
        if answer is None:
            raise Unknown(f"{name} at {member.address}: {GARBLED}")
        return answer

    async def _unless_given_up(
        self, call: "UnaryCall[Request, Response]", name: str, member: EtcdMember
    ) -> Response:
        """A write is given up, its outcome unknown, if its member answers nothing else either: its host may
        be gone, and others are there. Or if it has another leader: the former may have taken it along."""

        async def answered() -> Response:
            return await call

        answer = asyncio.create_task(answered(), name="etcd write")
        term = 0
        try:
            while not (await asyncio.wait((answer,), timeout=etcd_write_s))[0]:
                status = await member.sign_of_life(etcd_probe_answer_s)
                if answer.done():
                    break
                if status is None:
                    raise Unknown(f"{name} at {member.address}: it has fallen silent")
                if term and status.leader and status.header.raft_term > term:
                    raise LeaderChanged(f"{name} at {member.address}: it has another leader by now")
                term = term or status.header.raft_term
            return await answer
        finally:
            answer.cancel()
