"""`python -m e2e.many`: many ServiceGraphs at once against an API server without nodes, and what they cost.

Graphs stay without a primary, as nothing runs. The clock runs from the first ServiceGraph sent until each has
a status that says so, which the controller writes after all of a graph's objects; those are counted once the
clock has stopped. Then it is looked what the controller does at rest.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from e2e.bare import Bare, Process
from e2e.cluster.commands import CommandFailed, NotInTime
from e2e.cluster.layout import ROOT, Folders, cache_folder
from e2e.cluster.machine import IMPOSSIBLE, NotPossible
from hams_operator.controller.kube import GRAPHS, OWNED, KubeClient, KubeError
from hams_operator.plan.names import Json

NAMESPACE = "default"
OUT = ROOT / "out/e2e/many.json"
LIMIT_S = 1200.0
"""It is given up after this long."""
SENT_AT_ONCE = 8
SETTLE_S = 5.0
"""From convergence until the rest is looked at."""
COUNTER = "apiserver_request_total"
"""The API server's own count of requests."""


async def measure(bare: Bare, options: argparse.Namespace) -> dict[str, object]:
    """One run. Raises what `Bare.start` does, and KubeError, TimeoutError, Unexpected."""
    graph = yaml.safe_load(options.graph.read_text())
    names = [f"{graph['metadata']['name']}-{number}" for number in range(options.graphs)]
    try:
        await bare.start()
        result = await _run(bare, graph, names)
        await asyncio.sleep(SETTLE_S)
        rest = await _at_rest(bare, options.rest)
    finally:
        await bare.close()
    return {
        "graph": options.graph.parent.name,
        "graphs": len(names),
        "secured": not bare.clear,
        **result,
        "at_rest": rest,
    }


async def _run(bare: Bare, graph: Json, names: list[str]) -> dict[str, object]:
    number, kube, controller = len(names), bare.kube, bare.processes["controller"]
    processes = (*bare.processes.values(), Process("measuring", os.getpid()))
    print(", ".join(f"{item.name}: process {item.pid}" for item in processes), flush=True)
    sent, rounds, answered = await _sent(bare), await _rounds(bare), await _answered(kube)
    cpu_s = {item.name: item.cpu_s() for item in processes}
    began = time.monotonic()
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        group.create_task(_converged(kube, set(names), began))
        left = iter(names)
        for _ in range(SENT_AT_ONCE):
            group.create_task(_send(kube, graph, left))
    took_s = time.monotonic() - began
    cpu_s = {item.name: item.cpu_s() - cpu_s[item.name] for item in processes}
    memory = {"then": controller.memory_mb("VmRSS"), "most": controller.memory_mb("VmHWM")}
    sent, rounds = await _sent(bare) - sent, await _rounds(bare) - rounds
    answered = Counter(await _answered(kube)) - Counter(answered)
    objects = {kind: await _count(kube, kind) / number for kind in OWNED}
    return {
        "converged_s": round(took_s, 1),
        "cores": round(sum(cpu_s.values()) / took_s, 2),
        "cpu_ms_per_graph": {name: round(1000 * value / number, 1) for name, value in cpu_s.items()},
        "controller_mb": memory,
        "controller_requests_per_graph": round(sent / number, 2),
        "controller_looks_per_graph": round(rounds / number, 2),
        "answered_per_graph": {
            name: round(value / number, 2) for name, value in answered.most_common() if value >= number / 2
        },
        "objects_per_graph": objects,
    }


async def _at_rest(bare: Bare, rest_s: float) -> dict[str, float]:
    controller = bare.processes["controller"]
    sent, cpu_s = await _sent(bare), controller.cpu_s()
    await asyncio.sleep(rest_s)
    return {
        "for_s": rest_s,
        "requests_per_s": round((await _sent(bare) - sent) / rest_s, 2),
        "core": round((controller.cpu_s() - cpu_s) / rest_s, 4),
        "mb": controller.memory_mb("VmRSS"),
    }


