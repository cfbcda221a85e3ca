"""`hams chaos`: a scenario of the catalogue against a graph on a cluster, under load; what the load saw of
it, and whether a request failed."""

import asyncio
import os
import sys
import time
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from hams_graph import InvalidGraph, load_object
from hams_load.inference import InferClient
from hams_load.judge import shape_judge
from hams_load.samples import samples
from hams_load.traffic import Traffic, TrafficTally, load_request_s
from hams_operator.chaos.live import LiveRun, NotInTime, background
from hams_operator.chaos.report import ChaosReport, InjectedFault, at, gaps_ms, slowest_ms, summary
from hams_operator.chaos.scenarios import CATALOGUE, Aim, ChaosScenario, find
from hams_operator.cli.cluster import Cluster, connect
from hams_operator.cli.limits import problems_shown_max
from hams_operator.cli.load import check_token, check_url
from hams_operator.cli.output import CommandError, Output, complain, print_json
from hams_operator.cli.runs import Target
from hams_operator.controller.kube import KubeError
from hams_protocol.graph import Graph

chaos_settle_s = 2.0
"""Load before the first fault, and after the last: what is normal is seen as well."""


REQUESTS_MAX = 1 << 40
"""The load goes on until the scenario ends."""


@dataclass(frozen=True, slots=True)
class Load:
    """Where requests go (None: the ready frontends, through the API server), how many a second, what is in
    them, and the token that they bear."""

    url: str | None
    rate: float
    data: Path | None
    token: str = ""


@dataclass(frozen=True, slots=True)
class GraphUnderLoad:
    """A graph under load. `stop` belongs to the load's loop."""

    cluster: Cluster
    graph: Graph
    traffic: Traffic
    stop: asyncio.Event
    began: float


def catalogue(output: Output) -> int:
    """Print the scenarios."""
    if output is Output.JSON:
        print_json(
            [
                {
                    "id": item.id,
                    "name": item.name,
                    "does": item.does,
                    "touches": item.touches,
                    "loses": item.loses,
                }
                for item in CATALOGUE
            ]
        )
        return 0
    for item in CATALOGUE:
        sys.stdout.write(
            f"{item.id:4} {item.name:17} {item.does}{'; MAY LOSE STATE' if item.loses else ''}\n"
        )
    return 0


def run(
    reference: str,
    name: str | None,
    target: Target,
    system: str,
    aim: Aim,
    load: Load,
    allow_state_loss: bool,
    output: Output,
) -> int:
    """Run one; 0 if no request failed and the scenario came to its end."""
    try:
        scenario = find(reference)
    except ValueError as unknown:
        complain(str(unknown), 2)
    if scenario.loses and not allow_state_loss:
        complain(
            f"{scenario.id}/{scenario.name} {scenario.does}: it may lose a state; say --allow-state-loss if "
            "this graph may",
            2,
        )
    if not 0 < load.rate <= 10_000:
        complain(f"--rate: expected requests per second above 0, found {load.rate:g}", 2)
    check_token(load.token)
    check_url(load.url)
    if aim.times < 1:
        complain(f"--times: expected 1 or more, found {aim.times}", 2)
    with background() as there:
        begun: Future[GraphUnderLoad] = Future()
        ended = there.start(_under_load(target, name, load, begun))
        ended.add_done_callback(lambda done: _pass_on(done, begun))
        stage = begun.result()
        live = LiveRun(there, stage.cluster, stage.graph.data.name, system, lambda: stage.traffic.tally.ok)
        error = _strike(scenario, live, aim)
        over = time.monotonic()
        there.loop.call_soon_threadsafe(stage.stop.set)
        tally = ended.result()
    report = report_of(scenario, stage, live, tally, over, time.monotonic(), error)
    if output is Output.JSON:
        print_json(report)
    else:
        sys.stdout.write(report.text())
    return 0 if report.good else 1


def _strike(scenario: ChaosScenario, live: LiveRun, aim: Aim) -> str:
    """Why the scenario did not come to its end; "" if it did."""
    try:
        live.redundant()
        live.stalled(chaos_settle_s)
        scenario.strike(live, aim)
        live.stalled(chaos_settle_s)
    except (NotInTime, KubeError, CommandError, ValueError) as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"
    return "" if live.faults else "nothing was done to the graph: no pod of it could be spared"


async def _under_load(
    target: Target, name: str | None, load: Load, begun: "Future[GraphUnderLoad]"
) -> TrafficTally:
    """Load until told to stop. Raises CommandError."""
    async with connect(target) as cluster, AsyncExitStack() as stack:
        item = (await cluster.find(name)).item
        try:
            graph = load_object({key: value for key, value in item.items() if key != "status"})
        except InvalidGraph as error:
            complain(f"the graph on the cluster cannot be read by this version: {error.problems[0]}")
        url = load.url
        # by connections of its own: the load's are many, and what is done to pods must not wait
        if url is None:
            way = await stack.enter_async_context(connect(target))
            url = (await stack.enter_async_context(way.reach(graph.data.name))).url
        client = await stack.enter_async_context(
            InferClient(url, graph.data.name, load_request_s, load.token)
        )
        # no file of the graph here: random tensors, or the data given
        source = samples(graph, Path(os.devnull), load.data)
        traffic = Traffic(client, source, load.rate, REQUESTS_MAX, judge=shape_judge(graph), resend=True)
        stop = asyncio.Event()
        begun.set_result(GraphUnderLoad(cluster, graph, traffic, stop, time.monotonic()))
        return await traffic.run(stop)


def _pass_on(done: "Future[TrafficTally]", begun: "Future[GraphUnderLoad]") -> None:
    """Wakes a waiter for the beginning of the load that never comes."""
    error = done.exception()
    if error is not None and not begun.done():
        begun.set_exception(error)


def report_of(
    scenario: ChaosScenario,
    stage: GraphUnderLoad,
    live: LiveRun,
    tally: TrafficTally,
    over: float,
    now: float,
    error: str,
) -> ChaosReport:
    """What the load saw. `over`: when the scenario was; `now`: when the last reply had come."""
    struck = [when for when, _ in live.faults]
    slowest = slowest_ms(tally.replied_s, tally.latencies_s, struck)
    gaps = gaps_ms(tally.replied_s, struck, stage.began, over)
    latencies = sorted(1000 * value for value in tally.latencies_s)
    in_time = sum(1 for value in latencies if value <= 1000 * stage.graph.data.frontend.request_timeout_s)
    return ChaosReport(
        scenario=f"{scenario.id}/{scenario.name}",
        graph=stage.graph.data.name,
        requests=tally.sent,
        answered=tally.ok,
        failed=tally.failed.total(),
        failures=dict(tally.failed.most_common(problems_shown_max)),
        wrong=tally.wrong[:problems_shown_max],
        again=max(0, tally.attempts - tally.sent - tally.resent),
        availability=round(in_time / max(1, tally.sent), 5),
        latency_ms={
            key: round(at(latencies, share), 1) for key, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        gap_ms=summary(gaps),
        faults=[
            InjectedFault(round(when - stage.began, 1), what, gap, slow)
            for (when, what), gap, slow in zip(live.faults, gaps, slowest, strict=True)
        ],
        seconds=round(now - stage.began, 1),
        error=error,
    )
