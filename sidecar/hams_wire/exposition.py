"""Metrics in the text format of Prometheus, for processes that have little to say: values are looked up at a
scrape, nothing is kept.

Names follow https://prometheus.io/docs/practices/naming/: `hams_<process>_<what>_<unit>[_total]`. It never
takes a label whose values a client chooses: series would grow without bound.
"""

import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value. `name` ends in `_total` if it only rises. `about`: one sentence for people."""

    name: str
    about: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TimeSpent:
    """Calls of something, and the seconds that they took: wall clock, as one thread serves an instance."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """A call has ended that took so long."""
        self.calls += 1
        self.seconds += seconds


def exposition(samples: Iterable[Sample]) -> bytes:
    """The body of an answer. Samples of one name stand together, as the format asks."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, family in by_name.items():
        lines += [
            f"# HELP {name} {family[0].about}",
            f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}",
        ]
        lines += [f"{name}{_labels(sample.labels)} {sample.value:.10g}" for sample in family]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Mapping[str, str]) -> str:
    return (
        "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"
        if labels
        else ""
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def of_process() -> tuple[Sample, ...]:
    """This process's own, under the names that every Prometheus client uses."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return (
        Sample("process_cpu_seconds_total", "User and system time used.", used.ru_utime + used.ru_stime),
        Sample("process_resident_memory_bytes", "Resident memory.", resident),
        Sample("process_open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
    )
