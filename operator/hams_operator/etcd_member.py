"""Before a member of the chart's etcd starts: whether it is new, has its data, or has lost them and joins its
cluster again.

etcd refuses to start a member whose data are gone: to the others it is one that has made promises. So it is
removed and added again, as another one at the same address, which takes everything over from the others. That
needs a majority of them, which is waited for: a cluster that has lost its majority is for a person to restore
(docs/etcd.md).

A cluster begins once every other member has said that it has no data either: each listens for that at its own
peer address until it knows. Silence says nothing, for the silent one may have the data.

etcd takes what it is told from flags or from a file. Its image has no shell, so the flags are given to this
program, which writes the file.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import shutil
import ssl
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hams_operator import limits
from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_members import Tls
from hams_wire.errors import CoordinationError

etcd_member_ask_s = 2.0
"""A member of etcd that has not said within this time who the others are is taken to be away."""


NO_MEMBERS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"
"""etcd answers such a question with the members that it knows, itself among them."""

log = logging.getLogger("hams.etcd")

Settings = dict[str, Any]
"""etcd's settings by the names of its flags."""

CLIENT_TLS = {
    "cert-file": "cert-file",
    "key-file": "key-file",
    "trusted-ca-file": "trusted-ca-file",
    "client-cert-auth": "client-cert-auth",
}
"""Flags that a configuration file has in a section of their own, by the names that they have there."""
PEER_TLS = {f"peer-{flag}": name for flag, name in CLIENT_TLS.items()}
NUMBERS = ("heartbeat-interval", "election-timeout", "quota-backend-bytes")
"""Flags of which a configuration file wants a number; of all others it wants text, or true or false."""


@dataclass(frozen=True, slots=True)
class ReportedMember:
    """A member as another one tells of it. `name`, `clients`: "" and none as long as one that was added has
    not started."""

    peers: tuple[str, ...]
    name: str
    clients: tuple[str, ...]


def settings_of(flags: Sequence[str]) -> Settings:
    """`--name=value` and `--name`. Raises ValueError."""
    settings: Settings = {}
    for flag in flags:
        name, there, value = flag.partition("=")
        if not name.startswith("--"):
            raise ValueError(f"{flag!r}: expected --name or --name=value")
        settings[name[2:]] = _value(name[2:], value) if there else True
    return settings


def _value(name: str, text: str) -> str | int | bool:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if name in NUMBERS else text


def file_of(settings: Mapping[str, Any]) -> str:
    """A configuration file that says the same (JSON, which is YAML)."""
    resolved: Settings = {}
    for name, value in settings.items():
        if name in CLIENT_TLS:
            resolved.setdefault("client-transport-security", {})[CLIENT_TLS[name]] = value
        elif name in PEER_TLS:
            resolved.setdefault("peer-transport-security", {})[PEER_TLS[name]] = value
        else:
            resolved[name] = value
    return json.dumps(resolved, indent=1) + "\n"


def has_run(members: Sequence[ReportedMember], peer_url: str) -> bool:
    """Whether the member at this address has been part of a cluster, by what a member of it tells.

    A cluster that begins knows the names of all its members at once, and no addresses for clients of those
    that have not come up. A member that is missing altogether was about to be added again when it was
    stopped.
    """
    mine = next((seen for seen in members if peer_url in seen.peers), None)
    return mine is None or bool(mine.clients) or not mine.name


def others_of(settings: Mapping[str, Any]) -> list[str]:
    """Where the other members talk to each other."""
    mine = settings["initial-advertise-peer-urls"]
    urls = [item.partition("=")[2] for item in str(settings["initial-cluster"]).split(",")]
    return [url for url in urls if url != mine]


async def reported_by_others(settings: Mapping[str, Any]) -> tuple[ReportedMember, ...]:
    """What the first other member that runs knows of all; it needs no majority for that. Empty: every other
    one has no data. Returns when that is known, however long that takes."""
    others, context = others_of(settings), _peer_tls(settings)
    silent: list[str] = []
    while True:
        before, silent = silent, []
        for url in others:
            try:
                members = await asyncio.to_thread(_members, url, context)
            except (OSError, HTTPException, ValueError) as error:
                silent.append(url)
                if url not in before:
                    log.info("%s does not say whether it has data, and is waited for: %s", url, error)
                continue
            if members:
                return tuple(
                    ReportedMember(
                        tuple(item.get("peerURLs") or ()),
                        item.get("name", ""),
                        tuple(item.get("clientURLs") or ()),
                    )
                    for item in members
                )
        if not silent:
            return ()
        await asyncio.sleep(limits.etcd_poll_s)


