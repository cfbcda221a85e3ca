"""Open-loop clients: each sends its request when its time comes, retries under its idempotency key if it has
one, and remembers what it got."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from hams_history.lines import CallLine, RetLine
from hams_protocol.effects import NotServed, Replied
from hams_protocol.events import ClientGone, ClientRequest
from hams_protocol.messages import Meta
from hams_sim import limits
from hams_sim.errors import Broken
from hams_sim.payload import SimPayload
from hams_sim.recorder import reply_digest

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


@dataclass
class Call:
    """One planned request. `poison`: the operator whose model it kills; `impatient`: its client goes away at
    once.

    `unreadable`: the instances that cannot read its payload, see `World.unreadable`. `outputs`: the reply
    tensors that it asks for, if not all.
    """

    number: int
    at: float
    key: str | None
    digest: str
    poison: str = ""
    impatient: bool = False
    unreadable: str = ""
    budget_s: float = limits.client_budget_s
    session: str = ""
    outputs: tuple[str, ...] | None = None

    @property
    def pause_s(self) -> float:
        """Before it asks again. Who waits for little each time asks oftener: with the usual pause it would
        use its attempts up while one lost state is waited for."""
        return limits.client_again_s if self.budget_s >= limits.client_budget_s else limits.hurried_again_s

    def is_same_as(self, other: "Call") -> bool:
        """Whether both are one request for the service: one key, one payload."""
        return self.key is not None and (self.key, self.digest) == (other.key, other.digest)


class Client:
    """The client of one call. `unsettled`: attempts that reached a frontend, and may have begun something."""

    __slots__ = (
        "attempt",
        "attempts",
        "began_at",
        "call",
        "done",
        "frontend",
        "outcome",
        "payload",
        "sent_at",
        "unsettled",
        "world",
    )

    def __init__(self, world: "World", call: Call) -> None:
        self.world = world
        self.call = call
        self.attempts = 0
        self.attempt = 0
        self.unsettled = 0
        self.done = False
        self.sent_at = 0.0
        self.began_at = 0.0
        self.frontend: Node | None = None
        self.outcome: Replied | NotServed | None = None
        self.payload = SimPayload(
            "", None, call.number, (), call.poison, unreadable=world.unreadable(call.unreadable, None)
        )

    @property
    def name(self) -> str:
        """As the history calls it."""
        return f"c{self.call.number}"

    def start(self) -> None:
        """The call begins."""
        self.world.recorder.lines.append(
            CallLine(client=self.name, key=self.call.key, digest=self.call.digest)
        )
        self.world.calls_open += 1
        self.began_at = self.world.now
        self.send()

    def send(self) -> None:
        """One attempt at some frontend."""
        world = self.world
        if self.done:
            return
        self.attempts += 1
        late_s = 2 * world.replaced_s  # two that die one after the other, each replaced late
        if self.attempts > limits.client_attempts_max + late_s / limits.client_again_s:
            raise Broken("I7", f"{self.name} was not answered in {self.attempts} attempts")
        frontends = [node for node in world.nodes.values() if node.is_frontend and node.alive]
        self.frontend = None
        if not frontends:
            self._again(0.05)
            return
        node = world.client_rng.choice(frontends)
        self.frontend = node
        self.attempt = world.new_handle(self)
        self.sent_at = world.now
        call = self.call
        event = ClientRequest(
            self.attempt,
            call.key,
            call.digest,
            Meta((("session", call.session),) if call.session else (), self.name, call.budget_s),
            self.payload,
            call.outputs,
            ("x",),
        )
        world.after(0.0005, self._reach, self.attempt, node, event)
        world.after(1.0 + world.client_rng.random(), self._timeout, self.attempt)
        if call.impatient:
            world.after(0.004, self._leave, self.attempt, node)

    def _leave(self, attempt: int, node: "Node") -> None:
        """An impatient client closes its connection and does not come back."""
        if attempt == self.attempt and not self.done:
            self.world.feed(node, ClientGone(attempt))
            self._finish("error", None)

    def _reach(self, attempt: int, node: "Node", event: ClientRequest) -> None:
        if attempt != self.attempt or self.done:
            return
        if not node.alive:
            self._again(0.02)
        elif node.host_cut & 2:
            self.world.after(0.03, self._reach, attempt, node, event)
        else:
            self.unsettled += 1
            self.world.feed(node, event)

    def _timeout(self, attempt: int) -> None:
        """A client gives up on a frontend that is paused or cut off; on a healthy one it goes on waiting."""
        if attempt != self.attempt or self.done or self.frontend is None:
            return
        if self.frontend.sound and not self.frontend.etcd_cut:
            self.world.after(1.0, self._timeout, attempt)
            return
        self.world.seen("client gave up on a frontend")
        self.broken()

    def broken(self) -> None:
        """The connection broke: nobody knows what became of the request."""
        if self.done:
            return
        if self.call.key is None:
            self._finish("error", None)
        else:
            self._again(0.02)

    def _again(self, delay: float) -> None:
        self.attempt = 0
        self.frontend = None
        self.world.after(delay * (0.5 + self.world.client_rng.random()), self.send)

    def answered(self, attempt: int, outcome: Replied | NotServed) -> None:
        """The frontend's answer."""
        if attempt != self.attempt or self.done:
            return
        if self.frontend is None:
            return
        if self.frontend.host_cut & 1:
            self.world.after(0.03, self.answered, attempt, outcome)
            return
        if isinstance(outcome, NotServed):
            self.world.refusals.check_not_served(self, outcome)
            if outcome.status in (429, 503, 504):
                self.world.seen(f"client told {outcome.status}")
                if outcome.status == 429 or not outcome.begun:
                    self.unsettled -= 1
                if outcome.status == 504 and not outcome.begun:
                    self.world.seen("refused by promise")
                    self._finish("error" if self.unsettled else "refused", None)
                elif self.call.key is not None or outcome.status != 504:
                    self._again(max(outcome.retry_after_s, self.call.pause_s))
                else:
                    self._finish("error", None)
            else:
                self._finish("conflict" if outcome.status == 409 else "refused", None)
            self.outcome = outcome
            return
        self.outcome = outcome
        failed = outcome.error is not None
        if (
            outcome.error is not None
            and self.world.deadly
            and not self.call.poison
            and BLAMED in outcome.error.message
        ):
            raise Broken(
                "I2", f"{self.name} is no poison request, but its reply says: {outcome.error.message}"
            )
        self._judge_unreadable(outcome)
        self._finish(
            "error" if failed else "ok",
            reply_digest(outcome.tokens, any(token.error for token in outcome.tokens)),
        )

    def _judge_unreadable(self, outcome: Replied) -> None:
        """An unreadable request ends in an error; a readable one never gets the error of an unreadable
        one."""
        is_unread = outcome.error is not None and UNREAD in outcome.error.message
        if is_unread and not self.call.unreadable and outcome.request not in self.world.unread:
            raise Broken("I2", f"{self.name} sent nothing unreadable, but its reply says: {outcome.error}")
        if self.call.unreadable == "all" and outcome.error is None:
            raise Broken("I2", f"{self.name} sent what nobody can read, and got a value")

    def _finish(self, status: str, digest: str | None) -> None:
        self.done = True
        self.world.calls_open -= 1
        since = max(self.began_at, self.world.struck_at)
        self.world.slowest_s = max(self.world.slowest_s, self.world.now - since)
        self.world.recorder.lines.append(
            RetLine(client=self.name, key=self.call.key, status=status, digest=digest)
        )


