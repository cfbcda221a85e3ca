"""The operators of the six services with networks of the paper's architectures (nets.py), for a GPU.

Outputs, states and what counts are those of models.py. Weights are random, so nothing is said about
accuracy; the learners learn from the frames that they are given. Device times are waited for as well, unless
they are 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import hams_sdk
from paper import nets
from paper.device import FULL_ROWS, Device
from paper.models import (
    EVERYTHING,
    GRID,
    NO_LABEL,
    POOLED,
    VOCABULARY,
    WORDS,
    Arima,
    Decide,
    Fuse,
    Join,
    Neighbours,
    PrepareLabelling,
    PrepareTraining,
    Split,
    Stateless,
    Tensors,
    Vote,
    counted,
    setting,
)
from paper.search import a_star

__all__ = [
    "Arima",
    "Classify",
    "Context",
    "Decide",
    "Fuse",
    "Join",
    "Learn",
    "Listen",
    "Motion",
    "Neighbours",
    "Plan",
    "PrepareLabelling",
    "PrepareTraining",
    "Route",
    "See",
    "Split",
    "Steer",
    "Stock",
    "Vote",
]

LEARNERS = {"vgg19": nets.VGG19, "mobilenet": nets.MobileNetV2}


def where() -> torch.device:
    """The GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def done() -> None:
    """Return when the GPU has done what this stage gave it, in the stage's own stream: a capture beside it is
    no part of it. A label is there before the GPU has learnt from it, so who replies at once would not pay
    for learning, and the next batch would.
    """
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def host(tensor: torch.Tensor) -> np.ndarray:
    """An output."""
    return tensor.detach().cpu().numpy()


class _Network(Stateless):
    """An operator without state that is a network: `network` makes it."""

    def build(self, config: Mapping[str, Any]) -> None:
        torch.manual_seed(self.seed)
        self.at = where()
        self.net = self.network(config).eval().to(self.at)

    def network(self, config: Mapping[str, Any]) -> torch.nn.Module:
        """The network."""
        raise NotImplementedError


class Listen(_Network):
    """Words of speech, by an LSTM that begins anew with every utterance."""

    def network(self, config: Mapping[str, Any]) -> torch.nn.Module:
        return nets.recurrent(config["net"])

    @torch.no_grad()
    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        net = self.net
        assert isinstance(net, nets.LSTMClassifier)
        none = torch.zeros(net.layers, len(batch), net.width, device=self.at)
        scores, _, _ = net(batch.torch("speech", self.at), none, none)
        return {"words": host(scores.topk(WORDS).indices % VOCABULARY).astype(np.int64)}


class See(_Network):
    """Features of frames, by an InceptionV3."""

    def network(self, config: Mapping[str, Any]) -> torch.nn.Module:
        return nets.InceptionV3()

    @torch.no_grad()
    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        net = self.net
        assert isinstance(net, nets.InceptionV3)
        images = nets.enlarged(batch.torch("frame", self.at) / 16, net.side)
        return {"features": host(net.features(images))}


class Steer(_Network):
    """How far to turn, by a CNN."""

    def network(self, config: Mapping[str, Any]) -> torch.nn.Module:
        return nets.CNN()

    @torch.no_grad()
    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"turn": host(self.net(batch.torch("costs", self.at)[:, None]))[:, 0]}


class Plan(Stateless):
    """What the cheapest way over the map costs, by A*."""

    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        return {"way": np.array([a_star(grid) for grid in batch["costs"]], np.float32)}


class Context(_Network):
    """What is around a labelled image: its label among features of the frame."""

    def network(self, config: Mapping[str, Any]) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(POOLED), torch.nn.Flatten(), torch.nn.Linear(POOLED * POOLED, 16)
        )

    @torch.no_grad()
    def outputs(self, batch: hams_sdk.Batch) -> Tensors:
        context = host(self.net(batch.torch("frame", self.at)[:, None])) + batch["label"][:, None]
        return {"label": batch["label"].copy(), "context": context.astype(np.float32)}


