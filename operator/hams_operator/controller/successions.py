"""The controller's part in a succession: it judges by what etcd holds of both shapes, and takes the next step
by compare-and-swap (ADR 0018).

It remembers nothing. Where it dies, another one goes on from the record; where none does, the predecessor's
frontends take the succession back.
"""

import logging
from collections.abc import Callable, Mapping

from hams_operator.controller.judging import IncarnationInEtcd, Step, next_step
from hams_operator.controller.mirror import Known, Mirror
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_wire.errors import NotApplied
from hams_wire.succession import Phase, Succession

successions_tried_max = 3
"""A change of a graph's shape that was begun and taken back is tried so often; then the resource has to be
changed."""


log = logging.getLogger("hams.controller")


def shape(
    graph: Graph, known: Known, serves: Callable[[InstanceId], bool] | None = None
) -> IncarnationInEtcd:
    """What is judged of one incarnation. `serves`: whether an instance serves its role, as far as Kubernetes
    knows; None: who is registered does."""
    uid, there = graph.data.uid, known.registered.__contains__ if serves is None else serves
    return IncarnationInEtcd(
        uid, graph, known.topology, known.registered, known.quiet, known.waiting, known.taken, there
    )


async def advance(
    mirror: Mirror,
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
    before, after = mirror.of(old_uid), mirror.of(new_uid)
    assert after.follows is not None, "a successor"
    record = before.succession
    step = next_step(shape(old, before), shape(new, after, serves), after.follows.kept, record)
    if step.phase is None:
        return step
    again = record is not None and record.asked == generation
    tries = 1 if record is None or not again else record.tries + (step.phase is Phase.HOLD)
    succession = Succession(new_uid, step.phase, tries, generation, step.why, step.hopeless)
    log.warning("succession of %s by %s: %s %s", old_uid, new_uid, step.phase.value, step.why)
    try:
        if step.phase is Phase.DONE:
            await mirror.switch(old_uid, succession)
        else:
            await mirror.take_step(old_uid, succession)
    except NotApplied as error:
        log.info(
            "succession of %s: something has changed meanwhile: %s", old_uid, error
        )  # the watch tells, and it is judged anew
    return step


async def give_up(mirror: Mirror, old_uid: str, new_uid: str, why: str) -> None:
    """Have the record say that this successor shall never serve, before anything of it is taken away. Raises
    CoordinationError."""
    record = mirror.of(old_uid).succession
    if record is not None and record.to == new_uid and record.phase is Phase.BACK:
        return
    if record is None or record.to != new_uid:
        record = Succession(new_uid, Phase.BACK, 0)
    await mirror.take_step(old_uid, Succession(new_uid, Phase.BACK, record.tries, record.asked, why))


def refused(record: Succession | None, generation: int) -> str:
    """Why what this generation of the resource asks for is not tried once more; "": it may be."""
    if record is None or record.phase is not Phase.BACK or record.asked != generation:
        return ""
    if record.hopeless:
        return f"the states cannot be handed over: {record.why}"
    if record.tries >= successions_tried_max:
        return f"the states were not handed over, {record.tries} times: {record.why}"
    return ""


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
