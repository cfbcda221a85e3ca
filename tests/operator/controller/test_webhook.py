"""The webhook says what `hams validate` says."""

import asyncio
import copy
import datetime
import json
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hams_graph import InvalidGraph, load_text
from hams_operator.controller.certificates import Pair, fresh_pair, holds
from hams_operator.controller.webhook import _answer, _load, review
from hams_operator.controller.worker_thread import Busy, WorkerThread
from hams_operator.plan.names import ALLOW_STATE_LOSS

from ..plan.kit import PAIR, SETTINGS, with_change

Json = dict[str, Any]
WRONG = with_change(
    "inputs: [pass.y]",
    "inputs: [pas.y]",
    with_change("shape: [4]}]\n    replicas", "shape: [0]}]\n    replicas"),
)


def question(text: str, old: str = "", annotations: dict[str, str] | None = None, **metadata: Any) -> Json:
    item = yaml.safe_load(text)
    item["metadata"] |= {"annotations": annotations or {}, **metadata}
    request = {
        "uid": "7",
        "operation": "UPDATE" if old else "CREATE",
        "object": item,
        "oldObject": yaml.safe_load(old) if old else None,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def answer(*args: Any, **more: Any) -> Json:
    values: Json = review(question(*args, **more), SETTINGS)["response"]
    return values


def test_a_right_graph_is_let_in() -> None:
    assert answer(PAIR) == {"uid": "7", "allowed": True}


def test_a_wrong_one_is_refused_with_all_that_is_wrong_in_the_words_of_validate() -> None:
    with pytest.raises(InvalidGraph) as refusal:
        load_text(WRONG, on_kubernetes=True)
    result = answer(WRONG)
    said = [f"{problem.path}: {problem.message}" for problem in refusal.value.problems]
    assert len(said) >= 2
    assert (result["allowed"], sorted(result["status"]["message"].split("\n"))) == (False, sorted(said))


def test_a_change_that_loses_state_is_refused_unless_it_is_allowed() -> None:
    other = with_change("name: count", "name: counter", with_change("count.y", "counter.y"))
    assert answer(other, PAIR)["allowed"] is False
    assert "the state of count" in answer(other, PAIR)["status"]["message"]
    assert answer(other, PAIR, annotations={ALLOW_STATE_LOSS: "true"})["allowed"] is True
    assert answer(with_change("{backups: 1}", "{backups: 2}"), PAIR)["allowed"] is True


def test_a_change_that_the_controller_has_refused_may_be_undone() -> None:
    """It got past the webhook; the state that the undo seems to lose is not there."""
    other = with_change("name: count", "name: counter", with_change("count.y", "counter.y"))
    undo = question(PAIR, other)
    for reason, allowed in (
        ("Stable", False),
        ("ChangeRefused", True),
        ("Replacing", True),
        ("Rejected", True),
        ("NameTaken", True),
    ):
        undo["request"]["oldObject"]["status"] = {
            "conditions": [{"type": "Progressing", "status": "False", "reason": reason}]
        }
        assert review(undo, SETTINGS)["response"]["allowed"] is allowed
    undo["request"]["object"] = yaml.safe_load(WRONG)
    assert review(undo, SETTINGS)["response"]["allowed"] is False, "a wrong one is wrong all the same"


def test_what_was_let_in_before_or_is_going_is_not_held_up() -> None:
    assert answer(WRONG, WRONG)["allowed"] is True
    assert answer(WRONG, PAIR, deletionTimestamp="2026-01-01T00:00:00Z")["allowed"] is True


def test_an_empty_question_is_answered() -> None:
    assert review({}, SETTINGS)["response"]["allowed"] is True


async def test_many_questions_at_once_are_answered_one_after_another_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, began, let_go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow(**_: Any) -> Json:
        loop.call_soon_threadsafe(began.set)
        assert let_go.wait(30), "nobody let go: the loop stood still"
        return {}

    worker = WorkerThread("test", waiting_max=2)
    first, second = (asyncio.ensure_future(worker.run(slow)) for _ in range(2))
    await began.wait()
    with pytest.raises(Busy, match="2 others wait"):
        await worker.run(slow)
    let_go.set()
    assert await asyncio.gather(first, second) == [{}, {}]
    assert await worker.run(dict) == {}
    worker.close()


def test_what_is_no_review_is_not_taken_for_one() -> None:
    for body in (b"", b"[1]", b"{", b"7"):
        with pytest.raises(ValueError):
            _answer(body, SETTINGS)
    assert _answer(json.dumps(question(PAIR)).encode(), SETTINGS)["response"]["allowed"] is True


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value in a JSON document."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, item in children:
        yield from places(item, (*path, name))


def put(value: Any, path: tuple[str | int, ...], other: Any) -> Any:
    """The document with another value at that place."""
    if not path:
        return other
    changed = copy.copy(value)
    changed[path[0]] = put(value[path[0]], path[1:], other)
    return changed


@pytest.mark.parametrize("other", [None, True, 5, "x", [], [1], {}, {"x": 1}], ids=json.dumps)
def test_a_question_that_is_wrong_at_any_place_is_answered_or_refused_and_raises_nothing_else(
    other: Any,
) -> None:
    asked = question(with_change("name: count", "name: counter", with_change("count.y", "counter.y")), PAIR)
    asked["request"]["oldObject"]["status"] = {"conditions": [{"type": "Ready", "reason": "x"}]}
    asked["request"]["oldObject"]["metadata"]["annotations"] = {"x": "y"}
    refused = 0
    for path in places(asked):
        try:
            response = _answer(json.dumps(put(asked, path, other)).encode(), SETTINGS)["response"]
            assert response["allowed"] in (True, False)
        except ValueError:
            refused += 1
    assert refused or other in (None, {}), "what is no object is told so"


NAMES = ("hams-webhook.hams-system.svc", "hams-webhook")
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def test_a_certificate_holds_for_its_names_until_it_is_time_to_renew_it() -> None:
    pair = fresh_pair(NAMES, NOW)
    assert holds(pair, NAMES, NOW)
    assert not holds(pair, ("other.svc",), NOW)
    assert not holds(pair, NAMES, NOW + datetime.timedelta(days=61))
    assert not holds(Pair(b"", b"not a certificate", b""), NAMES, NOW)


def test_a_client_that_trusts_the_authority_accepts_the_certificate() -> None:
    pair = fresh_pair(NAMES, datetime.datetime.now(datetime.UTC))
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cadata=pair.authority.decode()),
    )
    _load(server, pair)
    ways = [ssl.MemoryBIO() for _ in range(2)]
    one = client.wrap_bio(ways[0], ways[1], server_hostname=NAMES[0])
    other = server.wrap_bio(ways[1], ways[0], server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert one.getpeercert()["subjectAltName"] == (("DNS", NAMES[0]), ("DNS", NAMES[1]))
