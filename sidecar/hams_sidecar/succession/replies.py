"""The replies of the shape before on a visit: what `hams_protocol.succession.replies` has, as bytes."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable

from hams_protocol.effects import Replied
from hams_protocol.frontend.log import ShardLog
from hams_protocol.graph import FrontendSpec
from hams_protocol.succession import replies as core
from hams_sidecar.inference import Buffer, Conflict, InferenceOutcome, KeyExpired, Reply
from hams_sidecar.succession import talk
from hams_wire.peers.visits import Visit, VisitFailed

replies_per_page_max = 1000
replies_per_page_bytes = 2 << 20
"""Kept replies in one message, and about how many bytes of them: the words among them fit into the head of a
message (`visit_head_bytes_max`)."""

log = logging.getLogger("hams.succession")

Entry = core.Entry[InferenceOutcome]
Page = core.Page[InferenceOutcome]
Table = core.Table[InferenceOutcome]


def table_for(frontend: FrontendSpec) -> Table:
    """An empty table, as large as this graph's own logs may be."""
    return core.Table(frontend, Conflict(), KeyExpired())


def lost_table(frontend: FrontendSpec) -> Table:
    """The table of a frontend that has met nobody who has one."""
    log.error(
        "no frontend is there that has the replies of the shape before: what was answered then is executed "
        "again"
    )
    table = table_for(frontend)
    table.whole = False
    return table


def entries_of(log_: ShardLog, outcome: Callable[[Replied], InferenceOutcome]) -> Iterable[Entry]:
    """What a shard keeps for its keys; `outcome`: what a reply of the core is to a client."""

    def sized(replied: Replied) -> tuple[InferenceOutcome, int]:
        said = outcome(replied)
        return said, _nbytes(said)

    return core.entries_of(log_, sized)


async def tell(visit: Visit, entries: Iterable[Entry], expired: tuple[int, ...], whole: bool = True) -> None:
    """Answer AskReplies, in messages of bounded size. Raises VisitFailed."""
    for page in core.pages(entries, expired, whole, replies_per_page_max, replies_per_page_bytes):
        replies: list[talk.PassedReply] = []
        parts: list[Buffer] = []
        for entry in page.replies:
            said, own = talk.passed_outcome(entry.outcome)
            replies.append(talk.PassedReply(entry.key, entry.digest, said))
            parts += own
        answer = talk.PassedReplies(tuple(replies), page.expired, page.more, page.whole)
        await visit.send(talk.encode(answer), parts)


async def ask(visit: Visit, shard: str) -> AsyncIterator[Page]:
    """What another frontend keeps. Raises VisitFailed."""
    await visit.send(talk.encode(talk.AskReplies(shard)))
    while True:
        head, data = await visit.receive(lambda nbytes: memoryview(bytearray(nbytes)))
        said = talk.answer(head)
        if not isinstance(said, talk.PassedReplies):
            raise VisitFailed(f"expected replies, found {said!r:.200}")
        yield page_in(said, data)
        if not said.more:
            return


def page_in(said: talk.PassedReplies, data: memoryview) -> Page:
    """The replies that a head tells of. Raises VisitFailed."""
    replies: list[Entry] = []
    at = 0
    for item in said.replies:
        nbytes = sum([tensor.nbytes for tensor in item.outcome.tensors])
        outcome = talk.outcome_in(item.outcome, data, at)
        replies.append(
            core.Entry(item.key, item.digest, outcome, nbytes + len(item.outcome.message.encode()))
        )
        at += nbytes
    return core.Page(tuple(replies), said.expired, said.more, said.whole)


def _nbytes(outcome: InferenceOutcome) -> int:
    if isinstance(outcome, Reply):
        return sum([len(tensor.data) for tensor in outcome.tensors])
    return len(getattr(outcome, "message", "").encode())
