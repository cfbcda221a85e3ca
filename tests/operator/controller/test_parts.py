"""Election, workers, followers and the store, each by itself."""

import asyncio
import base64
import copy
import itertools
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient
from prometheus_client.parser import text_string_to_metric_families

from hams_operator import limits
from hams_operator.controller import etcd_cache as cache_module
from hams_operator.controller import kube as kube_module
from hams_operator.controller.election import LEASE, Election, lease_s
from hams_operator.controller.etcd_cache import EtcdCache
from hams_operator.controller.identities import NoIdentities, metrics_token
from hams_operator.controller.kube import OWNED, PODS, SECRETS, KubeError, Resource
from hams_operator.controller.leading import Leading
from hams_operator.controller.options import ControllerOptions, options_from
from hams_operator.controller.process import Controller, _health, _samples
from hams_operator.controller.registrations import settings_of
from hams_operator.controller.store import Store
from hams_operator.controller.watching import ObjectFollower
from hams_operator.controller.webhook import Webhook
from hams_operator.controller.workers import Requeue, Workers
from hams_operator.plan.names import Settings
from hams_wire import records
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.memory import MemoryStore
from hams_wire.coordination.port import KeyValue, Restored
from hams_wire.exposition import exposition

from .fakes import FakeKube

Json = dict[str, Any]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("debounce_s", "again_s", "again_max_s"):
        monkeypatch.setattr(f"hams_operator.controller.workers.{name}", 0.0)
    for name in ("kube_pause_s", "kube_pause_max_s"):
        monkeypatch.setattr(f"hams_operator.controller.limits.{name}", 0.0)


# -- election ------------------------------------------------------------------------------------------------


async def test_one_of_two_holds_the_lease_and_the_other_takes_it_when_it_is_given_up() -> None:
    kube = FakeKube()
    first, second = Election(kube, "ns", "a"), Election(kube, "ns", "b")
    assert await first._try(0.0)
    assert not await second._try(1.0)
    first.won.set()
    await first.resign()
    assert await second._try(2.0)
    assert not await first._try(3.0)
    assert kube.items["Lease", "ns", LEASE]["spec"]["holderIdentity"] == "b"


async def test_a_lease_that_is_not_renewed_for_its_time_is_taken_by_our_own_clock() -> None:
    kube = FakeKube()
    first, second = Election(kube, "ns", "a"), Election(kube, "ns", "b")
    await first._try(0.0)
    assert not await second._try(1000.0)  # seen for the first time now, whatever time is written in it
    assert not await second._try(1000.0 + lease_s)
    assert await second._try(1000.1 + lease_s)


