"""One manager as a process. Three of them run per graph; any may die at any step, and another one finishes."""

import asyncio
import os
import sys

from hams_protocol.effects import Effect
from hams_protocol.recovery import ManagerMachine
from hams_wire.history import writer_from
from hams_wire.node import MANAGER, Node
from hams_wire.peers.payload import HeapFactory
from hams_wire.process import EXIT_STOPPED, common_arguments, open_graph, run


async def serve(graph_uid: str, instance: str, etcd: str, listen: str, advertise: str | None, asked: asyncio.Event) -> int:
    """Run one manager until `asked` is set. Returns the exit code."""
    coordination, graph = await open_graph(etcd, graph_uid)

    def perform(effect: Effect) -> None:
        raise AssertionError(f"not an effect of a manager: {effect}")

    node = Node(
        ManagerMachine(graph, instance),
        instance,
        MANAGER,
        graph_uid,
        coordination,
        HeapFactory(),
        perform,
        listen=listen,
        advertise=advertise,
        history=writer_from(os.environ, instance),
        suspect_after_s=graph.data.recovery.suspect_after_s,
    )
    try:
        await node.start()
        await node.until_stopped(asked)
    finally:
        await node.close(leave=True)
    return EXIT_STOPPED if node.stopped.done() else 0


def main(arguments: list[str] | None = None) -> int:
    """`python -m hams_operator.manager.process`."""
    options = common_arguments("hams-manager", "one manager of a graph").parse_args(arguments)

    async def work(asked: asyncio.Event) -> int:
        return await serve(options.graph, options.instance, options.etcd, options.listen, options.advertise, asked)

    return run(work, options.log_level)


if __name__ == "__main__":
    sys.exit(main())
