"""The semantic cache on real airports."""

import itertools
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def cache(example: Any) -> Any:
    return example("semantic-cache")


def ask(text: str) -> dict[str, Any]:
    return {"question": np.array([text.encode()], object)}


def test_the_same_question_in_other_words_comes_from_memory(cache: Any) -> None:
    first = cache.request(ask("Where is John F Kennedy Intl in New York?"))
    second = cache.request(ask("where is John F Kennedy Intl, new york"))
    other = cache.request(ask("Where is San Francisco International?"))
    assert first["answer"][0].startswith(b"JFK: John F Kennedy Intl, New York, NY")
    assert second["answer"][0] == first["answer"][0]
    assert other["answer"][0].startswith(b"SFO:")
    assert [bool(reply["hit"][0]) for reply in (first, second, other)] == [False, True, False]
    assert (cache.runs["search"], cache.runs["recall"]) == (2, 1)


def test_a_stream_of_questions_is_mostly_answered_from_memory_and_rightly(cache: Any) -> None:
    from semantic_cache.data import stream

    requests = list(itertools.islice(stream(), 300))
    replies = [cache.request(tensors) for tensors in requests]
    hits = [reply for reply in replies if reply["hit"][0]]
    assert len(hits) > 150
    assert cache.runs["search"] == 300 - len(hits)
    search = cache.engines["search"].model
    from semantic_cache.embedding import trigrams

    asked = trigrams([tensors["question"][0].decode() for tensors in requests], 4096)
    right = [search.lines[int((search.vectors @ row).argmax())] for row in asked]
    same = [reply["answer"][0] == line for reply, line in zip(replies, right, strict=True) if reply["hit"][0]]
    assert np.mean(same) > 0.9


def test_a_request_of_two_questions_is_answered_as_a_whole(cache: Any) -> None:
    cache.request(ask("Where is San Francisco International?"))
    both = {
        "question": np.array(
            [b"Where is San Francisco International?", b"Where is John F Kennedy Intl?"], object
        )
    }
    reply = cache.request(both)
    assert reply["hit"].tolist() == [False, False]
    assert [line[:4] for line in reply["answer"]] == [b"SFO:", b"JFK:"]
    assert cache.request(both)["hit"].tolist() == [True, True]


def test_the_oldest_answer_makes_room(cache: Any) -> None:
    model = cache.engines["cache"].model
    capacity = len(model.answers)
    model.count[...] = capacity - 1
    for text in ("first question", "second thing"):
        cache.request(ask(text) | {"answer": np.array([text.upper().encode()], object)})
    assert (model.answers[capacity - 1], model.answers[0], int(model.count)) == (
        b"FIRST QUESTION",
        b"SECOND THING",
        capacity + 1,
    )


def test_a_fresh_copy_with_the_captured_state_remembers(cache: Any, example: Any, captured: Any) -> None:
    first = cache.request(ask("Where is John F Kennedy Intl in New York?"))
    other = example("semantic-cache")
    other.engines["cache"].load(memoryview(bytearray(captured(cache.engines["cache"]))))
    again = other.request(ask("Where is John F Kennedy Intl in New York?"))
    assert again["hit"][0]
    assert again["answer"][0] == first["answer"][0]


def test_another_embedder_is_named_in_the_graph(example: Any) -> None:
    example("semantic-cache")
    from semantic_cache.models import Embed

    model = Embed()
    model.initialize({"embedder": "numpy:ones_like"})
    assert model.embed is np.ones_like
