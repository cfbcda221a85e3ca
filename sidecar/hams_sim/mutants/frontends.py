"""Mutants of frontends: shards of the log, replies, keys."""

from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "accept-old-epoch": Mutant(
        "tokens from a deposed owner are taken",
        "4",
        (
            Edit("frontend.sinks", "SinkDesk.deliver", "if message.epoch < epoch:", "if False:"),
            Edit("vertex", "Vertex.deliver", "if message.epoch < epoch:", "if False:"),
        ),
    ),
    "ack-set-shrinks-early": Mutant(
        "a member leaves the ack set before the topology without it is committed",
        "2",
        (
            Edit(
                "replica.leader",
                "Leader._drop",
                "if changed is not None:\n    return changed",
                'if changed is not None:\n    follower.ack = not hasattr(self, "_log")\n    return changed',
            ),
        ),
    ),
    "admit-before-ack-set": Mutant(
        "a joiner is declared in sync while it is not in the ack set",
        "2 and 5",
        (
            Edit(
                "replica.leader",
                "Leader.consider",
                "follower.ack = True",
                'follower.ack = not hasattr(self, "_log")',
            ),
            Edit(
                "frontend.replication",
                "Replication._send_parts",
                "follower.is_sent_copy(copy.parts[0].index, copy.flying_nbytes, self._ctx.now)",
                "follower.is_sent_copy(copy.parts[0].index, copy.flying_nbytes, self._ctx.now)\n"
                "self.wishing = True",
            ),
            Edit(
                "replica.leader",
                "Leader._is_admissible",
                "return (",
                'if hasattr(self, "_log"):\n'
                "    return not follower.in_sync and not follower.copying\n"
                "return (",
            ),
        ),
    ),
    "joiner-counts-behind": Mutant(
        "a joiner with a log counts for commits though what follows on it is gone, and a copy is yet to come",
        "5",
        (
            Edit(
                "frontend.replication",
                "Replication.is_welcome",
                "return follower.ack or self.retains(follower.applied)",
                "return True",
            ),
        ),
    ),
    "copies-mixed": Mutant(
        "a joiner makes a log of parts of two copies, which are cut differently",
        "7.7",
        (
            Edit(
                "frontend.follower",
                "ShardFollower.copy_part",
                "if copied > self._copied:",
                "if False:",
            ),
        ),
    ),
    "block-counts-dropped": Mutant(
        "a shard under Block counts the followers that its owner has proposed to drop",
        "2",
        (
            Edit(
                "replica.followers",
                "Followers.some_protects",
                "return not self.dropping.issuperset(self._in_sync)",
                "return bool(self._in_sync)",
            ),
        ),
    ),
    "complete-injected-again": Mutant(
        "a new owner injects again what its log calls complete, and takes what comes of that",
        "5",
        (
            Edit("frontend.owner", "ShardOwner._inject", "if live.left == COMPLETE:", "if False:"),
            Edit(
                "frontend.sinks",
                "SinkDesk.deliver",
                "if held is None and live.left == COMPLETE:",
                "if False:",
            ),
        ),
    ),
    "complete-without-close": Mutant(
        "a request is complete before a First's losers have arrived",
        "3",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._progress",
                "if live.replied and live.left == 0:",
                "waiting = zip(self._ctx.plan.targets, live.durable, strict=True)\n"
                "if live.left > 0 and all(done or target == CLOSE for target, done in waiting):\n"
                "    live.left = 0\n"
                "if live.replied and live.left == 0:",
            ),
            Edit(
                "vertex",
                "Vertex._close",
                "deps = self.knowledge.prune(self.joins.deps(unit, every=True))",
                "return",
            ),
        ),
    ),
    "conflict-for-same": Mutant(
        "a key that is used again with the same payload is called a conflict",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.submit",
                "differs = admit is not None and admit.digest != ask.digest",
                "differs = admit is not None",
            ),
        ),
    ),
    "copy-without-tickets": Mutant(
        "the copy of a log lacks who asked for what came without a key",
        "5",
        (
            Edit(
                "frontend.log",
                "copy_parts",
                "entries += group",
                "for item in group:\n"
                "    if isinstance(item, Admit):\n"
                "        item = Admit(item.request, item.key, item.digest, item.meta, item.payload, None)\n"
                "    entries.append(item)",
            ),
        ),
    ),
    "deadline-early": Mutant(
        "a client is told that its deadline has passed before it has",
        "1",
        (
            Edit(
                "frontend.gateway",
                "Gateway.request",
                "waiting = self._waiting[counter] = Waiting(event, shard, now, now + budget)",
                "budget = min(budget, limits.resend_after_s)\n"
                "waiting = self._waiting[counter] = Waiting(event, shard, now, now + budget)",
            ),
        ),
    ),
    "death-unheard": Mutant(
        "a shard's owner does not hear that the connection to a follower broke, and a timer of seconds drops "
        "it",
        "6",
        (
            Edit(
                "frontend.machine",
                "FrontendMachine._rare",
                "owner.replication.peer_down(event.peer, event.refused)",
                "pass",
            ),
        ),
    ),
    "feedback-speculative": Mutant(
        "a feedback token is logged as a request before it is durable",
        "3",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.settle",
                "self._waits.add(pending, live, number, token)\nreturn",
                "if self._ctx.plan.targets[number] != FEEDBACK:\n"
                "    self._waits.add(pending, live, number, token)\n"
                "    return",
            ),
        ),
    ),
    "follower-answers": Mutant(
        "a new slot owner takes a follower's answer for that of its set",
        "4",
        (
            Edit(
                "frontend.questions",
                "Questions.slot_query",
                "    self._answer(sender, message, owner.held_from(message.op), (owner.name, owner.epoch))",
                "    self._answer(sender, message, owner.held_from(message.op), (owner.name, owner.epoch))\n"
                "for follower in roles.followers.values():\n"
                "    self._answer(sender, message, [], (follower.name, follower.epoch))",
            ),
            Edit(
                "stateful.machine",
                "StatefulMachine.slot_answer",
                "if self.primary is None:",
                "if self.primary is None and self.backup is None:",
            ),
            Edit(
                "stateless",
                "StatelessMachine._ask_leaders",
                "leader = (replica_set.primary, replica_set.epoch)",
                "for peer in replica_set.members:\n"
                "    if (peer, replica_set.epoch) not in inquiry.asked:\n"
                "        inquiry.asked.add((peer, replica_set.epoch))\n"
                "        self.ctx.send(peer, query)\n"
                "leader = (replica_set.primary, replica_set.epoch)",
            ),
        ),
    ),
    "freeze-ignored": Mutant(
        "a frozen follower goes on taking log entries of the old epoch",
        "7.2",
        (
            Edit(
                "frontend.follower",
                "ShardFollower.append",
                "if log is None or self.following.frozen.stands:",
                "if log is None:",
            ),
        ),
    ),
    "inject-before-replicate": Mutant(
        "a shard's owner injects a request before its followers hold the entry",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._append_admit",
                "return live",
                "self._note_log(entry)\nself._inject(live)\nreturn live",
            ),
        ),
    ),
    "key-table-not-derived": Mutant(
        "a shard's new owner does not know the keys that its log holds",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.take_over",
                "ctx.knowledge.completed.below(self.shard, state.completed.watermark(self.shard))",
                "state.keys.clear()\n"
                "ctx.knowledge.completed.below(self.shard, state.completed.watermark(self.shard))",
            ),
        ),
    ),
    "leaves-at-once": Mutant(
        "a backup that is drained ends before the topology has let it go",
        "7",
        (
            Edit(
                "frontend.changes",
                "Changes.drain",
                "followed = self._roles.counting()",
                "followed = []",
            ),
            Edit(
                "stateful.backup",
                "Backup.drain",
                "if self.may_count:",
                "if False:",
            ),
            Edit(
                "stateful.machine",
                "StatefulMachine._has_nothing_to_hand_over",
                "return not self._role.may_count and self.former is None and not self.keeper.is_needed",
                "return self.primary is None and self.former is None and not self.keeper.is_needed",
            ),
        ),
    ),
    "logged-before-said": Mutant(
        "a frontend logs its first request before the topology says that there is one",
        "7.2",
        (
            Edit(
                "frontend.gateway",
                "Gateway._hand_over",
                "if self._ctx.knowledge.topology.untouched:",
                "if False:",
            ),
        ),
    ),
    "longest-log-wins": Mutant(
        "a shard's new owner keeps entries above the end, which others do not hold",
        "5",
        (
            Edit(
                "frontend.roles",
                "ShardRoles._log_for",
                "self._end_held(log, roles) == end and log.cut(end):",
                "self._end_held(log, roles) == end and (log.last >= end or log.cut(end)):",
            ),
        ),
    ),
    "lost-shard-reuses-ids": Mutant(
        "a shard that begins again after a loss numbers its requests from the start",
        "7.2",
        (
            Edit(
                "frontend.roles",
                "ShardRoles._log_for",
                "return empty_log(shard, roles.epoch, end or 0, spec, first_n)",
                "first_n = 0\nreturn empty_log(shard, roles.epoch, end or 0, spec, first_n)",
            ),
        ),
    ),
    "merge-unknown-epoch": Mutant(
        "a token that depends on an epoch not yet known is taken",
        "1",
        (
            Edit("frontend.sinks", "SinkDesk.deliver", "if status is Status.UNKNOWN:", "if False:"),
            Edit("vertex", "Vertex.deliver", "if status is Status.UNKNOWN:", "if False:"),
        ),
    ),
    "missed-epochs-unread": Mutant(
        "a follower that has missed epochs goes on from what was cut when one of them began",
        "5",
        (
            Edit(
                "frontend.roles",
                "ShardRoles._end_held",
                "return roles.end_of(log.epoch)",
                "return roles.end_of(roles.epoch - 1)",
            ),
        ),
    ),
    "forward-of-any-epoch": Mutant(
        "an owner begins a request that was forwarded to the owner of an epoch before",
        "5",
        (
            Edit(
                "frontend.machine",
                "FrontendMachine._on_forward",
                "if 0 < message.epoch < known:",
                "if False:",
            ),
        ),
    ),
    "lost-race-waits": Mutant(
        "a proposal that lost is not made again at once, if what won was known before",
        "6",
        (Edit("replica.proposals", "Proposals.settled", "self._made_in if failed", "self._known if failed"),),
    ),
    "news-not-awaited": Mutant(
        "what comes before the topology by which it is judged is not held until that is known",
        "1",
        (Edit("undecided", "Undecided.await_news", "self.hold(sender, message)", "pass"),),
    ),
    "old-epoch-log-taken": Mutant(
        "a follower takes entries of an epoch below the one it knows",
        "5",
        (Edit("frontend.machine", "FrontendMachine._on_append", "if message.epoch < known:", "if False:"),),
    ),
    "out-of-reach-is-over": Mutant(
        "a frontend that lost its lease and its connection counts as ended, though it may come back",
        "5",
        (
            Edit(
                "frontend.machine",
                "FrontendMachine._members_changed",
                "if peer in ended and peer not in ctx.members]",
                "if peer not in ctx.members]",
            ),
        ),
    ),
    "progress-forgotten": Mutant(
        "a shard's owner drops a follower that acknowledges all along, as one entry was once not "
        "acknowledged",
        "2",
        (
            Edit(
                "replica.followers",
                "Followers.acknowledge",
                "follower.progress_at = follower.silent_since = now",
                "pass",
            ),
            Edit(
                "replica.progress",
                "Progress.is_sent",
                "if self.received >= self.sent and position > self.sent:",
                "if self.sent_at == self.named_at:",
            ),
        ),
    ),
    "query-without-fence": Mutant(
        "a slot query is answered, but its predecessors are not fenced",
        "4",
        (
            Edit(
                "frontend.questions",
                "Questions.slot_query",
                "ctx.knowledge.fence(message.op, message.slot, message.epoch)",
                "pass",
            ),
            Edit(
                "vertex",
                "Vertex._slot_query",
                "self.knowledge.fence(query.op, query.slot, query.epoch)",
                "pass",
            ),
        ),
    ),
    "reply-before-durable": Mutant(
        "the reply does not wait until what it depends on is durable",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.settle",
                "self._waits.add(pending, live, number, token)\nreturn",
                "if self._ctx.plan.targets[number] != FRONTEND:\n"
                "    self._waits.add(pending, live, number, token)\n"
                "    return",
            ),
        ),
    ),
    "reply-before-replicate": Mutant(
        "the reply is released before its entry is in every in-sync log",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._try_reply",
                "live.reply_index = self.log.append(entry)",
                "live.reply_index = self.log.append(entry)\n"
                "self._note_reply(entry)\n"
                "self._release(live, entry)",
            ),
        ),
    ),
    "revoked-goes-on": Mutant(
        "an instance that learns that it is revoked acts on under its id",
        "6",
        (
            Edit(
                "frontend.machine",
                "FrontendMachine._learn",
                "if self.instance in event.topology.revoked:",
                "if False:",
            ),
            Edit(
                "stateful.machine",
                "StatefulMachine.topology_changed",
                "if self.instance in self.knowledge.topology.revoked:",
                "if False:",
            ),
            Edit(
                "stateless",
                "StatelessMachine.topology_changed",
                "if self.instance in topology.revoked:",
                "if False:",
            ),
        ),
    ),
    "sink-keeps-orphan": Mutant(
        "a sink token that has become orphan stays and hides its successor",
        "4",
        (
            Edit("frontend.owner", "ShardOwner.settle", "if status is Status.ORPHAN:", "if False:"),
            Edit(
                "frontend.owner",
                "ShardOwner._drop_orphans",
                "if knowledge.status(token.deps) >= Status.UNKNOWN:",
                "if False:",
            ),
        ),
    ),
    "ticket-not-pending": Mutant(
        "a request without a key that is sent again before its entry is committed is logged again",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._find",
                "return state.tickets.find(sender, ask.counter) if n is None else n",
                "n = None\nreturn state.tickets.find(sender, ask.counter) if n is None else n",
            ),
        ),
    ),
    "ticket-goes-with-its-reply": Mutant(
        "a reply that goes for room takes along who asked for it",
        "5",
        (
            Edit(
                "frontend.state",
                "ShardState._let_go",
                "self.unkept[n] = ticket",
                "self.tickets.pop(ticket.instance, ticket.counter)",
            ),
        ),
    ),
    "half-the-replies-are-kept": Mutant(
        "a reply is kept for half as many later ones as the graph says",
        "5",
        (
            Edit(
                "frontend.state",
                "ReplyPool.put",
                "len(replies) > self._count_max or",
                "len(replies) > self._count_max // 2 or",
            ),
        ),
    ),
    "copy-without-unkept": Mutant(
        "the copy of a log lacks who asked for what has no reply any more",
        "5",
        (
            Edit(
                "frontend.log",
                "copy_parts",
                "for n, ticket in state.unkept.items():",
                "for n, ticket in list(state.unkept.items())[:0]:",
            ),
        ),
    ),
    "tickets-forgotten": Mutant(
        "a shard's new owner does not know the requests without a key that its log holds",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner.take_over",
                "ctx.knowledge.completed.below(self.shard, state.completed.watermark(self.shard))",
                "state.tickets._tickets.clear()\n"
                "ctx.knowledge.completed.below(self.shard, state.completed.watermark(self.shard))",
            ),
        ),
    ),
}
