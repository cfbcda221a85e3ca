"""`python -m hams_sidecar.measuring`: what batches of an operator take, measured off the path of requests.

It speaks to model processes of its own, one for each operator that is measured and for each before those:
what these make of a request is what the measured one gets. No instance, no topology and no state of a graph
is touched; outputs are thrown away. Whoever starts it starts the models too (`hams profile --run`).
"""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hams_protocol.effects import BatchUnit, StartBatch
from hams_protocol.events import BatchDone, BatchFailed, ModelDied, ModelReady
from hams_protocol.graph import FRONTEND, Graph, Join, Operator
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.messages import Meta, Payload
from hams_schedule.stored import dump
from hams_sidecar import limits
from hams_sidecar.arena import Arena, ArenaFull, ArenaTooSmall
from hams_sidecar.model.link import ModelEvent, ModelLink
from hams_sidecar.payload import TensorPayload, layout
from hams_sidecar.profile_store import identity_of
from hams_wire.measuring import (
    MeasuredTimes,
    MeasuringRequest,
    MeasuringTask,
    decode_task,
    encode_measured,
    needed,
    operator_s_max,
)
from hams_wire.profiles import report
from hams_wire.scheduling import PolicyQueue, kind_of
from hams_wire.spec import decode_spec

WARM_UP = 3
"""First runs of a size, which are not measured: they compile, allocate and fill caches."""
BATCHES_SHARE = 16
BATCHES_MIN = 4
"""Batches of each size: one for so many samples, and this many at least."""
REFRESH = 32
"""Batches between two looks at what is to be learnt."""
INSTANCE = "measuring"


class CannotMeasure(Exception):
    """The models do not run; the text says which and why."""


class MeasuredModel:
    """A model process of an operator, which runs one batch at a time."""

    def __init__(self, graph: Graph, operator: str, arena: Arena) -> None:
        self.operator = graph.operators[operator]
        self._link = ModelLink(graph, operator, arena, arena, self._on_event)
        self._events: asyncio.Queue[ModelEvent] = asyncio.Queue()
        self._numbers = itertools.count(1)

    def _on_event(self, event: ModelEvent) -> None:
        self._events.put_nowait(event)

    async def listen(self, folder: Path) -> None:
        """Take the model process. Raises OSError."""
        await self._link.listen(folder / f"{self.operator.name}.sock")

    async def ready(self) -> None:
        """Wait for it. Raises CannotMeasure."""
        event = await self._events.get()
        if not isinstance(event, ModelReady):
            raise CannotMeasure(f"the model of {self.operator.name}: {_reason(event)}")

    async def run(self, units: Sequence[BatchUnit]) -> tuple[BatchDone | BatchFailed, float]:
        """Run a batch: what came of it, and how long the model took, in seconds. Raises CannotMeasure."""
        number = next(self._numbers)
        fresh = tuple(
            BatchUnit(UnitId(RequestId(0, index), ()), unit.meta, unit.inputs)
            for index, unit in enumerate(units)
        )
        since = asyncio.get_running_loop().time()
        self._link.perform(StartBatch(number, fresh, enter=True))
        event = await self._events.get()
        if not isinstance(event, BatchDone | BatchFailed):
            raise CannotMeasure(f"the model of {self.operator.name}: {_reason(event)}")
        return event, event.compute_s or asyncio.get_running_loop().time() - since

    async def close(self) -> None:
        """Let the model process go."""
        await self._link.close()


