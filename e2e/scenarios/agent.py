"""A process inside node 0's network: it asks the graph through its Service, and reads the topology from etcd,
which is out of reach from outside.

It is told what to do by lines of JSON on its standard input and answers each with one on its standard output.
It decides nothing.

`python -m e2e.scenarios.agent` is started by `run`, through `Cluster.command_in`.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from e2e.scenarios.clients import Clients
from hams_wire import records
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_members import Tls
from hams_wire.errors import CoordinationError

ETCD_NAME = "hams-etcd.hams-system.svc"
"""As its certificates call it; it is reached by its address, as node 0's network has no name for it."""

LINE_BYTES_MAX = 1 << 28


class Agent:
    """What the commands do."""

    def __init__(self) -> None:
        self._clients: Clients | None = None
        self._number = 0
        self._coordination: EtcdCoordination | None = None

    async def do(self, order: dict[str, Any]) -> object:
        """One command. Raises KeyError for one that there is not."""
        match order["do"]:
            case "look":
                return await self._observe(order["etcd"], Path(order["keys"]), order["uid"])
            case "load":
                self._number += 1
                history = Path(order["history"]) if order["history"] else None
                name = f"client-{self._number}-{int(time.time())}"
                self._clients = Clients(
                    order["url"], order["graph"], history, order["inputs"], tuple(order["tensors"]), name
                )
                self._clients.start(order["clients"], order["keep"])
                return None
            case "answered":
                return len(self._clients.done) if self._clients else 0
            case "end":
                assert self._clients is not None, "load first"
                await self._clients.stop()
                return {
                    "done": self._clients.done,
                    "unanswered": self._clients.unanswered,
                    "troubles": self._clients.troubles,
                }
        raise KeyError(order["do"])

    async def close(self) -> None:
        """Let go of etcd."""
        if self._coordination is not None:
            await self._coordination.close()
            self._coordination = None

    async def _observe(self, etcd: str, keys: Path, uid: str) -> object:
        """The topology: primaries, backups, owners of slots; and who is registered as what."""
        if (
            self._coordination is None
            # kept: to connect with certificates for every look would take time from the clients in this
            # process
        ):
            self._coordination = EtcdCoordination(
                etcd, Tls(keys / "ca.crt", keys / "client.crt", keys / "client.key", ETCD_NAME)
            )
        prefix = records.prefix_of(uid)
        try:
            entries = {
                entry.key.removeprefix(prefix): entry.value
                for entry in (await self._coordination.get_prefix(prefix)).entries
            }
        except CoordinationError as error:
            await self.close()  # whom it is connected with may be gone
            return {"error": str(error)}
        if "topology" not in entries:
            return {"error": "no topology yet"}
        topology = records.decode_topology(entries["topology"])
        members = {}
        for name, value in entries.items():
            if name.startswith("members/"):
                instance = name.removeprefix("members/")
                members[instance] = records.decode_member(instance, value)[1].of
        return {
            "generation": topology.generation,
            "sets": {
                item.name: {
                    "epoch": item.epoch,
                    "primary": item.primary,
                    "inSync": list(item.in_sync),
                    "lost": item.lost,
                }
                for item in topology.sets
            },
            "tables": {item.op: [slot.instance for slot in item.slots] for item in topology.tables},
            "revoked": list(topology.revoked),
            "members": members,
        }


async def main() -> None:
    """Until standard input ends."""
    agent = Agent()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        answer = await agent.do(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await agent.close()


if __name__ == "__main__":
    asyncio.run(main())