@contextlib.asynccontextmanager
async def saying_no_data(settings: Mapping[str, Any]) -> AsyncIterator[None]:
    """Answers on this member's peer address that it knows no members. Raises OSError where somebody else
    listens there."""
    url = urlsplit(str(settings["listen-peer-urls"]))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(etcd_member_ask_s):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(NO_MEMBERS)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, url.hostname, url.port, ssl=_peer_server_tls(settings))
    async with server:
        yield


def _members(url: str, context: ssl.SSLContext | None) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/members", timeout=etcd_member_ask_s, context=context) as answer:
        answered = json.loads(answer.read())
    if not isinstance(answered, list):
        raise ValueError(f"{url}/members: expected a list")
    return answered


def _peer_tls(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    if "peer-cert-file" not in settings:
        return None
    context = ssl.create_default_context(cafile=settings["peer-trusted-ca-file"])
    context.load_cert_chain(settings["peer-cert-file"], settings["peer-key-file"])
    return context


def _peer_server_tls(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    if "peer-cert-file" not in settings:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=settings["peer-trusted-ca-file"])
    context.load_cert_chain(settings["peer-cert-file"], settings["peer-key-file"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def rejoin(etcd: EtcdCoordination, peer_url: str, name: str) -> str:
    """Have the cluster forget the member at this address, and expect another one there; what is then its
    `initial-cluster`. It may be done again.

    Raises CoordinationError.
    """
    listed = await etcd.cluster("MemberList", pb.MemberListRequest(linearizable=True), pb.MemberListResponse)
    for member in listed.members:
        if peer_url in member.peerURLs:
            log.warning("member %x, %s, has lost its data: it is removed", member.ID, name)
            await etcd.cluster("MemberRemove", pb.MemberRemoveRequest(ID=member.ID), pb.MemberRemoveResponse)
    added = await etcd.cluster("MemberAdd", pb.MemberAddRequest(peerURLs=[peer_url]), pb.MemberAddResponse)
    log.warning("%s is added again, as member %x", name, added.member.ID)
    return ",".join(f"{member.name or name}={url}" for member in added.members for url in member.peerURLs)


async def prepare(settings: Settings, endpoints: str, tls: Tls | None) -> Settings:
    """What etcd is to be told. Returns when the cluster expects this member, however long that takes."""
    data = Path(settings["data-dir"]) / "member"
    if any((data / "wal").glob("*.wal")):
        return settings
    peer_url, name = str(settings["initial-advertise-peer-urls"]), str(settings["name"])
    async with saying_no_data(settings):
        members = await reported_by_others(settings)
    if not members or not has_run(members, peer_url):
        return settings
    # one that was started in vain leaves folders, and a database without a log is worth nothing
    if data.is_dir():
        shutil.rmtree(data)
    while True:
        etcd = EtcdCoordination(endpoints, tls)
        try:
            cluster = await rejoin(etcd, peer_url, name)
        except CoordinationError as error:
            log.warning("%s has no data, and the others do not let it in yet: %s", name, error)
        else:
            return settings | {"initial-cluster": cluster, "initial-cluster-state": "existing"}
        finally:
            await etcd.close()
        await asyncio.sleep(limits.etcd_poll_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m hams_operator.etcd_member --config FILE --endpoints URLS [--tls FOLDER] -- FLAGS OF
    ETCD`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="the file that is written, for etcd --config-file"
    )
    parser.add_argument("--endpoints", required=True, help="where clients reach the other members")
    parser.add_argument("--tls", type=Path, help="a folder with ca.crt, client.crt and client.key")
    parser.add_argument("flags", nargs="+", help="what etcd would be started with")
    asked = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    folder = asked.tls
    tls = None if folder is None else Tls(folder / "ca.crt", folder / "client.crt", folder / "client.key")
    try:
        settings = asyncio.run(prepare(settings_of(asked.flags), asked.endpoints, tls))
    except OSError as error:
        log.error("expected to listen at the peer address until it is known who has data: %s", error)
        return 1
    asked.config.write_text(file_of(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
