"""Requests that kill the model (protocol.md, section 3, at the end).

Who dies of a request cannot say so afterwards, so it is said before: an instance announces to the owners upstream that it is about to
run a suspect alone, and they hand that count to its successor with the token. Invariant: only a death while alone counts, and nobody
but the request itself gets the error.
"""

from collections.abc import Iterable, Mapping

from hams_protocol import limits, mutants
from hams_protocol.effects import Effect, Send
from hams_protocol.events import Member
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.joins import Unit
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import Attempt, Message, ModelError
from hams_protocol.outbox import Outbox


class Attempts:
    """Counts of one operator instance."""

    def __init__(self, graph: Graph, op: str) -> None:
        self._op = op
        self._limit = min(graph.data.recovery.max_attempts, limits.attempts_alone_max)

    @staticmethod
    def isolate(unit: Unit) -> None:
        """The unit runs in a batch of its own from now on."""
        unit.attempts = max(unit.attempts, 1)

    def is_poison(self, unit: Unit) -> bool:
        """Whether enough owners have died while running it alone."""
        return unit.attempts > self._limit and not mutants.on("poison-runs-for-ever")

    def error(self, unit: Unit) -> ModelError:
        """The reply of a poison request."""
        return ModelError(self._op, f"the model died {unit.attempts - 1} times while it ran this request alone")

    def announce(self, unit: Unit, knowledge: Knowledge) -> list[Effect]:
        """Before a suspect runs alone: if this instance dies of it, the count is one higher."""
        return self._tell([(unit, unit.attempts + 1)], knowledge)

    def survived(self, units: list[Unit], knowledge: Knowledge) -> list[Effect]:
        """The model has come through its run alone: should this instance die later, it was not of this."""
        return self._tell([(unit, unit.attempts) for unit in units if unit.attempts], knowledge)

    def died(self, units: Iterable[Unit], knowledge: Knowledge) -> list[Effect]:
        """The model died with these in it, and this proxy lives to name them."""
        batch = list(units)
        alone = len(batch) == 1 and batch[0].attempts > 0
        for unit in batch:
            unit.attempts = unit.attempts + 1 if alone else max(unit.attempts, 1)
        return self._tell([(unit, unit.attempts) for unit in batch], knowledge)

    @staticmethod
    def message(message: Message, outbox: Outbox) -> None:
        """Note what the owner downstream said of tokens that came from here."""
        if isinstance(message, Attempt):
            outbox.attempted(message.source, message.target, message.request, message.lane, message.attempts)

    def _tell(self, counts: list[tuple[Unit, int]], knowledge: Knowledge) -> list[Effect]:
        effects: list[Effect] = []
        for unit, attempts in counts:
            for token in unit.used:
                owner = knowledge.owner(token.source, unit.id.request)[0]
                if owner is not None:
                    effects.append(Send(owner, Attempt(token.source, self._op, token.request, token.lane, attempts)))
        return effects


def managers_of(members: Mapping[InstanceId, Member]) -> list[InstanceId]:
    """Every registered manager."""
    return sorted(member.instance for member in members.values() if member.of == "manager")
