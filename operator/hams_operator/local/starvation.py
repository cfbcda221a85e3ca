"""Whether processes wait for CPU, by what the kernel counts: the second number of /proc/PID/schedstat is the
time for which a process was ready to run and did not, be it for want of a core or because its control group
had spent its quota.

A stopped or stuck process waits for no CPU, so this tells a hang from a busy machine. Where the kernel does
not count, nothing is ever said to wait.
"""

from collections.abc import Iterable


class CpuWaits:
    """The waits of some processes, from one look to the next."""

    def __init__(self) -> None:
        self._waited_s: dict[int, float] = {}
        self._checked_s: float | None = None

    def share(self, pids: Iterable[int], now: float) -> float:
        """The part of the time since the last look, 0 to 1, for which the one of these processes that waited
        longest waited for CPU."""
        waits = {pid: waited for pid in pids if (waited := waited_s(pid)) is not None}
        longest = max(
            (waited - self._waited_s.get(pid, waited) for pid, waited in waits.items()), default=0.0
        )
        span_s = 0.0 if self._checked_s is None else now - self._checked_s
        self._waited_s, self._checked_s = waits, now
        return min(longest / span_s, 1.0) if span_s > 0.0 else 0.0


def waited_s(pid: int) -> float | None:
    """Seconds for which the main thread of a process has waited for CPU in its life; None if it is gone, or
    the kernel does not count."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
