"""Classes of requests: (application, feature bucket). Which applications are learnt, and how features are
cut.

A class is a small number: `slot * buckets_max + bucket`. Slot `apps_max` is everything else. Nothing grows
with the number of application ids that clients send.
"""

import math
from array import array
from bisect import bisect_right
from typing import Final

from hams_schedule.limits import (
    app_candidates_max,
    app_id_characters_max,
    apps_max,
    bucket_review_samples,
    bucket_review_samples_first,
    bucket_samples_min,
    buckets_max,
    classes_max,
    features_max,
)

REST: Final = apps_max * buckets_max
"""The class of everything else."""
BETTER: Final = 0.95
"""Another number of buckets is chosen only if it leaves less than this share of the variance."""
CROWDED_OUT: Final = 2
"""A candidate takes the place of a learnt application that is asked for so many times less."""


class FeatureSamples:
    """The newest `features_max` samples: a feature, and the logarithm of a stand-alone time."""

    __slots__ = ("_features", "_log_times")

    def __init__(self) -> None:
        self._features = array("d")
        self._log_times = array("d")

    def add(self, feature: float, log_time: float) -> None:
        """Take one in; the oldest leaves."""
        if len(self._features) == features_max:
            del self._features[0], self._log_times[0]
        self._features.append(feature)
        self._log_times.append(log_time)

    def pairs(self) -> list[tuple[float, float]]:
        """All of them, the oldest first."""
        return list(zip(self._features, self._log_times, strict=True))


class App:
    """A learnt application: where its features are cut."""

    __slots__ = ("asked", "edges", "samples", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.asked = 0
        self.edges: list[float] = []
        self.samples = FeatureSamples()


class Classes:
    """The map from (application, feature) to a class. `vacated`: slots that changed hands, whose laws are not
    those of their application."""

    def __init__(self) -> None:
        self.apps: dict[str, App] = {}
        self.vacated: set[int] = set()
        self._candidates: dict[str, int] = {}
        self._free = list(range(apps_max - 1, -1, -1))
        self._samples = 0
        self._review_at = bucket_review_samples_first

    def classify(self, app: str, feature: float) -> int:
        """The class of a request that arrives. `app` "" is an application too; NaN: no feature."""
        if len(app) > app_id_characters_max:
            return REST
        learnt = self.apps.get(app)
        if learnt is None:
            learnt = self._learn(app)
            if learnt is None:
                return REST
        learnt.asked += 1
        return self._class_of(learnt, feature)

    def class_of(self, app: str, feature: float) -> int:
        """The class of a request, without counting it."""
        learnt = self.apps.get(app)
        return REST if learnt is None else self._class_of(learnt, feature)

    def adopt(self, app: str, edges: list[float]) -> App | None:
        """Learn an application from elsewhere; None if there is no place for it."""
        return self.place(app, self._free[-1], edges) if self._free else None

    def place(self, app: str, slot: int, edges: list[float]) -> App:
        """Learn an application at a free slot."""
        self._free.remove(slot)
        learnt = self.apps[app] = App(slot)
        learnt.edges = list(edges)
        return learnt

    def parent(self, cls: int) -> list[int]:
        """The classes of the same application."""
        first = cls - cls % buckets_max
        return [first] if first == REST else list(range(first, first + buckets_max))

    def sample(self, app: str, feature: float, time: float) -> None:
        """A stand-alone time of a request (seconds), from which buckets are cut."""
        learnt = self.apps.get(app)
        if learnt is not None and math.isfinite(feature):
            learnt.samples.add(feature, math.log(time))
            self._samples += 1

    def review(self) -> list[App]:
        """Cut features anew, at most every `bucket_review_samples`; returns the applications whose buckets
        changed, and whose histograms therefore start afresh."""
        if self._samples < self._review_at:
            return []
        self._samples = 0
        self._review_at = min(2 * self._review_at, bucket_review_samples)
        changed: list[App] = []
        room = classes_max - 1 - sum(len(app.edges) + 1 for app in self.apps.values())
        for app in sorted(self.apps.values(), key=_asked, reverse=True):
            edges = best_edges(app.samples.pairs(), app.edges, room + len(app.edges))
            if len(edges) != len(app.edges):
                room -= len(edges) - len(app.edges)
                app.edges = edges
                changed.append(app)
            app.asked = (app.asked + 1) // 2
        return changed

    def _class_of(self, app: App, feature: float) -> int:
        bucket = bisect_right(app.edges, feature) if math.isfinite(feature) else 0
        return app.slot * buckets_max + bucket

    def _learn(self, app: str) -> App | None:
        """A place for an application that has none: a free one, or that of one that is asked for far less."""
        if self._free:
            learnt = self.apps[app] = App(self._free.pop())
            return learnt
        count = self._candidates.get(app, 0) + 1
        if app not in self._candidates and len(self._candidates) >= app_candidates_max:
            self._candidates = {name: seen - 1 for name, seen in self._candidates.items() if seen > 1}
            return None  # Misra-Gries: whoever is frequent survives the subtraction
        self._candidates[app] = count
        if count % bucket_samples_min:
            return None
        least = min(self.apps, key=self._asked_by_name)
        if count <= CROWDED_OUT * (self.apps[least].asked + 1):
            return None
        del self._candidates[app]
        learnt = self.apps[app] = App(self.apps.pop(least).slot)
        self.vacated.add(learnt.slot)
        return learnt

    def _asked_by_name(self, name: str) -> int:
        return self.apps[name].asked


def best_edges(samples: list[tuple[float, float]], present: list[float], more_max: int) -> list[float]:
    """Quantiles of the feature that leave the least variance of log time, `more_max` + 1 buckets at most.

    `present` stay unless others leave `BETTER` of their variance; each bucket has `bucket_samples_min`
    samples.
    """
    if len(samples) < bucket_samples_min:
        return present
    ordered = sorted(samples)
    best, least = present, BETTER * inner_variance(ordered, present)
    above = bisect_right(
        ordered, (ordered[0][0], math.inf)
    )  # an edge at the least value would cut nothing off
    if above == len(ordered):
        return present
    for count in (1, 2, 4, 8):
        if count > more_max + 1 or count > buckets_max or len(ordered) < count * bucket_samples_min:
            break
        edges = [ordered[max(len(ordered) * cut // count, above)][0] for cut in range(1, count)]
        if count - 1 == len(present) or len(set(edges)) < len(edges):
            continue
        variance = inner_variance(ordered, edges)
        if variance < least:
            best, least = edges, BETTER * variance
    return best


def inner_variance(ordered: list[tuple[float, float]], edges: list[float]) -> float:
    """The mean squared distance of log times from the mean of their bucket."""
    counts = [0.0] * (len(edges) + 1)
    sums = [0.0] * (len(edges) + 1)
    squares = 0.0
    for feature, log_time in ordered:
        bucket = bisect_right(edges, feature)
        counts[bucket] += 1.0
        sums[bucket] += log_time
        squares += log_time * log_time
    explained = sum(total * total / count for total, count in zip(sums, counts, strict=True) if count)
    return max(squares - explained, 0.0) / len(ordered)


def _asked(app: App) -> int:
    return app.asked
