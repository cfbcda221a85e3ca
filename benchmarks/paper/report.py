"""The page of an evaluation: one static HTML file with all tables and plots, the paper's numbers beside ours.

It shows what is there: parts and services that were not measured are left out, or said to be unmeasured.
"""

import base64
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.paper.breakdown import PARTS
from benchmarks.paper.goals import MET, MISSED, TWO_OPERATORS, UNMEASURED, goals, times_of
from benchmarks.paper.predicted import cores_of_full_size, sizes
from benchmarks.paper.published import PUBLISHED
from benchmarks.paper.recovery import PROCESSES
from benchmarks.paper.services import MODES, SERVICES, replays
from benchmarks.paper.stored import beside, refused, result_in
from benchmarks.paper.tables import (
    ABSENT,
    PAPER_PERCENT,
    PARTS_MAX,
    Table,
    code_of,
    interval,
    machine_name,
    machine_of,
    on_machines,
    paper_percent,
    setting,
    table_of,
    verdict,
)
from benchmarks.plots import bars, lines, stacked
from benchmarks.report import Result, rows_of

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]

BESIDE = "overhead.json"
"""Beside the folder: what `hams bench overhead` writes."""

TITLES = {
    "overhead": "Every pair that was measured",
    "ablations": "Ablations: every mode, two batches under way",
    "batches": "P1. Overhead by the size of a batch",
    "breakdown": "P2. Where the time of one batch goes",
    "recovery": "T3. Recovery",
    "correlated": "T4. Correlated failures",
    "divergence": "T5. Divergence of a model that adds in any order",
    "peers": "T6. Beside Ray Serve",
    "scale": "P3. Overhead by the size of the states",
}
"""Parts in the order of the page."""

CORES = "Cores that states of full size take, saturated: CPU of one batch at the rate of states of 1/8"
SIZES = "What the size of states costs: a line through P3"

