"""What must hold at the end: everything complete and protected (I7), and replies and states agree with the surviving history (I1, I2, I4).

The states are compared by what the *models* hold, not by what the core says of them: every update of a simulated model is in its state.
"""

import re
from typing import TYPE_CHECKING

from hams_protocol.effects import NoteExec, Replied
from hams_protocol.modes import ModePolicy
from hams_protocol.stateful import StatefulMachine
from hams_sim.errors import Broken
from hams_sim.history.report import Violation
from hams_sim.payload import SimPayload, SimState
from hams_wire.history import ExecLine, FinalLine, FinalOperator

if TYPE_CHECKING:
    from hams_sim.world import World


def _sets_wanted(world: "World") -> list[tuple[str, int]]:
    data = world.graph.data
    replicates = ModePolicy.of(data.mode).replicates
    wanted = [(op.name, op.backups if replicates else 0) for op in data.operators if op.stateful]
    return wanted + [(name, data.frontend.replicas - 1 if replicates else 0) for name in world.graph.shard_names]


def served(world: "World") -> bool:
    """Whether nothing is open."""
    return not world.calls_open and len(world.recorder.complete) >= len(world.recorder.logged)


def converged(world: "World") -> bool:
    """Whether nothing is open and everything is protected."""
    if not served(world):
        return False
    topology, nodes = world.etcd.topology, world.nodes
    for name, backups in _sets_wanted(world):
        found = topology.find(name)
        if found.primary is None or found.lost or len(found.in_sync) < backups:
            return False
        if not all(nodes[member].alive for member in found.members):
            return False
        machine = nodes[found.primary].machine
        if isinstance(machine, StatefulMachine) and (machine.primary is None or machine.primary.loading):
            return False
    for op in world.graph.data.operators:
        if not op.stateful:
            slots = topology.table(op.name).slots
            if not slots or any(slot.instance is None or not nodes[slot.instance].alive for slot in slots):
                return False
    return True


def what_is_open(world: "World") -> str:
    """Why it has not converged, for people."""
    found: list[str] = []
    waiting = sorted({client.name for client in world.clients.values() if not client.done}, key=lambda name: int(name[1:]))
    if waiting:
        found.append(f"{len(waiting)} calls without answer: {' '.join(waiting[:8])}")
    open_requests = sorted(str(item) for item in world.recorder.logged if item not in world.recorder.complete)
    if open_requests:
        found.append(f"{len(open_requests)} requests not complete: {' '.join(open_requests[:8])}")
    topology, nodes = world.etcd.topology, world.nodes
    for name, backups in _sets_wanted(world):
        item = topology.find(name)
        dead = [member for member in item.members if not nodes[member].alive]
        if item.primary is None or item.lost or len(item.in_sync) < backups or dead:
            found.append(
                f"{name}: epoch {item.epoch}, primary {item.primary}, in sync {list(item.in_sync)} of {backups}, "
                f"joining {list(item.joining)}, dead {dead}{', lost' if item.lost else ''}"
            )
    for op in world.graph.data.operators:
        for number, slot in enumerate(topology.table(op.name).slots):
            if slot.instance is None or not nodes[slot.instance].alive:
                found.append(f"slot {number} of {op.name}: {slot.instance} {'dead' if slot.instance else ''}")
    found.append(f"generation {topology.generation}, revoked {list(topology.revoked)[-6:]}")
    return "; ".join(found)


def _surviving(world: "World", op: str) -> list[NoteExec]:
    """The surviving history of a stateful operator, in order."""
    topology = world.etcd.topology.find(op)
    execs = world.recorder.execs.get(op, {})
    ends = world.etcd.ends.get(op, {})
    found: dict[int, NoteExec] = {}
    start = 0
    for epoch in range(1, topology.epoch + 1):
        end = ends.get(epoch) if epoch < topology.epoch else None
        for seq in [seq for seq in found if epoch > 1 and seq > start]:
            del found[seq]
        for (of, seq), note in execs.items():
            if of == epoch and seq > start and (end is None or seq <= end):
                found[seq] = note
        start = end if end is not None else start
    return [found[seq] for seq in sorted(found)]


