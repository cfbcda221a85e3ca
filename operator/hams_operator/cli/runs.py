"""The port by which commands reach graphs that run: on this machine, or in a namespace of a cluster.

Each command is written once, on this port. Both implementations complain in words for the user
(`CommandError`), so a command adds nothing to what went wrong.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hams_operator.cli.output import complain

if TYPE_CHECKING:  # `hams --help` imports this module
    from hams_operator.graph_status import GraphStatus, InstanceStatus
    from hams_wire.profiles import ProfileReport


T = TypeVar("T")
OnLine = Callable[[str, str], None]
"""Takes a line of a log: the process, and what it wrote."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster: a context of the kubeconfig and a namespace, each as given or None: then the
    kubeconfig's current one and the context's."""

    context: str | None = None
    namespace: str | None = None

    @property
    def given(self) -> bool:
        """Whether a cluster is meant at all, not this machine."""
        return self.context is not None or self.namespace is not None


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a graph's endpoint answers requests from this machine, and the folder of its history if it
    records one."""

    url: str
    history: str | None = None


class Runs(Protocol):
    """Graphs that run in one place. `graph` is a name, or None for the only graph there. Every method raises
    CommandError: exit 2 and the names if there are several."""

    @property
    def where(self) -> str:
        """Ends a sentence like "no graph runs here"."""

    async def every(self) -> "list[GraphStatus]":
        """All graphs, by name."""

    async def status(self, graph: str | None) -> "GraphStatus":
        """One graph as it is now."""

    async def strike(
        self, graph: str, instance: "InstanceStatus", process: str, number: str
    ) -> dict[str, int]:
        """Send the signal of that name to an instance's model, proxy or both: which processes got it. A
        frontend or manager is one process."""

    async def logs(
        self, graph: str | None, operator: str, lines: int, follow: bool, earlier: int, on_line: OnLine
    ) -> None:
        """Say the last lines of an operator's processes; with `follow` also what they go on to say, until
        Ctrl-C. `earlier`: of so many runs before, where logs of those are kept."""

    def reach(self, graph: str) -> AbstractAsyncContextManager[Reached]:
        """A way to a graph's endpoint, for as long as the block lasts."""

    async def profile(self, graph: str | None, operator: str) -> "list[ProfileReport]":
        """What the living instances of an operator, of all if it is "", have learnt of its times."""

    async def forget(self, graph: str | None, operator: str) -> list[str]:
        """Have them forget it; of which operators."""

    async def stored(self, graph: str | None, operator: str) -> dict[str, bytes]:
        """What of it is stored for others, by operator; empty where there is nothing."""

    async def give(self, graph: str | None, profiles: Mapping[str, bytes]) -> bool:
        """Have the instances of each operator know a stored profile in place of what they have learnt. False:
        the graph does not run, and its next run will."""

    async def restart(self, graph: str | None, operator: str) -> str:
        """Let a lost state begin again; the name of its graph."""


def chosen(graph: str | None, names: Sequence[str], where: str, begin: str) -> str:
    """The graph of that name; without a name the only one there is. `begin`: how to begin one. Raises
    CommandError."""
    if graph is None and len(names) > 1:
        complain(f"several graphs: {', '.join(names)}; choose one with --graph NAME", 2)
    if graph is None and names:
        return names[0]
    if graph is None or graph not in names:
        what = "no graph" if graph is None else f'no graph "{graph}"'
        complain(f"{what} {where}; " + (f"there are: {', '.join(names)}" if names else begin))
    return graph


def on_runs(target: Target, ask: "Callable[[Runs], Coroutine[Any, Any, T]]") -> T:
    """What a question to the runs of this machine, or of the cluster that is meant, is answered. Raises
    CommandError, too if there is no such cluster to talk to."""
    import asyncio  # noqa: PLC0415 - as below: no command loads what it does not use

    async def work() -> T:
        if not target.given:
            from hams_operator.cli.local_runs import LocalRuns  # noqa: PLC0415

            return await ask(LocalRuns())
        from hams_operator.cli.cluster import connect  # noqa: PLC0415

        async with connect(target) as cluster:
            return await ask(cluster)

    return asyncio.run(work())
