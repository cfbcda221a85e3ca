"""The next-word graph on the words of Python's documentation."""

import itertools
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def graph(example: Any) -> Any:
    return example("next-word")


def typed(user: bytes, *words: bytes) -> dict[str, Any]:
    return {"user": np.array([user] * len(words), object), "word": np.array(words, object)}


def test_a_text_that_is_typed_again_is_guessed(graph: Any) -> None:
    text = b"to be or not to do".split()
    first = [graph.request(typed(b"ada", word)) for word in text]
    assert not any(reply["hit"][0] for reply in first)
    again = [graph.request(typed(b"bob", word)) for word in text]
    hits = [bool(reply["hit"][0]) for reply in again]
    assert hits == [False, True, True, True, True, False], "be has followed to twice by then, do once"
    assert again[1]["guess"][0] == b"or"


def test_users_are_kept_apart(graph: Any) -> None:
    for user, word in ((b"ada", b"one"), (b"bob", b"uno"), (b"ada", b"two"), (b"bob", b"dos")):
        graph.request(typed(user, word))
    reply = graph.request(typed(b"eve", b"one", b"uno"))
    assert list(reply["guess"]) == [b"two", b"dos"]


def test_several_words_of_one_request_are_taken_in_their_order(graph: Any) -> None:
    reply = graph.request(typed(b"ada", b"a", b"b", b"a", b"b"))
    assert list(reply["guess"]) == [b"", b"", b"b", b"a"]
    assert list(reply["hit"]) == [False, False, False, True]


def test_some_of_the_documentation_is_foreseen(graph: Any) -> None:
    from next_word.data import stream

    replies = [graph.request(tensors) for tensors in itertools.islice(stream(), 3_000)]
    hits = [bool(reply["hit"][0]) for reply in replies]
    assert sum(hits[2_000:]) > sum(hits[:1_000])
    assert sum(hits[2_000:]) > 50


@pytest.mark.parametrize(
    ("user", "word", "message"),
    [
        (b"", b"word", "user: expected 1 to 40 bytes, found 0"),
        (b"ada", b"x" * 25, "word: expected 1 to 24 bytes, found 25"),
    ],
)
def test_what_is_too_long_or_empty_is_refused_and_leaves_no_trace(
    graph: Any, captured: Any, user: bytes, word: bytes, message: str
) -> None:
    graph.request(typed(b"ada", b"the"))
    before = [captured(graph.engines[name]) for name in ("sessions", "words")]
    with pytest.raises(Exception, match=message):
        graph.request(typed(user, word))
    assert [captured(graph.engines[name]) for name in ("sessions", "words")] == before
