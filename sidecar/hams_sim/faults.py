"""Faults: what is drawn from the seed, and how each one is done to the world.

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
from hams_protocol.topology import allow_restart
from hams_sim import limits
from hams_sim.adversary import Chosen, Rule, kinds_of
from hams_sim.errors import Broken
from hams_sim.network import Link
from hams_sim.node import FOREVER, MANAGER, Node, Trigger

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
"""The same, and what came later: `--fault mixed`."""

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
FLAPS = 6
FLAP_EVERY_S = 0.2
"""A flapping link breaks so many times, so far apart."""
BEYOND = frozenset(("isolate-last", "pause-last", "kill-all"))
"""Kinds that spare nobody: what follows is more than is tolerated, or lasts only a while."""
OF_ONE = (
    DANGEROUS
    | BEYOND
    | {"cut-etcd", "drain", "slow", "slow-watch", "kill-model-alone", "deaf-to-managers", "none"}
)
"""Kinds that have a victim."""


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
            return next((node for node in managers if node.machine.leader), managers[0] if managers else None)  # type: ignore[attr-defined]
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

    def _later(self, span_s: float, undo: Callable[[], None]) -> None:
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
            self._hurt(kind, fault, node)
        else:
            self._note(fault, node)
            self._hurt_world(kind, fault, node)
        for other in fault.also:
            if other.at:
                self.world.after(other.at, self.strike, other)
            else:
                self.strike(other)

    def _hurt(self, kind: str, fault: Fault, node: Node) -> None:
        world = self.world
        if kind == "kill":
            world.lives.kill(node, "fault", restart=True)
        elif kind == "kill-flushed":
            world.lives.kill(node, "fault", restart=True, flushed=True)
        elif kind == "kill-all":
            for member in [member for member in world.nodes.values() if member.of == node.of]:
                world.lives.kill(member, "fault", restart=True)
        elif kind == "kill-model":
            if node.model is not None:
                node.model.kill()
        elif kind in ("pause", "pause-last"):
            world.lives.pause(node)
            self._later(fault.span_s, lambda: world.lives.resume(node))
        elif kind == "pause-late":
            world.lives.pause(node)
            self._later(fault.span_s, lambda: world.lives.resume(node, self._late()))
        elif kind in ("isolate", "isolate-late"):
            self._isolate(node, fault.way, fault.span_s, late=kind == "isolate-late")
        elif kind == "isolate-last":
            self._isolate(node, fault.way, fault.span_s, late=False)
        elif kind == "cut-managers":
            self._cut_managers(node, fault.span_s)
            self._etcd_for(node, fault.span_s)
        elif kind == "deaf-to-managers":
            self._cut_managers(node, fault.span_s)
        elif kind == "kill-model-alone":
            if node.model is not None and node.sound:
                node.model.kill()
        elif kind == "cut-etcd":
            world.lives.cut_etcd(node)
            self._later(fault.span_s, lambda: world.lives.heal_etcd(node))
        elif kind == "drain":
            world.lives.drain(node)
        elif kind == "slow":
            node.slow = node.slow_net = fault.amount
            self._later(fault.span_s, lambda: _set(node, 1.0))
        elif kind == "slow-watch":
            node.watch_slow = fault.amount
            self._later(fault.span_s, lambda: _watch(node, 1.0))

    def _decide(self, name: str) -> None:
        """A person says that a state may begin again, if it is lost."""
        leader, etcd = self.find("leader"), self.world.etcd
        changed = allow_restart(etcd.topology, name)
        if leader is not None and changed is not None:
            etcd.commit(leader, changed)

    def _starve(self, until_s: float) -> None:
        """Everybody waits for CPU again and again, mostly for a moment, now and then for seconds, until then:
        the machine has far too few cores."""
        for node in self.world.living():
            self._starve_one(node, until_s)

    def _starve_one(self, node: Node, until_s: float) -> None:
        """It has run for a moment and waits; who is started meanwhile finds the same machine."""
        world = self.world
        if world.healing or world.now >= until_s or not node.alive:
            return
        world.lives.pause(node)
        wait_s = limits.starved_wait_s * self.rng.paretovariate(limits.starved_tail)
        self._later(min(wait_s, limits.starved_wait_max_s), lambda: self._run_a_while(node, until_s))

    def _run_a_while(self, node: Node, until_s: float) -> None:
        self.world.lives.resume(node)
        if node.alive:
            run_s = limits.starved_run_s * (0.5 + self.rng.random())
            self.world.after(run_s, self._starve_one, node, until_s)

    def _lose_leases(self) -> None:
        """etcd forgets every registration; each shell sees its own go, and registers again. That is no reason
        to move a role."""
        world = self.world
        before, epochs = world.etcd.writes, {item.name: item.epoch for item in world.etcd.topology.sets}
        living = list(world.living())
        for node in living:
            world.etcd.drop(node.id)
            world.after(0.01 + 0.3 * self.rng.random(), world.etcd.register, node)

        def judge() -> None:
            missing = [node.id for node in living if node.alive and node.id not in world.etcd.members]
            if missing:
                raise Broken("I7", f"{', '.join(missing)} did not register again")
            moved = [
                item.name
                for item in world.etcd.topology.sets
                if item.epoch != epochs.get(item.name, item.epoch)
            ]
            if moved:
                raise Broken("I7", f"{', '.join(moved)} failed over though only leases were lost")
            if world.etcd.writes - before > limits.etcd_writes_per_instance_max * len(living):
                raise Broken(
                    "I6", f"{world.etcd.writes - before} writes to etcd for {len(living)} lost leases"
                )

        world.after(limits.leases_back_s, judge)

    def _late(self) -> float:
        """How long after everything else etcd's watch comes back: peers hear from an instance that does not
        know yet what it has missed."""
        return 0.0 if self.world.healing else 0.3 * self.rng.random()

    def _cut_managers(self, node: Node, span_s: float) -> None:
        """No manager is within reach, all peers are; without etcd it may be revoked and go on for a while."""
        links = [
            link for other in self.world.living() if other.of == MANAGER for link in self._both(node, other)
        ]
        self._cut_for(links, span_s)

    def _both(self, a: Node, b: Node) -> tuple[Link, Link]:
        return self.world.network.link(a, b), self.world.network.link(b, a)

    def _isolate(self, node: Node, way: int, span_s: float, late: bool) -> None:
        """The host is cut off: no reset, only silence. `way` 1: nothing leaves, 2: nothing arrives, 3:
        both."""
        world = self.world
        links: list[Link] = []
        for other in world.living():
            if other is node:
                continue
            if way & 1:
                links.append(world.network.link(node, other))
            if way & 2:
                links.append(world.network.link(other, node))
        node.host_cut = way
        for link in links:
            self._cut(link, stalls=True)
        world.lives.cut_etcd(node)

        def heal() -> None:
            node.host_cut = 0
            for link in {id(item): item for item in (*node.links.values(), *node.links_in.values())}.values():
                if link.cut and ((link.sender is node and way & 1) or (link.receiver is node and way & 2)):
                    world.network.heal(link)
            world.after(self._late() if late else 0.0, world.lives.heal_etcd, node)

        self._later(span_s, heal)

    def _cut(self, link: Link, stalls: bool) -> None:
        self.world.network.cut(link, stalls)
        self.world.watching.watch_silence(link)

    def _hurt_world(self, kind: str, fault: Fault, node: Node | None) -> None:
        world, network = self.world, self.world.network
        if kind in ("cut", "flap", "reset"):
            other = self.find(fault.other)
            if node is None or other is None or other is node or not (node.alive and other.alive):
                return
            links = [network.link(node, other), network.link(other, node)]
            if kind == "reset":
                network.give_up(links[0])
                world.after(0.001, world.watching.peer_down, node, other.id, False)
                world.after(0.001, world.watching.peer_down, other, node.id, False)
                self._later(0.01 + 0.1 * self.rng.random(), lambda: network.mend(links[0]))
            elif kind == "cut":
                self._cut_for(
                    [link for number, link in enumerate(links) if fault.way & (1 << number)], fault.span_s
                )
            else:
                self._flap(links, FLAPS)
        elif kind == "partition":
            living = world.living()
            side = {item.id for item in living if self.rng.random() < 0.5}
            links = [
                network.link(a, b)
                for a in living
                for b in living
                if (a.id in side) != (b.id in side) and (fault.way & 1 or a.id in side)
            ]
            self._cut_for(links, fault.span_s)
            if fault.way == 2:
                for item in living:
                    if item.id in side:
                        self._etcd_for(item, fault.span_s)
        elif kind == "lossy":
            network.loss, network.repeat, network.reorder, network.extra = (
                fault.amount,
                fault.amount,
                fault.amount * 2,
                0.05,
            )
            self._later(fault.span_s, lambda: _calm(world))
        elif kind == "clog":
            living = world.living()
            for a in living:
                for b in living:
                    if a is not b and self.rng.random() < 0.5:
                        self._cut_for([network.link(a, b)], fault.span_s * self.rng.random() * 0.4)
        elif kind == "etcd-away":
            world.etcd.away += 1
            self._later(fault.span_s, lambda: _etcd_back(world))
        elif kind == "etcd-unknown":
            world.etcd.lose_request = world.etcd.lose_reply = fault.amount
            self._later(fault.span_s, lambda: _etcd_calm(world))
        elif kind in ("hold", "lose", "lose-replaced"):
            self._rule(kind, fault)
        elif kind == "leases-lost":
            self._lose_leases()
        elif kind == "successors-die":
            world.truth.successors_die = True
        elif kind == "deadly":
            world.deadly = True
            network.mute = fault.amount
            self._later(fault.span_s, lambda: _heard(world))
        elif kind == "decide":
            self._decide(fault.what)
        elif kind == "start":
            self.world.spawn(fault.what)
        elif kind == "starvation":
            self._starve(self.world.now + fault.span_s)
        elif kind == "echo":
            network.echo = fault.amount
            self._later(fault.span_s, lambda: _no_echo(world))
        elif kind == "slow-etcd":
            world.etcd.slow = fault.amount
            self._later(fault.span_s, lambda: _etcd_prompt(world))
        elif kind == "slow-records":
            network.slow_records, network.slow_of = fault.amount, "" if ":" in fault.other else fault.other
            self._later(fault.span_s, lambda: _records(world))

    def _rule(self, kind: str, fault: Fault) -> None:
        rules = self.world.network.adversary.rules
        delay_s = fault.amount if kind == "hold" else -1.0
        sender, receiver = self._chosen(fault.victim), self._chosen(fault.other)
        rule = Rule(kinds_of(fault.what), sender, receiver, delay_s, replaced=kind == "lose-replaced")
        rules.append(rule)
        self._later(fault.span_s, lambda: rules.remove(rule))

    def _chosen(self, role: str) -> Chosen:
        """`op:x`: all instances of x; any other role: who has it now; everybody if there is none."""
        kind, _, of = role.partition(":")
        if not role:
            return lambda node: True
        if kind == "op":
            return lambda node: node.of == of
        holder = self.find(role)
        return lambda node: node is holder

    def _etcd_for(self, node: Node, span_s: float) -> None:
        self.world.lives.cut_etcd(node)
        self._later(span_s, lambda: self.world.lives.heal_etcd(node))

    def _cut_for(self, links: list[Link], span_s: float) -> None:
        stalls = self.rng.random() < 0.6
        for link in links:
            self._cut(link, stalls)

        def heal() -> None:
            for link in links:
                self.world.network.heal(link)

        self._later(span_s, heal)

    def _flap(self, links: list[Link], times: int) -> None:
        if self.world.healing:
            return
        self._cut_for(links, 0.1)
        if times > 1:
            self.world.after(FLAP_EVERY_S, self._flap, links, times - 1)


def _concerns(fault: Fault, node: Node | None) -> tuple[str, ...]:
    """Whom a fault hurts, as `Calm` names them: its victim, a set between whose members messages are missing,
    or anybody.

    What one operator says to another is nothing that a set could be shrunk for.
    """
    if fault.kind in OF_ONE and node is not None:
        return (node.id,)
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


def _set(node: Node, value: float) -> None:
    node.slow = node.slow_net = value


def _watch(node: Node, value: float) -> None:
    node.watch_slow = value


def _calm(world: "World") -> None:
    network = world.network
    network.loss = network.repeat = network.reorder = network.extra = 0.0


def _no_echo(world: "World") -> None:
    world.network.echo = 0.0


def _heard(world: "World") -> None:
    world.network.mute = 0.0


def _etcd_prompt(world: "World") -> None:
    world.etcd.slow = 1.0


def _records(world: "World") -> None:
    world.network.slow_records = 0.0


def _etcd_back(world: "World") -> None:
    world.etcd.away -= 1
    if not world.etcd.away:
        for node in world.living():
            world.etcd.resync(node)


def _etcd_calm(world: "World") -> None:
    world.etcd.lose_request = world.etcd.lose_reply = 0.0
