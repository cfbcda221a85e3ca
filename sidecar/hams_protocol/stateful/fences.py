"""A primary's answers to managers who ask before they act (protocol.md, 7.3).

Invariant: while a fence of the present generation stands, no dependency above any of its ends enters the
state; and once it has answered that its state holds one, or that versions have died with its model, nothing
more of it becomes durable: where it has no backup it will go back to what it told of, and what is durable is
for ever. It only holds and tells: nothing is purged or rolled back before a topology is committed.
"""

from typing import TYPE_CHECKING

from hams_protocol import limits
from hams_protocol.deps import Deps, others
from hams_protocol.messages import (
    Fence,
    FenceAnswer,
    RetainedVersion,
)
from hams_protocol.stateful.receipts import survivors

if TYPE_CHECKING:
    from hams_protocol.stateful.machine import StatefulMachine


class Fences:
    """The fences in force at one primary in one epoch."""

    def __init__(self, machine: "StatefulMachine", epoch: int) -> None:
        self._m = machine
        self._epoch = epoch
        self._held: tuple[Fence, ...] = ()
        self.may_go_back = False
        """Whether it has told a manager so, whose attempt may yet commit."""

    def clear(self) -> None:
        """A higher generation is known: those attempts can no longer commit."""
        self._held = ()
        self.may_go_back = False

    def keep_out(self, deps: Deps) -> bool:
        """Whether a dependency lies above the ends of the fence in force."""
        return any(above(deps, fence) for fence in self._held)

    def raise_fence(self, fence: Fence, deps: Deps, settled: int, must_go_back: bool) -> FenceAnswer:
        """Let in no dependency above these ends; say whether the state, with these `deps`, holds one, and
        what it could go back to.

        Every fence of this generation stays in force: managers may ask at once, a question may come late, and
        any of their attempts may yet commit. What is `settled`, durable, or was when this epoch began, is
        told without dependencies: durable is for ever, though a notice was lost. `must_go_back`: its newest
        versions died with its model, whatever the answer is.
        """
        m = self._m
        rest = tuple(other for other in self._held if other.ends != fence.ends)
        self._held = (*rest[-limits.fences_max + 1 :], fence)
        tainted = above(deps, fence)
        self.may_go_back = self.may_go_back or tainted or must_go_back
        if m.by_receipt:
            retained = survivors(m.store, m.knowledge, m.operator.name, settled)
            return FenceAnswer(fence.attempt, fence.generation, fence.name, self._epoch, tainted, retained)
        retained = tuple(
            RetainedVersion(
                version.number,
                ()
                if version.number <= settled
                else m.knowledge.prune(others(version.record.deps, m.operator.name)),
            )
            for version in reversed(m.store.versions)
            if version.state is not None
        )
        return FenceAnswer(fence.attempt, fence.generation, fence.name, self._epoch, tainted, retained)


def above(deps: Deps, fence: Fence) -> bool:
    """Whether any dependency lies above an end of the fence."""
    for dep in deps:
        for end in fence.ends:
            if dep.op == end.op and (dep.epoch > end.epoch or (dep.epoch == end.epoch and dep.seq > end.seq)):
                return True
    return False
