"""What managers do: confirm failures, and move roles by an optimistic transaction on the topology
(protocol.md, sections 6 and 7)."""

from hams_protocol.recovery.machine import ManagerMachine

__all__ = ["ManagerMachine"]
