"""`hams demo`: the digits graph on real data, a killed primary in the middle of the traffic, and what can be
proven of it afterwards.

Every number that is shown is recomputed from what clients were answered: nothing is taken from the graph on
trust. Each finding is right, wrong, or open: a machine that is too slow leaves requests without an answer in
time, and what those did cannot be told from here. They may have been counted or not, so what was counted is
right anywhere between what was acknowledged and what was sent.
"""

import asyncio
import importlib.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from hams_graph import load
from hams_history.lines import HistoryWriter
from hams_load.inference import InferAnswer, InferClient, InferTensor
from hams_load.judge import shape_judge
from hams_load.samples import samples
from hams_load.traffic import Traffic, TrafficTally, load_request_s, percentile
from hams_operator.cli.inspect import end
from hams_operator.cli.kill import pick
from hams_operator.cli.load import with_progress
from hams_operator.cli.local_runs import choose, status_of, strike
from hams_operator.cli.output import Output, complain, console, print_json, seconds
from hams_operator.cli.up import patience_s, start_detached
from hams_operator.graph_status import GraphStatus, InstanceStatus, awaited
from hams_operator.limits import status_interval_s
from hams_operator.local.home import RunFile, running
from hams_operator.local.run import RunOptions
from hams_protocol.graph import Graph
from hams_protocol.wholeness import READY, STATE_LOST

demo_start_s = 60.0
"""The demo's graph has to be ready within this time."""

demo_settle_s = 30.0
"""After the traffic the graph has to be redundant again within this time."""


VICTIM = "learner"
NEEDS = ("hams_sdk", "torch", "sklearn")
"""What the demo starts imports."""
WINDOW_ROWS = 256
"""Rows over which the digits example reports its accuracy."""


class Verdict(StrEnum):
    """Of one finding, and of all of them together."""

    RIGHT = "right"
    SLOW = "too slow"
    WRONG = "wrong"


CODES = {Verdict.RIGHT: 0, Verdict.WRONG: 1, Verdict.SLOW: 3}
"""Exit codes."""
MARKS = {Verdict.RIGHT: "[green]✓[/]", Verdict.WRONG: "[bold red]✗[/]", Verdict.SLOW: "[yellow]?[/]"}
UNANSWERED = ("no answer", "not sent", "429", "503", "504")
"""How failures begin that say nothing of what became of a request."""


UNFINISHED = "I7"
"""The invariant of histories that what was begun is complete at their end."""


@dataclass
class DemoFindings:
    """What the demo found out: (what, verdict, told)."""

    lines: list[tuple[str, Verdict, str]] = field(default_factory=list)

    def add(self, what: str, verdict: Verdict, detail: str) -> None:
        """Note one finding."""
        self.lines.append((what, verdict, detail))

    @property
    def verdict(self) -> Verdict:
        """Wrong if anything is; right only if everything is."""
        verdicts = {verdict for _, verdict, _ in self.lines}
        if Verdict.WRONG in verdicts:
            return Verdict.WRONG
        return Verdict.SLOW if Verdict.SLOW in verdicts else Verdict.RIGHT


@dataclass
class DemoReplies:
    """What clients were answered: per labelled digit its truth, the answer, and what the graph said it had
    seen and how good it was."""

    truth: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    quality: list[float] = field(default_factory=list)

    def take(self, request: tuple[InferTensor, ...], answer: InferAnswer) -> None:
        """Note one answer of one row."""
        values = answer.values()
        target = next(item for item in request if item.name == "target")
        self.truth.append(int(target.array()[0]))
        self.label.append(int(values["label"][0]))
        self.seen.append(int(values["seen"][0]))
        self.quality.append(float(values["quality"][0]))

    def off(self, unanswered: int = 0) -> str:
        """Where the counts or the accuracy that the graph reported differ from what follows from its answers;
        empty if nowhere.

        So many requests were sent without an answer: each may have been counted, so up to as many counts are
        missing. An accuracy is judged where all the rows that it is of were answered.
        """
        order = np.argsort(self.seen)
        counts = [self.seen[row] for row in order]
        missing = (max(counts) if counts else 0) - len(counts)
        if len(set(counts)) < len(counts) or (counts and counts[0] < 1) or missing > unanswered:
            return "the counts in the replies are not 1, 2, 3, ... each once" + (
                f", {unanswered} of them without an answer" if unanswered else ""
            )
        right = {self.seen[row]: float(self.truth[row] == self.label[row]) for row in order}
        for row in order:
            seen = self.seen[row]
            window = [right[at] for at in range(max(1, seen + 1 - WINDOW_ROWS), seen + 1) if at in right]
            if len(window) < min(seen, WINDOW_ROWS):
                continue
            mean = np.array(window, np.float64).mean()
            if np.float32(mean) != np.float32(self.quality[row]):
                return (
                    f"row {seen}: the replies give an accuracy of {mean:.4f}, the graph said "
                    f"{self.quality[row]:.4f}"
                )
        return ""


