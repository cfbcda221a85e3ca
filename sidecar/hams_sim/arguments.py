"""What can be asked of `hams sim`.

A word that no history is about is an error: a run that did nothing must not end with the words that nothing
was violated.
"""

import argparse
import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from hams_protocol.graph import Mode, SchedulePolicy
from hams_protocol.modes import ModePolicy
from hams_sim.faults import KINDS as KINDS_FIRST
from hams_sim.faults import KINDS_MIXED, MIXED
from hams_sim.mutants.catalogue import MUTANTS
from hams_sim.mutants.hunt import FAULTS_FOR, SHAPES_FOR
from hams_sim.scenarios import SCENARIOS, SCENES
from hams_sim.shapes import SHAPES
from hams_sim.simulate import NOT_REPLAYED, PLAIN

KINDS: tuple[str, ...] = tuple(dict.fromkeys(kind for kind, _ in (*KINDS_FIRST, *KINDS_MIXED)))
"""Kinds of faults that can be asked for alone. What a scene does beyond them needs the scene's details."""

MODES: tuple[str, ...] = tuple(mode.value for mode in Mode if mode is not Mode.NONE)
"""What `--mode` knows: modes without copies are drawn beside the others (`variety`)."""

POLICIES: tuple[str, ...] = tuple(policy.value.lower() for policy in SchedulePolicy)
"""What `--policy` knows."""

CHOICES: tuple[str, ...] = tuple(dict.fromkeys((*SCENES, *KINDS, MIXED, PLAIN)))
"""What `--fault` knows. A word that is both a scene and a kind means the scene."""

_PROCESSES, _CLUSTER = "real processes (make test-faults)", "a cluster (make e2e)"
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("F11", "F12", "F14", "F15", "F30", "F31", "F34"), _CLUSTER),
    **dict.fromkeys(("F26", "F28", "F35", "F36", "F37", "F38"), _PROCESSES),
    **dict.fromkeys(("F13", "F16", "F17", "F27", "F32"), f"{_PROCESSES} and {_CLUSTER}"),
}
"""Rows of the catalogue that are not simulated, and what they need (docs/faults.md)."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Raises SystemExit(2), with one line on stderr, for what no history is about."""
    parser = _Parser(
        prog="hams sim", description="Deterministic simulation of the protocol: one seed decides everything."
    )
    _add_histories(parser)
    _add_running(parser)
    options = parser.parse_args(args)
    if (
        options.shape is not None
        and options.fault in SCENES
        and options.shape not in shapes_of(options.fault)
    ):
        fitting = ", ".join(shapes_of(options.fault))
        parser.error(
            f"argument --shape: what {options.fault} is about needs one of {fitting}; found {options.shape}"
        )
    replays = bool(options.mode) and ModePolicy.of(Mode(options.mode)).replays
    if replays and options.shape in NOT_REPLAYED:
        parser.error(f"argument --shape: mode {options.mode} takes no First; found {options.shape}")
    if replays and options.fault in SCENES and set(SCENES[options.fault].shapes) <= set(NOT_REPLAYED):
        parser.error(f"argument --fault: mode {options.mode} takes no First, and {options.fault} needs one")
    if options.random_models and not replays:
        parser.error("argument --random-models: only a mode that runs lost states again counts on others")
    if options.early_replies and replays:
        parser.error(f"argument --early-replies: in mode {options.mode} no reply waits for a state")
    if options.by_receipt and options.mode not in ("", Mode.NON_STOP.value):
        parser.error(f"argument --by-receipt: only NonStop goes by receipt; found --mode {options.mode}")
    return options


def _add_histories(parser: _Parser) -> None:
    """Options that say which histories are run."""
    parser.add_argument(
        "--histories",
        type=_count,
        metavar="N",
        help="how many (default: 1000; with --mutants: as many as each usually takes)",
    )
    parser.add_argument("--seed", type=_whole, default=1, metavar="N", help="the first seed (default: 1)")
    parser.add_argument(
        "--shape",
        type=_shape,
        metavar="NAME",
        help=f"one shape ({', '.join(SHAPES)}); all take turns otherwise",
    )
    about = (
        f"one row of the fault catalogue or one scene ({', '.join(SCENES)}), one kind of fault "
        f"({', '.join(KINDS)}), or `plain`; "
    )
    parser.add_argument(
        "--fault", type=_fault, default=MIXED, metavar="WORD", help=about + "all kinds are mixed otherwise"
    )
    _add_ways(parser)
    parser.add_argument(
        "--drop",
        type=_drop,
        default="",
        help="leave out parts of the plan, as a failure's command says: fault:N,call:N,op:NAME",
    )
    parser.add_argument(
        "--mutant",
        type=_mutant,
        default="",
        metavar="NAME",
        help="switch on one protocol bug (docs/mutants.md), which must be caught",
    )
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="switch on every protocol bug in turn and count the histories until it is caught",
    )


