"""What a graph's fields must mean together, beyond what each field allows alone.

Every check notes all it finds; none assumes that another has passed. Bounds and kinds of single fields are
checked while reading (`fields`, `resource`), names of inputs while wiring (`wiring`).
"""

import itertools
import re
from collections.abc import Iterable

from hams_graph import resource as rs
from hams_graph.fields import Notes, duration, quantity
from hams_graph.memory import held_bytes
from hams_graph.problems import Path, did_you_mean, listed, spell
from hams_graph.unread import why_unread
from hams_graph.wiring import REQUEST, EdgeTensor, TensorType, Wiring, called, operator_path, wire
from hams_protocol.graph import (
    FRONTEND,
    AdmissionPolicy,
    Join,
    Mode,
    SchedulePolicy,
    WhenLate,
    WhenUnprotected,
)
from hams_protocol.limits import queue_units_max
from hams_protocol.modes import ModePolicy

RESERVED = (REQUEST, "reply", "frontend", "manager")
"""Names with a meaning of their own in inputs, routes and `hams kill`."""

_OF_A_SHAPE = re.compile(r".+-r[0-9]+")
"""Operator `b` of a graph's second shape is the Deployment `NAME-b-r1`: an operator `b-r1` of its first would
be the same one."""


def check(resource: rs.ServiceGraph, notes: Notes, *, on_kubernetes: bool = False) -> Wiring:
    """Notes every problem of `resource`; the wiring is right if there was none. Only on Kubernetes a model
    needs an image."""
    _check_names(resource.spec, notes)
    wiring = wire(resource, notes)
    for position, op in enumerate(resource.spec.operators):
        _check_inputs(wiring, notes, position, op)
        _check_state(resource.spec, notes, position, op)
        _check_replay(resource.spec, notes, position, op)
        _check_outputs(notes, position, op)
        _check_feedback(wiring, notes, position, op)
        _check_entrypoint(notes, position, op.model.entrypoint)
        if on_kubernetes and not op.model.image and op.model.entrypoint:
            notes.say(
                (*operator_path(position), "model", "image"),
                f'is missing: on Kubernetes "{op.name}" runs from a container image',
            )
    _check_replies(wiring, notes)
    _check_reach(wiring, notes)
    _check_bounds(wiring, notes)
    return wiring


def _check_entrypoint(notes: Notes, position: int, entrypoint: str) -> None:
    module, _, name = entrypoint.partition(":")
    if module.endswith(".py"):
        notes.say(
            (*operator_path(position), "model", "entrypoint"),
            f'"{module}" is a file; a module is wanted; did you mean "{module.removesuffix(".py")}:{name}"?',
        )


def _check_names(spec: rs.GraphSpec, notes: Notes) -> None:
    _distinct(notes, ("spec", "inputs"), [item.name for item in spec.inputs])
    _distinct(notes, ("spec", "outputs"), [item.name for item in spec.outputs])
    _distinct(notes, ("spec", "operators"), [item.name for item in spec.operators])
    for position, op in enumerate(spec.operators):
        _distinct(notes, (*operator_path(position), "outputs"), [item.name for item in op.outputs])
        if op.name in RESERVED:
            notes.say(
                (*operator_path(position), "name"),
                f'"{op.name}" is reserved ({listed(RESERVED, last="and")} are); choose another name',
            )
        elif _OF_A_SHAPE.fullmatch(op.name):
            notes.say(
                (*operator_path(position), "name"),
                f'"{op.name}" ends like the objects of another shape of a graph (-r and a number); choose '
                "another name",
            )


def _distinct(notes: Notes, path: Path, names: Iterable[str]) -> None:
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if name and first.setdefault(name, number) != number:
            notes.say(
                (*path, number, "name"),
                f'the name "{name}" is already taken by {spell((*path, first[name]))}',
            )


