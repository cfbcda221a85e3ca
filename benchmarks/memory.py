"""Memory over many requests with kills between: flat, or it is a leak.

10^5 requests of 4 KiB through a stateful chain (10^4 with --short), a primary killed every tenth part;
resident memory of every process and its shared memory, sampled all along. `hams bench memory [--short]
[--policy Fifo|Deadline|Distribution] [--requests N] [--out FILE.json] [--output json]`. What a policy costs
is what the proxies of two runs differ by.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from benchmarks.asking import asking
from benchmarks.chain import machine, redundant
from benchmarks.graphs import graph_file, stateful, stateless
from benchmarks.judged import odd
from benchmarks.plots import lines
from benchmarks.report import Result, add_options, deliver, rows_of, whole
from hams_graph import load
from hams_operator.local.supervisor import Supervisor
from hams_protocol.graph import SchedulePolicy

ROUNDS = 10
requests_max = 100_000_000
"""More take weeks."""

POLICIES = tuple([policy.value for policy in SchedulePolicy])
KINDS = ("proxy", "frontend", "manager", "model", "payloads")


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; 1 if a request failed, was lost or was doubled."""
    parser = argparse.ArgumentParser("hams bench memory", description=__doc__)
    add_options(parser)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--requests", type=_requests, default=100_000)
    parser.add_argument(
        "--policy", choices=POLICIES, default=POLICIES[0], help="batch.policy of all operators"
    )
    options = parser.parse_args(arguments)
    result = uvloop.run(measure(10_000 if options.short else options.requests, options.policy))
    deliver(result, options, print_table, plot)
    return 1 if result["failed"] or result["wrong_counts"] else 0


def _requests(text: str) -> int:
    return whole("requests", text, ROUNDS, requests_max)


def operators_of(policy: str) -> list[str]:
    """The chain, each operator with this policy."""
    served = [stateful(name, source, policy=policy) for name, source in (("b", "a"), ("c", "b"))]
    return [stateless("a", "request", policy), *served]


async def measure(requests: int, policy: str) -> Result:
    """One run."""
    rows: list[dict[str, object]] = []
    with graph_file("memory", operators_of(policy), {"x": "c.x", "count": "c.count"}) as path:
        supervisor = Supervisor(load(path), path, None, None, None)
        try:
            await supervisor.start()
            await redundant(supervisor)
            port = int(supervisor.url.rsplit(":", 1)[1])
            async with asking(port, "memory", 4096, 8) as log:
                for number in range(ROUNDS):
                    while len(log.answered) < (number + 1) * requests / ROUNDS:
                        log.news.clear()
                        await log.news.wait()
                    rows.append({"requests": len(log.answered), **await _sample(supervisor)})
                    victim = next(
                        item
                        for item in (await supervisor.view()).instances
                        if item.role == "primary" and item.operator == "bc"[number % 2]
                    )
                    assert victim.proxy_pid is not None
                    os.kill(victim.proxy_pid, signal.SIGKILL)
                    await redundant(supervisor)
            ended = {
                "requests": len(log.answered),
                "failed": log.failed,
                "wrong_counts": odd(log.numbers["count"]),
            }
            return {"bench": "memory", "machine": machine(), "policy": policy, **ended, "rows": rows}
        finally:
            await supervisor.stop()


async def _sample(supervisor: Supervisor) -> dict[str, float]:
    """Private and anonymous memory in MiB, the largest of each kind of process; shared payload memory
    apart."""
    view = await supervisor.view()
    largest: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for item in view.instances:
        kind = item.role if item.operator is None else "proxy"
        for name, pid in ((kind, item.proxy_pid), ("model", item.model_pid)):
            if pid:
                anonymous, shared = await asyncio.to_thread(_memory, pid)
                largest[name] = max(largest[name], anonymous)
                largest["payloads"] = max(largest["payloads"], shared)
    return {name: round(value, 1) for name, value in largest.items()}


def _memory(pid: int) -> tuple[float, float]:
    """Resident memory without shared memory files, and those: MiB."""
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("Rss")
    )
    kib = {name: int(value.split()[0]) for name, value in fields.items()}
    return (kib["RssAnon"] + kib["RssFile"]) / 1024, kib["RssShmem"] / 1024


def plot(result: Result, path: Path) -> None:
    """The largest process of each kind over the requests; a primary was killed at every point."""
    rows = rows_of(result)
    series = {kind: [row[kind] for row in rows] for kind in KINDS}
    lines(
        [row["requests"] for row in rows],
        series,
        "requests, a primary killed at every point",
        "largest of each kind, MiB",
        path,
    )


def print_table(result: Result) -> None:
    """For people."""
    rows = rows_of(result)
    print(
        f"{'requests':>9} {'proxy':>7} {'frontend':>9} {'manager':>8} {'model':>7} {'payloads':>9}  largest "
        "of each kind, MiB"
    )
    for row in rows:
        print(
            f"{row['requests']:9} {row['proxy']:7.1f} {row['frontend']:9.1f} {row['manager']:8.1f} "
            f"{row['model']:7.1f} {row['payloads']:9.1f}"
        )
    print(
        f"policy {result['policy']}; failed: {result['failed']}; "
        f"lost or doubled: {result['wrong_counts'] or 'nothing'}"
    )


if __name__ == "__main__":
    sys.exit(main())
