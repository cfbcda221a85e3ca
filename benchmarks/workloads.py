"""Workloads of `hams bench schedule`: 25 laws of execution times, arrivals that are smooth or come in
bursts.

The laws have the shapes of those in the Orloj paper (Yu et al., 2022), which gives neither their means nor
their P99s; the values here are ours and stay fixed. Times in ms here, in seconds in a trace.
"""

import fnmatch
import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.arrivals import Arrivals, Rate

Floats = np.ndarray[Any, np.dtype[np.float64]]
ROWS_MAX = 32
SLO_FACTORS = (1.5, 2.0, 3.0, 4.0, 5.0)
"""SLOs, in P99s of the stand-alone time."""
PERIOD_P99S = 20.0
"""How long the rate of arrivals stays the same, in P99s."""
CAPACITY_ROWS = 8
"""Load 1 is the rate that batches of this many rows of the mixture keep up with."""
JITTER = 0.01
"""Standard deviation of the logarithm of a batch's time around its law."""
FEATURE_NOISE = 0.05
"""The same for a feature around the time that it tells."""


@dataclass(frozen=True)
class Mode:
    """One component of a law: an application. `mean` and `sd` in ms; normal, or lognormal with these
    moments. `fixed_ms`: what of it a batch costs in itself."""

    weight: float
    mean: float
    sd: float
    lognormal: bool = False
    fixed_ms: float = 0.0

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """`count` stand-alone times in ms, less what a batch costs itself; a twentieth is left at least."""
        times = self._whole(random, count)
        return np.maximum(times - self.fixed_ms, 0.05 * times) if self.fixed_ms else times

    def _whole(self, random: np.random.Generator, count: int) -> Floats:
        if self.lognormal:
            variance = np.log1p((self.sd / self.mean) ** 2)
            return random.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)
        return np.maximum(random.normal(self.mean, self.sd, count), 0.1 * self.mean)


@dataclass(frozen=True)
class Case:
    """A law: its modes, how batches grow (`growth` per further row), and what a batch costs in itself
    (ms)."""

    name: str
    modes: tuple[Mode, ...]
    growth: float
    fixed_ms: float = 1.0


def _two(name: str, short: tuple[float, float], long: tuple[float, float], share: float = 0.5) -> Case:
    return Case(name, (Mode(share, 20, short[1]), Mode(1 - share, 100, long[1])), 0.25)


def _modal(count: int) -> Case:
    names = ("two", "three", "four", "five", "six", "seven", "eight")
    modes = tuple(Mode(1 / count, 20 + 80 * mode / (count - 1), 5) for mode in range(count))
    return Case(f"{names[count - 2]}-modal", modes, 0.25)


def _language(name: str, growth: float, *modes: tuple[float, float, float]) -> Case:
    return Case(name, tuple(Mode(weight, mean, sd, True) for mean, sd, weight in modes), growth)


def _exits(name: str, growth: float, *modes: tuple[float, float]) -> Case:
    return Case(name, tuple(Mode(weight, mean, 0.1) for mean, weight in modes), growth)


CASES = (
    _two("std-0.5", (20, 2.5), (100, 2.5)),
    _two("std-1", (20, 5), (100, 5)),
    _two("std-2", (20, 10), (100, 10)),
    _two("std-2-0.5", (20, 10), (100, 2.5), 0.25),
    _two("std-0.5-2", (20, 2.5), (100, 10), 0.75),
    Case("one-modal", (Mode(1, 60, 10),), 0.25),
    *(_modal(count) for count in range(2, 9)),
    Case("inception-imagenet", (Mode(1, 16, 0.1),), 0.3, 0.3),
    Case("resnet-imagenet", (Mode(1, 8, 0.05),), 0.3, 0.3),
    _language("blenderbot-convAI", 0.2, (150, 45, 0.7), (300, 60, 0.3)),
    _language("blenderbot-cornell", 0.2, (120, 40, 0.7), (260, 60, 0.3)),
    _language("gpt-convAI", 0.25, (40, 4, 0.8), (60, 5, 0.2)),
    _language("gpt-cornell", 0.25, (35, 4, 0.8), (55, 5, 0.2)),
    _language("bart-cnn", 0.2, (300, 60, 0.5), (900, 120, 0.5)),
    _language("t5-cnn", 0.2, (350, 30, 0.6), (450, 30, 0.4)),
    _language("fsmt-wmt", 0.2, (100, 35, 0.6), (280, 60, 0.4)),
    _language("mbart-wmt", 0.2, (150, 50, 0.6), (380, 80, 0.4)),
    _exits("rdinet-cifar", 0.3, (8, 0.4), (10, 0.4), (12, 0.2)),
    _exits("skipnet-imagenet", 0.3, (3, 0.4), (6, 0.3), (10, 0.2), (14, 0.1)),
)


FIXED_SHARE = 0.3
"""Of a law by rows times length: the share of the mean time that a batch costs in itself."""


