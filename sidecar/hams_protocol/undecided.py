"""Tokens that cannot be judged before the next topology (intake law, protocol.md, sections 1 and 3).

Bounded in number and bytes. What does not fit makes the oldest go; none of them is acknowledged, so their
owner sends them again.
"""

from collections import deque

from hams_protocol import limits
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Deliver


class Undecided:
    """What is held, in the order in which it came, with who sent it."""

    def __init__(self) -> None:
        self._held: deque[tuple[InstanceId, Deliver]] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, sender: InstanceId, message: Deliver) -> None:
        """One more. It stays until the next topology, unless it is pushed out by then."""
        held = self._held
        held.append((sender, message))
        self.nbytes += _nbytes(message)
        while len(held) > limits.undecided_messages_max or (
            self.nbytes > limits.undecided_bytes_max and len(held) > 1
        ):
            self.nbytes -= _nbytes(held.popleft()[1])

    def take(self) -> list[tuple[InstanceId, Deliver]]:
        """All of them, to be judged again: nothing is held any more."""
        held = list(self._held)
        self._held.clear()
        self.nbytes = 0
        return held


def _nbytes(message: Deliver) -> int:
    payload = message.token.payload
    return 0 if payload is None else payload.nbytes
