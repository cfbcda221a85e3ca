"""When a silent peer becomes a suspect: a timeout that learns each peer's rhythm.

After the retransmission timer of RFC 6298: mean and mean deviation of the gaps between signs of life, weighted towards the newest; the
timeout is the mean and `suspicion_deviations` deviations, never below what the graph asks for (`suspect_after_s`) and never above
`suspicion_stretch_max` times that. A suspicion that was wrong (the peer is heard again over the same connection) doubles the least timeout for
that peer, within the same bound; each `suspicion_calm_s` without another one halves it again. So a network or a machine where gaps come and go
is not suspected again and again. Pure: time is an argument, any monotonic clock in seconds.

A suspicion is a reason to ask, no verdict: safety never depends on it. An observer that was itself stopped (a paused process, a starved
loop) has not heard anyone, and that says nothing of the others: `check` notices its own gap and gives everybody that time back.

Never: sees a message, acts, forgets by itself.
"""

from hams_protocol.ids import InstanceId
from hams_wire import limits


class Rhythm:
    """One peer's signs of life."""

    __slots__ = ("deviation_s", "doubled_s", "heard_s", "mean_s", "patience", "suspected")

    def __init__(self, now: float) -> None:
        self.heard_s = now
        self.mean_s = 0.0
        self.deviation_s = 0.0
        self.patience = 1.0
        self.doubled_s = now
        self.suspected = False

    def heard(self, at: float) -> None:
        """A sign of life; one that is not newer than the last is none."""
        gap = at - self.heard_s
        if gap <= 0.0:
            return
        self.heard_s = at
        if self.suspected:
            self.patience = min(2 * self.patience, limits.suspicion_stretch_max)
            self.doubled_s = at
        elif self.patience > 1.0 and at - self.doubled_s > limits.suspicion_calm_s:
            self.patience /= 2
            self.doubled_s = at
        self.suspected = False
        weight = limits.suspicion_weight
        if not self.mean_s:
            self.mean_s, self.deviation_s = gap, gap / 2
        else:
            self.deviation_s += 2 * weight * (abs(gap - self.mean_s) - self.deviation_s)
            self.mean_s += weight * (gap - self.mean_s)

    def timeout_s(self, suspect_after_s: float) -> float:
        """Silence after which this peer is suspected."""
        learnt = self.mean_s + limits.suspicion_deviations * self.deviation_s
        return min(max(learnt, self.patience * suspect_after_s), limits.suspicion_stretch_max * suspect_after_s)


class Suspicion:
    """All peers that an instance expects to hear from."""

    def __init__(self, suspect_after_s: float, check_every_s: float) -> None:
        """`suspect_after_s`: silence that is always allowed. `check_every_s`: how often `check` is called."""
        if not 0 < check_every_s < suspect_after_s:
            raise ValueError(f"expected 0 < check_every_s < suspect_after_s, found {check_every_s} and {suspect_after_s}")
        self._suspect_after_s = suspect_after_s
        self._check_every_s = check_every_s
        self._checked_s: float | None = None
        self._peers: dict[InstanceId, Rhythm] = {}

    def expect(self, peer: InstanceId, now: float) -> None:
        """From now on this peer should be heard; nothing happens if it is expected already."""
        if peer not in self._peers:
            self._peers[peer] = Rhythm(now)

    def forget(self, peer: InstanceId) -> None:
        """It is no member any more."""
        self._peers.pop(peer, None)

    def heard(self, peer: InstanceId, at: float) -> None:
        """It was heard at that time; a peer that is not expected does not matter."""
        rhythm = self._peers.get(peer)
        if rhythm is not None:
            rhythm.heard(at)

    def silent_s(self, peer: InstanceId, now: float) -> float:
        """How long it has not been heard; 0 if it is not expected."""
        rhythm = self._peers.get(peer)
        return 0.0 if rhythm is None else now - rhythm.heard_s

    def check(self, now: float) -> list[InstanceId]:
        """Who has become a suspect since the last check. Each is named once per silence."""
        if self._checked_s is not None:
            stall = now - self._checked_s - self._check_every_s
            if stall > self._check_every_s:
                for rhythm in self._peers.values():
                    rhythm.heard_s = min(rhythm.heard_s + stall, now)
        self._checked_s = now
        fresh = []
        for peer, rhythm in self._peers.items():
            if not rhythm.suspected and now - rhythm.heard_s > rhythm.timeout_s(self._suspect_after_s):
                rhythm.suspected = True
                fresh.append(peer)
        return fresh
