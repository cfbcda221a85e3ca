"""What must hold at the end: everything complete and protected (I7), and replies and states agree with the
surviving history (I1, I2, I4).

The states are compared by what the *models* hold, not by what the core says of them: every update of a
simulated model is in its state.
"""

import re
from typing import TYPE_CHECKING

from hams_history.lines import ExecLine, FinalLine, FinalOperator
from hams_history.report import Violation
from hams_protocol.effects import Replied
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.modes import ModePolicy
from hams_protocol.stateful import StatefulMachine
from hams_sim.clients import Client
from hams_sim.errors import Broken
from hams_sim.payload import SimPayload, SimState

if TYPE_CHECKING:
    from hams_sim.world import World


def _sets_wanted(world: "World") -> list[tuple[str, int]]:
    data = world.graph.data
    replicates = ModePolicy.of(data.mode).replicates
    wanted = [(op.name, op.backups if replicates else 0) for op in data.operators if op.stateful]
    return wanted + [
        (name, data.frontend.replicas - 1 if replicates else 0) for name in world.graph.shard_names
    ]


def served(world: "World") -> bool:
    """Whether nothing is open."""
    return not world.calls_open and not open_requests(world)


def open_requests(world: "World") -> list[RequestId]:
    """Requests that are logged and not complete; what stood in a log that was lost, nobody completes."""
    if len(world.recorder.complete) >= len(world.recorder.logged):
        return []
    return [
        item
        for item in world.recorder.logged
        if item not in world.recorder.complete and not world.losses.has_lost(item)
    ]


def converged(world: "World") -> bool:
    """Whether nothing is open and everything is protected."""
    if not served(world):
        return False
    topology, nodes = world.etcd.topology, world.nodes
    for name, backups in _sets_wanted(world):
        replica_set = topology.find(name)
        if replica_set.primary is None or replica_set.lost or len(replica_set.in_sync) < backups:
            return False
        if not all(nodes[member].alive for member in replica_set.members):
            return False
        machine = nodes[replica_set.primary].machine
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
    lines: list[str] = []
    waiting = sorted(
        {client.name for client in world.clients.values() if not client.done},
        key=lambda name: float(name[1:]),
    )
    if waiting:
        lines.append(f"{len(waiting)} calls without answer: {' '.join(waiting[:8])}")
    requests = sorted(map(str, open_requests(world)))
    if requests:
        lines.append(f"{len(requests)} requests not complete: {' '.join(requests[:8])}")
    topology, nodes = world.etcd.topology, world.nodes
    for name, backups in _sets_wanted(world):
        item = topology.find(name)
        dead = [member for member in item.members if not nodes[member].alive]
        if item.primary is None or item.lost or len(item.in_sync) < backups or dead:
            lines.append(
                f"{name}: epoch {item.epoch}, primary {item.primary}, in sync {list(item.in_sync)} of "
                f"{backups}, "
                f"joining {list(item.joining)}, dead {dead}{', lost' if item.lost else ''}"
            )
    for op in world.graph.data.operators:
        for number, slot in enumerate(topology.table(op.name).slots):
            if slot.instance is None or not nodes[slot.instance].alive:
                lines.append(f"slot {number} of {op.name}: {slot.instance} {'dead' if slot.instance else ''}")
    lines.append(f"generation {topology.generation}, revoked {list(topology.revoked)[-6:]}")
    return "; ".join(lines)


def compare_states(world: "World") -> None:
    """Every primary's model holds exactly the surviving history; every in-sync backup holds the same state;
    every reply stems from it."""
    nonces: dict[str, set[tuple[object, int]]] = {}
    taken = {op.name: world.losses.units(op.name) for op in world.graph.data.operators}
    for op in world.graph.data.operators:
        if not op.stateful:
            continue
        replica_set = world.etcd.topology.find(op.name)
        assert replica_set.primary is not None
        node = world.nodes[replica_set.primary]
        assert node.model is not None
        state = node.model.state
        assert state is not None
        compare_history(world, op.name, state)
        nonces[op.name] = {(unit, nonce) for unit, nonce in state.history()}
        machine = node.machine
        assert isinstance(machine, StatefulMachine)
        for peer in replica_set.in_sync:
            backup = world.nodes[peer].machine
            assert isinstance(backup, StatefulMachine)
            newest = backup.store.newest
            held = newest.state if newest is not None else None
            if not isinstance(held, SimState) or held.digest != state.digest:
                raise Broken(
                    "I1",
                    f"{peer}, in sync, holds another state of {op.name} than {node.id} (version "
                    f"{backup.version}, not {machine.version})",
                )
    world.logs.compare()
    for client in dict.fromkeys(world.clients.values()):
        if isinstance(client.outcome, Replied) and client.outcome.error is None:
            _compare_reply(world, client, client.outcome, nonces, taken)
        elif isinstance(client.outcome, Replied):
            assert client.outcome.error is not None
            world.refusals.check_error(client, client.outcome.request, client.outcome.error)
            _judge_error(world, client.name, client.outcome)