class Learnt:
    """What is learnt of one operator, and how many of its requests failed."""

    def __init__(self, operator: Operator, clock: Callable[[], float]) -> None:
        self.operator = operator
        self.queue = PolicyQueue(operator.batch)
        self.failed = 0
        self._clock = clock
        self._batches = 0

    def add(self, units: Sequence[BatchUnit], seconds: float) -> None:
        """A batch took so long."""
        profiles = self.queue.profiles
        kinds = [kind_of(self.operator.batch, dict(unit.meta.parameters), rows_of(unit)) for unit in units]
        rows = sum(map(rows_of, units))
        classes = [profiles.classify(app, feature) for app, feature in kinds]
        if len(units) == 1:
            profiles.observe_feature(*kinds[0], seconds, rows)
        profiles.observe_batch(classes, rows, seconds, self._clock())
        self._batches += 1
        if self._batches % REFRESH == 0:
            while profiles.refresh():
                pass

    def times(self) -> MeasuredTimes:
        """The whole of it."""
        profiles, batch = self.queue.profiles, self.operator.batch
        profiles.settle()
        seen = report(self.operator.name, INSTANCE, INSTANCE, batch.policy, self.queue, self._clock())
        return MeasuredTimes(
            self.operator.name, dump(profiles, identity_of(self.operator)), seen, self.failed
        )


def rows_of(unit: BatchUnit) -> int:
    """How much of a batch it fills."""
    payloads = [payload for _, payload in unit.inputs if isinstance(payload, TensorPayload)]
    return max([payload.rows for payload in payloads], default=1)


def batch_key(unit: BatchUnit) -> tuple[str, ...]:
    """Units whose keys differ share no batch."""
    return tuple(payload.batch_key for _, payload in unit.inputs if isinstance(payload, TensorPayload))


async def measure(
    graph: Graph, task: MeasuringTask, folder: Path, most_s: float = operator_s_max
) -> tuple[MeasuredTimes, ...]:
    """The times of each operator of a task; models connect to sockets in `folder`. Raises CannotMeasure."""
    arena = Arena(limits.arena_bytes_max, path=folder / "arena")
    models = {
        operator.name: MeasuredModel(graph, operator.name, arena)
        for operator in needed(graph, task.operators)
    }
    try:
        for model in models.values():
            await model.listen(folder)
        for model in models.values():
            await model.ready()
        units = await _units(task, models, arena)
        clock = asyncio.get_running_loop().time
        measured = []
        for name in task.operators:
            learnt = Learnt(graph.operators[name], clock)
            await _measured(models[name], units[name], task.samples, learnt, most_s)
            measured.append(learnt.times())
        return tuple(measured)
    except (ArenaFull, ArenaTooSmall) as error:
        raise CannotMeasure(f"the requests are too large: {error}") from None
    finally:
        for model in models.values():
            await model.close()


async def _units(
    task: MeasuringTask, models: dict[str, MeasuredModel], arena: Arena
) -> dict[str, list[BatchUnit]]:
    """What each operator gets of each request, if it gets any. Raises CannotMeasure, ArenaFull."""
    units: dict[str, list[BatchUnit]] = {name: [] for name in task.operators}
    before = {edge.source for model in models.values() for edge in model.operator.in_edges}
    why = "no request reaches it"
    for number, request in enumerate(task.requests):
        payloads: dict[str, Payload] = {FRONTEND: _payload(request, arena)}
        for name, model in models.items():
            unit = _unit(model.operator, request, payloads, number)
            if unit is None:
                continue
            if name in units:
                units[name].append(unit)
            if name not in before:
                continue
            event, _ = await model.run([unit])
            result = event.results[0] if isinstance(event, BatchDone) else None
            if result is not None and result.payload is not None:
                payloads[name] = result.payload
            else:
                said = event.message if isinstance(event, BatchFailed) else (result and result.error)
                why = f"no request passes {name}: {said or 'it refuses them'}"
    empty = next((name for name, of_it in units.items() if not of_it), None)
    if empty is not None:
        raise CannotMeasure(f"{empty} cannot be measured: {why}")
    return units


def _unit(
    operator: Operator, request: MeasuringRequest, payloads: dict[str, Payload], number: int
) -> BatchUnit | None:
    """What an operator gets of a request; None if not all of it is there. Of several inputs that come one by
    one the first that is there."""
    edges = operator.in_edges
    if operator.join is not Join.COMBINE:
        edges = tuple(edge for edge in edges if edge.source in payloads)[:1]
    if not edges or any(edge.source not in payloads for edge in edges):
        return None
    meta = Meta(tuple(request.parameters.items()))
    inputs = tuple((edge.source, payloads[edge.source]) for edge in edges)
    return BatchUnit(UnitId(RequestId(0, number), ()), meta, inputs)


