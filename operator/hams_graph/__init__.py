"""What a ServiceGraph says, as typed objects: parse, default, validate, compile. Pure but for `load`, which
reads one file.

    load("graph.yaml")          a file -> Graph, or InvalidGraph with every problem at once
    load_text(text)             the same for text
    load_object(object)         the same for an object as Kubernetes hands it out
    describe_file("graph.yaml") what the graph of a file means, and what of the file nothing reads
    describe(graph)             what the graph means: operators, roles, processes, memory

`hams_protocol.wholeness` says what a graph that runs lacks.

`hams_protocol.graph.Graph` is what comes out; it is right by construction, and nothing behind this package
validates it again.
"""

from pathlib import Path

from hams_graph.compiler import compile_graph
from hams_graph.describe import Description, describe
from hams_graph.document import Document, Plain, fits, out_of_bounds, read_text
from hams_graph.fields import Notes, TooManyProblems
from hams_graph.problems import InvalidGraph, Problem, spell
from hams_graph.resource import API_VERSION, KIND, ServiceGraph, read_resource
from hams_graph.unread import unread
from hams_graph.validate import RESERVED, check
from hams_graph.wiring import Wiring
from hams_protocol.graph import Graph
from hams_protocol.wholeness import NOT_ASKED_FOR, not_asked_for

graph_spec_bytes_max = 256 << 10
"""Size of a ServiceGraph's `spec` as compact JSON: what is larger is refused before anything of it is
read."""


__all__ = [
    "API_VERSION",
    "KIND",
    "NOT_ASKED_FOR",
    "RESERVED",
    "Description",
    "Graph",
    "InvalidGraph",
    "Problem",
    "ServiceGraph",
    "describe",
    "describe_file",
    "describe_text",
    "load",
    "load_object",
    "load_text",
    "not_asked_for",
    "parse_text",
    "read_place",
]


def load(path: str | Path, *, uid: str = "", on_kubernetes: bool = False) -> Graph:
    """The graph in a file. Raises InvalidGraph (its `source` is the path), also if the file cannot be
    read."""
    text = _read(path)
    try:
        return load_text(text, uid=uid, on_kubernetes=on_kubernetes)
    except InvalidGraph as error:
        raise InvalidGraph(error.problems, str(path)) from None


def describe_file(path: str | Path, *, on_kubernetes: bool = False) -> Description:
    """Meaning of the graph in a file; its notes end with what the file gives and nothing reads. Raises
    InvalidGraph, as `load`."""
    text = _read(path)
    try:
        return describe_text(text, on_kubernetes=on_kubernetes)
    except InvalidGraph as error:
        raise InvalidGraph(error.problems, str(path)) from None


def describe_text(text: str, *, on_kubernetes: bool = False) -> Description:
    """The same for text. Raises InvalidGraph."""
    document = read_text(text, KIND)
    resource, wiring = _parse(document, on_kubernetes)
    return describe(compile_graph(wiring), unread(resource.spec, document))


def load_text(text: str, *, uid: str = "", on_kubernetes: bool = False) -> Graph:
    """The graph in YAML or JSON text. Raises InvalidGraph."""
    return _compile(read_text(text, KIND), uid, on_kubernetes)


def load_object(document: dict[str, Plain], *, uid: str = "", on_kubernetes: bool = True) -> Graph:
    """The graph in an object as Kubernetes hands it out. Raises InvalidGraph."""
    return _compile(Document(document), uid, on_kubernetes)


def read_place(path: str | Path) -> tuple[str, str, str]:
    """Name, namespace and uid that a file gives its graph, "" where it gives none. Raises InvalidGraph, with
    every problem of the file."""
    resource = _parse(read_text(_read(path), KIND), True)[0]
    return resource.name, resource.namespace, resource.uid


def _read(path: str | Path) -> str:
    """Raises InvalidGraph if there is no text there."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (
            error.strerror
            if isinstance(error, OSError)
            else f"not UTF-8 text: {error.reason} at byte {error.start}"
        )
        raise InvalidGraph([Problem("document", f"cannot read {path}: {why}")], str(path)) from None


def parse_text(text: str) -> ServiceGraph:
    """The resource with its defaults, as the file says it, checked. Raises InvalidGraph."""
    return _parse(read_text(text, KIND), False)[0]


def _compile(document: Document, uid: str, on_kubernetes: bool) -> Graph:
    return compile_graph(_parse(document, on_kubernetes)[1], uid)


def _parse(document: Document, on_kubernetes: bool) -> tuple[ServiceGraph, Wiring]:
    _check_size(document)
    notes = Notes(document)
    try:
        resource = read_resource(notes)
        wiring = check(resource, notes, on_kubernetes=on_kubernetes)
    except TooManyProblems:
        end = Problem("document", f"has more problems than the {len(notes.problems)} above")
        raise InvalidGraph([*_in_order(notes), end]) from None
    if notes.problems:
        raise InvalidGraph(_in_order(notes))
    return resource, wiring


def _in_order(notes: Notes) -> list[Problem]:
    return sorted(notes.problems, key=lambda problem: problem.line)


def _check_size(document: Document) -> None:
    """Before anything of the document is looked at: what it costs to find out must not grow with what
    somebody sends."""
    root = document.root
    if isinstance(root, dict):
        asked = {name: value for name, value in root.items() if name not in ("metadata", "status")}
        if not fits(asked, graph_spec_bytes_max):
            most = f"{graph_spec_bytes_max >> 10} KiB"
            why = f"is larger than {most} of JSON; large data does not belong into a graph"
            raise InvalidGraph([Problem("spec", why)])
        wrong = out_of_bounds(asked)
        if wrong is not None:
            path, why = wrong
            raise InvalidGraph([Problem(spell(path), why, document.line(path))])