@pytest.mark.parametrize("silent", ["get", "replace"])
async def test_who_gets_no_answer_while_the_lease_lasts_leads_no_longer(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a request may take by itself."""
    monkeypatch.setattr("hams_operator.controller.election.lease_renew_s", 0.05)
    monkeypatch.setattr("hams_operator.controller.election.lease_pause_s", 0.01)
    kube = FakeKube()
    election = Election(kube, "ns", "a")
    running = asyncio.ensure_future(election.run())
    await election.won.wait()

    async def never(*_: object) -> Json:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(kube, silent, never)
    async with asyncio.timeout(10):
        await running


async def test_who_does_not_lead_waits_on_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hams_operator.controller.election.lease_renew_s", 0.01)
    monkeypatch.setattr("hams_operator.controller.election.lease_pause_s", 0.0)
    kube = FakeKube()
    real, left = kube.get, [1, 2, 3]

    async def late(*arguments: Any) -> Json | None:
        if left:
            left.pop()
            await asyncio.Event().wait()
        return await real(*arguments)

    kube.get = late  # type: ignore[method-assign]
    election = Election(kube, "ns", "a")
    running = asyncio.ensure_future(election.run())
    async with asyncio.timeout(10):
        await election.won.wait()
    running.cancel()


async def test_of_two_who_try_at_once_one_wins() -> None:
    kube = FakeKube()
    kube.put(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": "ns"},
            "spec": {},
        }
    )
    stale = await kube.get(Resource("Lease", "x/y", "leases"), "ns", LEASE)
    assert stale is not None
    assert await Election(kube, "ns", "a")._try(0.0)
    assert not await Election(kube, "ns", "b")._write({**stale, "spec": {"holderIdentity": "b"}}, new=False)


class Renewals(FakeKube):
    """Counts writes of the Lease, from whatever thread; `often` is set with the third renewal."""

    def __init__(self) -> None:
        super().__init__()
        self.often = threading.Event()
        self.closed = threading.Event()
        self._renewed = 0

    async def replace(self, resource: Resource, namespace: str, name: str, item: Json) -> Json:
        self._renewed += 1
        if self._renewed == 3:
            self.often.set()
        return await super().replace(resource, namespace, name, item)

    async def close(self) -> None:
        self.closed.set()


async def test_the_lease_is_renewed_while_the_loop_that_works_on_graphs_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hams_operator.controller.election.lease_pause_s", 0.001)
    kube = Renewals()

    async def client() -> Any:
        return kube

    leading = Leading(client, "ns", "a")
    running = asyncio.ensure_future(leading.run())
    await leading.won.wait()
    kube._renewed = 0
    assert kube.often.wait(30), "this blocks the loop, as a bug would"
    running.cancel()
    await leading.resign()
    assert kube.closed.is_set()
    assert kube.items["Lease", "ns", LEASE]["spec"]["holderIdentity"] == ""


async def test_a_lease_that_is_lost_ends_the_work_and_so_does_whatever_breaks_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hams_operator.controller.election.lease_pause_s", 0.001)
    monkeypatch.setattr("hams_operator.controller.election.lease_renew_s", 0.05)
    resigned: list[Election] = []

    async def resign(election: Election) -> None:
        resigned.append(election)

    monkeypatch.setattr(Election, "resign", resign)
    kube = Renewals()

    async def client() -> Any:
        return kube

    leading = Leading(client, "ns", "a")
    running = asyncio.ensure_future(leading.run())
    await leading.won.wait()
    kube.refused[f"replace Lease {LEASE}"] = KubeError(0, "no answer")
    async with asyncio.timeout(10):
        await running
    assert not resigned, "the work has not heard of it yet, so nobody else is let in"

    async def broken() -> Any:
        raise OSError("no cluster here")

    with pytest.raises(OSError, match="no cluster here"):
        await Leading(broken, "ns", "a").run()


# -- workers -------------------------------------------------------------------------------------------------


async def test_many_events_are_one_round_and_one_during_the_work_is_another(quick: None) -> None:
    rounds: list[str] = []
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work(key: str) -> None:
        rounds.append(key)
        begun.set()
        await gate.wait()

    workers = Workers(work)
    for _ in range(10):
        workers.enqueue("a")
    workers.begin()
    await begun.wait()
    workers.enqueue("a")
    workers.enqueue("a")
    gate.set()
    await workers.idle()
    assert rounds == ["a", "a"]


async def test_what_happens_just_as_the_work_ends_is_worked_on_too(quick: None) -> None:
    rounds: list[str] = []

    async def work(key: str) -> None:
        rounds.append(key)
        if len(rounds) == 1:
            # when the task has returned, and before that is told
            asyncio.get_running_loop().call_soon(workers.enqueue, key)

    workers = Workers(work)
    workers.begin()
    workers.enqueue("a")
    await workers.idle()
    assert rounds == ["a", "a"]
    await workers.close()
    workers.enqueue("a")
    assert not workers._tasks, "closed is closed"


async def test_what_fails_is_tried_again_and_holds_nobody_else_up(quick: None) -> None:
    done: list[str] = []
    left = {"bad": 3, "bug": 1}

    async def work(key: str) -> None:
        if left.get(key, 0):
            left[key] -= 1
            raise RuntimeError("nobody foresaw this") if key == "bug" else Requeue("not now")
        done.append(key)

    workers = Workers(work)
    workers.begin()
    for key in ("bad", "bug", "good"):
        workers.enqueue(key)
    await workers.idle()
    assert sorted(done) == ["bad", "bug", "good"]
    assert workers.failures == 4


async def test_what_is_to_be_done_later_is_done_though_nothing_happens(quick: None) -> None:
    rounds: list[str] = []
    over = asyncio.Event()

    async def work(key: str) -> float | None:
        rounds.append(key)
        if len(rounds) < 3:
            return 0.0
        over.set()
        return None

    workers = Workers(work)
    workers.begin()
    workers.enqueue("a")
    async with asyncio.timeout(10):
        await over.wait()
    await workers.idle()
    assert rounds == ["a", "a", "a"]
    await workers.close()


async def test_who_has_been_worked_on_for_long_rests_as_long_and_the_others_get_their_turn(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something happens to `busy` all the time."""
    rested: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        rested.append(seconds)
        await real(0)

    clock = [0.0]
    monkeypatch.setattr("hams_operator.controller.workers.asyncio.sleep", sleep)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0], raising=False)
    left = {"busy": 3}

    async def work(key: str) -> None:
        if left[key]:
            left[key] -= 1
            clock[0] += 2.0
            workers.enqueue(key)

    workers = Workers(work)
    workers.begin()
    workers.enqueue("busy")
    await workers.idle()
    assert rested == [0.0, 2.0, 2.0, 2.0]


