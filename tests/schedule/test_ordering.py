"""Units of one value in order of arrival (`batch.keepOrder`)."""

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hams_schedule.limits import order_values_slack
from hams_schedule.ordering import ArrivalOrder
from hams_schedule.scheduler import READY


@dataclass(eq=False)
class Work:
    """A unit of a value."""

    value: str
    number: int
    due: float = math.inf
    rows: int = 1
    batch_key: int = 0
    attempts: int = 0
    cls: int = 0
    stage: int = READY


class Queue:
    """A queue that hands out any unit, as the test says."""

    def __init__(self) -> None:
        self.order: ArrivalOrder[Work] = ArrivalOrder()
        self.queued: list[Work] = []

    def add(self, unit: Work) -> None:
        if self.order.arrived(unit.value, unit, len(self.queued)):
            self.queued.append(unit)

    def turns(self) -> None:
        self.queued += [unit for _, unit in self.order.turns(1_000) if unit is not None]

    def take(self, choice: int) -> Work | None:
        self.turns()
        self.queued = [unit for unit in self.queued if unit.stage == READY]
        if not self.queued:
            return None
        unit = self.queued.pop(choice % len(self.queued))
        following = self.order.left(unit.value, unit)
        if following is not None:
            self.queued.append(following)
        return unit


STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "take", "drop")), st.integers(0, 3), st.integers(0, 20)), max_size=80
)


@given(STEPS)
def test_whatever_is_taken_units_of_one_value_come_in_order_and_none_is_lost(steps):
    queue, added, taken, dropped = Queue(), [], [], []
    for what, value, choice in steps:
        if what == "add":
            added.append(Work(f"v{value}", len(added)))
            queue.add(added[-1])
        elif what == "take":
            unit = queue.take(choice)
            taken += [] if unit is None else [unit]
        elif added and added[choice % len(added)] not in taken:
            unit = added[choice % len(added)]
            unit.stage = READY + 2
            dropped.append(unit)
        assert len(queue.order) == sum(len(line) - 1 for line in queue.order._lines.values())
    while (unit := queue.take(0)) is not None:
        taken.append(unit)
    assert {unit.number for unit in taken} >= {unit.number for unit in added if unit not in dropped}
    for value in {unit.value for unit in added}:
        numbers = [unit.number for unit in taken if unit.value == value]
        assert numbers == sorted(numbers)
    queue.turns()
    assert len(queue.order) == 0


def test_a_unit_that_is_ready_again_keeps_its_place():
    queue = Queue()
    first, second, third = (Work("v", number) for number in range(3))
    for unit in (first, second, third):
        queue.add(unit)
    second.stage = 0
    second.stage = READY
    queue.add(second)
    queue.add(first)
    assert len(queue.order) == 2
    assert [queue.take(0) for _ in range(3)] == [first, first, second], "a policy drops what is there twice"


def test_values_of_which_nothing_waits_are_forgotten():
    queue = Queue()
    for number in range(5_000):
        unit = Work(f"v{number}", number)
        queue.add(unit)
        if number % 2:
            assert queue.take(0) is not None
        else:
            unit.stage = READY + 2
    assert len(queue.order._lines) <= 2 * 1 + order_values_slack + 2


def test_a_call_looks_at_so_many_values_and_the_next_one_at_others():
    order: ArrivalOrder[Work] = ArrivalOrder()
    heads = [Work(f"v{number}", 2 * number) for number in range(6)]
    behind = [Work(head.value, head.number + 1) for head in heads]
    for unit in (*heads, *behind):
        order.arrived(unit.value, unit, len(heads))
    for head in heads:
        head.stage = 0
    due = [order.turns(2) for _ in range(4)]
    assert [len(pairs) for pairs in due] == [2, 2, 2, 0]
    assert [pair for pairs in due for pair in pairs] == list(zip(heads, behind, strict=True))
