"""What the shells around the machines see of each other: connections that break and stand again, silence,
heartbeats.

A shell never judges: it tells its own machine, and the managers of whom it suspects.
"""

from typing import TYPE_CHECKING

from hams_protocol.events import PeerDown, PeerUp, Received
from hams_protocol.messages import Heartbeat, Suspect
from hams_sim import limits
from hams_sim.network import Link
from hams_sim.node import MANAGER, Node

if TYPE_CHECKING:
    from hams_sim.world import World


class Watching:
    """Suspicion and heartbeats of all shells."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._suspect_after = world.graph.data.recovery.suspect_after_s

    def peer_down(self, node: Node, peer: str, refused: bool) -> None:
        """A shell sees that a connection is gone; it never sees that after it has seen the next one stand."""
        link = node.links.get(peer)
        if not refused and link is not None and not link.broken:
            return
        self._world.feed(node, PeerDown(peer, refused))
        if (
            node.alive
            and not node.paused
            and peer in self._world.nodes
            and self._world.shell_rng.random() < 0.2
        ):
            self.tell_managers(node, peer, "its connection broke")

    def peer_up(self, node: Node, peer: str) -> None:
        """A connection stands again."""
        if peer in self._world.nodes and self._world.nodes[peer].alive:
            self._world.feed(node, PeerUp(peer))

    def tell_managers(self, node: Node, suspect: str, why: str) -> None:
        """A shell suspects a peer."""
        if node.of == MANAGER:
            return
        message = Suspect(suspect, why)
        for other in self._world.living():
            if other.of == MANAGER:
                self._world.network.send(node, other.id, message)

    def watch_silence(self, link: Link) -> None:
        """Whoever hears nothing over this link for long enough suspects its sender."""
        self._world.after(
            self._suspect_after * (1.0 + 0.5 * self._world.shell_rng.random()),
            self._silence,
            link,
            link.cut,
            link.sender.paused,
        )

    def _silence(self, link: Link, cut: int, paused: int) -> None:
        observer, silent = link.receiver, link.sender
        if not observer.alive or observer.paused:
            return
        if not silent.alive and not link.cut:
            self.peer_down(
                observer, silent.id, True
            )  # it died behind a cut that has healed: nobody listens there
            return
        if not (link.cut or silent.paused):
            return
        if silent.id not in self._world.nodes:
            return
        if not link.broken:
            self._world.network.give_up(link)
            self._world.feed(observer, PeerDown(silent.id, False))
            back = observer.links[silent.id]
            if silent.alive and not back.cut:
                self._world.after(back.delay, self.peer_down, silent, observer.id, False)
        self.tell_managers(observer, silent.id, "silent")
        if observer.of == MANAGER:
            self._world.feed(observer, Received(observer.id, Suspect(silent.id, "silent")))
        if silent.alive or link.cut:
            self._world.after(limits.suspect_again_s, self._silence, link, cut, paused)

    def heartbeat(self, node: Node) -> None:
        if not node.alive:
            return
        self._world.after(
            limits.heartbeat_every_s * (0.5 + self._world.shell_rng.random()), self.heartbeat, node
        )
        if node.paused:
            return
        machine = node.machine
        knowledge = machine.knowledge  # type: ignore[attr-defined]
        generation = knowledge.topology.generation
        if generation != node.generation and self._tell_generation(node, generation):
            node.generation = generation
        if not node.links:
            return
        peers = list(node.links)
        peer = peers[int(self._world.shell_rng.random() * len(peers))]
        if self._world.nodes[peer].alive:
            self._world.network.send(node, peer, Heartbeat(generation))

    def _tell_generation(self, node: Node, generation: int) -> bool:
        """A heartbeat to every manager within reach, as real shells send them to everybody. It draws nothing,
        so seeds mean what they meant."""
        world, reached = self._world, True
        for other in world.living():
            if other.of == MANAGER and other is not node:
                link = node.links.get(other.id)
                if (
                    node.host_cut & 1
                    or other.host_cut & 2
                    or (link is not None and (link.cut or link.broken))
                ):
                    reached = False
                else:
                    world.after(
                        world.network.base, world.feed, other, Received(node.id, Heartbeat(generation))
                    )
        return reached