# -- followers -----------------------------------------------------------------------------------------------


def pod(name: str, version: int = 1) -> Json:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version)}}


class Script(FakeKube):
    """Lists and watches as written down; at the end it blocks."""

    def __init__(self, lists: list[list[Json]], watches: list[list[Json] | KubeError]) -> None:
        super().__init__()
        self.lists, self.watches = lists, watches
        self.over = asyncio.Event()

    async def page(
        self, resource: Resource, namespace: str, selector: str, after: str = "", fields: str = ""
    ) -> Json:
        return {"metadata": {"resourceVersion": "9"}, "items": self.lists.pop(0)}

    async def watch(
        self, resource: Resource, namespace: str, selector: str, version: str, heard: Any = None
    ) -> AsyncIterator[Json]:
        if not self.watches:
            self.over.set()
            await asyncio.Event().wait()
        result = self.watches.pop(0)
        if isinstance(result, KubeError):
            raise result
        for event in result:
            yield event


async def follow(script: Script) -> list[str]:
    enqueued: list[str] = []
    follower = ObjectFollower(
        script,
        PODS,
        "",
        "x",
        lambda item: enqueued.append(item["metadata"]["name"]),
        lambda ns, name: enqueued.append(f"-{name}"),
    )
    task = asyncio.ensure_future(follower.run())
    await script.over.wait()
    task.cancel()
    return enqueued


async def test_a_follower_tells_what_is_there_and_what_changes(quick: None) -> None:
    events = [
        {"type": "ADDED", "object": pod("b", 10)},
        {"type": "BOOKMARK", "object": pod("", 11)},
        {"type": "DELETED", "object": pod("a", 12)},
    ]
    assert await follow(Script([[pod("a")]], [events])) == ["a", "b", "-a"]


async def test_after_forgotten_changes_it_lists_again_and_tells_what_has_gone(quick: None) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    assert await follow(Script([[pod("a"), pod("b")], [pod("b")]], [[gone]])) == ["a", "b", "b", "-a"]


async def test_a_broken_watch_goes_on_where_it_ended(quick: None) -> None:
    events = [{"type": "ADDED", "object": pod("b", 10)}]
    assert await follow(Script([[pod("a")]], [KubeError(0, "broken"), events])) == ["a", "b"]


