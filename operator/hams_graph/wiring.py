"""The edges of a graph: names of inputs resolved to operators and tensors, edges, order, lanes.

Resolution notes what does not exist. To find further problems in the same pass, a misspelt operator is taken
for the one it most likely means; where there is no such guess, `Wiring.certain` is False and checks that
argue about the whole graph are left out.
"""

import graphlib
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

from hams_graph import resource as rs
from hams_graph.fields import Notes
from hams_graph.problems import Path, did_you_mean, listed, nearest
from hams_protocol.graph import FRONTEND, Join
from hams_protocol.ids import Lane

operator_tensors_max = 1024
"""Tensors that one operator takes, an upstream without a tensor counted with all of its outputs."""

lanes_max = 64
"""Executions of one operator for one request; nested Interleaves multiply them."""


REQUEST = "request"
"""What a graph file calls the frontend as a source."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Datatype and shape of one row."""

    datatype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class EdgeTensor:
    """One tensor on an edge: the upstream calls it `tensor`, the model `name`. `position` is the input that
    asked for it."""

    tensor: str
    name: str
    optional: bool
    position: int


@dataclass(slots=True)
class Wiring:
    """The graph as edges. Operators are known by their position in the file; `FRONTEND` stands for the
    request."""

    resource: rs.ServiceGraph
    index: dict[str, int] = field(default_factory=dict)
    edges: list[dict[str, list[EdgeTensor]]] = field(default_factory=list)
    replies: list[list[tuple[str, str]]] = field(default_factory=list)
    certain: bool = True
    order: list[str] = field(default_factory=list)
    lanes: dict[str, tuple[Lane, ...]] = field(default_factory=dict)
    unreadable: set[tuple[str, str]] = field(default_factory=set)
    _declared: dict[str, dict[str, TensorType]] = field(default_factory=dict)

    def tensors(self, source: str) -> Collection[str]:
        """Names of what an operator, or the request, offers."""
        return self._of(source).keys()

    def type_of(self, source: str, tensor: str) -> TensorType | None:
        """Datatype and shape of `tensor` of `source`; None if its declaration is wrong or there is none."""
        return None if (source, tensor) in self.unreadable else self._of(source).get(tensor)

    def _of(self, source: str) -> dict[str, TensorType]:
        """The first declaration of each tensor: asked for once per input, so it is read once per source."""
        outputs = self._declared.get(source)
        if outputs is None:
            spec = self.resource.spec
            declared = spec.inputs if source == FRONTEND else spec.operators[self.index[source]].outputs
            outputs = self._declared[source] = {}
            for item in declared:
                outputs.setdefault(item.name, TensorType(item.datatype, item.shape))
        return outputs

    def successors(self, name: str) -> list[str]:
        """Operators that take something from `name`, in order of the file."""
        return [
            op.name
            for position, op in enumerate(self.resource.spec.operators)
            if name in self.edges[position] and self.index[op.name] == position
        ]


def operator_path(position: int) -> Path:
    """Where operator number `position` stands."""
    return ("spec", "operators", position)


def called(source: str) -> str:
    """What the author of the file calls a source."""
    return REQUEST if source == FRONTEND else source


def wire(resource: rs.ServiceGraph, notes: Notes) -> Wiring:
    """Resolves every name; problems go to `notes`. Order and lanes are complete only if there were none."""
    wiring = Wiring(resource)
    for position, op in enumerate(resource.spec.operators):
        if wiring.index.setdefault(op.name, position) != position:
            wiring.certain = False
    _note_unreadable(wiring, notes)
    for position, op in enumerate(resource.spec.operators):
        wiring.edges.append({})
        for number, item in enumerate(op.inputs):
            _resolve_input(wiring, notes, position, number, item)
            if sum(map(len, wiring.edges[position].values())) > operator_tensors_max:
                notes.say(
                    (*operator_path(position), "inputs"),
                    f"are more than {operator_tensors_max} tensors; name those that the model needs",
                )
                wiring.certain = False
                break
    for number, reply in enumerate(resource.spec.outputs):
        wiring.replies.append(_resolve_reply(wiring, notes, number, reply))
    _order(wiring, notes)
    _lanes(wiring, notes)
    return wiring