HEAD = """
<p>The evaluation of the HAMS paper (Zhao et al., DSN 2020) rebuilt on this code base, with its baselines.
Bare metal is the same graph without replication (mode <code>None</code>); it and one mode run at once as two
graphs and are asked in turn, window by window. Percentages are ratios of medians; in brackets a bootstrap
interval of 95 % over pairs of windows. Only ratios compare; absolute times are this machine's. A run whose
bare metal wanders by more than 3 % between windows, beside which others took more than a quarter of a core
(<i>others' cores</i>), or in which a role changed hands, is <b>void</b>: it is shown, and it is no result. A
run with less than 12 windows of 10 s meets no goal: it is <b>too short</b>, unless its lower bound misses
one.</p>
<p>Models are <b>emulated</b> unless a row's setting says <i>real</i>: a narrow network computes, and an
operator then waits until its device would be done, without CPU. Device times add up to bare metal in the
paper, split by assumption; <code>--times</code> replaces them, and the setting names others. The paper gives
bare metal for SA and OLM only. For the others NonStop / 1.02 is taken for it: percentages with a star rest on
that, and NonStop's 2.0 says nothing else. States are real bytes in memory, captured, sent and received by the
product. <i>everything</i>: all of a module, as in the paper; <i>cells</i>: what changes. They travel as the
chunks that changed; <i>whole</i>: all of them, each time. LineageStash is ours, made after what the paper
says of its own.</p>
<p>Data come from packages: digits of scikit-learn, prices of vega_datasets, texts of
<code>pydoc_data.topics</code>; speech is synthesised from words. No accuracy is claimed.</p>
"""
MORE = """
<p><code>--part all</code> leaves out, and these calls add:</p><ul>
<li><code>hams bench paper --part overhead --state cells --modes NonStop</code>: states that hold only what
changes.</li>
<li><code>hams bench paper --part overhead --states whole --loads L1</code>: whole states, one batch under
way.</li>
<li><code>hams bench paper --part overhead --modes BufferedOutputs,StopAndCopy --loads L1</code>, the same
without <code>--loads</code>: the ablations with chunks; <code>--modes LineageStash</code>: what recording
costs.</li>
<li><code>hams bench paper --part overhead --services OLV --times light --modes NonStop --loads L1</code>: a
last operator that hides no delivery.</li>
<li><code>hams bench paper --part overhead --models real --bytes 1 --modes NonStop</code>, the same with
<code>--pace none</code>, and <code>--part recovery --models real --modes NonStop</code>: real networks, on a
GPU.</li>
<li><code>hams bench overhead</code>: two operators of 50 MB; with <code>--out</code> a file
<code>overhead.json</code> beside this folder, this page takes its rows in.</li>
<li><code>make bench-peers</code>: Ray Serve, where it is not installed.</li></ul>
"""
UNREAL = "<p>Real models on a GPU: not measured.</p>"

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem; }
body { color: #1b1f24; background: white; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.4rem; }
.facts { color: #57606a; font-size: .85rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th { text-align: left; border-bottom: 2px solid #8c959f; padding: .25rem .6rem; vertical-align: bottom; }
td { border-bottom: 1px solid #d8dee4; padding: .22rem .6rem; vertical-align: top; }
.met { color: #116329; font-weight: 600; } .missed { color: #a40e26; font-weight: 600; }
.void, .not, .too { color: #7d4e00; }
.met, .missed, .void, .not, .too { white-space: nowrap; }
img { max-width: 860px; width: 100%; margin: .6rem 0; }
details { margin: .6rem 0; } summary { cursor: pointer; color: #0550ae; }
"""


def read_all(folder: Path) -> dict[str, Result]:
    """What was measured so far, by part; with `hams bench overhead`, if it wrote its file beside the folder.
    Raises ValueError."""
    results = {part: result_in(file) for part in TITLES if (file := folder / f"{part}.json").exists()}
    if (other := beside(folder.parent / BESIDE)) is not None:
        results[TWO_OPERATORS] = other
    return results


def check_page(folder: Path) -> None:
    """Whether a page can be made of what lies in a folder. Raises ValueError, which names the file."""
    for part, result in read_all(folder).items():
        file = folder.parent / BESIDE if part == TWO_OPERATORS else folder / f"{part}.json"
        with made_of(file):
            page_of(folder, {part: result})


@contextmanager
def made_of(file: Path) -> Iterator[None]:
    """What is made within is made of a file: what it cannot be made of is a ValueError that names it."""
    try:
        yield
    except KeyError as error:
        raise ValueError(refused(file, f"a row or machine without {error}")) from None
    except (IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ValueError(refused(file, f"what no plot or page can be made of: {error}")) from None


def write_page(folder: Path) -> None:
    """`index.html` of all parts that lie in a folder; rows of one machine beside each other. Raises OSError,
    and ValueError for what cannot be read."""
    (folder / "index.html").write_text(page_of(folder, read_all(folder)), encoding="utf-8")


def page_of(folder: Path, results: dict[str, Result]) -> str:
    """The page of these parts, with the plots that lie in a folder."""
    results = dict(results)
    other: Any = results.pop(TWO_OPERATORS, None)
    rows: dict[str, Sequence[Row]] = {part: rows_of(result) for part, result in results.items()}
    if other is not None:
        name = machine_name(other["machine"])
        rows[TWO_OPERATORS] = [{**row, "machine": name} for row in rows_of(other)]
    machines = list(dict.fromkeys(machine_of(row) for each in rows.values() for row in each))
    sections = [_facts(results), HEAD]
    if not any(_on_a_gpu(row) for each in rows.values() for row in each):
        sections.append(UNREAL)
    for machine in machines:
        mine = {part: [row for row in each if machine_of(row) == machine] for part, each in rows.items()}
        where = f", {machine}" if len(machines) > 1 else ""
        sections.append(_section(f"T7. Goals{where}", _goals(mine)))
        if mine.get("overhead") or mine.get("ablations"):
            sections.append(_section(f"T1. Latency of one batch{where}", _latency(mine)))
            sections.append(_section(f"T2. Throughput, normalised to bare metal{where}", _throughput(mine)))
        for title, table in ((CORES, cores_of_full_size(mine)), (SIZES, sizes(mine))):
            if table.lines:
                sections.append(_section(f"{title}{where}", html(table)))
    for part in filter(rows.get, TITLES):
        section = html(on_machines(table_of(part, rows[part]), rows[part]))
        if part in ("overhead", "ablations", "batches", "scale"):  # the plot says it
            section = f"<details><summary>{len(rows[part])} rows</summary>{section}</details>"
        sections.append(_section(TITLES[part], _picture(folder, part), section))
    sections.append(_section("What needs a call of its own", MORE))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>HAMS: the evaluation</title>'
        f"<style>{STYLE}</style></head><body><h1>HAMS: six services, and what each mode costs</h1>"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def _on_a_gpu(row: Row) -> bool:
    """Real networks run batches of more than one row on a GPU only."""
    return bool(row.get("models") == "real" and row["batch"] > 1)


def html(table: Table) -> str:
    """A table; verdicts get their colour."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    body = "".join(
        "<tr>" + "".join(f"<td{_colour(cell)}>{escape(cell)}</td>" for cell in line) + "</tr>"
        for line in table.lines
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _colour(cell: str) -> str:
    word = cell.split(":", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    return f' class="{word}"' if word in (MET, MISSED, "void", "not", "too") else ""


def _section(title: str, *content: str) -> str:
    return f"<h2>{escape(title)}</h2>" + "".join(content)


def _picture(folder: Path, part: str) -> str:
    """A plot within the page: as an image, so that the names inside one plot are none of another's."""
    file = folder / f"{part}.svg"
    if not file.is_file():
        return ""
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<div><img alt="{escape(TITLES[part])}" src="data:image/svg+xml;base64,{data}"></div>'


def _facts(results: Mapping[str, Result]) -> str:
    """Each machine that anything was measured on, and the days."""
    machines: dict[str, dict[str, Any]] = {}
    days: dict[str, set[str]] = defaultdict(set)
    codes: dict[str, set[str]] = defaultdict(set)
    for result in results.values():
        described = result.get("machines", {})
        assert isinstance(described, dict)
        machines |= described
        for row in rows_of(result):
            days[machine_of(row)].add(str(row.get("measured", ""))[:10])
            codes[machine_of(row)].add(code_of(row))
    return "".join(
        f'<p class="facts">{escape(name)}: {facts["memory_gib"]} GiB, Linux {facts["kernel"]}, '
        f"Python {facts['python']}; {escape(_versions(facts))}. "
        f"Measured on {', '.join(sorted(filter(None, days[name])))}. "
        f"Code: {escape('; '.join(sorted(codes[name])))}.</p>"
        for name, facts in machines.items()
    )


def _versions(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in facts["versions"].items())


def _goals(rows: Rows) -> str:
    """What was measured; what was not is listed below it, folded."""
    judged = goals(rows)
    lines_ = tuple(
        (goal.what, goal.goal, goal.measured, goal.verdict, goal.costs)
        for goal in judged
        if goal.verdict != UNMEASURED
    )
    missing = tuple((goal.what, goal.goal, goal.verdict) for goal in judged if goal.verdict == UNMEASURED)
    folded = html(Table(("what", "goal", "verdict"), missing))
    return html(Table(("what", "goal", "measured", "verdict", "largest costs"), lines_)) + (
        f"<details><summary>{len(missing)} goals are not measured yet</summary>{folded}</details>"
        if missing
        else ""
    )


def _headline(rows: Rows, load: str) -> list[Row]:
    """Pairs of a load at a full batch, everything that a service does."""
    return [
        row
        for row in (*rows.get("overhead", ()), *rows.get("ablations", ()))
        if row["load"] == load and row["batch"] == 64 and row["kind"] in ("all", "mean")
    ]


def _latency(rows: Rows) -> str:
    head = (
        "service",
        "mode",
        "setting",
        "L1 bare ms",
        "L1 ms",
        "L1 overhead %",
        "run",
        "L2 overhead %",
        "run",
        "paper ms",
        PAPER_PERCENT,
    )
    one, two = (
        {(row["service"], row["mode"], setting(row)): row for row in _headline(rows, load)}
        for load in ("L1", "L2")
    )
    body = []
    for key in sorted({*one, *two}, key=_place):
        service, mode, set_so = key
        first, second = one.get(key), two.get(key)
        published = PUBLISHED[service].latency.get(mode)
        body.append(
            (
                service,
                mode,
                set_so,
                ABSENT if first is None else f"{first['bare_ms']:.1f}",
                ABSENT if first is None else f"{first['mode_ms']:.1f}",
                *_cell(first),
                *_cell(second),
                ABSENT if published is None else f"{published:.1f}",
                paper_percent(service, mode),
            )
        )
    return html(Table(head, tuple(body)))


def _place(key: tuple[str, str, str]) -> tuple[int, str, int]:
    return list(SERVICES).index(key[0]), key[2], MODES.index(key[1])


def _cell(row: Row | None) -> tuple[str, str]:
    return (ABSENT, "") if row is None else (interval(row["overhead_percent"]), verdict(row))


def _throughput(rows: Rows) -> str:
    head = (
        "service",
        "mode",
        "setting",
        "bare metal, batches/s",
        "batches/s",
        "of bare metal",
        "lost %",
        "run",
    )
    body = tuple(
        (
            row["service"],
            row["mode"],
            setting(row),
            f"{row['bare_per_s']:.2f}",
            f"{row['mode_per_s']:.2f}",
            f"{row['mode_per_s'] / row['bare_per_s']:.3f}",
            interval(row["lost_percent"]),
            verdict(row),
        )
        for row in _headline(rows, "Sat")
    )
    return html(Table(head, body)) if body else "<p>Not measured.</p>"


# -- plots


def draw(part: str, rows: Sequence[Row], path: Path) -> None:
    """The plot of a part, of the machine that measured last: others do not compare."""
    newest = max(rows, key=lambda row: str(row.get("measured", "")), default={})
    rows = [row for row in rows if machine_of(row) == machine_of(newest)]
    if part in ("overhead", "ablations"):
        _draw_overhead(rows, path)
    elif part in ("batches", "scale"):
        _draw_lines(part, rows, path)
    elif part == "breakdown":
        _draw_parts(rows, path)
    elif part in ("recovery", "correlated"):
        _draw_recovered(rows, path)
    elif part == "divergence":
        told = [{**row, "mode": f"{row['mode']}{_every(row)}"} for row in rows]
        _draw_grouped(told, lambda row: row.get("two_values"), "units with two visible values", path)
    else:
        told = [{**row, "mode": row["system"], "case": ""} for row in rows]
        _draw_grouped(told, lambda row: row["latency_ms"], "ms of one batch, one under way", path)


def _draw_parts(rows: Sequence[Row], path: Path) -> None:
    """A panel for each service. Models take nearly all of a batch's time and hide the rest: they are left
    out."""
    names = [name for name in PARTS if name != "models"]
    panels: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        panel = panels.setdefault(row["service"], {})
        label = f"{row['mode']}{_kind(row)}{_besides(row)}"
        panel[label] = [row["parts_ms"].get(name, 0.0) for name in names]
    stacked(panels, names, "ms of one batch, models left out", path)


def _kind(row: Row) -> str:
    return "" if row.get("kind", "all") == "all" else f" {row['kind']}"


def _besides(row: Row, *, without: str = "") -> str:
    """A setting that is not the headline's, for a label."""
    said = setting(row, without=without)
    return "" if said == "everything" else f", {said}"


def _every(row: Row) -> str:
    return f", stored every {row['checkpoint_batches']}" if replays(row["mode"]) else ""


def _draw_overhead(rows: Sequence[Row], path: Path) -> None:
    rows = [row for row in rows if row["kind"] in ("all", "mean") and row["load"] in ("L1", "L2")]
    labels = list(dict.fromkeys(map(_pair, rows)))
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
    by_key = {(_pair(row), row["mode"]): row["overhead_percent"] for row in rows}
    empty = {"value": math.nan, "low": math.nan, "high": math.nan}
    cells = {mode: [by_key.get((label, mode), empty) for label in labels] for mode in modes}
    bars(
        labels,
        {mode: [cell["value"] for cell in values] for mode, values in cells.items()},
        "latency over bare metal, %",
        path,
        bounds={mode: [(cell["low"], cell["high"]) for cell in values] for mode, values in cells.items()},
    )


def _pair(row: Row) -> str:
    return f"{row['service']} {row['load']}{_besides(row)}"


def _draw_lines(part: str, rows: Sequence[Row], path: Path) -> None:
    field = "batch" if part == "batches" else "bytes"
    rows = [row for row in rows if row["kind"] in ("all", "mean")]
    xs = sorted({row[field] for row in rows})
    values = {(_line(row), row[field]): row["overhead_percent"]["value"] for row in rows}
    series = {name: [values.get((name, x), math.nan) for x in xs] for name in dict.fromkeys(map(_line, rows))}
    across = "rows of a batch" if part == "batches" else "part of the states' full size"
    ticks = [str(x) if part == "batches" else str(Fraction(x).limit_denominator(PARTS_MAX)) for x in xs]
    lines(xs, series, across, "latency over bare metal, %", path, ticks=ticks)


def _line(row: Row) -> str:
    return f"{row['service']} {row['mode']}{_besides(row, without='bytes')}"


def _draw_grouped(rows: Sequence[Row], value: Callable[[Row], float | None], unit: str, path: Path) -> None:
    labels = list(dict.fromkeys(map(_group, rows)))
    values = {(_group(row), row["mode"]): value(row) for row in rows}
    groups = {
        mode: [math.nan if (cell := values.get((label, mode))) is None else cell for label in labels]
        for mode in dict.fromkeys(row["mode"] for row in rows)
    }
    bars(labels, groups, unit, path)


def _draw_recovered(rows: Sequence[Row], path: Path) -> None:
    """The median over all kills of a service; those of operators without state, and of several at once, are
    told apart."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in sorted(
        rows, key=lambda row: (list(SERVICES).index(row["service"]), "stateless" in row["case"])
    ):
        times[_killed(row), row["mode"]] += times_of([row])
    labels = list(dict.fromkeys(label for label, _ in times))
    groups = {
        mode: [statistics.median(times.get((label, mode)) or [math.nan]) for label in labels]
        for mode in MODES
        if any(mode == other for _, other in times)
    }
    bars(labels, groups, "recovered, ms after the kill, median", path, logarithmic=True)


def _killed(row: Row) -> str:
    process = row["case"].rpartition(" ")[2] in PROCESSES
    which = "" if process else ", no state" if "stateless" in row["case"] else f" {row['case']}"
    return f"{row['service']}{which}{_besides(row)}"


def _group(row: Row) -> str:
    return f"{row['service']} {row['case']}".rstrip() + _besides(row)