async def test_a_pod_with_a_label_that_is_no_number_ends_no_follower(quick: None) -> None:
    """Whoever may make pods in a namespace may label them so."""
    labels = {"hams.dev/graph": "g", "hams.dev/incarnation": "one"}
    odd = {**pod("odd", 10), "metadata": {**pod("odd", 10)["metadata"], "labels": labels}}
    script = Script([[odd]], [[{"type": "ADDED", "object": pod("b", 11)}]])
    store = Store(lambda key: None)
    follower = ObjectFollower(script, PODS, "", "x", store.put, lambda ns, name: None)
    task = asyncio.ensure_future(follower.run())
    over = asyncio.ensure_future(script.over.wait())
    await asyncio.wait((task, over), timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done(), "the follower has ended"
    assert [seen.incarnation for seen in store.pods(("ns", "g"))] == [0]
    task.cancel()


class Barred(FakeKube):
    """One of two namespaces is closed to us, as it is while it is being deleted: our RoleBinding is gone."""

    async def page(
        self, resource: Resource, namespace: str, selector: str, after: str = "", fields: str = ""
    ) -> Json:
        if namespace == "barred":
            raise KubeError(403, "forbidden")
        return {"metadata": {"resourceVersion": "9"}, "items": []}

    async def watch(
        self, resource: Resource, namespace: str, selector: str, version: str, heard: Any = None
    ) -> AsyncIterator[Json]:
        await asyncio.Event().wait()
        yield {}


async def test_a_namespace_that_cannot_be_listed_holds_up_its_own_graphs_only(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kube_pause_s", "kube_pause_max_s"):
        monkeypatch.setattr(f"hams_operator.controller.limits.{name}", 0.01)
    monkeypatch.setattr("hams_operator.controller.process.begin_wait_s", 0.05)
    looked: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("here", "barred", "goes")}

    async def graphs(store: Store, namespaces: object, stop: object, ready: asyncio.Event) -> None:
        for name, namespace in (("here", "shop"), ("barred", "barred"), ("goes", "barred")):
            item = _graph("1", "a")
            going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if name == "goes" else {}
            metadata = {**item["metadata"], "name": name, "namespace": namespace, **going}
            store.put_graph({**item, "metadata": metadata})
        ready.set()
        await asyncio.Event().wait()

    async def look(_: object, key: tuple[str, str]) -> None:
        looked[key[1]].set()

    put_off = asyncio.Event()
    work = Controller._work

    async def working(controller: Controller, key: tuple[str, str]) -> float | None:
        again_s = await work(controller, key)
        if key[1] == "barred":
            put_off.set()
        return again_s

    monkeypatch.setattr(Controller, "_work", working)

    monkeypatch.setattr("hams_operator.controller.process.watch_graphs", graphs)
    monkeypatch.setattr("hams_operator.controller.reconcile.Reconciler.reconcile", look)
    options = ControllerOptions(Settings(), "c", "hams-system", ("barred", "shop"))
    etcd = cast(EtcdCoordination, MemoryStore().client())
    controller = Controller(Barred(), etcd, options, NoIdentities(), lambda: None)
    running = asyncio.ensure_future(controller.run())
    try:
        async with asyncio.timeout(3):
            await looked["here"].wait()
            await looked["goes"].wait()
            await put_off.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not looked["barred"].is_set(), "of a graph whose objects are not seen nothing is done"


def test_kopf_never_gives_up_what_it_may_not_see() -> None:
    """After the last pause it would end, and all graphs would be without a controller."""
    pauses = settings_of().networking.error_backoffs
    assert not isinstance(pauses, float | int)
    for _ in range(2):  # one object serves all requests
        some = list(itertools.islice(pauses, 1000))
        assert len(some) == 1000
        assert max(some) <= 30


@asynccontextmanager
async def api_server(
    path: str, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[kube_module.KubeClient]:
    """A client of an API server that answers on one path."""
    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = kube_module.configuration_of()
    configuration.host = f"http://127.0.0.1:{_port(runner)}"
    kube = kube_module.KubeClient(ApiClient(configuration))
    try:
        yield kube
    finally:
        await kube.close()
        await runner.cleanup()


async def test_an_error_page_in_another_encoding_is_an_error_of_the_api_server(quick: None) -> None:
    async def answer(_: web.Request) -> web.Response:
        page = "Dienst nicht verfügbar".encode("latin-1")
        return web.Response(status=503, body=page, headers={"Content-Type": "text/plain; charset=utf-8"})

    async with api_server("/api/v1/namespaces/ns/pods/a", answer) as kube:
        with pytest.raises(KubeError, match=r"nicht verf.gbar") as raised:
            await kube.get(PODS, "ns", "a")
    assert raised.value.status == 503


async def test_a_watch_of_an_api_server_that_is_gone_without_a_word_is_begun_anew_where_it_ended(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is gone, and so may be that of a pod which nobody would look at meanwhile."""
    monkeypatch.setattr(kube_module, "kube_silent_s", 0.05)
    begun: asyncio.Queue[str] = asyncio.Queue()
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})
        begun.put_nowait(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if begun.qsize() == 1:
            await response.write(msgspec.json.encode({"type": "ADDED", "object": pod("a", 10)}) + b"\n")
        await over.wait()
        return response

    async with api_server("/api/v1/pods", answer) as kube:
        follower = ObjectFollower(kube, PODS, "", "x", lambda item: None, lambda ns, name: None)
        task = asyncio.ensure_future(follower.run())
        try:
            async with asyncio.timeout(5):
                assert [await begun.get(), await begun.get()] == ["9", "10"]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            over.set()


# -- the store -----------------------------------------------------------------------------------------------


def test_only_what_matters_is_news() -> None:
    news: list[tuple[str, str]] = []
    store = Store(news.append)
    graph = {
        "kind": "ServiceGraph",
        "metadata": {"name": "g", "namespace": "n", "resourceVersion": "1"},
        "spec": {"a": 1},
    }
    store.put_graph(graph)
    store.put_graph({**graph, "status": {"x": 1}, "metadata": {**graph["metadata"], "resourceVersion": "2"}})
    assert news == [("n", "g")]
    labels = {"hams.dev/graph": "g"}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n", "labels": labels, "managedFields": [1]},
        "spec": {},
    }
    store.put(deployment)
    store.put({**deployment, "status": {"replicas": 1}})
    assert len(news) == 2
    store.put({**deployment, "spec": {"replicas": 2}}, ours=True)
    assert len(news) == 2
    store.drop("Deployment", "n", "d")
    assert len(news) == 3
    store.drop_graph(("n", "g"))
    store.forget(("n", "g"))
    assert (store.graph(("n", "g")), store.graphs, len(store._known)) == (None, 0, 0)


def test_options_come_from_the_environment_that_the_chart_sets() -> None:
    by_name = options_from(
        {
            "HAMS_ETCD": "http://e:1",
            "HAMS_SIDECAR_IMAGE": "i:1",
            "HAMS_WATCH_NAMESPACES": "a, b",
            "HAMS_HISTORY_HOST_PATH": "/h",
        }
    )
    assert (by_name.settings.etcd, by_name.settings.image, by_name.settings.history, by_name.namespaces) == (
        "http://e:1",
        "i:1",
        "/h",
        ("a", "b"),
    )
    assert options_from({}).namespaces == ()
    assert options_from({"HAMS_LOG_LEVEL": "DEBUG"}).log_level == "debug"
    with pytest.raises(ValueError, match="HAMS_LOG_LEVEL: expected one of debug, info"):
        options_from({"HAMS_LOG_LEVEL": "loud"})
    assert set(OWNED) == {"ConfigMap", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy"}


# -- the cache -----------------------------------------------------------------------------------------------


async def test_etcd_is_away_when_it_does_not_answer_not_when_its_watch_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a controller that begins with a thousand graphs tells all of them, and is later still for it."""
    monkeypatch.setattr(limits, "etcd_poll_s", 0.001)

    class Deaf:
        live = False

    client, enqueued, away_changed = MemoryStore().client(), list[str](), asyncio.Event()

    def changed(uid: str) -> None:
        enqueued.append(uid)
        away_changed.set()

    cache = EtcdCache(client, changed)
    cache.away = ""
    checking = asyncio.create_task(cache._check_liveness(Deaf()))
    await asyncio.sleep(0.05)
    assert (cache.away, enqueued) == ("", [])
    for cut in (True, False):
        away_changed.clear()
        (client.partition if cut else client.heal)()
        async with asyncio.timeout(5):
            await away_changed.wait()
        assert bool(cache.away) == cut
    checking.cancel()
    assert enqueued == ["", ""]


async def test_an_etcd_that_is_full_is_told_of_once_and_so_is_its_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "etcd_poll_s", 0.001)
    monkeypatch.setattr(cache_module, "etcd_full_poll_s", 0.0)
    store, enqueued, told = MemoryStore(), list[str](), asyncio.Event()

    def changed(uid: str) -> None:
        enqueued.append(uid)
        told.set()

    cache = EtcdCache(store.client(), changed)
    cache.away = ""
    checking = asyncio.create_task(cache._check_liveness(object()))
    for full in (True, False):
        told.clear()
        store.full = full
        async with asyncio.timeout(5):
            await told.wait()
        assert cache.full == full
    checking.cancel()
    assert enqueued == ["", ""]


async def test_who_tells_often_of_deadlines_is_a_reason_to_look_once_in_a_while_and_a_failed_policy_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "timeliness_news_s", 0.01)
    client, told, turned = MemoryStore().client(), list[str](), asyncio.Event()

    def changed(uid: str) -> None:
        told.append(uid)
        turned.set()

    cache = EtcdCache(client, changed)

    def note(name: str, value: bytes) -> None:
        cache._note(KeyValue(f"/hams/v1/u/{name}", value, 1, 1))

    def tell(record: records.TimelinessRecord) -> None:
        note("timeliness/b-1", records.encode_timeliness(record))

    note("spec", b"{}")
    assert told == ["u"]
    told.clear()
    for count in range(5):
        tell(records.TimelinessRecord("b", 60.0, count))
        note("profiles/b", b"whatever")
    assert told == []
    turned.clear()
    async with asyncio.timeout(5):
        await turned.wait()
    assert told == ["u"]
    tell(records.TimelinessRecord("b", 60.0, 9, failed="it raised"))
    assert told == ["u", "u"]
    assert cache.of("u").failed_policies == {"b-1": "it raised"}


async def test_when_etcd_is_back_or_went_back_it_is_doubted_and_every_graph_is_looked_at() -> None:
    doubts: list[str] = []
    identities = NoIdentities()
    identities.doubt = lambda: doubts.append("doubt")  # type: ignore[method-assign]
    client = MemoryStore().client()
    controller = Controller(
        FakeKube(),
        cast(EtcdCoordination, client),
        ControllerOptions(Settings(), "c", "hams-system"),
        identities,
        lambda: None,
    )
    controller._keys["u"] = ("ns", "g")
    enqueued: list[tuple[str, str]] = []
    controller.workers.enqueue = enqueued.append  # type: ignore[method-assign]
    controller.cache._set_away("")
    assert (doubts, enqueued) == (["doubt"], [("ns", "g")])
    controller.cache._set_away("nobody answers")
    assert doubts == ["doubt"], "in vain as yet"
    controller.cache._set_away("")
    assert doubts == ["doubt"] * 2

    class Back:
        """A watch that tells one thing."""

        live = True

        async def __aenter__(self) -> "Back":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def __aiter__(self) -> AsyncIterator[Restored]:
            yield Restored(9, 3)

    client.watch = lambda prefix, after: Back()  # type: ignore[method-assign, assignment, return-value]
    enqueued.clear()
    await controller.cache._follow(await client.get_prefix("/"))
    assert (doubts, enqueued) == (["doubt"] * 3, [("ns", "g")])


# -- its own port --------------------------------------------------------------------------------------------


async def test_metrics_of_the_controller_want_the_token_and_health_says_no_more_than_ok() -> None:
    kube = FakeKube()
    options = ControllerOptions(Settings(), "c", "hams-system", health_port=0)
    controller = SimpleNamespace(
        store=Store(lambda key: None), workers=Workers(_nothing), cache=SimpleNamespace(away="", full=False)
    )
    runner = await _health(
        options, Election(kube, "hams-system", "c"), cast(Controller, controller), kube, None
    )
    url = f"http://127.0.0.1:{_port(runner)}"
    token = (await metrics_token(kube, "hams-system", "hams-metrics")).decode()
    try:
        async with aiohttp.ClientSession() as session:
            by_name = {}
            for given in ("", "Bearer wrong", token, f"Bearer {token}"):
                async with session.get(f"{url}/metrics", headers={"Authorization": given}) as answer:
                    text = await answer.text()
                    by_name[given] = (
                        answer.status,
                        "hams_controller_leads 0" in text and "process_cpu_seconds_total" in text,
                    )
            asked = kube.asked
            for path in ("/healthz", "/readyz"):
                async with session.get(f"{url}{path}") as answer:
                    assert await answer.text() == "ok\n"
    finally:
        await runner.cleanup()
    assert by_name == {
        "": (401, False),
        "Bearer wrong": (401, False),
        token: (401, False),
        f"Bearer {token}": (200, True),
    }
    assert asked <= 4, "the API server is not asked each time"


def _with_status(name: str, version: str, **conditions: str) -> Json:
    status = {"conditions": [{"type": kind, "status": holds} for kind, holds in conditions.items()]}
    return {
        "kind": "ServiceGraph",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": version},
        "spec": {},
        "status": status,
    }


def _conditions(store: Store, leads: bool = True) -> dict[tuple[str, ...], float]:
    """What is exposed of graphs, as Prometheus' own parser reads it."""
    cache = SimpleNamespace(away="", full=False)
    controller = SimpleNamespace(store=store, workers=Workers(_nothing), cache=cache)
    text = exposition(_samples(cast(Controller, controller), leads, 7)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["hams_controller_kube_requests"].samples[0].value == 7
    values = (
        families["hams_controller_graph_condition"].samples
        if "hams_controller_graph_condition" in families
        else []
    )
    return {
        tuple(sample.labels[name] for name in ("namespace", "graph", "type")): sample.value
        for sample in values
    }


def test_conditions_of_graphs_are_exposed_by_who_leads_and_go_with_their_graph() -> None:
    store = Store(lambda key: None)
    store.put_graph({"kind": "ServiceGraph", "metadata": {"name": "new", "namespace": "ns"}, "spec": {}})
    store.put_graph(
        _with_status("a", "1", Ready="True", Redundant="False", Progressing="True", Strange="True")
    )
    store.put_graph(_with_status("b", "2", Ready="Unknown", Redundant="True"))
    a, b = ("ns", "a"), ("ns", "b")
    assert _conditions(store) == {
        (*a, "Ready"): 1,
        (*a, "Redundant"): 0,
        (*a, "Progressing"): 1,
        (*b, "Ready"): 0,
        (*b, "Redundant"): 1,
    }
    assert _conditions(store, leads=False) == {}
    with store.writing("ServiceGraph", *a):
        store.put_graph(
            _with_status("a", "3", Ready="False", Redundant="True", Progressing="True"), ours=True
        )
    store.put_graph(_with_status("b", "4", Ready="True", Redundant="True"))
    assert _conditions(store) == {
        (*a, "Ready"): 0,
        (*a, "Redundant"): 1,
        (*a, "Progressing"): 1,
        (*b, "Ready"): 1,
        (*b, "Redundant"): 1,
    }
    labels = {"hams.dev/graph": "a"}
    store.put({"kind": "Pod", "metadata": {"name": "a-1", "namespace": "ns", "labels": labels}, "status": {}})
    store.drop_graph(a)  # its pods are still there
    assert {key[:2] for key in _conditions(store)} == {b}
    store.drop_graph(b)
    assert _conditions(store) == {}


def _port(runner: web.AppRunner) -> int:
    """Of IPv4; the other one has a free port of its own."""
    return next(int(address[1]) for address in runner.addresses if len(address) == 2)


class Gated(FakeKube):
    """Secrets are read when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for, self.gate = asyncio.Event(), asyncio.Event()

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        if resource is SECRETS:
            self.asked_for.set()
            await self.gate.wait()
        return await super().get(resource, namespace, name)


class RecordingWebhook(Webhook):
    """Tells when it has begun to listen, and where."""

    def __init__(self, kube: FakeKube, options: ControllerOptions) -> None:
        super().__init__(kube, options)
        self.begun = asyncio.Event()

    async def _listen(self) -> None:
        await super()._listen()
        self.begun.set()

    @property
    def port(self) -> int:
        assert self._runner is not None
        return _port(self._runner)


async def test_a_replica_is_ready_only_when_its_webhook_listens_and_is_trusted_whether_it_leads_or_not() -> (
    None
):
    kube = Gated()
    hooks = [{"name": "graphs.hams.dev", "clientConfig": {"service": {"name": "hams-webhook"}}}]
    kube.put({"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "hams"}, "webhooks": hooks})
    options = ControllerOptions(
        Settings(),
        "c",
        "hams-system",
        (),
        "hams-webhook",
        webhook_configuration="hams",
        webhook_secret="w",
        webhook_port=0,
        health_port=0,
    )
    webhook, election = RecordingWebhook(kube, options), Election(kube, "hams-system", "c")
    runner = await _health(options, election, cast(Controller, SimpleNamespace()), kube, webhook)
    running = asyncio.create_task(webhook.run())
    try:
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:

            async def answer(path: str) -> tuple[int, str]:
                async with session.get(f"http://127.0.0.1:{_port(runner)}{path}") as result:
                    return result.status, await result.text()

            await kube.asked_for.wait()
            assert await answer("/readyz") == (503, "the webhook does not listen yet\n")
            assert await answer("/healthz") == (200, "ok\n"), "nobody is to be killed for it"
            kube.gate.set()
            await webhook.begun.wait()
            assert await answer("/readyz") == (200, "ok\n")
            assert not election.won.is_set()
            (trusted,) = kube.of("ValidatingWebhookConfiguration")[0]["webhooks"]
            context = ssl.create_default_context(
                cadata=base64.b64decode(trusted["clientConfig"]["caBundle"]).decode()
            )
            question = {"request": {"uid": "7"}}
            name = "hams-webhook.hams-system.svc"
            url = f"https://127.0.0.1:{webhook.port}/validate"
            async with session.post(url, json=question, ssl=context, server_hostname=name) as result:
                assert (await result.json())["response"] == {"uid": "7", "allowed": True}
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert (await answer("/readyz"))[0] == 503, "no longer"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runner.cleanup()


async def test_a_webhook_configuration_that_was_made_anew_is_trusted_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody deleted it to get out of a lock, and installed the chart again: no pod starts anew for
    that."""
    monkeypatch.setattr("hams_operator.controller.webhook.webhook_check_s", 0.0)
    kube = FakeKube()
    options = ControllerOptions(
        Settings(),
        "c",
        "hams-system",
        (),
        "hams-webhook",
        webhook_configuration="hams",
        webhook_secret="w",
        webhook_port=0,
        health_port=0,
    )
    hooks = [{"name": "graphs.hams.dev", "clientConfig": {"service": {"name": "hams-webhook"}}}]
    webhook = RecordingWebhook(kube, options)
    running = asyncio.create_task(webhook.run())
    try:
        async with asyncio.timeout(20):
            await webhook.begun.wait()
            for _ in range(2):
                kube.put(
                    {
                        "kind": "ValidatingWebhookConfiguration",
                        "metadata": {"name": "hams"},
                        "webhooks": copy.deepcopy(hooks),
                    }
                )
                while not kube.of("ValidatingWebhookConfiguration")[0]["webhooks"][0]["clientConfig"].get(
                    "caBundle"
                ):
                    kube.changed.clear()
                    await kube.changed.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _nothing(key: object) -> None:
    """No work."""


# -- what we have just written -------------------------------------------------------------------------------


def _service(version: str, port: int) -> Json:
    labels = {"hams.dev/graph": "g", "app.kubernetes.io/managed-by": "hams"}
    metadata = {"name": "g", "namespace": "ns", "labels": labels, "resourceVersion": version}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"port": port}}


