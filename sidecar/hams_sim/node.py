"""One simulated instance: a core machine with what its shell and its host add to it."""

from collections.abc import Callable

from hams_protocol.events import Event, Member
from hams_protocol.graph import FRONTEND
from hams_sim.model import SimModel
from hams_sim.network import Link
from hams_wire.proposals import ProposalQueue
from hams_wire.shell import FOREVER, MANAGER, Machine, Shell


class Trigger:
    """A fault that waits for its moment: before the `count`-th effect of a kind is performed."""

    __slots__ = ("count", "kind", "strike")

    def __init__(self, kind: type, count: int, strike: Callable[[], None]) -> None:
        self.kind = kind
        self.count = count
        self.strike = strike


class Node:
    """`beats`: its shell sends heartbeats and watches for silence now. `turn_missed`: a turn of its loop fell
    into a pause. `host_cut` bit 1: nothing leaves the host, bit 2: nothing reaches it. `sound_since`: its
    last pause or cut ended then. `skew`: its clock's offset (no clock decides anything)."""

    __slots__ = (
        "alive",
        "backlog",
        "beats",
        "born_at",
        "etcd_cut",
        "generation",
        "host_cut",
        "id",
        "leaving",
        "links",
        "links_in",
        "machine",
        "members_seen",
        "model",
        "of",
        "paused",
        "paused_at",
        "proposals",
        "revision_seen",
        "shell",
        "silent_since",
        "skew",
        "slow",
        "slow_net",
        "sound_since",
        "spins",
        "timer_at",
        "trigger",
        "turn_missed",
        "watch_slow",
    )

    def __init__(self, instance: str, of: str, skew: float) -> None:
        self.id = instance
        self.of = of
        self.machine: Machine
        self.shell: Shell
        self.model: SimModel | None = None
        self.alive = True
        self.born_at = 0.0
        self.leaving = False
        self.paused = 0
        self.paused_at = 0.0
        self.backlog: list[Event] = []
        self.turn_missed = False
        self.beats = False
        self.links: dict[str, Link] = {}
        self.links_in: dict[str, Link] = {}
        self.skew = skew
        self.slow = 1.0
        self.slow_net = 1.0
        self.sound_since = 0.0
        self.watch_slow = 1.0
        self.revision_seen = -1
        self.members_seen = -1
        self.generation = 0
        self.etcd_cut = 0
        self.host_cut = 0
        self.silent_since = -1.0
        self.timer_at = FOREVER
        self.trigger: Trigger | None = None
        self.spins = 0
        self.proposals: ProposalQueue

    def member(self) -> Member:
        """What its shell registers in etcd."""
        return Member(self.id, self.of, self.id, self.former_id, keeps=self.of != MANAGER)

    @property
    def former_id(self) -> str | None:
        """The former id whose state its machine still has."""
        return getattr(self.machine, "former_id", None)

    @property
    def is_frontend(self) -> bool:
        """Whether clients may come here."""
        return self.of == FRONTEND

    @property
    def sound(self) -> bool:
        """Alive, running, and not cut off."""
        return self.alive and not self.paused and not self.host_cut
