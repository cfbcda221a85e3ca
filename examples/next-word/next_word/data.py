"""Words of Python's own documentation, as the standard library has them, typed by many users at once."""

import re
from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np

USERS = 1_000


def texts() -> list[list[str]]:
    """The words of each topic, in their order."""
    return [re.findall(r"[a-z]{1,24}", text.lower()) for text in topics.values()]


def stream(seed: int = 0, users: int = USERS) -> Iterator[dict[str, np.ndarray]]:
    """Requests without end, one row each: user (1,) BYTES, word (1,) BYTES. Each user types one topic after
    the other; some type much, most little."""
    random = np.random.default_rng(seed)
    known = [text for text in texts() if text]
    typing: dict[int, Iterator[str]] = {}
    while True:
        user = min(int(random.zipf(1.2)), users)
        word = next(typing.get(user, iter(())), None)
        if word is None:
            typing[user] = iter(known[int(random.integers(len(known)))])
            word = next(typing[user])
        yield {"user": np.array([f"user-{user}".encode()], object), "word": np.array([word.encode()], object)}
