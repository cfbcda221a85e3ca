"""`python -m hams_sidecar.forget`: have all instances of an operator forget what they have learnt.

It writes what `profile_store` takes for a person's word. `hams profile --clear` runs it in a pod.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from hams_sidecar.profile_store import FORGET
from hams_wire import records
from hams_wire.coordination.port import Write
from hams_wire.errors import WireError
from hams_wire.process import Access


async def forget(access: Access, graph_uid: str, operator: str) -> None:
    """Raises WireError; again does no harm."""
    coordination = access.coordination()
    try:
        await coordination.transact((), (Write(records.profile_key(graph_uid, operator), FORGET),))
    finally:
        await coordination.close()


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if it is written."""
    parser = argparse.ArgumentParser("hams-forget", description="forget what was learnt of an operator")
    parser.add_argument("--graph", required=True, help="uid of the graph: its prefix in etcd")
    parser.add_argument("--etcd", required=True, help="etcd endpoints, separated by commas")
    parser.add_argument("--operator", required=True)
    parser.add_argument("--tls", type=Path, default=None, metavar="DIR", help="certificates for etcd")
    given = parser.parse_args(arguments)
    try:
        asyncio.run(forget(Access(given.etcd, given.tls), given.graph, given.operator))
    except WireError as error:
        sys.stderr.write(f"etcd does not answer: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
