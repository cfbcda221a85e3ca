"""A simulated model process: non-deterministic, slow, and sometimes wrong, as its plan says.

It obeys the model contract (a stateful one stops before its update stage and asks; a capture sees the state
of the moment it was asked for) and reports when the core breaks it: an update entered while a capture runs
would tear the captured state.
"""

import hashlib
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from hams_protocol.effects import BatchUnit
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    Event,
    Loaded,
    ModelDied,
    ModelReady,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import FEEDBACK, Operator
from hams_protocol.ids import UnitId
from hams_protocol.modes import ModePolicy
from hams_sim import limits
from hams_sim.errors import Broken
from hams_sim.payload import SimPayload, SimState

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


class Behaviour:
    """What one operator's model does: seconds per stage, and probabilities per unit or batch."""

    __slots__ = (
        "capture_s",
        "compute_s",
        "error",
        "idle_update",
        "load_s",
        "preload_s",
        "raises",
        "refuse",
        "routes",
        "start_s",
        "unreadable",
        "update_s",
    )

    def __init__(self, rng: Random) -> None:
        self.compute_s = rng.choice((0.0005, 0.002, 0.006))
        self.update_s = rng.choice((0.0002, 0.001, 0.004))
        self.capture_s = rng.choice((0.0005, 0.003, 0.012))
        self.load_s = self.preload_s = 0.002
        self.start_s = 0.05
        self.error = 0.0
        self.raises = 0.0
        self.idle_update = 0.0
        self.refuse = 0.0
        self.routes = False
        self.unreadable = 0.0

    def hurry(self) -> None:
        """Nothing takes more than a moment from now on."""
        self.compute_s = self.update_s = self.capture_s = limits.quick_s


