"""The architectures of the paper's services in PyTorch, with random weights; nothing is downloaded.

VGG19 (Simonyan and Zisserman, 2015, configuration E), MobileNetV2 (Sandler et al., 2018) and InceptionV3
without its auxiliary head (Szegedy et al., 2016) have exactly the parameters that torchvision's have. The
recurrent ones are as large as the HAMS paper's Figure 9 says.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 1000
FEATURES = 2048


def parameters_of(net: nn.Module) -> int:
    """How many numbers are learnt."""
    return sum(parameter.numel() for parameter in net.parameters())


# -- VGG19


class VGG19(nn.Sequential):
    """Images (rows, 3, 224, 224) to scores (rows, 1000): 143,667,240 parameters."""

    PLAN = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)
    side = 224

    def __init__(self, classes: int = CLASSES) -> None:
        wide = 4096
        super().__init__(
            *self._features(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(512 * 7 * 7, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, classes),
        )

    def _features(self) -> Iterator[nn.Module]:
        before = 3
        for channels in self.PLAN:
            if not channels:
                yield nn.MaxPool2d(2)
                continue
            yield nn.Conv2d(before, channels, 3, padding=1)
            yield nn.ReLU()
            before = channels


# -- MobileNetV2


def normed(before: int, after: int, kernel: int | tuple[int, int], **more: Any) -> nn.Sequential:
    """A convolution without bias, normalised over the batch."""
    activation = more.pop("activation", nn.ReLU)
    layers: list[nn.Module] = [
        nn.Conv2d(before, after, kernel, bias=False, **more),
        nn.BatchNorm2d(after, eps=0.001 if activation is nn.ReLU else 1e-5),
    ]
    return nn.Sequential(*layers, *((activation(),) if activation is not None else ()))


class Inverted(nn.Module):
    """Widened, filtered by depth, narrowed again; with a way around where nothing changes its shape."""

    def __init__(self, before: int, after: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = before * widen
        self.around = stride == 1 and before == after
        layers: list[nn.Module] = []
        if widen != 1:
            layers.append(normed(before, wide, 1, activation=nn.ReLU6))
        layers.append(normed(wide, wide, 3, stride=stride, padding=1, groups=wide, activation=nn.ReLU6))
        layers.append(normed(wide, after, 1, activation=None))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.around else y


class MobileNetV2(nn.Sequential):
    """Images (rows, 3, 224, 224) to scores (rows, 1000): 3,504,872 parameters."""

    PLAN = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    """(widening, channels, blocks, stride of the first)."""

    side = 224

    def __init__(self, classes: int = CLASSES) -> None:
        last = 1280
        super().__init__(
            normed(3, 32, 3, stride=2, padding=1, activation=nn.ReLU6),
            *self._blocks(),
            normed(320, last, 1, activation=nn.ReLU6),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(last, classes),
        )

    def _blocks(self) -> Iterator[nn.Module]:
        before = 32
        for widen, channels, count, stride in self.PLAN:
            for number in range(count):
                yield Inverted(before, channels, stride if number == 0 else 1, widen)
                before = channels


# -- InceptionV3


class Branches(nn.Module):
    """Several ways side by side, joined by channel."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def _pooled(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), normed(before, after, 1))


def _tall(before: int, after: int) -> nn.Sequential:
    return normed(before, after, (7, 1), padding=(3, 0))


def _wide(before: int, after: int) -> nn.Sequential:
    return normed(before, after, (1, 7), padding=(0, 3))


def _a(before: int, pool: int) -> Branches:
    return Branches(
        normed(before, 64, 1),
        nn.Sequential(normed(before, 48, 1), normed(48, 64, 5, padding=2)),
        nn.Sequential(normed(before, 64, 1), normed(64, 96, 3, padding=1), normed(96, 96, 3, padding=1)),
        _pooled(before, pool),
    )