@pytest.mark.parametrize("early", [True, False], ids=["before the answer", "after it"])
def test_what_was_written_is_no_news_when_the_watch_tells_of_it(early: bool) -> None:
    enqueued: list[object] = []
    store = Store(enqueued.append)
    with store.writing("Service", "ns", "g"):
        if early:
            store.put(_service("5", 1))
        store.put(_service("5", 1), ours=True)
    if not early:
        store.put(_service("5", 1))
    assert enqueued == []
    store.put(_service("6", 2))
    assert enqueued == [("ns", "g")]


@pytest.mark.parametrize("events", [["4", "5"], ["6"], ["5", "6"]])
def test_what_others_write_beside_us_is_news_and_the_last_word_counts(events: list[str]) -> None:
    for during in (True, False):
        enqueued: list[object] = []
        store = Store(enqueued.append)
        with store.writing("Service", "ns", "g"):
            if during:
                for version in events:
                    store.put(_service(version, int(version)))
            store.put(_service("5", 5), ours=True)
        if not during:
            for version in events:
                store.put(_service(version, int(version)))
        (item,) = store.objects(("ns", "g"))
        assert item["spec"]["port"] == int(events[-1])
        assert bool(enqueued) == (events[-1] == "6" or (not during and events == ["4", "5"]))


