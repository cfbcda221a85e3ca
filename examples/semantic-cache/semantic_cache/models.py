"""The four models of the semantic cache.

embed -> cache -> recall (cheap) or search (expensive). The cache is the state: the vectors of the newest
questions and their answers. What search finds comes back over the feedback edge as a request of its own, with
the answer; the cache keeps it and lets nothing on.
"""

import importlib
from typing import Any

import numpy as np

import hams_sdk
from semantic_cache.embedding import trigrams

REPLY, RECALL, SEARCH, REQUEST = "reply", "recall", "search", "request"


def texts(column: Any) -> list[str]:
    """BYTES rows as text."""
    return [bytes(item).decode(errors="replace") for item in column]


def column(items: list[bytes]) -> np.ndarray:
    """Texts as BYTES rows."""
    result = np.empty(len(items), object)
    result[:] = items
    return result


class Embed(hams_sdk.Model):
    """Questions as vectors; which way is `config.embedder`."""

    def initialize(self, config: dict[str, Any]) -> None:
        module, _, name = config.get("embedder", "semantic_cache.embedding:trigrams").partition(":")
        self.embed = trigrams if not name else getattr(importlib.import_module(module), name)

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        return {"embedding": np.ascontiguousarray(self.embed(texts(batch["question"])), np.float32)}


class Cache(hams_sdk.Model):
    """Remembers `capacity` answers; the oldest makes room. A question nearer than `threshold` (cosine) to a
    known one has its answer.

    A request that brings an answer is one to remember and goes nowhere else.
    """

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.threshold = float(config.get("threshold", 0.8))
        capacity = int(config.get("capacity", 1024))
        self.vectors = np.zeros((capacity, int(config.get("dim", 256))), np.float32)
        # answers ever remembered; the next place is count modulo capacity
        self.count = np.zeros((), np.int64)
        self.answers: list[bytes] = [b""] * capacity
        return {
            "vectors": self.vectors,
            "count": self.count,
            "answers": hams_sdk.Opaque(self._get, self._set),
        }

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> hams_sdk.Outputs:
        embedding, answer = batch["embedding"], batch["answer"]
        rows = len(batch)
        if answer is not None:
            with update:
                for row in range(rows):
                    place = int(self.count) % len(self.answers)
                    self.vectors[place], self.answers[place] = embedding[row], bytes(answer[row])
                    self.count += 1
            tensors = {
                "answer": column([b""] * rows),
                "similarity": np.zeros(rows, np.float32),
                "hit": np.zeros(rows, bool),
            }
            return hams_sdk.Outputs(tensors, [[] for _ in batch.units])
        # Row by row: a matrix product may round otherwise in another batch, and near the threshold that would
        # be another answer.
        nearness = np.stack([self.vectors @ row for row in embedding])
        best = nearness.argmax(axis=1)
        similarity = nearness[np.arange(rows), best]
        hit = similarity >= self.threshold
        data = column([self.answers[place] if known else b"" for place, known in zip(best, hit, strict=True)])
        # A request is answered as a whole: from memory only if all its rows are known.
        routes = [[RECALL, REPLY] if hit[unit.rows].all() else [SEARCH, REPLY] for unit in batch.units]
        for unit in batch.units:
            hit[unit.rows] = hit[unit.rows].all()
        return hams_sdk.Outputs({"answer": data, "similarity": similarity, "hit": hit}, routes)

    def _get(self) -> bytes:
        return b"".join(len(answer).to_bytes(4, "little") + answer for answer in self.answers)

    def _set(self, data: bytes) -> None:
        at = 0
        for place in range(len(self.answers)):
            size = int.from_bytes(data[at : at + 4], "little")
            self.answers[place] = bytes(data[at + 4 : at + 4 + size])
            at += 4 + size


class Recall(hams_sdk.Model):
    """The cheap way: the answer that was remembered."""

    def run(self, batch: hams_sdk.Batch) -> dict[str, Any]:
        return {"answer": batch["answer"]}


class Search(hams_sdk.Model):
    """The expensive way: every airport of the table is compared with the question. The answer also goes back,
    to be remembered."""

    def initialize(self, config: dict[str, Any]) -> None:
        from semantic_cache.data import airports  # noqa: PLC0415 - the table is for this model alone

        table = airports()
        self.lines = [line.encode() for line, _ in table]
        self.vectors = trigrams([words for _, words in table], 4096)

    def run(self, batch: hams_sdk.Batch) -> hams_sdk.Outputs:
        asked = trigrams(texts(batch["question"]), 4096)
        values = column([self.lines[int((self.vectors @ row).argmax())] for row in asked])
        return hams_sdk.Outputs(
            {"answer": values, "question": batch["question"]}, [[REPLY, REQUEST] for _ in batch.units]
        )
