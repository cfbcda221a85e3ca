"""What a role of an instance in its replica set may be told. `Role` itself is a standby: it has no state, and
nothing is asked of it.

`StatefulMachine.become` is the one place where an instance changes roles.
"""

from hams_protocol.context import Context
from hams_protocol.deps import Deps
from hams_protocol.due import Timed
from hams_protocol.effects import AbandonBatch
from hams_protocol.events import (
    BatchDone,
    BatchFailed,
    Captured,
    Loaded,
    ModelDied,
    UpdateWanted,
)
from hams_protocol.ids import InstanceId
from hams_protocol.joins import Unit
from hams_protocol.messages import Message


class Role(Timed):
    """A standby, and what every other role does unless it says otherwise."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._ctx = ctx

    @property
    def name(self) -> str:
        """For status, readiness and managers: `primary`, `backup`, `joining` or `standby`."""
        return "standby"

    @property
    def is_ready(self) -> bool:
        """Whether it is served, once the model is there."""
        return True

    @property
    def has_state(self) -> bool:
        """Whether it holds the state of its epoch: what only it may have must not end with it."""
        return False

    @property
    def may_count(self) -> bool:
        """Whether others may count on what it holds, as far as it knows: this instance must not end before it
        is let go."""
        return self.has_state

    @property
    def settled(self) -> int:
        """The newest version that it can go back to in any case, where it holds the state."""
        return -1

    def drain(self) -> None:
        """This instance is to end: it hands over what it holds, or asks to be let go."""

    def retire(self) -> None:
        """Another role follows."""

    # -- the protocol ----------------------------------------------------------------------------------------

    def message(self, sender: InstanceId, message: Message) -> None:
        """What is for this role only."""

    def peer_up(self, peer: InstanceId) -> None:
        """A connection stands again."""

    def peer_down(self, peer: InstanceId, refused: bool) -> None:
        """A connection broke."""

    def members_changed(self) -> None:
        """Instances have come or gone."""

    def durable_rose(self) -> None:
        """Watermarks of other operators have risen."""

    def is_fenced(self, deps: Deps) -> bool:
        """Whether a manager's Fence keeps these dependencies out for now."""
        return False

    def proposal_settled(self) -> None:
        """What this role has proposed is committed, or was overtaken."""

    def late(self, by_s: float) -> None:
        """This instance's own loop was late."""

    # -- the model -------------------------------------------------------------------------------------------

    def unit_ready(self, unit: Unit) -> None:
        """A unit's join rule is met."""

    def model_died(self, event: ModelDied) -> None:
        """What was not captured is lost."""

    def update_wanted(self, event: UpdateWanted) -> None:
        """A batch of an earlier role stands before its update stage: it is not left waiting."""
        self._ctx.emit(AbandonBatch(event.batch))

    def batch_done(self, event: BatchDone) -> None:
        """A batch has ended."""

    def batch_failed(self, event: BatchFailed) -> None:
        """A batch was abandoned, or the model raised."""

    def captured(self, event: Captured) -> None:
        """The state of a version is copied."""

    def loaded(self, event: Loaded) -> None:
        """The model holds a state."""

    # -- time ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """After each event: what can go on now."""
