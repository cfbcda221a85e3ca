"""What a run looks like from outside: the topology in etcd, and what each instance says of itself when
probed.

Used for `hams status` and for readiness; the observer connects to instances as any peer does and has no part
in the protocol. Truthful: `Ready` only while every state has a primary that serves it, every slot an owner
with a warm model, and a frontend answers.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Collection, Mapping

import msgspec

from hams_operator.graph_status import (
    Condition,
    FailureInfo,
    InstanceStatus,
    OnTime,
    PolicyReplaced,
    StateLoss,
    View,
    awaited,
)
from hams_operator.limits import payload_bytes_max
from hams_operator.local.processes import alive
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Health, Message, Probe, ProbeAnswer, RoleReport
from hams_protocol.modes import is_run_again
from hams_protocol.topology import Topology, allow_restart
from hams_protocol.wholeness import READY, REDUNDANT, InstancesSeen, wholeness, why_not
from hams_wire import records
from hams_wire.coordination.port import Coordination, Snapshot
from hams_wire.errors import CoordinationError, NotApplied
from hams_wire.peers.network import PeerNetwork
from hams_wire.peers.payload import HeapFactory

status_probe_s = 1.0
"""An instance that has not answered a status question for this long is shown without what it alone knows."""

status_probe_again_s = 0.05
"""After this long without an answer the question is sent again."""

status_etcd_s = 1.5
"""A look at a run waits no longer than this for etcd; then it looks with what it knew."""


MANAGER = "manager"


class Pids(msgspec.Struct, frozen=True):
    """The processes of one instance, 0 where there is none: `proxy` is the process of a frontend or manager
    too."""

    of: str
    proxy: int
    model: int


def current(
    name: InstanceId, pid: int, registered: Mapping[InstanceId, int], revoked: Collection[InstanceId]
) -> InstanceId:
    """The id that a process goes by now: a revoked instance that kept its state goes on in the same process
    under a fresh one."""
    if name in registered and name not in revoked:
        return name
    return next((other for other, of in registered.items() if of == pid and other not in revoked), name)


def holders_of(
    topology: Topology, registered: Mapping[InstanceId, records.MemberRecord]
) -> tuple[frozenset[InstanceId], frozenset[InstanceId]]:
    """The instances that hold a state alone among those that are there: as a member of its set, as its
    keeper, or as one that has come back with it. And the holders of states that no instance there holds:
    should one of them only hang, its process holds all that is left of the state."""
    alone: set[InstanceId] = set()
    last: set[InstanceId] = set()
    for item in topology.sets:
        holders = set(item.holders)
        here = holders.difference(topology.revoked).intersection(registered)
        here |= {name for name, record in registered.items() if record.kept in holders}
        if not here:
            last |= holders
        elif len(here) == 1:
            alone |= here
    return frozenset(alone), frozenset(last)


class Membership(msgspec.Struct, frozen=True):
    """The instances of a graph: `registered`, each with the process it runs in; those whose model is loading
    before that; `revoked` for ever; those that hold a state `alone`; those that may be the `last` holder of
    one, though they are silent."""

    registered: dict[InstanceId, int]
    warming: frozenset[InstanceId]
    revoked: frozenset[InstanceId]
    alone: frozenset[InstanceId] = frozenset()
    last: frozenset[InstanceId] = frozenset()

    def may_be_last(self, name: InstanceId) -> bool:
        """Whether the process of this instance may hold all that is left of a state, under its own id or
        under one it came back with."""
        return any(item == name or item.startswith(f"{name}-") for item in self.last)


class Observer:
    """Looks at one graph through etcd and its instances."""

    def __init__(self, graph: Graph, coordination: Coordination, listen: str) -> None:
        self._graph = graph
        self._uid = graph.data.uid
        self._coordination = coordination
        self._nonces = itertools.count(1)
        self._read_once = False
        self._topology = Topology()
        self._members: dict[InstanceId, records.MemberRecord] = {}
        self._timeliness: dict[InstanceId, records.TimelinessRecord] = {}
        self._answers: dict[InstanceId, ProbeAnswer] = {}
        self._waiting: dict[InstanceId, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        self._network = PeerNetwork(
            f"observer-{secrets.token_hex(4)}",
            self._uid,
            listen,
            HeapFactory(payload_bytes_max),
            self._on_message,
            self._on_up,
            self._on_down,
        )

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await self._network.start()

    async def close(self) -> None:
        """Close the connections to the instances."""
        await self._network.close()

    async def topology(self) -> Topology:
        """The topology now. Raises CoordinationError."""
        entry = await self._coordination.get(records.topology_key(self._uid))
        return Topology() if entry is None else records.decode_topology(entry.value)

    async def membership(self) -> Membership:
        """The instances of the graph by what etcd says of each. Raises CoordinationError."""
        snapshot = await self._coordination.get_prefix(records.prefix_of(self._uid))
        topology, members, warming = self._decoded(snapshot)
        return Membership(
            {name: record.pid for name, record in members.items()},
            warming,
            frozenset(topology.revoked),
            *holders_of(topology, members),
        )

    def _decoded(
        self, snapshot: Snapshot
    ) -> tuple[Topology, dict[InstanceId, records.MemberRecord], frozenset[InstanceId]]:
        """The topology, whose each registered instance is, and whose model is loading."""
        prefix = records.prefix_of(self._uid)
        values = {entry.key.removeprefix(prefix): entry.value for entry in snapshot.entries}
        members = [name.removeprefix("members/") for name in values if name.startswith("members/")]
        return (
            records.decode_topology(values["topology"]) if "topology" in values else Topology(),
            {name: records.decode_member(name, values[f"members/{name}"])[1] for name in members},
            frozenset(
                name.removeprefix(records.WARMING) for name in values if name.startswith(records.WARMING)
            ),
        )

    async def observe(
        self, processes: dict[InstanceId, Pids], failures: tuple[FailureInfo, ...] = ()
    ) -> View:
        """One look at the living `processes`. Without etcd it looks with what it knew, and says so. Raises
        CoordinationError the first time."""
        away = await self._read()
        topology, members = self._topology, self._members
        registered = {name: member.pid for name, member in members.items()}
        named = {
            current(name, pids.proxy, registered, topology.revoked): pids for name, pids in processes.items()
        }
        living = {name: pids for name, pids in sorted(named.items()) if alive(pids.proxy)}
        # the dead are not waited for
        answers = await self._probe(
            {name: member.address for name, member in members.items() if name in living}
        )
        managers = [
            name for name, member in members.items() if member.of == MANAGER and name not in topology.revoked
        ]
        leader = min(managers, default=None)
        instances = tuple(
            _instance(name, pids, topology, answers.get(name), name == leader, self._timeliness.get(name))
            for name, pids in living.items()
        )
        conditions = self._conditions(topology, answers, failures, away)
        losses = losses_of(self._graph, topology)
        replaced = replaced_in({name: self._timeliness[name] for name in living if name in self._timeliness})
        return View(topology.generation, conditions, instances, failures, losses, replaced)

    async def allow_restart(self, name: str) -> str:
        """A person has decided that a lost state shall begin again; why not, if it cannot. Raises
        CoordinationError."""
        while True:
            entry = await self._coordination.get(records.topology_key(self._uid))
            topology = Topology() if entry is None else records.decode_topology(entry.value)
            changed = allow_restart(topology, name)
            if entry is None or changed is None:
                known = ", ".join(item.name for item in topology.sets if item.lost) or "none is"
                return f"the state of {name} is not lost; lost: {known}"
            with contextlib.suppress(NotApplied):  # somebody else was faster: look again
                await self._coordination.compare_and_swap(
                    entry.key, entry.mod_revision, records.encode_topology(changed)
                )
                return ""

    async def _read(self) -> str:
        """Read topology and members; why that failed, if an earlier reading can serve."""
        try:
            async with asyncio.timeout(status_etcd_s if self._read_once else None):
                snapshot = await self._coordination.get_prefix(records.prefix_of(self._uid))
        except (CoordinationError, TimeoutError) as error:
            if not self._read_once:
                raise
            return str(error) or f"no answer for {status_etcd_s:g} s"
        self._topology, self._members, _ = self._decoded(snapshot)
        self._timeliness = timeliness_in(snapshot, records.prefix_of(self._uid))
        self._read_once = True
        return ""

    # -- probes ----------------------------------------------------------------------------------------------

    async def _probe(self, addresses: dict[InstanceId, str]) -> dict[InstanceId, ProbeAnswer]:
        """The answers of all processes; one that does not answer in time is not alive as far as status
        goes."""
        loop = asyncio.get_running_loop()
        self._network.set_members(addresses)
        self._answers = {}
        self._waiting = {name: loop.create_future() for name in addresses}
        deadline = loop.time() + status_probe_s
        while (
            open_ := {future for future in self._waiting.values() if not future.done()}
        ) and loop.time() < deadline:
            # Again and again: an answer is lost while an instance has not dialled back yet.
            for name, future in self._waiting.items():
                if not future.done() and self._network.is_up(name):
                    self._network.send(name, Probe(next(self._nonces)))
            await asyncio.wait(open_, timeout=status_probe_again_s)
        return dict(self._answers)

    def _on_message(self, sender: InstanceId, message: Message) -> None:
        if isinstance(message, ProbeAnswer):
            self._answers[sender] = message
            self._done(sender)

    def _on_up(self, peer: InstanceId) -> None:
        self._network.send(peer, Probe(next(self._nonces)))

    def _on_down(self, peer: InstanceId) -> None:
        self._done(peer)

    def _done(self, peer: InstanceId) -> None:
        waiting = self._waiting.get(peer)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # -- meaning ---------------------------------------------------------------------------------------------

    def _conditions(
        self,
        topology: Topology,
        answers: dict[InstanceId, ProbeAnswer],
        failures: tuple[FailureInfo, ...],
        away: str,
    ) -> tuple[Condition, ...]:
        lacks = wholeness(self._graph, topology, serving_of(topology, answers, away))
        ready, redundant = why_not(READY, lacks), why_not(REDUNDANT, lacks)
        if ready is not None and failures:
            ready = failures[0].reason, failures[0].sentence()
        ready_and_redundant = (
            _condition(READY, ready, "Serving"),
            _condition(REDUNDANT, redundant, "InSync"),
        )
        waits = awaited(ready_and_redundant)
        if waits is None:
            return (*ready_and_redundant, Condition("Progressing", "False", "Stable", ""))
        return (*ready_and_redundant, Condition("Progressing", "True", "Recovering", waits.message))


def serving_of(topology: Topology, answers: Mapping[InstanceId, ProbeAnswer], away: str) -> InstancesSeen:
    """What instances say of themselves; a silent one takes no part."""

    def serves(name: InstanceId, of: str) -> bool:
        return _serves(answers.get(name), of, topology.find(of).epoch)

    def warm(op: str) -> int:
        roles = (role for answer in answers.values() for role in answer.roles if role.name == op)
        return sum(role.role == "standby" and role.ready for role in roles)

    return InstancesSeen(serves, answers.__contains__, warm, away)


def timeliness_in(snapshot: Snapshot, prefix: str) -> dict[InstanceId, records.TimelinessRecord]:
    """What instances have told of how they serve by deadlines; what cannot be read is not told."""
    reports: dict[InstanceId, records.TimelinessRecord] = {}
    for entry in snapshot.entries:
        name = entry.key.removeprefix(prefix)
        if name.startswith(records.TIMELINESS):
            with contextlib.suppress(records.MalformedRecord):
                reports[name.removeprefix(records.TIMELINESS)] = records.decode_timeliness(entry.value)
    return reports


def on_time_of(reports: Collection[records.TimelinessRecord]) -> OnTime | None:
    """What the records say together; None: there was nothing to do by a deadline."""
    total = sum(record.on_time + record.late + record.shed for record in reports)
    if not total:
        return None
    on_time, shed = sum(record.on_time for record in reports), sum(record.shed for record in reports)
    return OnTime(on_time / total, max(record.window_s for record in reports), total, shed)


def replaced_in(reports: Mapping[InstanceId, records.TimelinessRecord]) -> tuple[PolicyReplaced, ...]:
    """The scheduling policies that were replaced."""
    return tuple(
        PolicyReplaced(record.of, name, record.policy, record.failed)
        for name, record in sorted(reports.items())
        if record.failed
    )


def losses_of(graph: Graph, topology: Topology) -> tuple[StateLoss, ...]:
    """States that were lost and began again; none of those that were run again."""
    return tuple(
        StateLoss(
            item.name,
            item.restarted_in,
            item.end_of(item.restarted_in - 1) or 0,
            tuple(graph.stateful_downstream.get(item.name, ())),
        )
        for item in topology.sets
        if item.restarted_in and not is_run_again(graph, item.name)
    )


def _condition(kind: str, missing: tuple[str, str] | None, good: str) -> Condition:
    """True for a `good` reason if nothing is missing."""
    return Condition(kind, "True", good, "") if missing is None else Condition(kind, "False", *missing)


def _serves(answer: ProbeAnswer | None, name: str, epoch: int) -> bool:
    """Whether an instance says that it serves its role there."""
    if answer is None or answer.health is not Health.HEALTHY:
        return False
    return any(
        role.name == name
        and role.ready
        and role.role in ("primary", "active", "frontend")
        and role.epoch >= epoch
        for role in answer.roles
    )


def _instance(
    name: InstanceId,
    pids: Pids,
    topology: Topology,
    answer: ProbeAnswer | None,
    leader: bool,
    timeliness: records.TimelinessRecord | None,
) -> InstanceStatus:
    """What an instance says of itself; of a silent one (paused, starting) what the topology says."""
    on_time = None if timeliness is None else on_time_of((timeliness,))
    if pids.of == MANAGER:
        return InstanceStatus(name, None, "manager", leader, 0, None, pids.proxy, None)
    if pids.of == FRONTEND:
        epoch = max((item.epoch for item in topology.sets if item.primary == name), default=0)
        return InstanceStatus(name, None, "frontend", False, epoch, None, pids.proxy, None, on_time)
    report = (
        next((role for role in answer.roles if role.name == pids.of), None) if answer is not None else None
    )
    if report is None:
        report = _presumed(name, pids.of, topology)
    version = report.version if report.version >= 0 else None
    model = pids.model if alive(pids.model) else None
    return InstanceStatus(
        name, pids.of, report.role, False, report.epoch, version, pids.proxy, model, on_time
    )


def _presumed(name: InstanceId, op: str, topology: Topology) -> RoleReport:
    replica_set = topology.find(op)
    if replica_set.primary == name:
        return RoleReport(op, "primary", replica_set.epoch, -1, False)
    for role, holders in (("backup", replica_set.in_sync), ("joining", replica_set.joining)):
        if name in holders:
            return RoleReport(op, role, replica_set.epoch, -1, False)
    owned = [slot.epoch for slot in topology.table(op).slots if slot.instance == name]
    return RoleReport(op, "active" if owned else "standby", max(owned, default=0), -1, False)
