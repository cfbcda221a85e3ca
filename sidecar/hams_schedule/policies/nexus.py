"""Policy of Nexus (Shen et al., SOSP 2019), to be compared with: one batch size for an SLO, early drop."""

from hams_schedule.pending import Span
from hams_schedule.policies.base import Policy, fit
from hams_schedule.policies.measured import SizeTimes
from hams_schedule.scheduler import U


class Nexus(Policy[U]):
    """Batches of the largest size whose mean + sd fits twice into the SLO; drops heads that cannot be in
    time."""

    def __init__(self, max_rows: int, times: SizeTimes, slo_s: float) -> None:
        super().__init__(max_rows, by_class=False)
        self._times = times
        self._size = min(times.largest_within(slo_s / 2.0), max_rows)

    def _hopeless(self, now: float) -> list[Span[U]]:
        spans: list[Span[U]] = []
        for line in self.pending.all_lines():
            count, waiting = 0, len(line.dues)
            while (
                count < waiting
                and line.dues[count] < now + self._times.means[min(self._size, waiting - count) - 1]
            ):
                count += 1
            if count:
                spans.append(Span(line, 0, count))
        return spans

    def _choose(self, now: float) -> list[Span[U]]:
        line = self.pending.earliest()
        return [] if line is None else [Span(line, 0, fit(line.rows, 0, self._size, self.max_rows))]
