"""`hams profile`: what is learnt of the times of operators, how good it is, and files of it for other
graphs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hams_operator.cli.output import Output, complain, console, print_json
from hams_operator.cli.profile_file import FileRefused, read, write
from hams_operator.cli.runs import Runs, Target, on_runs
from hams_operator.learning import NothingLearnt, assigned

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hams_wire.profiles import CalibrationReport, ClassReport, ProfileReport, SizeReport

SERVING = ("primary", "active")
"""Roles whose instances learn; the others know what these have stored."""


def profile(target: Target, graph: str | None, operator: str, clear: bool, output: Output) -> int:
    """Show what is learnt, or have it forgotten."""
    if clear:
        return _forget(target, graph, operator, output)

    async def asked(runs: Runs) -> "list[ProfileReport]":
        return await runs.profile(graph, operator)

    reports = on_runs(target, asked)
    if output is Output.JSON:
        print_json(reports)
        return 0
    serving = [item for item in reports if item.role in SERVING] or reports
    if not serving:
        complain("no instance says what it has learnt: none serves yet")
    _print(serving)
    return 0


def _print(reports: "list[ProfileReport]") -> None:
    terminal = console()
    for number, item in enumerate(reports):
        if number:
            terminal.print("")
        for part in shown(item):
            terminal.print(part)


def save(target: Target, graph: str | None, operator: str, file: Path, output: Output) -> int:
    """Write what is stored of the times of an operator, of all if it is "", into a file."""

    async def asked(runs: Runs) -> dict[str, bytes]:
        return await runs.stored(graph, operator)

    values = on_runs(target, asked)
    profiles = {name: data for name, data in values.items() if data}
    if not profiles:
        of = f" of {', '.join(values)}" if values else ""
        complain(f"nothing is stored{of} yet: instances store what is new every 10 s")
    _write(file, graph or "", profiles)
    return _said("saved", list(profiles), "what is stored of", f"is in {file}", output)


def load(target: Target, graph: str | None, operator: str, file: Path, output: Output) -> int:
    """Have an operator, or all that a file is about, know what is in it in place of what they have learnt."""
    try:
        profiles = read(file)
    except FileRefused as error:
        complain(str(error))

    async def asked(runs: Runs) -> tuple[list[str], bool]:
        learns = await runs.stored(graph, operator)
        try:
            given = assigned(profiles, learns or profiles, operator)
        except NothingLearnt as error:
            complain(f"{file}: {error}")
        return list(given), await runs.give(graph, given)

    names, now = on_runs(target, asked)
    who = "all instances of" if now else f"{graph} does not run now; in its next run"
    return _said("loaded", names, who, f"know what is in {file}", output)


def run(
    target: Target,
    graph: str | None,
    operator: str,
    file: Path,
    data: Path | None,
    samples: int,
    into: Path | None,
    output: Output,
) -> int:
    """Measure the times of the operators of a graph `file`. The graph knows them then, or the file `into`."""
    from hams_operator.cli.measure import measured  # noqa: PLC0415 - NumPy, which other commands do without

    compiled, times = measured(file, operator, data, samples)
    profiles = {item.operator: item.profile for item in times}
    name = graph or compiled.data.name
    if into is not None:
        _write(into, name, profiles)
        knows = f"{into} has it"
    else:

        async def given(runs: Runs) -> bool:
            return await runs.give(name, profiles)

        knows = f"{name} knows it" if on_runs(target, given) else f"the next run of {name} knows it"
    if output is Output.JSON:
        print_json([item.report for item in times])
        return 0
    _print([item.report for item in times])
    for item in times:
        if item.failed:
            sys.stderr.write(f"{item.operator}: {item.failed} batches failed and were not measured\n")
    sys.stdout.write(f"{knows}\n")
    return 0


def _write(file: Path, graph: str, profiles: dict[str, bytes]) -> None:
    try:
        write(file, graph, profiles)
    except FileRefused as error:
        complain(str(error))


def _said(key: str, names: list[str], before: str, after: str, output: Output) -> int:
    """Say of which operators something is done."""
    if output is Output.JSON:
        print_json({key: names})
    else:
        sys.stdout.write(f"{before} {', '.join(names)} {after}\n")
    return 0


def _forget(target: Target, graph: str | None, operator: str, output: Output) -> int:
    async def asked(runs: Runs) -> list[str]:
        return await runs.forget(graph, operator)

    return _said("forgets", on_runs(target, asked), "what was learnt of", "is forgotten", output)


def shown(item: "ProfileReport") -> "list[RenderableType]":
    """One instance's profile, for people."""
    from rich.text import Text  # noqa: PLC0415 - rich, only where it is shown

    head = Text.assemble(
        (item.operator, "bold"), f"   {item.policy}   {item.instance} ({item.role})   {item.learnt} samples"
    )
    if item.resets:
        head.append(f"   {item.resets} forgotten as times changed")
    if item.newest_s is not None:
        head.append(f"   newest {item.newest_s:.0f} s ago")
    parts: list[RenderableType] = [head]
    if item.failed:
        parts.append(Text(f"Fifo serves in its place: {item.failed}", style="bold yellow"))
    if not item.classes:
        parts.append(Text("nothing is learnt yet", style="dim"))
        return parts
    parts.append(_classes(item))
    if item.sizes:
        sizes = ", ".join(map(size_of, item.sizes))
        parts.append(Text(f"batches of more than one row (how many; mean, P50, P99 ms): {sizes}"))
    if item.decisions:
        parts.append(Text(decided(item)))
    parts.append(Text(calibrated(item.calibration), style="dim"))
    return parts


