"""From which versions the sets of one attempt go on, where backups answer for what they have received
(ADR 0013).

Law: each set goes on from the newest version held whose dependencies survive: none of them lies above an end,
known or of this attempt. What is merely pending survives for now; if it is lost later, the set goes back once
more. Ends only sink while answers come, so what is found at last hangs on nothing that is lost.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hams_protocol.messages import RetainedVersion
from hams_protocol.topology import Topology

if TYPE_CHECKING:
    from hams_protocol.recovery.attempt import Move


class Survival:
    """The ends of one attempt's `moves`; `lost` are those that have none."""

    def __init__(self, topology: Topology, moves: "Mapping[str, Move]", lost: set[str]) -> None:
        self._topology = topology
        self._moves = moves
        self._lost = lost

    def settle(self) -> None:
        """Seek all ends anew, with what is known by now."""
        sinking = True
        while sinking:
            sinking = False
            for name, move in self._moves.items():
                if move.choices is None or name in self._lost:
                    continue
                before = (move.decided, move.end)
                self._seek(name, move)
                sinking = sinking or before != (move.decided, move.end)

    def _seek(self, name: str, move: "Move") -> None:
        """The newest version that survives; where a primary has none, since it is yet to get its state, its
        keepers may have one."""
        held = list(move.choices or ())
        if move.rolls_back:
            held += [item for answer in move.answers.values() for item in answer.retained]
        end = next((item.version for item in held if self._survives(item)), None)
        move.decided = end is not None
        if end is not None:
            move.end = end
        elif not move.missing:
            move.decided = True
            self._lost.add(name)

    def _survives(self, item: RetainedVersion) -> bool:
        for dep in item.deps:
            move = self._moves.get(dep.op)
            ends = move is not None and move.decided and dep.op not in self._lost
            if ends and move is not None and dep.epoch == move.old.epoch and dep.seq > move.end:
                return False
            known = self._topology.find(dep.op)
            end = known.end_of(dep.epoch)
            if end is not None and dep.seq > end and dep.epoch >= known.restarted_in:
                return False
        return True
