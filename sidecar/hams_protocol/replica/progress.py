"""What a leader knows of one follower (protocol.md, section 2).

Positions are versions of a state, or indices of a log; -1 for none. A follower has *received* what it holds
in order, and *applied* what may be called durable once all have. For a log the two are one: an entry that is
held needs nothing else.
"""

from hams_protocol import limits
from hams_protocol.due import FOREVER
from hams_protocol.ids import InstanceId


class Progress:
    """One backup, joiner or keeper, as its leader sees it.

    `ack`: its word is needed. `in_sync`: the topology names it in sync, or a keeper. `copying` until it was
    sent a copy to follow from; `asked`: it waits for one that cannot be made yet. `copied`: the position of
    the copy that it was sent last, of `copied_nbytes`, which may be on its way until `copied_by`.

    `heard`: it has said something in this epoch. A joiner that has not may be starting still: it cannot be
    told from a dead one by a refused connection, only by its lease, or by its taking too long. `reached`: a
    connection to it has stood, so that it breaks if it goes; it may take its time then. `named_in`:
    the generation that named it; what it said before is of no use. `leaves_at`: it has asked to be let go,
    and this is how long it is kept for. `keeper`: an instance of another operator, which the leader has
    called by itself. `differences`: it takes records with what changed.

    `progress_at`: since when it has received nothing of what it owes. `silent_since`: the same, but short
    delays of the leader itself do not move it. `watermark`: the one it was told last. `gap_at`: where it said
    last that it lacks what follows.
    """

    __slots__ = (
        "ack",
        "applied",
        "asked",
        "asked_at",
        "copied",
        "copied_by",
        "copied_nbytes",
        "copying",
        "differences",
        "down_since",
        "gap_at",
        "heard",
        "in_sync",
        "instance",
        "keeper",
        "leaves_at",
        "named_at",
        "named_in",
        "progress_at",
        "reached",
        "received",
        "refused",
        "sent",
        "sent_at",
        "silent_since",
        "watermark",
    )

    def __init__(
        self, instance: InstanceId, in_sync: bool, generation: int, now: float, keeper: bool = False
    ) -> None:
        self.instance = instance
        self.keeper = keeper
        self.in_sync = self.ack = self.heard = in_sync
        self.copying = not in_sync
        self.asked = False
        self.asked_at = self.copied_by = -FOREVER
        self.copied = self.sent = self.received = self.applied = self.watermark = self.gap_at = -1
        self.copied_nbytes = 0
        self.differences = False
        self.progress_at = self.sent_at = self.silent_since = self.named_at = now
        self.named_in = generation
        self.leaves_at = self.down_since = FOREVER
        self.refused = self.reached = False

    @property
    def owes(self) -> bool:
        """Whether something is on its way of which it has not said that it received it."""
        return self.received < self.sent

    @property
    def is_out_of_reach(self) -> bool:
        """Whether it has never been reached, and has had nothing of its leader's, though that may hear it."""
        return not (self.reached or self.ack)

    def is_sent(self, position: int, now: float) -> None:
        """Everything up to there is on its way."""
        if self.received >= self.sent and position > self.sent:
            self.progress_at = self.sent_at = self.silent_since = now
        self.sent = position

    def is_sent_copy(self, position: int, nbytes: int, now: float) -> None:
        """A copy that ends there is on its way."""
        self.copying = self.asked = False
        self.sent = self.copied = position
        self.copied_nbytes = nbytes
        self.copied_by = now + limits.resend_after_s + nbytes / limits.stream_floor_bytes_s
        self.progress_at = self.sent_at = self.silent_since = now

    def begin_anew(self, generation: int) -> None:
        """Named anew in this generation: it may have let go of everything, and has to say what it holds
        before its word counts again. What it held is kept for it meanwhile."""
        self.named_in = generation
        if self.ack:
            self.ack, self.copying = False, True
            self.sent = self.received
            self.received = self.applied = -1

    def gone_at(
        self, is_registered: bool, suspect_after_s: float, lag_max_s: float, judges_at: float
    ) -> float:
        """When it counts as dead, or as one that does not receive what it is sent, if nothing more is heard
        of it: then its leader drops it from its set.

        Before `judges_at` silence is no reason: the leader's own loop is late. One of `silence_max_s` is,
        however late that runs.
        """
        at = -FOREVER if self.refused else self.down_since + suspect_after_s
        if self.received < self.sent:
            if not is_registered:
                at = min(at, self.progress_at + suspect_after_s)
            if self.ack:
                at = min(at, self.progress_at + max(limits.backup_lag_max_s, lag_max_s))
        if not self.heard and is_registered:
            at = max(at, self.named_at + limits.backup_lag_max_s)
        if self.is_out_of_reach:  # it breaks no connection
            at = min(at, self.named_at + limits.silence_max_s)
        if not self.refused:
            at = max(at, judges_at)
        owes = self.down_since != FOREVER or (self.ack and self.received < self.sent)
        silence_ends = self.silent_since + max(limits.silence_max_s, lag_max_s)
        return min(at, silence_ends) if owes else at

    @property
    def ask_at(self) -> float:
        """When it should have said that it has applied what it received."""
        if self.copying or self.applied >= self.received or self.down_since != FOREVER:
            return FOREVER
        return max(self.progress_at, self.asked_at) + limits.resend_after_s