def demo(duration: str, rate: float, output: Output) -> int:
    """Run it; 0 only if everything held, 1 if something was wrong, 3 if the machine was too slow to tell."""
    file = _example()
    if not 0 < rate <= 1_000:
        complain(f"--rate: expected requests per second above 0, found {rate:g}", 2)
    _check_needs()
    count = max(20, round(rate * seconds(duration)))
    terminal = console(stderr=output is Output.JSON)
    folder = Path(tempfile.mkdtemp(prefix="hams-demo-"))
    os.environ["HAMS_HOME"] = str(folder / "home")
    graph = load(file)
    terminal.print(
        "[bold]digits[/]: handwritten digits, learnt while they are answered (features -> learner -> "
        "monitor)\n"
    )
    findings = DemoFindings()
    began = time.monotonic()
    options = RunOptions(
        str(file),
        history=str(folder / "history"),
        timeout_s=demo_start_s,
        parent=os.getpid(),
        suspect_after_s=patience_s(graph),
    )
    try:
        with terminal.status("starting: an etcd, 3 managers, 2 frontends, 6 proxies and their models"):
            ready = start_detached(options)
        run = choose(graph.data.name)
        findings.add(
            "started",
            Verdict.RIGHT,
            f"ready and redundant after {time.monotonic() - began:.1f} s at {ready.url}",
        )
        _show(terminal.print, findings.lines[-1:])
        asyncio.run(_traffic(graph, file, run, rate, count, findings, output))
        _show(terminal.print, findings.lines[1:])
    finally:
        for left in running():
            end(left)
    findings.add(*_history(folder / "history", findings.verdict is Verdict.SLOW))
    _show(terminal.print, findings.lines[-1:])
    _conclude(terminal.print, findings, folder, output)
    return CODES[findings.verdict]


async def _traffic(
    graph: Graph, file: Path, run: RunFile, rate: float, count: int, findings: DemoFindings, output: Output
) -> None:
    replies = DemoReplies()
    hit: list[tuple[InstanceStatus, dict[str, int], float]] = []

    history = HistoryWriter(run.history or "", "client-demo")
    async with InferClient(run.url, graph.data.name, load_request_s) as client:
        traffic = Traffic(
            client,
            samples(graph, file, None),
            rate,
            count,
            judge=shape_judge(graph),
            resend=True,
            history=history,
            on_answer=replies.take,
        )

        async def murder() -> None:
            await asyncio.sleep(count / rate / 2)
            victim = pick(await _redundant_again(run), VICTIM, None, False, None)
            hit.append((victim, strike(victim, "both", signal.SIGKILL), asyncio.get_running_loop().time()))

        what = f"{rate:g} digits/s, a kill half-way"
        tally = await with_progress(traffic, count, what, shown=output is Output.TEXT, aside=murder)
        victim, pids, killed_s = hit[0]
        after = await _redundant_again(run)
        counted = await _count(traffic)
    history.close()
    names = " and ".join(f"{name} {pid}" for name, pid in pids.items())
    findings.add(
        "killed",
        Verdict.RIGHT if pids else Verdict.SLOW,
        f"kill -9 of {victim.id}, primary of {VICTIM} in epoch {victim.epoch} ({names}), amid the traffic",
    )
    _judge(findings, tally, replies, counted)
    later = [at for at in sorted(tally.replied_s) if at > killed_s]
    gaps = tally.gaps_s()
    findings.add(
        "gap",
        Verdict.RIGHT if later else Verdict.SLOW,
        f"longest pause between two replies {1000 * max(gaps, default=0):.0f} ms (median "
        f"{1000 * percentile(gaps, 0.5):.0f} ms), slowest request "
        f"{1000 * max(tally.latencies_s, default=0):.0f} ms"
        + ("" if later else "; but every reply had come before the kill"),
    )
    successor = next(
        (item for item in after.instances if item.operator == VICTIM and item.role == "primary"), None
    )
    findings.add("recovered", *_recovered(after, successor, victim))


def _recovered(
    after: GraphStatus, successor: InstanceStatus | None, victim: InstanceStatus
) -> tuple[Verdict, str]:
    """A state that is lost is wrong; a successor that is not there yet, or no backup, within `demo_settle_s`
    is slow."""
    ready = next(item for item in after.conditions if item.type == READY)
    if ready.reason == STATE_LOST:
        return Verdict.WRONG, ready.message
    if successor is None or successor.epoch <= victim.epoch:
        return Verdict.SLOW, f"{VICTIM} has no new primary after {demo_settle_s:g} s: {ready.message}"
    if awaited(after.conditions) is not None:
        return (
            Verdict.SLOW,
            f"{successor.id} is primary in epoch {successor.epoch}, but not everything is redundant after "
            f"{demo_settle_s:g} s",
        )
    return (
        Verdict.RIGHT,
        f"{successor.id} is primary in epoch {successor.epoch}, and a fresh backup is in sync again",
    )


