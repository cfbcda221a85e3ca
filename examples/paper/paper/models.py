"""The operators of the six services, emulated: a narrow network computes, the state is as large as the
paper's, and a device is waited for.

`config`: `computeMs`, `updateMs` (device.py); `sizeMiB`, `cells` (lstm or deconv), `state` (everything: all
of the module, as the paper's implementation seems to ship it; cells: what changes), `bytes` (a part of both,
for machines with less memory), `rows` (the largest batch), `seed`. Every stateful operator counts the
requests that it executed, so that replies tell what was lost or doubled.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import hams_sdk
from paper.device import FULL_ROWS, Device, number
from paper.narrow import SIDE, WIDTH, Projection, Recurrence, Softmax, pooled
from paper.search import arima, nearest, relaxed
from paper.state import Cells, touch, weights

VOCABULARY = 2000
WORDS = 16
FEATURES = 2048
GRID = 20
CLASSES = 10
POOLED = 8
EVERYTHING, CELLS = "everything", "cells"
NO_LABEL = -1

Tensors = dict[str, Any]


class Stateless(hams_sdk.Model):
    """An operator without state: `outputs` says what of what."""

    def initialize(self, config: Mapping[str, Any]) -> None:
        self.device = Device.of(config)
        self.seed = int(config.get("seed", 1))
        self.build(config)

    def build(self, config: Mapping[str, Any]) -> None:
        """What the network needs."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        """The outputs of a batch."""
        raise NotImplementedError

    def run(self, batch: hams_sdk.Batch) -> Tensors:
        with self.device.compute(len(batch)):
            return self.outputs(batch)


class Recurrent(hams_sdk.Model):
    """An operator with recurrent state: `encode` reduces its input to what the recurrence takes, `decode`
    makes outputs of what it gives."""

    def initialize(self, config: Mapping[str, Any]) -> Tensors:
        self.device = Device.of(config)
        self.seed = int(config.get("seed", 1))
        self.count = np.zeros((), np.int64)
        self.cells = Cells(config, int(config.get("rows", FULL_ROWS)))
        self.step = Recurrence(self.seed)
        self.build(config)
        state: Tensors = {"count": self.count, "cells": self.cells.values}
        if setting(config) == EVERYTHING:
            self.weights = weights(config)
            state["weights"] = self.weights
        return state

    def build(self, config: Mapping[str, Any]) -> None:
        """What the network needs beside the recurrence."""

    def encode(self, batch: hams_sdk.Batch) -> np.ndarray:
        """(rows, WIDTH) of a batch."""
        raise NotImplementedError

    def decode(self, batch: hams_sdk.Batch, hidden: np.ndarray) -> Tensors:
        """The outputs of a batch."""
        raise NotImplementedError

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Tensors:
        rows = len(batch)
        with self.device.compute(rows):
            hidden, memory = self.step(self.encode(batch), *self.cells.read(rows))
            outputs = self.decode(batch, hidden) | {"count": counted(batch, int(self.count))}
        with update, self.device.update(rows):
            self.count += len(batch.units)
            self.cells.write(hidden, memory)
        return outputs


def setting(config: Mapping[str, Any]) -> str:
    """Which of the two settings of state. Raises ValueError for another word."""
    state = str(config.get("state", EVERYTHING))
    if state not in (EVERYTHING, CELLS):
        raise ValueError(f"state: expected {EVERYTHING} or {CELLS}, found {state!r}")
    return state


def counted(batch: hams_sdk.Batch, before: int) -> np.ndarray:
    """Which request each row belongs to, counted from the first that this state executed."""
    count = np.zeros(len(batch), np.int64)
    for at, unit in enumerate(batch.units, 1):
        count[unit.rows] = before + at
    return count


class Listen(Stateless):
    """Words of speech: (rows, frames, coefficients) to word numbers. The paper's is an LSTM of 793 MiB."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.network = Projection(256, WORDS, self.seed)

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"words": ((self.network(batch["speech"]) + 1) * (VOCABULARY - 1) / 2).astype(np.int64)}


class Split(Stateless):
    """Word numbers of a text."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        words = np.zeros((len(batch), WORDS), np.int64)
        for row, text in enumerate(batch["text"]):
            numbers = [zlib.crc32(word) % VOCABULARY for word in bytes(text).lower().split()[:WORDS]]
            words[row, : len(numbers)] = numbers
        return {"words": words}


class Classify(Recurrent):
    """Scores of word numbers, `classes` of them, of an LSTM classifier."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.classes = int(config.get("classes", 2))
        self.reduce = Projection(WORDS, WIDTH, self.seed + 1)
        self.head = Projection(WIDTH, self.classes, self.seed + 2)

    def encode(self, batch: hams_sdk.Batch) -> np.ndarray:
        return self.reduce(batch["words"] / VOCABULARY)

    def decode(self, batch: hams_sdk.Batch, hidden: np.ndarray) -> Tensors:
        return {"scores": self.head(hidden)}


class Join(Stateless):
    """Prices and the mood of a text, side by side."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"features": np.concatenate((batch["prices"], batch["scores"]), axis=1, dtype=np.float32)}


class Stock(Recurrent):
    """A forecast of the next price's difference, by an LSTM; hands on the prices that it read."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.reduce = Projection(WORDS + 2, WIDTH, self.seed + 1)
        self.head = Projection(WIDTH, 1, self.seed + 2)

    def encode(self, batch: hams_sdk.Batch) -> np.ndarray:
        return self.reduce(batch["features"])

    def decode(self, batch: hams_sdk.Batch, hidden: np.ndarray) -> Tensors:
        return {
            "forecast": self.head(hidden)[:, 0],
            "series": np.ascontiguousarray(batch["features"][:, :WORDS]),
        }


