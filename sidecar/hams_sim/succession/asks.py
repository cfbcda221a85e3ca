"""Requests of clients across both shapes, and what one of them is to the core that it reaches.

An `Ask` is one request at one core: to that incarnation's history it is a client of its own. A `CallClient`
asks frontends of either incarnation, again and again if it has a key, and compares nothing itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hams_history.lines import CallLine
from hams_protocol.effects import NotServed, Replied
from hams_protocol.events import ClientGone, ClientRequest
from hams_protocol.messages import Meta
from hams_sim import limits
from hams_sim.clients import Call, Client
from hams_sim.errors import Broken
from hams_sim.recorder import reply_digest

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.succession.incarnation import SimIncarnation
    from hams_sim.succession.process import FrontendProcess
    from hams_sim.succession.resource import SimResource

Outcome = Replied | NotServed


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks, and until when it waits."""

    call: Call
    until: float


def status_of(outcome: Replied) -> tuple[str, str]:
    """What a reply says, to be compared with another one to the same key."""
    failed = any(token.error for token in outcome.tokens)
    message = "" if outcome.error is None else outcome.error.message
    return ("ok" if outcome.error is None else "error"), message or reply_digest(outcome.tokens, failed)


class Ask(Client):
    """One request at one core."""

    __slots__ = ("answer", "serial", "until")

    def __init__(
        self, world: "SimIncarnation", request: Request, node: "Node", answer: Callable[[Outcome], None]
    ) -> None:
        super().__init__(world, request.call)
        self.serial = world.next_ask()
        self.answer = answer
        self.until = request.until
        self.frontend = node

    @property
    def name(self) -> str:
        """See `Client`: unique in its incarnation's history."""
        return f"c{self.call.number}.{self.serial}"

    def submit(self) -> None:
        """Give it to the core."""
        world, call, node = self.world, self.call, self.frontend
        assert node is not None, "an ask has a frontend"
        world.recorder.lines.append(CallLine(client=self.name, key=call.key, digest=call.digest))
        world.calls_open += 1
        self.began_at = world.now
        self.sent_at = self.until - limits.client_budget_s
        self.attempt = world.new_handle(self)
        meta = Meta(trace=self.name, budget_s=max(self.until - world.now, 0.001))
        world.feed(node, ClientRequest(self.attempt, call.key, call.digest, meta, self.payload, None, ("x",)))

    def broken(self) -> None:
        """The instance is over: nobody knows what became of the request."""
        self.ends("error", None, NotServed(504, "the outcome is not known here"))

    def answered(self, attempt: int, outcome: Outcome) -> None:
        """The core's answer."""
        if attempt != self.attempt or self.done:
            return
        self.outcome = outcome
        if isinstance(outcome, NotServed):
            self.world.refusals.check_not_served(self, outcome)
            self.ends("conflict" if outcome.status == 409 else "refused", None, outcome)
        else:
            failed = any(token.error for token in outcome.tokens)
            status = "error" if outcome.error is not None else "ok"
            self.ends(status, reply_digest(outcome.tokens, failed), outcome)

    def leave(self) -> None:
        """Its client waits no more: the request goes on."""
        if not self.done and self.frontend is not None and self.frontend.alive:
            self.world.feed(self.frontend, ClientGone(self.attempt))
            self.answer = _nobody
            self.ends("error", None, NotServed(504, "its client has left"))

    def ends(self, status: str, digest: str | None, outcome: Outcome) -> None:
        """End the question with this outcome, unless it has ended."""
        if not self.done:
            self._finish(status, digest)
            self.answer(outcome)


def _nobody(outcome: Outcome) -> None:
    """Nobody waits."""


class CallClient:
    """The client of one call, who knows the addresses of frontends of all incarnations."""

    def __init__(self, resource: "SimResource", call: Call) -> None:
        self.resource = resource
        self.call = call
        self.status = ""
        self.said = ""
        self.attempts = 0
        self.began_at = 0.0
        self.broke = False
        self._process: FrontendProcess | None = None
        self._connection = 0
        self._until = 0.0

    def start(self) -> None:
        """The call begins."""
        if self.attempts:
            return
        self.resource.calls_open += 1
        self.began_at = self.resource.clock.now
        self.send()

    def send(self) -> None:
        """One attempt at some frontend."""
        if self.status:
            return
        self.attempts += 1
        if self.attempts > limits.client_attempts_max:
            raise Broken("I7", f"c{self.call.number} was not answered in {self.attempts} attempts")
        there = self.resource.frontends()
        if not there:
            self._again(0.05)
            return
        process = self._process = self.resource.rng.choice(there)
        attempt = self.attempts
        self._connection = process.visited(lambda: self._broken(attempt))
        self._until = self.resource.clock.now + limits.client_budget_s
        self.resource.clock.after(0.0005, self._reach, attempt, process)
        patience_s = 1.0 + self.resource.rng.random()
        self.resource.clock.after(patience_s, self._give_up_if_stuck, attempt, process)

    def _reach(self, attempt: int, process: "FrontendProcess") -> None:
        if attempt != self.attempts or self.status:
            return
        if not process.alive:
            self._broken(attempt)
            return
        node = process.node
        if node is not None and node.host_cut & 2:
            self.resource.clock.after(0.03, self._reach, attempt, process)
            return
        request = Request(self.call, self._until)

        def submit() -> None:
            give_up = process.submit(request, lambda outcome: self._answered(attempt, process, outcome))
            if self.call.impatient:
                self.resource.clock.after(0.004, process.do, self._give_up, attempt, give_up)

        process.do(submit)

    def _give_up(self, attempt: int, give_up: Callable[[], None]) -> None:
        """An impatient client closes its connection and does not come back."""
        if attempt == self.attempts and not self.status:
            self._finish("left", "")
            give_up()

    def _give_up_if_stuck(self, attempt: int, process: "FrontendProcess") -> None:
        """A client gives up on a frontend that is paused or cut off; on a healthy one it goes on waiting."""
        if attempt != self.attempts or self.status:
            return
        if process.is_reachable and process.reaches_etcd:
            self.resource.clock.after(1.0, self._give_up_if_stuck, attempt, process)
            return
        self._broken(attempt)

    def _broken(self, attempt: int) -> None:
        """The connection broke: nobody knows what became of the request."""
        if attempt != self.attempts or self.status:
            return
        self.broke = True
        if self.call.key is None:
            self._finish("error", "broken")
        else:
            self._again(0.02)

    def _answered(self, attempt: int, process: "FrontendProcess", outcome: Outcome) -> None:
        if attempt != self.attempts or self.status:
            return
        if not process.is_reachable:
            self.resource.clock.after(0.03, self._answered, attempt, process, outcome)
            return
        if isinstance(outcome, Replied):
            self._finish(*status_of(outcome))
        elif outcome.status in (429, 503) or (outcome.status == 504 and self.call.key is not None):
            self._again(max(outcome.retry_after_s, 0.03))
        else:
            self._finish(str(outcome.status), "")

    def _again(self, delay_s: float) -> None:
        self._leave()
        self.attempts += 1
        self.resource.clock.after(delay_s * (0.5 + self.resource.rng.random()), self.send)

    def _leave(self) -> None:
        if self._process is not None:
            self._process.left(self._connection)
            self._process = None

    def _finish(self, status: str, said: str) -> None:
        self._leave()
        self.status, self.said = status, said
        self.resource.calls_open -= 1
        self.resource.answered(self)
