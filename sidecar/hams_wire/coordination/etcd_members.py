"""The members of an etcd cluster: one channel to each, which one is used, and when another takes its place.

gRPC could balance over all members on one channel, but then a member that accepts connections and answers
nothing cannot be avoided. So each has its own channel, all calls go to the current one, and a call that meets
a sick one passes on to the next (`pass_over`).

What this never does: repeat a call. gRPC's own retries are off.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from hams_protocol.frozen import frozen
from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd_errors import AUTH_DISABLED, GARBLED, classify
from hams_wire.coordination.etcd_stream import Stream
from hams_wire.errors import AccessDenied, AuthExpired, InvalidCall, Unavailable, Unknown
from hams_wire.limits import etcd_call_s, etcd_connect_s

etcd_message_bytes_max = 16 * 1024 * 1024
"""Largest answer accepted from etcd."""

etcd_token_idle_s = 120.0
"""An authentication token that has not been used for this long is replaced before a write: etcd forgets idle
ones after 300 s."""

_CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Without calls etcd takes pings for an attack; with them, every 5 s is the most it tolerates.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.max_receive_message_length", etcd_message_bytes_max),
)

if TYPE_CHECKING:
    Unary = grpc.aio.UnaryUnaryMultiCallable
    UnaryCall = grpc.aio.UnaryUnaryCall

Answer = TypeVar("Answer", bound=Message)
Metadata = tuple[tuple[str, str], ...]
_NEEDS_LEADER: Metadata = (("hasleader", "true"),)
"""Lets a member without a leader refuse at once, and cut its streams, instead of keeping them waiting."""


@frozen
class Tls:
    """PEM files: the authority that signs etcd's certificates and, if etcd asks for one, the client's
    certificate and key. `server`: the name that etcd's certificates bear, if it is not the host that is
    dialled."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None
    server: str = ""


@frozen
class User:
    """Name and password of a user of etcd."""

    name: str
    password: str