def _check_inputs(wiring: Wiring, notes: Notes, position: int, op: rs.OperatorSection) -> None:
    path = (*operator_path(position), "inputs")
    if not op.inputs:
        if not notes.problems_at(path):
            notes.say(path, f'no path from request to "{op.name}": an operator without inputs never runs')
        wiring.certain = False
        return
    edges = wiring.edges[position]
    taken: dict[str, tuple[str, EdgeTensor]] = {}
    for source, items in edges.items():
        if op.join is not Join.COMBINE:
            taken = {}
        for item in items:
            source_before, before = taken.setdefault(item.name, (source, item))
            if before is item:
                continue
            if (source_before, before.tensor) == (source, item.tensor):
                notes.say(
                    (*path, item.position),
                    f'takes "{called(source)}.{item.tensor}" a second time; the first is '
                    f"inputs[{before.position}]",
                )
            else:
                notes.say(
                    (*path, item.position),
                    f'the name "{item.name}" is already taken by "{called(source_before)}.{before.tensor}" '
                    f"(inputs[{before.position}]); "
                    f"give one of them another name: {{from: {called(source)}.{item.tensor}, as: ...}}",
                )
    if op.join is not Join.COMBINE and len(edges) > 1:
        _check_alike(wiring, notes, path, op.join, edges)


def _check_alike(
    wiring: Wiring, notes: Notes, path: Path, join: Join, edges: dict[str, list[EdgeTensor]]
) -> None:
    """Under Interleave and First a run sees one edge, whichever it is: all edges must look the same to the
    model."""
    (first, wanted), *others = edges.items()
    names = {item.name: item for item in wanted}
    for source, items in others:
        if not (items and wanted):
            continue  # nothing that it names is there, which has been said
        by_name = {item.name: item for item in items}
        if set(by_name) != set(names):
            notes.say(
                (*path, items[0].position),
                f"under {join.value} every edge must bring the same names, "
                f'but "{called(first)}" brings {listed(names, last="and")} and "{called(source)}" brings '
                f'{listed(by_name, last="and")}; "as" renames',
            )
            continue
        for name, item in names.items():
            mine, other = wiring.type_of(first, item.tensor), wiring.type_of(source, by_name[name].tensor)
            if mine and other and mine != other:
                notes.say(
                    (*path, by_name[name].position),
                    f'under {join.value} every edge must bring the same tensors, but "{name}" is {mine} '
                    f'from "{called(first)}" '
                    f'and {other} from "{called(source)}"',
                )


def _check_state(spec: rs.GraphSpec, notes: Notes, position: int, op: rs.OperatorSection) -> None:
    path = operator_path(position)
    if op.stateful is None:
        return
    if op.replicas != 1:
        notes.say(
            (*path, "replicas"),
            f'"{op.name}" is stateful: one primary runs at a time, so this must be 1, found {op.replicas}; '
            '"stateful.backups" says how many copies there are',
        )
    if op.stateful.backups == 0 and spec.recovery.when_unprotected is WhenUnprotected.BLOCK:
        notes.say(
            (*path, "stateful", "backups"),
            f'is 0, and "recovery.whenUnprotected: Block" waits for a backup: "{op.name}" would never '
            "answer; give it a backup or use Continue",
        )


