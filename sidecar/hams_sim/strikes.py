"""What each kind of fault does to the world when it strikes.

One function per kind, and two tables: `OF_ONE` for the kinds that have a victim, `OF_WORLD` for the others. A
fault that lasts a while leaves what undoes it with `Faults.later`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hams_protocol.topology import allow_restart
from hams_sim import limits
from hams_sim.adversary import Chosen, Rule, kinds_of
from hams_sim.errors import Broken
from hams_sim.network import Link
from hams_sim.node import Node
from hams_wire.shell import MANAGER

if TYPE_CHECKING:
    from hams_sim.faults import Fault, Faults
    from hams_sim.world import World

FLAPS = 6
FLAP_EVERY_S = 0.2
"""A flapping link breaks so many times, so far apart."""


# -- one victim ----------------------------------------------------------------------------------------------


def _kill(faults: "Faults", fault: "Fault", node: Node) -> None:
    faults.world.lives.kill(node, "fault", restart=True)


def _kill_flushed(faults: "Faults", fault: "Fault", node: Node) -> None:
    faults.world.lives.kill(node, "fault", restart=True, flushed=True)


def _kill_all(faults: "Faults", fault: "Fault", node: Node) -> None:
    for member in [member for member in faults.world.nodes.values() if member.of == node.of]:
        _kill(faults, fault, member)


def _kill_model(faults: "Faults", fault: "Fault", node: Node) -> None:
    if node.model is not None:
        node.model.kill()


def _kill_model_alone(faults: "Faults", fault: "Fault", node: Node) -> None:
    if node.sound:
        _kill_model(faults, fault, node)


def _pause(faults: "Faults", fault: "Fault", node: Node) -> None:
    faults.world.lives.pause(node)
    faults.later(fault.span_s, lambda: faults.world.lives.resume(node))


def _pause_all(faults: "Faults", fault: "Fault", node: Node) -> None:
    for member in [member for member in faults.world.living() if member.of == node.of]:
        _pause(faults, fault, member)


def _pause_late(faults: "Faults", fault: "Fault", node: Node) -> None:
    faults.world.lives.pause(node)
    faults.later(fault.span_s, lambda: faults.world.lives.resume(node, _late(faults)))


def _isolate(faults: "Faults", fault: "Fault", node: Node, late: bool = False) -> None:
    """The host is cut off: no reset, only silence. `way` 1: nothing leaves, 2: nothing arrives, 3: both."""
    world, way = faults.world, fault.way
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
        _cut_link(world, link, stalls=True)
    world.lives.cut_etcd(node)

    def heal() -> None:
        node.host_cut = 0
        for link in {id(item): item for item in (*node.links.values(), *node.links_in.values())}.values():
            if link.cut and ((link.sender is node and way & 1) or (link.receiver is node and way & 2)):
                world.network.heal(link)
        world.after(_late(faults) if late else 0.0, world.lives.heal_etcd, node)

    faults.later(fault.span_s, heal)


def _isolate_late(faults: "Faults", fault: "Fault", node: Node) -> None:
    _isolate(faults, fault, node, late=True)


def _apart(faults: "Faults", fault: "Fault", node: Node) -> None:
    """A machine is cut off, with a manager and a member of every set that has others."""
    world, topology = faults.world, faults.world.etcd.topology
    side = {node.id: node}
    for item in topology.sets:
        members = [name for name in (item.primary, *item.in_sync) if name is not None]
        if len(members) > 1:
            name = faults.rng.choice(members)
            side[name] = world.nodes[name]
    _cut_off(faults, fault, side)


def _apart_alone(faults: "Faults", fault: "Fault", node: Node) -> None:
    """A machine is cut off, with a manager and nobody else."""
    _cut_off(faults, fault, {node.id: node})


def _cut_off(faults: "Faults", fault: "Fault", side: dict[str, Node]) -> None:
    """These reach neither others nor etcd. They reach etcd again before their connections to others stand.
    Whoever begins meanwhile does so on another machine."""
    world = faults.world
    echo_s = faults.rng.uniform(0.3, 1.2)
    links: list[Link] = []
    for inside in side.values():
        world.calm.hurt(inside.id, fault.span_s + echo_s)
        for outside in world.living():
            if outside.id not in side:
                links += _both(world, inside, outside)
        world.lives.cut_etcd(inside)
    world.calm.apart.update(name for name, inside in side.items() if inside.of == MANAGER)
    for link in links:
        _cut_link(world, link, stalls=True)
    world.network.apart = frozenset(side)

    def reach_etcd() -> None:
        for inside in side.values():
            world.lives.heal_etcd(inside)

    def heal() -> None:
        world.network.apart = frozenset()
        for inside in side.values():
            for link in (*inside.links.values(), *inside.links_in.values()):
                if link.cut:
                    world.network.heal(link)

    faults.later(fault.span_s, reach_etcd)
    faults.later(fault.span_s + echo_s, heal)


def _cut_managers(faults: "Faults", fault: "Fault", node: Node) -> None:
    """No manager and no etcd is within reach, all peers are: it may be revoked and go on for a while."""
    _deaf_to_managers(faults, fault, node)
    _cut_etcd(faults, fault, node)


def _deaf_to_managers(faults: "Faults", fault: "Fault", node: Node) -> None:
    world = faults.world
    managers = [other for other in world.living() if other.of == MANAGER and other is not node]
    links = [link for manager in managers for link in _both(world, node, manager)]
    _cut_for(faults, links, fault.span_s)


def _cut_etcd(faults: "Faults", fault: "Fault", node: Node) -> None:
    faults.world.lives.cut_etcd(node)
    faults.later(fault.span_s, lambda: faults.world.lives.heal_etcd(node))


def _drain(faults: "Faults", fault: "Fault", node: Node) -> None:
    faults.world.lives.drain(node)


def _slow(faults: "Faults", fault: "Fault", node: Node) -> None:
    _set_for(faults, fault, node, 1.0, "slow", "slow_net")


def _slow_watch(faults: "Faults", fault: "Fault", node: Node) -> None:
    _set_for(faults, fault, node, 1.0, "watch_slow")


def _nothing(faults: "Faults", fault: "Fault", node: Node) -> None:
    """For what the fault brings with it (`also`)."""


# -- the world -----------------------------------------------------------------------------------------------


def _two(faults: "Faults", fault: "Fault", node: Node | None) -> list[Link]:
    """The links between the victim and the other one, there and back; none unless both live."""
    other = faults.find(fault.other)
    if node is None or other is None or other is node or not (node.alive and other.alive):
        return []
    return list(_both(faults.world, node, other))


def _reset(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    links, world = _two(faults, fault, node), faults.world
    if not links:
        return
    there, back = links
    world.network.give_up(there)
    world.after(0.001, world.watching.peer_down, there.sender, back.sender.id, False)
    world.after(0.001, world.watching.peer_down, back.sender, there.sender.id, False)
    faults.later(0.01 + 0.1 * faults.rng.random(), lambda: world.network.mend(there))


def _cut(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    if links := _two(faults, fault, node):
        chosen = [link for number, link in enumerate(links) if fault.way & (1 << number)]
        _cut_for(faults, chosen, fault.span_s)


def _stall(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    if links := _two(faults, fault, node):
        _cut_for(faults, links, fault.span_s, stalls=True)


def _flap(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    if links := _two(faults, fault, node):
        _flap_again(faults, links, FLAPS)


def _flap_again(faults: "Faults", links: list[Link], times: int) -> None:
    if faults.world.healing:
        return
    _cut_for(faults, links, 0.1)
    if times > 1:
        faults.world.after(FLAP_EVERY_S, _flap_again, faults, links, times - 1)


def _partition(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    living = faults.world.living()
    side = {item.id for item in living if faults.rng.random() < 0.5}
    links = [
        faults.world.network.link(a, b)
        for a in living
        for b in living
        if (a.id in side) != (b.id in side) and (fault.way & 1 or a.id in side)
    ]
    _cut_for(faults, links, fault.span_s)
    if fault.way == 2:
        for item in living:
            if item.id in side:
                _cut_etcd(faults, fault, item)


def _clog(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    living = faults.world.living()
    for a in living:
        for b in living:
            if a is not b and faults.rng.random() < 0.5:
                link = faults.world.network.link(a, b)
                _cut_for(faults, [link], fault.span_s * faults.rng.random() * 0.4)


def _lossy(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    network = faults.world.network
    _set_for(faults, fault, network, 0.0, "loss", "repeat", "reorder", "extra")
    network.reorder, network.extra = fault.amount * 2, 0.05


def _echo(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    _set_for(faults, fault, faults.world.network, 0.0, "echo")


def _connecting(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    _set_for(faults, fault, faults.world.network, 0.0, "connect_s")


def _slow_exit(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    _set_for(faults, fault, faults.world.lives, 0.0, "exit_s")


def _deadly(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    faults.world.deadly = True
    _set_for(faults, fault, faults.world.network, 0.0, "mute")


def _slow_records(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    faults.world.network.slow_of = "" if ":" in fault.other else fault.other
    _set_for(faults, fault, faults.world.network, 0.0, "slow_records")


def _etcd_away(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    world = faults.world
    world.etcd.away += 1

    def back() -> None:
        world.etcd.away -= 1
        if not world.etcd.away:
            for member in world.living():
                world.etcd.resync(member)

    faults.later(fault.span_s, back)


def _etcd_unknown(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    _set_for(faults, fault, faults.world.etcd, 0.0, "lose_request", "lose_reply")


def _slow_etcd(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    _set_for(faults, fault, faults.world.etcd, 1.0, "slow")


def _rule(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    """Messages of some kinds are held back, or lost."""
    rules = faults.world.network.adversary.rules
    delay_s = fault.amount if fault.kind == "hold" else -1.0
    sender, receiver = _chosen(faults, fault.victim), _chosen(faults, fault.other)
    rule = Rule(kinds_of(fault.what), sender, receiver, delay_s, replaced=fault.kind == "lose-replaced")
    rules.append(rule)
    faults.later(fault.span_s, lambda: rules.remove(rule))


def _chosen(faults: "Faults", role: str) -> Chosen:
    """`op:x`: all instances of x; any other role: its holder now; all instances if there is none."""
    kind, _, of = role.partition(":")
    if not role:
        return lambda node: True
    if kind == "op":
        return lambda node: node.of == of
    holder = faults.find(role)
    return lambda node: node is holder


def _leases_lost(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    """etcd forgets every registration; each shell sees its own go, and registers again. That is no reason to
    move a role."""
    world = faults.world
    before, epochs = world.etcd.writes, {item.name: item.epoch for item in world.etcd.topology.sets}
    living = list(world.living())
    for member in living:
        world.etcd.drop(member.id)
        world.after(0.01 + 0.3 * faults.rng.random(), world.etcd.register, member)

    def judge() -> None:
        missing = [item.id for item in living if item.alive and item.id not in world.etcd.members]
        if missing:
            raise Broken("I7", f"{', '.join(missing)} did not register again")
        moved = [
            item.name for item in world.etcd.topology.sets if item.epoch != epochs.get(item.name, item.epoch)
        ]
        if moved:
            raise Broken("I7", f"{', '.join(moved)} failed over though only leases were lost")
        writes = world.etcd.writes - before
        if writes > limits.etcd_writes_per_instance_max * len(living):
            raise Broken("I6", f"{writes} writes to etcd for {len(living)} lost leases")

    world.after(limits.leases_back_s, judge)


def _successors_die(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    faults.world.truth.successors_die = True


def _decide(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    """A person says that a state may begin again, if it is lost."""
    leader, etcd = faults.find("leader"), faults.world.etcd
    changed = allow_restart(etcd.topology, fault.what)
    if leader is not None and changed is not None:
        etcd.committed(leader, changed)


def _start(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    faults.world.spawn(fault.what)


def _starvation(faults: "Faults", fault: "Fault", node: Node | None) -> None:
    """Everybody waits for CPU again and again, mostly for a moment, now and then for seconds: the machine has
    far too few cores."""
    until_s = faults.world.now + fault.span_s
    for member in faults.world.living():
        _starve(faults, member, until_s)


def _starve(faults: "Faults", node: Node, until_s: float) -> None:
    """An instance has run for a moment and waits; one that is started meanwhile finds the same machine."""
    world = faults.world
    if world.healing or world.now >= until_s or not node.alive:
        return
    world.lives.pause(node)
    wait_s = limits.starved_wait_s * faults.rng.paretovariate(limits.starved_tail)
    faults.later(min(wait_s, limits.starved_wait_max_s), lambda: _run_a_while(faults, node, until_s))


def _run_a_while(faults: "Faults", node: Node, until_s: float) -> None:
    faults.world.lives.resume(node)
    if node.alive:
        run_s = limits.starved_run_s * (0.5 + faults.rng.random())
        faults.world.after(run_s, _starve, faults, node, until_s)


# -- what several of them do ---------------------------------------------------------------------------------


def _late(faults: "Faults") -> float:
    """How long after everything else etcd's watch comes back: peers hear from an instance that does not know
    yet what it has missed."""
    return 0.0 if faults.world.healing else 0.3 * faults.rng.random()


def _both(world: "World", a: Node, b: Node) -> tuple[Link, Link]:
    return world.network.link(a, b), world.network.link(b, a)


def _cut_link(world: "World", link: Link, stalls: bool) -> None:
    world.network.cut(link, stalls)
    world.watching.fell_silent(link)


def _cut_for(faults: "Faults", links: list[Link], span_s: float, stalls: bool | None = None) -> None:
    if stalls is None:
        stalls = faults.rng.random() < 0.6
    for link in links:
        _cut_link(faults.world, link, stalls)

    def heal() -> None:
        for link in links:
            faults.world.network.heal(link)

    faults.later(span_s, heal)


def _set_for(faults: "Faults", fault: "Fault", target: object, usual: float, *names: str) -> None:
    """These attributes of a part of the world have the fault's amount until its span is over."""
    for name in names:
        assert hasattr(target, name), name
        setattr(target, name, fault.amount)

    def undo() -> None:
        for name in names:
            setattr(target, name, usual)

    faults.later(fault.span_s, undo)


