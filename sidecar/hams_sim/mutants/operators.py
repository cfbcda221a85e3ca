"""Mutants of what all operators share, and of stateless ones: tokens, joins, slots, suspects."""

from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "ack-without-epoch": Mutant(
        "an acknowledgement of the owner's old epoch counts in its new one",
        "3",
        (
            Edit(
                "outbox",
                "Outbox.acknowledge",
                "if entry.epoch == ack.epoch:\n    entry.held = True",
                "entry.held = True",
            ),
            Edit(
                "outbox",
                "Outbox.owners_changed",
                "if owner != entry.owner or epoch != entry.epoch:",
                "if owner != entry.owner:",
            ),
        ),
    ),
    "ack-without-value-id": Mutant(
        "an acknowledgement of a replaced value counts for its successor",
        "3",
        (Edit("outbox", "Outbox.acknowledge", "if entry.token.value_id != ack.value_id:", "if False:"),),
    ),
    "adopted-under-new-id": Mutant(
        "a value taken over from a slot's former owner goes to the other receivers under another id",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine._adopt",
                "skip = Token(",
                "from dataclasses import replace\n\n"
                "token = replace(token, value_id=self.new_value_id())\n"
                "skip = Token(",
            ),
        ),
    ),
    "attempt-not-awaited": Mutant(
        "a suspect runs alone before its upstream has acknowledged what was said of it and of the one before",
        "3",
        (
            Edit("poison", "Attempts.is_settled", "return not self._open", "return True"),
            Edit(
                "poison",
                "Attempts._say_again",
                "for announcement in self._open.values():",
                "for announcement in ():",
            ),
            Edit("poison", "Attempts.dues", "if not self._open:\n    return []", "return []"),
        ),
    ),
    "complete-request-taken": Mutant(
        "tokens of complete requests are taken again",
        "5",
        (Edit("vertex", "Vertex.deliver", "if token.request in knowledge.completed:", "if False:"),),
    ),
    "copy-without-fan-inputs": Mutant(
        "a joiner's copy does not bring along what came from fan-outs",
        "7.7",
        (
            Edit(
                "lineage",
                "pruned",
                "tuple(knowledge.leaving(token, now) for token in item.fan_inputs),",
                "(),",
            ),
        ),
    ),
    "handed-slot-forgotten": Mutant(
        "who has handed a slot over does not tell what it had received for it",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine.slot_answer",
                "return SlotAnswer(query.op, query.slot, query.epoch, self.held_from_slot(query, handed))",
                "handed.clear()\n"
                "return SlotAnswer(query.op, query.slot, query.epoch, self.held_from_slot(query, handed))",
            ),
        ),
    ),
    "joins-keep-orphan": Mutant(
        "a token that has become orphan stays in its join and hides its successor",
        "4",
        (
            Edit(
                "vertex",
                "Vertex.purge_units",
                "for unit in self.joins.units():",
                "return\nfor unit in self.joins.units():",
            ),
        ),
    ),
    "lanes-share-fan": Mutant(
        "what a fan-out operator makes for two lanes of a request is taken for two executions of one",
        "4",
        (Edit("joins", "fan_name", "return f\"{op}[{','.join(lane)}]\" if lane else op", "return op"),),
    ),
    "mix-fan-out-values": Mutant(
        "values of two executions of one fan-out operator meet in one result",
        "4",
        (
            Edit(
                "joins",
                "inconsistent_fan_out",
                "if seen.setdefault(name, value_id) != value_id:",
                "if False:",
            ),
        ),
    ),
    "no-slot-query": Mutant(
        "a new slot owner does not ask what its predecessors delivered",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine.topology_changed",
                "if self._fans_out and epoch > 1:",
                "if False:",
            ),
        ),
    ),
    "one-shard-asked": Mutant(
        "a new slot owner with a sink asks one shard only",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine._receiver_sets",
                "return [*(name for name in names if self.graph.operators[name].stateful), *shards]",
                "shards = shards[:1]\n"
                "return [*(name for name in names if self.graph.operators[name].stateful), *shards]",
            ),
        ),
    ),
    "orphan-adopted": Mutant(
        "a new slot owner takes over a value that is an orphan",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine._adopt",
                "if token.request in self.knowledge.completed or is_orphan:",
                "if token.request in self.knowledge.completed:",
            ),
        ),
    ),
    "outbox-keeps-orphan": Mutant(
        "what has become orphan goes on being sent",
        "7.6",
        (
            Edit(
                "outbox",
                "Outbox.purge",
                "for request, edges in list(self._requests.items()):",
                "return\nfor request, edges in list(self._requests.items()):",
            ),
        ),
    ),
    "poison-at-first-death": Mutant(
        "a request is called poison before its model has died of it maxAttempts times",
        "3",
        (
            Edit(
                "poison",
                "Attempts.is_poison",
                "return unit.attempts > self._limit",
                "return unit.attempts > 1",
            ),
        ),
    ),
    "poison-runs-for-ever": Mutant(
        "a request that kills its model each time is tried without end",
        "3",
        (Edit("poison", "Attempts.is_poison", "return unit.attempts > self._limit", "return False"),),
    ),
    "policy-repeats-unit": Mutant(
        "a scheduling policy gives a unit twice in one batch, and it runs twice",
        "2",
        (Edit("batching", "Fifo.take", "return chosen", "return [*chosen, chosen[0]]"),),
    ),
    "replaced-is-dead": Mutant(
        "an owner that is replaced alive counts as dead of what it had announced",
        "3",
        (
            Edit(
                "outbox",
                "Outbox._count_death",
                "if owner != entry.owner and entry.owner in self._knowledge.topology.revoked:",
                "if owner != entry.owner:",
            ),
        ),
    ),
    "route-not-kept": Mutant(
        "after a predecessor's skip the value is computed again with another route",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine._adopt",
                "unit.route, unit.made = token.route, token.deps",
                "unit.route, unit.made = None, token.deps",
            ),
            Edit("stateless", "StatelessMachine._emit_error", "chosen = unit.route", "chosen = None"),
        ),
    ),
    "silent-leader-dropped": Mutant(
        "a new slot owner does not ask the new leader of a set whose old one had not answered",
        "4",
        (
            Edit(
                "stateless",
                "StatelessMachine._inquire_on",
                "self._ask_leaders(inquiry)",
                "for name, epoch in list(inquiry.sets.items()):\n"
                "    if self.knowledge.set_of(name).epoch > epoch:\n"
                "        del inquiry.sets[name]\n"
                "self._ask_leaders(inquiry)",
            ),
        ),
    ),
    "holds-what-others-wait-for": Mutant(
        "the owner of a slot that is to move holds back a request before one that it has begun",
        "7",
        (
            Edit(
                "stateless",
                "StatelessMachine._is_leaving",
                "return _order(request) > self._begun[slot]",
                "return True",
            ),
        ),
    ),
    "slot-moves-while-busy": Mutant(
        "a slot moves before its owner has delivered everything it executed",
        "7",
        (
            Edit(
                "stateless",
                "StatelessMachine._pass_on",
                "for number, successor in self._leaving.items():",
                "busy.clear()\nfor number, successor in self._leaving.items():",
            ),
        ),
    ),
    "slot-moves-while-served": Mutant(
        "a slot's owner executes on while its move may be committed",
        "7",
        (
            Edit(
                "stateless",
                "StatelessMachine._is_leaving",
                "if slot in self._in_doubt:",
                "if slot in ():",
            ),
        ),
    ),
    "successor-untold": Mutant(
        "who proposes a slot's successor does not tell it what is complete",
        "7",
        (
            Edit(
                "stateless",
                "StatelessMachine._pass_on",
                "self.ctx.send(successor, self.knowledge.completed.snapshot())",
                "pass",
            ),
        ),
    ),
    "starting-is-dead": Mutant(
        "a proxy says that its model is dead while that starts",
        "6",
        (
            Edit(
                "stateless",
                "StatelessMachine.message",
                "if self._model_dead else",
                "if not self._model_ready else",
            ),
        ),
    ),
    "slot-goes-to-departed": Mutant(
        "a slot goes to an instance that has handed over all that it had",
        "7",
        (
            Edit(
                "stateless",
                "StatelessMachine._substitute",
                "and item not in self._departed.instances",
                "",
            ),
        ),
    ),
    "unreadable-is-lost": Mutant(
        "a token that its receiver cannot read is neither taken nor acknowledged",
        "3",
        (
            Edit(
                "vertex",
                "Vertex.deliver",
                "if token.request in knowledge.completed:",
                "if token.payload is not None and token.payload.defect:\n"
                "    return\n"
                "if token.request in knowledge.completed:",
            ),
        ),
    ),
    "unreadable-runs": Mutant(
        "a model is given what its instance cannot read",
        "3",
        (
            Edit(
                "messages",
                "Token.failure",
                "if self.payload is None or not self.payload.defect:\n    return None",
                "return None",
            ),
        ),
    ),
    "unsticky-slots": Mutant(
        "requests move to other slots whenever the topology changes",
        "4",
        (
            Edit(
                "knowledge",
                "Knowledge.owner",
                "slot = slots[number]",
                "number = (number + self.topology.generation) % len(slots)\nslot = slots[number]",
            ),
        ),
    ),
    "vacant-slot-open": Mutant(
        "tokens of a revoked owner are taken while nobody has its slot",
        "4",
        (Edit("knowledge", "Knowledge.learn", "slot.epoch + vacant", "slot.epoch"),),
    ),
}
