"""What a run has learnt, kept for the next one."""

import functools
import logging
import os
from pathlib import Path

import pytest

from hams_operator.local import learnt
from hams_operator.local.metrics import Source
from hams_wire import records
from hams_wire.coordination.memory import MemoryStore
from hams_wire.coordination.port import Write
from hams_wire.probes import answer_probes
from hams_wire.profiles import CalibrationReport, ProfileReport, encode_report


async def stored(values: dict[str, bytes], uid: str = "u") -> MemoryStore:
    store = MemoryStore()
    writes = [Write(records.profile_key(uid, name), value) for name, value in values.items()]
    await store.client().transact((), writes)
    return store


async def held(store: MemoryStore, uid: str) -> dict[str, bytes]:
    prefix = records.profile_key(uid, "")
    snapshot = await store.client().get_prefix(prefix)
    return {entry.key.removeprefix(prefix): entry.value for entry in snapshot.entries}


async def test_what_one_run_has_learnt_the_next_one_begins_with(tmp_path: Path) -> None:
    folder, before, after = tmp_path / "profiles", await stored({"a": b"1", "b": b"2"}), MemoryStore()
    await learnt.save(before.client(), "u", folder, ("a", "b", "c"))
    await learnt.bring(after.client(), "v", folder, ("a", "b", "c"))
    assert await held(after, "v") == {"a": b"1", "b": b"2"}


async def test_what_was_forgotten_or_is_of_operators_that_are_gone_is_removed(tmp_path: Path) -> None:
    for name in ("a.profile", "b.profile", "gone.profile", "a.profile.new"):
        (tmp_path / name).write_bytes(b"old")
    store = await stored({"a": b""})
    await learnt.save(store.client(), "u", tmp_path, ("a", "b"))
    assert os.listdir(tmp_path) == ["b.profile"], "of b nothing new was learnt"


async def test_whatever_is_wrong_with_it_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = await stored({"a": b"1"})
    client = store.client()
    client.partition()
    (tmp_path / "a.profile").write_bytes(b"x" * 100_000)
    (tmp_path / "b.profile").mkdir()
    await learnt.save(client, "u", tmp_path, ("a",))
    await learnt.bring(client, "u", tmp_path, ("a", "b", "c"))
    assert len(caplog.messages) == 3
    client.heal()
    await learnt.bring(client, "v", tmp_path, ("a",))
    assert len((await held(store, "v"))["a"]) == 16_384


async def test_living_proxies_are_asked_and_what_is_no_answer_is_left_out(tmp_path: Path) -> None:
    nothing = CalibrationReport(0, None, None, None, None, None)
    stored = ProfileReport("b", "b-1", "primary", "Distribution", "", 0, 0, 0, (), (), nothing)
    pages = {"b-1": encode_report(stored), "b-2": b"nonsense", "b-3": None, "a-1": encode_report(stored)}
    servers = []
    for name in pages:
        answer = functools.partial(pages.get, name)
        servers.append(await answer_probes(tmp_path / name, lambda: None, profile=answer))
    sources = [Source(name[0], name, "proxy", str(tmp_path / name)) for name in (*pages, "b-4")]
    frontend = Source("", "f-1", "frontend", str(tmp_path / "a-1"))
    assert await learnt.profiles_of([*sources, frontend], ("b",)) == (stored,)
    for server in servers:
        server.close()


async def test_a_persons_word_is_written_for_each_operator() -> None:
    store = await stored({"a": b"1", "b": b"2"})
    await learnt.forget(store.client(), "u", ("a", "c"))
    assert await held(store, "u") == {"a": b"", "b": b"2", "c": b""}


async def test_what_a_person_gives_is_marked_in_etcd_and_nowhere_else(tmp_path: Path) -> None:
    store = await stored({"a": b"1", "b": b""})
    await learnt.give(store.client(), "u", "a", b"given")
    assert await held(store, "u") == {"a": records.PROFILE_GIVEN + b"given", "b": b""}
    assert await learnt.stored(store.client(), "u") == {"a": b"given", "b": b""}
    await learnt.save(store.client(), "u", tmp_path / "profiles", ("a", "b"))
    assert learnt.between_runs(tmp_path / "profiles") == {"a": b"given"}


def test_what_is_left_for_the_next_run_stands_beside_what_was_there(tmp_path: Path) -> None:
    assert learnt.between_runs(tmp_path / "profiles") == {}
    learnt.leave(tmp_path / "g" / "profiles", {"a": b"1", "b": b"2"})
    learnt.leave(tmp_path / "g" / "profiles", {"b": b"3"})
    assert learnt.between_runs(tmp_path / "g" / "profiles") == {"a": b"1", "b": b"3"}
