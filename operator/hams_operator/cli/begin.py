"""`hams init` and `hams validate`: a graph to start from, and what a graph means or what is wrong with it."""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from hams_graph import InvalidGraph, describe_file
from hams_graph.describe import Description
from hams_operator.cli.output import Output, complain, print_json

TEMPLATE = Path(__file__).resolve().parent.parent / "templates" / "graph"


def init(folder: Path, output: Output) -> int:
    """Copy the template; a file that is there already is never overwritten."""
    names = sorted(path.name for path in TEMPLATE.iterdir() if path.is_file())
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        complain(f"{folder} has {', '.join(taken)} already; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(TEMPLATE / name, folder / name)
    except OSError as error:
        complain(
            f"cannot write to {folder}: {error.strerror}; expected a folder, or a name for one, that this "
            "user can write"
        )
    if output is Output.JSON:
        print_json({"folder": str(folder), "files": names})
    else:
        sys.stdout.write(f"{folder}: {', '.join(names)}\nnext: hams up {folder / 'graph.yaml'}\n")
    return 0


def validate(file: Path, output: Output, on_kubernetes: bool = False) -> int:
    """All errors (exit 1), or what the graph means. `on_kubernetes`: what only a cluster asks for is asked
    for, too."""
    try:
        description = describe_file(file, on_kubernetes=on_kubernetes)
    except InvalidGraph as error:
        if output is Output.JSON:
            print_json({"valid": False, "problems": [asdict(problem) for problem in error.problems]})
        else:
            sys.stderr.write("".join(f"{problem}\n" for problem in error.problems))
            sys.stderr.write(
                f"{file}: {len(error.problems)} problem{'s' if len(error.problems) > 1 else ''}\n"
            )
        return 1
    if output is Output.JSON:
        print_json({"valid": True, **asdict(description)})
    else:
        sys.stdout.write(meaning(description))
    return 0


def meaning(description: Description) -> str:
    """A description as text."""
    lines = [f"{description.name}: mode {description.mode}", ""]
    lines += [f"  in   {item}" for item in description.inputs]
    lines += [f"  out  {item}" for item in description.outputs]
    lines.append("")
    width = max(len(op.name) for op in description.operators)
    for op in description.operators:
        roles = ", ".join(f"{count} {role}" for role, count in op.roles)
        join = f", {op.join}" if len(op.upstream) > 1 else ""
        lanes = f", {op.lanes} lanes" if op.lanes > 1 else ""
        lines.append(
            f"  {op.name:<{width}}  {op.kind}{join}{lanes}: {' + '.join(op.upstream)} -> "
            f"{', '.join(op.successors)}; {roles}"
        )
    lines += [
        "",
        f"  {_counted(description.frontends, 'frontend')} with {_counted(description.shards, 'shard')}, "
        f"{_counted(description.managers, 'manager')}",
    ]
    lines.append(
        f"  {_counted(description.processes, 'process', 'processes')} on this machine, about "
        f"{_mib(description.memory_bytes)} without the models, at most "
        f"{_mib(description.memory_bytes_max)} with open requests and kept replies"
    )
    lines += [f"  note: {note}" for note in description.notes]
    return "\n".join(lines) + "\n"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _mib(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB" if amount >= 1 << 30 else f"{amount >> 20} MiB"