def compare_states(world: "World") -> None:
    """Every primary's model holds exactly the surviving history; every in-sync backup holds the same state; every reply stems from it."""
    nonces: dict[str, set[tuple[object, int]]] = {}
    for op in world.graph.data.operators:
        if not op.stateful or op.name in world.lost:
            continue
        found = world.etcd.topology.find(op.name)
        assert found.primary is not None
        node = world.nodes[found.primary]
        assert node.model is not None
        state = node.model.state
        assert state is not None
        _compare_history(world, op.name, state)
        nonces[op.name] = {(unit, nonce) for unit, nonce in state.history()}
        machine = node.machine
        assert isinstance(machine, StatefulMachine)
        for peer in found.in_sync:
            backup = world.nodes[peer].machine
            assert isinstance(backup, StatefulMachine)
            newest = backup.store.newest
            held = newest.state if newest is not None else None
            if not isinstance(held, SimState) or held.digest != state.digest:
                raise Broken(
                    "I1", f"{peer}, in sync, holds another state of {op.name} than {node.id} (version {backup.version}, not {machine.version})"
                )
    for client in dict.fromkeys(world.clients.values()):
        if isinstance(client.outcome, Replied) and client.outcome.error is None:
            _compare_reply(world, client.name, client.outcome, nonces)
        elif isinstance(client.outcome, Replied):
            _judge_error(world, client.name, client.outcome)


def _compare_history(world: "World", op: str, state: SimState) -> None:
    notes = _surviving(world, op)
    units = [note.unit for note in notes]
    if len(set(units)) < len(units):
        twice = next(unit for unit in units if units.count(unit) > 1)
        raise Broken("I4", f"{twice} is twice in the surviving history of {op}")
    held = [unit for unit, _ in state.history()]
    position = {unit: number for number, unit in enumerate(units)}
    last = -1
    for unit in held:
        at = position.get(unit, -1)
        if at <= last:
            raise Broken("I1", f"the model of {op} holds {unit} {'twice or out of order' if at >= 0 else 'which is not in the surviving history'}")
        last = at
    missing = set(units) - set(held)
    for note in notes:
        if note.unit in missing and note.out is not None and note.unit.request not in world.errored and (op, note.unit) not in world.unwritten:
            raise Broken("I1", f"the model of {op} lacks {note.unit}, seq {note.seq} of epoch {note.epoch}, which is in the surviving history")


def _compare_reply(world: "World", client: str, outcome: Replied, nonces: dict[str, set[tuple[object, int]]]) -> None:
    seen: dict[tuple[str, object], int] = {}
    for token in outcome.tokens:
        payload = token.payload
        if not isinstance(payload, SimPayload):
            continue
        for item in payload.ancestry():
            if not item.op:
                continue
            if seen.setdefault((item.op, item.unit), item.nonce) != item.nonce:
                raise Broken("I2", f"{client} got a reply that mixes two values of {item.op} for {item.unit}")
            of = nonces.get(item.op)
            if of is not None and (item.unit, item.nonce) not in of and (item.op, item.unit) not in world.unwritten:
                raise Broken("I1", f"{client} got a reply that stems from {item.op}'s execution of {item.unit}, which its state does not have")


def _judge_error(world: "World", client: str, outcome: Replied) -> None:
    """No request is refused for two executions of a fan-out unless one was lost with all who had received of it."""
    error = outcome.error
    if error is not None and error.message.startswith(("two values of", "two executions of")) and str(outcome.request) not in world.torn:
        raise Broken("I2", f"{client} got an error, though no owner of {error.op} was lost with every receiver: {error.message}")


def not_to_and_fro(world: "World", epochs: int) -> None:
    """A set is handed on a few times at most."""
    for found in world.etcd.topology.sets:
        if found.epoch > epochs:
            raise Broken("I7", f"{found.name} was handed to and fro, and is in epoch {found.epoch}")


def nothing_twice(world: "World") -> None:
    """A planned handoff executes nothing again (section 7)."""
    seen: set[tuple[object, ...]] = set()
    for line in world.recorder.lines:
        if isinstance(line, ExecLine):
            unit = (line.op, line.req, *line.lane)
            if unit in seen:
                raise Broken("I4", f"{line.i} executes {line.req} in {line.op} again, though everybody left gracefully")
            seen.add(unit)


def is_promised(world: "World", violation: Violation) -> bool:
    """Whether the protocol promises what a violation breaks: not one value of a fan-out whose owner was lost with every receiver
    (section 4), nor durable replies in a mode that does not wait for them.
    """
    if violation.invariant == "I3" and not ModePolicy.of(world.graph.data.mode).waits_for_durable:
        return False
    if violation.invariant not in ("I2", "I4"):
        return True
    found = re.search(r"\b(\d+/\d+)\b", violation.message)
    return found is None or found.group(1) not in world.torn


def final_line(world: "World") -> FinalLine:
    """The history's last line."""
    ops: dict[str, FinalOperator] = {}
    for op in world.graph.data.operators:
        if op.stateful:
            found = world.etcd.topology.find(op.name)
            machine = world.nodes[found.primary].machine if found.primary is not None else None
            version = machine.version if isinstance(machine, StatefulMachine) else None
            ops[op.name] = FinalOperator(primary=found.primary, epoch=found.epoch, insync=found.in_sync, version=version)
    return FinalLine(ops=ops, open=())
