"""The connections of one instance to its peers.

A peer is wanted while it is a member, or while it holds a connection to us: so an instance that asks can be
answered, before its membership has been read and after its lease has expired. (Two living instances that have
both dropped each other so stay connected until one ends.) A wanted peer is dialled until it answers, with
growing, jittered pauses; a broken connection is reported at once. A member is dialled at the address that
stood in etcd, whatever its greeting says; a peer that never was a member only at the host from which it has
connected.

Invariants: `on_up` and `on_down` of a peer alternate, beginning with up. A message handed to `send` is
delivered at most once per call, or lost; it is lost when there is no connection, when the connection breaks,
and when the peer's queue is full. A slow peer costs the memory of its queue and nothing else.

Never: decides what a silent peer means (`failure_detector.py` and the core do), repeats a message, blocks its
caller.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hams_protocol.ids import InstanceId
from hams_protocol.messages import Message
from hams_wire import limits, peer_exit
from hams_wire.peers import addresses, handshake, visits
from hams_wire.peers.codec import Codec, Encoded
from hams_wire.peers.connection import Receiving, Sending
from hams_wire.peers.errors import BadFrame, ConnectionRejected, NotSendable, RejectReason
from hams_wire.peers.payload import PayloadFactory
from hams_wire.peers.tls_listener import TlsListener
from hams_wire.peers.visits import TLS_NAME
from hams_wire.tls import Certificates, Stranger

addresses_known_max = 4096
"""Addresses of members remembered, former ones included."""

peers_max = 4096
"""Instances that are members or hold a connection here."""

reconnect_s = 0.02
"""Pause before a broken connection is tried again; doubled each time, with jitter, to `reconnect_max_s`."""

reconnect_eager_s = 0.002
"""Pause before the first new attempt, if something here waits to know whether the peer has ended: its socket
may still be closing while the kernel ends its process."""

reconnect_refused_s = 0.25
"""Least pause where no process listens any more: one that comes back there connects to us first."""

reconnect_offending_max_s = 5.0
"""Longest pause to a peer that has closed connections for a frame that is not allowed: that frame may come
again. The peer is forgiven after a connection that stood for longer than this."""

offence_said_s = 60.0
"""A peer whose frames are rejected, or that rejects ours, is named in the log again after this long."""

offenders_max = 256
"""Peers of which it is remembered when they were last named."""

copies_held_max_s = 0.1
"""Copies of a state are held back no longer than this: less than the core waits until it asks again for one
(`resend_after_s`)."""

steady_s = 0.1
"""A connection that stood for less than this is flapping: it is not tried again at once."""

reconnect_max_s = 1.0
"""Longest pause between two attempts to connect."""

visits_max = 256
"""Visitors at one instance at a time."""

log = logging.getLogger("hams.wire.peers")


@dataclass(slots=True)
class Stats:
    """Counters since the start. Lost messages are ours that never left; dropped ones came and found no
    room."""

    sent_messages: int = 0
    lost_unconnected: int = 0
    lost_full: int = 0
    dropped_no_room: int = 0
    bad_frames: int = 0
    rejected: int = 0
    breaks: int = 0


class _Peer:
    """What is known of one wanted peer."""

    __slots__ = (
        "address",
        "ending",
        "member",
        "nudge",
        "offence_s",
        "pause_s",
        "receiving",
        "sending",
        "task",
        "up",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.ending = False
        self.member = False
        self.receiving: Receiving | None = None
        self.sending: Sending | None = None
        self.task: asyncio.Task[None] | None = None
        self.nudge = asyncio.Event()
        self.up = False
        self.pause_s = reconnect_s
        """Before the next attempt, if this one fails."""
        self.offence_s = 0.0
        """The last pause that was made because it rejected what it was sent."""


class Named:
    """Offenders that the log has named, and when: a repeated offence is logged once in a while."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def say(self, to: logging.Logger, now: float, who: str, what: str) -> None:
        """Warn, unless `who` was named a short while ago."""
        at = self._at.get(who)
        again = at is not None and now < at + offence_said_s
        to.log(logging.DEBUG if again else logging.WARNING, "%s", what)
        if not again:
            if len(self._at) >= offenders_max:
                del self._at[next(iter(self._at))]
            self._at.pop(who, None)
            self._at[who] = now