def _note_unreadable(wiring: Wiring, notes: Notes) -> None:
    places: list[tuple[str, Path, str]] = [
        (FRONTEND, ("spec", "inputs", number), item.name)
        for number, item in enumerate(wiring.resource.spec.inputs)
    ]
    for position, op in enumerate(wiring.resource.spec.operators):
        places += [
            (op.name, (*operator_path(position), "outputs", number), output.name)
            for number, output in enumerate(op.outputs)
        ]
    for source, path, tensor in places:
        if notes.any_below(path):
            wiring.unreadable.add((source, tensor))


def _resolve_source(wiring: Wiring, notes: Notes, path: Path, text: str) -> str | None:
    """The source that `text` names or most likely means; None if there is none."""
    if text == REQUEST:
        return FRONTEND
    if text in wiring.index:
        return text
    guess = nearest(text, (*wiring.index, REQUEST))
    request_tensors = wiring.tensors(FRONTEND)
    if guess is None and text in request_tensors:
        notes.say(path, f'no operator "{text}"; a tensor of the request is written "{REQUEST}.{text}"')
        return FRONTEND
    if guess is None:
        wiring.certain = False
        makers = [
            op.name for op in wiring.resource.spec.operators if text in (output.name for output in op.outputs)
        ]
        hint = (
            f'; an output is written "{makers[0]}.{text}"'
            if makers
            else f"; there {'is' if len(wiring.index) == 1 else 'are'} {listed(wiring.index, last='and')}"
        )
        notes.say(path, f'no operator "{text}"{hint}')
        return None
    notes.say(path, f'no operator "{text}"; did you mean "{guess}"?')
    return FRONTEND if guess == REQUEST else guess


def _no_tensor(wiring: Wiring, source: str, tensor: str) -> str:
    owner = "the request has no tensor" if source == FRONTEND else f'operator "{source}" has no output'
    known = wiring.tensors(source)
    return f'{owner} "{tensor}"' + (did_you_mean(tensor, known) or f"; it has {listed(known, last='and')}")


def _resolve_input(wiring: Wiring, notes: Notes, position: int, number: int, item: rs.InputSection) -> None:
    path = (*operator_path(position), "inputs", number)
    if not item.source:
        wiring.certain = False
        return
    text, dot, tensor = item.source.partition(".")
    source = _resolve_source(wiring, notes, path, text)
    if source is None:
        return
    edge = wiring.edges[position].setdefault(source, [])
    known = wiring.tensors(source)
    if dot:
        if known and tensor not in known:
            notes.say(path, _no_tensor(wiring, source, tensor))
        edge.append(EdgeTensor(tensor, item.name or tensor, item.optional, number))
        return
    if item.name and len(known) != 1:
        example = f"{called(source)}.{next(iter(known), 'x')}"
        notes.say(
            path,
            f'"as" names one tensor, but "{called(source)}" has {listed(known, last="and")}; write for '
            f"example {{from: {example}, as: {item.name}}}",
        )
        edge += [EdgeTensor(name, name, item.optional, number) for name in known]
        return
    edge += [EdgeTensor(name, item.name or name, item.optional, number) for name in known]


