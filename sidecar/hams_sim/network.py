"""The network between instances: like TCP while healthy, hostile when told.

Per directed pair and lane (messages with payload, control) delivery is in order; control may overtake
payload. A connection that is reset loses what is in flight, and both ends are told. In a hostile phase single
messages are lost, repeated and reordered.
"""

from random import Random
from typing import TYPE_CHECKING

from hams_protocol.events import Received
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import (
    Attempt,
    AttemptAck,
    ClientForward,
    ClientForwardAnswer,
    Deliver,
    Kind,
    LogAppend,
    LogCopy,
    Message,
    SlotAnswer,
    StateCopy,
    StateRecord,
)
from hams_sim import limits
from hams_sim.adversary import Adversary
from hams_sim.payload import arrived

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World

PAYLOAD = frozenset(
    (Deliver, StateRecord, StateCopy, LogAppend, LogCopy, SlotAnswer, ClientForward, ClientForwardAnswer)
)

ATTEMPTS = frozenset((Attempt, AttemptAck))


class Link:
    """One direction between two instances. `cut`: how many faults cut it; `stalls`: it keeps what is sent
    meanwhile, as TCP does. `noticed`: its receiver knows that it is broken. `silent`: nothing has come over
    it since `silent_since`."""

    __slots__ = (
        "broken",
        "cut",
        "delay",
        "last_control",
        "last_payload",
        "life",
        "noticed",
        "queued",
        "receiver",
        "refused_at",
        "sender",
        "silent",
        "silent_since",
        "stalls",
    )

    def __init__(self, sender: "Node", receiver: "Node", delay: float) -> None:
        self.sender = sender
        self.receiver = receiver
        self.delay = delay
        self.cut = 0
        self.stalls = False
        self.broken = False
        self.noticed = False
        self.silent = False
        self.silent_since = 0.0
        self.life = 0
        self.last_payload = 0.0
        self.last_control = 0.0
        self.refused_at = -1.0
        self.queued: list[Message] = []