class PeerNetwork:
    """Sends to and receives from the instances of one graph.

    `listen` is `tcp:host:port` or `unix:/path`; `advertise` the host that others shall dial, if it is not the
    one listened at. Callbacks run on the loop, one at a time: `on_message(sender, message)`, `on_up(peer)`,
    `on_down(peer)`, `on_refused(peer)` (its process is ending, or it was dialled and nobody listens at its
    address, or somebody else). `eager(peer)`: whether to find out at once why a connection broke; to others a
    pause comes first, so that those who act upon it find the machine free. `host` answers visitors.
    `unknown(message)` says what a message names that this graph does not have ("": nothing); its connection
    is closed.
    """

    def __init__(
        self,
        instance: InstanceId,
        graph: str,
        listen: str,
        factory: PayloadFactory,
        on_message: Callable[[InstanceId, Message], None],
        on_up: Callable[[InstanceId], None],
        on_down: Callable[[InstanceId], None],
        *,
        on_refused: Callable[[InstanceId], None] | None = None,
        advertise: str | None = None,
        tls: Certificates | None = None,
        eager: Callable[[InstanceId], bool] = lambda _: True,
        host: visits.Host | None = None,
        unknown: Callable[[Message], str] = lambda _: "",
    ) -> None:
        self.instance = instance
        self.graph = graph
        self._eager = eager
        self.stats = Stats()
        self.heard_s: dict[InstanceId, float] = {}
        self._codec = Codec(factory)
        self._listen = addresses.parse(listen)
        self._advertise = advertise
        self._address = ""
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._on_refused = on_refused
        self._host = host
        self._unknown = unknown
        self._visits = 0
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._tls_listener: TlsListener | None = None
        self._peers: dict[InstanceId, _Peer] = {}
        self._addresses: dict[InstanceId, str] = {}
        self._incoming: set[Receiving] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._last: tuple[Message, Encoded] | None = None
        self._dirty: list[Sending] = []
        self._holding = False
        self._held = ""
        self._held_until: asyncio.TimerHandle | None = None
        self._named = Named()

    # ---- life ----

    async def start(self) -> None:
        """Listen. Raises OSError."""
        make = lambda: Receiving(self, self._codec, self._loop)  # noqa: E731
        match self._listen:
            case addresses.Unix(path):
                self._server = await self._loop.create_unix_server(make, path, backlog=limits.connections_max)
                self._address = str(self._listen)
            case addresses.Tcp(host, port):
                if self._tls is None:
                    self._server = await self._loop.create_server(
                        make, host, port, backlog=limits.connections_max
                    )
                    bound = self._server.sockets[0].getsockname()
                else:
                    self._tls_listener = await TlsListener.open(host, port, self._tls, make)
                    bound = self._tls_listener.bound
                self._address = str(addresses.Tcp(self._advertise or host, bound[1]))

    @property
    def address(self) -> str:
        """Where others can reach this instance; known after `start`."""
        return self._address

    async def close(self, flush_s: float = 0.0) -> None:
        """Close everything, after giving queued messages up to `flush_s` to leave. No callback comes after
        that."""
        self.release_copies()
        deadline = self._loop.time() + flush_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(
                    *(
                        peer.sending.flushed()
                        for peer in self._peers.values()
                        if peer.up and peer.sending is not None
                    )
                )
        self._closing = True
        if self._server is not None:
            self._server.close()
        if self._tls_listener is not None:
            await self._tls_listener.close()
        # Dialling ends before connections do, or each that is closed would be dialled again.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        sendings = [peer.sending for peer in self._peers.values() if peer.sending is not None]
        connections: list[Sending | Receiving] = [*sendings, *self._incoming]
        for sending in sendings:
            sending.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(asyncio.shield(sending.closed) for sending in sendings))
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in connections))
        self._peers.clear()
        if isinstance(self._listen, addresses.Unix):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._listen.path)

    # ---- peers ----

    def set_members(self, members: Mapping[InstanceId, str]) -> None:
        """The members, each with its address. Itself may be among them. An address that cannot be parsed is
        logged and left out."""
        for instance, address in members.items():
            if instance == self.instance:
                continue
            try:
                addresses.parse(address)
            except ValueError as error:
                log.warning("member %s: %s", instance, error)
                continue
            self._addresses[instance] = address
            if len(self._addresses) > addresses_known_max:
                del self._addresses[next(name for name in self._addresses if name not in members)]
            peer = self._wanted(instance, address)
            peer.member = True
            if peer.address != address:
                peer.address = address
                peer.nudge.set()
        for instance, peer in tuple(self._peers.items()):
            if peer.member and instance not in members:
                peer.member = False
                self._release(instance, peer)

    def is_up(self, peer: InstanceId) -> bool:
        """Whether messages to this peer can leave."""
        known = self._peers.get(peer)
        return known is not None and known.up

    def unacknowledged_s(self, peer: InstanceId) -> float:
        """How long the kernel at the other end has acknowledged nothing of what was sent; 0 if nothing
        waits, or on a Unix socket."""
        known = self._peers.get(peer)
        return 0.0 if known is None or known.sending is None else known.sending.unacknowledged_s

    def break_off(self, peer: InstanceId) -> None:
        """Give up the connection to this peer; it is dialled again."""
        known = self._peers.get(peer)
        if known is not None and known.sending is not None:
            known.sending.abort()

    def queued_bytes(self, peer: InstanceId) -> int:
        """Bytes that wait for this peer."""
        known = self._peers.get(peer)
        return 0 if known is None or known.sending is None else known.sending.outbox.nbytes

    def send(self, peer: InstanceId, message: Message) -> None:
        """Queue a message; lost if the peer is not connected or its queue is full. One over a bound is said
        to be an error, and lost too."""
        known = self._peers.get(peer)
        sending = None if known is None or not known.up else known.sending
        if sending is None:
            self.stats.lost_unconnected += 1
            return
        last = self._last
        if last is not None and last[0] is message:  # the same to several peers
            encoded = last[1]
        else:
            try:
                encoded = self._codec.encode(message)
            except NotSendable as error:
                log.error("not sent to %s: %s", peer, error)
                return
            # Not with a payload: a view that is kept here would keep its slot in the arena taken.
            self._last = (message, encoded) if not encoded.views else None
        outbox = sending.outbox
        if sending.push(encoded):
            self.stats.sent_messages += 1
        elif outbox.repeated:
            outbox.repeated = 0
        else:
            self.stats.lost_full += outbox.dropped
            outbox.dropped = 0

    def _wanted(self, instance: InstanceId, address: str) -> _Peer:
        peer = self._peers.get(instance)
        if peer is None:
            peer = self._peers[instance] = _Peer(address)
            peer.task = self._loop.create_task(self._keep(instance, peer), name=f"peer {instance}")
            self._tasks.add(peer.task)
            peer.task.add_done_callback(self._tasks.discard)
        return peer

    def _release(self, instance: InstanceId, peer: _Peer) -> None:
        """Let go of a peer that is neither a member nor connected to us."""
        if peer.member or peer.receiving is not None or self._peers.get(instance) is not peer:
            return
        # Out of `_peers` first: the connection that is aborted below then finds no peer (`lost`), and
        # `on_down` is called once.
        del self._peers[instance]
        self.heard_s.pop(instance, None)
        if peer.task is not None:
            peer.task.cancel()
        if peer.sending is not None:
            peer.sending.abort()
        if peer.up:
            peer.up = False
            self._on_down(instance)

    # ---- dialling ----

    async def _keep(self, instance: InstanceId, peer: _Peer) -> None:
        """Dial a wanted peer until it is let go."""
        while not peer.address:  # it has connected to us, and where it can be reached is not known
            peer.nudge.clear()
            await peer.nudge.wait()
        while True:
            try:
                sending = await self._dial(instance, peer)
            except (OSError, BadFrame, ConnectionRejected) as error:  # TimeoutError is an OSError
                self._not_reached(instance, peer, error)
            else:
                if await self._stood(instance, peer, sending):
                    continue
            try:
                async with asyncio.timeout(peer.pause_s * random.uniform(0.5, 1.5)):
                    await peer.nudge.wait()  # not wait_for: it may swallow a cancellation
                # It has connected to us or has another address: earlier failures say nothing of the next try.
                peer.pause_s = reconnect_s
                peer.nudge.clear()
            except TimeoutError:
                peer.pause_s = min(2 * peer.pause_s, reconnect_max_s)

    def _not_reached(self, instance: InstanceId, peer: _Peer, error: Exception) -> None:
        """An attempt has failed. Sometimes that tells that the peer is gone."""
        # Nobody listens there any more: as good as a death certificate.
        gone = isinstance(error, ConnectionRefusedError | FileNotFoundError)
        if gone:
            level = logging.INFO if peer.pause_s < reconnect_refused_s else logging.DEBUG
            log.log(level, "%s is gone from %s: %s", instance, peer.address, error)
            peer.pause_s = max(peer.pause_s, reconnect_refused_s)
        else:
            log.info("cannot reach %s at %s: %s", instance, peer.address, error)
        # An address that belongs to somebody else tells the same.
        another = isinstance(error, ConnectionRejected) and error.reason is RejectReason.OTHER_INSTANCE
        if (gone or another) and self._on_refused is not None and not self._closing:
            self._on_refused(instance)

    async def _stood(self, instance: InstanceId, peer: _Peer, sending: Sending) -> bool:
        """Wait until a connection is gone. Whether to dial again without another pause."""
        began = self._loop.time()
        # Shielded: `close` cancels this task and waits for the same future afterwards.
        await asyncio.shield(sending.closed)
        stood_s = self._loop.time() - began
        log.debug("connection to %s at %s is gone", instance, peer.address)
        if stood_s > reconnect_offending_max_s:
            peer.offence_s = 0.0
        if sending.offended is not None:
            offence = f"{instance} refuses what it is sent: {sending.offended}"
            self._named.say(log, self._loop.time(), instance, offence)
            peer.offence_s = min(max(2 * peer.offence_s, reconnect_s), reconnect_offending_max_s)
            # The rejected frame may come again: a connection from the peer does not shorten this pause.
            await self._pause(peer.offence_s)
            return True
        eager = self._eager(instance)
        if peer.ending:
            peer.pause_s = reconnect_refused_s
            return False
        peer.pause_s = reconnect_eager_s if eager else reconnect_s
        # One attempt at once tells whether it was the connection or the peer.
        return eager and stood_s > steady_s

    async def _pause(self, pause_s: float) -> None:
        """About this long, whatever happens meanwhile."""
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))

    async def _dial(self, instance: InstanceId, peer: _Peer) -> Sending:
        """A connection that has been welcomed."""
        hello = handshake.Hello(
            self.graph, self.instance, instance, self._address, handshake.VERSION_OLDEST, handshake.VERSION
        )
        sending = Sending(self, instance, hello, self._codec, self._loop)
        ssl = None if self._tls is None else self._tls.client()
        name = None if ssl is None else TLS_NAME
        make = lambda: sending  # noqa: E731
        peer.sending = sending
        try:
            async with asyncio.timeout(limits.connect_s):
                match addresses.parse(peer.address):
                    case addresses.Unix(path):
                        await self._loop.create_unix_connection(make, path, ssl=ssl, server_hostname=name)
                    case addresses.Tcp(host, port):
                        await self._loop.create_connection(make, host, port, ssl=ssl, server_hostname=name)
            async with asyncio.timeout(limits.handshake_s):
                await asyncio.shield(sending.welcomed)
        except (OSError, BadFrame, ConnectionRejected, asyncio.CancelledError):
            sending.abort()
            # uvloop closes the transport of a cancelled dialling without a word
            sending.connection_lost(None)
            raise
        return sending

    # ---- SendingOwner ----

    def reached(self, transport: asyncio.BaseTransport) -> None:
        """Raises ConnectionRejected if it is not one of this graph that listens there."""
        if self._tls is not None:
            _vouch(self._tls, transport)

    def stands(self, sending: Sending) -> None:
        """Report a connection that messages may be sent on."""
        peer = self._peers.get(sending.peer)
        if peer is not None and peer.sending is sending and not self._closing:
            peer.up = True
            # A nudge from before asked for this connection. Left set, it would cut the pause after its end
            # short.
            peer.nudge.clear()
            self._on_up(sending.peer)

    def dirty(self, sending: Sending) -> None:
        """All connections that got something to write in this turn are served together."""
        if not self._dirty and not self._holding:
            self._loop.call_soon(self._flush)
        self._dirty.append(sending)

    def hold(self) -> None:
        """What is sent from now on leaves together at `release`."""
        self._holding = True

    def release(self) -> None:
        """Write what was sent since `hold`, without waiting for the next turn of the loop."""
        self._holding = False
        if self._dirty:
            self._flush()

    @property
    def held_copies(self) -> str:
        """The operator whose state's copies stay for now; "": none."""
        return "" if self._held_until is None else self._held

    def hold_copies(self, op: str) -> None:
        """Copies of this operator's state stay until `release_copies`, `copies_held_max_s` at most, and leave
        the machine to what clients wait for."""
        if self._held_until is None and not self._closing:
            self._held = op
            self._held_until = self._loop.call_later(copies_held_max_s, self.release_copies)

    def release_copies(self) -> None:
        """They leave again."""
        if self._held_until is None:
            return
        self._held_until.cancel()
        self._held_until = None
        for peer in self._peers.values():
            if peer.sending is not None and peer.sending.outbox:
                peer.sending.go_on()

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for sending in dirty:
            sending.flush()

    def lost(self, sending: Sending) -> None:
        """Report a broken connection at once."""
        peer = self._peers.get(sending.peer)
        if peer is None or peer.sending is not sending:
            return  # it was let go, or another connection has taken the place of this one
        peer.sending = None
        if peer.up:
            peer.up = False
            self.stats.breaks += 1
            peer.ending = peer_exit.is_ending(sending.pid)
            if not self._closing:
                self._on_down(sending.peer)
                if peer.ending and self._on_refused is not None:
                    self._on_refused(sending.peer)

    # ---- ReceivingOwner ----

    def accepted(self, receiving: Receiving, transport: asyncio.BaseTransport) -> None:
        """Raises ConnectionRejected when it is not one of this graph, or there are too many connections."""
        if self._tls is not None:
            _vouch(self._tls, transport)
        if len(self._incoming) >= limits.connections_max:
            raise ConnectionRejected(
                RejectReason.FULL, f"{len(self._incoming)} connections are open, which is the most"
            )
        self._incoming.add(receiving)

    def greeted(self, receiving: Receiving, hello: handshake.Hello) -> handshake.Welcome:
        """A peer connects: it is wanted from here on, and its older connection is closed. Raises
        ConnectionRejected."""
        welcome = handshake.answer(hello, self.graph, self.instance)
        if self._closing:
            raise ConnectionRejected(RejectReason.FULL, "this instance is ending")
        if hello.sender not in self._peers and len(self._peers) >= peers_max:
            raise ConnectionRejected(
                RejectReason.FULL, f"{len(self._peers)} peers are known here, which is the most"
            )
        known = self._addresses.get(hello.sender)
        if known is None and addresses.is_at(hello.address, receiving.source):
            known = hello.address
        peer = self._wanted(hello.sender, known or "")
        # Replaced before the older one is aborted: its end then does not let the peer go (`gone`).
        older, peer.receiving = peer.receiving, receiving
        if older is not None:
            older.abort()
        if not peer.up:
            peer.nudge.set()  # it lives, so the pause before the next attempt has no reason any more
        self.heard_s[hello.sender] = self._loop.time()
        return welcome

    def visited(
        self, receiving: Receiving, hello: handshake.Hello, transport: asyncio.Transport
    ) -> handshake.Welcome:
        """A visitor: its connection is the host's from here on. Raises ConnectionRejected."""
        welcome = handshake.answer(hello, self.graph, self.instance)
        if self._host is None or self._visits >= visits_max or self._closing:
            raise ConnectionRejected(
                RejectReason.FULL,
                f"{self._visits} visitors are here, which is the most"
                if self._host
                else "visitors are not answered here",
            )
        visit = visits.taken_over(transport, self._loop)  # at once: what follows the greeting is not for us
        task = self._loop.create_task(
            self._receive(self._host, hello.sender, visit), name=f"visit of {hello.sender}"
        )
        self._visits += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return welcome

    async def _receive(self, host: visits.Host, visitor: InstanceId, visit: visits.Visit) -> None:
        try:
            await host(visit)
        except visits.VisitEnded:
            pass
        except (visits.VisitFailed, OSError) as error:
            log.info("the visit of %s is over: %s", visitor, error)
        finally:
            self._visits -= 1
            visit.close()

    def on_received(self, peer: InstanceId) -> None:
        """Remember when a message came over the connection."""
        if peer:
            self.heard_s[peer] = self._loop.time()

    def deliver(self, peer: InstanceId, message: Message) -> None:
        """Pass a message on. Raises BadFrame if it names what this graph does not have."""
        if self._closing:
            return
        if unknown := self._unknown(message):
            raise BadFrame(unknown)
        self._on_message(peer, message)

    def dropped(self) -> None:
        """Count a dropped message."""
        self.stats.dropped_no_room += 1

    def rejected(self, receiving: Receiving, error: BadFrame | ConnectionRejected) -> None:
        """Count a rejection and log it."""
        if isinstance(error, BadFrame):
            self.stats.bad_frames += 1
        else:
            self.stats.rejected += 1
        who = receiving.peer or "a stranger"
        self._named.say(log, self._loop.time(), who, f"connection of {who} refused: {error}")

    def gone(self, receiving: Receiving) -> None:
        """Let go of a peer that was wanted for this connection alone."""
        self._incoming.discard(receiving)
        peer = self._peers.get(receiving.peer)
        if peer is not None and peer.receiving is receiving:
            peer.receiving = None
            if not self._closing:
                self._release(receiving.peer, peer)


def _vouch(tls: Certificates, transport: asyncio.BaseTransport) -> None:
    try:
        tls.vouch(transport)
    except Stranger as stranger:
        raise ConnectionRejected(RejectReason.STRANGER, str(stranger)) from None
