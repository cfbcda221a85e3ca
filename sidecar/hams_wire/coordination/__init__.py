"""Coordination through etcd: the port, a client of a real etcd, and a double of it within one process.

`Coordination` (port.py) is what the house programs against. `EtcdCoordination` (etcd.py) is loaded by the
code that names it, so that the simulator and the tests of the double need no gRPC.
"""

from hams_wire.coordination.memory import MemoryCoordination, MemoryStore, StoreBackup
from hams_wire.coordination.port import (
    ABSENT,
    Compare,
    Coordination,
    Delete,
    Deleted,
    Event,
    KeyValue,
    Operation,
    Permit,
    Put,
    Restored,
    Snapshot,
    Watch,
    Write,
)
from hams_wire.coordination.registration import Registration

__all__ = [
    "ABSENT",
    "Compare",
    "Coordination",
    "Delete",
    "Deleted",
    "Event",
    "KeyValue",
    "MemoryCoordination",
    "MemoryStore",
    "Operation",
    "Permit",
    "Put",
    "Registration",
    "Restored",
    "Snapshot",
    "StoreBackup",
    "Watch",
    "Write",
]