class SimModel:
    """One model process. `life` invalidates what an earlier process was about to say.

    `incomplete`: a process died with a state of which its proxy has no copy (`_safe` is the newest that it
    has), and none was loaded since.
    """

    __slots__ = (
        "_asks",
        "_base",
        "_batch",
        "_capturing",
        "_continues",
        "_enter",
        "_loading",
        "_reckless",
        "_safe",
        "_units",
        "_updating",
        "_waiting",
        "behaviour",
        "incomplete",
        "life",
        "node",
        "operator",
        "rng",
        "state",
        "up",
        "world",
    )

    def __init__(self, world: "World", node: "Node", operator: Operator, behaviour: Behaviour) -> None:
        self.world = world
        self.node = node
        self.operator = operator
        self.behaviour = behaviour
        self.rng = world.model_rng
        self.state: SimState | None = None
        self.life = 0
        self.up = False
        self.incomplete = False
        self._safe: SimState | None = None
        self._batch = -1
        self._units: tuple[BatchUnit, ...] = ()
        self._enter = self._asks = False
        self._reckless: set[int] = set()
        self._capturing = 0
        self._base: SimState | None = None
        self._continues = False
        self._updating = False
        self._loading = False
        self._waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def start(self) -> None:
        """A fresh process: `initialize` is not deterministic either."""
        self.life += 1
        self.up = False
        self._batch = -1
        self._capturing = 0
        self._updating = self._loading = False
        self._waiting = []
        self._after(self.behaviour.start_s * (0.5 + self.rng.random()), self._ready)

    def kill(self) -> None:
        """The process is gone; its proxy sees it at once."""
        if self.up:
            self.up = False
            self.life += 1
            self.incomplete = self.incomplete or self.state is not self._safe
            self.world.refusals.died(self.node)
            self.world.calm.hurt(self.node.id, self.behaviour.start_s + self.behaviour.load_s)
            self.world.feed(self.node, ModelDied("killed"))

    @property
    def alone(self) -> UnitId | None:
        """The unit that it runs in a batch of its own."""
        return self._units[0].unit if self._batch >= 0 and len(self._units) == 1 else None

    def _after(self, delay: float, call: object, *args: object) -> None:
        self.world.after(delay, self._fire, self.life, call, args)

    def _fire(self, life: int, call: object, args: tuple[object, ...]) -> None:
        if life == self.life and self.node.alive:
            call(*args)  # type: ignore[operator]

    def _say(self, event: Event) -> None:
        self.world.feed(self.node, event)

    def _ready(self) -> None:
        self.up = True
        if self.operator.stateful:
            self.state = self._safe = self._base = SimState(None, (), self.rng.getrandbits(60))
        self._say(ModelReady(self.operator.name, self.state))

    # -- running ---------------------------------------------------------------------------------------------

    def start_batch(self, batch: int, units: tuple[BatchUnit, ...], enter: bool = False) -> None:
        """The compute stage begins, or will."""
        if self._capturing and ModePolicy.of(self.world.graph.data.mode).stops_to_copy:
            raise Broken("core", f"{self.node.id} starts batch {batch} while a capture runs")
        for unit in units:
            for source, payload in unit.inputs:
                if payload is not None and payload.defect:
                    raise Broken(
                        "core", f"{self.node.id} runs {unit.unit} on what it cannot read, from {source}"
                    )
        if self.up:
            if self.world.truth.is_reckless(self.node, units):
                self._reckless.add(batch)
            self._start_batch(batch, units, enter)

    def _start_batch(self, batch: int, units: tuple[BatchUnit, ...], enter: bool) -> None:
        if self._batch >= 0 or self._loading:
            self._waiting.append((self._start_batch, (batch, units, enter)))
            return
        self._batch = batch
        self._units = units
        self._enter = enter
        self._asks = False
        self._after(self._time(self.behaviour.compute_s), self._computed, batch)

    def _time(self, base: float) -> float:
        return base * self.node.slow * (0.5 + self.rng.random())

    def _computed(self, batch: int) -> None:
        if batch != self._batch:
            return
        for unit in self._units:
            for _, payload in unit.inputs:
                if payload is not None and getattr(payload, "poison", "") == self.operator.name:
                    self.world.seen("poison")
                    self.world.errored.add(unit.unit.request)
                    if batch in self._reckless or (
                        (self.world.deadly or self.rng.random() < 0.3)
                        and self.world.truth.may_hurt(self.node)
                    ):
                        self.world.lives.poisoned[self.operator.name, unit.unit] += 1
                        self.world.lives.kill(self.node, "poison took the proxy too", restart=True)
                    else:
                        self.kill()
                    self._batch = -1
                    return
        behaviour, chance = self.behaviour, self._drawn(self._hashed("batch")).random()
        if chance < behaviour.raises and len(self._units) > 1:
            self.world.seen("batch raised")
            self._finish(BatchFailed(self._batch, "raised", False))
        elif not self.operator.stateful or chance > 1 - behaviour.idle_update:
            self._finish(BatchDone(self._batch, self._results(False), False))
        elif self._enter:
            self._update()
        else:
            self._asks = True
            self._say(UpdateWanted(self._batch))

    def enter_update(self, batch: int) -> None:
        """The model may write its state, once it gets there."""
        if batch == self._batch and not self._updating:
            self._enter = True
            if self._asks:
                self._update()
        elif batch != self._batch:
            self._waiting = [
                (call, (*args[:2], True)) if (call, args[0]) == (self._start_batch, batch) else (call, args)
                for call, args in self._waiting
            ]

    def _update(self) -> None:
        self._asks = False
        if self._capturing:
            raise Broken(
                "core",
                f"{self.node.id}: the update of batch {self._batch} was let in while a capture runs: the "
                "state is torn",
            )
        self._updating = True
        self._after(self._time(self.behaviour.update_s), self._updated)

    def _updated(self) -> None:
        if self.rng.random() < self.behaviour.raises:
            self.state = SimState(self.state, ((self._units[0].unit, -1),), self.rng.getrandbits(60))
            message = f"{self.operator.name} raised in its update, {self.world.new_nonce()}"
            if len(self._units) == 1:
                self.world.errored.add(self._units[0].unit.request)
                self.world.refusals.failed(self.operator.name, self._units[0].unit.request, message)
            self._finish(BatchFailed(self._batch, message, True))
        else:
            self._finish(BatchDone(self._batch, self._results(True), True))

    def abandon(self, batch: int) -> None:
        """The batch must not enter its update stage."""
        if batch == self._batch:
            if not self._enter:  # who was let in hears of nothing before it has written
                self._finish(BatchFailed(batch, "abandoned", False))
        else:
            self._waiting = [
                item for item in self._waiting if item[1][0] != batch or item[0] != self._start_batch
            ]

    def _finish(self, event: Event) -> None:
        self._batch = -1
        self._updating = False
        self._say(event)
        self._next()

    def _next(self) -> None:
        """One thread: what was asked in the meantime begins now, in its order."""
        if self._waiting and self._batch < 0 and not self._loading:
            call, args = self._waiting.pop(0)
            call(*args)

    def _results(self, updated: bool) -> tuple[UnitResult, ...]:
        op, rng, behaviour, world = self.operator, self.rng, self.behaviour, self.world
        results: list[UnitResult] = []
        entries = []
        for unit in self._units:
            parents = tuple(payload for _, payload in unit.inputs if payload is not None)
            nonce = self._nonce(unit, parents)  # type: ignore[arg-type]
            chance = self._drawn(nonce).random()
            if chance < behaviour.error:
                world.errored.add(unit.unit.request)
                message = f"{op.name} fails sometimes, {nonce}"
                world.refusals.failed(op.name, unit.unit.request, message)
                results.append(UnitResult(unit.unit, error=message))
                continue
            if chance > 1 - behaviour.refuse:
                world.unwritten.add((op.name, unit.unit))
                world.errored.add(unit.unit.request)
                world.refusals.declined(op.name, unit.unit.request)
                results.append(UnitResult(unit.unit, refused=True))
                continue
            poison = next((item.poison for item in parents if item.poison), "")  # type: ignore[attr-defined]
            unreadable = None
            if behaviour.unreadable and rng.random() < behaviour.unreadable:
                unreadable = world.unreadable(rng.choice(("all", "some")), unit.unit.request)
            payload = SimPayload(
                op.name,
                unit.unit,
                nonce,
                parents,  # type: ignore[arg-type]
                poison,
                unreadable=unreadable,
            )
            entries.append((unit.unit, nonce))
            if not updated:
                world.unwritten.add((op.name, unit.unit))
            results.append(UnitResult(unit.unit, payload, route=self._route(nonce)))
        if updated:
            before = self.state
            assert before is not None
            self.state = SimState(before, tuple(entries), hash((before.digest, tuple(entries))))
        return tuple(results)

    def _nonce(self, unit: BatchUnit, parents: tuple[SimPayload, ...]) -> int:
        """What it computes: another number each time, or the same one for the same inputs, state and
        batch."""
        if not self.world.deterministic:
            return self.world.new_nonce()
        return self._hashed(unit.unit, *(item.nonce for item in parents))

    def _hashed(self, *of: object) -> int:
        """A number for these, computed in this state and this batch."""
        inside = () if self.state is None else (self.state.digest, *(item.unit for item in self._units))
        text = repr((self.operator.name, of, inside))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())

    def _drawn(self, nonce: int) -> Random:
        """Where its chances come from: the same ones where it computes the same."""
        return Random(nonce) if self.world.deterministic else self.rng

    def _route(self, nonce: int) -> tuple[str, ...] | None:
        op, rng = self.operator, self._drawn(nonce)
        if op.feedback is not None:
            return (*op.successors, FEEDBACK) if rng.random() < 0.4 else None
        if not self.behaviour.routes:
            return None
        return tuple(target for target in op.successors if rng.random() < 0.6)

    # -- state -----------------------------------------------------------------------------------------------

    def capture(self, version: int) -> None:
        """Copy the state of this moment out, beside the next compute stage."""
        if not self.up:
            return
        assert self.state is not None
        if self._updating:
            raise Broken(
                "core", f"{self.node.id}: version {version} is captured during the update that follows"
            )
        self._capturing += 1
        self._continues = not self._loading
        captured = self.state.captured(version, self._base)
        self._after(self._time(self.behaviour.capture_s), self._captured, version, self.state, captured)

    def _captured(self, version: int, state: SimState, captured: SimState) -> None:
        self._capturing -= 1
        self._safe = state
        if self._continues:
            self._base = captured
        self._say(Captured(version, captured))

    def load(self, token: int, state: SimState) -> None:
        """Take over a state; `token` 0 is a joiner's first, which warms the model."""
        if not self.up:
            return
        self._base, self._continues = None, False
        if self._batch >= 0 or self._loading:
            self._waiting.append((self.load, (token, state)))
            return
        self._loading = True
        load_s = (
            self._time(self.behaviour.load_s)
            if token
            else self.behaviour.preload_s * (0.5 + self.rng.random())
        )
        self._after(load_s, self._loaded, token, state)

    def _loaded(self, token: int, state: SimState) -> None:
        self.state = self._safe = self._base = state
        if self.incomplete:
            self.incomplete = False
            self.world.calm.hurt(self.node.id, 0.0)
        self._loading = False
        self._say(Loaded(token))
        self._next()