def _add_ways(parser: _Parser) -> None:
    """Options that say in what way graphs replicate and schedule."""
    parser.add_argument(
        "--mode",
        type=_mode,
        default="",
        metavar="MODE",
        help=f"a mode of replication ({', '.join(MODES)}) instead of NonStop",
    )
    parser.add_argument(
        "--policy",
        type=_policy,
        default="",
        metavar="POLICY",
        help=f"a scheduling policy ({', '.join(POLICIES)}) for all operators, and clients in a hurry",
    )
    parser.add_argument(
        "--random-models",
        action="store_true",
        help="in a mode that runs lost states again: models that compute something else each time",
    )
    parser.add_argument(
        "--by-receipt",
        action="store_true",
        help="backups answer for what they have received, not for what they have applied (ADR 0013)",
    )
    parser.add_argument(
        "--early-replies",
        action="store_true",
        help="replies are logged while what they depend on is not durable yet, and count once it is",
    )


def _add_running(parser: _Parser) -> None:
    """Options that say how they are run and shown."""
    parser.add_argument(
        "--progress",
        type=Path,
        metavar="FILE",
        help="note every finished chunk there, and go on from what FILE says",
    )
    parser.add_argument(
        "--jobs",
        type=_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one per core)",
    )
    parser.add_argument("--no-shrink", action="store_true", help="print failures as they were found")
    parser.add_argument(
        "--output",
        choices=("text", "json", "markdown"),
        default="text",
        help="markdown: the table of mutants",
    )


def shapes_of(scene: str) -> tuple[str, ...]:
    """The graphs that a scene is run on, by itself or to catch a mutant."""
    sought = (
        shape for name, scenes in FAULTS_FOR.items() if scene in scenes for shape in SHAPES_FOR.get(name, ())
    )
    return tuple(dict.fromkeys((*SCENES[scene].shapes, *sought)))


def drops_of(text: str) -> dict[str, frozenset[str]]:
    """The parts of a plan that are left out, by what they are. Raises ValueError."""
    drops: dict[str, set[str]] = {"fault": set(), "call": set(), "op": set()}
    for item in filter(None, text.split(",")):
        kind, _, name = item.partition(":")
        if kind not in drops or not name or (kind != "op" and not name.isdecimal()):
            raise ValueError(f"expected fault:N, call:N or op:NAME, separated by commas, found {item!r}")
        drops[kind].add(name)
    return {kind: frozenset(names) for kind, names in drops.items()}


def _fault(text: str) -> str:
    known = {choice.casefold(): choice for choice in CHOICES}.get(text.casefold())
    if known is not None:
        return known
    if text.upper() in ELSEWHERE:
        said = f"{text.upper()} is not simulated: it needs {ELSEWHERE[text.upper()]}, see docs/faults.md"
        raise argparse.ArgumentTypeError(f"{said}; simulated are {', '.join(SCENARIOS)}")
    rows = (
        f"expected a row of the fault catalogue ({', '.join(SCENARIOS)}), a scene, a kind of fault, mixed "
        "or plain (all in --help)"
    )
    raise argparse.ArgumentTypeError(f"{rows}, found {text!r}{_near(text, CHOICES)}")


def _named(what: str, names: Iterable[str], also: str) -> Callable[[str], str]:
    known = tuple(names)

    def read(text: str) -> str:
        if text in known:
            return text
        raise argparse.ArgumentTypeError(f"expected {what}{also}, found {text!r}{_near(text, known)}")

    return read


_shape = _named("one of ", SHAPES, ", ".join(SHAPES))
_known_mode = _named("one of ", MODES, ", ".join(MODES))
_known_policy = _named("one of ", POLICIES, ", ".join(POLICIES))
_known_mutant = _named("a mutant of docs/mutants.md", MUTANTS, "")


def _mutant(text: str) -> str:
    return _known_mutant(text) if text else ""


def _policy(text: str) -> str:
    return _known_policy(text) if text else ""


def _mode(text: str) -> str:
    return _known_mode(text) if text else ""


def _near(text: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _drop(text: str) -> str:
    try:
        drops_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}") from None


def _count(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number
