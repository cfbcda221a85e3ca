"""F26, F27 and F28 as far as they concern the etcd client alone: real etcd processes, killed, paused,
restored, filled, cut off.

Nothing here sleeps. Where time has to pass, a lease that nobody renews tells when it has (`outlive`).
"""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self, TypeVar

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from hams_operator.local.etcd import EtcdProcess, LocalEtcd
from hams_wire.coordination import (
    ABSENT,
    Compare,
    Delete,
    Deleted,
    Event,
    Put,
    Restored,
    Snapshot,
    Watch,
    Write,
)
from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_members import User
from hams_wire.errors import (
    AccessDenied,
    AuthExpired,
    CoordinationError,
    Lost,
    NoSpace,
    NotApplied,
    Unavailable,
    Unknown,
)

pytestmark = [pytest.mark.process, pytest.mark.etcd]

Response = TypeVar("Response", bound=Message)

TTL_S = 6
"""Of a registration that has to hold: a slow machine, an election or a restart of etcd costs less."""


class Forwarder:
    """Stands between a client and a member: cuts connections, or holds back one direction."""

    def __init__(self, target: EtcdProcess) -> None:
        self._target = target.ports.client
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self.requests = asyncio.Event()
        self.replies = asyncio.Event()
        self.requests.set()
        self.replies.set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def cut(self) -> None:
        """Break every connection, lose what is held back, refuse new ones."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def heal(self) -> None:
        """Let everything pass."""
        self.requests.set()
        self.replies.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(there_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, there_writer, self.requests))
                    group.create_task(self._pump(there_reader, writer, self.replies))
            finally:
                there_writer.transport.abort()
                self._writers.discard(there_writer)
        except (OSError, ExceptionGroup):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            await gate.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@pytest_asyncio.fixture
async def etcd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalEtcd]:
    """As many members as the test's marker `members` says, else one."""
    members, extra = getattr(request, "param", (1, ()))
    etcd = await LocalEtcd.start(tmp_path, members=members, extra=extra)
    yield etcd
    await asyncio.gather(*(member.kill() for member in etcd.members))


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[list[EtcdCoordination]]:
    """Closed after the test."""
    made: list[EtcdCoordination] = []
    yield made
    for client in made:
        await client.close()


three = pytest.mark.parametrize("etcd", [(3, ())], indirect=True, ids=["three members"])


async def settled(client: EtcdCoordination, key: str, value: bytes) -> int:
    """Write as a manager does: read again after an unknown outcome or a refusal, until the value is there;
    returns its revision."""
    while True:
        try:
            entry = await client.get(key)
            if entry is not None and entry.value == value:
                return entry.mod_revision
            return await client.compare_and_swap(
                key, entry.mod_revision if entry is not None else ABSENT, value
            )
        except CoordinationError as error:
            if not (error.retryable or isinstance(error, Unknown | NotApplied)):
                raise


async def outlive(client: EtcdCoordination, ttl_s: int) -> None:
    """Return when a lease of `ttl_s` granted now and never renewed has expired: etcd's own clock."""
    lease = await client.grant(ttl_s)
    key = f"clock/{lease:x}"
    await client.compare_and_swap(key, ABSENT, b"", lease)
    async with client.watch(key, await client.get_prefix(key)) as watch:
        assert isinstance(await anext(watch), Deleted)


async def until(watch: Watch, key: str) -> list[Event]:
    """All events up to the first that writes `key`, inclusive."""
    events: list[Event] = []
    async for event in watch:
        events.append(event)
        if isinstance(event, Put) and event.entry.key == key:
            return events
    raise AssertionError("a watch does not end")


async def leader_first(etcd: LocalEtcd) -> tuple[EtcdProcess, list[EtcdProcess]]:
    """The leader and the others. Asks again where an election came between."""
    async with asyncio.timeout(60):
        while True:
            for member in etcd.members:
                client = EtcdCoordination(member.endpoint)
                status = await client.members.current.status(pb.StatusRequest(), timeout=5, metadata=())
                await client.close()
                if status.leader == status.header.member_id:
                    return member, [other for other in etcd.members if other is not member]


def joined(*members: EtcdProcess | Forwarder) -> str:
    return ",".join(member.endpoint for member in members)


async def call(endpoint: str, method: str, request: Message, response: type[Response]) -> Response:
    """An administrator's call."""
    async with grpc.aio.insecure_channel(endpoint.removeprefix("http://")) as channel:
        unary = channel.unary_unary(
            f"/etcdserverpb.{method}", lambda message: message.SerializeToString(), response.FromString
        )
        answer = await unary(request, timeout=10, wait_for_ready=True)
        assert isinstance(answer, response)
        return answer


