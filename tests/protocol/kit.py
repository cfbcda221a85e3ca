"""One machine at a time, driven by hand: what it is told, and what it says (a transcript that a test reads
line by line).

Operators are named by one letter, their instances `q-1`, `q-2`, ... A `Rig` holds a machine, its clock and a
model that does nothing by itself: tests finish batches, captures and loads where they want them.
"""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from hams_protocol.deps import Dep, Deps
from hams_protocol.effects import Capture, Effect, EnterUpdate, LoadState, Send, StartBatch
from hams_protocol.events import (
    BatchDone,
    Captured,
    Event,
    Loaded,
    Member,
    MembersChanged,
    ModelReady,
    Received,
    Tick,
    TopologyLearnt,
    UnitResult,
    UpdateWanted,
)
from hams_protocol.graph import (
    FRONTEND,
    BatchPolicy,
    Edge,
    FrontendSpec,
    Graph,
    GraphData,
    Input,
    Join,
    Mode,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    TensorSpec,
)
from hams_protocol.ids import InstanceId, RequestId
from hams_protocol.messages import Deliver, Kind, Message, Meta, Token
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful.machine import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology

T = TypeVar("T")
R0, R1, R2, R3 = (RequestId(0, n) for n in range(4))


@dataclass(frozen=True)
class P:
    """A payload, or a state: a label and a size. `young`: of a state, the versions after which it can tell
    what changed."""

    label: str = "x"
    nbytes: int = 10
    rows: int = 1
    batch_key: str = ""
    defect: str = ""
    young: tuple[int, ...] = field(default=(), compare=False)

    @property
    def content(self) -> str:
        return self.label

    @property
    def fresh_nbytes(self) -> int:
        return self.nbytes

    def born_after(self, version: int, newest: int) -> "P | None":
        known = version in self.young or version >= newest
        return P(f"{self.label} after {version}", 1) if known else None

    def laid_over(self, base: "P", since: int, version: int) -> "P | None":
        return P(f"{self.label} on {base.label}") if self.label.endswith(f"after {since}") else None


def op(
    name: str,
    *sources: str,
    to: tuple[str, ...] = (FRONTEND,),
    stateful: bool = False,
    join: Join = Join.COMBINE,
    optional: tuple[str, ...] = (),
    rows: int = 1,
    window: int = 4,
    slots: int = 1,
) -> Operator:
    """One operator; every in-edge carries the tensor `a`."""
    edges = tuple(Edge(source, name, (Input("a", "a", source in optional),)) for source in sources)
    out = (TensorSpec("a", "FP32", (1,)),)
    return Operator(
        name,
        join,
        edges,
        to,
        ((),),
        out,
        BatchPolicy(rows, 0.0),
        ModelSpec("m:M"),
        stateful,
        1,
        window,
        slots,
    )


def graph(
    *operators: Operator,
    mode: Mode = Mode.NON_STOP,
    recovery: RecoverySpec | None = None,
    shards: int = 1,
) -> Graph:
    """A graph of operators in topological order."""
    outputs = tuple(
        ReplyTensor(item.name, ((item.name, "a"),)) for item in operators if FRONTEND in item.successors
    )
    inputs = (TensorSpec("a", "FP32", (1,)),)
    return Graph(
        GraphData(
            "g",
            "uid",
            mode,
            FrontendSpec(shards=shards),
            1,
            recovery or RecoverySpec(),
            inputs,
            outputs,
            operators,
        )
    )


def rset(
    name: str,
    primary: InstanceId | None,
    *in_sync: InstanceId,
    epoch: int = 1,
    joining: tuple[InstanceId, ...] = (),
    ends: tuple[tuple[int, int], ...] = (),
) -> ReplicaSet:
    """A replica set."""
    return ReplicaSet(name, epoch, primary, in_sync, joining, ends)


def table(
    name: str, *owners: tuple[InstanceId | None, int], successor: InstanceId | None = None
) -> SlotTable:
    """Slots: (instance, epoch) each; `successor` is the first one's."""
    slots = tuple(
        Slot(epoch, instance, successor if number == 0 else None)
        for number, (instance, epoch) in enumerate(owners)
    )
    return SlotTable(name, slots)


def topo(generation: int, *items: ReplicaSet | SlotTable, revoked: tuple[InstanceId, ...] = ()) -> Topology:
    """A topology; the shard belongs to F-1 unless it is given."""
    sets = [item for item in items if isinstance(item, ReplicaSet)]
    if not any(item.name == "F/0" for item in sets):
        sets.append(rset("F/0", "F-1"))
    tables = [item for item in items if isinstance(item, SlotTable)]
    return Topology(
        generation,
        tuple(sorted(sets, key=lambda item: item.name)),
        tuple(sorted(tables, key=lambda item: item.op)),
        revoked,
    )


