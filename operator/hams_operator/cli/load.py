"""`hams load`: open-loop load on a graph, and with --verify the proof that every request was answered once
and right."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from hams_graph import InvalidGraph
from hams_graph import load as load_graph
from hams_history.lines import HistoryError, HistoryWriter
from hams_load.http import endpoint
from hams_load.inference import InferClient
from hams_load.judge import shape_judge
from hams_load.samples import samples
from hams_load.traffic import Traffic, TrafficTally, deadline_left_min_ms, load_request_s, percentile
from hams_operator.cli.limits import problems_shown_max
from hams_operator.cli.output import Output, complain, console, print_json, seconds
from hams_operator.cli.runs import Reached, Runs, Target, on_runs
from hams_protocol.graph import Graph

load_connect_s = 5.0
"""`hams load` begins only if something takes a connection within this time."""


def load(
    target: Target,
    file: Path,
    url: str | None,
    data: Path | None,
    rate: float,
    duration: str,
    verify: bool,
    output: Output,
    token: str = "",
    deadline_ms: float | None = None,
) -> int:
    """Load it; 0 only if nothing is off. `target`: where it runs, if no URL is given. `token`: borne by each
    request. `deadline_ms`: how long each of them has."""
    check_token(token)
    check_url(url)
    if not 0 < rate <= 100_000:
        complain(f"--rate: expected requests per second above 0, found {rate:g}", 2)
    count = max(1, round(rate * seconds(duration)))
    graph = _graph_in(file)
    check_deadline(deadline_ms, graph)
    deadline_s = None if deadline_ms is None else deadline_ms / 1000

    async def at(there: Reached) -> TrafficTally:
        source = samples(graph, file, data)
        async with AsyncExitStack() as stack:
            history = None if there.history is None else _history_in(there.history)
            if history is not None:
                stack.callback(history.close)
            await check_answers(there.url)
            client = await stack.enter_async_context(
                InferClient(there.url, graph.data.name, load_request_s, token)
            )
            judge = shape_judge(graph) if verify else None
            traffic = Traffic(
                client,
                source,
                rate,
                count,
                judge=judge,
                resend=verify,
                history=history,
                deadline_s=deadline_s,
            )
            return await with_progress(traffic, count, "load", shown=output is Output.TEXT)

    async def reached(runs: Runs) -> TrafficTally:
        async with runs.reach(graph.data.name) as there:
            return await at(there)

    tally = on_runs(target, reached) if url is None else asyncio.run(at(Reached(url)))
    if output is Output.JSON:
        print_json(as_json(tally, deadline_ms))
    else:
        sys.stdout.write(as_text(tally, verify, deadline_ms))
    return 0 if tally.good else 1


def _graph_in(file: Path) -> Graph:
    """The graph of a file. Raises CommandError."""
    try:
        return load_graph(file)
    except InvalidGraph as error:
        complain(f"{file}: {error.problems[0]}; hams validate {file} tells all")


def _history_in(folder: str) -> HistoryWriter:
    """The history of this client, in the folder of its graph's. Raises CommandError."""
    try:
        return HistoryWriter(folder, f"client-{secrets.token_hex(4)}")
    except HistoryError as error:
        complain(str(error))


async def with_progress(
    traffic: Traffic,
    count: int,
    what: str,
    *,
    shown: bool,
    aside: Callable[[], Awaitable[None]] | None = None,
) -> TrafficTally:
    """Run traffic behind a progress bar, if stderr is a terminal; `aside` runs beside it."""
    # Not for JSON.
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    terminal = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[summary]}"),
        TimeElapsedColumn(),
        console=terminal,
        transient=True,
        disable=not (shown and terminal.is_terminal),
    )
    with bar:
        row = bar.add_task(what, total=count, summary="")

        async def show() -> None:
            while True:
                tally = traffic.tally
                p50, p99 = (1000 * percentile(tally.latencies_s[-1000:], share) for share in (0.5, 0.99))
                failed = f"  [red]{tally.failed.total()} failed[/]" if tally.failed else ""
                bar.update(
                    row,
                    completed=tally.ended,
                    summary=f"{tally.ok}/{count}  p50 {p50:.1f} ms  p99 {p99:.1f} ms{failed}",
                )
                await asyncio.sleep(0.1)

        extra = [asyncio.ensure_future(aside())] if aside is not None else []
        showing = asyncio.ensure_future(show())
        try:
            tally = await traffic.run()
            await asyncio.gather(*extra)
            return tally
        finally:
            for task in (showing, *extra):
                task.cancel()


