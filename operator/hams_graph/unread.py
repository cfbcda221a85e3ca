"""Fields of `stateful` that a graph's mode does not read.

Kubernetes fills in defaults, and one file serves for a mode and for the bare metal beside it. So what is
given and not read is told (`hams validate`), and refused only where it never was accepted (`validate`).
"""

from hams_graph import resource as rs
from hams_graph.document import Document
from hams_graph.problems import Problem, spell
from hams_graph.wiring import operator_path
from hams_protocol.graph import Mode
from hams_protocol.modes import ModePolicy


def why_unread(mode: Mode) -> dict[str, str]:
    """Field of `stateful` -> why `mode` does not read it."""
    policy = ModePolicy.of(mode)
    if policy.replicates and not policy.replays:
        return {}
    why = {"backups": "which has no backups", "window": "where nothing waits for a state"}
    if not policy.replicates:
        why |= dict.fromkeys(("checkpoint", "delta"), "which captures no state")
    return why


def unread(spec: rs.GraphSpec, document: Document) -> tuple[str, ...]:
    """A sentence for each field that the text of `document` gives and its mode does not read."""
    why, notes = why_unread(spec.mode), []
    for position, op in enumerate(spec.operators):
        for field, reason in why.items():
            path = (*operator_path(position), "stateful", field)
            no_backup = field == "backups" and op.stateful is not None and op.stateful.backups == 0
            if path in document.lines and not no_backup:
                message = f'says nothing in mode "{spec.mode.value}", {reason}; leave it out'
                notes.append(str(Problem(spell(path), message, document.line(path))))
    return tuple(notes)
