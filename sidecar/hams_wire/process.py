"""What every process of a graph begins and ends with: arguments, log, event loop, etcd, signals.

A process ends with 0 when it was asked to, with `EXIT_STOPPED` when its core said Stop (a fresh instance may take its place), with 1 and
one line on its log when it could not begin. No stack trace reaches a user.
"""

import argparse
import asyncio
import gc
import logging
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

from hams_protocol.graph import Graph
from hams_wire import limits, records, spec
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.port import KeyValue
from hams_wire.errors import CoordinationError, WireError

EXIT_STOPPED = 75
"""The instance's part is over; whoever supervises it starts a fresh one (EX_TEMPFAIL)."""

log = logging.getLogger("hams.process")


def common_arguments(program: str, about: str) -> argparse.ArgumentParser:
    """The arguments that all processes of a graph take."""
    parser = argparse.ArgumentParser(program, description=about)
    parser.add_argument("--graph", required=True, help="uid of the graph: its prefix in etcd")
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("--instance", help="id of this instance, fresh at every start")
    named.add_argument("--pod", dest="instance", type=instance_in, help="name of this pod; the id is made of it, fresh at every start")
    parser.add_argument("--etcd", required=True, help="etcd endpoints, http://HOST:PORT, separated by commas")
    parser.add_argument("--listen", default="tcp:127.0.0.1:0", help="where peers connect: tcp:HOST:PORT or unix:PATH")
    parser.add_argument("--advertise", default=None, help="host that peers dial, if it is not the one listened at")
    parser.add_argument("--probe-port", type=int, default=0, help="where /livez and /readyz are answered; 0: nowhere")
    parser.add_argument("--log-level", default="info")
    return parser


def instance_in(pod: str) -> str:
    """A fresh instance id in a pod: a container that is started again in its pod is another instance."""
    return f"{pod}-{secrets.token_hex(4)}"


async def open_graph(endpoints: str, uid: str) -> tuple[EtcdCoordination, Graph]:
    """A client of etcd, and the compiled graph; waits for both, as a process may start before its etcd and its graph. Raises WireError."""
    coordination = EtcdCoordination(endpoints)
    try:
        entry = await _wait_for_spec(coordination, uid)
        return coordination, spec.decode_spec(entry.value)
    except BaseException:
        await coordination.close()
        raise


async def _wait_for_spec(coordination: EtcdCoordination, uid: str) -> KeyValue:
    """Look again and again: who writes the key may not have begun to. Nothing else is done meanwhile, so nothing is lost by looking."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.spec_wait_s
    while True:
        try:
            entry = await coordination.get(records.spec_key(uid))
        except CoordinationError as error:
            if not error.retryable or loop.time() > deadline:
                raise
            entry = None
        if entry is not None:
            return entry
        if loop.time() > deadline:
            raise records.MalformedRecord(f"etcd holds no graph {uid!r}: nothing under {records.spec_key(uid)}")
        await asyncio.sleep(limits.spec_pause_s)


class Asked(asyncio.Event):
    """Set when the process is asked to end. `at_once` as well, if nothing is to be handed over, because the whole graph ends."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = asyncio.Event()

    def now(self) -> None:
        """Asked to end at once."""
        self.at_once.set()
        self.set()


def run(work: Callable[[Asked], Awaitable[int]], log_level: str) -> int:
    """Run `work(asked_to_end)` on a fresh uvloop; SIGTERM asks to end in order, SIGINT at once."""
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    gc.freeze()

    async def main() -> int:
        asked = Asked()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, asked.set)
        loop.add_signal_handler(signal.SIGINT, asked.now)
        return await work(asked)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except (WireError, OSError, ValueError) as error:
        log.error("%s", error)
        return 1
