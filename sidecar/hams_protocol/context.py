"""What the parts of one machine share while it takes a step: the time of the step, and its effects so far."""

from collections.abc import Sequence

from hams_protocol.effects import Effect, Send, Stop
from hams_protocol.ids import InstanceId
from hams_protocol.messages import Message


class StepClock:
    """The time of one machine's present step, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0


class Context(StepClock):
    """One machine's present step. `out` are its effects, in the order in which they must be performed
    (`effects`)."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[Effect] = []

    def begin(self, now: float) -> None:
        """A step begins, with no effect so far."""
        self.now = now
        self.out = []

    def up_to_stop(self) -> list[Effect]:
        """The effects of an instance that has stopped: it does nothing more under that id (section 6), so
        what would follow its Stop goes."""
        for index, effect in enumerate(self.out):
            if isinstance(effect, Stop):
                return self.out[: index + 1]
        return self.out

    def emit(self, effect: Effect) -> None:
        """Add an effect."""
        self.out.append(effect)

    def emit_all(self, effects: Sequence[Effect]) -> None:
        """Add effects."""
        self.out.extend(effects)

    def send(self, target: InstanceId, message: Message) -> None:
        """Add a message to an instance."""
        self.out.append(Send(target, message))


class InvariantError(Exception):
    """A rule of protocol.md does not hold here: this instance must not go on (ours, not retryable).

    This is how the core states a rule. An `assert` tells the type checker what the lines around it have made
    so.
    """
