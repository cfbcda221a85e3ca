"""A stateful operator's instance: `machine` holds the roles; `primary`, `backup` and `followers` are the
roles' parts."""

from hams_protocol.stateful.machine import StatefulMachine

__all__ = ["StatefulMachine"]