def _b(before: int) -> Branches:
    return Branches(
        normed(before, 384, 3, stride=2),
        nn.Sequential(normed(before, 64, 1), normed(64, 96, 3, padding=1), normed(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def _c(middle: int) -> Branches:
    before = 768
    return Branches(
        normed(before, 192, 1),
        nn.Sequential(normed(before, middle, 1), _wide(middle, middle), _tall(middle, 192)),
        nn.Sequential(
            normed(before, middle, 1),
            _tall(middle, middle),
            _wide(middle, middle),
            _tall(middle, middle),
            _wide(middle, 192),
        ),
        _pooled(before, 192),
    )


def _d() -> Branches:
    before = 768
    return Branches(
        nn.Sequential(normed(before, 192, 1), normed(192, 320, 3, stride=2)),
        nn.Sequential(
            normed(before, 192, 1), _wide(192, 192), _tall(192, 192), normed(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, 2),
    )


def _e(before: int) -> Branches:
    def split() -> Branches:
        return Branches(normed(384, 384, (1, 3), padding=(0, 1)), normed(384, 384, (3, 1), padding=(1, 0)))

    return Branches(
        normed(before, 320, 1),
        nn.Sequential(normed(before, 384, 1), split()),
        nn.Sequential(normed(before, 448, 1), normed(448, 384, 3, padding=1), split()),
        _pooled(before, 192),
    )


class InceptionV3(nn.Module):
    """Images (rows, 3, 299, 299) to features (rows, 2048) by `features`, and to scores (rows, 1000):
    23,834,568 parameters."""

    side = 299

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Sequential(
            normed(3, 32, 3, stride=2),
            normed(32, 32, 3),
            normed(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            normed(64, 80, 1),
            normed(80, 192, 3),
            nn.MaxPool2d(3, 2),
            _a(192, 32),
            _a(256, 64),
            _a(288, 64),
            _b(288),
            _c(128),
            _c(160),
            _c(160),
            _c(192),
            _d(),
            _e(1280),
            _e(2048),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(FEATURES, classes)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer sees."""
        y: Tensor = self.body(x)
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x))
        return y


# -- recurrent networks


class LSTMClassifier(nn.Module):
    """Inputs (rows, time) of word numbers, or (rows, time, values), and the state of `layers` layers to
    scores (rows, classes) and the state after it. `vocabulary` 0: values come in, not words."""

    def __init__(self, vocabulary: int, inputs: int, width: int, classes: int, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, inputs) if vocabulary else None
        self.lstm = nn.LSTM(inputs, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)
        self.width, self.layers = width, layers

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`hidden`, `memory`: (layers, rows, width)."""
        steps = x if self.words is None else self.words(x)
        out, (hidden, memory) = self.lstm(steps, (hidden, memory))
        return self.head(out[:, -1]), hidden, memory


class ConvLSTMCell(nn.Module):
    """One step of a ConvLSTM (Shi et al., 2015) over maps (rows, channels, side, side)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 * channels, 4 * channels, 3, padding=1)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        keep, take, give, new = self.gates(torch.cat((x, hidden), 1)).chunk(4, 1)
        memory = torch.sigmoid(keep) * memory + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(give) * torch.tanh(memory), memory


class DeconvLSTM(nn.Module):
    """Features (rows, 2048) and the state of its layers to a map (rows, 20, 20) and the state after it:
    ConvLSTM layers over maps of 5 x 5, then transposed convolutions."""

    SIDE = 5

    def __init__(self, channels: int, layers: int = 5) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, self.SIDE * self.SIDE * 16)
        self.spread = nn.Conv2d(16, channels, 1)
        self.cells = nn.ModuleList(ConvLSTMCell(channels) for _ in range(layers))
        self.widen = nn.Sequential(
            nn.ConvTranspose2d(channels, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 1, 4, stride=2, padding=1),
        )
        self.channels, self.layers = channels, layers

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`hidden`, `memory`: (layers, rows, channels, 5, 5)."""
        maps = self.spread(self.enter(x).view(len(x), 16, self.SIDE, self.SIDE))
        after = []
        for cell, before, kept in zip(self.cells, hidden, memory, strict=True):
            maps, kept = cell(maps, before, kept)
            after.append((maps, kept))
        grid: Tensor = self.widen(maps)
        return grid[:, 0], torch.stack([pair[0] for pair in after]), torch.stack([pair[1] for pair in after])


class CNN(nn.Sequential):
    """Maps (rows, 1, 20, 20) to one number (rows, 1)."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 25, 4837),
            nn.ReLU(),
            nn.Linear(4837, 1),
        )


def enlarged(frames: Tensor, side: int) -> Tensor:
    """Grey frames (rows, height, width) as images of three channels, `side` large."""
    images = functional.interpolate(frames[:, None], size=(side, side), mode="bilinear", align_corners=False)
    return images.expand(-1, 3, -1, -1)


def recurrent(name: str) -> LSTMClassifier | DeconvLSTM:
    """The recurrent network of an operator, `service.operator`. Raises KeyError."""
    return _RECURRENT[name]()


_RECURRENT: dict[str, Callable[[], LSTMClassifier | DeconvLSTM]] = {
    "sa-o1": lambda: LSTMClassifier(0, 16, 4096, 2000),
    "sa-o2": lambda: LSTMClassifier(20_000, 802, 1024, 2),
    "sa-o3": lambda: LSTMClassifier(20_000, 800, 1024, 8),
    "sp-o2": lambda: LSTMClassifier(2000, 432, 760, 2),
    "sp-o4": lambda: LSTMClassifier(0, 3, 576, 1),
    "ap-o2": lambda: DeconvLSTM(512),
    "ap-o3": lambda: LSTMClassifier(0, 20, 517, 400),
    "fd-o2": lambda: DeconvLSTM(376),
    "fd-o4": lambda: DeconvLSTM(386),
}
"""Vocabulary, inputs, width and classes; or channels."""

SIZES_MIB = {
    "sa-o1": 793.0,
    "sa-o2": 121.7,
    "sa-o3": 121.7,
    "sp-o2": 34.8,
    "sp-o4": 15.3,
    "ap-o2": 375.9,
    "ap-o3": 13.2,
    "fd-o2": 199.7,
    "fd-o4": 209.3,
}
"""What the HAMS paper's Figure 9 says of them."""
