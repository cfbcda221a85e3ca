"""What lies in etcd, read again: what this version does not write is refused with a sentence."""

import pytest

from hams_protocol.topology import ReplicaSet, Topology
from hams_wire.records import MalformedRecord, decode_topology, encode_topology


def test_a_topology_is_read_as_it_was_written() -> None:
    topology = Topology(3, (ReplicaSet("p", 1, "p-1", in_sync=("p-2",), joining=("p-3",)),))
    assert decode_topology(encode_topology(topology)) == topology


def test_a_topology_in_which_somebody_has_two_roles_is_refused() -> None:
    data = encode_topology(Topology(3, (ReplicaSet("p", 1, "p-1", in_sync=("p-2",), joining=("p-2",)),)))
    with pytest.raises(MalformedRecord, match="not a topology: p names p-2 twice"):
        decode_topology(data)


def test_what_is_no_topology_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="not a topology: "):
        decode_topology(b'{"generation": "three"}')