def _classes(item: "ProfileReport") -> "RenderableType":
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for heading in ("CLASS", "FEATURE", "SAMPLES", "MEAN ms", "P50", "P95", "P99"):
        left = heading in ("CLASS", "FEATURE")
        rows.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for one in item.classes:
        times = (one.mean_ms, one.p50_ms, one.p95_ms, one.p99_ms)
        texts = (name_of(one), feature_of(one), f"{one.samples:.0f}", *(f"{time:.2f}" for time in times))
        rows.add_row(*map(Text, texts))
    return rows


def name_of(one: "ClassReport") -> str:
    """What a class is called. Applications are named by clients: what no terminal should be sent is
    escaped."""
    if one.app is None:
        return "(all)"
    return (one.app if one.app.isprintable() else ascii(one.app)) or "-"


def feature_of(one: "ClassReport") -> str:
    """Where the features of a class lie."""
    if one.low is None and one.high is None:
        return "-"
    if one.low is None:
        return f"< {one.high:g}"
    return f">= {one.low:g}" if one.high is None else f"{one.low:g} to {one.high:g}"


def size_of(size: "SizeReport") -> str:
    """How many batches of a size there were, and what one takes."""
    if size.mean_ms is None:
        return f"{size.rows} ({size.batches:g})"
    return f"{size.rows} ({size.batches:g}; {size.mean_ms:.2f}, {size.p50_ms:.2f}, {size.p99_ms:.2f})"


def decided(item: "ProfileReport") -> str:
    """How batches were chosen, in a line."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in item.decisions.items() if count)
    return f"decisions: {kinds or 'none'}; {item.stale_plans} plans were stale"


def calibrated(sums: "CalibrationReport") -> str:
    """How good predictions were, in a line."""
    if not sums.batches or sums.predicted_ms is None:
        return "calibration: no batch was predicted yet"
    line = (
        f"calibration: {sums.batches} batches took {sums.measured_ms:.2f} ms, {sums.predicted_ms:.2f} were "
        f"predicted, {sums.error_ms:.2f} off in the mean"
    )
    if sums.on_time is None or sums.predicted_on_time is None:
        return line
    return f"{line}; {100 * sums.on_time:.1f} % on time, {100 * sums.predicted_on_time:.1f} % predicted"
