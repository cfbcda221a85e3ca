"""The instances that a graph asks for, as places, and who fills them now."""

from dataclasses import dataclass, field

from hams_operator.graph_status import FailureInfo
from hams_operator.local import limits
from hams_operator.local.observe import Pids
from hams_protocol.ids import InstanceId

restart_pause_max_s = 10.0
"""Longest pause before a process that has ended is started again."""

hung_pause_s = 2.0
"""Pause of a graph after the replacement of an instance that hangs; doubled with each one, and gone after
`hung_calm_s` without any."""

hung_pause_max_s = 60.0
"""Longest such pause."""

hung_aside_max = 3
"""Instances of one graph that hang and have a successor already, at a time: each of those is one or two more
processes that want CPU."""


MANAGER = "manager"


@dataclass(slots=True)
class LocalPod:
    """One instance: its processes (0: none) and when they were started."""

    instance: InstanceId
    of: str
    proxy_pid: int = 0
    model_pid: int = 0
    started_s: float = 0.0
    model_started_s: float = 0.0
    ending: bool = False

    @property
    def pids(self) -> Pids:
        """The ids of the pod's processes."""
        return Pids(self.of, self.proxy_pid, self.model_pid)


@dataclass(slots=True)
class Launch:
    """How a process of the data plane is about to be started."""

    instance: InstanceId
    of: str
    module: str
    arguments: list[str]
    environment: dict[str, str]


@dataclass(slots=True)
class Ends:
    """How often in a row a process of a place ended young, and how it did last."""

    count: int = 0
    last: FailureInfo | None = None

    def add(self, failure: FailureInfo) -> "Ends":
        """The record with one more end."""
        return Ends(self.count + 1, failure)


@dataclass(slots=True)
class Place:
    """One instance wanted: the pod that fills it now, and how often that ended young: `ends` of its model,
    `own_ends` of its proxy, frontend or manager.

    `left`: its instance hangs, and another place has taken over. `missing_s`: since when that one is not
    registered, or asked to end.
    """

    of: str
    number: int
    pod: LocalPod | None = None
    pause_s: float = limits.restart_pause_s
    model_pause_s: float = limits.restart_pause_s
    ends: Ends = field(default_factory=Ends)
    own_ends: Ends = field(default_factory=Ends)
    left: bool = False
    left_s: float = 0.0
    missing_s: float = 0.0


class Replacements:
    """When a graph may replace one more instance that hangs: a hang is no death, and each successor is one
    more process that wants CPU."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._last_s = float("-inf")

    def may_replace(self, aside: int, now: float) -> bool:
        """Whether one more may get a successor; `aside` have one already, and hang still."""
        return aside < hung_aside_max and now >= self._last_s + self._pause_s

    def replaced(self, now: float) -> None:
        """One has got its successor."""
        calm = now - self._last_s >= limits.hung_calm_s
        self._pause_s = hung_pause_s if calm else min(2 * self._pause_s, hung_pause_max_s)
        self._last_s = now


def pause_after(pause_s: float, young: bool, calm_s: float) -> float:
    """The pause before the next start: `calm_s` after one that ran well, else twice the last one, which may
    have been none."""
    return min(max(2 * pause_s, limits.restart_pause_s), restart_pause_max_s) if young else calm_s
