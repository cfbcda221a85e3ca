"""How states came about that are not durable yet, as far as one instance knows: where no state is shipped, a
new primary runs the same batches again (protocol.md, section 9).

Law: whoever depends on a version knows how it and all before it came about, down to the newest durable one.
So what nobody alive knows of, nobody depends on, and it may be run in another order.
"""

from collections.abc import Callable, Iterable

from hams_protocol.ids import RequestId
from hams_protocol.messages import Determinant


class KnownDeterminants:
    """Of all operators, by version. Of two that tell of one version, that of the later epoch counts: the
    other one was forgotten by everybody who was asked. A request `is_completed` once every version
    that has taken it in is durable."""

    def __init__(self, is_completed: Callable[[RequestId], bool]) -> None:
        self._is_completed = is_completed
        self._by_op: dict[str, dict[int, Determinant]] = {}
        self._durable: dict[str, int] = {}
        self._all: tuple[Determinant, ...] | None = ()

    def learn(self, items: Iterable[Determinant]) -> None:
        """Something has arrived that stems from these, or was run here."""
        for item in items:
            of = self._by_op.setdefault(item.op, {})
            held = of.get(item.version)
            if held is not None and held.epoch >= item.epoch:
                continue
            if item.version > self._durable.get(item.op, -1) and not self._is_complete(item):
                of[item.version] = item
                self._all = None

    def durable(self, op: str, version: int) -> None:
        """Nobody runs this version of an operator, or one before it, again."""
        self._durable[op] = max(version, self._durable.get(op, -1))
        self._drop(op, version)

    def requests_completed(self) -> None:
        """Not everybody hears of every version that is stored, but of complete requests."""
        for op, of in self._by_op.items():
            self._drop(op, max((item.version for item in of.values() if self._is_complete(item)), default=-1))

    def _is_complete(self, item: Determinant) -> bool:
        return any(self._is_completed(ran.unit.request) for ran in item.units)

    def _drop(self, op: str, version: int) -> None:
        of = self._by_op.get(op, {})
        gone = [known for known in of if known <= version]
        for known in gone:
            del of[known]
        if gone:
            self._all = None

    def everything(self) -> tuple[Determinant, ...]:
        """What everything that leaves here may stem from."""
        if self._all is None:
            self._all = tuple(of[version] for _, of in sorted(self._by_op.items()) for version in sorted(of))
        return self._all

    def above(self, op: str, version: int) -> tuple[Determinant, ...]:
        """Those of an operator that come after a version."""
        return tuple(item for item in self.everything() if item.op == op and item.version > version)


def in_order(items: Iterable[Determinant], above: int) -> list[Determinant]:
    """What has to be run again, in order: without a gap, so up to the newest version on which anybody
    depends."""
    by_first: dict[int, Determinant] = {}
    for item in items:
        held = by_first.get(item.first)
        if held is None or held.epoch < item.epoch:
            by_first[item.first] = item
    order: list[Determinant] = []
    while (following := by_first.get(above + 1)) is not None:
        order.append(following)
        above = following.version
    return order
