"""What instances have learnt, stored and read: who writes, who reads, what is refused, what is forgotten."""

import asyncio
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from hams_graph import load as load_graph
from hams_protocol.events import TopologyLearnt
from hams_protocol.graph import Graph
from hams_protocol.stateless import StatelessMachine
from hams_protocol.topology import Slot, SlotTable, Topology
from hams_schedule.profile import Profiles
from hams_schedule.stored import dump, load
from hams_sidecar.profile_store import ProfileStore, identity_of
from hams_wire import records
from hams_wire.coordination.memory import MemoryCoordination, MemoryStore
from hams_wire.coordination.port import Delete, Write
from hams_wire.errors import Unavailable
from hams_wire.scheduling import PolicyQueue, queue_of

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: g}
spec:
  inputs: [{name: x, datatype: FP32, shape: [1]}]
  outputs: [{name: x, from: s.x}]
  operators:
  - name: s
    model: {entrypoint: "m:S", config: {size: 1}}
    replicas: 2
    inputs: [request.x]
    outputs: [{name: x, datatype: FP32, shape: [1]}]
    batch: {maxRows: 8, policy: Distribution, appBy: "parameter:app"}
"""
KEY = records.profile_key("u", "s")
NAME = KEY.removeprefix(records.prefix_of("u"))


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    return load_graph(tmp_path / "graph.yaml")


class Instance:
    """An instance and its place: what a store reads of a node, and what it writes."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        slots: tuple[str, ...] = ("s-1", "s-2"),
        etcd: MemoryCoordination | None = None,
    ) -> None:
        """`etcd`: where it writes; None: nowhere, and it may always."""
        self.instance = name
        self.etcd = etcd
        self.machine = StatelessMachine(graph, "s", name, queue_of)
        table = SlotTable("s", tuple(Slot(1, owner) for owner in slots))
        self.machine.step(TopologyLearnt(Topology(1, (), (table,)), 1), 0.0)
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.written: list[bytes] = []
        self.wrote = asyncio.Event()
        self.refuses = False
        self.writes = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def swap(self, key: str, revision: int, value: bytes) -> None:
        assert key == KEY
        self.writes.set()
        await self.may_write.wait()
        if self.refuses:
            raise Unavailable("etcd is away")
        if self.etcd is not None:
            await self.etcd.compare_and_swap(key, revision, value)
        self.written.append(value)
        self.wrote.set()

    @property
    def profiles(self) -> Profiles:
        queue = self.machine.queue
        assert isinstance(queue, PolicyQueue)
        return queue.profiles

    def learn(self, count: int, seconds: float = 0.02) -> None:
        cls = self.profiles.classify("chat", math.nan)
        for _ in range(count):
            self.profiles.observe_batch([cls], 1, seconds, 0.0)


def stored(graph: Graph, instance: Any, value: bytes | None = None) -> ProfileStore:
    """A store whose instance has begun; `value`: what was stored before."""
    store = ProfileStore("u", graph.operators["s"])
    if value is not None:
        store.on_key_changed(NAME, value, 1)
    store.begin(instance)
    return store


def learnt_elsewhere(graph: Graph, seconds: float = 0.1, identity: str | None = None) -> bytes:
    other = Profiles()
    cls = other.classify("chat", math.nan)
    for _ in range(300):
        other.observe_batch([cls], 1, seconds, 0.0)
    other.settle()
    return dump(other, identity_of(graph.operators["s"]) if identity is None else identity)


def chat_s(profiles: Profiles) -> float:
    """The mean time of a request of the application, seconds."""
    return profiles.expected(((profiles.classes.class_of("chat", math.nan), 1),), 1)


async def test_the_owner_of_the_first_slot_stores_what_it_has_learnt_and_others_read(graph: Graph) -> None:
    first, second, third = (Instance(graph, name) for name in ("s-1", "s-2", "s-3"))
    first.learn(300)
    first.profiles.settle()
    second.learn(300)
    stores = [stored(graph, instance) for instance in (first, second, third)]
    tasks = [
        asyncio.create_task(store.run(lambda instance=instance: instance, every_s=0.001))  # type: ignore
        for store, instance in zip(stores, (first, second, third), strict=True)
    ]
    async with asyncio.timeout(5):
        await first.wrote.wait()
        for store in stores:
            store.on_key_changed(NAME, first.written[0], 2)
        await asyncio.sleep(0.05)  # for what must not happen: the second one writes
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    read = load(first.written[0], identity_of(graph.operators["s"]))
    assert chat_s(read) == chat_s(third.profiles) == pytest.approx(0.02, rel=0.05)
    assert (len(first.written), second.written, third.written) == (1, [], [])


