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
    "act-before-commit": "a frozen backup drops what it holds before the new topology is committed (section 7)",
    "adopted-under-new-id": "a value taken over from a slot's former owner goes to the other successors under another id (section 4)",
    "alone-without-deps": "a primary alone calls versions durable before their dependencies are (section 2)",
    "apply-before-upstream-durable": "a backup applies a record whose dependencies on others are still pending (section 2)",
    "apply-orphan": "a backup applies a record that depends on an orphan (section 2)",
    "apply-with-gap": "a backup applies a record though it lacks the one before (section 2)",
    "complete-request-taken": "tokens of complete requests are taken again (section 5)",
    "consumed-not-restored": "who goes back to a record forgets which units its state has consumed (section 7.6)",
    "copy-speculative": "a joiner copies a version that is not durable (section 7.7)",
    "copy-without-consumed": "a joiner copies the tensors without the consumed units (section 7.7)",
    "deps-not-transitive": "outputs depend on the inputs of their batch, but not on those of the state before (section 2)",
    "durable-before-all": "a version is durable once one member of the ack set has applied it (section 2)",
    "frozen-takes-records": "a frozen backup goes on taking records of the old epoch (section 7.2)",
    "hand-over-unflushed": "a primary hands its set over before its window is flushed (section 7)",
    "highest-becomes-primary": "the backup that applied most becomes primary, though others have less (section 7.2)",
    "ignore-taint": "a downstream operator whose state holds an orphan is left as it is (section 7.3)",
    "joins-keep-orphan": "a token that has become orphan stays in its join and hides its successor (section 4)",
    "kept-never-asked": "no kept state is asked for where no in-sync member answers (section 7.2)",
    "kept-pending": "a former primary reports its newest record though its dependencies are pending (section 7.2)",
    "kept-without-consumed": "a kept state comes back without its consumed units (section 6)",
    "leave-ack-set-before-shrink": "a backup leaves the ack set when its removal is proposed, not when it is known (section 2)",
    "newest-fence-only": "a late Fence of another manager relaxes a stricter one of the same generation (section 7.3)",
    "no-fence": "downstream operators are not asked whether their states hold an orphan (section 7.3)",
    "no-reload": "a promoted backup goes on with whatever its model holds (section 7.2)",
    "no-slot-query": "a new slot owner does not ask what its predecessors delivered (section 4)",
    "no-window": "any number of versions may be not yet durable (section 2)",
    "old-freeze-accepted": "a Freeze of a generation that has passed is answered (section 7)",
    "outbox-keeps-orphan": "what has become orphan goes on being sent (section 7.6)",
    "outputs-not-resent": "a new primary does not send the outputs again that came with its records (section 7.6)",
    "outputs-without-own-dep": "outputs do not depend on the version that they were released with (section 2)",
    "poison-runs-for-ever": "a request that kills its model each time is tried without end (section 3)",
    "receipt-counts-as-apply": "the receipt of a record makes its version durable (section 2)",
    "record-ack-of-old-epoch": "an acknowledgement of an epoch that has ended counts in the next one (section 2)",
    "record-of-old-epoch": "a backup takes records of an epoch older than the one it knows (section 2)",
    "revoke-last-replica": "an instance is revoked though another set has no replica but this one (section 6)",
    "revoked-goes-on": "an instance that learns that it is revoked acts on under its id (section 6)",
    "rollback-to-pending": "a primary without backup goes back to a record with pending dependencies (section 7.3)",
    "route-not-kept": "after a predecessor's skip the value is computed again with another route (section 4)",
    "set-before-ack-set": "a joiner is proposed as in sync before the primary counts on its acknowledgements (section 2)",
    "shrink-from-outside": "a manager drops a dead backup from a set on its living primary's behalf (section 2)",
    "skip-without-deps": "a skip does not carry the dependencies of the tokens that it stems from (section 3)",
    "slot-moves-while-busy": "a slot moves before its owner has delivered everything it executed (section 7)",
    "unsticky-slots": "requests move to other slots whenever the topology changes (section 4)",
    "update-during-capture": "the model enters its update while the version before is still being captured (section 2)",
    "update-with-orphans": "a batch with an input that became orphan enters its update all the same (section 2)",
}


def on(name: str) -> bool:
    """Whether the bug `name` is switched on."""
    return name in active
