"""Users and roles in a real etcd that asks for certificates: who may do what, and what the others are
refused."""

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import certified

from hams_operator.controller.certificates import Authority, Subject, fresh_authority, issue
from hams_operator.local.etcd import EtcdProcess, _free_ports, find_etcd
from hams_wire import records
from hams_wire.coordination import ABSENT, Compare, Delete, Snapshot, Write
from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_errors import NotThere
from hams_wire.coordination.etcd_members import Tls
from hams_wire.coordination.etcd_users import allow, forget, lock
from hams_wire.errors import AccessDenied, AuthExpired, CoordinationError, Lost

pytestmark = [pytest.mark.etcd, pytest.mark.process]

OURS, THEIRS = records.prefix_of("ours"), records.prefix_of("theirs")


class Locked:
    """An etcd that lets in users only, and clients of it by their names."""

    def __init__(
        self, folder: Path, authority: Authority, endpoint: str, stack: contextlib.AsyncExitStack
    ) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.authority = authority
        self._stack = stack

    def client(
        self,
        name: str | None,
        signer: Authority | None = None,
        at: datetime.datetime | None = None,
        call_s: float = 20.0,
    ) -> EtcdCoordination:
        """Under the common name `name`; None: without a certificate. `call_s`: short for who gets no answer
        at all."""
        if name is None:
            tls = Tls(self.folder / "ca.crt")
        else:
            pem = issue(signer or self.authority, Subject(name, serves=False), at or certified.now(), 7)
            for suffix, data in zip(("crt", "key"), pem, strict=True):
                (self.folder / f"{name}.{suffix}").write_bytes(data)
            tls = Tls(self.folder / "ca.crt", self.folder / f"{name}.crt", self.folder / f"{name}.key")
        made = EtcdCoordination(self.endpoint, tls, call_s=call_s)
        self._stack.push_async_callback(made.close)
        return made


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    authority = fresh_authority("etcd", certified.now(), 30)
    certificate, key = issue(authority, Subject(hosts=("localhost",)), certified.now(), 7)
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "server.crt").write_bytes(certificate)
    (tmp_path / "server.key").write_bytes(key)
    ports = _free_ports(1)
    endpoint = f"https://127.0.0.1:{ports[0].client}"
    flags = [
        f"--listen-client-urls={endpoint}",
        f"--advertise-client-urls={endpoint}",
        "--client-cert-auth",
        "--enable-grpc-gateway=false",
    ]
    flags += [
        f"--cert-file={tmp_path}/server.crt",
        f"--key-file={tmp_path}/server.key",
        f"--trusted-ca-file={tmp_path}/ca.crt",
    ]
    etcd = EtcdProcess(find_etcd(), tmp_path, 0, ports, flags)
    await etcd.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(etcd.kill)
        values = Locked(tmp_path, authority, f"https://localhost:{ports[0].client}", stack)
        root = values.client("root")
        await root.wait_ready(60)
        for _ in range(2):  # what is there already does no harm
            await lock(root)
            await allow(root, "ours", records.all_of("ours"))
            await allow(root, "theirs", records.all_of("theirs"))
        yield values


async def test_a_graph_does_with_its_own_keys_what_it_likes(locked: Locked) -> None:
    ours = locked.client("ours")
    await ours.wait_ready(60)
    revision = await ours.compare_and_swap(f"{OURS}topology", ABSENT, b"1")
    watch = ours.watch(OURS, await ours.get_prefix(OURS))
    registration = await ours.register(f"{OURS}members/a", b"here", 30)
    await ours.transact(
        (Compare(f"{OURS}topology", revision),), (Write(f"{OURS}topology", b"2"), Delete(f"{OURS}members/b"))
    )
    await anext(watch)
    await registration.stop(AccessDenied("over"))
    await ours.compare_and_swap("/hams/v1/ours-r1/spec", ABSENT, b"another shape")
    assert {entry.key for entry in (await ours.get_prefix("/hams/v1/ours-r1/")).entries} == {
        "/hams/v1/ours-r1/spec"
    }