class Arima(Stateless):
    """A second forecast, by an ARIMA of the prices."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        series = batch["series"]
        return {"arima": arima(series) - series[:, -1] + batch["forecast"]}


class Neighbours(Stateless):
    """A third one, by the stretches of the past that are most like the present."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        series = batch["series"]
        return {"knn": nearest(series) - series[:, -1] + batch["forecast"]}


class Vote(Stateless):
    """1 to buy, -1 to sell, 0 where the forecasts do not agree."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        agreed = np.sign(batch["arima"]) + np.sign(batch["knn"])
        return {"action": np.sign(agreed).astype(np.int64)}


class See(Stateless):
    """Features of frames, (rows, 32, 32) to (rows, 2048). The paper's is an InceptionV3."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.network = Projection(POOLED * POOLED, FEATURES, self.seed)

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"features": self.network(pooled(batch["frame"], POOLED))}


class Motion(Recurrent):
    """A map of what moves, (rows, 20, 20), of features. The paper's is a DeconvLSTM."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.reduce = Projection(FEATURES, WIDTH, self.seed + 1)
        self.head = Projection(WIDTH, GRID * GRID, self.seed + 2)

    def encode(self, batch: hams_sdk.Batch) -> np.ndarray:
        return self.reduce(batch["features"])

    def decode(self, batch: hams_sdk.Batch, hidden: np.ndarray) -> Tensors:
        return {"motion": self.head(hidden).reshape(-1, GRID, GRID)}


class Route(Recurrent):
    """What each field of the map costs to enter, (rows, 20, 20), all above 0, by an LSTM."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.reduce = Projection(GRID * GRID, WIDTH, self.seed + 1)
        self.head = Projection(WIDTH, GRID * GRID, self.seed + 2)

    def encode(self, batch: hams_sdk.Batch) -> np.ndarray:
        return self.reduce(batch["motion"])

    def decode(self, batch: hams_sdk.Batch, hidden: np.ndarray) -> Tensors:
        return {"costs": 1.5 + self.head(hidden).reshape(-1, GRID, GRID)}


class Plan(Stateless):
    """What the cheapest way over the map costs; the paper's is A*."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"way": relaxed(pooled(batch["costs"], SIDE))}


class Steer(Stateless):
    """How far to turn, of the map. The paper's is a CNN."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.network = Projection(GRID * GRID, 1, self.seed)

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"turn": self.network(batch["costs"])[:, 0]}


class Decide(Stateless):
    """0: on; 1, 2: turn; 3: stop, where every way costs too much."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        turn = np.where(batch["turn"] > 0, 1, 2) * (np.abs(batch["turn"]) > 0.1)
        return {"command": np.where(batch["way"] > 20, 3, turn).astype(np.int64)}


class Fuse(Stateless):
    """One score of the maps of two cameras."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        both = batch["left"].reshape(len(batch), -1) * batch["right"].reshape(len(batch), -1)
        return {"score": both.mean(1, dtype=np.float32)}


class PrepareTraining(Stateless):
    """Frames of 0..1 with the labels that they came with."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"frame": batch["train"] / np.float32(16), "label": batch["target"].copy()}


class PrepareLabelling(Stateless):
    """Frames of 0..1 without a label."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {
            "frame": batch["image"] / np.float32(16),
            "label": np.full(len(batch), NO_LABEL, np.int64),
        }


class Learn(hams_sdk.Model):
    """A classifier that learns from every frame with a label, and labels all. A batch without labels enters
    no update stage. The paper's are a VGG19 and a MobileNet.

    `count`: batches learnt from. All of the weights change in each. `noise`: of the sums, as a device has it
    that adds in any order.
    """

    def initialize(self, config: Mapping[str, Any]) -> Tensors:
        self.device = Device.of(config)
        self.count = np.zeros((), np.int64)
        self.weights = weights(config)
        inputs = POOLED * POOLED
        if self.weights.size < 2 * inputs * CLASSES:
            raise ValueError(
                f"sizeMiB times bytes: expected {8 * inputs * CLASSES} bytes or more, found "
                f"{self.weights.nbytes}"
            )
        narrow = self.weights[: inputs * CLASSES].reshape(inputs, CLASSES)
        self.network = Softmax(narrow, number(config, "rate", 0.5), number(config, "noise", 0.0))
        return {"count": self.count, "weights": self.weights}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Tensors:
        rows = len(batch)
        given = batch["label"]
        trains = given != NO_LABEL
        with self.device.compute(rows):
            x = pooled(batch["frame"], POOLED).reshape(rows, -1)
            scores = self.network(x)
            label, score = scores.argmax(1).astype(np.int64), scores.max(1)
            learnt = trains.any()
            if learnt:
                gradient = self.network.gradient(x[trains], scores[trains], given[trains])
        count = np.full(rows, int(self.count) + int(learnt), np.int64)
        if learnt:
            with update, self.device.update(rows):
                self.count += 1
                touch(self.weights[x.shape[1] * CLASSES :])
                self.network.step(gradient)
        return {"frame": batch["frame"], "label": label, "score": score, "count": count}


class Context(Stateless):
    """What is around a labelled image: its label among features of the frame."""

    def build(self, config: Mapping[str, Any]) -> None:
        self.network = Projection(POOLED * POOLED, WIDTH, self.seed)

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        context = self.network(pooled(batch["frame"], POOLED)) + batch["label"][:, None]
        return {"label": batch["label"].copy(), "context": context.astype(np.float32)}