OF_ONE: dict[str, Callable[["Faults", "Fault", Node], None]] = {
    "kill": _kill,
    "kill-flushed": _kill_flushed,
    "kill-all": _kill_all,
    "kill-last": _kill,
    "kill-model": _kill_model,
    "kill-model-alone": _kill_model_alone,
    "pause": _pause,
    "pause-last": _pause,
    "pause-all": _pause_all,
    "pause-late": _pause_late,
    "isolate": _isolate,
    "isolate-last": _isolate,
    "isolate-late": _isolate_late,
    "apart": _apart,
    "apart-alone": _apart_alone,
    "cut-managers": _cut_managers,
    "deaf-to-managers": _deaf_to_managers,
    "cut-etcd": _cut_etcd,
    "drain": _drain,
    "slow": _slow,
    "slow-watch": _slow_watch,
    "none": _nothing,
}
"""Kinds that have a victim."""

OF_WORLD: dict[str, Callable[["Faults", "Fault", Node | None], None]] = {
    "cut": _cut,
    "stall": _stall,
    "flap": _flap,
    "reset": _reset,
    "partition": _partition,
    "lossy": _lossy,
    "clog": _clog,
    "etcd-away": _etcd_away,
    "etcd-unknown": _etcd_unknown,
    "hold": _rule,
    "lose": _rule,
    "lose-replaced": _rule,
    "leases-lost": _leases_lost,
    "successors-die": _successors_die,
    "deadly": _deadly,
    "decide": _decide,
    "start": _start,
    "starvation": _starvation,
    "echo": _echo,
    "connecting": _connecting,
    "slow-exit": _slow_exit,
    "slow-etcd": _slow_etcd,
    "slow-records": _slow_records,
}
"""All other kinds."""