class Network:
    """All links."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.base = rng.choice((0.0001, 0.0003, 0.001))
        self.jitter = rng.choice((0.2, 1.0, 4.0))
        self.loss = 0.0
        self.repeat = 0.0
        self.reorder = 0.0
        self.extra = 0.0
        self.slow_records = 0.0
        self.slow_of = ""
        self.echo = 0.0
        self.mute = 0.0
        self.connect_s = 0.0
        self.adversary = Adversary(rng)
        self.apart: frozenset[str] = frozenset()
        """Instances on a machine that is cut off: who begins meanwhile does not reach them."""
        self._held: dict[int, tuple[Link, int, Message]] = {}
        self._holds = 0

    def link(self, sender: "Node", receiver: "Node") -> Link:
        """The link, made at the first use."""
        link = sender.links.get(receiver.id)
        if link is None:
            link = sender.links[receiver.id] = Link(sender, receiver, self.base * (0.5 + self.rng.random()))
            receiver.links_in[sender.id] = link
            if (sender.host_cut & 1) or (receiver.host_cut & 2) or self._divides(sender, receiver):
                link.cut = 1
            if self.connect_s:
                link.cut += 1
                self.world.after(self.connect_s * self.rng.random(), self._stands, link)
        return link

    def _divides(self, sender: "Node", receiver: "Node") -> bool:
        """Whether one of them is on a machine that is cut off, and the other one is not."""
        return (sender.id in self.apart) != (receiver.id in self.apart)

    def _stands(self, link: Link) -> None:
        """The first connection in this direction stands; what was sent before is lost."""
        self.heal(link)
        if not (link.cut or link.broken):
            self.world.watching.peer_up(link.sender, link.receiver.id)

    def send(self, sender: "Node", target: str, message: Message) -> None:
        """One message leaves."""
        link = sender.links.get(target)
        if link is None:
            receiver = self.world.nodes.get(target)
            if receiver is None:
                return
            link = self.link(sender, receiver)
        if link.cut:
            if link.stalls and not link.broken:
                link.queued.append(message)
            return
        if link.broken:
            return
        if not link.receiver.alive:
            self._refused(link)
            return
        self._note(message)
        now, rng = self.world.now, self.rng
        if self.mute and type(message) in ATTEMPTS and rng.random() < self.mute:
            return
        if self.adversary.rules:
            held = self.adversary.delay(sender, link.receiver, message)
            if held is not None:
                if held >= 0:
                    self._hold(link, message, held)
                return
        if self.echo and rng.random() < self.echo:
            self._push(link, message, now + link.delay + limits.echo_s * rng.random())
        if self.loss:
            if rng.random() < self.loss:
                return
            if rng.random() < self.repeat:
                self._push(link, message, now + link.delay + self.extra * rng.random())
            if rng.random() < self.reorder:
                self._push(link, message, now + link.delay + self.extra * rng.random())
                return
        at = (
            now
            + link.delay * (1 + self.jitter * rng.random())
            + (self.extra * rng.random() if self.extra else 0.0)
        )
        if type(message) in PAYLOAD:
            if type(message) is StateRecord and self.slow_records and self.slow_of in ("", message.op):
                at += self.slow_records * rng.random()
            at += 0.0001 * link.sender.slow_net * link.receiver.slow_net
            if at < link.last_payload:
                at = link.last_payload
            link.last_payload = at
        else:
            if at < link.last_control:
                at = link.last_control
            link.last_control = at
        self._push(link, message, at)

    def _note(self, message: Message) -> None:
        if type(message) is Deliver and message.token.error is not None:
            self.world.errored.add(message.token.request)

    def _push(self, link: Link, message: Message, at: float) -> None:
        self.world.at(at, self._arrive, link, link.life, message)

    def _hold(self, link: Link, message: Message, held_s: float) -> None:
        self._holds += 1
        self._held[self._holds] = (link, link.life, message)
        self.world.at(self.world.now + link.delay + held_s, self._let_go, self._holds)

    def _let_go(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._arrive(*held)

    def let_all_go(self) -> None:
        """Faults have ended: what was held back is on its way, as if it had just been sent."""
        for number, (link, _, _) in self._held.items():
            self.world.after(link.delay, self._let_go, number)

    def _arrive(self, link: Link, life: int, message: Message) -> None:
        if link.life != life or not link.receiver.alive:
            return
        if link.cut:
            if link.stalls and not link.broken:
                link.queued.append(message)
            return
        if type(message) is Deliver and message.token.source in self.world.fan_outs:
            self._fan_out_arrived(link, message)
        elif type(message) is SlotAnswer:
            self.world.recorder.answered(link.sender, link.receiver, message)
        elif type(message) is LogAppend or type(message) is LogCopy:
            self.world.recorder.log_arrived(link.receiver, message)
        elif type(message) is StateRecord or type(message) is StateCopy:
            message = arrived(message)
        self.world.feed(link.receiver, Received(link.sender.id, message))

    def _fan_out_arrived(self, link: Link, message: Deliver) -> None:
        """Note who has received a fan-out's value. One whose owner is fenced already refuses it, and can tell
        nobody of it."""
        token, receiver = message.token, link.receiver.machine
        known: Knowledge = receiver.knowledge
        if message.epoch < known.source_epoch(token.source, token.request):
            return
        if token.kind is not Kind.SKIP:
            epoch = getattr(receiver, "epoch", 0)
            self.world.received.setdefault(token.value_id.rstrip("!"), []).append((link.receiver, epoch))
        elif not token.route:
            self.world.recorder.fan_out_again(link.sender, token.source, token.unit)

    def _refused(self, link: Link) -> None:
        now = self.world.now
        if now >= link.refused_at:
            link.refused_at = now + limits.refused_again_s
            self.world.after(
                link.delay * 2, self.world.watching.peer_down, link.sender, link.receiver.id, True
            )

    # -- faults ----------------------------------------------------------------------------------------------

    def cut(self, link: Link, stalls: bool) -> None:
        """Cut a link: nothing passes from now on."""
        link.cut += 1
        link.stalls = stalls

    def heal(self, link: Link) -> None:
        """Heal a link: what was kept arrives in order, unless an end has given the connection up."""
        link.cut = max(0, link.cut - 1)
        if link.cut:
            return
        if not link.sender.alive:
            self.world.after(
                link.delay, self.world.watching.peer_down, link.receiver, link.sender.id, True
            )  # it died behind the cut: nobody listens there
        if not link.broken:
            queued, link.queued = link.queued, []
            for message in queued:
                self.send(link.sender, link.receiver.id, message)
        self.mend(link)

    def give_up(self, link: Link) -> None:
        """An end closes the connection: both directions lose what is in flight."""
        back = self.link(link.receiver, link.sender)
        for item in (link, back):
            item.broken = True
            item.life += 1
            item.queued.clear()

    def mend(self, link: Link) -> None:
        """Both directions pass: the connection is made anew and both ends are told."""
        back = self.link(link.receiver, link.sender)
        if link.cut or back.cut or not (link.broken or back.broken):
            return
        if not (link.sender.alive and link.receiver.alive) or link.sender.paused or link.receiver.paused:
            return
        link.broken = back.broken = link.noticed = back.noticed = False
        link.last_payload = link.last_control = back.last_payload = back.last_control = self.world.now
        self.world.after(link.delay, self.world.watching.peer_up, link.sender, link.receiver.id)
        self.world.after(link.delay, self.world.watching.peer_up, link.receiver, link.sender.id)
