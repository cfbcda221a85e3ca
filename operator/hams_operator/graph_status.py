"""What `hams status` says of a graph, wherever it runs: conditions, instances, what ended and what was lost.

The local run and the cluster both make these values; commands and pages read them.
"""

import signal
from collections.abc import Iterable

import msgspec

from hams_protocol.wholeness import NOT_ASKED_FOR, READY, REDUNDANT


class Condition(msgspec.Struct, frozen=True):
    """As a metav1.Condition: `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str


def awaited(conditions: Iterable[Condition]) -> Condition | None:
    """The condition for which a wait goes on: Ready before Redundant. None: both hold, or all that is missing
    is what the graph asks for no copies of."""
    return next(
        (
            item
            for item in conditions
            if item.type in (READY, REDUNDANT) and item.status != "True" and item.reason != NOT_ASKED_FOR
        ),
        None,
    )


class OnTime(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The share (0 to 1) of what ended in the last `window_s` that was in time: requests of a frontend, units
    of an operator with a scheduling policy. `of`: how many there were, `shed`: how many of them were answered
    instead of being run; 0 where only the share is known."""

    share: float
    window_s: float
    of: int = 0
    shed: int = 0


class PolicyReplaced(msgspec.Struct, frozen=True, rename="camel"):
    """A scheduling policy that failed or broke a law: first in, first out serves in its place there."""

    operator: str
    instance: str
    policy: str
    why: str

    def sentence(self) -> str:
        """For people."""
        where = f" on {self.instance}" if self.instance else ""
        return f"Fifo serves {self.operator} in place of {self.policy}, which failed{where}: {self.why}"


class InstanceStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One living instance (api.md, section 4). `operator` is None for frontends and managers; `on_time` for
    who counts no deadlines, or has not had any."""

    id: str
    operator: str | None
    role: str
    leader: bool
    epoch: int
    version: int | None
    proxy_pid: int | None
    model_pid: int | None
    on_time: OnTime | None = None


class FailureInfo(msgspec.Struct, frozen=True, rename="camel"):
    """How a process in a crash loop ended last: exit code (negative: the signal) and the last lines of its
    log.

    `process` is model, proxy, frontend or manager; `operator` is empty for the last two.
    """

    operator: str
    instance: str
    exit_code: int
    log: tuple[str, ...]
    process: str = "model"

    @property
    def process_named(self) -> str:
        """The process in words: "the model of mean", "a frontend"."""
        return f"the {self.process} of {self.operator}" if self.operator else f"a {self.process}"

    @property
    def reason(self) -> str:
        """The condition's reason."""
        return "ModelCrashLoop" if self.process == "model" else "CrashLoop"

    def sentence(self) -> str:
        """What keeps happening, with the last line that the process wrote."""
        return f"{self.process_named} keeps ending, last with {said(self.exit_code)}: {self.last_line}"

    @property
    def last_line(self) -> str:
        """The last line that the process wrote and that holds something."""
        return next((line.strip() for line in reversed(self.log) if line.strip()), "it wrote nothing")


class StateLoss(msgspec.Struct, frozen=True):
    """A state that was lost and began again in `epoch` from `version`. The operators `downstream` may hold
    more of it; that is not undone."""

    operator: str
    epoch: int
    version: int
    downstream: tuple[str, ...]


class View(msgspec.Struct, frozen=True):
    """One look at a run."""

    generation: int
    conditions: tuple[Condition, ...]
    instances: tuple[InstanceStatus, ...]
    failures: tuple[FailureInfo, ...] = ()
    losses: tuple[StateLoss, ...] = ()
    replaced: tuple[PolicyReplaced, ...] = ()

    def is_true(self, condition: str) -> bool:
        """Whether a condition holds."""
        return any(item.type == condition and item.status == "True" for item in self.conditions)


class GraphStatus(
    msgspec.Struct,
    frozen=True,
    rename={"failures": "lastFailureInfo", "replaced": "policiesReplaced"},
    omit_defaults=True,
):
    """The answer of `hams status` (api.md, section 4); `lastFailureInfo` is there only while a process is in
    a crash loop, `losses` only if a state was lost and began again, `policiesReplaced` only if a scheduling
    policy was, `warnings` only if the machine lacks something, such as room on a disk, or if the graph's mode
    protects less than NonStop or is a baseline."""

    graph: str
    url: str
    grpc: str
    generation: int
    conditions: tuple[Condition, ...]
    instances: tuple[InstanceStatus, ...]
    failures: tuple[FailureInfo, ...] = ()
    losses: tuple[StateLoss, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: str = ""
    replaced: tuple[PolicyReplaced, ...] = ()


def said(status: int) -> str:
    """How a process ended, for people; negative: by that signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # most of the real-time ones have no name
        return f"signal {-status}"