async def test_it_is_stored_again_only_once_enough_is_new_and_at_once_after_a_drift(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    instance.learn(300)
    instance.profiles.settle()
    store = stored(graph, instance)
    await store._write(instance)  # type: ignore[arg-type]
    instance.learn(6)
    await store._write(instance)  # type: ignore[arg-type]
    assert len(instance.written) == 1
    instance.learn(1)
    await store._write(instance)  # type: ignore[arg-type]
    assert len(instance.written) == 2
    instance.profiles.resets += 1
    await store._write(instance)  # type: ignore[arg-type]
    assert len(instance.written) == 3


async def test_what_etcd_has_not_taken_is_stored_later(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    instance.learn(300)
    store = stored(graph, instance)
    instance.refuses = True
    await store._write(instance)  # type: ignore[arg-type]
    instance.refuses = False
    await store._write(instance)  # type: ignore[arg-type]
    assert len(instance.written) == 1


async def test_an_instance_that_begins_knows_what_is_stored(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    stored(graph, instance, learnt_elsewhere(graph))
    assert chat_s(instance.profiles) == pytest.approx(0.1, rel=0.05)
    assert instance.profiles.samples > 200


async def test_an_instance_without_work_knows_what_others_learn_and_one_with_work_does_not(
    graph: Graph,
) -> None:
    instance = Instance(graph, "s-3")
    store = stored(graph, instance, learnt_elsewhere(graph))
    store.on_key_changed(NAME, learnt_elsewhere(graph, 0.2), 2)
    await store._read_stored()
    assert chat_s(instance.profiles) == pytest.approx(0.2, rel=0.05)
    assert instance.profiles.samples < 600, "in place of what was known, not besides"
    instance.learn(1)
    store.on_key_changed(NAME, learnt_elsewhere(graph, 0.4), 3)
    await store._read_stored()
    assert chat_s(instance.profiles) == pytest.approx(0.2, rel=0.05)


async def test_what_was_only_read_is_not_written_back(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    store = stored(graph, instance, learnt_elsewhere(graph))
    await store._write(instance)  # type: ignore[arg-type]
    assert instance.written == []


@pytest.mark.parametrize("value", [b"nonsense", b"{}", b"x" * 100_000])
async def test_what_is_no_profile_is_passed_over_with_one_line(
    graph: Graph, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    instance = Instance(graph, "s-1")
    stored(graph, instance, value)
    (line,) = caplog.messages
    assert line.startswith("the stored profile of s is passed over: expected ")
    assert instance.profiles.samples == 0
    instance.learn(300)
    assert instance.profiles.samples == 300


async def test_what_another_model_took_is_a_weak_prior(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    stored(graph, instance, learnt_elsewhere(graph, identity="m:Other"))
    assert 0 < instance.profiles.samples <= 20


async def test_an_empty_value_lets_all_forget_and_what_comes_later_is_stored(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    store = stored(graph, instance, learnt_elsewhere(graph))
    instance.learn(50)
    store.on_key_changed(NAME, b"", 2)
    assert (instance.profiles.samples, instance.profiles.laws) == (0, {})
    await store._read_stored()
    store._key_changed.clear()
    instance.learn(60, 0.03)
    instance.profiles.settle()
    await store._write(instance)  # type: ignore[arg-type]
    assert chat_s(load(instance.written[0], identity_of(graph.operators["s"]))) == pytest.approx(
        0.03, rel=0.05
    )
    fresh = Instance(graph, "s-2")
    stored(graph, fresh, b"")
    assert fresh.profiles.samples == 0


async def test_what_a_person_gives_is_known_in_place_of_what_was_learnt(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    store = stored(graph, instance)
    instance.learn(300)
    given = records.PROFILE_GIVEN + learnt_elsewhere(graph, 0.2)
    store.on_key_changed(NAME, given, 2)
    instance.learn(1)
    await store._read_stored()
    store._key_changed.clear()
    assert chat_s(instance.profiles) == pytest.approx(0.2, rel=0.05)
    await store._write(instance)  # type: ignore[arg-type]
    assert instance.written == []
    instance.learn(100)
    store.on_key_changed(NAME, given, 2)
    await store._read_stored()
    assert instance.profiles.samples > 300, "an etcd that was restored tells it again"
    fresh = Instance(graph, "s-2")
    stored(graph, fresh, given)
    assert chat_s(fresh.profiles) == pytest.approx(0.2, rel=0.05)


async def says(client: MemoryCoordination, value: bytes, *stores: ProfileStore) -> None:
    """A person writes, and these instances hear of it."""
    revision = await client.transact((), (Write(KEY, value),))
    for store in stores:
        store.on_key_changed(NAME, value, revision)


@pytest.mark.parametrize("heard", [True, False])
async def test_a_write_in_flight_does_not_undo_what_a_person_gives(graph: Graph, heard: bool) -> None:
    """Whether or not the instance has heard of it when its own write arrives."""
    client = MemoryStore().client()
    instance = Instance(graph, "s-1", etcd=client)
    store = stored(graph, instance)
    instance.learn(300)
    instance.may_write.clear()
    writing = asyncio.create_task(store._write(instance))  # type: ignore[arg-type]
    await instance.writes.wait()
    given = records.PROFILE_GIVEN + learnt_elsewhere(graph, 0.2)
    await says(client, given, *([store] if heard else []))
    instance.may_write.set()
    await writing
    entry = await client.get(KEY)
    assert entry is not None
    assert entry.value == given
    store.on_key_changed(NAME, given, entry.mod_revision)
    await store._read_stored()
    assert chat_s(instance.profiles) == pytest.approx(0.2, rel=0.05)


async def test_a_write_in_flight_does_not_undo_that_all_shall_forget(graph: Graph) -> None:
    client = MemoryStore().client()
    instance = Instance(graph, "s-1", etcd=client)
    store = stored(graph, instance)
    instance.learn(300)
    instance.may_write.clear()
    writing = asyncio.create_task(store._write(instance))  # type: ignore[arg-type]
    await instance.writes.wait()
    await says(client, records.PROFILE_FORGOTTEN, store)
    instance.may_write.set()
    await writing
    entry = await client.get(KEY)
    assert entry is not None
    assert entry.value == records.PROFILE_FORGOTTEN
    await store._read_stored()
    assert instance.profiles.samples == 0, "nor does it know again what it knew"


async def test_what_others_store_does_not_hide_what_a_person_gave_before_it_was_read(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    store = stored(graph, instance)
    instance.learn(300)
    store.on_key_changed(NAME, records.PROFILE_GIVEN + learnt_elsewhere(graph, 0.2), 2)
    store.on_key_changed(NAME, learnt_elsewhere(graph, 0.4), 3)
    await store._write(instance)  # type: ignore[arg-type]
    assert instance.written == [], "the news is read first"
    await store._read_stored()
    assert chat_s(instance.profiles) == pytest.approx(0.2, rel=0.05)


async def test_the_same_profile_may_be_given_twice(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    given = records.PROFILE_GIVEN + learnt_elsewhere(graph, 0.2)
    store = stored(graph, instance, given)
    instance.learn(600)
    store.on_key_changed(NAME, given, 2)
    await store._read_stored()
    assert chat_s(instance.profiles) == pytest.approx(0.2, rel=0.05)


async def test_what_was_overtaken_is_stored_over_what_is_there_now(graph: Graph) -> None:
    client = MemoryStore().client()
    instance = Instance(graph, "s-1", etcd=client)
    store = stored(graph, instance)
    instance.learn(300)
    other = learnt_elsewhere(graph, 0.4)
    await client.transact((), (Write(KEY, other),))
    await store._write(instance)  # type: ignore[arg-type]
    entry = await client.get(KEY)
    assert entry is not None
    assert entry.value == other
    store.on_key_changed(NAME, other, entry.mod_revision)
    await store._read_stored()
    store._key_changed.clear()
    await store._write(instance)  # type: ignore[arg-type]
    entry = await client.get(KEY)
    assert entry is not None
    assert entry.value == instance.written[0]
    store.on_key_changed(NAME, None, 0)
    await client.transact((), (Delete(KEY),))
    instance.learn(300)
    await store._write(instance)  # type: ignore[arg-type]
    assert len(instance.written) == 2


async def test_what_a_person_gives_that_is_no_profile_changes_nothing(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    instance = Instance(graph, "s-1")
    store = stored(graph, instance)
    instance.learn(60)
    store.on_key_changed(NAME, records.PROFILE_GIVEN + b"nonsense", 1)
    await store._read_stored()
    assert instance.profiles.samples == 60
    assert caplog.messages == ["the stored profile of s is passed over: expected deflated JSON, found error"]


async def test_other_keys_and_a_key_that_is_gone_change_nothing(graph: Graph) -> None:
    instance = Instance(graph, "s-1")
    store = stored(graph, instance)
    instance.learn(5)
    for name, value in (("profiles/t", b""), (NAME, None), ("topology", b"")):
        store.on_key_changed(name, value, 2)
    assert instance.profiles.samples == 5


async def test_another_shape_of_the_graph_begins_with_what_the_one_before_has_learnt(graph: Graph) -> None:
    client = MemoryStore().client()
    await client.compare_and_swap(records.profile_key("old", "s"), 0, learnt_elsewhere(graph))
    store = ProfileStore("u", graph.operators["s"])
    await store.adopt_from(client, "old")
    instance: Any = Instance(graph, "s-1")
    store.begin(instance)
    assert chat_s(instance.profiles) == pytest.approx(0.1, rel=0.05)
    nothing = ProfileStore("u", graph.operators["s"])
    client.partition()
    await nothing.adopt_from(client, "old")
    fresh: Any = Instance(graph, "s-1")
    nothing.begin(fresh)
    assert fresh.profiles.samples == 0


async def test_an_operator_that_serves_first_in_first_out_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(
        GRAPH.replace('policy: Distribution, appBy: "parameter:app"', "maxDelay: 0")
    )
    graph = load_graph(tmp_path / "graph.yaml")
    instance: Any = Instance(graph, "s-1")
    store = stored(graph, instance, learnt_elsewhere(graph))
    await store._write(instance)
    assert instance.written == []


async def test_times_hold_for_a_model_with_its_configuration(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(GRAPH.replace("size: 1", "size: 2"))
    other = load_graph(tmp_path / "other.yaml").operators["s"]
    assert identity_of(other) != identity_of(graph.operators["s"])
    assert identity_of(other).startswith("m:S ")
