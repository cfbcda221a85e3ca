"""What the shells around the machines see of each other: connections that break and stand again, silence.

What a shell makes of it is its own (`hams_wire.shell`). Here is only when it is called. A real one sends
heartbeats all the time; here a shell does so while there is a silent peer that it could miss, or a peer that
would learn something from it. In between beats would change nothing, and most of the time of a simulation
would go into them.
"""

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from hams_protocol.events import PeerDown, PeerUp
from hams_protocol.messages import Heartbeat
from hams_sim import limits
from hams_sim.network import Link
from hams_sim.node import Node
from hams_wire.shell import MANAGER

if TYPE_CHECKING:
    from hams_sim.world import World


class Watching:
    """When shells beat, and what their hosts tell them of connections."""

    def __init__(self, world: "World", rng: Random) -> None:
        self._world = world
        self._suspect_after_s = world.graph.data.recovery.suspect_after_s
        self._breaks_s = rng.choice((self._suspect_after_s, limits.silence_breaks_s))
        """There are networks that forget connections, over which nothing passes, sooner than their ends."""
        self._mute = rng.random() < limits.mute_worlds_share

    def peer_down(self, node: Node, peer: str, refused: bool) -> None:
        """A host sees that a connection is gone; it never sees that after it has seen the next one stand."""
        link = node.links.get(peer)
        if not refused and link is not None and not link.broken:
            return
        if peer in node.links_in:
            node.links_in[peer].noticed = True
        self._world.feed(node, PeerDown(peer, refused))

    def peer_up(self, node: Node, peer: str) -> None:
        """A connection stands again."""
        if peer in self._world.nodes and self._world.nodes[peer].alive:
            self._world.feed(node, PeerUp(peer))

    # -- silence ---------------------------------------------------------------------------------------------

    def fell_silent(self, link: Link) -> None:
        """Nothing comes over this link from now on, or nobody is there to send anything. A connection that
        has lost something is found to be broken soon."""
        if not link.silent:
            link.silent = True
            link.silent_since = self._world.now
            breaks_s = self._breaks_s
            if link.cut and not link.stalls:
                breaks_s = self._suspect_after_s * (1.0 + 0.5 * self._world.shell_rng.random())
            self._world.after(breaks_s, self._breaks, link, link.silent_since)
        self.watch(link.receiver)

    def _breaks(self, link: Link, since: float) -> None:
        """A connection over which nothing has passed for so long is given up by the end that waits."""
        observer = link.receiver
        if link.silent_since == since and self._is_silent(link) and observer.alive and not observer.paused:
            self.break_off(link)

    def break_off(self, link: Link) -> None:
        """Its receiver gives it up."""
        observer, silent = link.receiver, link.sender
        if link.noticed:
            return
        if not link.broken:
            self._world.network.give_up(link)
        link.noticed = True
        self._world.feed(observer, PeerDown(silent.id))
        back = self._world.network.link(observer, silent)
        if silent.alive and not back.cut:
            self._world.after(back.delay, self.peer_down, silent, observer.id, False)

    def unacknowledged_s(self, node: Node, peer: str) -> float:
        """A process that is only stopped has a kernel that answers."""
        link, back = node.links_in.get(peer), node.links.get(peer)
        cut = [item for item in (link, back) if item is not None and item.silent and item.cut]
        return max((self._world.now - item.silent_since for item in cut), default=0.0)

    def _is_silent(self, link: Link) -> bool:
        if not (link.cut or link.sender.paused):
            link.silent = False
        return link.silent

    # -- beats -----------------------------------------------------------------------------------------------

    def watch(self, node: Node) -> None:
        """Beat until there is nothing left to be seen or told."""
        if node.alive and not node.paused and not node.beats:
            node.beats = True
            self._beat(node)

    def rest(self, node: Node) -> None:
        """The instance is paused."""
        node.beats = False
        node.shell.rest()

    def _beat(self, node: Node) -> None:
        if not node.alive or node.paused or not node.beats:
            return
        for link in node.links_in.values():
            if link.silent and self._is_silent(link) and not link.noticed:
                node.shell.detector.expect(link.sender.id, link.silent_since)
        due = node.shell.beat() - node.skew
        self._world.settle(node)
        if self._has_news(node) or any(
            self._is_silent(link) for link in node.links_in.values() if link.silent
        ):
            self._world.at(due, self._beat, node)
        else:
            self.rest(node)

    def _has_news(self, node: Node) -> bool:
        generation = node.machine.knowledge.topology.generation
        return any(
            self._would_learn(other, node.id, generation)
            for other in self._world.living()
            if other is not node and other.id in node.shell.members
        )

    def _would_learn(self, node: Node, peer: str, generation: int) -> bool:
        """Whether a heartbeat of this peer is more to this instance than a sign of life."""
        if node.of == MANAGER:
            return node.shell.generation_heard(peer) != generation
        return node.machine.knowledge.topology.generation < generation

    def is_up(self, node: Node, peer: str) -> bool:
        """Whether a connection stands, as far as this host can tell."""
        link = node.links_in.get(peer)
        if link is not None:
            return not link.noticed
        other = self._world.nodes.get(peer)
        return other is not None and other.alive

    def heard_at(self, node: Node, peer: str) -> float:
        """Everybody who is not silent is heard all the time."""
        link = node.links_in.get(peer)
        return (
            link.silent_since
            if link is not None and link.silent and self._is_silent(link)
            else self._world.now
        )

    def send_heartbeats(self, node: Node, peers: Iterable[str], heartbeat: Heartbeat) -> None:
        """Which heartbeats are sent in a simulation: those from which somebody learns something. In some
        worlds most of these are lost as well, so that instances go long without news."""
        nodes, generation = self._world.nodes, heartbeat.generation
        for peer in peers:
            other = nodes.get(peer)
            if other is None or not self._would_learn(other, node.id, generation):
                continue
            if self.is_up(node, peer) and not (self._mute and self._is_lost(other)):
                self._world.network.send(node, peer, heartbeat)

    def _is_lost(self, receiver: Node) -> bool:
        share = limits.heard_by_managers_share if receiver.of == MANAGER else limits.heard_by_others_share
        return self._world.shell_rng.random() >= share