def _judge(findings: DemoFindings, tally: TrafficTally, replies: DemoReplies, counted: int) -> None:
    trouble = [f"{amount} x {why}" for why, amount in tally.failed.items()] + tally.wrong[:3]
    unanswered = tally.sent - tally.ok
    findings.add(
        "answered",
        _answered(tally),
        f"{tally.ok} of {tally.sent} requests, {tally.resent} keys sent again and answered the same"
        + "".join(f"; {item}" for item in trouble),
    )
    findings.add(
        "remembered",
        Verdict.SLOW
        if counted < 0
        else Verdict.RIGHT
        if tally.ok <= counted <= tally.sent
        else Verdict.WRONG,
        "no answer"
        if counted < 0
        else f"the state has counted {counted} labelled digits; {tally.ok} were acknowledged, {tally.sent} "
        "sent",
    )
    off = replies.off(unanswered)
    last = replies.quality[replies.seen.index(max(replies.seen))] if replies.seen else 0.0
    findings.add(
        "correct",
        Verdict.WRONG if off else Verdict.RIGHT if replies.seen else Verdict.SLOW,
        off
        or f"every count and every accuracy follows from the replies before it; {100 * last:.0f} % right "
        f"in the last {WINDOW_ROWS}",
    )


async def _redundant_again(run: RunFile) -> GraphStatus:
    """The status once every state has its backup again, or after `demo_settle_s`."""
    deadline = time.monotonic() + demo_settle_s
    while True:
        status = await asyncio.to_thread(status_of, run)
        if awaited(status.conditions) is None or time.monotonic() > deadline:
            return status
        await asyncio.sleep(status_interval_s)


async def _count(traffic: Traffic) -> int:
    """Ask the graph itself what it has seen, by a digit without a label, which it does not count. -1: no
    answer."""
    image = InferTensor("pixels", "FP32", (1, 64), np.zeros((1, 64), np.float32).tobytes())
    answer = await traffic.ask_once((image,))
    return int(answer.values()["seen"][0]) if answer.status == 200 else -1


def _answered(tally: TrafficTally) -> Verdict:
    """A request without an answer in time may have been done or not; any other failure is wrong."""
    if tally.good:
        return Verdict.RIGHT
    reasons = [why.removeprefix("sent again: ") for why in tally.failed]
    open_only = all(why.startswith(UNANSWERED) and "is lost" not in why for why in reasons)
    return Verdict.SLOW if open_only and not (tally.wrong or tally.doubled) else Verdict.WRONG


def _history(folder: Path, slow: bool) -> tuple[str, Verdict, str]:
    """The verdict on the history. What is not complete at its end is wrong, unless the run was `slow`: then
    there was no time for it."""
    from hams_history.checker import check_directory  # noqa: PLC0415 - only at the end

    report = check_directory(str(folder))
    summary = report.render().strip().splitlines()[-1]
    if report.exit_code == 0:
        return "history", Verdict.RIGHT, summary
    unfinished = slow and not report.problems and report.broken == {UNFINISHED}
    return "history", Verdict.SLOW if unfinished else Verdict.WRONG, summary


def _conclude(say: Callable[..., None], findings: DemoFindings, folder: Path, output: Output) -> None:
    """Say what all findings come to. Logs and history stay in `folder` unless everything was right."""
    verdict = findings.verdict
    if output is Output.JSON:
        print_json(
            {
                "good": verdict is Verdict.RIGHT,
                "verdict": verdict,
                "findings": [
                    {"what": what, "good": line is Verdict.RIGHT, "verdict": line, "told": detail}
                    for what, line, detail in findings.lines
                ],
            }
        )
    elif verdict is Verdict.RIGHT:
        say("\n[bold green]Nothing was forgotten, nothing was counted twice.[/]")
    if verdict is Verdict.SLOW:
        say(
            "\n[bold yellow]Nothing is wrong, but this machine is too slow or too busy to prove more.[/] "
            f"Fewer other processes, or a lower --rate, help. Logs and history: {folder}"
        )
    elif verdict is Verdict.WRONG:
        say(f"\n[bold red]Something is off.[/] Logs and history: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _show(say: Callable[..., None], lines: list[tuple[str, Verdict, str]]) -> None:
    for what, verdict, detail in lines:
        say(f"  {MARKS[verdict]} {what:<11} {detail}")


def _example() -> Path:
    """In the checkout, in the package as it is installed, or in the current folder."""
    here = Path(__file__).resolve()
    for folder in (here.parents[3], here.parents[1], Path.cwd()):
        file = folder / "examples" / "digits" / "graph.yaml"
        if file.is_file():
            return file
    complain(
        f"the digits example is not there: expected {here.parents[1] / 'examples' / 'digits' / 'graph.yaml'}"
    )


def _check_needs() -> None:
    """Raises CommandError, before anything is started, if the example's models cannot be imported."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        complain(
            f"the demo's models need what is not installed ({', '.join(missing)}): install the extras local "
            "and examples of hams"
        )
