"""The controller, as a process that may be late, cut off, or killed: the core decides which step is taken
(`hams_protocol.succession.decision`), and by it which incarnations are begun and removed.

It remembers nothing: another one reads etcd and goes on.
"""

from typing import TYPE_CHECKING

from hams_protocol.graph import FRONTEND
from hams_protocol.ids import InstanceId
from hams_protocol.succession import decision
from hams_protocol.succession.decision import Guard
from hams_protocol.succession.events import Swap
from hams_protocol.succession.records import Follows, Phase, Quiet, Succession, TakenOver
from hams_protocol.topology import Topology
from hams_sim.succession.store import Actor, Name

if TYPE_CHECKING:
    from hams_sim.succession.incarnation import SimIncarnation
    from hams_sim.succession.resource import SimResource

NOBODY = ""
"""The successor of a graph that is deleted."""

reconcile_every_s = 0.5
"""It looks at everything at least this often."""


class ControllerMemory:
    """What the controller knows of one incarnation: values and their revisions."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.revisions: dict[str, int] = {}

    def below(self, start: str) -> dict[InstanceId, object]:
        """Keys that begin so, without that beginning."""
        return {
            name.removeprefix(start): value for name, value in self.values.items() if name.startswith(start)
        }

    @property
    def record(self) -> Succession | None:
        """Its record as a predecessor."""
        value = self.values.get("succession")
        return value if isinstance(value, Succession) else None

    @property
    def follows(self) -> Follows | None:
        """Its record as a successor."""
        value = self.values.get("follows")
        return value if isinstance(value, Follows) else None


class SimController(Actor):
    """One controller process. `paused`, `cut`: what faults do to it."""

    def __init__(self, resource: "SimResource") -> None:
        super().__init__()
        self.paused = False
        self.cut = False
        self._resource = resource
        self._known: dict[str, ControllerMemory] = {}
        self._watched: set[str] = set()
        self._writing = False
        self._reconcile_is_due = False
        self._reconcile_again()

    @property
    def is_paused(self) -> bool:
        """See `Actor`."""
        return self.paused

    @property
    def reaches_etcd(self) -> bool:
        """See `Actor`."""
        return self.alive and not self.paused and not self.cut

    @property
    def watch_slow(self) -> float:
        """See `Actor`."""
        return self._resource.controller_slow

    # -- what it knows ---------------------------------------------------------------------------------------

    def _reconcile_again(self) -> None:
        if self.alive:
            self.do(self.reconcile)
            self._resource.clock.after(reconcile_every_s, self._reconcile_again)

    def _on_key(self, uid: str, name: str, value: object, revision: int) -> None:
        known = self._known.setdefault(uid, ControllerMemory())
        if value is None:
            known.values.pop(name, None)
            known.revisions.pop(name, None)
        else:
            known.values[name], known.revisions[name] = value, revision
        if not self._reconcile_is_due:
            self._reconcile_is_due = True
            self._resource.clock.after(0.001, self.do, self.reconcile)

    def known(self, uid: str) -> ControllerMemory:
        """What is known of an incarnation."""
        return self._known.get(uid) or ControllerMemory()

    def _seen(self, graph: "SimIncarnation", serves: bool) -> decision.Incarnation:
        """What is judged of one incarnation."""
        known = self.known(graph.uid)
        topology, members = known.values.get("topology"), known.values.get("members")
        registered = members if isinstance(members, dict) else {}
        quiet = {name: item for name, item in known.below("quiet/").items() if isinstance(item, Quiet)}
        taken = {name: item for name, item in known.below("taken/").items() if isinstance(item, TakenOver)}
        waiting = {name: item for name, item in known.below("waiting/").items() if isinstance(item, str)}
        return decision.Incarnation(
            graph.uid,
            graph.graph,
            topology if isinstance(topology, Topology) else Topology(),
            registered,
            quiet,
            waiting,
            taken,
            graph.serves if serves else registered.__contains__,
        )

    # -- what it does ----------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Look at everything, and do the next thing."""
        self._reconcile_is_due = False
        resource = self._resource
        for graph in resource.incarnations:
            if graph.uid not in self._watched:
                self._watched.add(graph.uid)
                resource.store.watch(self, (graph.uid,), self._on_key)
        if self._writing or not self.reaches_etcd:
            return
        present, coming = resource.present(), resource.coming()
        if resource.deleted:
            self._end_all()
        elif coming is None:
            self._begin(present)
        else:
            self._advance(present, coming)
        for graph in resource.incarnations:
            if self.known(graph.uid).values.get("ended") not in (None, NOBODY) and not graph.is_removed:
                self._remove(graph)

    def _end_all(self) -> None:
        """The graph is deleted: nobody takes anything over from any of its shapes."""
        for graph in self._resource.incarnations:
            if self._is_read(graph) and "ended" not in self.known(graph.uid).values:
                self._writing = True
                write = (graph.uid, "ended", NOBODY)
                self._resource.store.transact(self, {(graph.uid, "ended"): 0}, (write,), self._written)
                return

    def _begin(self, present: "SimIncarnation") -> None:
        """Another shape is asked for: its processes start, unless that was tried too often."""
        resource = self._resource
        if resource.wanted is present.graph or present.etcd.topology.generation == 0:
            return
        if not self.known(present.uid).values or not self._is_read(present):
            return
        why = decision.refused(self.known(present.uid).record, resource.generation)
        if why:
            resource.refused = why
        elif self._ready(present):
            resource.begin_next(present)

    def _is_read(self, graph: "SimIncarnation") -> bool:
        return "topology" in self.known(graph.uid).values

    def _ready(self, graph: "SimIncarnation") -> bool:
        return graph.follows is None or bool(graph.frontends())

    def _advance(self, present: "SimIncarnation", coming: "SimIncarnation") -> None:
        """The next step of a succession; or what is asked for is another shape again."""
        resource = self._resource
        record, follows = self.known(present.uid).record, self.known(coming.uid).follows
        if not self._is_read(present) or follows is None or follows.done:
            return
        if record is not None and record.to == coming.uid and record.phase is Phase.BACK:
            coming.remove()
            return
        if resource.wanted is not coming.graph:
            back = decision.record_of_giving_up(record, coming.uid, "another shape is asked for")
            if back is not None:
                self._write(present, coming, back)
            return
        step = decision.next_step(
            self._seen(present, serves=False), self._seen(coming, serves=True), follows.kept, record
        )
        if step.phase is not None:
            self._write(present, coming, decision.record_of(step, record, coming.uid, resource.generation))

    def _write(self, present: "SimIncarnation", coming: "SimIncarnation", record: Succession) -> None:
        names: dict[Guard, Name] = {
            Guard.RECORD: (present.uid, "succession"),
            Guard.NOT_ENDED: (present.uid, "ended"),
            Guard.OLD_TOPOLOGY: (present.uid, "topology"),
            Guard.NEW_TOPOLOGY: (coming.uid, "topology"),
            Guard.FOLLOWS: (coming.uid, "follows"),
        }
        compares = {
            names[guard]: self.known(names[guard][0]).revisions.get(names[guard][1], 0)
            for guard in decision.guards_of(record.phase)
        }
        writes: list[tuple[str, str, object]] = [(present.uid, "succession", record)]
        if record.phase is Phase.DONE:
            assert coming.follows is not None
            done = Follows(coming.follows.uid, coming.follows.kept, done=True)
            writes += [(present.uid, "ended", coming.uid), (coming.uid, "follows", done)]
        self._writing = True
        self._resource.store.transact(self, compares, writes, self._written)

    def _written(self, swap: Swap) -> None:
        self._writing = False
        self._resource.seen(f"step {swap.value}")
        self._resource.clock.after(0.01, self.do, self.reconcile)

    def _remove(self, graph: "SimIncarnation") -> None:
        """The new frontends serve: those of the shape before go once they have passed on what they hold."""
        nearest = self._resource.present()
        if nearest is graph or not nearest.frontends():
            return
        new = [name for name, of in self._members(nearest).items() if of == FRONTEND]
        if len(new) < nearest.graph.data.frontend.replicas:
            return
        self._resource.retire(graph)

    def _members(self, graph: "SimIncarnation") -> dict[InstanceId, str]:
        members = self.known(graph.uid).values.get("members")
        return members if isinstance(members, dict) else {}