def _resolve_reply(
    wiring: Wiring, notes: Notes, number: int, reply: rs.ReplyTensorSection
) -> list[tuple[str, str]]:
    edges: dict[tuple[str, str], None] = {}
    path: Path = ("spec", "outputs", number, "from")
    several = isinstance(_at(notes, path), list)
    if not reply.sources:
        wiring.certain = False
    for place, text in enumerate(reply.sources):
        here = (*path, place) if several else path
        maker, dot, tensor = text.partition(".")
        if not text:
            wiring.certain = False
            continue
        source = _resolve_source(wiring, notes, here, maker)
        if source is None:
            continue
        if source == FRONTEND:
            notes.say(here, f'a reply is made by operators; "{text}" is what the client sent')
        elif not dot:
            known = wiring.tensors(source)
            notes.say(
                here, f'name one tensor of "{source}": {listed([f"{source}.{name}" for name in known])}'
            )
            edges[source, next(iter(known)) if len(known) == 1 else ""] = None
        elif wiring.tensors(source) and tensor not in wiring.tensors(source):
            notes.say(here, _no_tensor(wiring, source, tensor))
            edges[source, ""] = None
        elif (source, tensor) in edges:
            notes.say(here, f'"{text}" stands in this list already')
        else:
            edges[source, tensor] = None
    return list(edges)


def _at(notes: Notes, path: Path) -> object:
    value: object = notes.document.root
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step]
    return value


def _order(wiring: Wiring, notes: Notes) -> None:
    """Topological, otherwise as in the file. Each cycle is noted at an edge that leads back."""
    names = list(wiring.index)
    place = {name: number for number, name in enumerate(names)}
    above = {
        name: {source for source in wiring.edges[wiring.index[name]] if source != FRONTEND} for name in names
    }
    while True:
        try:
            graphlib.TopologicalSorter(
                {name: sorted(above_it, key=place.__getitem__) for name, above_it in above.items()}
            ).prepare()
            break
        except graphlib.CycleError as error:
            cycle: list[str] = error.args[1]
        source, target = next((a, b) for a, b in itertools.pairwise(cycle) if place[b] <= place[a])
        way = cycle[cycle.index(target) : -1] + cycle[: cycle.index(target)]
        number = next((item.position for item in wiring.edges[wiring.index[target]][source]), 0)
        chain = " -> ".join(f'"{name}"' for name in (*way, target))
        notes.say(
            (*operator_path(wiring.index[target]), "inputs", number),
            f'cycle without feedback: {chain}; only "feedback" of "{source}" may lead back, and only to the '
            "request",
        )
        above[target].discard(source)
    left = list(names)
    while left:
        name = next(name for name in left if not above[name] & set(left))
        wiring.order.append(name)
        left.remove(name)


def _lanes(wiring: Wiring, notes: Notes) -> None:
    """The executions of each operator for one request. Combine and First join the parts of one execution, so
    their edges must agree."""
    wiring.lanes[FRONTEND] = ((),)
    for name in wiring.order:
        position = wiring.index[name]
        op = wiring.resource.spec.operators[position]
        incoming = {source: wiring.lanes.get(source, ((),)) for source in wiring.edges[position]}
        if op.join is Join.INTERLEAVE:
            lanes_in = tuple((*lane, source) for source, lanes in incoming.items() for lane in lanes)
        else:
            lanes_in = next(iter(incoming.values()), ((),))
            for source, lanes in incoming.items():
                if set(lanes) != set(lanes_in):
                    first = next(iter(incoming))
                    number = next((item.position for item in wiring.edges[position][source]), 0)
                    notes.say(
                        (*operator_path(position), "inputs", number),
                        f'under {op.join.value} all edges must have the same lanes, but "{called(first)}" '
                        f"has {_spell_lanes(lanes_in)} "
                        f'and "{called(source)}" has {_spell_lanes(lanes)}; use "join: Interleave" here, or '
                        "join before the lanes part",
                    )
                    break
        if len(lanes_in) > lanes_max:
            notes.say(
                (*operator_path(position), "join"),
                f'"{name}" would run {len(lanes_in)} times for one request (lanes multiply), at most '
                f"{lanes_max} are allowed",
            )
            lanes_in = ((),)
        wiring.lanes[name] = lanes_in


def _spell_lanes(lanes: tuple[Lane, ...]) -> str:
    if lanes == ((),):
        return "none"
    return (
        f"{len(lanes)} "
        f"({', '.join('/'.join(map(called, lane)) for lane in lanes[:4])}{', ...' if len(lanes) > 4 else ''})"
    )