def compare_history(world: "World", op: str, state: SimState) -> None:
    """A state of an operator holds exactly the surviving history."""
    notes = world.recorder.surviving(op, world.etcd.topology.find(op).epoch)
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
            raise Broken(
                "I1",
                f"the model of {op} holds {unit} "
                f"{'twice or out of order' if at >= 0 else 'which is not in the surviving history'}",
            )
        last = at
    missing = set(units) - set(held)
    for note in notes:
        if (
            note.unit in missing
            and note.out is not None
            and note.unit.request not in world.errored
            and (op, note.unit) not in world.unwritten
        ):
            raise Broken(
                "I1",
                f"the model of {op} lacks {note.unit}, seq {note.seq} of epoch {note.epoch}, which is in "
                "the surviving history",
            )


def _compare_reply(
    world: "World",
    client: Client,
    outcome: Replied,
    nonces: dict[str, set[tuple[object, int]]],
    taken: dict[str, set[UnitId]],
) -> None:
    """`nonces`: what the states hold; `taken`: units whose executions a loss has taken from them."""
    asked = {client.call.number} | {
        other.call.number for other in world.clients.values() if other.call.is_same_as(client.call)
    }
    seen: dict[tuple[str, object], int] = {}
    for token in outcome.tokens:
        payload = token.payload
        if not isinstance(payload, SimPayload):
            continue
        for item in payload.ancestry():
            if not item.op:
                if item.nonce not in asked:
                    raise Broken("I2", f"{client.name} got a reply to what c{item.nonce} asked")
                continue
            if seen.setdefault((item.op, item.unit), item.nonce) != item.nonce:
                raise Broken(
                    "I2", f"{client.name} got a reply that mixes two values of {item.op} for {item.unit}"
                )
            of = nonces.get(item.op)
            if (
                of is not None
                and (item.unit, item.nonce) not in of
                and (item.op, item.unit) not in world.unwritten
                and item.unit not in taken[item.op]
            ):
                raise Broken(
                    "I1",
                    f"{client.name} got a reply that stems from {item.op}'s execution of {item.unit}, which "
                    "its state does not have",
                )


def _judge_error(world: "World", client: str, outcome: Replied) -> None:
    """No request is refused for two executions of a fan-out unless one was lost with all who had received of
    it."""
    error = outcome.error
    if (
        error is not None
        and error.message.startswith(("two values of", "two executions of"))
        and str(outcome.request) not in world.inconsistent
    ):
        raise Broken(
            "I2",
            f"{client} got an error, though no owner of {error.op} was lost with every receiver: "
            f"{error.message}",
        )


def answered(world: "World", answers_s: float) -> None:
    """No call has waited, or waits now, longer than this since it began or since the last fault."""
    waiting = [client for client in dict.fromkeys(world.clients.values()) if not client.done]
    longest = max((world.now - max(client.began_at, world.struck_at) for client in waiting), default=0.0)
    if max(longest, world.slowest_s) > answers_s:
        names = " ".join(client.name for client in waiting[:8])
        raise Broken(
            "I7",
            f"a call was not answered within {answers_s:.1f} s of a single fault"
            + (f"; without an answer now: {names}" if waiting else f", but after {world.slowest_s:.1f} s"),
        )


def not_to_and_fro(world: "World", epochs: int) -> None:
    """A set is handed on a few times at most."""
    for replica_set in world.etcd.topology.sets:
        if replica_set.epoch > epochs:
            raise Broken(
                "I7", f"{replica_set.name} was handed to and fro, and is in epoch {replica_set.epoch}"
            )


def nobody_replaced_for_being_slow(world: "World", most: int) -> None:
    """Where nobody died, no state is lost and hardly anybody replaced."""
    if world.coverage["lost"]:
        raise Broken("I1", "a state was called lost, though nobody died")
    if world.coverage["stop: revoked"] > most:
        raise Broken("I7", "a living instance was replaced, though nobody died")
    revoked = world.etcd.topology.revoked
    if len(revoked) > most:
        raise Broken(
            "I7", f"{len(revoked)} instances were replaced, though nobody died: {', '.join(revoked)}"
        )


def nothing_given_up(world: "World") -> None:
    """No state that a request may have touched begins again, for its holder comes back."""
    if world.losses.given_up:
        raise Broken("I1", f"{sorted(world.losses.given_up)} began again, though who had the state came back")


def nothing_twice(world: "World") -> None:
    """A planned handoff executes nothing again (section 7)."""
    seen: set[tuple[object, ...]] = set()
    for line in world.recorder.lines:
        if isinstance(line, ExecLine):
            unit = (line.op, line.req, *line.lane)
            if unit in seen:
                raise Broken(
                    "I4", f"{line.i} executes {line.req} in {line.op} again, though everybody left gracefully"
                )
            seen.add(unit)


def is_promised(world: "World", violation: Violation) -> bool:
    """Whether the protocol promises what a violation breaks: not one value of a fan-out whose owner was lost
    with every receiver (section 4).
    """
    if violation.invariant not in ("I2", "I4"):
        return True
    match = re.search(r"\b(\d+/\d+)\b", violation.message)
    return match is None or match.group(1) not in world.inconsistent


def final_line(world: "World") -> FinalLine:
    """The history's last line."""
    ops: dict[str, FinalOperator] = {}
    for op in world.graph.data.operators:
        if op.stateful:
            replica_set = world.etcd.topology.find(op.name)
            machine = world.nodes[replica_set.primary].machine if replica_set.primary is not None else None
            version = machine.version if isinstance(machine, StatefulMachine) else None
            ops[op.name] = FinalOperator(
                primary=replica_set.primary,
                epoch=replica_set.epoch,
                insync=replica_set.in_sync,
                version=version,
            )
    return FinalLine(ops=ops, open=())