def _payload(request: MeasuringRequest, arena: Arena) -> TensorPayload:
    """The tensors of a request in the memory that models see. Raises ArenaFull, ArenaTooSmall."""
    tensors, nbytes = layout(
        [(item.name, item.datatype, item.shape, len(item.data)) for item in request.tensors]
    )
    payload = TensorPayload(tensors, arena.allocate(nbytes))
    for tensor, item in zip(tensors, request.tensors, strict=True):
        payload.view(tensor)[:] = item.data
    return payload


async def _measured(
    model: MeasuredModel, units: list[BatchUnit], samples: int, learnt: Learnt, most_s: float
) -> None:
    """Run requests alone, then batches of each size, for `most_s` at most. Raises CannotMeasure."""
    clock = asyncio.get_running_loop().time
    since = clock()
    await _repeat(model, itertools.cycle([[unit] for unit in units]), samples, learnt, since + most_s / 2)
    groups: dict[tuple[str, ...], list[BatchUnit]] = {}
    for unit in units:
        groups.setdefault(batch_key(unit), []).append(unit)
    alike: list[BatchUnit] = max(groups.values(), key=len)
    stream = itertools.cycle(alike)
    sizes = sizes_up_to(learnt.operator.batch.max_rows)
    for index, size in enumerate(sizes, 1):
        batches = (_filled(stream, size) for _ in itertools.count())
        until = since + most_s / 2 * (1 + index / len(sizes))
        await _repeat(model, batches, max(samples // BATCHES_SHARE, BATCHES_MIN), learnt, until)


async def _repeat(
    model: MeasuredModel,
    batches: Iterable[Sequence[BatchUnit]],
    count: int,
    learnt: Learnt,
    until: float,
) -> None:
    """Run and measure `count` batches, after a few that are not measured; one at least, whatever it takes."""
    clock = asyncio.get_running_loop().time
    for number, batch in enumerate(itertools.islice(batches, WARM_UP + count)):
        event, seconds = await model.run(batch)
        failed = isinstance(event, BatchFailed) or any(result.error is not None for result in event.results)
        learnt.failed += failed
        if not failed and (number >= WARM_UP or clock() >= until):
            learnt.add(batch, seconds)
        if clock() >= until:
            return


def _filled(stream: "itertools.cycle[BatchUnit]", size: int) -> list[BatchUnit]:
    """The next units that fill a batch of `size` rows: one too many rather than one too few."""
    batch = [next(stream)]
    while sum(map(rows_of, batch)) < size:
        batch.append(next(stream))
    return batch


def sizes_up_to(max_rows: int) -> list[int]:
    """The rows of batches that are measured: powers of two, and the largest batch."""
    sizes = [1 << exponent for exponent in range(1, max_rows.bit_length()) if 1 << exponent < max_rows]
    return [*sizes, max_rows] if max_rows > 1 else []


def _reason(event: ModelEvent) -> str:
    return event.reason if isinstance(event, ModelDied) else f"said {type(event).__name__}"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if everything is measured; else a line on stderr says what is wrong."""
    parser = argparse.ArgumentParser("hams-measuring", description="measure the times of operators")
    parser.add_argument("--graph", required=True, type=Path, help="the compiled graph")
    parser.add_argument("--task", required=True, type=Path, help="what is to be measured, with what")
    parser.add_argument("--folder", required=True, type=Path, help="where sockets and memory lie")
    parser.add_argument("--out", required=True, type=Path, help="where to write what was measured")
    given = parser.parse_args(arguments)
    graph, task = decode_spec(given.graph.read_bytes()), decode_task(given.task.read_bytes())
    try:
        measured = asyncio.run(measure(graph, task, given.folder))
    except CannotMeasure as error:
        sys.stderr.write(f"{error}\n")
        return 1
    given.out.write_bytes(encode_measured(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
