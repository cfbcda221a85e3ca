"""A queue under its laws, through whatever the core may do with a unit: who waits is handed out once."""

import copy
import math
import random

import pytest

from hams_schedule.lawful import Lawful

from . import kit
from .kit import MAX_ROWS, POLICIES, Took, Work, profiles

HISTORIES = 60
STEPS = 60
LEARNT = profiles()


class Core:
    """Units of one operator, and what is known of each: it waits, runs, is put off, or is reset."""

    def __init__(self, name: str, seed: int) -> None:
        self.draw = random.Random(seed)
        self.queue: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
        self.now = 0.0
        self.batch = 0
        self.since = 0.0
        self.units: list[Work] = []
        self.waiting: list[Work] = []
        self.running: list[Work] = []
        self.put_off: list[Work] = []
        """Handed out as suspects, and not run yet."""
        self.withdrawn: list[Work] = []

    def step(self) -> None:
        self.now += self.draw.choice([0.0, 0.0, 0.001, 0.01, 0.05])
        often = (self.arrive, self.end, self.serve)
        calls = (
            self.reset,
            self.come_back,
            self.come_again,
            self.suspect,
            self.withdraw,
            self.resume,
            self.plan,
        )
        self.draw.choice((*often, *often, *calls))()
        assert len(self.queue) >= len(self.waiting)

    def vary(self, unit: Work) -> None:
        """As a unit's inputs change, so does all that follows from them."""
        unit.batch_key = self.draw.choice([unit.batch_key, "", "other"])
        unit.rows = self.draw.choice([unit.rows, 1, 2, MAX_ROWS, MAX_ROWS + 5])
        unit.due = self.draw.choice([unit.due, self.due()])
        unit.cls = self.draw.choice([unit.cls, 0, 8, 128, 3])

    def due(self) -> float:
        return self.draw.choice([math.inf, *(self.now + slack for slack in (0.02, 0.1, 0.3, 0.5, 1.0, 9.0))])

    def arrive(self) -> None:
        for _ in range(self.draw.choice([1, 1, 2, 5])):
            unit = Work(attempts=int(self.draw.random() < 0.1))
            self.vary(unit)
            self.units.append(unit)
            self.waits(unit)

    def waits(self, unit: Work, first: bool = False) -> None:
        self.waiting.append(unit)
        (self.queue.add_first if first else self.queue.add)(unit, self.now)

    def reset(self) -> None:
        candidates = [unit for unit in self.units if unit.stage in (1, 2)]
        candidates = [unit for unit in candidates if unit not in self.put_off and unit not in self.withdrawn]
        if candidates:
            unit = self.draw.choice(candidates)
            unit.stage = 0
            self.waiting = [other for other in self.waiting if other is not unit]

    def come_back(self) -> None:
        for unit in [unit for unit in self.units if unit.stage == 0][: self.draw.choice([1, 2, 5])]:
            self.vary(unit)
            unit.stage = 1
            self.waits(unit)

    def come_again(self) -> None:
        if self.waiting:
            unit = self.draw.choice(self.waiting)
            self.vary(unit)
            self.queue.add(unit, self.now)

    def suspect(self) -> None:
        candidates = [unit for unit in self.units if unit.stage in (0, 1)]
        candidates = [unit for unit in candidates if unit not in self.put_off and unit not in self.withdrawn]
        if candidates:
            unit = self.draw.choice(candidates)
            unit.attempts += 1
            self.queue.suspected(unit, self.now)

    def withdraw(self) -> None:
        if self.waiting:
            unit = self.waiting.pop(self.draw.randrange(len(self.waiting)))
            self.withdrawn.append(unit)
            self.queue.withdraw(unit)

    def resume(self) -> None:
        if self.withdrawn:
            unit = self.withdrawn.pop()
            self.vary(unit)
            self.waits(unit)
        elif self.put_off:
            self.waits(self.put_off.pop(), first=True)

    def plan(self) -> None:
        for _ in range(self.draw.choice([1, 2, 40]) if self.running else 0):
            if not self.queue.plan(self.now, self.draw.choice([0.002, 0.05])):
                break

    def end(self) -> None:
        if not self.running:
            return
        self.now += self.draw.choice([0.005, 0.03, 0.1])
        ok, units, self.running = self.draw.random() < 0.7, self.running, []
        self.queue.finished(self.batch, Took(self.now - self.since, ok=ok), self.now)
        for unit in reversed(units):
            if unit.stage == 2 and ok:
                unit.stage = 3
            elif unit.stage == 2:
                unit.stage = 1
                unit.attempts += self.draw.random() < 0.3
                self.waits(unit, first=True)

    def serve(self, settled: bool = False) -> None:
        if self.running:
            return
        for unit in self.handed_out(self.queue.late(self.now)):
            unit.stage = 3
        units = self.handed_out(self.queue.take(self.now))
        for unit in [] if settled else list(units):
            if self.draw.random() < 0.15:
                units = [other for other in units if other is not unit]
                self.put_off.append(unit)
        for unit in units:
            unit.stage = 2
        if units:
            self.batch += 1
            self.since, self.running = self.now, units
            self.queue.started(self.batch, units, self.now)
        else:
            self.queue.deadline()

    def handed_out(self, units: list[Work]) -> list[Work]:
        for unit in units:
            assert unit.stage == 1
            at = next((at for at, other in enumerate(self.waiting) if other is unit), None)
            assert at is not None, "it does not wait"
            del self.waiting[at]
        return units

    def drain(self) -> None:
        """Everything that waits is answered."""
        for unit in self.running:
            unit.stage = 3 if unit.stage == 2 else unit.stage
        if self.running:
            self.queue.finished(self.batch, Took(0.02), self.now)
        self.running = []
        for _ in range(500):
            if not self.waiting:
                return
            self.now += 0.1
            self.serve(settled=True)
            for unit in self.running:
                unit.stage = 3
            if self.running:
                self.queue.finished(self.batch, Took(0.02), self.now + 0.02)
            self.running = []
        raise AssertionError(f"{len(self.waiting)} units wait for ever")


@pytest.mark.parametrize("name", list(POLICIES))
def test_each_unit_that_waits_is_handed_out_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "profiles", lambda: copy.deepcopy(LEARNT))
    for seed in range(HISTORIES):
        core = Core(name, seed)
        for _ in range(STEPS):
            core.step()
        core.drain()
        assert not core.queue.failed


@pytest.mark.parametrize("name", list(POLICIES))
def test_nothing_is_kept_of_units_that_have_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "profiles", lambda: copy.deepcopy(LEARNT))
    queue: Lawful[Work] = Lawful(POLICIES[name](), MAX_ROWS, replace=False)
    for number in range(200):
        unit = Work(due=number + 9.0)
        queue.add(unit, float(number))
        queue.add(unit, float(number))
        unit.attempts = 1
        queue.suspected(unit, float(number))
        (taken,) = queue.take(float(number))
        taken.stage = 2
        queue.started(number, [taken], float(number))
        queue.plan(float(number), 0.002)
        queue.finished(number, Took(0.02), number + 0.02)
        taken.stage = 3
        assert queue.take(number + 0.02) == []
    assert (len(queue), len(queue.policy)) == (0, 0)
    assert not queue._entries
    assert not queue._suspects
