"""Joins: tokens of several in-edges become units of work (protocol.md, section 3).

Every edge carries exactly one token per (request, lane), so a join always completes. A unit is *ready* once
its join rule is met; it then runs, or, if there is nothing to run, it forwards a skip or an error with the
union of the dependencies of all its tokens. Invariant: no unit is made of orphan tokens; a purged token takes
its unit back to waiting, so that its successor is accepted.
"""

import enum
from collections.abc import Iterable

from hams_protocol.deps import Deps, merge
from hams_protocol.frozen import frozen
from hams_protocol.graph import Join, Operator
from hams_protocol.ids import Lane, RequestId, UnitId, ValueId
from hams_protocol.messages import Kind, Meta, ModelError, Payload, Token


class Stage(enum.IntEnum):
    """Where a unit is."""

    WAITING = 0
    READY = 1
    RUNNING = 2
    DONE = 3


BatchKey = tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]
"""Of each input: its source, the key of its payload, and what it is renamed to."""


NOT_COUNTED = -1


class Unit:
    """One (request, lane) at one operator: its tokens by in-edge, and how far it has come.

    `used` are the tokens it runs on, `batch` the batch it runs in. `refused` are the in-edges whose value a
    First refused. `held` remembers the value ids of tokens that were let go, `keep` that none may be: its
    execution could still become orphan. `made` are then the dependencies of what it produced, or of what its
    slot's former owner did. `attempts`: see `Deliver`; above 0 it runs in a batch of its own. `route` is
    imposed when a predecessor's skip was found (section 4). `due`: when its client stops waiting, by this
    instance's clock, as it was known when the unit became ready. `cls`: its class in
    the profiles of a scheduling policy, which sets it.
    """

    __slots__ = (
        "_batch_key",
        "_rows",
        "_used",
        "attempts",
        "batch",
        "cls",
        "due",
        "held",
        "id",
        "keep",
        "made",
        "queued_at",
        "refused",
        "route",
        "stage",
        "tokens",
    )

    def __init__(self, unit: UnitId) -> None:
        self.id = unit
        self.tokens: dict[str, Token] = {}
        self.stage = Stage.WAITING
        self._used: tuple[Token, ...] = ()
        self._rows = NOT_COUNTED
        self._batch_key: BatchKey = ()
        self.refused: set[str] = set()
        self.held: dict[str, ValueId] = {}
        self.keep = False
        self.made: Deps = ()
        self.attempts = 0
        self.batch = -1
        self.route: tuple[str, ...] | None = None
        self.queued_at = 0.0
        self.due = float("inf")
        self.cls = 0

    def reset(self) -> None:
        """Back to waiting: what it ran on, or made, has become orphan."""
        self.stage = Stage.WAITING
        self.used = ()
        self.batch = -1
        self.keep = False
        self.held.clear()

    @property
    def used(self) -> tuple[Token, ...]:
        """The tokens it runs on."""
        return self._used

    @used.setter
    def used(self, tokens: tuple[Token, ...]) -> None:
        self._used = tokens
        self._rows = NOT_COUNTED

    @property
    def rows(self) -> int:
        """How much of a batch it fills."""
        if self._rows == NOT_COUNTED:
            self._count()
        return self._rows

    @property
    def batch_key(self) -> BatchKey:
        """Units whose keys differ never share a batch."""
        if self._rows == NOT_COUNTED:
            self._count()
        return self._batch_key

    def _count(self) -> None:
        """Once, as policies ask again and again. Nothing of the payloads is kept: their memory goes when the
        last user does."""
        carried = [(token, token.payload) for token in self._used if token.payload is not None]
        self._rows = max((payload.rows for _, payload in carried), default=1)
        self._batch_key = tuple(
            (token.source, payload.batch_key, token.renamed) for token, payload in carried
        )


@frozen
class Forward:
    """What a unit that runs no model passes on: a skip, or an error."""

    kind: Kind
    error: ModelError | None


def fan_name(op: str, lane: Lane) -> str:
    """What an execution of a fan-out operator is called in `Token.fan`: of several lanes each has one of its
    own."""
    return f"{op}[{','.join(lane)}]" if lane else op


def inconsistent_fan_out(fans: Iterable[tuple[tuple[str, ValueId], ...]]) -> str | None:
    """The fan-out operator of which tokens of one request with these `fan`s stem from two executions, if any
    (section 4)."""
    seen: dict[str, ValueId] = {}
    for fan in fans:
        for name, value_id in fan:
            if seen.setdefault(name, value_id) != value_id:
                return name.partition("[")[0]
    return None


def fan_of(unit: Unit) -> tuple[tuple[str, ValueId], ...]:
    """The executions of fan-outs that a unit's inputs stem from."""
    return tuple(sorted({entry for token in unit.used if token.fan for entry in token.fan}))


