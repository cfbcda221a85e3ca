"""When a silent peer becomes a suspect: phi accrual, and only if this instance itself was on time.

Each peer's gaps between signs of life are kept (the newest `suspicion_gaps`); taking them for normally
distributed, phi is the negative decimal logarithm of the probability that a gap as long as the present one
comes up (Hayashibara et al. 2004). Akka's detector is the model: a least deviation, so that a very regular
peer is not suspected of a moment's delay, and an acceptable pause, which is `suspect_after_s` here; so is its
threshold. Cassandra's gave the rest: gaps above a bound teach nothing, for that peer was stopped, not slow,
and after a delay of its own an instance marks nobody (`Lateness`, in the core). The silence allowed is never
below what the graph asks for (`suspect_after_s`) and never above `suspicion_stretch_max` times that. A
suspicion that was wrong (the peer is heard again over the same connection) doubles the least silence for that
peer, within the same bound; each `suspicion_calm_s` without another one halves it again.

A suspicion is a reason to ask, no verdict: safety never depends on it. Pure: time is an argument, any
monotonic clock in seconds.

Never: sees a message, acts, forgets by itself.
"""

from collections import deque
from collections.abc import Iterable
from math import sqrt

from hams_protocol.ids import InstanceId
from hams_protocol.lateness import Lateness

suspicion_deviations = 5.6
"""A silence this many deviations above the mean gap has phi 8, a probability of 1e-8: the threshold that Akka
and Cassandra begin with."""

suspicion_deviation_share = 0.1
"""Least deviation, as a share of `suspect_after_s`: a very regular peer is not suspected of a moment's
delay."""

suspicion_gaps = 200
"""Gaps of one peer that are kept: some ten seconds of heartbeats, and as many as Akka keeps."""

suspicion_gap_max_s = 2.0
"""A longer gap teaches nothing: its peer was stopped or cut off, not slow."""

suspicion_calm_s = 30.0
"""What a wrong suspicion has added to the patience with a peer is halved after this long without another
one."""

suspicion_stretch_max = 8.0
"""The silence allowed is never above this multiple of `suspect_after_s`: a flapping link must not teach
patience without end."""


class Gaps:
    """The newest gaps between one peer's signs of life, their mean and deviation kept up to date."""

    __slots__ = ("_gaps", "_squares", "_sum")

    def __init__(self) -> None:
        self._gaps: deque[float] = deque()
        self._sum = 0.0
        self._squares = 0.0

    def add(self, gap_s: float) -> None:
        """One more; beyond `suspicion_gaps` the oldest goes."""
        self._gaps.append(gap_s)
        self._sum += gap_s
        self._squares += gap_s * gap_s
        if len(self._gaps) > suspicion_gaps:
            oldest = self._gaps.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest

    @property
    def mean_s(self) -> float:
        """Of the gaps kept; 0 before the first."""
        return self._sum / len(self._gaps) if self._gaps else 0.0

    @property
    def deviation_s(self) -> float:
        """Their standard deviation."""
        if not self._gaps:
            return 0.0
        return sqrt(max(self._squares / len(self._gaps) - self.mean_s**2, 0.0))


class ArrivalWindow:
    """When one peer was heard: the last time, and the newest gaps before that (the name is Cassandra's).
    `patience`: what wrong suspicions have made of the least silence."""

    __slots__ = ("doubled_s", "gaps", "heard_s", "patience", "suspected")

    def __init__(self, now: float) -> None:
        self.heard_s = now
        self.gaps = Gaps()
        self.patience = 1.0
        self.doubled_s = now
        self.suspected = False

    def record(self, at: float) -> None:
        """A sign of life; one that is not newer than the last is none."""
        gap = at - self.heard_s
        if gap <= 0.0:
            return
        self.heard_s = at
        if self.suspected:
            self.patience = min(2 * self.patience, suspicion_stretch_max)
            self.doubled_s = at
        elif self.patience > 1.0 and at - self.doubled_s > suspicion_calm_s:
            self.patience /= 2
            self.doubled_s = at
        self.suspected = False
        if gap <= suspicion_gap_max_s:
            self.gaps.add(gap)

    def timeout_s(self, suspect_after_s: float) -> float:
        """Silence after which this peer is suspected: where phi reaches its threshold, within the bounds."""
        deviation_s = max(self.gaps.deviation_s, suspicion_deviation_share * suspect_after_s)
        unlikely_s = self.gaps.mean_s + suspicion_deviations * deviation_s
        least_s = self.patience * suspect_after_s
        return min(max(unlikely_s, least_s), suspicion_stretch_max * suspect_after_s)


class FailureDetector:
    """All peers that an instance expects to hear from. `lateness`: its own."""

    def __init__(self, suspect_after_s: float, check_every_s: float) -> None:
        """`suspect_after_s`: silence that is always allowed. `check_every_s`: how often `check` is called."""
        if not 0 < check_every_s < suspect_after_s:
            raise ValueError(
                f"expected 0 < check_every_s < suspect_after_s, found {check_every_s} and {suspect_after_s}"
            )
        self._suspect_after_s = suspect_after_s
        self._check_every_s = check_every_s
        self._checked_s: float | None = None
        self._peers: dict[InstanceId, ArrivalWindow] = {}
        self.lateness = Lateness(suspect_after_s)

    def expect(self, peer: InstanceId, now: float) -> None:
        """From now on this peer should be heard; nothing happens if it is expected already."""
        if peer not in self._peers:
            self._peers[peer] = ArrivalWindow(now)

    def expected_among(self, peers: Iterable[InstanceId]) -> list[InstanceId]:
        """Those of these peers that should be heard."""
        return [peer for peer in peers if peer in self._peers]

    def forget(self, peer: InstanceId) -> None:
        """Forget a peer that is no member any more."""
        self._peers.pop(peer, None)

    def rest(self) -> None:
        """No peer is expected, and no check is due, until they are told anew."""
        self._peers.clear()
        self._checked_s = None

    def record(self, peer: InstanceId, at: float) -> None:
        """Note when a peer was heard; a peer that is not expected does not matter."""
        window = self._peers.get(peer)
        if window is not None:
            window.record(at)

    def silent_s(self, peer: InstanceId, now: float) -> float:
        """How long it has not been heard; 0 if it is not expected."""
        window = self._peers.get(peer)
        return 0.0 if window is None else now - window.heard_s

    def suspects(self) -> list[InstanceId]:
        """The peers that are silent, and were reported for it."""
        return [peer for peer, window in self._peers.items() if window.suspected]

    def late_s(self, now: float) -> float:
        """How much later than it should have been the next check is already; 0 before the first."""
        return 0.0 if self._checked_s is None else max(now - self._checked_s - self._check_every_s, 0.0)

    def check(self, now: float) -> list[InstanceId]:
        """The peers that have become suspects since the last check. Each is named once per silence; none is
        while this instance itself runs late."""
        stall = self.late_s(now)
        if stall > self._check_every_s:
            for window in self._peers.values():
                window.heard_s = min(window.heard_s + stall, now)
        self._checked_s = now
        self.lateness.late(stall, now)
        if not self.lateness.may_judge(now):
            return []
        fresh = []
        for peer, window in self._peers.items():
            if not window.suspected and now - window.heard_s > window.timeout_s(self._suspect_after_s):
                window.suspected = True
                fresh.append(peer)
        return fresh