def _check_replay(spec: rs.GraphSpec, notes: Notes, position: int, op: rs.OperatorSection) -> None:
    """Where a lost state is run again, it must be stored, and nothing may be decided by the clock."""
    checkpoint = None if op.stateful is None else op.stateful.checkpoint
    if not ModePolicy.of(spec.mode).replays:
        if checkpoint is not None and checkpoint.batches is not None:
            why = why_unread(spec.mode).get("checkpoint", "which stores by `every`")
            notes.say(
                (*operator_path(position), "stateful", "checkpoint", "batches"),
                f'expected no value in mode "{spec.mode.value}", {why}; leave it out',
            )
        return
    path, mode = operator_path(position), f'mode "{spec.mode.value}"'
    if op.stateful is not None and op.stateful.checkpoint is None:
        notes.say(
            (*path, "stateful", "checkpoint"),
            f'is missing: {mode} has no backups, and "{op.name}" begins again from its checkpoint; say where '
            "it is written",
        )
    if op.stateful is not None:
        _check_unread(op.stateful, (*path, "stateful"), notes, spec.mode)
    if op.join is Join.FIRST:
        notes.say(
            (*path, "join"),
            f'"First" takes what comes first, which {mode} could not run again alike; use Combine or '
            "Interleave, or another mode",
        )
    if op.batch.when_late is WhenLate.SHED and op.batch.policy is not SchedulePolicy.FIFO:
        notes.say(
            (*path, "batch", "whenLate"),
            f'"Shed" goes by the clock, which {mode} could not run again alike; use Run, or another mode',
        )


def _check_unread(stateful: rs.Stateful, path: Path, notes: Notes, mode: Mode) -> None:
    """Fields that nothing reads where a lost state is run again are mistakes. Kubernetes fills in defaults,
    so what equals them may not have been given (`unread` tells who gave it)."""
    default, why = rs.Stateful(), why_unread(mode)
    for field, found, wrong in (
        ("backups", stateful.backups, stateful.backups > default.backups),
        ("window", stateful.window, stateful.window != default.window),
    ):
        if wrong:
            notes.say(
                (*path, field),
                f'expected no value in mode "{mode.value}", {why[field]}, found {found}; leave it out',
            )


def _check_outputs(notes: Notes, position: int, op: rs.OperatorSection) -> None:
    for number, output in enumerate(op.outputs):
        path = (*operator_path(position), "outputs", number)
        unreadable = notes.any_below(path)
        if output.finite and output.datatype not in rs.FLOATS and not unreadable:
            notes.say(
                (*path, "finite"), f"is for floating-point tensors; {output.datatype.value} is always finite"
            )


def _check_feedback(wiring: Wiring, notes: Notes, position: int, op: rs.OperatorSection) -> None:
    if op.feedback is None:
        return
    path = (*operator_path(position), "feedback", "inputs")
    known, own = wiring.tensors(FRONTEND), tuple(output.name for output in op.outputs)
    for target, output in op.feedback.inputs:
        if target not in known:
            notes.say((*path, target), f'the request has no tensor "{target}"{did_you_mean(target, known)}')
        if output not in own:
            notes.say(
                (*path, target), f'operator "{op.name}" has no output "{output}"{did_you_mean(output, own)}'
            )
        wanted, actual = wiring.type_of(FRONTEND, target), wiring.type_of(op.name, output)
        if wanted and actual and not _fits(actual, wanted):
            notes.say(
                (*path, target),
                f'"{op.name}.{output}" is {actual}, but the request\'s "{target}" is {wanted}',
            )
    given = {target for target, _ in op.feedback.inputs}
    missing = [
        item.name
        for item in wiring.resource.spec.inputs
        if not item.optional and item.name and item.name not in given
    ]
    readable = not notes.problems_at(path)
    if missing and readable:
        notes.say(
            path, f"a request needs {listed(missing, last='and')} too; only optional tensors may be left out"
        )


def _fits(given: TensorType, wanted: TensorType) -> bool:
    """Whether every tensor of type `found` is one of type `wanted`."""
    return (
        given.datatype == wanted.datatype
        and len(given.shape) == len(wanted.shape)
        and all(b in (-1, a) for a, b in zip(given.shape, wanted.shape, strict=True))
    )


