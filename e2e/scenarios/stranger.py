"""Somebody in node 0's network who knows every address and has no proof of who he is, or that of another
graph.

`python -m e2e.scenarios.stranger` reads one line of JSON, a list of `{"kind", "host", "port", "folder"}`, and
answers with a list of what came of each: the first line of an answer, or what went wrong. It decides nothing.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from hams_wire.peers import handshake

PATIENCE_S = 5.0


async def attempt(kind: str, host: str, port: int, folder: Path | None, said: str) -> str:
    """One connection: `plain` or `tls`, with the certificate in `folder` if there is one. What was
    answered."""
    context = None
    if kind == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if folder is not None:
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname="any" if context else None
            )
            writer.write(
                handshake.frame(handshake.Hello("any", "stranger", "any", "tcp:127.0.0.1:9", 1, 1))
                if said == "hello"
                else said.encode()
            )
            answer = await reader.read(4096)
            writer.close()
    except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
        return f"{type(error).__name__}: {error}"
    return answer.partition(b"\r\n")[0].decode("latin-1")


async def main() -> None:
    """See the module."""
    orders: list[dict[str, Any]] = json.loads(sys.stdin.readline())
    answers = [
        await attempt(
            item["kind"],
            item["host"],
            item["port"],
            Path(item["folder"]) if item.get("folder") else None,
            item.get("said", "hello"),
        )
        for item in orders
    ]
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