def test_what_the_watch_tells_during_a_write_that_fails_is_heard() -> None:
    enqueued: list[object] = []
    store = Store(enqueued.append)

    def fail() -> None:
        with store.writing("Service", "ns", "g"):
            store.put(_service("5", 1))
            raise KubeError(0, "no answer")

    with pytest.raises(KubeError):
        fail()
    assert (enqueued, len(store.objects(("ns", "g")))) == ([("ns", "g")], 1)
    with store.writing("Service", "ns", "g"):
        store.put(_service("6", 2))
        store.drop("Service", "ns", "g")
    assert store.objects(("ns", "g")) == []


def _graph(
    version: str, image: str, status: str = "", *, finalizers: tuple[str, ...] = (), uid: str = "u"
) -> Json:
    metadata = {
        "name": "g",
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": version,
        "finalizers": list(finalizers),
    }
    return {
        "apiVersion": "hams.dev/v1",
        "kind": "ServiceGraph",
        "metadata": metadata,
        "spec": {"image": image},
        "status": {"message": status},
    }


@pytest.mark.parametrize("early", [True, False], ids=["before the answer", "after it"])
def test_what_a_person_asks_for_while_a_status_is_written_is_news(early: bool) -> None:
    """The answer to our write holds it already, so that the watch, which tells of it later, tells nothing
    new."""
    enqueued: list[object] = []
    store = Store(enqueued.append)
    store.put_graph(_graph("4", "m:1"))
    enqueued.clear()
    with store.writing("ServiceGraph", "ns", "g"):
        if early:
            store.put_graph(_graph("5", "m:2"))
            store.put_graph(_graph("6", "m:2", "ours"))
        store.put_graph(_graph("6", "m:2", "ours"), ours=True)
    if not early:
        store.put_graph(_graph("5", "m:2"))
        store.put_graph(_graph("6", "m:2", "ours"))
    assert enqueued == [("ns", "g")]