def draw_calls(rng: Random, count: int, span_s: float, poisonable: list[str]) -> list[Call]:
    """What clients will do: mostly fresh keys, some without, some keys twice, some with another payload."""
    calls: list[Call] = []
    burst = rng.random() < 0.3
    for number in range(count):
        at = (
            rng.choice((0.0, span_s / 3, span_s * 2 / 3)) + rng.random() * 0.02
            if burst
            else rng.random() * span_s
        )
        key: str | None = f"k{number}"
        digest = f"d{number}"
        chance = rng.random()
        if chance < 0.15:
            key = None
        elif chance < 0.27 and calls:
            other = rng.choice(calls)
            if other.key is not None:
                key = other.key
                digest = other.digest if rng.random() < 0.7 else digest
        calls.append(Call(number, at, key, digest, impatient=rng.random() < 0.04))
    if poisonable and rng.random() < 0.12:
        calls[rng.randrange(len(calls))].poison = rng.choice(poisonable)
    first = {call.key: call for call in reversed(calls)}
    for call in calls:
        if call.key is not None and call.digest == first[call.key].digest:
            call.poison = first[call.key].poison
    return calls


def spoil(rng: Random, calls: list[Call], share: float) -> None:
    """Some payloads cannot be read, by anybody or by half of all instances; the same key means the same
    payload."""
    for call in calls:
        if rng.random() < share:
            call.unreadable = rng.choice(("all", "some"))
    first = {(call.key, call.digest): call for call in reversed(calls)}
    for call in calls:
        if call.key is not None:
            call.unreadable = first[call.key, call.digest].unreadable


def ask_for_parts(rng: Random, calls: list[Call], outputs: list[str]) -> None:
    """Some calls ask for one reply tensor only, whose reply does not wait for the others; the same key means
    the same one."""
    for call in calls:
        if rng.random() < 0.5:
            call.outputs = (rng.choice(outputs),)
    first = {call.key: call for call in reversed(calls)}
    for call in calls:
        if call.key is not None:
            call.outputs = first[call.key].outputs


def gather(calls: list[Call]) -> None:
    """All at once, so that they share batches; the same key means the same poison."""
    for call in calls:
        call.at = call.number * 0.001
    poison = {call.key: call.poison for call in calls if call.key is not None and call.poison}
    for call in calls:
        call.poison = poison.get(call.key or "", call.poison)


UNREAD = "cannot read what"
"""What only a request with an unreadable payload, or whose models made one, may be told."""

BLAMED = "while it ran this request alone"
"""What only a poison request may be told."""
