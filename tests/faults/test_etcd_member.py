"""A member of etcd that has lost its data joins its cluster again, before it starts: real members, as the
chart starts them."""

import asyncio
import shutil
from pathlib import Path

import pytest

from hams_operator.etcd_member import (
    ReportedMember,
    Settings,
    file_of,
    has_run,
    others_of,
    prepare,
    settings_of,
)
from hams_operator.limits import etcd_poll_s
from hams_operator.local.etcd import EtcdProcess, LocalEtcd, find_etcd
from hams_wire.coordination.etcd import EtcdCoordination

from .test_etcd import settled

pytestmark = [pytest.mark.process, pytest.mark.etcd]

WAIT_S = 60.0


def flags_of(member: EtcdProcess) -> list[str]:
    return [*member._arguments[1:], "--initial-cluster-state=new"]


def start_from(member: EtcdProcess, file: Path) -> None:
    """From now on it starts as a pod's does: told by a file."""
    member._arguments = [member._arguments[0], f"--config-file={file}"]


async def test_a_member_without_its_data_comes_back_by_itself_while_others_write(tmp_path: Path) -> None:
    etcd = await LocalEtcd.start(tmp_path / "etcd", members=3)
    client = EtcdCoordination(etcd.endpoints)
    written: list[int] = []
    waiting: list[tuple[int, asyncio.Future[None]]] = []
    ends = asyncio.Event()

    async def write() -> None:
        while not ends.is_set():
            written.append(await settled(client, "hams/test", str(len(written)).encode()))
            if waiting and len(written) >= waiting[0][0]:
                waiting.pop(0)[1].set_result(None)

    try:
        writing = asyncio.create_task(write())
        lost = etcd.members[1]
        flags = flags_of(lost)
        for attempt in range(2):
            await lost.kill()
            shutil.rmtree(lost.data)
            if attempt:  # it was started in vain meanwhile: that leaves folders
                (lost.data / "member" / "snap").mkdir(parents=True)
                (lost.data / "member" / "snap" / "db").write_bytes(b"of no use")
            settings = await asyncio.wait_for(prepare(settings_of(flags), etcd.endpoints, None), WAIT_S)
            assert settings["initial-cluster-state"] == "existing"
            if attempt:  # it was stopped between: what it was added as has never started
                settings = await asyncio.wait_for(prepare(settings_of(flags), etcd.endpoints, None), WAIT_S)
            file = tmp_path / "etcd.json"
            file.write_text(file_of(settings))
            start_from(lost, file)
            await lost.start()
            await lost.wait_ready(WAIT_S)
            written_event = asyncio.get_running_loop().create_future()
            waiting.append((len(written) + 10, written_event))
            await asyncio.wait_for(written_event, WAIT_S)
        assert await prepare(settings_of(flags), etcd.endpoints, None) == settings_of(flags), "it has data"
        ends.set()
        await writing
        for other in (etcd.members[0], etcd.members[2]):  # what the new one holds is enough, with one other
            await other.kill()
            alone = EtcdCoordination(lost.endpoint)
            if other is etcd.members[0]:
                entry = await alone.get("hams/test")
                assert entry is not None
                assert entry.mod_revision == written[-1]
            await alone.close()
    finally:
        ends.set()
        await client.close()
        await asyncio.gather(*(member.kill() for member in etcd.members))


async def test_a_cluster_that_begins_is_no_cluster_that_was(tmp_path: Path) -> None:
    """All members come up without data: none of them asks another one to let it in, and none begins before
    it has heard of each."""
    etcd = await LocalEtcd.start(tmp_path / "etcd", members=3)
    try:
        all_flags = [flags_of(member) for member in etcd.members]
        for member in etcd.members:
            await member.kill()
            shutil.rmtree(member.data)
        deciding = [
            asyncio.create_task(prepare(settings_of(flags), etcd.endpoints, None)) for flags in all_flags[:2]
        ]
        _, undecided = await asyncio.wait(deciding, timeout=3 * etcd_poll_s)
        assert len(undecided) == 2, "the third may have data"
        deciding.append(asyncio.create_task(prepare(settings_of(all_flags[2]), etcd.endpoints, None)))
        for settings in await begun(etcd, deciding, tmp_path):
            assert settings["initial-cluster-state"] == "new"
        await asyncio.gather(*(member.wait_ready(WAIT_S) for member in etcd.members))
    finally:
        await asyncio.gather(*(member.kill() for member in etcd.members))