# ---- F26: etcd is away ----


async def test_f26_etcd_restarted_within_the_ttl_costs_no_registration_and_no_event(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client = EtcdCoordination(etcd.endpoints)
    clients.append(client)
    registration = await client.register("m/i", b"here", TTL_S)
    watch = client.watch("", await client.get_prefix(""))
    await client.compare_and_swap("before", ABSENT, b"")

    # killed, an etcd without disk syncs forgets what it had answered: the restored backup of F28
    await etcd.members[0].stop()
    await etcd.members[0].start()
    await etcd.members[0].wait_ready(10)

    await settled(client, "after", b"")
    await outlive(client, TTL_S + 1)  # longer than the registration would last without renewal
    assert registration.held.is_set()
    assert registration.times_lost == 0
    entry = await client.get("m/i")
    assert entry is not None
    assert entry.lease == registration.lease
    keys = [event.entry.key for event in await until(watch, "after") if isinstance(event, Put)]
    assert keys == ["before", "after"]


async def test_f26_who_was_away_longer_than_the_ttl_registers_again(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as between:
        client, observer = EtcdCoordination(between.endpoint), EtcdCoordination(etcd.endpoints)
        clients += [client, observer]
        registration = await client.register("m/i", b"here", 1)
        lease = registration.lease
        seen = observer.watch("m/", await observer.get_prefix("m/"))
        own = client.watch("m/", await client.get_prefix("m/"))

        await between.cut()
        assert isinstance(await anext(seen), Deleted)
        assert registration.held.is_set(), "silence is not a loss"
        assert not registration.lost.is_set()

        await between.heal()
        event = await anext(seen)
        assert isinstance(event, Put)
        assert event.entry.lease != lease
        await registration.held.wait()
        assert registration.times_lost == 1
        assert [type(event) for event in (await anext(own), await anext(own))] == [Deleted, Put]


async def test_f26_calls_fail_as_lost_while_nothing_listens_and_work_again_after(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client, hasty = EtcdCoordination(etcd.endpoints), EtcdCoordination(etcd.endpoints, call_s=0.2)
    clients += [client, hasty]
    revision = await client.compare_and_swap("k", ABSENT, b"1")
    await etcd.members[0].kill()
    with pytest.raises(Lost):
        await hasty.get("k")
    with pytest.raises(Lost) as lost:
        await hasty.compare_and_swap("k", revision, b"2")
    assert lost.value.retryable
    await etcd.members[0].start()
    await client.wait_ready(10)
    assert await client.compare_and_swap("k", revision, b"2") == revision + 1


# ---- F27: leader changes, a sick member, compaction, a revoked lease ----


@three
@pytest.mark.parametrize("fault", ["killed", "paused"])
async def test_f27_a_lost_leader_costs_no_registration_and_no_event(
    etcd: LocalEtcd, clients: list[EtcdCoordination], fault: str
) -> None:
    leader, others = await leader_first(etcd)
    client, observer = EtcdCoordination(joined(leader, *others)), EtcdCoordination(joined(*others))
    clients += [client, observer]
    registration = await client.register("m/i", b"here", TTL_S)
    watch = client.watch("t/", await client.get_prefix("t/"))
    for n in range(3):
        await client.compare_and_swap(f"t/{n}", ABSENT, b"")

    if fault == "killed":
        await leader.kill()
    else:
        leader.signal(signal.SIGSTOP)
    for n in range(3, 6):
        await settled(observer, f"t/{n}", b"")
    await settled(client, "t/6", b"")

    keys = [event.entry.key for event in await until(watch, "t/6") if isinstance(event, Put)]
    assert keys == [f"t/{n}" for n in range(7)]
    assert client.members.switches >= 1
    assert f"http://{client.members.current.address}" != leader.endpoint
    await outlive(observer, TTL_S + 1)
    assert registration.held.is_set()
    assert registration.times_lost == 0

    if fault == "killed":
        await leader.start()
    else:
        leader.signal(signal.SIGCONT)
    await leader.wait_ready(10)
    await settled(client, "t/7", b"")
    assert len(await until(watch, "t/7")) == 1


@three
async def test_f27_a_member_that_hangs_is_avoided(etcd: LocalEtcd, clients: list[EtcdCoordination]) -> None:
    async with Forwarder(etcd.members[0]) as sick:
        client = EtcdCoordination(joined(sick, *etcd.members[1:]))
        clients.append(client)
        await client.compare_and_swap("t/0", ABSENT, b"")
        watch = client.watch("t/", Snapshot(1))
        assert isinstance(await anext(watch), Put)

        sick.requests.clear()
        sick.replies.clear()
        assert await client.get("t/0") is not None
        assert client.members.switches >= 1
        await client.compare_and_swap("t/1", ABSENT, b"")
        assert len(await until(watch, "t/1")) == 1, "the watch leaves it too, without being told"


@three
async def test_f27_a_write_does_not_wait_for_a_member_that_has_fallen_silent(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as sick:
        client = EtcdCoordination(joined(sick, *etcd.members[1:]), call_s=600)
        clients.append(client)
        revision = await client.compare_and_swap("k", ABSENT, b"0")
        sick.requests.clear()
        sick.replies.clear()
        with pytest.raises(Unknown, match="silent"):
            await client.compare_and_swap("k", revision, b"1")
        assert client.members.switches >= 1
        assert await client.compare_and_swap("k", revision, b"2") == revision + 1, "the next one serves"


@three
async def test_f27_a_write_goes_past_a_member_that_has_never_answered(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as sick:
        sick.replies.clear()
        client = EtcdCoordination(joined(sick, *etcd.members[1:]))
        clients.append(client)
        await client.compare_and_swap("k", ABSENT, b"")
        assert client.members.switches >= 1


@three
async def test_f27_without_a_majority_nothing_is_promised_and_everything_comes_back(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client = EtcdCoordination(etcd.endpoints, call_s=1.0)
    clients.append(client)
    registration = await client.register("m/i", b"here", TTL_S)
    revision = await client.compare_and_swap("t/0", ABSENT, b"0")
    watch = client.watch("t/", await client.get_prefix("t/"))
    for member in etcd.members[1:]:
        await member.kill()
    with pytest.raises((Unavailable, Lost)):
        await client.get("t/0")
    with pytest.raises((Unavailable, Unknown, Lost)):
        await client.compare_and_swap("t/0", revision, b"1")
    for member in etcd.members[1:]:
        await member.start()
    for member in etcd.members:
        await member.wait_ready(10)
    await settled(client, "t/1", b"")
    await until(watch, "t/1")
    await outlive(client, TTL_S + 1)
    await registration.held.wait()


async def test_f27_a_watch_cut_off_during_a_compaction_misses_no_deletion(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as between:
        client, observer = EtcdCoordination(between.endpoint), EtcdCoordination(etcd.endpoints)
        clients += [client, observer]
        await observer.transact((), (Write("t/a", b"1"), Write("t/b", b"1"), Write("t/c", b"1")))
        watch = client.watch("t/", Snapshot(1))
        await until(watch, "t/c")

        await between.cut()
        await observer.transact((), (Delete("t/a"), Delete("t/b"), Write("t/c", b"2")))
        await observer.compare_and_swap("t/b", ABSENT, b"2")
        await observer.compact((await observer.get_prefix("t/")).revision)
        await between.heal()

        events = [await anext(watch) for _ in range(4)]
        assert {event.key for event in events[:2] if isinstance(event, Deleted) and event.synthetic} == {
            "t/a",
            "t/b",
        }
        assert [
            (event.entry.key, event.entry.value)
            for event in events[2:]
            if isinstance(event, Put) and event.synthetic
        ] == [
            ("t/c", b"2"),
            ("t/b", b"2"),
        ]
        await observer.transact((), (Delete("t/c"),))
        last = await anext(watch)
        assert isinstance(last, Deleted)
        assert not last.synthetic


@three
async def test_f27_a_lease_revoked_under_a_living_instance_comes_back(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client, observer = EtcdCoordination(etcd.endpoints), EtcdCoordination(etcd.endpoints)
    clients += [client, observer]

    async def permit() -> tuple[Compare, ...]:
        entry = await client.get("topology")
        return (Compare("topology", entry.mod_revision if entry is not None else ABSENT),)

    registration = await client.register("m/i", b"here", TTL_S, permit)
    watch = observer.watch("m/", await observer.get_prefix("m/"))
    for times in range(1, 4):
        await observer.revoke(registration.lease)
        assert [type(event) for event in (await anext(watch), await anext(watch))] == [Deleted, Put]
        await registration.held.wait()
        assert registration.times_lost == times


# ---- F28: out of space, unknown outcomes, tokens, a restored backup ----


async def free_space(endpoint: str, client: EtcdCoordination, prefix: str) -> None:
    """What an operator of etcd does: compact, defragment, disarm."""
    await client.compact((await client.get_prefix(prefix)).revision)
    await call(endpoint, "Maintenance/Defragment", pb.DefragmentRequest(), pb.DefragmentResponse)
    raised = await call(
        endpoint, "Maintenance/Alarm", pb.AlarmRequest(action=pb.AlarmRequest.GET), pb.AlarmResponse
    )
    assert [alarm.alarm for alarm in raised.alarms] == [pb.NOSPACE]
    disarm = pb.AlarmRequest(
        action=pb.AlarmRequest.DEACTIVATE, alarm=pb.NOSPACE, memberID=raised.alarms[0].memberID
    )
    await call(endpoint, "Maintenance/Alarm", disarm, pb.AlarmResponse)


@pytest.mark.parametrize(
    "etcd", [(1, ("--quota-backend-bytes=2000000",))], indirect=True, ids=["small quota"]
)
async def test_f28_out_of_space_is_a_type_of_its_own_and_ends_with_its_repair(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client = EtcdCoordination(etcd.endpoints)
    clients.append(client)
    registration = await client.register("m/i", b"here", TTL_S * 10)
    watch = client.watch("m/", await client.get_prefix("m/"))
    revision = ABSENT
    full: NoSpace | None = None
    assert not await client.is_full()
    while full is None:
        try:
            revision = await client.compare_and_swap("big", revision, bytes(200_000))
        except NoSpace as refused:
            full = refused
    assert not full.retryable

    assert isinstance(full, Unknown), (
        "etcd looks before it takes a write, and once more when it applies it, and says the same"
    )
    assert (entry := await client.get("big")) is not None
    assert entry.mod_revision in (revision, revision + 1)
    with pytest.raises(NoSpace):
        await client.grant(1)
    await client.revoke(registration.lease)
    assert isinstance(await anext(watch), Deleted)
    await registration.lost.wait()

    assert await client.is_full()
    await free_space(etcd.members[0].endpoint, client, "big")
    assert not await client.is_full()
    assert isinstance(await anext(watch), Put), "the registration came back by itself"
    await client.compare_and_swap("small", ABSENT, b"")


async def test_f28_an_answer_that_is_lost_leaves_the_outcome_unknown_and_the_write_is_not_repeated(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as between:
        client, observer = EtcdCoordination(between.endpoint), EtcdCoordination(etcd.endpoints)
        clients += [client, observer]
        await client.get("k")
        before = await observer.get_prefix("")
        watch = observer.watch("", before)
        between.replies.clear()
        writing = asyncio.create_task(client.compare_and_swap("k", ABSENT, b"1"))
        assert isinstance(await anext(watch), Put)
        await between.cut()
        with pytest.raises(Unknown) as unknown:
            await writing
        assert not unknown.value.retryable
        await between.heal()
        entry = await client.get("k")
        assert entry is not None
        assert entry.value == b"1"
        assert (await observer.get_prefix("")).revision == before.revision + 1


async def test_f28_a_request_that_is_lost_leaves_the_outcome_unknown_too(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as between:
        client, observer = EtcdCoordination(between.endpoint), EtcdCoordination(etcd.endpoints)
        clients += [client, observer]
        await client.get("k")
        before = await observer.get_prefix("")
        between.requests.clear()
        with pytest.raises(Unknown):
            await client.compare_and_swap("k", ABSENT, b"1")
        await between.cut()
        await between.heal()
        await client.wait_ready(10)
        assert await client.get("k") is None
        assert (await observer.get_prefix("")).revision == before.revision


async def test_f28_a_registration_survives_an_answer_lost_while_it_returns(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    async with Forwarder(etcd.members[0]) as between:
        client, observer = EtcdCoordination(between.endpoint), EtcdCoordination(etcd.endpoints)
        clients += [client, observer]

        async def permit() -> tuple[Compare, ...]:
            if registration.times_lost == 1 and not permitted.is_set():
                permitted.set()
                between.replies.clear()
            return ()

        permitted = asyncio.Event()
        registration = await client.register("m/i", b"here", 5, permit)
        watch = observer.watch("m/", await observer.get_prefix("m/"))
        await observer.revoke(registration.lease)
        await permitted.wait()
        await between.cut()
        await between.heal()
        assert isinstance(await anext(watch), Deleted)
        assert isinstance(await anext(watch), Put)
        await registration.held.wait()
        entry = await observer.get("m/i")
        assert entry is not None
        assert entry.lease == registration.lease


async def authenticated(etcd: LocalEtcd) -> None:
    """Switch authentication on, with the user root."""
    endpoint = etcd.members[0].endpoint
    await call(
        endpoint,
        "Auth/UserAdd",
        pb.AuthUserAddRequest(name="root", password="secret"),
        pb.AuthUserAddResponse,
    )
    await call(endpoint, "Auth/RoleAdd", pb.AuthRoleAddRequest(name="root"), pb.AuthRoleAddResponse)
    await call(
        endpoint,
        "Auth/UserGrantRole",
        pb.AuthUserGrantRoleRequest(user="root", role="root"),
        pb.AuthUserGrantRoleResponse,
    )
    await call(endpoint, "Auth/AuthEnable", pb.AuthEnableRequest(), pb.AuthEnableResponse)


async def test_f28_a_forgotten_token_is_renewed_and_only_reads_are_repeated(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client = EtcdCoordination(etcd.endpoints, user=User("root", "secret"))
    clients.append(client)
    # before authentication is switched on, the user does no harm
    await client.compare_and_swap("t/0", ABSENT, b"")
    await authenticated(etcd)
    with pytest.raises(AuthExpired):
        await client.compare_and_swap("t/1", ABSENT, b"")
    await client.compare_and_swap("t/1", ABSENT, b"")
    registration = await client.register("m/i", b"here", TTL_S)
    watch = client.watch("t/", Snapshot(1))
    await until(watch, "t/1")

    await etcd.members[0].kill()  # simple tokens live in memory only
    await etcd.members[0].start()
    reads = EtcdCoordination(etcd.endpoints, user=User("root", "secret"))
    clients.append(reads)
    await reads.wait_ready(10)
    await settled(client, "t/2", b"")
    await until(watch, "t/2")
    assert await client.get("t/2") is not None
    await outlive(client, TTL_S + 1)
    assert registration.held.is_set()
    assert registration.times_lost == 0


async def test_f28_a_read_authenticates_anew_by_itself(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    client = EtcdCoordination(etcd.endpoints, user=User("root", "secret"))
    clients.append(client)
    await client.get("k")
    await authenticated(etcd)
    assert await client.get("k") is None


async def test_f28_a_wrong_password_is_refused_for_good(
    etcd: LocalEtcd, clients: list[EtcdCoordination]
) -> None:
    await authenticated(etcd)
    for user in (User("root", "wrong"), User("nobody", "secret")):
        client = EtcdCoordination(etcd.endpoints, user=user)
        clients.append(client)
        with pytest.raises(AccessDenied) as refused:
            await client.get("k")
        assert not refused.value.retryable
        with pytest.raises(AccessDenied):
            await anext(client.watch("t/", Snapshot(1)))


async def test_f28_a_restored_backup_is_reported_to_watches_and_registrations_return(
    etcd: LocalEtcd, clients: list[EtcdCoordination], tmp_path: Path
) -> None:
    client = EtcdCoordination(etcd.endpoints)
    clients.append(client)
    member, data = etcd.members[0], tmp_path / "data"
    revision = await client.compare_and_swap("t/topology", ABSENT, b"old")
    await member.stop()
    await asyncio.to_thread(shutil.copytree, data, tmp_path / "backup")
    await member.start()
    await client.wait_ready(10)
    watch = client.watch("t/", await client.get_prefix("t/"))
    registration = await client.register("t/i", b"here", TTL_S)
    await client.compare_and_swap("t/topology", revision, b"new")
    await client.compare_and_swap("t/other", ABSENT, b"new")
    await until(watch, "t/other")

    await member.stop()
    await asyncio.to_thread(shutil.rmtree, data)
    await asyncio.to_thread(shutil.move, tmp_path / "backup", data)
    await member.start()

    restored = await anext(watch)
    assert isinstance(restored, Restored)
    assert restored.found_revision < restored.seen_revision
    # as fast as the registration is back, its key may be in the first reading already
    events = await until(watch, "t/i")
    assert {event.key for event in events if isinstance(event, Deleted)} == {"t/i", "t/other"}
    assert [
        event.entry.value for event in events if isinstance(event, Put) and event.entry.key == "t/topology"
    ] == [b"old"]
    await registration.held.wait()
    assert registration.times_lost == 1
