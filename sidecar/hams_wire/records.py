"""What lies in etcd below `/hams/v1/<graph uid>/`, and its bytes: JSON, so that a person can read it with `etcdctl get`."""

import msgspec

from hams_protocol.events import Member
from hams_protocol.frozen import frozen
from hams_protocol.ids import InstanceId
from hams_protocol.topology import Topology
from hams_wire.errors import Guilty, WireError


class MalformedRecord(WireError):
    """A value below a graph's prefix is not what this version writes."""

    guilty = Guilty.OURS


@frozen
class MemberRecord:
    """What an instance registers: a `Member`, and what only people and the command line want to know."""

    of: str
    address: str
    generation: int = 0
    kept: str | None = None
    pid: int = 0
    http: str = ""
    grpc: str = ""


def prefix_of(graph_uid: str) -> str:
    """Everything of one graph."""
    return f"/hams/v1/{graph_uid}/"


def spec_key(graph_uid: str) -> str:
    """The compiled graph."""
    return f"{prefix_of(graph_uid)}spec"


def topology_key(graph_uid: str) -> str:
    """The topology."""
    return f"{prefix_of(graph_uid)}topology"


def member_key(graph_uid: str, instance: InstanceId) -> str:
    """One instance's registration."""
    return f"{prefix_of(graph_uid)}members/{instance}"


def encode_topology(topology: Topology) -> bytes:
    """Canonical bytes of a topology."""
    return msgspec.json.encode(topology)


def decode_topology(data: bytes) -> Topology:
    """The topology in `data`. Raises MalformedRecord."""
    try:
        return msgspec.json.decode(data, type=Topology)
    except msgspec.MsgspecError as error:
        raise MalformedRecord(f"not a topology: {error}") from None


def encode_member(record: MemberRecord) -> bytes:
    """Bytes of a registration."""
    return msgspec.json.encode(record)


def decode_member(instance: InstanceId, data: bytes) -> tuple[Member, MemberRecord]:
    """A registration, as the core sees it and whole. Raises MalformedRecord."""
    try:
        record = msgspec.json.decode(data, type=MemberRecord)
    except msgspec.MsgspecError as error:
        raise MalformedRecord(f"not a registration of {instance}: {error}") from None
    return Member(instance, record.of, record.address, record.generation, record.kept), record
