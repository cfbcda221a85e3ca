"""Names of things (protocol.md, section 1; history.md, rules 4 and 5)."""

from typing import NamedTuple

InstanceId = str
"""One running copy of an operator, frontend or manager; fresh at every start, never reused."""

Lane = tuple[str, ...]
"""Which of several executions for one request, behind an Interleave; () elsewhere."""

ValueId = str
"""One computed output, or one skip; copies and resends keep it. The input of request r has the value id
`str(r)`."""


class RequestId(NamedTuple):
    """The n-th request in the log of a frontend shard."""

    shard: int
    n: int

    def __str__(self) -> str:
        return f"{self.shard}/{self.n}"


class UnitId(NamedTuple):
    """One execution of one operator: at most one value of each is ever visible (I2)."""

    request: RequestId
    lane: Lane
