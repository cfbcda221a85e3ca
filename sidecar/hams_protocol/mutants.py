"""Protocol bugs that can be switched on by name, in tests only: the proof that the simulator's checks can
fail.

Each mutant leaves out one rule of protocol.md that a hasty implementer would leave out. `make sim-mutants`
switches on one at a time and counts the histories until a check catches it. In production `active` is empty
and stays so.
"""

active: frozenset[str] = frozenset()

REGISTRY: dict[str, str] = {
    "ack-without-value-id": "an acknowledgement of a replaced value counts for its successor (section 3)",
    "block-counts-dropped": "a shard under Block counts the followers that its owner has proposed to drop "
    "(section 2)",
    "checkpoint-oldest": "a checkpoint is written of the oldest version held, though newer ones are durable "
    "(section 7.2)",
    "checkpoint-speculative": "a checkpoint is written of a version that is not durable (section 7.2)",
    "checkpoint-without-consumed": "a checkpoint is written without the units that its version has consumed "
    "(section 7.2)",
    "lost-shard-reuses-ids": "a shard that begins again after a loss numbers its requests from the start "
    "(section 7.2)",
    "lost-while-held": "a state is called lost once its primary is gone, though a backup holds it (section "
    "7.2)",
    "ticket-not-pending": "a request without a key that is sent again before its entry is committed is "
    "logged again (section "
    "5)",
    "tickets-forgotten": "a shard's new owner does not know the requests without a key that its log holds "
    "(section 5)",
    "conflict-for-same": "a key that is used again with the same payload is called a conflict (section 5)",
    "death-unheard": "a shard's owner does not hear that the connection to a follower broke, and a timer of "
    "seconds "
    "drops it (section 6)",
    "deadline-early": "a client is told that its deadline has passed before it has (section 1)",
    "poison-at-first-death": "a request is called poison before its model has died of it maxAttempts times "
    "(section 3)",
    "progress-forgotten": "a shard's owner drops a follower that acknowledges all along, as one entry was "
    "once not "
    "acknowledged (section 2)",
    "waiting-counts-as-slow": "a backup that waits for the dependencies of others is dropped as if it were "
    "slow (section 2)",
    "ack-without-epoch": "an acknowledgement of the owner's old epoch counts in its new one (section 3)",
    "accept-old-epoch": "tokens from a deposed owner are taken (section 4)",
    "merge-unknown-epoch": "a token that depends on an epoch not yet known is taken (section 1)",
    "mix-fan-out-values": "values of two executions of one fan-out operator meet in one result (section 4)",
    "proposals-pile-up": "a primary proposes again while the outcome of its last proposal is not known "
    "(section 8, I6)",
    "query-without-fence": "a slot query is answered, but its predecessors are not fenced (section 4)",
    "begins-again-unasked": "a lost state begins again as its model makes it though no frontend was asked "
    "whether it had a "
    "request (section 7.2)",
    "complete-without-close": "a request is complete before a First's losers have arrived (section 3)",
    "inject-before-replicate": "a shard's owner injects a request before its followers hold the entry "
    "(section 5)",
    "reply-before-durable": "the reply does not wait until what it depends on is durable (section 5)",
    "reply-before-replicate": "the reply is released before its entry is in every in-sync log (section 5)",
    "admit-before-ack-set": "a joiner is declared in sync while it is not in the ack set (sections 2 and 5)",
    "ack-set-shrinks-early": "a member leaves the ack set before the topology without it is committed "
    "(section 2)",
    "leaves-with-hand-over": "a primary that hands its set over leaves with the same commit, though the "
    "successor may have died "
    "(section 7)",
    "goes-on-after-hand-over": "a primary whose proposed handover may yet be committed executes again, its "
    "successor being gone "
    "(section 7)",
    "hung-is-dead": "a lost state begins again by policy though those who have it only hang (section 7.2)",
    "successor-not-asked": "a primary hands its set over before its successor can have said that it is to end as well "
    "(section 7)",
    "log-leaves-with-hand-over": "a frontend that hands a shard over leaves with the same commit, though "
    "the successor may have died "
    "(section 7)",
    "leaves-at-once": "a backup that is drained ends before the topology has let it go (section 7)",
    "lost-probe-counts": "a probe that was lost with its connection counts as unanswered (section 6)",
    "longest-log-wins": "a shard's new owner keeps entries above the end, which others do not hold (section "
    "5)",
    "key-table-not-derived": "a shard's new owner does not know the keys that its log holds (section 5)",
    "feedback-speculative": "a feedback token is logged as a request before it is durable (section 3)",
    "freeze-ignored": "a frozen follower goes on taking log entries of the old epoch (section 7.2)",
    "old-epoch-log-taken": "a follower takes entries of an epoch below the one it knows (section 5)",
    "sink-keeps-orphan": "a sink token that has become orphan stays and hides its successor (section 4)",
    "act-before-commit": "a frozen backup drops what it holds before the new topology is committed (section "
    "7)",
    "adopted-under-new-id": "a value taken over from a slot's former owner goes to the other receivers "
    "under another id "
    "(section 4)",
    "alone-without-deps": "a primary alone calls versions durable before their dependencies are (section 2)",
    "apply-before-upstream-durable": "a backup applies a record whose dependencies on others are still "
    "pending (section 2)",
    "apply-orphan": "a backup applies a record that depends on an orphan (section 2)",
    "attempt-not-awaited": "a suspect runs alone before its upstream has acknowledged what was said of it "
    "and of the one "
    "before (section 3)",
    "starved-judge-judges": "a manager whose own loop is late holds others' silence against them (section 6)",
    "suspect-without-backup": "a suspect of which another instance died runs alone where no backup is in "
    "sync (section 3)",
    "apply-with-gap": "a backup applies a record though it lacks the one before (section 2)",
    "complete-request-taken": "tokens of complete requests are taken again (section 5)",
    "consumed-not-restored": "who goes back to a record forgets which units its state has consumed (section "
    "7.6)",
    "copy-speculative": "a joiner copies a version that is not durable (section 7.7)",
    "copy-without-tickets": "the copy of a log lacks who asked for what came without a key (section 5)",
    "copy-without-consumed": "a joiner copies the tensors without the consumed units (section 7.7)",
    "deps-not-transitive": "outputs depend on the inputs of their batch, but not on those of the state "
    "before (section 2)",
    "durable-before-rollback": "a primary that has told what it could go back to makes more of it durable "
    "(section 7.3)",
    "early-ask-ignored": "a joiner that asks before its primary knows that it is named gets no copy "
    "(section 7.7)",
    "ends-dropped-unheard": "an end goes from the topology before every instance has heard of it (section 7)",
    "durable-when-tainted": "who has told a manager that its state holds an orphan makes more of it durable "
    "(section 7.3)",
    "durable-before-all": "a version is durable once one member of the ack set has applied it (section 2)",
    "frozen-takes-records": "a frozen backup goes on taking records of the old epoch (section 7.2)",
    "hand-over-unflushed": "a primary hands its set over before its window is flushed (section 7)",
    "highest-becomes-primary": "the backup that applied most becomes primary, though others have less "
    "(section 7.2)",
    "ignore-taint": "a downstream operator whose state holds an orphan is left as it is (section 7.3)",
    "joins-keep-orphan": "a token that has become orphan stays in its join and hides its successor (section "
    "4)",
    "kept-never-asked": "no kept state is asked for where no in-sync member answers (section 7.2)",
    "kept-pending": "a former primary reports its newest record though its dependencies are pending "
    "(section 7.2)",
    "kept-without-consumed": "a kept state comes back without its consumed units (section 6)",
    "keeper-unaware-of-itself": "who keeps a state downstream does not apply its records when its own versions become durable (section 2)",
    "keeper-forgets": "a keeper forgets what it holds when its set's epoch ends, before a fresh primary has "
    "it (section "
    "7.2)",
    "keeper-let-go": "a slot's owner is revoked though a primary is yet to get the state that it keeps "
    "(section 6)",
    "word-of-a-suspect": "a keeper is revoked on what its primary said before that was suspected itself "
    "(section 6)",
    "rollback-drops-keeper": "a primary that goes back by itself has no keeper any more (section 7.3)",
    "keeper-not-asked": "managers do not ask a set's keeper where no member answers (section 7.2)",
    "keeper-without-consumed": "a fresh primary gets the tensors from a keeper without the consumed units "
    "(section 7.2)",
    "durable-without-keeper": "a version is durable before the keeper that the topology names has applied "
    "it (section 2)",
    "no-keeper": "a set that has lost its last backup calls no keeper, so suspects wait for another backup "
    "(section "
    "3)",
    "lanes-share-fan": "what a fan-out operator makes for two lanes of a request is taken for two "
    "executions of one "
    "(section 4)",
    "leave-ack-set-before-shrink": "a backup leaves the ack set when its removal is proposed, not when it "
    "is known (section 2)",
    "newest-fence-only": "a late Fence of another manager relaxes a stricter one of the same generation "
    "(section 7.3)",
    "no-fence": "downstream operators are not asked whether their states hold an orphan (section 7.3)",
    "no-reload": "a promoted backup goes on with whatever its model holds (section 7.2)",
    "copy-without-fan-inputs": "a joiner's copy does not bring along what came from fan-outs (section 7.7)",
    "handed-slot-forgotten": "who has handed a slot over does not tell what it had received for it (section "
    "4)",
    "oldest-not-asked-for": "a primary asks only for what its newest state depends on (section 2)",
    "one-shard-asked": "a new slot owner with a sink asks one shard only (section 4)",
    "orphan-adopted": "a new slot owner takes over a value that is an orphan (section 4)",
    "first-answer-decides": "a failover goes on with the first backup that has answered its Freeze, and "
    "leaves the others out "
    "(section 7.2)",
    "tainted-primary-joins": "a tainted primary that lives throws its state away and joins anew (section "
    "7.3)",
    "records-without-fan-inputs": "records do not bring along what came from fan-outs (section 4)",
    "follower-answers": "a new slot owner takes a follower's answer for that of its set (section 4)",
    "silent-leader-dropped": "a new slot owner does not ask the new leader of a set whose old one had not "
    "answered (section 4)",
    "no-slot-query": "a new slot owner does not ask what its predecessors delivered (section 4)",
    "no-window": "any number of versions may be not yet durable (section 2)",
    "old-freeze-accepted": "a Freeze of a generation that has passed is answered (section 7)",
    "outbox-keeps-orphan": "what has become orphan goes on being sent (section 7.6)",
    "outputs-not-resent": "a new primary does not send the outputs again that came with its records "
    "(section 7.6)",
    "outputs-without-own-dep": "outputs do not depend on the version that they were released with (section "
    "2)",
    "poison-runs-for-ever": "a request that kills its model each time is tried without end (section 3)",
    "replaced-is-dead": "an owner that is replaced alive counts as dead of what it had announced (section 3)",
    "receipt-counts-as-apply": "the receipt of a record makes its version durable (section 2)",
    "record-ack-of-old-epoch": "an acknowledgement of an epoch that has ended counts in the next one "
    "(section 2)",
    "record-of-old-epoch": "a backup takes records of an epoch older than the one it knows (section 2)",
    "revoke-last-replica": "an instance is revoked though another set has no replica but this one (section "
    "6)",
    "revoked-goes-on": "an instance that learns that it is revoked acts on under its id (section 6)",
    "rollback-to-pending": "a primary without backup goes back to a record with pending dependencies "
    "(section 7.3)",
    "route-not-kept": "after a predecessor's skip the value is computed again with another route (section 4)",
    "set-before-ack-set": "a joiner is proposed as in sync before the primary counts on its "
    "acknowledgements (section 2)",
    "shrink-from-outside": "a manager drops a dead backup from a set on its living primary's behalf "
    "(section 2)",
    "skip-without-deps": "a skip does not carry the dependencies of the tokens that it stems from (section "
    "3)",
    "slot-moves-while-busy": "a slot moves before its owner has delivered everything it executed (section 7)",
    "unreadable-is-lost": "a token that its receiver cannot read is neither taken nor acknowledged (section "
    "3)",
    "unreadable-runs": "a model is given what its instance cannot read (section 3)",
    "unsticky-slots": "requests move to other slots whenever the topology changes (section 4)",
    "update-during-capture": "the model enters its update while the version before is still being captured "
    "(section 2)",
    "update-with-orphans": "a batch with an input that became orphan enters its update all the same "
    "(section 2)",
}


def on(name: str) -> bool:
    """Whether the bug `name` is switched on."""
    return name in active
