"""What lies in etcd below `/hams/v1/<graph uid>/`, and its bytes: JSON, so that a person can read it with
`etcdctl get`."""

from typing import TypeVar

import msgspec

from hams_protocol.events import Member
from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology
from hams_wire.errors import UNDECODABLE, ResponsibleParty, WireError

T = TypeVar("T")

WARMING = "warming/"
DRAINED = "drained/"
TIMELINESS = "timeliness/"
PROFILES = "profiles/"
PROFILE_FORGOTTEN = b""
"""The value of a profile's key by which a person has all instances forget."""
PROFILE_GIVEN = b"!"
"""Before a stored profile: a person has given it, in place of whatever instances have learnt. No deflated
profile begins so."""
RESTORED = "restored"
"""This key says, by being there, that states began from checkpoints of another run."""


class MalformedRecord(WireError):
    """A value below a graph's prefix is not what this version writes."""

    responsible = ResponsibleParty.OURS


@frozen
class MemberRecord:
    """What an instance registers: a `Member`, and what only people and the command line want to know. `node`:
    the host that it runs on."""

    of: str
    address: str
    kept: str | None = None
    pid: int = 0
    http: str = ""
    grpc: str = ""
    keeps: bool = False
    node: str = ""


@frozen
class FailoverRecord:
    """What a manager that committed a set's epoch knew of it besides: for people only, no process acts on it.
    `took_ms`: from the first suspicion until the new roles were committed; `reason`: the suspect, and of what
    it was suspected.
    """

    epoch: int
    took_ms: int
    reason: str


@frozen
class VersionRecord:
    """The newest durable version of a state, as its primary told it last: for people only."""

    epoch: int
    version: int


@frozen
class TimelinessRecord:
    """How an instance has served by deadlines, as it told last: for people only. Counts are of the `window_s`
    before that: requests of a frontend, units of an operator; `shed` are those that were answered instead of
    being run. `policy`: the scheduling policy that the graph asks for, "" of a frontend; `failed`: why first
    in, first out serves in its place, "" if it does not."""

    of: str
    window_s: float
    on_time: int = 0
    late: int = 0
    shed: int = 0
    policy: str = ""
    failed: str = ""


def prefix_of(graph_uid: str) -> str:
    """Everything of one graph."""
    return f"/hams/v1/{graph_uid}/"


def all_of(owner_uid: str) -> tuple[str, str]:
    """First key and end of what belongs to a resource: below `prefix_of` of its UID, and of the UIDs of its
    later incarnations, `UID-rN`.

    UIDs of resources have one length, so none of another one lies between: `-` and `/` are two apart.
    """
    return f"{prefix_of(owner_uid)[:-1]}-", f"{prefix_of(owner_uid)[:-1]}0"


def spec_key(graph_uid: str) -> str:
    """The compiled graph."""
    return f"{prefix_of(graph_uid)}spec"


def topology_key(graph_uid: str) -> str:
    """The topology."""
    return f"{prefix_of(graph_uid)}topology"


def member_key(graph_uid: str, instance: InstanceId) -> str:
    """One instance's registration."""
    return f"{prefix_of(graph_uid)}members/{instance}"


def warming_key(graph_uid: str, instance: InstanceId) -> str:
    """Key that says, for people and supervisors, that an instance lives which does not register before its
    model is loaded."""
    return f"{prefix_of(graph_uid)}{WARMING}{instance}"


def restored_key(graph_uid: str) -> str:
    """Says that states began from checkpoints of another run."""
    return f"{prefix_of(graph_uid)}{RESTORED}"


def drained_key(graph_uid: str, instance: InstanceId) -> str:
    """Says that no client waits at a frontend of a deleted graph any more, and none will."""
    return f"{prefix_of(graph_uid)}{DRAINED}{instance}"


def failover_key(graph_uid: str, name: str) -> str:
    """What is told of the newest failover of a replica set."""
    return f"{prefix_of(graph_uid)}failovers/{name}"


def version_key(graph_uid: str, operator: str) -> str:
    """What is told of an operator's newest durable version."""
    return f"{prefix_of(graph_uid)}versions/{operator}"


def timeliness_key(graph_uid: str, instance: InstanceId) -> str:
    """What an instance tells of how it serves by deadlines; it goes with its registration."""
    return f"{prefix_of(graph_uid)}{TIMELINESS}{instance}"


def profile_key(graph_uid: str, operator: str) -> str:
    """What is learnt of an operator's times (`hams_schedule.stored`), or a person's word about it:
    `PROFILE_FORGOTTEN`, or `PROFILE_GIVEN` before a profile."""
    return f"{prefix_of(graph_uid)}{PROFILES}{operator}"


def _decoded(data: bytes, kind: type[T], what: str) -> T:
    """The record in `data`. Raises MalformedRecord, which says that it is not `what`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise MalformedRecord(f"not {what}: {error}") from None


def encode_topology(topology: Topology) -> bytes:
    """Canonical bytes of a topology."""
    return msgspec.json.encode(topology)


def decode_topology(data: bytes) -> Topology:
    """The topology in `data`. Raises MalformedRecord."""
    topology = _decoded(data, Topology, "a topology")
    for replica_set in topology.sets:
        twice = replica_set.named_twice()
        if twice is not None:
            raise MalformedRecord(f"not a topology: {replica_set.name} names {twice} twice")
    return topology


def encode_member(record: MemberRecord) -> bytes:
    """Bytes of a registration."""
    return msgspec.json.encode(record)


def decode_member(instance: InstanceId, data: bytes) -> tuple[Member, MemberRecord]:
    """A registration, as the core sees it and whole. Raises MalformedRecord."""
    record = _decoded(data, MemberRecord, f"a registration of {instance}")
    member = Member(instance, record.of, record.address, record.kept, keeps=record.keeps, host=record.node)
    return member, record


def encode_failover(record: FailoverRecord) -> bytes:
    """Bytes of a report of a failover."""
    return msgspec.json.encode(record)


def decode_failover(data: bytes) -> FailoverRecord:
    """The report of a failover. Raises MalformedRecord."""
    return _decoded(data, FailoverRecord, "a failover")


def encode_version(record: VersionRecord) -> bytes:
    """Bytes of a report of a durable version."""
    return msgspec.json.encode(record)


def decode_version(data: bytes) -> VersionRecord:
    """The report of a durable version. Raises MalformedRecord."""
    return _decoded(data, VersionRecord, "a version")


def encode_timeliness(record: TimelinessRecord) -> bytes:
    """Bytes of what an instance tells of how it serves."""
    return msgspec.json.encode(record)


def decode_timeliness(data: bytes) -> TimelinessRecord:
    """What an instance tells of how it serves. Raises MalformedRecord."""
    return _decoded(data, TimelinessRecord, "how an instance serves")
