"""How long a manager waits for an answer: as long as answers have lately taken, within bounds.

After the retransmission timer of RFC 6298: mean and mean deviation of answer times, an answer that came too
late included. So on a network or a machine where everything takes long, silence is not taken for death again
and again, each failover making it worse. What was learnt fades: half of it is gone after
`patience_half_life_s`. A refused connection needs no patience, and safety none of this.
"""

from collections.abc import Collection

from hams_protocol import limits
from hams_protocol.ids import InstanceId


class Patience:
    """Answer times of all instances together: what is slow is mostly the way, or the machine."""

    def __init__(self) -> None:
        self._asked: dict[InstanceId, float] = {}
        self._mean_s = 0.0
        self._deviation_s = 0.0
        self._learnt_at = 0.0

    def asked(self, instance: InstanceId, now: float) -> None:
        """A question leaves; one that is still open counts from its beginning."""
        self._asked.setdefault(instance, now)

    def answered(self, instance: InstanceId, now: float) -> None:
        """An answer, in time or not."""
        asked_at = self._asked.pop(instance, None)
        if asked_at is None:
            return
        took_s = min(now - asked_at, limits.answer_s_max)
        if not self._mean_s:
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (took_s - self._mean_s) / 8
        self._learnt_at = now

    def keep(self, known: Collection[InstanceId]) -> None:
        """Forget questions to who is gone for good."""
        self._asked = {instance: at for instance, at in self._asked.items() if instance in known}

    def timeout_s(self, least_s: float, now: float) -> float:
        """How long to wait: never less than `least_s`, never more than `patience_stretch_max` times that."""
        faded: float = 0.5 ** (max(now - self._learnt_at, 0.0) / limits.patience_half_life_s)
        learnt = (self._mean_s + 4 * self._deviation_s) * faded
        return max(least_s, min(learnt, limits.patience_stretch_max * least_s))