def test_what_the_others_tell() -> None:
    mine = "https://b:2380"
    other = ReportedMember(("https://a:2380",), "a", ("https://a:2379",))
    assert not has_run((other, ReportedMember((mine,), "b", ())), mine), "they begin, too"
    assert has_run((other, ReportedMember((mine,), "b", ("https://b:2379",))), mine)
    assert has_run((other, ReportedMember((mine,), "", ())), mine), "it was added, and has not started"
    assert has_run((other,), mine), "it was removed, and not added any more"


def test_a_file_says_what_flags_say() -> None:
    settings = settings_of(
        [
            "--name=b",
            "--client-cert-auth",
            "--cert-file=/tls/tls.crt",
            "--peer-client-cert-auth",
            "--peer-trusted-ca-file=/tls/peer-ca.crt",
            "--heartbeat-interval=100",
            "--enable-grpc-gateway=false",
            "--initial-cluster=a=https://a:2380,b=https://b:2380",
            "--initial-advertise-peer-urls=https://b:2380",
        ]
    )
    assert others_of(settings) == ["https://a:2380"]
    assert settings["enable-grpc-gateway"] is False
    text = file_of(settings)
    for line in ('"heartbeat-interval": 100', '"client-cert-auth": true', '"cert-file": "/tls/tls.crt"'):
        assert line in text
    with pytest.raises(ValueError, match="expected --name"):
        settings_of(["name=b"])


@pytest.mark.by_hand
async def test_a_restored_member_is_joined_by_the_empty_others(tmp_path: Path) -> None:
    """What docs/etcd.md says of a lost majority: one member from a snapshot, and the rest comes by itself."""
    tools = find_etcd().parent
    restorer = tools / "etcdutl" if (tools / "etcdutl").exists() else tools / "etcdctl"
    etcd = await LocalEtcd.start(tmp_path / "etcd", members=3)
    try:
        client = EtcdCoordination(etcd.endpoints)
        await settled(client, "hams/test", b"kept")
        await client.close()
        snapshot = tmp_path / "hams.db"
        first = etcd.members[0]
        await run(tools / "etcdctl", f"--endpoints={first.endpoint}", "snapshot", "save", snapshot)
        all_flags = [flags_of(member) for member in etcd.members]
        for member in etcd.members:
            await member.kill()
            shutil.rmtree(member.data)
        alone = settings_of(all_flags[0])
        url = alone["initial-advertise-peer-urls"]
        await run(
            restorer,
            "snapshot",
            "restore",
            snapshot,
            f"--data-dir={first.data}",
            f"--name={alone['name']}",
            f"--initial-cluster={alone['name']}={url}",
            f"--initial-advertise-peer-urls={url}",
        )
        joining = [
            asyncio.create_task(prepare(settings_of(flags), etcd.endpoints, None)) for flags in all_flags[1:]
        ]
        _, undecided = await asyncio.wait(joining, timeout=3 * etcd_poll_s)
        assert len(undecided) == 2, "the first is away for a moment, and has the data"
        await begin(first, settings_of(all_flags[0]), tmp_path)
        await first.wait_ready(WAIT_S)
        await begun(etcd, joining, tmp_path)
        for member in etcd.members:
            await member.wait_ready(WAIT_S)
        await first.kill()
        left = EtcdCoordination(etcd.members[2].endpoint)
        await left.wait_ready(WAIT_S)
        entry = await left.get("hams/test")
        await left.close()
        assert entry is not None
        assert entry.value == b"kept"
    finally:
        await asyncio.gather(*(member.kill() for member in etcd.members))


async def begun(etcd: LocalEtcd, decisions: list[asyncio.Task[Settings]], folder: Path) -> list[Settings]:
    """Start each member as soon as it has been decided how."""
    by_name = {f"m{member.index}": member for member in etcd.members}
    decided = []
    for decision in asyncio.as_completed(decisions, timeout=WAIT_S):
        settings = await decision
        await begin(by_name[settings["name"]], settings, folder)
        decided.append(settings)
    return decided


async def begin(member: EtcdProcess, settings: Settings, folder: Path) -> None:
    """Start it as a pod's container does."""
    file = folder / f"{settings['name']}.json"
    file.write_text(file_of(settings))
    start_from(member, file)
    await member.start()


async def run(*words: object) -> None:
    process = await asyncio.create_subprocess_exec(
        *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