def _check_replies(wiring: Wiring, notes: Notes) -> None:
    for number, reply in enumerate(wiring.resource.spec.outputs):
        path = ("spec", "outputs", number)
        sources = [(source, tensor) for source, tensor in wiring.replies[number] if tensor]
        types = [
            (source, tensor, other)
            for source, tensor in sources
            if (other := wiring.type_of(source, tensor)) is not None
        ]
        for source, tensor, other in types[1:]:
            if other != types[0][2]:
                first_source, first_tensor, first = types[0]
                notes.say(
                    (*path, "from"),
                    f'all sources of a reply tensor must be alike, but "{first_source}.{first_tensor}" is '
                    f'{first} and "{source}.{tensor}" is {other}',
                )
        laned = next(
            (source for source, _ in wiring.replies[number] if len(wiring.lanes.get(source, ((),))) > 1), None
        )
        if laned is not None and reply.lanes is None:
            notes.say(
                path,
                f'"{laned}" runs {len(wiring.lanes[laned])} times for one request, as it is behind an '
                "Interleave; "
                '"lanes: concat" gives the rows of all its runs',
            )


def _check_reach(wiring: Wiring, notes: Notes) -> None:
    """Whatever runs must be for something: a reply tensor or a feedback."""
    if not wiring.certain or not wiring.resource.spec.outputs:
        return
    useful = {source for sources in wiring.replies for source, _ in sources}
    useful |= {op.name for op in wiring.resource.spec.operators if op.feedback is not None}
    for name in reversed(wiring.order):
        if name in useful:
            useful |= set(wiring.edges[wiring.index[name]])
    for name in wiring.order:
        if name not in useful:
            successors = wiring.successors(name)
            why = (
                f"only {listed(successors, last='and')} read it, and no reply comes from there"
                if successors
                else "nobody reads its outputs"
            )
            notes.say(
                operator_path(wiring.index[name]),
                f'"{name}" leads nowhere: {why}; add it to spec.outputs or to the inputs of another operator',
            )


def _check_schedule(batch: rs.BatchSection, path: Path, notes: Notes) -> None:
    """Fields that the policy does not read are mistakes."""
    if batch.policy is SchedulePolicy.FIFO and batch.when_late is WhenLate.SHED:
        notes.say(
            (*path, "whenLate"),
            '"Shed" needs a policy that knows deadlines: Deadline or Distribution',
        )
    if batch.policy is SchedulePolicy.FIFO and batch.keep_order:
        notes.say(
            (*path, "keepOrder"), "Fifo keeps the order of all requests; Deadline and Distribution read it"
        )
    if batch.policy is not SchedulePolicy.DISTRIBUTION:
        for key, given in (("appBy", bool(batch.app_by)), ("feature", batch.feature != "none")):
            if given:
                notes.say((*path, key), f"only policy: Distribution reads it, and this one is {batch.policy}")


def _check_apps(spec: rs.GraphSpec, notes: Notes) -> None:
    """Kinds of requests: who reads what is said of them."""
    frontend, path = spec.frontend, ("spec", "frontend")
    if frontend.app_by and not frontend.apps and frontend.admission is not AdmissionPolicy.PROMISE:
        notes.say((*path, "appBy"), "nothing reads it: that is what apps and admission: Promise do")
    if frontend.apps and not frontend.app_by:
        notes.say((*path, "apps"), 'needs appBy: which parameter names an app, such as "parameter:app"')
    weighs = any(op.batch.app_by and op.batch.app_by == frontend.app_by for op in spec.operators)
    seen: set[str] = set()
    for position, app in enumerate(frontend.apps):
        place = (*path, "apps", position)
        if app.name in seen:
            notes.say((*place, "name"), f'"{app.name}" is there already')
        seen.add(app.name)
        if app.deadline_s is not None and app.deadline_s > frontend.request_timeout_s:
            notes.say(
                (*place, "deadline"),
                f"{duration(app.deadline_s)} is more than requestTimeout "
                f"({duration(frontend.request_timeout_s)}), after which every client gets 504",
            )
        if app.cost > 1 and not weighs:
            notes.say((*place, "cost"), "no operator reads it: none has this appBy in its batch")


