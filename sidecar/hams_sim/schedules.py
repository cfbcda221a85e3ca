"""Scheduling policies in a history: they work ahead as a proxy lets them, and one that breaks a law, which
would be replaced without a word, ends the history.

In some histories they know the times of their models already, so they look ahead from the first request; and
their guard judges every few batches, so that policies change while requests wait. A history has too few
requests for either to come about by itself.
"""

import math
from random import Random
from typing import TYPE_CHECKING

from hams_protocol.batching import Scheduler
from hams_protocol.graph import Operator
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_schedule.guard import Pace
from hams_sim import limits
from hams_sim.errors import Broken
from hams_wire.scheduling import PolicyQueue, queue_of

if TYPE_CHECKING:
    from hams_sim.node import Node
    from hams_sim.world import World


class Schedules:
    """The queues of all operators of one history. `used`: one of them has a policy."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.used = False
        self._world = world
        self._rng = rng
        self._hurried = rng.random() < limits.hurried_guards_share

    def queue_of(self, operator: Operator) -> Scheduler:
        """See `hams_wire.scheduling.queue_of`."""
        pace = Pace(
            limits.guard_round_s,
            limits.guard_switch_s,
            limits.guard_arrivals_min,
            limits.guard_errors,
            limits.guard_wins,
        )
        queue = queue_of(operator, pace if self._hurried else None)
        if isinstance(queue, PolicyQueue):
            self.used = True
            if self._hurried:
                self._teach(queue, operator)
        return queue

    def _teach(self, queue: PolicyQueue, operator: Operator) -> None:
        """What batches of its model take: the same for all sizes."""
        behaviour, profiles = self._world.behaviours[operator.name], queue.profiles
        usual_s = behaviour.compute_s + (behaviour.update_s if operator.stateful else 0.0)
        cls = profiles.classify("", math.nan)
        for _ in range(limits.taught_samples):
            profiles.observe_alone("", math.nan, usual_s * (0.5 + self._rng.random()))
        profiles.settle()
        for rows in limits.taught_rows:
            for _ in range(limits.taught_batches):
                profiles.observe_batch([cls] * rows, rows, usual_s * (0.5 + self._rng.random()), 0.0)

    def work_ahead(self, node: "Node") -> None:
        """After each event, as `hams_sidecar.proxy` does. Raises Broken if its policy has broken a law."""
        machine = node.machine
        if not isinstance(machine, StatefulMachine | StatelessMachine):
            return
        queue = machine.queue
        if not isinstance(queue, PolicyQueue):
            return
        if queue.runs:
            switches, now = queue.switches, self._world.now + node.skew
            for _ in range(limits.plan_slices):
                if not queue.plan(now, limits.plan_slice_s):
                    break
            if queue.switches > switches:
                self._world.seen(f"policy {queue.serves} took over")
        if queue.failed:
            raise Broken("policy", f"{node.id}: {queue.failed}")