async def _send(kube: KubeClient, graph: Json, names: Iterator[str]) -> None:
    for name in names:
        await kube.create(GRAPHS, NAMESPACE, {**graph, "metadata": {**graph["metadata"], "name": name}})


class Unexpected(Exception):
    """A graph says of itself what none should."""


async def _converged(kube: KubeClient, waited_for: set[str], began: float) -> None:
    """Until the status of each says that nobody has a role yet. Raises Unexpected, KubeError."""
    version, total, settled = "0", len(waited_for), 0
    while waited_for:
        async for event in kube.watch(GRAPHS, NAMESPACE, "", version):
            item = event["object"]
            version = item["metadata"]["resourceVersion"]
            conditions = (item.get("status") or {}).get("conditions") or []
            ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
            if ready is None or item["status"]["observedGeneration"] != item["metadata"]["generation"]:
                continue
            if ready["reason"] not in ("NoPrimary", "EtcdAway"):
                raise Unexpected(f"{item['metadata']['name']}: {ready['reason']}: {ready['message']}")
            if ready["reason"] == "NoPrimary":
                waited_for.discard(item["metadata"]["name"])
            if 10 * (total - len(waited_for)) // total > settled:
                settled = 10 * (total - len(waited_for)) // total
                print(f"{time.monotonic() - began:7.1f} s  {total - len(waited_for)} graphs", flush=True)
            if not waited_for:
                return


async def _sent(bare: Bare) -> int:
    return int((await bare.metrics())["hams_controller_kube_requests_total"])


async def _rounds(bare: Bare) -> int:
    return int((await bare.metrics())["hams_controller_rounds_total"])


async def _answered(kube: KubeClient) -> dict[str, int]:
    """What the API server has answered, to anybody, by verb and resource."""
    counts: Counter[str] = Counter()
    async for line in kube.lines("/metrics", {}):
        if line.startswith(COUNTER + "{"):
            labels = {
                name: value.strip('"')
                for name, value in (
                    part.split("=", 1) for part in line[len(COUNTER) + 1 : line.index("}")].split(",")
                )
            }
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            counts[f"{labels['verb']} {resource}"] += int(float(line.rsplit(" ", 1)[1]))
    return counts


async def _count(kube: KubeClient, kind: str) -> int:
    count, after = 0, ""
    while True:
        page = await kube.page(OWNED[kind], NAMESPACE, "app.kubernetes.io/managed-by=hams", after)
        count += len(page["items"])
        after = page["metadata"].get("continue", "")
        if not after:
            return count


@contextmanager
def folders_of(keep: Path | None) -> Iterator[Folders]:
    """Folders that are gone afterwards, or `keep`."""
    cache = cache_folder().resolve()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield Folders(cache, keep.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="hams-many-", ignore_cleanup_errors=True) as folder:
        yield Folders(cache, Path(folder))


def main(words: list[str]) -> int:
    """Returns 0, or 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m e2e.many", description=__doc__)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument(
        "--graph",
        type=Path,
        default=ROOT / "examples/digits/graph.yaml",
        help="the file of which each is a copy under another name",
    )
    parser.add_argument("--clear", action="store_true", help="without certificates (`tls.enabled: false`)")
    parser.add_argument(
        "--rest", type=float, default=30.0, metavar="S", help="how long the rest is looked at"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--keep", type=Path, help="a new folder for logs and data, which stays")
    options = parser.parse_args(words)
    try:
        with folders_of(options.keep) as folders, ExitStack() as stack:
            result = asyncio.run(measure(Bare(folders, stack, options.clear), options))
    except NotPossible as error:
        print(f"NOT RUN: {error}", file=sys.stderr)
        return IMPOSSIBLE
    except (CommandFailed, NotInTime, KubeError, TimeoutError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except ExceptionGroup as group:  # of the tasks of `_run`
        expected, other = group.split((KubeError, Unexpected))
        if expected is None or other is not None:
            raise
        print(f"FAILED: {expected.exceptions[0]}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
