"""What a message of a peer may name: checked once, before any machine sees it.

A peer is of the same graph, so it names operators, edges, shards and slots that this graph has. One that
names others is of another graph or another version, or is broken; machines look names up without asking, so
such a message would end the instance. Its connection is closed instead. So is one that brings a topology in
which a replica set names an instance twice.

Never: judges whether a message is true, or new, or from its right sender. Machines do.
"""

from collections.abc import Callable, Iterable

from hams_protocol.deps import Dep
from hams_protocol.graph import FRONTEND, SINKS, Graph
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    Admit,
    AskApplied,
    AskCopy,
    AskDurable,
    Attempt,
    AttemptAck,
    ClientForward,
    ClientForwardAnswer,
    ClientForwardHeld,
    Completion,
    Consumed,
    Deliver,
    Durable,
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Leave,
    LogAck,
    LogAppend,
    LogCopy,
    LogEntry,
    Message,
    RecordAck,
    Refused,
    ReplyEntry,
    SlotAnswer,
    SlotQuery,
    StateCopy,
    StateRecord,
    Token,
    TokenAcks,
    TopologyNews,
)


class UnknownName(Exception):
    """A message names something that this graph does not have; the text says what."""


class Names:
    """The names of one graph. `of`: whose instance takes messages in: an operator, FRONTEND or the
    managers."""

    def __init__(self, graph: Graph, of: str) -> None:
        operators = graph.data.operators
        self._of = of
        self._shards = graph.data.frontend.shards
        self._slots = {op.name: op.slots for op in operators}
        self._sets = frozenset(op.name for op in operators if op.stateful).union(graph.shard_names)
        self._sources = SINKS.union(self._slots)
        self._lanes = {op.name: frozenset(op.lanes) for op in operators}
        self._lanes[FRONTEND] = frozenset(((),))
        self._edges = frozenset(
            [(edge.source, op.name) for op in operators for edge in op.in_edges]
            + [(source, target) for source, target, _ in graph.sink_edges]
        )
        self._checks: dict[type, Callable[[Message], None]] = {
            Deliver: self._deliver,
            TokenAcks: self._token_acks,
            Attempt: self._attempt,
            AttemptAck: self._attempt_ack,
            StateRecord: self._record,
            StateCopy: self._copy,
            Completion: self._completion,
            Durable: self._durable,
            SlotQuery: self._slot_query,
            SlotAnswer: self._slot_answer,
            LogAppend: self._log_append,
            LogCopy: self._log_copy,
            ClientForwardAnswer: self._forward_answer,
            TopologyNews: self._news,
        }
        self._checks |= dict.fromkeys((LogAck, ClientForward, ClientForwardHeld), self._of_a_shard)
        self._checks |= dict.fromkeys((Freeze, FreezeAnswer, Fence, FenceAnswer, Refused), self._named)
        self._checks |= dict.fromkeys((RecordAck, AskApplied, Leave, AskDurable, AskCopy), self._of_a_set)

    def unknown(self, message: Message) -> str:
        """What the message names that is not there; empty if it names nothing of the kind."""
        check = self._checks.get(type(message))
        if check is None:
            return ""
        try:
            check(message)
        except UnknownName as error:
            return f"a {type(message).__name__} names {error}"
        return ""

    # -- names -----------------------------------------------------------------------------------------------

    def _known_set(self, name: str) -> None:
        if name not in self._sets:
            raise UnknownName(f'the state "{name}"')

    def _known_shard(self, shard: int) -> None:
        if not 0 <= shard < self._shards:
            raise UnknownName(f"shard {shard} of {self._shards}")

    def _known_slot(self, op: str, slot: int) -> None:
        if not 0 <= slot < self._slots.get(op, 0):
            raise UnknownName(f'slot {slot} of "{op}"')

    def _known_edge(self, source: str, target: str) -> None:
        if (source, target) not in self._edges:
            raise UnknownName(f'the edge from "{source}" to "{target}"')

    def _known_unit(self, source: str, request: RequestId, lane: tuple[str, ...]) -> None:
        self._known_shard(request.shard)
        if lane not in self._lanes.get(source, ()):
            raise UnknownName(f'lane {"/".join(lane) or "none"} of "{source}"')

    def _known_deps(self, deps: Iterable[Dep]) -> None:
        for dep in deps:
            self._known_set(dep.op)
            # Epochs count from 0: an instance that knows no roles yet would look for the end of one before
            # that.
            if dep.epoch < 0:
                raise UnknownName(f'epoch {dep.epoch} of "{dep.op}"')

    def _known_token(self, token: Token) -> None:
        if token.source not in self._sources:
            raise UnknownName(f'the operator "{token.source}"')
        self._known_shard(token.request.shard)
        self._known_deps(token.deps)

    def _known_tokens(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            self._known_token(token)

    def _known_units(self, units: Iterable[Consumed]) -> None:
        for unit in units:
            self._known_shard(unit.unit.request.shard)
            self._known_tokens(unit.fan_inputs)
            for target, token in unit.outputs:
                if target not in self._sources:
                    raise UnknownName(f'the operator "{target}"')
                self._known_token(token)

    def _known_entries(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            self._known_shard(entry.request.shard)
            if isinstance(entry, ReplyEntry):
                self._known_tokens(entry.tokens)
            elif isinstance(entry, Admit) and entry.origin is not None:
                self._known_token(entry.origin)

    # -- messages --------------------------------------------------------------------------------------------

    def _deliver(self, message: Message) -> None:
        assert isinstance(message, Deliver)
        token, target = message.token, message.target
        if target != self._of and not (self._of == FRONTEND and target in SINKS):
            raise UnknownName(f'"{target}" as its target, which is not here')
        self._known_edge(token.source, target)
        self._known_unit(token.source, token.request, token.lane)
        self._known_deps((*token.deps, *message.marks))

    def _token_acks(self, message: Message) -> None:
        assert isinstance(message, TokenAcks)
        for ack in message.acks:
            self._known_edge(ack.source, ack.target)
            self._known_unit(ack.source, ack.unit.request, ack.unit.lane)

    def _attempt(self, message: Message) -> None:
        assert isinstance(message, Attempt)
        self._known_edge(message.source, message.target)
        self._known_unit(message.source, message.request, message.lane)

    def _attempt_ack(self, message: Message) -> None:
        assert isinstance(message, AttemptAck)
        self._known_unit(message.source, message.request, message.lane)

    def _record(self, message: Message) -> None:
        assert isinstance(message, StateRecord)
        self._known_set(message.op)
        self._known_deps(message.deps)
        self._known_units(message.units)

    def _copy(self, message: Message) -> None:
        assert isinstance(message, StateCopy)
        self._known_set(message.op)
        self._known_units(message.units)
        self._completion(message.complete)

    def _completion(self, message: Message) -> None:
        assert isinstance(message, Completion)
        for shard, _, _ in message.shards:
            self._known_shard(shard)

    def _durable(self, message: Message) -> None:
        assert isinstance(message, Durable)
        self._known_deps(message.versions)

    def _slot_query(self, message: Message) -> None:
        assert isinstance(message, SlotQuery)
        self._known_slot(message.op, message.slot)

    def _slot_answer(self, message: Message) -> None:
        assert isinstance(message, SlotAnswer)
        self._known_slot(message.op, message.slot)
        self._known_tokens(message.tokens)
        if message.led is not None:
            self._known_set(message.led[0])

    def _log_append(self, message: Message) -> None:
        assert isinstance(message, LogAppend)
        self._known_shard(message.shard)
        self._known_entries(message.entries)

    def _log_copy(self, message: Message) -> None:
        assert isinstance(message, LogCopy)
        self._known_shard(message.shard)
        self._known_entries(message.entries)
        self._known_tokens(message.fed)
        if message.complete is not None:
            self._completion(message.complete)

    def _forward_answer(self, message: Message) -> None:
        assert isinstance(message, ClientForwardAnswer)
        if message.request is not None:
            self._known_shard(message.request.shard)
        self._known_tokens(message.tokens)

    def _news(self, message: Message) -> None:
        assert isinstance(message, TopologyNews)
        for replica_set in message.topology.sets:
            twice = replica_set.named_twice()
            if twice is not None:
                raise UnknownName(f'"{twice}" twice in the replica set "{replica_set.name}"')

    def _of_a_shard(self, message: Message) -> None:
        assert isinstance(message, LogAck | ClientForward | ClientForwardHeld)
        self._known_shard(message.shard)

    def _named(self, message: Message) -> None:
        assert isinstance(message, Freeze | FreezeAnswer | Fence | FenceAnswer | Refused)
        self._known_set(message.name)
        if isinstance(message, FreezeAnswer):
            for version in message.retained:
                self._known_deps(version.deps)

    def _of_a_set(self, message: Message) -> None:
        assert isinstance(message, RecordAck | AskApplied | Leave | AskDurable | AskCopy)
        self._known_set(message.op)
