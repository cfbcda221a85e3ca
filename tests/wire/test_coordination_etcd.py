"""The client of a real etcd: what its answers say about the outcome, endpoints, values, TLS."""

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from hams_operator.local.etcd import EtcdProcess, Ports, _free_ports, find_etcd
from hams_wire import errors
from hams_wire.coordination import ABSENT, etcd, etcd_pb2
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_errors import Forgotten, LeaderChanged, RevisionNotReached, classify
from hams_wire.coordination.etcd_members import Tls, parse_endpoints
from hams_wire.coordination.etcd_values import range_of
from hams_wire.errors import CoordinationError, InvalidCall, Lost


def answer(code: grpc.StatusCode, details: str) -> CoordinationError:
    empty = grpc.aio.Metadata()
    return classify(grpc.aio.AioRpcError(code, empty, empty, details, None), "Txn", "etcd-0:2379")


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", errors.NoSpace),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", errors.LeaseGone),
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", errors.AuthExpired),
        (grpc.StatusCode.UNKNOWN, "auth: revision in header is old", errors.AuthExpired),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", errors.AccessDenied),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", InvalidCall),
        (grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Forgotten),
        (
            grpc.StatusCode.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision is a future revision",
            RevisionNotReached,
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: Connection refused",
            Lost,
        ),
        (grpc.StatusCode.UNAVAILABLE, "DNS resolution failed for etcd-0:2379", Lost),
    ],
)
def test_a_refusal_that_etcd_gives_instead_of_applying_is_known(
    code: grpc.StatusCode, details: str, kind: type[CoordinationError]
) -> None:
    error = answer(code, details)
    assert type(error) is kind
    assert "Txn at etcd-0:2379" in str(error)
    assert details in str(error)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "etcdserver: request timed out, possibly due to previous leader failure",
        ),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped"),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed"),
        (grpc.StatusCode.CANCELLED, ""),
        (grpc.StatusCode.UNKNOWN, "something that a later etcd says"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
    ],
)
def test_whatever_may_have_been_applied_is_unknown(code: grpc.StatusCode, details: str) -> None:
    error = answer(code, details)
    assert type(error) is errors.Unknown
    assert not error.retryable


def test_what_may_have_been_applied_is_never_retryable() -> None:
    """The promise of the tree in errors.py."""
    assert {kind.__name__ for kind in CoordinationError.__subclasses__() if kind.retryable} == {
        "Lost",
        "Unavailable",
        "AuthExpired",
    }
    assert all(
        isinstance(kind.responsible, errors.ResponsibleParty) for kind in CoordinationError.__subclasses__()
    )


@pytest.mark.parametrize(
    ("text", "addresses", "secure"),
    [
        ("http://a:2379,http://b.c-d:1/", ("a:2379", "b.c-d:1"), False),
        ("10.0.0.1:2379, 10.0.0.2:2379", ("10.0.0.1:2379", "10.0.0.2:2379"), False),
        ("https://[::1]:2379", ("[::1]:2379",), True),
    ],
)
def test_endpoints_are_urls_or_addresses(text: str, addresses: tuple[str, ...], secure: bool) -> None:
    assert parse_endpoints(text) == (addresses, secure)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:0",
        "a:65536",
        "a:x",
        "ftp://a:1",
        "http://a:1,https://b:1",
        "http://a:1/path",
        "a:1,,b:1",
        "http://u@a:1",
    ],
)
def test_other_endpoints_are_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InvalidCall, match=r"expected|mixed"):
        parse_endpoints(text)


@pytest.mark.parametrize(
    ("prefix", "start", "end"),
    [
        ("a/", b"a/", b"a0"),
        ("", b"\x00", b"\x00"),
        ("a\udcff", b"a\xff", b"b"),
        ("\udcff", b"\xff", b"\x00"),
        ("é", b"\xc3\xa9", b"\xc3\xaa"),
    ],
)
def test_the_range_of_a_prefix_holds_all_keys_that_begin_with_it(
    prefix: str, start: bytes, end: bytes
) -> None:
    assert range_of(prefix) == (start, end)


# ---- TLS ----


async def test_https_without_an_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="authority"):
        EtcdCoordination("https://a:1")
    with pytest.raises(InvalidCall, match=r"none\.pem: No such file"):
        EtcdCoordination("https://a:1", Tls(tmp_path / "none.pem"))