def check_token(token: str) -> None:
    """Raises CommandError for what no header can bear."""
    if any(char.isspace() or not char.isprintable() for char in token):
        complain("--token: expected one word, found blanks or control characters in it", 2)
    if not token.isascii():
        complain("--token: expected ASCII, found other characters in it", 2)


def check_deadline(deadline_ms: float | None, graph: Graph) -> None:
    """Raises CommandError for what the graph's endpoint would refuse for each request."""
    most_ms = 1000 * graph.data.frontend.request_timeout_s
    if deadline_ms is not None and not deadline_left_min_ms <= deadline_ms <= most_ms:
        complain(
            f"--deadline-ms: expected {deadline_left_min_ms:g} to {most_ms:g} (the graph's requestTimeout), "
            f"found {deadline_ms:g}",
            2,
        )


def check_url(url: str | None) -> None:
    """Raises CommandError for what `InferClient` cannot ask."""
    try:
        if url is not None:
            endpoint(url)
    except ValueError as error:
        complain(f"--url: {error}", 2)


async def check_answers(url: str) -> None:
    """Raises CommandError if nothing takes a connection there: load on nothing has no percentiles."""
    host, port, _ = endpoint(url)
    try:
        async with asyncio.timeout(load_connect_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        complain(f"nothing answers at {url}: no connection for {load_connect_s:g} s")
    except OSError as error:
        complain(f"nothing answers at {url}: {os.strerror(error.errno) if error.errno else error}")
    writer.close()


def as_json(tally: TrafficTally, deadline_ms: float | None = None) -> dict[str, object]:
    """The result for programs; times in ms."""
    gaps = tally.gaps_s()
    deadline = {
        "ms": deadline_ms,
        "onTime": tally.on_time,
        "late": tally.late,
        "refused": tally.refused,
        "finishRate": round(tally.finish_rate, 4),
    }
    return {
        "good": tally.good,
        "sent": tally.sent,
        "ok": tally.ok,
        "failed": tally.failed.total(),
        "failures": dict(tally.failed),
        "attempts": tally.attempts,
        "resent": tally.resent,
        "doubled": tally.doubled,
        "wrong": tally.wrong[:problems_shown_max],
        **({} if deadline_ms is None else {"deadline": deadline}),
        "latencyMs": {name: _ms(percentile(tally.latencies_s, share)) for name, share in SHARES.items()},
        "gapMs": {"longest": _ms(max(gaps, default=0.0)), "median": _ms(percentile(gaps, 0.5))},
    }


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


def as_text(tally: TrafficTally, verify: bool, deadline_ms: float | None = None) -> str:
    """The result for people."""
    gaps = tally.gaps_s()
    again = tally.attempts - tally.sent - tally.resent
    repeated = (
        "1 attempt repeated under its key" if again == 1 else f"{again} attempts repeated under their key"
    )
    lines = [
        f"{tally.sent} sent, {tally.ok} answered, {tally.failed.total()} failed"
        + (f"; {repeated}" if again > 0 else "")
    ]
    if deadline_ms is not None:
        lines.append(
            f"deadline  {deadline_ms:g} ms: {tally.on_time} on time, {tally.late} late, "
            f"{tally.refused} refused early; finish rate {100 * tally.finish_rate:.1f} %"
        )
    if tally.ok:
        shares = (f"{name} {_ms(percentile(tally.latencies_s, share))} ms" for name, share in SHARES.items())
        lines.append("latency   " + "   ".join(shares))
        longest, median = _ms(max(gaps, default=0.0)), _ms(percentile(gaps, 0.5))
        lines.append(f"replies   longest gap {longest} ms, median {median} ms")
    if verify:
        lines.append(
            f"verified  {tally.resent} keys sent again, {tally.doubled} answered differently; "
            f"{len(tally.wrong)} wrong replies"
        )
    lines += [f"  {count} x {why}" for why, count in tally.failed.most_common(problems_shown_max)]
    lines += [f"  {problem}" for problem in tally.wrong[:problems_shown_max]]
    return "\n".join(lines) + "\n"


def _ms(value_s: float) -> float:
    return float(json.dumps(round(1000 * value_s, 2)))