class _Recurrent(hams_sdk.Model):
    """An operator whose state are the cells of a recurrent network, and the network itself where the whole
    module is state."""

    def initialize(self, config: Mapping[str, Any]) -> Tensors:
        torch.manual_seed(int(config.get("seed", 1)))
        self.device = Device.of(config, done)
        self.at = where()
        self.net = nets.recurrent(config["net"]).eval().to(self.at)
        rows = int(config.get("rows", FULL_ROWS))
        shape = (
            (self.net.layers, rows, self.net.width)
            if isinstance(self.net, nets.LSTMClassifier)
            else (self.net.layers, rows, self.net.channels, self.net.SIDE, self.net.SIDE)
        )
        self.hidden = torch.zeros(shape, device=self.at)
        self.memory = torch.zeros(shape, device=self.at)
        self.count = np.zeros((), np.int64)
        state: Tensors = {"count": self.count, "hidden": self.hidden, "memory": self.memory}
        return state | {"net": self.net} if setting(config) == EVERYTHING else state

    def encode(self, batch: hams_sdk.Batch) -> torch.Tensor:
        """What the network reads."""
        raise NotImplementedError

    def decode(self, batch: hams_sdk.Batch, out: np.ndarray) -> Tensors:
        """The outputs, of what it gives."""
        raise NotImplementedError

    @torch.no_grad()
    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Tensors:
        rows = len(batch)
        with self.device.compute(rows):
            out, hidden, memory = self.net(
                self.encode(batch),
                self.hidden[:, :rows].contiguous(),
                self.memory[:, :rows].contiguous(),
            )
            outputs = self.decode(batch, host(out)) | {"count": counted(batch, int(self.count))}
        with update, self.device.update(rows):
            self.count += len(batch.units)
            self.hidden[:, :rows] = hidden
            self.memory[:, :rows] = memory
        return outputs


class Classify(_Recurrent):
    """Scores of word numbers."""

    def encode(self, batch: hams_sdk.Batch) -> torch.Tensor:
        words: torch.Tensor = batch.torch("words", self.at)
        return words

    def decode(self, batch: hams_sdk.Batch, out: np.ndarray) -> Tensors:
        return {"scores": out}


class Stock(_Recurrent):
    """A forecast of the next price's difference; hands on the prices that it read."""

    def encode(self, batch: hams_sdk.Batch) -> torch.Tensor:
        features = batch.torch("features", self.at)
        mood = features[:, None, WORDS:].expand(-1, WORDS, -1)
        return torch.cat((features[:, :WORDS, None], mood), 2)

    def decode(self, batch: hams_sdk.Batch, out: np.ndarray) -> Tensors:
        return {"forecast": out[:, 0].copy(), "series": np.ascontiguousarray(batch["features"][:, :WORDS])}


class Motion(_Recurrent):
    """A map of what moves, by a DeconvLSTM."""

    def encode(self, batch: hams_sdk.Batch) -> torch.Tensor:
        features: torch.Tensor = batch.torch("features", self.at)
        return features

    def decode(self, batch: hams_sdk.Batch, out: np.ndarray) -> Tensors:
        return {"motion": out}


class Route(_Recurrent):
    """What each field of the map costs to enter, all above 0."""

    def encode(self, batch: hams_sdk.Batch) -> torch.Tensor:
        motion: torch.Tensor = batch.torch("motion", self.at)
        return motion

    def decode(self, batch: hams_sdk.Batch, out: np.ndarray) -> Tensors:
        return {"costs": 1.5 + np.tanh(out).reshape(-1, GRID, GRID)}


class Learn(hams_sdk.Model):
    """A VGG19 or a MobileNetV2 that learns from every frame with a label, by SGD, and labels all.

    Its batch norms use what they began with: their running averages would be written outside of the update
    stage.
    """

    def initialize(self, config: Mapping[str, Any]) -> Tensors:
        torch.manual_seed(int(config.get("seed", 1)))
        self.device = Device.of(config, done)
        self.at = where()
        self.net = LEARNERS[config["net"]]().eval().to(self.at)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=float(config.get("rate", 0.001)))
        self.count = np.zeros((), np.int64)
        return {"count": self.count, "net": self.net}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Tensors:
        rows = len(batch)
        given = batch["label"]
        trains = given != NO_LABEL
        learnt = bool(trains.any())
        with self.device.compute(rows), torch.set_grad_enabled(learnt):
            scores = self.net(nets.enlarged(batch.torch("frame", self.at), self.net.side))
            best = scores[:, :10].max(1)
            label, score = host(best.indices).astype(np.int64), host(best.values)
            if learnt:
                self.opt.zero_grad(set_to_none=True)
                chosen = torch.from_numpy(trains).to(self.at)
                target = batch.torch("label", self.at)[chosen]
                torch.nn.functional.cross_entropy(scores[chosen], target).backward()
        count = np.full(rows, int(self.count) + int(learnt), np.int64)
        if learnt:
            with update, self.device.update(rows):
                self.count += 1
                self.opt.step()
        return {"frame": batch["frame"], "label": label, "score": score, "count": count}