def by_length(case: Case) -> Case:
    """The case with batches that take c0 + c1 k x (Orloj, equation 3): k rows, padded to the longest, x."""
    fixed_ms = FIXED_SHARE * sum(mode.weight * mode.mean for mode in case.modes)
    modes = tuple(replace(mode, fixed_ms=fixed_ms) for mode in case.modes)
    return replace(case, modes=modes, growth=1.0, fixed_ms=fixed_ms)


LAWS = {"longest": lambda case: case, "length": by_length}
"""What a batch takes: by its longest member and a share for each further row, or by rows times length."""


def cases_named(globs: str) -> list[Case]:
    """The cases whose names fit one of the patterns, which commas separate; all for ""."""
    patterns = (globs or "*").split(",")
    return [case for case in CASES if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]


PUBLISHED = {
    "std-0.5": ".01/.01/.44/.57 .01/.02/.53/.76 .04/.05/.62/.96 .11/.13/.61/.99 .20/.25/.57/1.0",
    "std-1": ".02/.02/.46/.60 .03/.03/.53/.76 .10/.10/.55/.97 .21/.19/.53/.99 .33/.34/.56/1.0",
    "std-2": ".04/.03/.43/.59 .07/.05/.51/.73 .19/.13/.55/.97 .34/.30/.50/1.0 .49/.54/.59/1.0",
    "std-2-0.5": ".16/.18/.52/.75 .28/.32/.59/.83 .61/.68/.60/.98 .89/.93/.59/.96 .97/1.0/.63/1.0",
    "std-0.5-2": ".01/.01/.38/.40 .01/.02/.50/.61 .04/.04/.57/.90 .08/.09/.66/.97 .15/.17/.52/.99",
    "one-modal": ".03/.04/.48/.46 .10/.13/.55/.74 .45/.54/.61/.98 .73/.80/.58/1.0 .82/.91/.60/1.0",
    "two-modal": ".01/.03/.45/.60 .04/.03/.58/.75 .13/.14/.51/.97 .27/.30/.56/1.0 .37/.44/.55/1.0",
    "three-modal": ".03/.04/.45/.59 .05/.05/.55/.68 .10/.09/.61/.97 .18/.23/.60/.99 .35/.42/.61/.99",
    "four-modal": ".03/.05/.46/.59 .05/.07/.56/.73 .08/.12/.59/.94 .10/.16/.60/.98 .14/.19/.60/1.0",
    "five-modal": ".02/.03/.47/.60 .02/.03/.55/.73 .03/.07/.59/.94 .04/.08/.57/.97 .07/.08/.56/.99",
    "six-modal": ".04/.04/.46/.58 .03/.05/.53/.71 .06/.08/.53/.92 .07/.09/.51/.97 .08/.11/.54/.99",
    "seven-modal": ".03/.05/.43/.59 .04/.05/.51/.73 .08/.09/.54/.93 .10/.12/.52/.98 .12/.15/.54/.99",
    "eight-modal": ".03/.04/.33/.60 .05/.06/.49/.74 .08/.09/.43/.93 .09/.13/.52/.97 .11/.14/.50/.99",
    "inception-imagenet": ".01/.01/.16/.41 .31/.30/.58/.48 .86/.88/.84/.84 .96/.97/.82/.99 .98/.98/.83/.99",
    "resnet-imagenet": ".01/.00/.30/.42 .15/.15/.59/.48 .62/.64/.77/.85 .89/.91/.88/.98 .95/.96/.87/.99",
    "blenderbot-convAI": ".05/.06/.43/.45 .18/.21/.61/.65 .56/.63/.64/.74 .71/.81/.65/.81 .75/.87/.65/.81",
    "blenderbot-cornell": ".06/.06/.43/.44 .20/.20/.60/.68 .54/.57/.62/.75 .71/.74/.64/.81 .74/.77/.64/.82",
    "gpt-convAI": ".39/.38/.39/.36 .79/.83/.57/.64 .91/.99/.61/.86 .92/1.0/.63/.97 .92/1.0/.61/.98",
    "gpt-cornell": ".45/.44/.46/.44 .84/.86/.65/.68 .94/1.0/.73/.97 .94/1.0/.73/.99 .95/1.0/.74/1.0",
    "bart-cnn": ".12/.11/.44/.46 .36/.36/.46/.71 .73/.73/.46/.97 .78/.79/.44/.99 .80/.81/.44/1.0",
    "t5-cnn": ".48/.46/.47/.49 .86/.84/.50/.74 .99/1.0/.50/1.0 .99/1.0/.52/1.0 .99/1.0/.51/1.0",
    "fsmt-wmt": ".04/.04/.45/.45 .21/.23/.50/.59 .63/.65/.51/.88 .73/.76/.53/.93 .75/.79/.54/.95",
    "mbart-wmt": ".07/.10/.38/.47 .28/.30/.36/.59 .71/.73/.35/.91 .76/.78/.36/.96 .78/.80/.35/.98",
    "rdinet-cifar": ".61/.61/.48/.49 .98/.99/.47/.84 .99/1.0/.48/1.0 .99/1.0/.48/1.0 .99/1.0/.48/1.0",
    "skipnet-imagenet": ".00/.00/.05/.24 .00/.03/.14/.62 .00/.12/.21/.92 .00/.31/.12/.95 .00/.48/.16/.89",
}
"""Finish rates in the Orloj paper, of Clipper, Nexus, Clockwork and Orloj at each of `SLO_FACTORS`. Its
loads and times are not published, so these stand beside ours for orientation only."""
PUBLISHED_POLICIES = ("clipper", "nexus", "clockwork", "orloj")


