"""Each kind of answer that is no reply says when it may be given. A kind that is not listed may never be
given.

What a client is told is compared with what was true: which models failed on its request, how often a model
died while it ran the request alone, how deep its feedback went, whether the key was taken, and whether its
time was up.
"""

import re
from collections import Counter
from typing import TYPE_CHECKING

from hams_protocol.effects import NotServed
from hams_protocol.graph import AdmissionPolicy, Join
from hams_protocol.ids import RequestId
from hams_protocol.messages import LATE, ModelError
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_sim import limits
from hams_sim.errors import Broken

if TYPE_CHECKING:
    from hams_sim.clients import Client
    from hams_sim.node import Node
    from hams_sim.world import World

POISON = re.compile(r"the model died (\d+) times while it ran this request alone")
HOPS = re.compile(r"feedback of (\S+) went on for more than maxHops=(\d+) internal requests")
UNREAD = re.compile(r"cannot read what ")
INCONSISTENT = re.compile(r"two (values|executions) of ")
LOST = re.compile(r"the state of (\S+) is lost")
NOT_STARTED = re.compile(r"(\S+) has not started")


class Refusals:
    """The judge of errors and refusals. `failed`: what models said of a request; `alone`: deaths of a model
    that ran a request alone, was about to, or had just done so: an upstream instance that hears of it by
    announcements cannot tell these apart, so the protocol counts all of them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._failed: dict[tuple[str, RequestId], set[str]] = {}
        self._declined: set[tuple[str, RequestId]] = set()
        self._alone: Counter[tuple[str, RequestId]] = Counter()
        self._fed: dict[RequestId, RequestId] = {}
        self._logged_at: dict[tuple[str | None, str], float] = {}
        self._asked: dict[RequestId, tuple[str | None, str]] = {}
        self._completed: dict[tuple[int, bool], dict[RequestId, None]] = {}
        self._unpromised: dict[tuple[str | None, str], Client] = {}

    # -- what happens ----------------------------------------------------------------------------------------

    def failed(self, op: str, request: RequestId, message: str) -> None:
        """A model says that it failed on a request."""
        self._failed.setdefault((op, request), set()).add(message)

    def declined(self, op: str, request: RequestId) -> None:
        """A model refuses an input of a request, so that a First tries the next one."""
        self._declined.add((op, request))

    def died(self, node: "Node") -> None:
        """A model has died, alone or with its proxy."""
        # Not `Vertex`: an abstract class knows none of its subclasses where they are machine code.
        if node.model is None or not isinstance(node.machine, StatefulMachine | StatelessMachine):
            return
        alone = node.model.alone
        for request in node.machine.attempts.announced_requests | (
            set() if alone is None else {alone.request}
        ):
            self._alone[node.of, request] += 1

    def fed_back(self, request: RequestId, value: str) -> None:
        """A value became an internal request."""
        origin = self._world.recorder.made_for.get(value)
        if origin is not None:
            self._fed[request] = origin

    def origin(self, request: RequestId) -> RequestId | None:
        """The request of which this one is the feedback; None if a client sent it."""
        return self._fed.get(request)

    # -- what may be said ------------------------------------------------------------------------------------

    def check_error(self, client: "Client", request: RequestId, error: ModelError) -> None:
        """A reply that is an error. That the two values of a torn fan-out are excused is judged by
        `checks`."""
        of = self._family(request)
        if INCONSISTENT.match(error.message):
            return
        if match := POISON.fullmatch(error.message):
            deaths = max(self._alone[error.op, item] for item in of)
            least = max(int(match.group(1)), self._world.graph.data.recovery.max_attempts)
            self._demand(
                deaths >= least,
                client,
                error.message,
                f"{error.op}'s model died {deaths} times while it ran it alone",
            )
        elif match := HOPS.fullmatch(error.message):
            depth = self._depth(request)
            self._demand(
                depth >= int(match.group(2)), client, error.message, f"its feedback was {depth} deep"
            )
        elif UNREAD.match(error.message):
            sent = any(
                other.call.unreadable and (other is client or other.call.is_same_as(client.call))
                for other in self._world.clients.values()
            )
            unread = sent or not of.isdisjoint(self._world.unread)
            self._demand(unread, client, error.message, "everybody could read what was made of it")
        elif error.status == LATE:
            shed = any((error.op, item) in self._world.budgets.shed for item in of)
            self._demand(shed, client, error.message, f"{error.op} shed nothing of it in time")
        elif error.status == 422:
            first = self._world.graph.operators[error.op].join is Join.FIRST
            declined = any((error.op, item) in self._declined for item in of)
            self._demand(first and declined, client, error.message, f"{error.op} refused none of its inputs")
        else:
            said = set().union(*(self._failed.get((error.op, item), set()) for item in of))
            self._demand(
                error.message in said,
                client,
                error.message,
                f"{error.op}'s model said {sorted(said) or 'nothing'} of it",
            )

    def check_not_served(self, client: "Client", outcome: NotServed) -> None:
        """Judge a call that got no reply."""
        world, call = self._world, client.call
        if outcome.status == 504 and not outcome.begun:
            self._check_unpromised(client, outcome.message)
        elif outcome.status == 504:
            waited_s = world.now - client.sent_at
            self._demand(
                waited_s >= call.budget_s,
                client,
                outcome.message,
                f"it had waited for {waited_s:.1f} s",
            )
        elif outcome.status == 409:
            others = {other.call.digest for other in world.clients.values() if other.call.key == call.key}
            self._demand(
                call.key is not None and len(others) > 1,
                client,
                outcome.message,
                "nobody used its key with another payload",
            )
        elif outcome.status == 410:
            later = self._completed_after(call.key, call.digest)
            replies_max = world.graph.data.frontend.replies_kept
            self._demand(
                later is not None and later >= replies_max,
                client,
                outcome.message,
                "it is not complete"
                if later is None
                else f"only {later} requests are complete since, {replies_max} replies are kept",
            )
        elif outcome.status == 429:
            most = world.graph.data.frontend.max_in_flight
            self._demand(
                world.calls_open >= most,
                client,
                outcome.message,
                f"{world.calls_open} calls are open, {most} are allowed",
            )
        elif outcome.status == 503:
            self._check_unserved(client, outcome.message)
        else:
            self._demand(False, client, outcome.message, f"nothing is answered with {outcome.status}")

    def _check_unpromised(self, client: "Client", message: str) -> None:
        """Nothing of it had begun, so no log had it when its client asked. Its client does not ask again, so
        none gets it later (`logged`). Only under a key may another have it logged meanwhile: somebody who
        asks the same, or an earlier attempt that is still on its way."""
        world, call = self._world, client.call
        promised = world.graph.data.frontend.admission is AdmissionPolicy.PROMISE
        self._demand(promised, client, message, "its graph admits everything")
        asked = (call.key, call.digest)
        logged_at = self._logged_at.get(asked)
        if logged_at is not None and not world.losses.said:
            by_another = call.key is not None and (client.unsettled > 1 or self._is_asked_besides(client))
            self._demand(logged_at > client.sent_at and by_another, client, message, "it is logged")
        if client.unsettled == 1:
            self._unpromised[asked] = client

    def completed(self, request: RequestId) -> None:
        """A request is complete: the reply to it is the newest of its shard and of those with a key, or of
        those without."""
        key, _ = self._asked.get(request, (None, ""))
        self._completed.setdefault((request.shard, key is not None), {}).setdefault(request)

    def _completed_after(self, key: str | None, digest: str) -> int | None:
        """How many requests, whose replies are kept beside it, are complete since the one that was asked so
        is; None: it is not complete itself. What came with a key is forgotten with its reply."""
        longest = None
        for (_, keyed), requests in self._completed.items():
            if keyed != (key is not None):
                continue
            order = list(requests)
            for number, request in enumerate(order):
                asked = self._asked.get(request)
                if asked is not None and asked[0] == key and (keyed or asked[1] == digest):
                    longest = max(len(order) - 1 - number, -1 if longest is None else longest)
        return longest

    def logged(self, request: RequestId, key: str | None, digest: str) -> None:
        """A client's request was committed in a log. Raises Broken if that client was told that nothing had
        begun."""
        self._asked.setdefault(request, (key, digest))
        self._logged_at.setdefault((key, digest), self._world.now)
        refused = self._unpromised.get((key, digest))
        if refused is not None and not self._is_asked_besides(refused):
            raise Broken(
                "I2", f"{refused.name} was told that nothing had begun, and then its request was logged"
            )

    def _is_asked_besides(self, client: "Client") -> bool:
        """Whether another client asks the same."""
        others = (other for other in self._world.clients.values() if other is not client)
        return any(other.call.is_same_as(client.call) for other in others)

    def _check_unserved(self, client: "Client", message: str) -> None:
        world = self._world
        if match := LOST.fullmatch(message):
            self._demand(match.group(1) in world.losses.said, client, message, "that was never said")
        else:
            node = client.frontend
            young = node is not None and world.now - node.born_at <= limits.registered_known_s
            empty = any(
                world.now - since <= limits.registered_known_s for since in world.truth.unowned_until.values()
            )
            behind = node is not None and not world.calm.is_well(node)
            known = message in (
                "the graph has not started",
                "no frontend owns the request's shard",
            ) or NOT_STARTED.fullmatch(message)
            self._demand(
                bool(known) and (young or empty or behind),
                client,
                message,
                "every set and slot has an owner, and its frontend has known of them",
            )

    def _demand(self, holds: bool, client: "Client", message: str, but: str) -> None:
        if not holds:
            raise Broken("I2", f"{client.name} was told {message!r}, but {but}")

    def _family(self, request: RequestId) -> set[RequestId]:
        """A request, and the internal ones that came of it."""
        family = {request}
        for child, origin in self._fed.items():
            if origin in family:
                family.add(child)
        return family

    def _depth(self, request: RequestId) -> int:
        depth = {request: 0}
        for child, origin in self._fed.items():
            if origin in depth:
                depth[child] = depth[origin] + 1
        return max(depth.values())