class JoinBuffer:
    """Tokens and units of one operator, until their request completes."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._edges = {edge.source: edge for edge in operator.in_edges}
        self._requests: dict[RequestId, dict[UnitId, Unit]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def unit_of(self, token: Token) -> UnitId:
        """The unit a token belongs to: an Interleave runs once per token, each in-edge appends itself to the
        lane."""
        if self.operator.join is Join.INTERLEAVE:
            return UnitId(token.request, (*token.lane, token.source))
        return UnitId(token.request, token.lane)

    def find(self, unit: UnitId) -> Unit | None:
        """The unit, if any of its tokens has arrived."""
        units = self._requests.get(unit.request)
        return None if units is None else units.get(unit)

    def ensure(self, unit: UnitId) -> Unit:
        """The unit, made if need be."""
        units = self._requests.get(unit.request)
        if units is None:
            units = self._requests[unit.request] = {}
        held = units.get(unit)
        if held is None:
            held = units[unit] = Unit(unit)
        return held

    def requests(self) -> list[RequestId]:
        """Requests of which any token has arrived."""
        return list(self._requests)

    def tokens_from(self, source: str) -> list[Token]:
        """Every token held from one in-edge."""
        return [unit.tokens[source] for unit in self.units() if source in unit.tokens]

    def units(self) -> list[Unit]:
        """All units."""
        return [unit for units in self._requests.values() for unit in units.values()]

    def add(self, token: Token) -> Unit:
        """Take a token that is neither orphan nor unknown; its unit. A second one for the same edge and unit
        is a duplicate."""
        unit = self.ensure(self.unit_of(token))
        if token.source not in unit.tokens and (
            unit.stage is not Stage.DONE or unit.keep or self.operator.join is Join.FIRST
        ):
            unit.tokens[token.source] = token
        return unit

    @staticmethod
    def value_held(unit: Unit, token: Token) -> ValueId:
        """The value id that this instance holds for the edge on which `token` came."""
        held = unit.tokens.get(token.source)
        return held.value_id if held is not None else unit.held.get(token.source, token.value_id)

    def settle(self, unit: Unit) -> bool:
        """Move a waiting unit to READY if its join rule is met; True if it moved."""
        if unit.stage is not Stage.WAITING:
            return False
        used = self._first(unit) if self.operator.join is Join.FIRST else self._combine(unit)
        if used is None:
            return False
        unit.used = used
        unit.stage = Stage.READY
        return True

    def forward(self, unit: Unit) -> Forward | None:
        """What a ready unit passes on without running the model; None if the model runs."""
        values = {token.source for token in unit.used if token.kind is Kind.VALUE}
        required = {edge.source for edge in self._edges.values() if edge.required}
        if self.operator.join is not Join.COMBINE:
            required = values
        for token in unit.used:
            failure = token.failure(self.operator.name)
            if failure is not None and (token.kind is Kind.ERROR or required <= values):
                return Forward(Kind.ERROR, failure)  # where nothing would run, nobody need read a value
        if self.operator.join is Join.FIRST:
            if unit.refused and unit.refused >= values:
                return Forward(
                    Kind.ERROR, ModelError(self.operator.name, "every input was refused", status=422)
                )
            return Forward(Kind.SKIP, None) if all(token.kind is Kind.SKIP for token in unit.used) else None
        if (op := inconsistent_fan_out(token.fan for token in unit.used)) is not None:
            return self.inconsistent_by(op)
        return Forward(Kind.SKIP, None) if not values or required - values else None

    def inconsistent_by(self, op: str) -> Forward:
        """What a unit passes on that would mix two executions of `op`."""
        message = f'two values of "{op}" met: its instance and every receiver of the first one died together'
        return Forward(Kind.ERROR, ModelError(self.operator.name, message))

    def all_delivered(self, unit: Unit) -> bool:
        """Whether every in-edge has delivered: a First then closes."""
        return len(unit.tokens) == len(self._edges)

    def deps(self, unit: Unit, every: bool = False) -> Deps:
        """Union of the dependencies of the tokens a unit runs on, or of every token it holds."""
        return merge(token.deps for token in (unit.tokens.values() if every else unit.used))

    def inputs(self, unit: Unit) -> tuple[tuple[str, Payload | None], ...]:
        """Per in-edge used: the payload, None where it was skipped."""
        return tuple(
            (token.source, token.payload if token.kind is Kind.VALUE else None) for token in unit.used
        )

    def renamed(self, unit: Unit) -> tuple[tuple[str, str], ...]:
        """By which names the tensors of an internal request are found in its payload; empty for any other."""
        for token in unit.used:
            if token.renamed:
                return token.renamed
        return ()

    def meta(self, unit: Unit) -> Meta:
        """The request's metadata, as the first token brought it."""
        return unit.used[0].meta

    def finish(self, unit: Unit, made: Deps, keep_from: frozenset[str]) -> None:
        """The unit was executed. Its tokens go, but for all of them if the execution could become orphan
        (`made` holds what it then depends on), and those from fan-out operators (`keep_from`), who may ask
        for them again."""
        keep = bool(made)
        unit.stage = Stage.DONE
        unit.used = ()
        unit.keep = keep
        unit.made = made
        if keep or self.operator.join is Join.FIRST:
            return
        for source in [source for source in unit.tokens if source not in keep_from]:
            unit.held[source] = unit.tokens.pop(source).value_id

    def complete(self, request: RequestId) -> list[Unit]:
        """Forget a request; its units."""
        return list(self._requests.pop(request, {}).values())

    def drop(self, unit: Unit) -> None:
        """Forget one unit."""
        units = self._requests.get(unit.id.request)
        if units is not None and units.pop(unit.id, None) is not None and not units:
            del self._requests[unit.id.request]

    def clear(self) -> None:
        """Forget everything."""
        self._requests.clear()

    def _combine(self, unit: Unit) -> tuple[Token, ...] | None:
        if self.operator.join is Join.INTERLEAVE:
            return tuple(unit.tokens.values()) or None
        if len(unit.tokens) < len(self._edges):
            return None
        return tuple(unit.tokens[source] for source in self._edges)

    def _first(self, unit: Unit) -> tuple[Token, ...] | None:
        """The first value not refused; an error or a refusal only when every in-edge has delivered and none
        is left."""
        for token in unit.tokens.values():
            if (
                token.kind is Kind.VALUE
                and token.source not in unit.refused
                and token.failure(self.operator.name) is None
            ):
                return (token,)
        return tuple(unit.tokens.values()) if len(unit.tokens) == len(self._edges) else None