def published(case: str, factor: float) -> dict[str, float]:
    """The paper's finish rates of one cell; empty if it has none."""
    if case not in PUBLISHED or factor not in SLO_FACTORS:
        return {}
    cell = PUBLISHED[case].split()[SLO_FACTORS.index(factor)]
    return dict(zip(PUBLISHED_POLICIES, map(float, cell.split("/")), strict=True))


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival. Times in seconds; `alone` is a request's time without a batch's fixed
    cost; `jitter` are factors of batches, in order of their start."""

    arrivals: list[float]
    apps: list[int]
    features: list[float]
    alone: list[float]
    jitter: list[float]

    def digest(self) -> str:
        """Names the trace: two runs that print the same had the same requests."""
        data = np.array([self.arrivals, [float(app) for app in self.apps], self.features, self.alone])
        return hashlib.sha256(data.tobytes()).hexdigest()[:12]


@dataclass(frozen=True)
class Worker:
    """The emulated model: L = fixed + max(alone) * (1 - g + g k) * jitter. Seconds."""

    fixed_s: float
    growth: float

    def run(self, alone: list[float], jitter: float) -> float:
        """The time of a batch of these members."""
        return self.fixed_s + max(alone) * (1.0 - self.growth + self.growth * len(alone)) * jitter


def worker_of(case: Case) -> Worker:
    """The worker of a case."""
    return Worker(case.fixed_ms / 1000.0, case.growth)


def draw(case: Case, random: np.random.Generator, count: int) -> tuple[Floats, "np.ndarray[Any, Any]"]:
    """Stand-alone times in seconds, and which mode each is of."""
    apps = random.choice(len(case.modes), count, p=[mode.weight for mode in case.modes])
    times = np.empty(count)
    for number, mode in enumerate(case.modes):
        chosen = apps == number
        times[chosen] = mode.draw(random, int(chosen.sum())) / 1000.0
    return times, apps


def p99_s(case: Case) -> float:
    """P99 of the stand-alone time, in seconds; the same in every run."""
    times, _ = draw(case, np.random.default_rng(99), 200_000)
    return float(np.quantile(times, 0.99)) + case.fixed_ms / 1000.0


def capacity_per_s(case: Case) -> float:
    """Requests per second at load 1: batches of `CAPACITY_ROWS` of the mixture, one after the other."""
    times, _ = draw(case, np.random.default_rng(98), 8 * 20_000)
    longest = times.reshape(-1, CAPACITY_ROWS).max(axis=1).mean()
    scale = 1.0 - case.growth + case.growth * CAPACITY_ROWS
    return CAPACITY_ROWS / (case.fixed_ms / 1000.0 + float(longest) * scale)


def trace_of(case: Case, rho: float, arrivals: Arrivals, count: int, seed: int) -> Trace:
    """`count` requests at load `rho`: Poisson, at a rate that is constant over segments."""
    random = np.random.default_rng([seed, int(rho * 1000), arrivals.number])
    rate = Rate(arrivals, rho * capacity_per_s(case), PERIOD_P99S * p99_s(case), count, random)
    times_of_arrival: list[float] = []
    start = 0.0
    while len(times_of_arrival) < count:
        number = random.poisson(rate.rate() * rate.length_s)
        times_of_arrival += sorted(start + random.random(number) * rate.length_s)
        start += rate.length_s
        rate.move()
    times, apps = draw(case, random, count)
    features = times * np.exp(random.normal(0.0, FEATURE_NOISE, count))
    jitter = np.exp(random.normal(0.0, JITTER, count))
    return Trace(
        [float(at) for at in times_of_arrival[:count]],
        [int(app) for app in apps],
        features.tolist(),
        times.tolist(),
        jitter.tolist(),
    )


def size_times(case: Case, random: np.random.Generator, samples: int) -> list[list[float]]:
    """Times of batches of the mixture of 1 .. `ROWS_MAX` rows, measured beforehand; `samples` of each."""
    worker = worker_of(case)
    result: list[list[float]] = []
    for rows in range(1, ROWS_MAX + 1):
        times, _ = draw(case, random, rows * samples)
        longest = times.reshape(samples, rows).max(axis=1) * (1.0 - worker.growth + worker.growth * rows)
        jitter = np.exp(random.normal(0.0, JITTER, samples))
        result.append((worker.fixed_s + longest * jitter).tolist())
    return result