@pytest.mark.etcd
@pytest.mark.process
async def test_certificates_of_both_sides_are_checked_and_renewed_ones_are_used(tmp_path: Path) -> None:
    good, bad = trustme.CA(), trustme.CA()
    authority, certificate, key = tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(issuer: trustme.CA, where: tuple[Path, Path]) -> None:
        leaf = issuer.issue_cert("127.0.0.1", "client")
        where[0].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(where[1])

    good.cert_pem.write_to_path(authority)
    server = (tmp_path / "server.crt", tmp_path / "server.key")
    write(good, server)
    ports: tuple[Ports, ...] = _free_ports(1)
    endpoint = f"https://127.0.0.1:{ports[0].client}"
    flags = [
        f"--listen-client-urls={endpoint}",
        f"--advertise-client-urls={endpoint}",
        f"--cert-file={server[0]}",
        f"--key-file={server[1]}",
        f"--trusted-ca-file={authority}",
        "--client-cert-auth",
    ]
    etcd = EtcdProcess(find_etcd(), tmp_path, 0, ports, flags)
    await etcd.start()
    write(good, (certificate, key))
    client = EtcdCoordination(endpoint, Tls(authority, certificate, key))
    nameless = EtcdCoordination(endpoint, Tls(authority), call_s=0.3)
    write(bad, (tmp_path / "other.crt", tmp_path / "other.key"))
    bad.cert_pem.write_to_path(tmp_path / "other-ca.crt")
    stranger = EtcdCoordination(endpoint, Tls(authority, tmp_path / "other.crt", tmp_path / "other.key"))
    suspicious = EtcdCoordination(endpoint, Tls(tmp_path / "other-ca.crt", certificate, key), call_s=0.3)
    try:
        await client.wait_ready(60)
        await client.compare_and_swap("k", ABSENT, b"")
        for refused in (nameless, stranger, suspicious):
            with pytest.raises(Lost):
                await refused.get("k")
        shutil.copy(certificate, tmp_path / "other.crt")
        shutil.copy(key, tmp_path / "other.key")
        await stranger.wait_ready(60)
        assert await stranger.get("k") is not None
    finally:
        for each in (client, nameless, stranger, suspicious):
            await each.close()
        await etcd.kill()


def test_the_committed_messages_are_those_of_the_proto(tmp_path: Path) -> None:
    root = Path(etcd_pb2.__file__).parents[2]
    out = tmp_path / "etcd.binpb"
    arguments = ["protoc", f"-I{root}", f"--descriptor_set_out={out}", "hams_wire/coordination/etcd.proto"]
    assert protoc.main(arguments) == 0
    (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    committed = FileDescriptorProto.FromString(etcd_pb2.DESCRIPTOR.serialized_pb)
    file.ClearField("source_code_info")
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert file == committed


class WithoutAnswers(grpc.GenericRpcHandler):
    """A member of etcd that answers no write, but says of itself what `states` hold: term and leader."""

    def __init__(self, states: Iterator[tuple[int, int]]) -> None:
        self._states = states
        self.never = asyncio.Event()

    def service(self, details: Any) -> Any:
        async def status(request: bytes, context: Any) -> bytes:
            term, leader = next(self._states)
            header = etcd_pb2.ResponseHeader(raft_term=term)
            return etcd_pb2.StatusResponse(header=header, leader=leader).SerializeToString()

        async def write(request: bytes, context: Any) -> bytes:
            await self.never.wait()
            return b""

        asked_for = status if details.method == "/etcdserverpb.Maintenance/Status" else write
        return grpc.unary_unary_rpc_method_handler(asked_for)


@pytest.mark.parametrize(
    ("states", "gives_up"),
    [
        ([(4, 1), (4, 1), (4, 0), (5, 0), (5, 2)], True),
        ([(4, 1), (5, 1)], True),
        ([(0, 0), (4, 1), (4, 1), (4, 0), (4, 1)], False),
        ([(4, 0), (4, 1)], False),
    ],
    ids=[
        "another leader",
        "the same one, elected again",
        "no leader for a moment",
        "it has just begun",
    ],
)
async def test_a_write_is_given_up_once_its_member_has_another_leader(
    monkeypatch: pytest.MonkeyPatch, states: list[tuple[int, int]], gives_up: bool
) -> None:
    """The former leader may have taken it along, so its outcome is unknown; the member itself is well."""
    monkeypatch.setattr(etcd, "etcd_write_s", 0.001)
    all_seen = asyncio.Event()

    def seen() -> Iterator[tuple[int, int]]:
        yield from states
        all_seen.set()
        yield from itertools.repeat(states[-1])

    handler = WithoutAnswers(seen())
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = EtcdCoordination(f"http://127.0.0.1:{port},http://localhost:{port}", call_s=600)
    write = asyncio.create_task(client.compare_and_swap("k", ABSENT, b""))
    try:
        if gives_up:
            with pytest.raises(LeaderChanged, match="it has another leader"):
                await write
        else:
            await all_seen.wait()
            assert not write.done()
        assert client.members.switches == 0, "the next one may be the former leader"
    finally:
        handler.never.set()
        write.cancel()
        await asyncio.gather(write, return_exceptions=True)
        await client.close()
        await server.stop(None)
