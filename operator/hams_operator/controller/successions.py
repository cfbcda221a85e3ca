"""The controller's part in a succession: the core decides by what etcd holds of both shapes
(`hams_protocol.succession.decision`), and the step is written here, by compare-and-swap.

It remembers nothing. Where it dies, another one goes on from the record; where none does, the predecessor's
frontends take the succession back.
"""

import logging
from collections.abc import Callable, Mapping

from hams_operator.controller.etcd_cache import EtcdCache, Known
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.succession.decision import (
    Incarnation,
    Step,
    guards_of,
    next_step,
    record_of,
    record_of_giving_up,
)
from hams_protocol.succession.records import Phase
from hams_wire.errors import NotApplied

log = logging.getLogger("hams.controller")


def shape(graph: Graph, known: Known, serves: Callable[[InstanceId], bool] | None = None) -> Incarnation:
    """What is judged of one incarnation. `serves`: whether an instance serves its role, as far as Kubernetes
    knows; None: who is registered does."""
    uid, there = graph.data.uid, known.registered.__contains__ if serves is None else serves
    return Incarnation(
        uid, graph, known.topology, known.registered, known.quiet, known.waiting, known.taken, there
    )


async def advance(
    cache: EtcdCache,
    old: Graph,
    new: Graph,
    generation: int,
    serves: Callable[[InstanceId], bool] | None = None,
) -> Step:
    """Take the next step, if there is one; what it was, or what is waited for. `generation`: of the resource
    that asks for `new`.

    Raises CoordinationError; after that everything is looked at anew.
    """
    old_uid, new_uid = old.data.uid, new.data.uid
    before, after = cache.of(old_uid), cache.of(new_uid)
    assert after.follows is not None, "a successor"
    record = before.succession
    step = next_step(shape(old, before), shape(new, after, serves), after.follows.kept, record)
    if step.phase is None:
        return step
    log.warning("succession of %s by %s: %s %s", old_uid, new_uid, step.phase.value, step.why)
    try:
        changed = record_of(step, record, new_uid, generation)
        await cache.take_step(old_uid, changed, guards_of(step.phase))
    except NotApplied as error:
        # the watch tells, and it is judged anew
        log.info("succession of %s: something has changed meanwhile: %s", old_uid, error)
    return step


async def give_up(cache: EtcdCache, old_uid: str, new_uid: str, why: str) -> None:
    """Have the record say that this successor shall never serve, before anything of it is taken away. Raises
    CoordinationError."""
    record = record_of_giving_up(cache.of(old_uid).succession, new_uid, why)
    if record is not None:
        await cache.take_step(old_uid, record, guards_of(record.phase))


def given_up(number: int, known: Mapping[int, Known], number_of: Callable[[str], int]) -> bool:
    """Whether an incarnation follows another one and never will take over. `number_of`: the incarnation with
    a uid."""
    follows = known[number].follows
    if follows is None or follows.done:
        return False
    before = known.get(number_of(follows.uid))
    record = None if before is None else before.succession
    if record is None:
        return False
    at = number_of(record.to)
    return number < at or (number == at and record.phase is Phase.BACK)
