"""The replies that the predecessor has kept for its keys, as a frontend of the successor has them: read whole
at the switch, never changed.

So a key that was answered before gets that answer, and nothing is executed for it again. What the successor
answers itself, its own log keeps.
"""

from collections.abc import AsyncIterator, Callable, Iterable

from hams_protocol import limits as core_limits
from hams_protocol.effects import Replied
from hams_protocol.frontend.log import ShardLog
from hams_protocol.frontend.state import key_hash
from hams_protocol.graph import FrontendSpec
from hams_protocol.keys import known_as
from hams_sidecar import limits
from hams_sidecar.inference import Buffer, Conflict, InferenceOutcome, KeyExpired
from hams_sidecar.succession import talk
from hams_wire.peers.visits import Visit, VisitFailed


class Table:
    """Outcomes by key, oldest first, and hashes of keys whose outcomes are not kept any more; as many as the
    graph's own shards may keep.

    `whole`: it has all that the predecessor kept, as far as those knew of whom it was taken.
    """

    def __init__(self, frontend: FrontendSpec) -> None:
        self._known: dict[str, tuple[str, InferenceOutcome, int]] = {}
        self._expired: dict[int, None] = {}
        self._nbytes = 0
        self.whole = True
        self._count_max = frontend.replies_kept * frontend.shards
        self._bytes_max = frontend.replies_kept_bytes * frontend.shards
        self._expired_max = core_limits.keys_expired_max * frontend.shards

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str, digest: str | None) -> InferenceOutcome | None:
        """What a request with this key, and a payload of this digest, is answered; None: it is a new one."""
        for name in known_as(key):
            reply = self._known.get(name)
            if reply is not None:
                return reply[1] if reply[0] == digest else Conflict()
        if self._expired and any(key_hash(name) in self._expired for name in known_as(key)):
            return KeyExpired()
        return None

    def add(self, said: talk.PassedReplies, data: memoryview) -> None:
        """Take some over. Raises VisitFailed."""
        at = 0
        for item in said.kept:
            nbytes = sum([tensor.nbytes for tensor in item.outcome.tensors])
            self._drop(item.key)
            self._known[item.key] = item.digest, talk.outcome_in(item.outcome, data, at), nbytes
            self._nbytes += nbytes
            at += nbytes
        self._expired.update(dict.fromkeys(said.expired))
        self.whole = self.whole and said.whole
        while len(self._known) > self._count_max or self._nbytes > self._bytes_max:
            oldest = next(iter(self._known))
            self._drop(oldest)
            self._expired[key_hash(oldest)] = None
        while len(self._expired) > self._expired_max:
            del self._expired[next(iter(self._expired))]

    def _drop(self, key: str) -> None:
        reply = self._known.pop(key, None)
        if reply is not None:
            self._nbytes -= reply[2]

    def entries(self) -> Iterable[tuple[str, str, InferenceOutcome]]:
        """Key, digest, outcome."""
        return [(key, digest, outcome) for key, (digest, outcome, _) in self._known.items()]

    def expired(self) -> tuple[int, ...]:
        """Hashes of keys."""
        return tuple(self._expired)


def entries_of(
    log: ShardLog, outcome: Callable[[Replied], InferenceOutcome]
) -> Iterable[tuple[str, str, InferenceOutcome]]:
    """What a shard keeps for its keys; `outcome`: what a reply of the core is to a client."""
    for kept in log.state.kept.values():
        admit, reply = kept.admit(log.state.shard), kept.reply(log.state.shard)
        if admit.key is not None:
            yield admit.key, admit.digest, outcome(Replied(reply.request, reply.tokens, reply.error))


async def tell(
    visit: Visit,
    entries: Iterable[tuple[str, str, InferenceOutcome]],
    expired: tuple[int, ...],
    whole: bool = True,
) -> None:
    """Answer AskReplies, in messages of bounded size. Raises VisitFailed."""
    while len(expired) > limits.hashes_told_max:
        await visit.send(talk.encode(talk.PassedReplies((), expired[: limits.hashes_told_max], True)))
        expired = expired[limits.hashes_told_max :]
    kept: list[talk.PassedReply] = []
    parts: list[Buffer] = []
    nbytes = 0
    for key, digest, entry in entries:
        said, own = talk.told(entry)
        kept.append(talk.PassedReply(key, digest, said))
        parts += own
        nbytes += sum(map(len, own)) + len(key.encode()) + len(said.message.encode())
        if len(kept) >= limits.replies_told_max or nbytes >= limits.replies_told_bytes:
            await visit.send(talk.encode(talk.PassedReplies(tuple(kept), (), True)), parts)
            kept, parts, nbytes = [], [], 0
    await visit.send(talk.encode(talk.PassedReplies(tuple(kept), expired, False, whole)), parts)


async def ask(visit: Visit, shard: str) -> AsyncIterator[tuple[talk.PassedReplies, memoryview]]:
    """What another frontend keeps. Raises VisitFailed."""
    await visit.send(talk.encode(talk.AskReplies(shard)))
    while True:
        head, data = await visit.receive(lambda nbytes: memoryview(bytearray(nbytes)))
        said = talk.answer(head)
        if not isinstance(said, talk.PassedReplies):
            raise VisitFailed(f"expected replies, found {said!r:.200}")
        yield said, data
        if not said.more:
            return