def test_a_status_and_a_finalizer_of_ours_are_no_news() -> None:
    enqueued: list[object] = []
    store = Store(enqueued.append)
    store.put_graph(_graph("4", "m:1"))
    enqueued.clear()
    for item in (_graph("5", "m:1", finalizers=("ours",)), _graph("6", "m:1", "ours", finalizers=("ours",))):
        with store.writing("ServiceGraph", "ns", "g"):
            store.put_graph(item, ours=True)
        store.put_graph(item)
    assert enqueued == []


def test_what_is_deleted_before_our_write_is_answered_is_gone() -> None:
    enqueued: list[object] = []
    store = Store(enqueued.append)
    store.put_graph(_graph("4", "m:1"))
    with store.writing("Service", "ns", "g"):
        store.drop("Service", "ns", "g")
        store.put(_service("5", 1), ours=True)
    assert store.objects(("ns", "g")) == []
    store.put(_service("5", 1))  # it was another one that had gone
    assert len(store.objects(("ns", "g"))) == 1
    enqueued.clear()
    with store.writing("ServiceGraph", "ns", "g"):
        store.drop_graph(("ns", "g"))
        store.put_graph(_graph("6", "m:1", "ours"), ours=True)
    assert store.graph(("ns", "g")) is None
    assert enqueued


def test_the_end_of_a_graph_is_not_that_of_the_next_one_of_its_name() -> None:
    store = Store(lambda key: None)
    store.put_graph(_graph("5", "m:1", uid="new"))
    store.drop_graph(("ns", "g"), "old")
    assert store.graph(("ns", "g")) is not None
    store.drop_graph(("ns", "g"), "new")
    assert store.graph(("ns", "g")) is None


def test_two_graphs_may_write_an_object_of_one_name_at_a_time() -> None:
    store = Store(lambda key: None)
    with store.writing("Service", "ns", "g"), store.writing("Service", "ns", "g"):
        store.put(_service("5", 5))
    assert len(store.objects(("ns", "g"))) == 1
