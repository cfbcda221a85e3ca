"""One instance's proposals of a topology: one compare-and-swap at a time, in their order. Each outcome is
told to the machine. An unknown one is read again, never repeated: it may be committed.

It does no input or output: real processes and the simulator are its `Committer`, so what is simulated is what
runs.
"""

from collections import deque
from typing import Protocol

from hams_protocol.effects import Propose
from hams_protocol.events import CasSettled, CasUnknown, Event


class Committer(Protocol):
    """How a process, or a simulated instance, reaches etcd."""

    def commit(self, proposal: Propose) -> None:
        """Send the compare-and-swap; `ProposalQueue.answered` is called once with what became of it."""
        ...

    def read_topology(self) -> None:
        """Read the topology, and feed it as `TopologyLearnt` once etcd answers."""
        ...

    def feed(self, event: Event) -> None:
        """Give the machine an event."""
        ...


class ProposalQueue:
    """What is proposed and has no known outcome yet."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._open: deque[Propose] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def propose(self, proposal: Propose) -> None:
        """Propose, once the proposals before it have been answered."""
        self._open.append(proposal)
        if len(self._open) == 1:
            self._committer.commit(proposal)

    def answered(self, event: CasSettled | CasUnknown) -> None:
        """What became of the one that was sent."""
        self._open.popleft()
        is_next = bool(self._open)  # what the machine proposes now begins by itself
        self._committer.feed(event)
        if is_next:
            self._committer.commit(self._open[0])
        if isinstance(event, CasUnknown):
            self._committer.read_topology()
