"""Protocol bugs that can be switched on by name, in tests only: the proof that the simulator's checks can fail.

Each mutant leaves out one rule of protocol.md that a hasty implementer would leave out. `make sim-mutants` switches on one at a
time and counts the histories until a check catches it. In production `active` is empty and stays so.
"""

active: frozenset[str] = frozenset()

REGISTRY: dict[str, str] = {
    "ack-without-value-id": "an acknowledgement of a replaced value counts for its successor (section 3)",
    "ack-without-epoch": "an acknowledgement of the owner's old epoch counts in its new one (section 3)",
    "accept-old-epoch": "tokens from a deposed owner are taken (section 4)",
    "merge-unknown-epoch": "a token that depends on an epoch not yet known is taken (section 1)",
    "mix-fan-out-values": "values of two executions of one fan-out operator meet in one result (section 4)",
    "query-without-fence": "a slot query is answered, but its predecessors are not fenced (section 4)",
    "complete-without-close": "a request is complete before a First's losers have arrived (section 3)",
    "inject-before-replicate": "a shard's owner injects a request before its followers hold the entry (section 5)",
    "reply-before-durable": "the reply does not wait until what it depends on is durable (section 5)",
    "reply-before-replicate": "the reply is released before its entry is in every in-sync log (section 5)",
    "admit-before-ack-set": "a joiner is declared in sync while it is not in the ack set (sections 2 and 5)",
    "ack-set-shrinks-early": "a member leaves the ack set before the topology without it is committed (section 2)",
    "longest-log-wins": "a shard's new owner keeps entries above the end, which others do not hold (section 5)",
    "key-table-not-derived": "a shard's new owner does not know the keys that its log holds (section 5)",
    "feedback-speculative": "a feedback token is logged as a request before it is durable (section 3)",
    "freeze-ignored": "a frozen follower goes on taking log entries of the old epoch (section 7.2)",
    "old-epoch-log-taken": "a follower takes entries of an epoch below the one it knows (section 5)",
    "sink-keeps-orphan": "a sink token that has become orphan stays and hides its successor (section 4)",
    "apply-before-upstream-durable": "a backup applies a record whose dependencies on other operators are not durable yet (section 2)",
    "apply-orphan": "a backup applies a record with an orphan dependency (section 2)",
    "copy-speculative": "a joiner copies the newest version instead of the newest durable one (section 7.7)",
    "durable-before-all": "a version is durable when one of the ack set has applied it (section 2)",
    "alone-without-deps": "a primary alone calls versions durable before what they depend on is (section 2)",
    "frozen-takes-records": "a frozen backup goes on taking records (section 7.2)",
    "highest-becomes-primary": "the backup that has applied most becomes primary (section 7.2)",
    "ignore-taint": "a downstream primary whose state holds an orphan stays (section 7.3)",
    "no-fence": "downstream primaries are not asked (section 7.3)",
    "leave-ack-set-before-shrink": "a backup leaves the ack set before the topology without it is known (section 2)",
    "set-before-ack-set": "a joiner is proposed for the set while it is not in the ack set (section 2)",
    "no-slot-query": "a new slot owner does not ask what its predecessor delivered (section 4)",
    "no-window": "any number of versions may be not yet durable (section 2)",
    "old-freeze-accepted": "a Freeze of an older generation is obeyed (section 7)",
    "receipt-counts-as-apply": "a record received counts as applied (section 2)",
    "record-ack-of-old-epoch": "acknowledgements of an earlier epoch count (section 2)",
    "record-of-old-epoch": "records of an earlier epoch are taken (section 2)",
    "revoked-goes-on": "a revoked instance goes on acting (section 6)",
    "rollback-to-pending": "a primary rolls back to a record with pending dependencies (section 7.3)",
    "skip-without-deps": "a skip does not carry the dependencies of its inputs (section 2)",
    "update-during-capture": "the update stage is entered while the previous version is captured (section 2)",
    "update-with-orphans": "a batch is updated with units that have become orphan (section 2)",
}


def on(name: str) -> bool:
    """Whether the bug `name` is switched on."""
    return name in active
