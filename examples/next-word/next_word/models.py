"""The two models of the next-word graph, each with one `Keyed` mapping as its state.

sessions remembers the last word of each of a million users; words remembers which words have followed each
word. A batch writes the few rows that it touches, and only these are captured and sent to the backup, however
large the mapping is.

A request with a word or user that is empty or too long is refused as a whole and leaves no trace.
"""

from typing import Any

import numpy as np

import hams_sdk

WORD_BYTES = 24
USER_BYTES = 40
SUCCESSORS = 4
"""So many successors of each word are remembered; a new one replaces the rarest (Space-Saving, Metwally et
al., 2005)."""


def accepted(batch: hams_sdk.Batch, **longest: int) -> list[int]:
    """The rows of all sound requests; the others fail with what is wrong. `longest`: bytes, by tensor."""
    rows: list[int] = []
    for unit in batch.units:
        own = list(range(unit.rows.start, unit.rows.stop))
        bad = next(
            (
                f"{name}: expected 1 to {most} bytes, found {len(batch[name][row])}"
                for row in own
                for name, most in longest.items()
                if not 1 <= len(batch[name][row]) <= most
            ),
            None,
        )
        if bad is None:
            rows += own
        else:
            batch.fail(unit, bad)
    return rows


class Sessions(hams_sdk.Model):
    """The word before this one, of the same user. `config.filled`: so many made-up users are there
    already."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.last = hams_sdk.Keyed(
            row=bytes,
            row_bytes=WORD_BYTES,
            keys=bytes,
            key_bytes=USER_BYTES,
            max_keys=int(config.get("users", 1_000_000)),
            evict="lru",
        )
        filled = int(config.get("filled", 0))
        self.last.update({f"made-up-{user}".encode(): b"word" for user in range(filled)})
        return {"last": self.last}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        before = np.full(len(batch), b"", object)
        rows = accepted(batch, user=USER_BYTES, word=WORD_BYTES)
        typed: dict[bytes, bytes] = {}
        for row in rows:
            user = bytes(batch["user"][row])
            before[row] = bytes(typed.get(user) or self.last.get(user, b""))
            typed[user] = bytes(batch["word"][row])
        with update:
            self.last.update(typed)
        return {"before": before}


class Words(hams_sdk.Model):
    """Which words have followed each word, and how often."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.row = np.dtype([("word", f"S{WORD_BYTES}", SUCCESSORS), ("count", np.uint32, SUCCESSORS)])
        self.after = hams_sdk.Keyed(
            row=self.row,
            keys=bytes,
            key_bytes=WORD_BYTES,
            max_keys=int(config.get("words", 100_000)),
            evict="lru",
        )
        return {"after": self.after}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        guesses, hits = np.full(len(batch), b"", object), np.zeros(len(batch), np.bool_)
        rows = accepted(batch, word=WORD_BYTES)
        learnt: dict[bytes, np.ndarray] = {}
        for row in rows:
            before, word = bytes(batch["before"][row]), bytes(batch["word"][row])
            if before:
                follows = learnt[before] = self._follows(before, learnt)
                hits[row] = guess(follows) == word
                count(follows, word)
            guesses[row] = guess(self._follows(word, learnt))
        with update:
            self.after.write(list(learnt), np.array(list(learnt.values()), self.row))
        return {"guess": guesses, "hit": hits}

    def _follows(self, word: bytes, learnt: dict[bytes, np.ndarray]) -> np.ndarray:
        """What has followed a word, this batch included."""
        return learnt[word] if word in learnt else self.after.read([word])[0][0]


def guess(follows: np.ndarray) -> bytes:
    """The word that has followed most often; empty if none has."""
    return bytes(follows["word"][int(follows["count"].argmax())])


def count(follows: np.ndarray, word: bytes) -> None:
    """A word has followed once more."""
    known = np.flatnonzero(follows["word"] == word)
    place = int(known[0]) if len(known) else int(follows["count"].argmin())
    follows["word"][place] = word
    follows["count"][place] += 1
