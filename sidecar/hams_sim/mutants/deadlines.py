"""Mutants of deadlines: what is left of a request's time on its way."""

from hams_sim.mutants.mutant import Edit, Mutant

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
        ),
    ),
    "recorded-budget-anew": Mutant(
        "a promoted backup counts the budgets of saved outputs from its promotion",
        "1",
        (Edit("vertex", "Vertex._recorded", "self._learn_deadlines(record.units)", "pass"),),
    ),
}
