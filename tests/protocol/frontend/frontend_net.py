"""A network of frontend machines, fake operators and a one-cell etcd, in one thread and one order: what a
test sends, arrives."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from hams_protocol.deps import Dep
from hams_protocol.effects import Answer, Effect, NotServed, Propose, Replied, Send, Stop
from hams_protocol.events import (
    CasSettled,
    ClientGone,
    ClientRequest,
    Event,
    Member,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    Tick,
    TopologyLearnt,
)
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import (
    CLOSE,
    FEEDBACK,
    FRONTEND,
    BatchPolicy,
    Edge,
    Feedback,
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
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Completion,
    Deliver,
    Durable,
    Freeze,
    FreezeAnswer,
    Kind,
    Message,
    Meta,
    ModelError,
    Token,
)
from hams_protocol.modes import ModePolicy
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology


@dataclass(frozen=True)
class P:
    """A payload: a label and a size."""

    label: str = "x"
    nbytes: int = 10
    defect: str = ""


def op(
    name: str,
    *sources: str,
    to: tuple[str, ...] = (FRONTEND,),
    stateful: bool = True,
    join: Join = Join.COMBINE,
    tensors: tuple[str, ...] = ("a",),
    optional: tuple[str, ...] = (),
    lanes: tuple[tuple[str, ...], ...] = ((),),
    feedback: Feedback | None = None,
) -> Operator:
    """One operator whose in-edges carry `tensors`."""
    edges = tuple(
        Edge(source, name, tuple(Input(item, item, item in optional) for item in tensors))
        for source in sources
    )
    return Operator(
        name,
        join,
        edges,
        to,
        lanes,
        (TensorSpec("out", "FP32", (1,)),),
        BatchPolicy(1, 0.0),
        ModelSpec("m:M"),
        stateful,
        1,
        4,
        1,
        0,
        None,
        feedback,
    )


def graph(
    *operators: Operator,
    outputs: tuple[ReplyTensor, ...] | None = None,
    mode: Mode = Mode.NON_STOP,
    recovery: RecoverySpec | None = None,
    **spec: int,
) -> Graph:
    """A graph; without `outputs` the reply has one tensor per operator that leads to the frontend."""
    spec.setdefault("shards", 1)
    if outputs is None:
        outputs = tuple(
            ReplyTensor(item.name, ((item.name, "out"),), len(item.lanes) > 1)
            for item in operators
            if FRONTEND in item.successors
        )
    inputs = (TensorSpec("a", "FP32", (1,)), TensorSpec("b", "FP32", (1,), optional=True))
    return Graph(
        GraphData(
            "g", "uid", mode, FrontendSpec(**spec), 1, recovery or RecoverySpec(), inputs, outputs, operators
        )
    )


PAIR = ("F-1", "F-2")


class FakeOp:
    """An operator instance: notes what it receives; if `auto`, answers every value on all its edges,
    depending on a new state of its own."""

    def __init__(self, net: "Net", operator: Operator) -> None:
        self.net = net
        self.operator = operator
        self.name = operator.name
        self.id = f"{operator.name}-1"
        self.auto = True
        self.durable = True
        self.epoch = 1
        self.seq = 0
        self.inbox: list[tuple[str, Message]] = []
        self.held: dict[tuple[RequestId, str], Token] = {}
        self.outputs: dict[tuple[RequestId, str], Token] = {}
        self.completed: list[Completion] = []
        self.route: tuple[str, ...] | None = None

    def receive(self, sender: str, message: Message) -> None:
        self.inbox.append((sender, message))
        if isinstance(message, Completion):
            self.completed.append(message)
        if isinstance(message, Deliver):
            key = (message.token.request, message.token.source)
            fresh = key not in self.held
            self.held.setdefault(key, message.token)
            if fresh and self.auto:
                self.answer(message.token.request)
            elif not fresh:
                for (request, target), token in self.outputs.items():
                    if request == message.token.request:
                        self.send(target, token)

    def answer(self, request: RequestId, kind: Kind = Kind.VALUE, **changes: object) -> Token:
        """Execute a request: one more state, one token per edge."""
        self.seq += 1
        value_id = f"{self.id}:{self.seq}"
        deps = (Dep(self.name, self.epoch, self.seq),) if self.operator.stateful else ()
        targets = [item for item in self.operator.targets if item in (FRONTEND, FEEDBACK)]
        if self.operator.join is Join.FIRST:
            targets.append(CLOSE)
        route = tuple(item for item in (FRONTEND,) if item in targets) if self.route is None else self.route
        token = Token(request, (), self.name, kind, value_id, deps, route, Meta(), payload=P(value_id))
        token = replace(token, **changes)
        skip = Token(request, (), self.name, Kind.SKIP, f"{value_id}!", token.deps, route, Meta())
        for target in targets:
            self.outputs[request, target] = token if target in route else skip
        for target in targets:
            self.send(target, self.outputs[request, target])
        if self.durable and self.operator.stateful:
            self.announce(self.seq)
        return token

    def send(self, target: str, token: Token) -> None:
        owner = self.net.topology.find(f"F/{token.request.shard}").primary
        if owner is not None:
            self.net.post(self.id, owner, Deliver(target, self.epoch, token))

    def resend(self) -> None:
        for (_, target), token in self.outputs.items():
            self.send(target, token)

    def announce(self, seq: int) -> None:
        """Say that everything up to `seq` is durable."""
        for name in self.net.machines:
            self.net.post(self.id, name, Durable((Dep(self.name, self.epoch, seq),)))

    def requests(self) -> list[RequestId]:
        """Requests delivered here, in order, each once."""
        return list(dict.fromkeys(request for request, _ in self.held))

    def deliveries(self) -> list[Deliver]:
        return [message for _, message in self.inbox if isinstance(message, Deliver)]


@dataclass
class Sent:
    """Something that happened, in order."""

    who: str
    effect: Effect


class Net:
    """Machines, fake operators, one etcd cell."""

    def __init__(self, g: Graph, frontends: tuple[str, ...] = PAIR, policy: ModePolicy | None = None) -> None:
        self.graph = g
        self.now = 0.0
        self.machines: dict[str, FrontendMachine] = {
            name: FrontendMachine(g, name, None, policy) for name in frontends
        }
        self.ops: dict[str, FakeOp] = {f"{item.name}-1": FakeOp(self, item) for item in g.data.operators}
        self.queue: deque[tuple[str, str, Message]] = deque()
        self.log: list[Sent] = []
        self.cut: set[tuple[str, str]] = set()
        self.dead: set[str] = set()
        self.held_back: list[tuple[str, str, Message]] = []
        self.hold: Callable[[str, str, Message], bool] = lambda sender, target, message: False
        self.revision = 0
        self.topology = Topology()
        self.etcd_away = False
        self.answers: dict[int, Replied | NotServed] = {}
        self.stopped: dict[str, str] = {}
        self.handles = 0
        self.manager: list[tuple[str, Message]] = []
        self.proposals: list[tuple[str, Topology]] = []

    # -- roles -----------------------------------------------------------------------------------------------

    def start(self, in_sync: bool = True) -> "Net":
        """Every operator has its one instance; shard n begins with the frontends in turn, the others join."""
        names = list(self.machines)
        sets = [
            ReplicaSet(item.name, 1, f"{item.name}-1") for item in self.graph.data.operators if item.stateful
        ]
        tables = tuple(
            SlotTable(item.name, (Slot(1, f"{item.name}-1"),))
            for item in self.graph.data.operators
            if not item.stateful
        )
        for number, name in enumerate(self.graph.shard_names):
            sets.append(ReplicaSet(name, 1, names[number % len(names)]))
        self.members()
        self.commit(Topology(0, tuple(sorted(sets, key=lambda item: item.name)), tables))
        if in_sync and self.graph.data.mode is not Mode.NONE:
            self.join_all()
            self.run()
            for name in self.graph.shard_names:
                assert len(self.topology.find(name).in_sync) == len(names) - 1
        return self

    def join_all(self) -> None:
        """All living frontends join the shards that they have no part in."""
        topology = self.topology
        for name in self.graph.shard_names:
            replica_set = topology.find(name)
            others = tuple(
                item for item in self.machines if item not in replica_set.members and item not in self.dead
            )
            topology = topology.with_set(replace(replica_set, joining=others))
        self.commit(topology)

    def join_all_now(self) -> None:
        """The same, while proposals do not get through."""
        away, self.etcd_away = self.etcd_away, False
        self.join_all()
        self.etcd_away = away

    def members(self) -> None:
        values = [Member(name, FRONTEND, "") for name in self.machines if name not in self.dead]
        values += [Member(item.id, item.name, "") for item in self.ops.values()]
        self.feed_all(MembersChanged(tuple(values)))

    def commit(self, topology: Topology) -> Topology:
        """Somebody's compare-and-swap; every instance that is not cut off from etcd learns it."""
        self.topology = replace(topology, generation=self.topology.generation + 1)
        self.revision += 1
        for item in self.ops.values():
            item.resend()
        self.feed_all(TopologyLearnt(self.topology, self.revision))
        return self.topology

    def fail_over(
        self, shard: int, *, revoke: str | None, to: str | None = None, learn: tuple[str, ...] | None = None
    ) -> int:
        """What a manager does: freeze the in-sync backups, the shortest log is the end. Returns the end."""
        replica_set = self.topology.find(f"F/{shard}")
        if revoke is not None and revoke not in self.topology.revoked:
            self.topology = replace(
                self.topology,
                generation=self.topology.generation + 1,
                revoked=(*self.topology.revoked, revoke),
            )
            self.revision += 1
            self.feed_all(TopologyLearnt(self.topology, self.revision))
        answers = self.freeze(shard)
        primary = to or min(sorted(answers), key=lambda item: answers[item])
        end = min(answers.values())
        moved = replace(
            replica_set,
            epoch=replica_set.epoch + 1,
            primary=primary,
            in_sync=tuple(item for item in sorted(answers) if item != primary),
            joining=(),
            ends=(*replica_set.ends, (replica_set.epoch, end)),
        )
        self.commit(self.topology.with_set(moved))
        return end

    def freeze(self, shard: int) -> dict[str, int]:
        """Freeze the in-sync backups of a shard: who holds how much."""
        replica_set = self.topology.find(f"F/{shard}")
        self.manager.clear()
        for name in replica_set.in_sync:
            if name not in self.dead and name not in self.topology.revoked:
                self.deliver(
                    "manager", name, Freeze(1, self.topology.generation, replica_set.name, replica_set.epoch)
                )
        return {
            sender: item.applied
            for sender, item in self.manager
            if isinstance(item, FreezeAnswer) and item.applied is not None
        }

    # -- events ----------------------------------------------------------------------------------------------

    def feed(self, name: str, event: Event) -> list[Effect]:
        if name in self.dead or name in self.stopped:
            return []
        effects = self.machines[name].step(event, self.now)
        for effect in effects:
            self.log.append(Sent(name, effect))
            if isinstance(effect, Send):
                self.post(name, effect.target, effect.message)
            elif isinstance(effect, Propose):
                self.propose(name, effect)
            elif isinstance(effect, Answer):
                assert effect.handle not in self.answers, "answered twice"
                self.answers[effect.handle] = effect.outcome
            elif isinstance(effect, Stop):
                self.stopped[name] = effect.reason
        return effects

    def feed_all(self, event: Event) -> None:
        for name in list(self.machines):
            if (name, "etcd") not in self.cut:
                self.feed(name, event)

    def propose(self, name: str, effect: Propose) -> None:
        self.proposals.append((name, effect.topology))
        if self.etcd_away or (name, "etcd") in self.cut:
            return
        if effect.revision != self.revision:
            self.feed(name, CasSettled(self.topology, self.revision, committed=False))
            return
        self.topology = effect.topology
        self.revision += 1
        self.feed(name, CasSettled(self.topology, self.revision, committed=True))
        self.feed_all(TopologyLearnt(self.topology, self.revision))

    def post(self, sender: str, target: str, message: Message) -> None:
        if target == "manager":
            self.manager.append((sender, message))
        elif (sender, target) not in self.cut and sender not in self.dead:
            self.queue.append((sender, target, message))

    def deliver(self, sender: str, target: str, message: Message) -> None:
        if target in self.dead:
            return
        if target in self.ops:
            self.ops[target].receive(sender, message)
        elif target in self.machines:
            self.feed(target, Received(sender, message))

    def run(self) -> None:
        """Deliver until nothing is under way; what `hold` says stays back."""
        for _ in range(100_000):
            if not self.queue:
                return
            item = self.queue.popleft()
            if self.hold(*item):
                self.held_back.append(item)
            else:
                self.deliver(*item)
        raise AssertionError("the network never becomes quiet")

    def let_go(self) -> None:
        """Deliver what was held back, too."""
        self.hold = lambda sender, target, message: False
        self.queue.extend(self.held_back)
        self.held_back.clear()
        self.run()

    def advance(self, seconds: float) -> None:
        """Let time pass: ticks at every deadline on the way."""
        end = self.now + seconds
        self.run()
        for _ in range(100_000):
            due = min(
                (
                    machine.deadline()
                    for name, machine in self.machines.items()
                    if name not in self.dead and name not in self.stopped
                ),
                default=end,
            )
            if due > end:
                break
            self.now = max(self.now, due)
            for name, machine in self.machines.items():
                if machine.deadline() <= self.now:
                    self.feed(name, Tick())
            self.run()
        else:
            raise AssertionError("a machine wants ticks without end")
        self.now = end
        for name in self.machines:
            self.feed(name, Tick())
        self.run()

    def kill(self, name: str) -> None:
        """The process dies; its peers notice."""
        self.dead.add(name)
        self.queue = deque(item for item in self.queue if name not in item[:2])
        for other in self.machines:
            if other != name:
                self.feed(other, PeerDown(name))

    def revive_link(self, one: str, other: str) -> None:
        self.cut -= {(one, other), (other, one)}
        self.feed(one, PeerUp(other))
        self.feed(other, PeerUp(one))

    # -- clients ---------------------------------------------------------------------------------------------

    def ask(
        self,
        name: str,
        key: str | None = None,
        digest: str = "d",
        *,
        budget: float = 30.0,
        present: tuple[str, ...] = ("a",),
        **more: object,
    ) -> int:
        """A client's request; its handle."""
        self.handles += 1
        event = ClientRequest(self.handles, key, digest, Meta(budget_s=budget), P("request"), present=present)
        self.feed(name, replace(event, **more))
        return self.handles

    def gone(self, name: str, handle: int) -> None:
        self.feed(name, ClientGone(handle))

    def reply(self, handle: int) -> list[str] | ModelError | int | None:
        """The value ids of the reply, its error, the status of a refusal, or None while the client waits."""
        read = self.answers.get(handle)
        if isinstance(read, Replied):
            return read.error or [token.value_id for token in read.tokens]
        return None if read is None else read.status

    # -- what happened ---------------------------------------------------------------------------------------

    def notes(self, kind: type) -> list[Effect]:
        return [item.effect for item in self.log if isinstance(item.effect, kind)]

    def sends(self, kind: type, who: str | None = None) -> list[tuple[str, str, Message]]:
        return [
            (item.who, item.effect.target, item.effect.message)
            for item in self.log
            if isinstance(item.effect, Send)
            and isinstance(item.effect.message, kind)
            and who in (None, item.who)
        ]

    def owner(self, shard: int = 0) -> FrontendMachine:
        primary = self.topology.find(f"F/{shard}").primary
        assert primary is not None
        return self.machines[primary]

    def op(self, name: str) -> FakeOp:
        return self.ops[f"{name}-1"]
