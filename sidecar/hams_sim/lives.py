"""How processes begin to fail and end: killed, stopped and continued, drained, cut off from etcd, started
again.

Nothing here looks at what a machine is about; a process that ends is gone at once, and what the others see of
it is theirs (`watching`).
"""

from collections import Counter
from typing import TYPE_CHECKING

from hams_protocol.effects import Stop
from hams_protocol.events import Drain, MembersChanged, Tick, TopologyLearnt
from hams_protocol.ids import UnitId
from hams_sim import limits
from hams_sim.node import Node

if TYPE_CHECKING:
    from hams_sim.world import World

TICK = Tick()


class Lives:
    """Ends processes and starts their successors. `awaited`: so many are to be replaced, and are not yet.
    `poisoned`: how many owners of an operator a unit took with it, proxy and model."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.exit_s = 0.0
        self.awaited = 0
        self.poisoned: Counter[tuple[str, UnitId]] = Counter()

    def _end(self, node: Node, flushed: bool = False, keeps: bool = False, exit_s: float = 0.0) -> None:
        """The process is gone; connected and reachable peers see it at once, or after `exit_s`, when it has
        closed its connections. `flushed`: what it had said still arrives, mostly. `keeps`: it goes on under
        another id."""
        node.alive = False
        node.shell.stopped = True
        node.backlog.clear()
        self._world.refusals.died(node)
        if node.model is not None:
            node.model.life += 1
        for link in list(node.links.values()):
            link.broken = True
            if not flushed or self._world.fault_rng.random() < 0.3:
                link.life += 1
        for link in list(node.links_in.values()):
            link.queued.clear()
        for peer in dict.fromkeys((*node.links, *node.links_in)):
            other = self._world.nodes.get(peer)
            if other is None or not other.alive:
                continue
            link = self._world.network.link(node, other)
            if link.cut:
                self._world.watching.fell_silent(link)
            else:
                self._world.after(
                    link.delay * (1 + self._world.shell_rng.random()) + exit_s,
                    self._world.watching.peer_down,
                    other,
                    node.id,
                    True,
                )
        if node.is_frontend:
            for handle, client in list(self._world.clients.items()):
                if client.frontend is node and client.attempt == handle and not client.done:
                    self._world.after(0.001, client.broken)
        self._world.ended(node, keeps)

    def kill(self, node: Node, why: str, restart: bool, flushed: bool = False) -> None:
        """SIGKILL: nothing is said, the lease runs out by itself, a fresh instance comes later."""
        if not node.alive:
            return
        self._end(node, flushed)
        self._expire(node, 0.6)
        if restart:
            delay_s = 0.05 + 0.3 * self._world.shell_rng.random()
            self.awaited += 1
            self._world.after(delay_s + self._world.replaced_s, self._replace, node)

    def _expire(self, node: Node, least: float) -> None:
        """Its lease runs out, after this share of its time at least, unless etcd hears of it before. A
        second fault does not prolong a lease that runs out already."""
        after_s = limits.lease_ttl_s * (least + (1.0 - least) * self._world.shell_rng.random())
        if node.silent_since < 0.0:
            node.silent_since = self._world.now
            self._world.after(after_s, self._world.etcd.lapse, node, self._world.now)

    def pause(self, node: Node) -> None:
        """SIGSTOP of the proxy."""
        node.paused += 1
        if node.paused == 1:
            node.paused_at = self._world.now
            self._expire(node, 0.7)
            self._world.watching.rest(node)
            for link in list(node.links.values()):
                self._world.watching.fell_silent(link)

    def resume(self, node: Node, late_s: float = 0.0) -> None:
        """SIGCONT: what has piled up is handled first. `late_s`: its connection to etcd is lost, and stands
        again only then."""
        node.paused = max(0, node.paused - 1)
        if node.paused or not node.alive:
            return
        if not node.etcd_cut:
            node.silent_since = -1.0
        node.sound_since = self._world.now
        backlog, node.backlog = node.backlog, []
        node.shell.late(self._world.now - node.paused_at)
        if late_s:
            backlog = [event for event in backlog if not isinstance(event, TopologyLearnt | MembersChanged)]
            node.revision_seen = node.members_seen = -1
            self.cut_etcd(node)
            self._world.after(late_s, self.heal_etcd, node)
        for event in backlog:
            self._world.feed(node, event)
        if node.turn_missed:
            node.turn_missed = False
            self._world.turn(node)
        if not self._world.nodes[node.id].alive:
            return
        self._world.watching.watch(node)
        for link in list(node.links.values()):
            self._world.network.mend(link)
        self._world.etcd.resync(node)
        self._world.feed(node, TICK)

    def cut_etcd(self, node: Node) -> None:
        """The instance does not reach etcd."""
        node.etcd_cut += 1
        if node.etcd_cut == 1:
            self._expire(node, 0.7)

    def heal_etcd(self, node: Node) -> None:
        """The instance reaches etcd again."""
        node.etcd_cut = max(0, node.etcd_cut - 1)
        if node.etcd_cut == 0 and node.alive:
            if not node.paused:
                node.silent_since = -1.0
            node.sound_since = self._world.now
            self._world.etcd.resync(node)

    def _replace(self, node: Node) -> None:
        self.awaited -= 1
        self.respawn(node)

    def respawn(self, node: Node, keeps: bool = False) -> None:
        """The process is started again, under a fresh id; one that was to leave has its substitute already,
        and stays only for what it keeps."""
        if node.leaving and not keeps:
            return
        if not keeps:
            self._world.start(node.of)
            return
        fresh = self._world.spawn(node.of, node)
        if node.leaving:
            fresh.leaving = True
            self._world.feed(fresh, Drain())

    def drain(self, node: Node) -> None:
        """A graceful deletion: a substitute starts at once, the instance hands over what it has and stops."""
        if node.leaving or node.paused:
            return
        self._world.feed(node, Drain())
        self._world.after(0.05 + 0.2 * self._world.fault_rng.random(), self._substitute, node.of)
        node.leaving = True

    def _substitute(self, of: str) -> None:
        self._world.start(of)

    def stopped(self, node: Node, effect: Stop) -> None:
        self._world.seen(f"stop: {effect.reason.split(':')[0].split(' of epoch')[0]}")
        self._end(node, keeps=effect.keep is not None, exit_s=self.exit_s)
        if effect.lingers:
            self._expire(node, 0.6)
        elif self._world.etcd.reachable(node) or not node.etcd_cut:
            self._world.after(0.001 + self.exit_s, self._world.etcd.drop, node.id)
        self._world.after(0.02, self.respawn, node, effect.keep is not None)
