"""Faults: what is drawn from the seed, when each one strikes, and its victim (`strikes.py`: what it does).

A fault names its victim by role, and the role is looked up when the fault strikes. Nothing here goes beyond
what the protocol tolerates unless its scenario says so: an instance is only hurt while another sound member
of each of its sets holds the state.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING

from hams_history.lines import FaultLine
from hams_protocol import effects as core_effects
from hams_protocol import messages as core_messages
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND
from hams_protocol.stateful import StatefulMachine
from hams_sim import limits
from hams_sim.node import Node, Trigger
from hams_sim.strikes import FLAP_EVERY_S, FLAPS, OF_ONE, OF_WORLD
from hams_wire.shell import FOREVER, MANAGER

if TYPE_CHECKING:
    from hams_sim.world import World

TRIGGERS: tuple[str, ...] = (
    "Deliver",
    "StateRecord",
    "RecordAck",
    "Durable",
    "Propose",
    "Freeze",
    "FreezeAnswer",
    "Fence",
    "FenceAnswer",
    "SlotQuery",
    "SlotAnswer",
    "StateCopy",
    "LogAppend",
    "LogAck",
    "LogCopy",
    "Completion",
    "NoteReply",
    "Capture",
    "LoadState",
    "TokenAcks",
    "AskCopy",
    "ClientForward",
)


@dataclass(frozen=True)
class Fault:
    """`at` seconds, `kind`, `victim` and `other` by role, for how long, and details. `trigger`: strike before
    the n-th such effect or message.

    `what`: kinds of messages, for `hold` and `lose`. `also`: what follows this fault once it has struck,
    their `at` counted from then.
    """

    at: float
    kind: str
    victim: str = ""
    other: str = ""
    span_s: float = 0.0
    trigger: str = ""
    count: int = 1
    amount: float = 0.0
    way: int = 3
    what: str = ""
    also: tuple["Fault", ...] = ()

    def say(self) -> str:
        """For people and for the history."""
        fields = {
            name: value
            for name, value in asdict(self).items()
            if value not in ("", 0.0, ()) and name not in ("count", "also")
        }
        return " ".join(f"{name}={value}" for name, value in fields.items()) + "".join(
            f" also=({fault.say()})" for fault in self.also
        )


def trigger_type(name: str) -> type:
    """The effect or message type that a trigger waits for."""
    kind = getattr(core_messages, name, None) or getattr(core_effects, name)
    assert isinstance(kind, type)
    return kind


KINDS: tuple[tuple[str, int], ...] = (
    ("kill", 30),
    ("kill-model", 7),
    ("pause", 10),
    ("isolate", 9),
    ("cut", 10),
    ("cut-etcd", 5),
    ("partition", 4),
    ("flap", 3),
    ("lossy", 6),
    ("clog", 3),
    ("reset", 6),
    ("etcd-away", 4),
    ("etcd-unknown", 6),
    ("slow", 4),
    ("slow-records", 4),
    ("slow-watch", 5),
    ("drain", 0),
    ("successors-die", 0),
    ("leases-lost", 0),
    ("deadly", 0),
    ("starvation", 0),
    ("start", 0),
    ("decide", 0),
)
"""What is drawn unless a kind is asked for. Weights stay as they are, or every seed of the corpus means
another history."""

MIXED = "mixed"
KINDS_MIXED: tuple[tuple[str, int], ...] = (
    *((kind, weight) for kind, weight in KINDS if weight),
    ("drain", 14),
    ("pause-late", 14),
    ("isolate-late", 12),
    ("cut-managers", 8),
    ("kill-model-alone", 8),
    ("echo", 10),
    ("slow-etcd", 8),
    ("kill-flushed", 20),
    ("hold", 16),
)
MIXED_KINDS: tuple[str, ...] = tuple(kind for kind, weight in KINDS_MIXED for _ in range(weight))
"""Kinds that `--fault mixed` draws from: those above, and what came later."""

HELD: tuple[str, ...] = (
    "Deliver",
    "TokenAcks",
    "StateRecord",
    "RecordAck",
    "StateCopy",
    "AskCopy",
    "Durable",
    "Freeze",
    "FreezeAnswer",
    "Fence",
    "FenceAnswer",
    "SlotQuery",
    "SlotAnswer",
    "LogAppend",
    "LogAck",
    "LogCopy",
    "Completion",
    "TopologyNews",
    "ProbeAnswer",
    "ClientForward|ClientForwardAnswer",
)
"""What an adversary holds back when nobody says what."""


def draw(rng: Random, count: int, span_s: float, ops: list[str], only: str = "") -> list[Fault]:
    """A schedule of faults."""
    kinds = [kind for kind, weight in KINDS for _ in range(weight)]
    faults: list[Fault] = []
    at = 0.0
    for number in range(count):
        at = (
            rng.uniform(0.02, span_s)
            if number == 0 or rng.random() < 0.5
            else at + rng.choice((0.0, 0.001, 0.01, 0.1, 0.3)) * rng.random()
        )
        faults.append(draw_one(rng, at, only or rng.choice(kinds), ops))
    return sorted(faults, key=lambda item: item.at)


def _victim(rng: Random, ops: list[str]) -> str:
    chance = rng.random()
    if chance < 0.72 and ops:
        return f"{rng.choice(('primary', 'primary', 'primary', 'backup', 'any'))}:{rng.choice(ops)}"
    if chance < 0.9:
        return f"{rng.choice(('primary', 'any'))}:{FRONTEND}"
    return rng.choice(("leader", "any:manager"))


def draw_one(rng: Random, at: float, kind: str, ops: list[str]) -> Fault:
    """One fault of a kind, its victims and details."""
    victim, other = _victim(rng, ops), _victim(rng, ops)
    span = rng.choice((0.03, 0.12, 0.2, 0.5, 1.0, 2.5)) * (0.5 + rng.random())
    trigger = (
        rng.choice(TRIGGERS)
        if kind in ("kill", "pause", "isolate", "kill-flushed") and rng.random() < 0.55
        else ""
    )
    count = rng.choice((1, 1, 1, 2, 3, 6))
    amount = 0.0
    if kind == "lossy":
        amount = rng.choice((0.01, 0.05, 0.15))
    elif kind == "slow":
        amount = rng.choice((5.0, 30.0))
    elif kind == "slow-records":
        amount = rng.choice((0.02, 0.2))
    elif kind == "slow-watch":
        amount = rng.choice((50.0, 300.0))
    elif kind == "etcd-unknown":
        amount = rng.choice((0.3, 0.7))
    elif kind == "slow-etcd":
        amount = rng.choice((10.0, 40.0))
    elif kind == "hold":
        what, amount = rng.choice(HELD), rng.choice((0.01, 0.1, 0.5))
        return Fault(
            at, kind, rng.choice(("", victim)), rng.choice(("", other)), span, amount=amount, what=what
        )
    elif kind == "echo":
        amount = rng.choice((0.05, 0.3))
    if trigger in ("Freeze", "Fence"):
        victim = "leader"
    return Fault(at, kind, victim, other, span, trigger, count, amount, rng.choice((1, 2, 3, 3)))


DANGEROUS = frozenset(
    ("kill", "kill-flushed", "pause", "isolate", "kill-model", "pause-late", "isolate-late", "cut-managers")
)
"""Kinds that may end in the victim's revocation."""


