"""`python -m hams_sidecar.profile_key`: a person's hand on what is stored of an operator's times.

`forget` has all instances forget it; `read` prints it, in base64; `give` has all instances know what comes
on stdin, base64 of `--characters` characters, in place of what they have learnt (`profile_store`).
`hams profile` runs it in a pod.
"""

import argparse
import asyncio
import base64
import binascii
import sys
from pathlib import Path

from hams_schedule.stored import ProfileRefused, document_of
from hams_wire import records
from hams_wire.coordination.port import Write
from hams_wire.errors import WireError
from hams_wire.process import Access


async def write(access: Access, graph_uid: str, operator: str, value: bytes) -> None:
    """Raises WireError; again does no harm."""
    coordination = access.coordination()
    try:
        await coordination.transact((), (Write(records.profile_key(graph_uid, operator), value),))
    finally:
        await coordination.close()


async def read(access: Access, graph_uid: str, operator: str) -> bytes:
    """The stored profile, without a person's word about it; empty: there is none. Raises WireError."""
    coordination = access.coordination()
    try:
        entry = await coordination.get(records.profile_key(graph_uid, operator))
    finally:
        await coordination.close()
    return b"" if entry is None else entry.value.removeprefix(records.PROFILE_GIVEN)


def given_on_stdin(characters: int) -> bytes:
    """The value that gives all instances the profile on stdin. Raises ProfileRefused."""
    try:
        data = base64.b64decode(sys.stdin.read(characters), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProfileRefused(f"expected base64 on stdin: {error}") from None
    document_of(data)
    return records.PROFILE_GIVEN + data


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if it is done."""
    parser = argparse.ArgumentParser("hams-profile-key", description="what was learnt of an operator")
    parser.add_argument("action", choices=("forget", "read", "give"))
    parser.add_argument("--graph", required=True, help="uid of the graph: its prefix in etcd")
    parser.add_argument("--etcd", required=True, help="etcd endpoints, separated by commas")
    parser.add_argument("--operator", required=True)
    parser.add_argument("--tls", type=Path, default=None, metavar="DIR", help="certificates for etcd")
    parser.add_argument("--characters", type=int, default=0, help="give: how much of stdin is read")
    given = parser.parse_args(arguments)
    access = Access(given.etcd, given.tls)
    try:
        if given.action == "read":
            data = asyncio.run(read(access, given.graph, given.operator))
            sys.stdout.write(base64.b64encode(data).decode() + "\n")
            return 0
        gives = given.action == "give"
        value = given_on_stdin(given.characters) if gives else records.PROFILE_FORGOTTEN
        asyncio.run(write(access, given.graph, given.operator, value))
    except ProfileRefused as error:
        sys.stderr.write(f"no profile: {error}\n")
        return 1
    except WireError as error:
        sys.stderr.write(f"etcd does not answer: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
