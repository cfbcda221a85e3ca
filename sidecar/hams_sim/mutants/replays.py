"""Mutants of the mode in which states are replayed."""

from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "determinants-forgotten": Mutant(
        "whoever takes a token forgets how the states came about from which it stems",
        "9",
        (
            Edit("vertex", "Vertex.deliver", "knowledge.determinants.learn(token.determinants)", "pass"),
            Edit(
                "frontend.sinks",
                "SinkDesk.deliver",
                "knowledge.determinants.learn(token.determinants)",
                "pass",
            ),
            Edit(
                "frontend.questions",
                "Questions.determinants",
                "known.learn(owner.determinants())",
                "pass",
            ),
        ),
    ),
    "replies-without-determinants": Mutant(
        "a shard's new owner does not tell what the replies in its log stem from",
        "9",
        (
            Edit(
                "frontend.questions",
                "Questions.determinants",
                "known.learn(owner.determinants())",
                "pass",
            ),
        ),
    ),
    "replays-in-arrival-order": Mutant(
        "a new primary runs what comes as it comes, whatever others know of the order",
        "9",
        (
            Edit(
                "stateful.primary",
                "Primary._form_batches",
                "if self._replay is not None and self._replays_on(self._replay):",
                "if False:",
            ),
        ),
    ),
    "replays-one-by-one": Mutant(
        "a new primary runs units again in their order, but not in their batches",
        "9",
        (
            Edit(
                "determinants",
                "in_order",
                "order.append(following)",
                "order += [\n"
                "    Determinant(following.op, following.epoch, following.first + at, (ran,))\n"
                "    for at, ran in enumerate(following.units)\n"
                "]",
            ),
        ),
    ),
    "runs-unstored": Mutant(
        "a batch that updates nothing is run though the version that the epoch begins with is not stored",
        "9",
        (
            Edit(
                "stateful.primary",
                "Primary._form_batches",
                "if m.mode.replays and not self._durability.window_open:",
                "if False:",
            ),
        ),
    ),
    "begins-again-unread": Mutant(
        "a lost state that shall be run again begins from nothing because its store is slow",
        "9",
        (
            Edit(
                "recovery.losses",
                "Losses._waits_for_checkpoints",
                "return waits or (is_run_again(self._m.graph, item.name) and not knows)",
                "return waits",
            ),
        ),
    ),
    "stateless-not-asked": Mutant(
        "a new primary does not ask instances without a state how the versions before it came about",
        "9",
        (
            Edit(
                "stateful.replay",
                "RunAgain._receivers",
                "instances.difference(topology.revoked)",
                "set()",
            ),
        ),
    ),
    "told-unaware": Mutant(
        "who still takes tokens of a former primary tells the new one what it knows",
        "9",
        (
            Edit(
                "vertex",
                "Vertex._determinants_asked",
                "if generation < ask.generation:",
                "if False:",
            ),
        ),
    ),
    "stores-pending": Mutant(
        "a version is stored though it depends on what another operator has not stored",
        "9",
        (
            Edit(
                "stateful.stored",
                "StoredDurability._storable",
                "version.state is not None and knowledge.status(deps) is Status.DURABLE",
                "version.state is not None",
            ),
        ),
    ),
    "durable-before-stored": Mutant(
        "a version is durable as soon as it is to be written",
        "9",
        (
            Edit(
                "stateful.stored",
                "StoredDurability.advance",
                "self._writing = version.number",
                "self._writing = version.number\nself._is_durable(version.number)",
            ),
        ),
    ),
    "complete-before-stored": Mutant(
        "a request is complete once its reply is, though states that it has changed are not stored",
        "9",
        (
            Edit(
                "knowledge",
                "Knowledge.status_of",
                "return Status.DURABLE if stored is not None and dep.seq <= stored.seq else Status.PENDING",
                "return Status.DURABLE",
            ),
        ),
    ),
}