class Faults:
    """Does faults to a world and undoes them. `counts`: how many of each kind struck."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.counts: dict[str, int] = {}
        self.spared = 0
        self._undo: dict[int, Callable[[], None]] = {}
        self._number = 0

    def plan(self, faults: list[Fault]) -> None:
        """Put the schedule on the world's clock."""
        for fault in faults:
            self.world.at(fault.at, self.strike, fault)

    def heal_all(self) -> None:
        """No fault is left, and none waits for its moment."""
        self.world.calm.healed()
        for node in self.world.nodes.values():
            node.trigger = None
        for undo in list(self._undo.values()):
            undo()
        self.world.network.let_all_go()
        self._undo.clear()

    # -- who -------------------------------------------------------------------------------------------------

    def find(self, role: str) -> Node | None:
        """The instance that has a role now."""
        world = self.world
        if role == "leader":
            managers = sorted(
                (node for node in world.living() if node.of == MANAGER), key=lambda node: node.id
            )
            leaders = (node for node in managers if node.machine.leader)  # type: ignore[attr-defined]
            return next(leaders, managers[0] if managers else None)
        kind, _, of = role.partition(":")
        topology = world.etcd.topology
        sets = [
            item
            for item in topology.sets
            if item.name == of or (of == FRONTEND and item.name.startswith("F/"))
        ]
        names: list[str] = []
        if kind == "primary":
            names = [item.primary for item in sets if item.primary is not None]
            names += [slot.instance for slot in topology.table(of).slots if slot.instance is not None]
        elif kind == "backup":
            names = [name for item in sets for name in (*item.in_sync, *item.joining)]
        elif kind == "keeper":
            names = [name for item in sets for name in item.keepers]
        elif kind == "lowest":
            return min(
                (world.nodes[name] for item in sets for name in item.in_sync if world.nodes[name].alive),
                key=_held,
                default=None,
            )
        nodes = [world.nodes[name] for name in names if world.nodes[name].alive]
        if not nodes:
            nodes = [node for node in world.living() if node.of == of]
        return self.rng.choice(nodes) if nodes else None

    # -- strike ----------------------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """The fault's time has come; with a trigger its victim is armed."""
        if self.world.healing:
            return
        if fault.trigger:
            node = self.find(fault.victim)
            if node is not None and node.trigger is None:
                node.trigger = Trigger(
                    trigger_type(fault.trigger), fault.count, lambda: self._do(fault, node)
                )
            return
        self._do(fault, self.find(fault.victim) if fault.victim and not fault.what else None)

    def _note(self, fault: Fault, node: Node | None) -> None:
        self.world.struck_at = self.world.now
        name = fault.kind if not fault.trigger else f"{fault.kind} before {fault.trigger}"
        self.counts[name] = self.counts.get(name, 0) + 1
        if fault.kind != "none":
            for name in _concerns(fault, node):
                self.world.calm.hurt(name, _lasts_s(fault))
        self.world.recorder.lines.append(
            FaultLine(what=fault.say(), i=node.id if node is not None else None, at=self.world.now)
        )

    def later(self, span_s: float, undo: Callable[[], None]) -> None:
        """Undo a fault after a while, or when all faults are healed."""
        self._number += 1
        number = self._number
        self._undo[number] = undo
        self.world.after(span_s, self._undo_one, number)

    def _undo_one(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    def _do(self, fault: Fault, node: Node | None) -> None:
        if self.world.healing:
            return
        kind = fault.kind
        if kind in OF_ONE:
            if node is None or not node.alive:
                return
            if kind in DANGEROUS and not self.world.truth.may_hurt(node):
                self.spared += 1
                return
            self._note(fault, node)
            OF_ONE[kind](self, fault, node)
        else:
            self._note(fault, node)
            OF_WORLD[kind](self, fault, node)
        for other in fault.also:
            if other.at:
                self.world.after(other.at, self.strike, other)
            else:
                self.strike(other)


def _concerns(fault: Fault, node: Node | None) -> tuple[str, ...]:
    """The victims of a fault, as `Calm` names them: its victim, a set between whose members messages are
    missing, or anybody.

    What one operator says to another is nothing that a set could be shrunk for.
    """
    if fault.kind in OF_ONE and node is not None:
        return (node.id,)
    if fault.kind in ("connecting", "slow-exit"):  # as at every start and end: they excuse nothing
        return ()
    if fault.kind in ("hold", "lose") and fault.other.startswith("op:") and fault.victim.startswith("op:"):
        return (fault.other,) if fault.other == fault.victim else ()
    return ("",)


def _lasts_s(fault: Fault) -> float:
    """How long a fault lasts, but for what follows of it."""
    if fault.kind == "flap":
        return FLAPS * FLAP_EVERY_S
    if fault.kind in ("hold", "echo"):
        return fault.span_s + max(fault.amount, limits.echo_s)
    if fault.kind in ("successors-die", "kill-all", "leases-lost"):
        return FOREVER
    return fault.span_s


def _held(node: Node) -> int:
    """How far the state goes that an instance holds."""
    machine = node.machine
    if isinstance(machine, StatefulMachine):
        return machine.version
    return (
        max((shard.last for shard in machine.shards()), default=-1)
        if isinstance(machine, FrontendMachine)
        else -1
    )
