"""Mutants of deadlines: what is left of a request's time on its way."""

from hams_sim.mutants.mutant import Edit, Mutant

LEARNT_WHEN_SENT = Edit(
    "outbox",
    "Outbox.put",
    "entry = edges[key] = Retained(target, token)",
    "self._knowledge.deadlines.learn(token.request, token.meta.budget_s, self._ctx.now)\n"
    "entry = edges[key] = Retained(target, token)",
)

MUTANTS: dict[str, Mutant] = {
    "budget-not-counted-down": Mutant(
        "an operator hands the budget on that it got, however long a request has waited there",
        "1",
        (
            Edit(
                "vertex",
                "Vertex.make_outputs",
                "meta = self.knowledge.deadlines.meta(self.joins.meta(unit), request, self.ctx.now)",
                "meta = self.joins.meta(unit)",
            ),
            Edit("outbox", "Outbox._as_it_leaves", "token = entry.token", "return entry.token"),
        ),
    ),
    "budget-reset-on-resend": Mutant(
        "a token that is sent again carries the budget that it had when it was sent first",
        "1",
        (Edit("outbox", "Outbox._as_it_leaves", "token = entry.token", "return entry.token"),),
    ),
    "feedback-budget-anew": Mutant(
        "an internal request begins with the budget of the client's request, not with what is left of it",
        "1",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._admit_internal",
                "Meta(meta.parameters, meta.trace, self._left(live), hops)",
                "Meta(meta.parameters, meta.trace, meta.budget_s, hops)",
            ),
            Edit(
                "frontend.owner",
                "ShardOwner._inject",
                "ctx.knowledge.deadlines.feeds(origin.request, request)",
                "pass",
            ),
        ),
    ),
    "feedback-outlives-origin": Mutant(
        "an earlier end of a request, heard of after its feedback was injected, is not that of the feedback",
        "1",
        (Edit("deadlines", "Deadlines._ends_by", "self._ends_by(fed, due)", "pass"),),
    ),
    "reply-age-unsaid": Mutant(
        "replies are told without how long ago they were released",
        "1",
        (
            Edit(
                "frontend.broadcast",
                "CompletionBroadcast._ages",
                "ReplyAge(request, self._ctx.now - at)",
                "ReplyAge(request, 0.0)",
            ),
        ),
    ),
    "reply-age-early": Mutant(
        "a reply is told as released when it is decided, before it is committed",
        "1",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._try_reply",
                "live.reply_index = self.log.append(entry)",
                "live.reply_index = self.log.append(entry)\n"
                "if decided.error is None:\n"
                "    self._broadcast.replied((entry.request,))",
            ),
        ),
    ),
    "error-age-counted": Mutant(
        "how long errors took is told as if they had gone the whole path",
        "1",
        (Edit("frontend.owner", "ShardOwner._reply_counts", "if entry.error is None:", "if True:"),),
    ),
    "recorded-budget-anew": Mutant(
        "a promoted backup counts the budgets of saved outputs from its promotion",
        "1",
        (
            Edit(
                "vertex",
                "Vertex._recorded",
                "self.knowledge.hear_budgets(record.units, self.ctx.now, record.left_s)",
                "pass",
            ),
            LEARNT_WHEN_SENT,
        ),
    ),
    "record-with-old-budgets": Mutant(
        "a record tells the budgets of its outputs as they were written, not as they are when it leaves",
        "1",
        (
            Edit(
                "versions",
                "Version.leaving",
                "deadlines.left_of(item.unit.request, item.meta, now)",
                "item.meta.budget_s",
            ),
        ),
    ),
    "copy-with-old-budgets": Mutant(
        "a copy tells the budgets of saved outputs as they were written, not as they are when it leaves",
        "1",
        (
            Edit(
                "knowledge",
                "Knowledge.leaving",
                "meta = self.deadlines.meta(token.meta, token.request, now)",
                "meta = token.meta",
            ),
        ),
    ),
    "complete-but-sent": Mutant(
        "an output that was held is sent though its request is complete, and its deadline forgotten",
        "9",
        (
            Edit("outbox", "Outbox.put", "if token.request in self._knowledge.completed:", "if False:"),
            LEARNT_WHEN_SENT,
        ),
    ),
    "learnt-when-sent": Mutant(
        "a budget whose end is not known, of a checkpoint or a former id, counts from when it is sent",
        "1",
        (LEARNT_WHEN_SENT,),
    ),
    "refused-and-logged": Mutant(
        "a request is logged, and its client is told that nothing has begun",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._admit",
                "self._refuse(sender, ask, refusal)\nreturn",
                "self._refuse(sender, ask, refusal)",
            ),
        ),
    ),
    "refusal-forgotten": Mutant(
        "an ask that comes again after it was refused is judged anew",
        "5",
        (
            Edit(
                "frontend.owner",
                "ShardOwner._refuse",
                "self._refused[sender, ask.counter] = refusal",
                "pass",
            ),
        ),
    ),
    "late-and-run": Mutant(
        "what an operator has given up as late is run all the same, and its value follows the error",
        "2",
        (
            Edit(
                "stateless",
                "StatelessMachine._shed",
                "self._forward(unit, self._passed_on(unit) or self.shed(unit))",
                "self._forward(unit, self._passed_on(unit) or self.shed(unit))\n"
                "unit.stage, unit.used = Stage.READY, tuple(unit.tokens.values())\n"
                "self.queue.add(unit, self.ctx.now)",
            ),
        ),
    ),
    "shed-without-token": Mutant(
        "what an operator gives up as late is dropped, and nothing is sent in its place",
        "3",
        (
            Edit(
                "stateless",
                "StatelessMachine._shed",
                "self._forward(unit, self._passed_on(unit) or self.shed(unit))",
                "unit.stage = Stage.DONE",
            ),
        ),
    ),
}
