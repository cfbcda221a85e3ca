"""Sends texts of both kinds at a steady rate, whether answers come or not, and says how many came in time.

`python -m reading.ask [--url URL] [--graph NAME] [--rate 12] [--seconds 60] [--deadline-ms 600]`. Every
request says its kind and its deadline.
"""

import argparse
import http.client
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from reading.data import KINDS, texts

THREADS = 128
"""Requests that may be open at a time."""
ANSWER_S = 60.0
"""How long an answer is waited for, in time or not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Send, and print. The exit status is 1 if nothing was answered at all."""
    parser = argparse.ArgumentParser("python -m reading.ask")
    parser.add_argument("--url", default="http://localhost:8080")
    parser.add_argument("--graph", default="reading")
    parser.add_argument("--rate", type=float, default=12.0, help="requests per second, on average")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--deadline-ms", type=float, default=600.0)
    options = parser.parse_args(arguments)
    requests = itertools.takewhile(lambda item: item[0] < options.seconds, due(options.rate))
    began = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        answers = []
        for at, kind, text in requests:
            time.sleep(max(began + at - time.monotonic(), 0.0))
            answers.append((kind, pool.submit(ask, options, began + at, kind, text)))
        told = [(kind, answer.result()) for kind, answer in answers]
    print(summary(told))
    return 0 if any(status for _, (status, _) in told) else 1


def due(rate: float, seed: int = 1) -> "itertools.chain[tuple[float, str, str]]":
    """When each request is sent, in seconds from the start, its kind and its text: a Poisson process."""
    draw = random.Random(seed)
    instants = itertools.accumulate(draw.expovariate(rate) for _ in itertools.count())
    return itertools.chain((at, kind, text) for at, (kind, text) in zip(instants, texts(seed), strict=False))


def ask(options: argparse.Namespace, since: float, kind: str, text: str) -> tuple[int, bool]:
    """One request: the status of its answer, 0 if there was none, and whether it came in time."""
    left_ms = max(options.deadline_ms - 1000 * (time.monotonic() - since), 1.0)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    body = json.dumps({"inputs": [tensor], "parameters": {"kind": kind}})
    headers = {"content-type": "application/json", "hams-deadline-ms": f"{left_ms:.3f}"}
    connection = http.client.HTTPConnection(urlsplit(options.url).netloc, timeout=ANSWER_S)
    try:
        connection.request("POST", f"/v2/models/{options.graph}/infer", body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0, False
    finally:
        connection.close()
    return status, status == 200 and time.monotonic() - since <= options.deadline_ms / 1000


def summary(told: Sequence[tuple[str, tuple[int, bool]]]) -> str:
    """For people: a line for each kind, one for all, and what came that was neither 200 nor 504."""
    lines = []
    for name in (*KINDS, "all"):
        in_time = [good for kind, (_, good) in told if name in (kind, "all")]
        if in_time:
            share = 100 * sum(in_time) / len(in_time)
            lines.append(f"{name:8} {share:5.1f} % of {len(in_time)} in time")
    strange = Counter(status for _, (status, _) in told if status not in (200, 504))
    lines += [f"{count} got {status or 'no answer'}" for status, count in sorted(strange.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
