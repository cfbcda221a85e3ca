"""What is left of a request's deadline, in whatever is sent of it: it falls while a token waits, is sent
again or has another owner, and never grows (protocol.md, section 1).

The simulator has one clock, so it can say when a budget ends that a message names: the time of sending and
the budget. An instance may not name a later end than those it was told itself, whether it hands a token on or
tells others of one in a record, a copy or an answer. What is on disk ends when its writer said. Nor may an
instance say of a reply that it was released at another time than it was, or of an error that it took so long.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hams_protocol import limits as core
from hams_protocol.due import FOREVER
from hams_protocol.effects import NoteReply
from hams_protocol.graph import FRONTEND, WhenLate
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    LATE,
    Completion,
    Deliver,
    Kind,
    Message,
    ReplyAge,
    SlotAnswer,
    StateCopy,
    StateRecord,
    Token,
)
from hams_sim.errors import Broken

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World

tolerance_s = 2 * core.budget_grain_s
"""What the core may leave unsaid."""


shed_early_max_s = 1.0
"""No policy may take less than this for too little: batches of a simulated model take some milliseconds."""

lost_max_s = 0.02
"""What may be missing of a budget that is told, in seconds."""


class KnownEnds:
    """The ends of budgets that one instance was told: by tokens, of which the earliest counts, and of
    requests of which no token came, by what others told of them, of which the latest counts.

    `arrived`: when the first token of a request came; `rest_s`: the longest time from there to a reply, of
    those that it was told."""

    __slots__ = ("arrived", "by_records", "by_tokens", "earliest", "fresh", "heard", "injected", "rest_s")

    def __init__(self) -> None:
        self.by_tokens: dict[RequestId, float] = {}
        self.by_records: dict[RequestId, float] = {}
        self.fresh: dict[RequestId, float] = {}
        self.heard: dict[RequestId, float] = {}
        self.earliest: dict[RequestId, float] = {}
        self.injected: dict[tuple[RequestId, int], float] = {}
        self.arrived: dict[RequestId, float] = {}
        self.rest_s = 0.0

    def settle(self) -> None:
        """What tokens and others have told is known now."""
        for request, due in self.fresh.items():
            self.by_tokens[request] = min(due, self.by_tokens.get(request, due))
        for request, due in (*self.fresh.items(), *self.heard.items()):
            self.earliest[request] = min(due, self.earliest.get(request, due))
        self.fresh.clear()
        self.heard.clear()


class Budgets:
    """The judge of all budgets of one history."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._known: dict[str, KnownEnds] = {}
        self._written: dict[tuple[str, int, int], dict[RequestId, float]] = {}
        self._replied: dict[RequestId, list[float]] = {}
        self.shed: set[tuple[str, RequestId]] = set()

    def received(self, node: "Node", messages: Sequence[Message]) -> None:
        """Messages are taken in together. What answers one of them may not know yet of those behind it, so
        an end that they tell counts from the next ones on."""
        known_ends = self._of(node)
        known_ends.settle()
        for message in messages:
            self._take_in(known_ends, message)
        if len(messages) == 1:
            known_ends.settle()

    def _take_in(self, known_ends: KnownEnds, message: Message) -> None:
        if type(message) is Deliver:
            token = message.token
            due = self._end_of(token.meta.budget_s)
            known_ends.fresh[token.request] = min(due, known_ends.fresh.get(token.request, due))
            known_ends.arrived.setdefault(token.request, self._world.now)
        elif type(message) is Completion:
            for reply in message.replies:
                since = known_ends.arrived.get(reply.request, self._world.now)
                known_ends.rest_s = max(known_ends.rest_s, self._world.now - since)
        else:
            for token, left_s in budgets_in(message):
                self._heard(known_ends, token, left_s)

    def read(self, node: "Node", copy: StateCopy) -> None:
        """A checkpoint is read, and may be all that this instance is told."""
        known, ends = self._of(node).by_records, self._written.get((copy.op, copy.epoch, copy.version), {})
        for request, due in ends.items():
            known.setdefault(request, due)

    def written(self, copy: StateCopy) -> None:
        """A checkpoint is written: its budgets go on running out."""
        self._written[copy.op, copy.epoch, copy.version] = {
            token.request: self._end_of(left_s) for token, left_s in budgets_in(copy)
        }

    def goes_on(self, before: "Node", node: "Node") -> None:
        """A process goes on under another id: it was told what it was told."""
        self._known[node.id] = self._of(before)

    def _heard(self, known_ends: KnownEnds, token: Token, left_s: float) -> None:
        due, known, heard = self._end_of(left_s), known_ends.by_records, known_ends.heard
        known[token.request] = max(due, known.get(token.request, due))
        heard[token.request] = min(due, heard.get(token.request, due))

    def sent(self, node: "Node", message: Message) -> None:
        """A message leaves. Raises Broken if its budget ends later than it can, or an age is wrong."""
        if type(message) is Completion:
            for reply in message.replies:
                self._age_sent(node, reply)
        if type(message) is not Deliver:
            for token, left_s in budgets_in(message):
                self._ends_in_time(node, token, left_s, self._known_end(node, token))
            return
        token = message.token
        if token.error is not None and token.error.status == LATE:
            self._was_shed(node, token)
        known = (
            self._injected_until(node, message) if token.source == FRONTEND else self._known_end(node, token)
        )
        self._ends_in_time(node, token, token.meta.budget_s, known)

    def _known_end(self, node: "Node", token: Token) -> float | None:
        known_ends = self._of(node)
        known = known_ends.by_tokens.get(token.request)
        return known_ends.by_records.get(token.request) if known is None else known

    def _ends_in_time(self, node: "Node", token: Token, left_s: float, known: float | None) -> None:
        self._is_not_lost(node, token, left_s)
        if known is None or 0.0 < left_s <= core.hop_budget_min_s + tolerance_s:
            return
        grown_s = self._end_of(left_s) - known
        if grown_s > tolerance_s:
            self._grew(node, token, left_s, grown_s)

    def _is_not_lost(self, node: "Node", token: Token, left_s: float) -> None:
        """Raises Broken if an open request's budget ends earlier than this instance was told, or injected
        itself, of that request or of those whose feedback it is."""
        known_ends = self._of(node)
        due = known_ends.earliest.get(token.request, FOREVER)
        if token.source == FRONTEND or due == FOREVER or token.request in node.machine.knowledge.completed:
            return
        lost_s = due - self._world.now - left_s
        if left_s <= 0.0 or lost_s <= lost_max_s:
            return
        names = {token.request, *self._origins(token.request)}
        ends = [known_ends.earliest.get(name, FOREVER) for name in names]
        ends += [end for (name, _), end in known_ends.injected.items() if name in names]
        if min(ends, default=FOREVER) - self._world.now - left_s > lost_max_s:
            raise Broken(
                "budget", f"{node.id} tells {left_s:.4f} s of {token.request}, {lost_s:.4f} s too few"
            )

    def _origins(self, request: RequestId) -> Iterator[RequestId]:
        """Of which request this is the feedback, and of which that is."""
        origin = self._world.refusals.origin(request)
        while origin is not None:
            yield origin
            origin = self._world.refusals.origin(origin)

    def _end_of(self, left_s: float) -> float:
        """When so much is up; never if it is 0, which means that there is no deadline."""
        return self._world.now + left_s if left_s > 0.0 else FOREVER

    def replied(self, note: NoteReply) -> None:
        """A reply is about to be released; again, if a new owner of its shard does not know that it was."""
        if not any(token.kind is Kind.ERROR for token in note.tokens):
            self._replied.setdefault(note.request, []).append(self._world.now)

    def _age_sent(self, node: "Node", reply: ReplyAge) -> None:
        """An age of a reply is told. Raises Broken if it was not released then."""
        root: RequestId | None = reply.request
        while root is not None and root not in self._replied:
            root = self._world.refusals.origin(root)
        at = self._world.now - reply.seconds
        if root is None or not any(abs(at - known) <= tolerance_s for known in self._replied[root]):
            raise Broken(
                "rest",
                f"{node.id} says that {reply.request} was answered {reply.seconds:.4f} s ago; it was not",
            )
        self._world.seen("reply age")

    def _was_shed(self, node: "Node", token: Token) -> None:
        """An operator gave a request up. Raises Broken if it had time enough, or does not shed."""
        assert token.error is not None
        op = token.error.op
        known = self._of(node).by_tokens.get(token.request)
        first = op == node.of and (op, token.request) not in self.shed
        if first and self._world.graph.operators[op].batch.when_late is not WhenLate.SHED:
            raise Broken("budget", f"{node.id} gave {token.request} up, and its graph says that {op} runs it")
        early_s = shed_early_max_s + self._of(node).rest_s
        if first and known is not None and known - self._world.now > early_s:
            left_s = known - self._world.now
            raise Broken("budget", f"{node.id} gave {token.request} up with {left_s:.3f} s left")
        self._world.seen("shed")
        self._world.errored.add(token.request)
        self.shed.add((op, token.request))

    def _injected_until(self, node: "Node", message: Deliver) -> float | None:
        """When the budget of an injected request ended as it was first sent by this owner, or that of the
        request of which it is the feedback."""
        token = message.token
        due = self._world.now + token.meta.budget_s
        known_ends = self._of(node).injected
        known = known_ends.get((token.request, message.epoch))
        if known is None:
            known_ends[token.request, message.epoch] = due
            origin = self._world.refusals.origin(token.request)
            known = None if origin is None else known_ends.get((origin, message.epoch))
        return known

    def _grew(self, node: "Node", token: Token, left_s: float, by_s: float) -> None:
        raise Broken(
            "budget",
            f"{node.id} hands {token.value_id} of {token.request} on with {left_s:.4f} s left, "
            f"{by_s:.4f} s more than it was told",
        )

    def _of(self, node: "Node") -> KnownEnds:
        known_ends = self._known.get(node.id)
        if known_ends is None:
            known_ends = self._known[node.id] = KnownEnds()
        return known_ends


def budgets_in(message: Message) -> list[tuple[Token, float]]:
    """The tokens that a message tells of beside the one that it hands on, with what it says is left of their
    budgets. Of fan-out inputs it says nothing: they are recorded as they came, and nobody goes by that."""
    if type(message) is SlotAnswer:
        return [(token, token.meta.budget_s) for token in message.tokens]
    if type(message) is StateRecord:
        pairs = zip(message.units, message.left_s, strict=True)
        return [(token, left_s) for item, left_s in pairs for _, token in item.outputs]
    if type(message) is StateCopy:
        return [(token, token.meta.budget_s) for item in message.units for _, token in item.outputs]
    return []