async def test_a_graph_neither_reads_nor_writes_another_ones_keys(locked: Locked) -> None:
    ours, theirs = locked.client("ours"), locked.client("theirs")
    await ours.compare_and_swap(f"{OURS}topology", ABSENT, b"mine")
    await theirs.compare_and_swap(f"{THEIRS}topology", ABSENT, b"yours")
    held = await theirs.register(f"{THEIRS}members/a", b"here", 30)
    lease = (await theirs.get_prefix(f"{THEIRS}members/")).entries[0].lease
    for attempt in (
        ours.get(f"{THEIRS}topology"),
        ours.get_prefix(THEIRS),
        ours.get_prefix("/hams/v1/"),
        ours.get_prefix("/hams/v1/our"),
        ours.compare_and_swap("/hams/v1/ours", ABSENT, b"x"),
        ours.compare_and_swap("/hams/v1/ours0", ABSENT, b"x"),
        ours.compare_and_swap("/hams/v1/ours1/spec", ABSENT, b"x"),
        ours.compare_and_swap(f"{THEIRS}spec", ABSENT, b"x"),
        ours.transact((), (Delete(f"{THEIRS}topology"),)),
        ours.transact((Compare(f"{THEIRS}topology", ABSENT),), (Write(f"{OURS}other", b""),)),
        ours.transact((), (Write(f"{OURS}other", b""), Write(f"{THEIRS}other", b""))),
        ours.compare_and_swap("/elsewhere", ABSENT, b""),
        ours.revoke(lease),
        allow(ours, "more", ("/", "0")),
        forget(ours, "theirs"),
    ):
        with pytest.raises(AccessDenied):
            await attempt
    for prefix in (THEIRS, "/hams/v1/", "/"):
        with pytest.raises(AccessDenied):
            await anext(ours.watch(prefix, Snapshot(1)))
    assert held.held.is_set()
    assert [entry.key for entry in (await ours.get_prefix(OURS)).entries] == [f"{OURS}topology"], (
        "nothing of a refused transaction was done"
    )
    entry = await theirs.get(f"{THEIRS}topology")
    assert entry is not None
    assert entry.value == b"yours"


async def test_who_is_no_user_gets_nothing(locked: Locked) -> None:
    for name, kind in ((None, Lost), ("nobody", CoordinationError), ("", CoordinationError)):
        with pytest.raises(kind):
            await locked.client(name, call_s=1.0).get(f"{OURS}topology")
    foreign = fresh_authority("etcd", certified.now(), 30)
    with pytest.raises(Lost):
        await locked.client("ours", foreign, call_s=1.0).get(f"{OURS}topology")
    with pytest.raises(Lost):
        await locked.client("ours", at=certified.now() - datetime.timedelta(days=8), call_s=1.0).get(
            f"{OURS}topology"
        )


async def test_a_graph_that_is_forgotten_has_no_rights_any_more(locked: Locked) -> None:
    root, ours = locked.client("root"), locked.client("ours")
    await ours.compare_and_swap(f"{OURS}topology", ABSENT, b"")
    for _ in range(2):
        await forget(root, "ours")
    with pytest.raises((AccessDenied, AuthExpired)):
        await ours.get(f"{OURS}topology")
    with pytest.raises(NotThere):
        await root.administer("RoleDelete", pb.AuthRoleDeleteRequest(role="ours"), pb.AuthRoleDeleteResponse)
    await allow(root, "ours", records.all_of("ours"))
    assert await ours.get(f"{OURS}topology") is not None


async def test_graphs_that_come_and_go_disturb_no_other_ones_writes(locked: Locked) -> None:
    """Each change of users makes etcd refuse what was sent just before; nothing of that was applied, and it
    is sent again."""
    root, ours = locked.client("root"), locked.client("ours")
    over = False

    async def come_and_go() -> None:
        for number in range(10):
            await allow(root, f"g{number}", records.all_of(f"g{number}"))
        for number in range(10):
            await forget(root, f"g{number}")

    async def write() -> int:
        count, revision = 0, ABSENT
        while not over:
            revision = await ours.compare_and_swap(f"{OURS}topology", revision, str(count).encode())
            count += 1
        return count

    writing = asyncio.create_task(write())
    await come_and_go()
    over = True
    assert await writing > 0
