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
}


def on(name: str) -> bool:
    """Whether the bug `name` is switched on."""
    return name in active
