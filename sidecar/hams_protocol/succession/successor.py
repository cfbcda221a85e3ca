"""A frontend of a shape that follows another one: closed until that has handed over, then open for ever.

Before it is open it has the replies that the predecessor kept; so a frontend that is open answers a key as
the predecessor did.

Invariant: nothing that a client asks reaches the core here before `done`.
"""

from typing import Generic, TypeVar

from hams_protocol.succession.records import Follows
from hams_protocol.succession.replies import Table

T = TypeVar("T")


class SuccessorGate(Generic[T]):
    """`is_open`: this graph serves. `table`: what the predecessor answered."""

    def __init__(self, table: Table[T], not_open: T) -> None:
        self.is_open = False
        self.table = table
        self._not_open = not_open

    def follows_changed(self, follows: Follows | None) -> None:
        """The graph's own record, as etcd has it; None: it is gone."""
        if follows is not None and follows.done:
            self.is_open = True

    def answer(self, key: str | None, digest: str | None) -> T | None:
        """What a request is answered without asking the core; None: the core knows."""
        if not self.is_open:
            return self._not_open
        return None if key is None else self.table.find(key, digest)