class EtcdMember:
    """One member: its channel, its methods, and the token it gave us."""

    def __init__(self, address: str, tls: Tls | None, user: User | None) -> None:
        self.address = address
        self._user = user
        self._token: str | None = None  # "": authentication is switched off
        self._token_used_s = 0.0
        self._tls = tls
        self._authenticating = asyncio.Lock()
        self._retired: list[grpc.aio.Channel] = []
        self._files = _fingerprint(tls)
        self._use(_channel(address, tls))

    async def ready(self, timeout_s: float = etcd_connect_s) -> bool:
        """Whether the member can be talked to, after at most `timeout_s`; False at once if a connection has
        just failed."""
        if self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return True
        self._renew()
        channel = self._channel
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(timeout_s):
                while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return state is grpc.ChannelConnectivity.READY

    async def metadata(self, fresh: bool = False) -> Metadata:
        """What goes with each call. Authenticates if a token is needed and there is none, or (`fresh`) if it
        may have been forgotten.

        Raises what a read raises, of one attempt.
        """
        if self._user is None:
            return _NEEDS_LEADER
        now_s = asyncio.get_running_loop().time()
        async with self._authenticating:
            token = self._token
            if token is None or (token and fresh and now_s - self._token_used_s > etcd_token_idle_s):
                token = self._token = await self._login(self._user)
        self._token_used_s = now_s
        return (*_NEEDS_LEADER, ("token", token)) if token else _NEEDS_LEADER

    async def sign_of_life(self, timeout_s: float) -> pb.StatusResponse | None:
        """What it says of itself after at most `timeout_s`, empty if it refuses; None: no answer."""
        try:
            status: pb.StatusResponse | None = await self.status(pb.StatusRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                return None
            status = None
        return pb.StatusResponse() if status is None else status

    @property
    def has_user(self) -> bool:
        """Whether we have a name and password there; without, a certificate says who we are, if anything
        does."""
        return self._user is not None

    def administration(
        self, method: str, response: type[Answer], service: str = "Auth"
    ) -> "Unary[Any, Answer]":
        """A method of the service Auth, or of Cluster or Maintenance."""
        return self._channel.unary_unary(f"/etcdserverpb.{service}/{method}", _serialize, _reader(response))

    def forget_token(self) -> None:
        """Forget a token that etcd has refused."""
        self._token = None

    def watch(self, metadata: Metadata) -> Stream[pb.WatchRequest, pb.WatchResponse]:
        """Open a watch stream."""
        return Stream(self._watch(None, metadata=metadata), pb.WatchResponse)

    def keep_alive(self, metadata: Metadata) -> Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]:
        """Open a renewal stream."""
        return Stream(self._keep_alive(None, metadata=metadata), pb.LeaseKeepAliveResponse)

    async def close(self) -> None:
        """Hang up."""
        for channel in (*self._retired, self._channel):
            await channel.close(None)

    def _use(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

        def unary(method: str, response: type[Message]) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
            return channel.unary_unary(f"/etcdserverpb.{method}", _serialize, _reader(response))

        def stream(method: str, response: type[Message]) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
            return channel.stream_stream(f"/etcdserverpb.{method}", _serialize, _reader(response))

        self.range: Unary[pb.RangeRequest, pb.RangeResponse] = unary("KV/Range", pb.RangeResponse)
        self.txn: Unary[pb.TxnRequest, pb.TxnResponse] = unary("KV/Txn", pb.TxnResponse)
        self.grant: Unary[pb.LeaseGrantRequest, pb.LeaseGrantResponse] = unary(
            "Lease/LeaseGrant", pb.LeaseGrantResponse
        )
        self.revoke: Unary[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse] = unary(
            "Lease/LeaseRevoke", pb.LeaseRevokeResponse
        )
        self.compact: Unary[pb.CompactionRequest, pb.CompactionResponse] = unary(
            "KV/Compact", pb.CompactionResponse
        )
        self.status: Unary[pb.StatusRequest, pb.StatusResponse] = unary(
            "Maintenance/Status", pb.StatusResponse
        )
        self._authenticate: Unary[pb.AuthenticateRequest, pb.AuthenticateResponse] = unary(
            "Auth/Authenticate", pb.AuthenticateResponse
        )
        self._watch = stream("Watch/Watch", pb.WatchResponse)
        self._keep_alive = stream("Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)

    def _renew(self) -> None:
        """Certificates are replaced in place when they are renewed: the next connection has to be made with
        them."""
        files = _fingerprint(self._tls)
        if files == self._files:
            return
        try:
            channel = _channel(self.address, self._tls)
        except InvalidCall:
            return  # half-way through the renewal; the next attempt looks again
        self._files = files
        self._retired.append(self._channel)  # a call that still waits on it is not disturbed
        self._use(channel)

    async def _login(self, user: User) -> str:
        request = pb.AuthenticateRequest(name=user.name, password=user.password)
        try:
            response = await self._authenticate(request, timeout=etcd_call_s, metadata=_NEEDS_LEADER)
        except grpc.aio.AioRpcError as error:
            if error.details() == AUTH_DISABLED:
                # as etcd's own client does: the user is for the day when authentication is switched on
                return ""
            refused = classify(error, "Authenticate", self.address)
            if isinstance(refused, AuthExpired):
                raise AccessDenied(str(refused)) from None
            if isinstance(refused, Unknown):
                raise Unavailable(str(refused)) from None  # whatever became of it, it may be repeated
            raise refused from None
        if response is None:
            raise Unavailable(f"Authenticate at {self.address}: {GARBLED}")
        return response.token


class Members:
    """All members; `current` is the one in use."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None, user: User | None) -> None:
        self._members = [EtcdMember(address, tls, user) for address in addresses]
        self._current = 0
        self.switches = 0

    def __len__(self) -> int:
        return len(self._members)

    @property
    def current(self) -> EtcdMember:
        """The member that calls go to now."""
        return self._members[self._current]

    def pass_over(self, member: EtcdMember) -> None:
        """Go on with the next member, if `member`, which did not serve, is still the current one."""
        if member is self.current and len(self._members) > 1:
            self._current = (self._current + 1) % len(self._members)
            self.switches += 1

    async def find(self) -> EtcdMember | None:
        """The current member if it can be talked to, else the next one that can, which becomes the current
        one; None if none can."""
        for _ in self._members:
            member = self.current
            if await member.ready():
                return member
            self.pass_over(member)
        return None

    async def close(self) -> None:
        """Hang up."""
        for member in self._members:
            await member.close()


def parse_endpoints(text: str) -> tuple[tuple[str, ...], bool]:
    """The addresses in `http://a:2379,http://b:2379` or `a:2379,b:2379`, and whether they are https. Raises
    `InvalidCall`."""
    addresses: list[str] = []
    schemes: set[str] = set()
    for item in text.split(","):
        match = re.fullmatch(
            r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})/?", item.strip()
        )
        if match is None or not 0 < int(match[3]) < 65536:
            raise InvalidCall(
                f"etcd endpoint {item.strip()!r}: expected http://HOST:PORT, https://HOST:PORT or "
                "HOST:PORT, separated by commas"
            )
        addresses.append(f"{match[2]}:{match[3]}")
        schemes.add(match[1] or "http")
    if len(schemes) > 1:
        raise InvalidCall(f"etcd endpoints {text!r}: http and https are mixed")
    return tuple(addresses), schemes == {"https"}


def _reader(response: type[Answer]) -> Callable[[bytes], Answer | None]:
    """None for what is no message of this type: gRPC would give None too, after a stack trace in the log."""

    def read(data: bytes) -> Answer | None:
        try:
            return response.FromString(data)
        except DecodeError:
            return None

    return read


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(tls.authority),
        private_key=_read(tls.key) if tls.key is not None else None,
        certificate_chain=_read(tls.certificate) if tls.certificate is not None else None,
    )
    named = (("grpc.ssl_target_name_override", tls.server),) if tls.server else ()
    return grpc.aio.secure_channel(address, credentials, options=(*_CHANNEL_OPTIONS, *named))


def _fingerprint(tls: Tls | None) -> tuple[tuple[int, int], ...]:
    """What changes when one of the files is replaced."""
    marks = []
    for path in (tls.authority, tls.certificate, tls.key) if tls is not None else ():
        try:
            status = path.stat() if path is not None else None
        except OSError:
            status = None
        marks.append((status.st_mtime_ns, status.st_ino) if status is not None else (0, 0))
    return tuple(marks)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidCall(f"TLS file for etcd: {path}: {error.strerror}") from None
