"""How late an instance's own loop runs, and whether it may judge others by their silence.

A judge that got no CPU has read nothing, and that says nothing of the others. Cassandra's failure detector
does the same: after a local pause it marks nobody down for as long again (`max_local_pause_in_ms`). Here a
loop that was late by more than `judge_late_share` of `recovery.suspectAfter` judges nobody until it has been
on time for a while. A refused connection, and what an instance says of itself, are no silence: they count at
once, whoever hears them.

Never: decides that somebody is dead, keeps a starved judge from judging for ever (`silence_max_s`).
"""

from hams_protocol import limits
from hams_protocol.due import FOREVER


def pause_s(by_s: float) -> float:
    """How much of a delay silence does not count: all of one long pause, for what was sent meanwhile is
    unread; nothing of short delays, or who is always late would never come to `silence_max_s`."""
    return by_s if by_s > limits.judge_calm_max_s else 0.0


class Lateness:
    """One instance's own delays, as its shell reports them (`Late`). `judges_at`: from then on it may judge,
    if nothing more comes."""

    __slots__ = ("_tolerated_s", "judges_at", "worst_s")

    def __init__(self, suspect_after_s: float) -> None:
        self._tolerated_s = limits.judge_late_share * suspect_after_s
        self.judges_at = -FOREVER
        self.worst_s = 0.0

    def late(self, by_s: float, now: float) -> None:
        """The loop ran so much later than it should have."""
        if by_s <= self._tolerated_s:
            return
        if now >= self.judges_at:
            self.worst_s = 0.0
        self.worst_s = max(self.worst_s, by_s)
        calm_s = min(limits.judge_calm_factor * by_s, limits.judge_calm_max_s)
        self.judges_at = max(self.judges_at, now + calm_s)

    def may_judge(self, now: float) -> bool:
        """Whether silence may be held against somebody now."""
        return now >= self.judges_at