def dep(name: str, epoch: int, seq: int) -> Deps:
    """A vector with one entry."""
    return (Dep(name, epoch, seq),)


def value(source: str, request: RequestId, value_id: str, deps: Deps = (), **fields: object) -> Token:
    """A value token from an operator (or the frontend)."""
    token = Token(request, (), source, Kind.VALUE, value_id, deps, (), Meta(), payload=P(value_id))
    return replace(token, **fields)  # type: ignore[arg-type]


def skip(source: str, request: RequestId, value_id: str, deps: Deps = ()) -> Token:
    """A skip token."""
    return Token(request, (), source, Kind.SKIP, value_id, deps, (), Meta())


def of(effects: list[Effect], kind: type[T], to: InstanceId | None = None) -> list[T]:
    """The effects of a kind; of a kind of message, those sent (to an instance)."""
    values: list[T] = [effect for effect in effects if isinstance(effect, kind)]
    sends = [
        effect
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind) and to in (None, effect.target)
    ]
    return values + [effect.message for effect in sends]  # type: ignore[misc]


class Rig:
    """A machine with a clock, and a model that waits to be told."""

    def __init__(self, machine: StatefulMachine | StatelessMachine | ManagerMachine) -> None:
        self.machine = machine
        self.now = 0.0
        self.batch = -1
        self.units: tuple[RequestId, ...] = ()
        self.all: list[Effect] = []

    def step(self, event: Event) -> list[Effect]:
        """One event at the present time."""
        effects = self.machine.step(event, self.now)
        for effect in effects:
            if isinstance(effect, StartBatch):
                self.batch = effect.batch
                self.units = tuple(unit.unit.request for unit in effect.units)
        self.all += effects
        return effects

    def learn(self, topology: Topology) -> list[Effect]:
        """A topology from etcd."""
        return self.step(TopologyLearnt(topology, topology.generation))

    def members(self, **of: str) -> list[Effect]:
        """Who is registered: keyword `q_1="q"` is instance q-1 of operator q."""
        return self.step(
            MembersChanged(tuple(Member(name.replace("_", "-"), what, "") for name, what in of.items()))
        )

    def get(self, sender: InstanceId, message: Message) -> list[Effect]:
        """A message from a peer."""
        return self.step(Received(sender, message))

    def token(self, sender: InstanceId, token: Token, epoch: int = 1, attempts: int = 0) -> list[Effect]:
        """A token for this machine's operator."""
        assert not isinstance(self.machine, ManagerMachine)
        return self.get(sender, Deliver(self.machine.operator.name, epoch, token, attempts))

    def after(self, seconds: float) -> list[Effect]:
        """Time passes, then the machine gets its Tick."""
        self.now += seconds
        return self.step(Tick())

    # -- the model -------------------------------------------------------------------------------------------

    def ready(self, state: P | None = None) -> list[Effect]:
        """The model process has initialised."""
        return self.step(ModelReady("", state))

    def loaded(self, effects: list[Effect]) -> list[Effect]:
        """The model takes over the state that it was asked to."""
        return self.step(Loaded(of(effects, LoadState)[-1].token))

    def want(self) -> list[Effect]:
        """The model stands before its update stage."""
        return self.step(UpdateWanted(self.batch))

    def done(self, updated: bool = True, **result: object) -> list[Effect]:
        """The batch is through; `result` are fields of every unit's result."""
        from hams_protocol.ids import UnitId

        results = tuple(
            UnitResult(UnitId(request, ()), P("out"), **result)  # type: ignore[arg-type]
            for request in self.units
        )
        return self.step(BatchDone(self.batch, results, updated))

    def run(self) -> list[Effect]:
        """A whole batch of a stateful model: update, outputs, capture."""
        effects = self.want()
        assert of(effects, EnterUpdate)
        effects = self.done()
        return effects + self.capture(effects)

    def capture(self, effects: list[Effect]) -> list[Effect]:
        """The capture is complete."""
        version = of(effects, Capture)[-1].version
        return self.step(Captured(version, P(f"state {version}", young=tuple(range(version)))))


def primary_of(data: Graph, name: str, topology: Topology) -> Rig:
    """The first primary of a set: model ready, topology learnt."""
    replica_set = topology.find(name).primary
    assert replica_set is not None
    rig = Rig(StatefulMachine(data, name, replica_set))
    rig.ready(P("state 0"))
    rig.learn(topology)
    assert rig.machine.primary is not None
    return rig


def active_of(data: Graph, name: str, instance: InstanceId, topology: Topology) -> Rig:
    """A stateless instance: model ready, topology learnt."""
    rig = Rig(StatelessMachine(data, name, instance))
    rig.ready()
    rig.learn(topology)
    return rig
