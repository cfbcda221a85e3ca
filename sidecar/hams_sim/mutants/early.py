"""Mutants of replies whose entries are logged before what they depend on is durable (ADR 0040)."""

from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "early-alone": Mutant(
        "under Block a reply is released that followers have held, and only its owner holds any more",
        "5",
        (Edit("frontend.owner", "ShardOwner._reply_counts", " or not self.replication.may_release", ""),),
    ),
    "early-copied-void": Mutant(
        "the copy of a log holds replies that are void",
        "5",
        (
            Edit(
                "frontend.log",
                "copy_parts",
                "if item.reply is None or item.is_void else",
                "if item.reply is None else",
            ),
        ),
    ),
    "early-counts-at-once": Mutant(
        "a reply that is logged early is released as soon as its entry is committed",
        "5",
        (Edit("frontend.owner", "ShardOwner._reply_counts", " or not live.is_settled", ""),),
    ),
    "early-done-unsent": Mutant(
        "what says that a request is complete waits for another entry, however long none comes",
        "5",
        (Edit("frontend.owner", "ShardOwner.dues", ", (self._done_at, self._append_done)]", "]"),),
    ),
    "early-done-unsettled": Mutant(
        "a request is complete though its reply does not count yet",
        "5",
        (Edit("frontend.owner", "ShardOwner._progress", "if not live.is_settled:", "if False:"),),
    ),
    "early-forgotten": Mutant(
        "a shard's new owner takes a logged reply for void if it does not know yet that it counts",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._recall_reply",
                "if entry.deps and self._ctx.knowledge.status(entry.deps) is Status.ORPHAN:",
                "if entry.deps:",
            ),
        ),
    ),
    "early-not-judged": Mutant(
        "a shard's new owner takes every logged reply for one that counts",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.take_over",
                "if admitted.reply is not None and not admitted.is_void:",
                "if admitted.reply is not None:",
            ),
            Edit(
                "frontend.owner",
                "ShardOwner._recall_reply",
                "if entry.deps and self._ctx.knowledge.status(entry.deps) is Status.ORPHAN:",
                "if False:",
            ),
            Edit("frontend.owner", "ShardOwner._recall_reply", "live.is_settled = not entry.deps", "pass"),
        ),
    ),
    "early-not-held": Mutant(
        "a shard's new owner does not tell a slot's new owner of the values in pending replies",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._recall_reply",
                "self._prefill(live, FRONTEND, entry.tokens)",
                "self._prefill(live, FRONTEND, entry.tokens if live.is_settled else ())",
            ),
        ),
    ),
    "early-told-again": Mutant(
        "a key that is used again is answered by a reply that does not count yet",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.submit",
                "if reply is not None and (live is None or live.recorded):",
                "if reply is not None:",
            ),
            Edit(
                "frontend.state",
                "ShardState.answered",
                "return None if reply is None or reply.deps or open_request.is_void else reply",
                "return reply",
            ),
        ),
    ),
    "early-undone-lost": Mutant(
        "a reply that an end has made void counts again once that state is lost and begins again",
        "5",
        (Edit("frontend.machine", "FrontendMachine._learn", "self._roles.judge_logs()", "pass"),),
    ),
    "early-void-stays": Mutant(
        "a reply that has become orphan stays and hides its successor",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._settle_reply",
                "elif self._ctx.knowledge.status(entry.deps) is Status.ORPHAN:",
                "elif False:",
            ),
        ),
    ),
    "early-without-skips": Mutant(
        "a reply that is logged early depends on the tokens that it shows only, and not on skips",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._try_reply",
                "for token in decided.seen]",
                "for token in tokens]",
            ),
        ),
    ),
}