def _check_cost(spec: rs.GraphSpec, notes: Notes) -> None:
    """Steps of cost: one after the other, the last one at the deadline, and somebody reads them."""
    frontend, path = spec.frontend, ("spec", "frontend", "cost")
    if not frontend.cost:
        return
    for position, (before, step) in enumerate(itertools.pairwise(frontend.cost), 1):
        if step.after_s <= before.after_s:
            notes.say(
                (*path, position, "after"),
                f"expected more than {duration(before.after_s)} of the step before, found "
                f"{duration(step.after_s)}",
            )
    place, last_s = (*path, len(frontend.cost) - 1, "after"), frontend.cost[-1].after_s
    if frontend.deadline_s is not None and frontend.deadline_s != last_s:
        notes.say(
            place,
            f"the last step is the deadline: expected {duration(frontend.deadline_s)} as frontend.deadline, "
            f"found {duration(last_s)}; leave deadline out",
        )
    if last_s > frontend.request_timeout_s:
        notes.say(
            place,
            f"{duration(last_s)} is more than requestTimeout ({duration(frontend.request_timeout_s)}), after "
            "which every client gets 504",
        )
    if all(op.batch.policy is not SchedulePolicy.DISTRIBUTION for op in spec.operators):
        notes.say(path, "no operator reads it: none has batch.policy: Distribution")


def _check_bounds(wiring: Wiring, notes: Notes) -> None:
    spec = wiring.resource.spec
    frontend = spec.frontend
    if frontend.max_request_bytes > frontend.max_in_flight_bytes:
        notes.say(
            ("spec", "frontend", "maxRequestBytes"),
            f"{quantity(frontend.max_request_bytes)} is more than maxInFlightBytes "
            f"({quantity(frontend.max_in_flight_bytes)}): "
            "a request of that size would never be taken",
        )
    held = held_bytes(frontend)
    if held > rs.frontend_held_bytes_max:
        notes.say(
            ("spec", "frontend", "maxInFlightBytes"),
            f"with repliesKeptBytes, of {frontend.shards} shards, each frontend may hold "
            f"{quantity(held)}: expected at most {quantity(rs.frontend_held_bytes_max)}",
        )
    if frontend.deadline_s is not None and frontend.deadline_s > frontend.request_timeout_s:
        notes.say(
            ("spec", "frontend", "deadline"),
            f"{duration(frontend.deadline_s)} is more than requestTimeout "
            f"({duration(frontend.request_timeout_s)}), after which every client gets 504",
        )
    _check_apps(spec, notes)
    _check_cost(spec, notes)
    if frontend.replicas == 1 and spec.recovery.when_unprotected is WhenUnprotected.BLOCK:
        notes.say(
            ("spec", "frontend", "replicas"),
            'is 1, and "recovery.whenUnprotected: Block" waits for a second one: use at least 2, or Continue',
        )
    for position, op in enumerate(spec.operators):
        if op.batch.max_delay_s >= frontend.request_timeout_s:
            notes.say(
                (*operator_path(position), "batch", "maxDelay"),
                f"{duration(op.batch.max_delay_s)} is not below frontend.requestTimeout "
                f"({duration(frontend.request_timeout_s)})",
            )
        _check_schedule(op.batch, (*operator_path(position), "batch"), notes)
        if op.batch.keep_order and op.replicas > 1:
            notes.say(
                (*operator_path(position), "batch", "keepOrder"),
                f"holds within one instance, and replicas is {op.replicas}",
            )
        units = frontend.max_in_flight * frontend.shards * len(wiring.lanes.get(op.name, ((),)))
        if units > queue_units_max:
            notes.say(
                ("spec", "frontend", "maxInFlight"),
                f"{frontend.max_in_flight} requests on {frontend.shards} shards with "
                f"{len(wiring.lanes[op.name])} lanes "
                f'are {units} units in "{op.name}"; a queue holds {queue_units_max}',
            )
            break
