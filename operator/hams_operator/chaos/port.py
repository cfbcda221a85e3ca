"""What a scenario may do to a graph that runs under load, and ask of it. Two implement it: `live.LiveRun` and
`e2e.scenarios.run.GraphRun`.

Calls block. A wait that is over without what was waited for raises an error of the implementer's that says
what is missing: the scenario has failed then, whatever the load says.
"""

from collections.abc import Mapping
from typing import Any, Protocol

Json = dict[str, Any]

FRONTEND, MANAGER = "frontend", "manager"
PRIMARY, BACKUP, ACTIVE = "primary", "backup", "active"


class Run(Protocol):
    """One graph. Operators by name; `frontend` and `manager` are their own operator and role."""

    @property
    def operators(self) -> Mapping[str, bool]:
        """Whether each operator keeps state."""
        ...

    def pod_of(self, operator: str, role: str) -> str:
        """A pod in which an instance of that role lives: primary, backup, active, frontend, manager."""
        ...

    def pods_of(self, operator: str) -> list[str]:
        """All pods of an operator that are not about to go."""
        ...

    def spare_pods(self) -> list[str]:
        """Pods whose end loses no state: of every set to which they belong another member is in sync, and
        lives."""
        ...

    def epoch_of(self, operator: str) -> int:
        """The epoch of an operator with state."""
        ...

    def condition(self, kind: str) -> Mapping[str, str]:
        """A condition of the graph's status; {} if it has none yet."""
        ...

    def redundant(self, within_s: float = ...) -> None:
        """Wait until every state has its backups in sync and every pod is Ready."""
        ...

    def changed(self, within_s: float = ...) -> None:
        """Wait until the pod that was deleted last is gone or going: from then on `redundant` speaks of what
        came after."""
        ...

    def moved(self, operator: str, epoch: int, within_s: float = ...) -> None:
        """Wait until an operator's epoch is a later one than `epoch`."""
        ...

    def answered(self, count: int, within_s: float = ...) -> None:
        """Wait until so many more requests have been answered."""
        ...

    def stalled(self, span_s: float) -> None:
        """Let a fault last. Progress is not asked for."""
        ...

    def note(self, what: str) -> None:
        """Remember a fault and when it was."""
        ...

    def delete(self, pod: str, *, force: bool = ...) -> None:
        """Delete a pod: gracefully, or with a grace period of 0. Does not wait for its end."""
        ...

    def node_of(self, pod: str) -> str:
        """The node of a pod."""
        ...

    def drain(self, node: str) -> None:
        """No new pods there, and the graph's pods there are evicted, as their budgets permit. Returns when
        none is left."""
        ...

    def undrain(self, node: str) -> None:
        """Pods may run there again."""
        ...

    def delete_controllers(self, *, force: bool = ...) -> None:
        """Delete every pod of the controller."""
        ...

    def stop_controllers(self) -> None:
        """No controller any more; returns when they are gone."""
        ...

    def start_controllers(self) -> None:
        """As many controllers as there were; returns when they are Ready."""
        ...

    def lose_etcd_member(self) -> None:
        """Delete a member of the chart's etcd by force, where two others serve on and it will find its data
        again. ValueError where not."""
        ...

    def etcd_whole(self, within_s: float = ...) -> None:
        """Wait until every member of the chart's etcd is Ready."""
        ...

    def change_model(self, operator: str, image: str = ...) -> None:
        """Have an operator's pods replaced: by another image, or by the same one, as
        `kubectl rollout restart` does."""
        ...

    def replaced(self, operator: str, within_s: float = ...) -> None:
        """Wait until every pod of an operator is of the newest kind, and Ready."""
        ...
