"""Mutants of managers, and of the topology that they change."""

from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "begins-again-unasked": Mutant(
        "a lost state begins again as its model makes it though a request may have been logged",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses._is_untouched",
                "untouched = self._m.from_scratch and self._m.knowledge.topology.untouched",
                "untouched = True",
            ),
        ),
    ),
    "dead-model-stays-dead": Mutant(
        "an instance whose model was said to be dead stays a confirmed suspect in later topologies",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions.ask_anew",
                "if suspicion.health is Health.MODEL_DEAD or self._has_gone_back(suspicion):",
                "if self._has_gone_back(suspicion):",
            ),
        ),
    ),
    "rolled-back-is-replaced": Mutant(
        "a primary that has gone back stays a confirmed suspect, and the next backup takes its place",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions.ask_anew",
                "if suspicion.health is Health.MODEL_DEAD or self._has_gone_back(suspicion):",
                "if suspicion.health is Health.MODEL_DEAD:",
            ),
        ),
    ),
    "ends-dropped-unheard": Mutant(
        "an end goes from the topology before every instance has heard of it",
        "7",
        (
            Edit(
                "recovery.assign", "forget_ends", "below = heard.find(item.name).epoch", "below = item.epoch"
            ),
        ),
    ),
    "first-answer-decides": Mutant(
        "a failover goes on with the first backup that has answered its Freeze, and leaves the others out",
        "7.2",
        (
            Edit(
                "recovery.attempt",
                "Attempt.freeze_answer",
                "elif len(move.answers) == len(move.asked):",
                "else:",
            ),
        ),
    ),
    "found-unseen": Mutant(
        "a manager calls a lost state found because it does not suspect who holds it",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses.lost_and_found",
                "changes = back if item.lost else gone",
                "changes = gone != item.lost",
            ),
        ),
    ),
    "highest-becomes-primary": Mutant(
        "the backup that applied most becomes primary, though others have less",
        "7.2",
        (
            Edit(
                "recovery.attempt",
                "Attempt._decide",
                "move.primary = min(replicas, key=lambda instance: held[instance])",
                "move.primary = max(replicas, key=lambda instance: held[instance])",
            ),
            Edit(
                "recovery.attempt",
                "Attempt._decide",
                "move.end = min(held.values())",
                "move.end = held[move.primary] if replicas else min(held.values())",
            ),
        ),
    ),
    "hung-is-dead": Mutant(
        "a lost state begins again by policy though those who have it only hang",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses.may_wake_up",
                "if self._m.suspicions.is_refused(holder):\n    return False",
                "return False",
            ),
        ),
    ),
    "ignore-taint": Mutant(
        "a downstream operator whose state holds an orphan is left as it is",
        "7.3",
        (
            Edit(
                "recovery.attempt",
                "Attempt.fence_answer",
                "if not answer.tainted:\n    question.clean = True\n    return",
                "question.clean = True\nreturn",
            ),
            Edit(
                "stateful.machine",
                "StatefulMachine.topology_changed",
                "if primary.is_tainted():",
                "if False:",
            ),
        ),
    ),
    "empty-keeper-holds": Mutant(
        "a keeper that says that it holds nothing counts as a holder of the state",
        "7.2",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions.holds_nothing",
                "return keeper in item.keepers and (keeper, item.name) in self._empty",
                "return False",
            ),
        ),
    ),
    "unaware-keeper-is-empty": Mutant(
        "a keeper that does not know yet that it is named counts as one that holds nothing",
        "7.2",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions._keeper_answered",
                "if answer.generation != topology.generation:",
                "if False:",
            ),
        ),
    ),
    "keeper-let-go": Mutant(
        "a slot's owner is revoked though a primary is yet to get the state that it keeps",
        "6",
        (
            Edit(
                "recovery.verdicts",
                "Verdicts._has_just_led",
                "if primary in self._suspicions.open or primary in self._suspicions.down:",
                "return True\nif primary in self._suspicions.open or primary in self._suspicions.down:",
            ),
        ),
    ),
    "keeper-not-asked": Mutant(
        "managers do not ask a set's keeper where no member answers",
        "7.2",
        (
            Edit(
                "recovery.attempt",
                "Attempt._freeze_former",
                "for instance in (*assign.returned(self._members, move.old), *move.old.keepers):",
                "for instance in assign.returned(self._members, move.old):",
            ),
        ),
    ),
    "kept-never-asked": Mutant(
        "no former state is asked for where no in-sync member answers",
        "7.2",
        (
            Edit(
                "recovery.attempt",
                "Attempt._freeze_former",
                "before = self._question",
                "return False",
            ),
        ),
    ),
    "late-replacement-not-awaited": Mutant(
        "the time to tell which checkpoints were found runs from the loss, not from when a replacement came",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses._waits_for_checkpoints",
                "waits = False",
                "waits = False\n"
                "began = self._awaited_since.setdefault("
                "(item.name, item.epoch, item.primary), self._ctx.now)",
            ),
            Edit(
                "recovery.losses",
                "Losses._waits_for_checkpoints",
                "since = self._awaited_since.setdefault((item.name, item.epoch, name), self._ctx.now)",
                "since = began",
            ),
            Edit("recovery.losses", "Losses.ask_saved", "and key[2] in self._m.members", ""),
        ),
    ),
    "leaves-with-hand-over": Mutant(
        "a primary that hands its set over leaves with the same commit, though the successor may have died",
        "7",
        (
            Edit(
                "topology",
                "hand_over",
                "rest = (*(item for item in replica_set.in_sync if item != successor), primary)",
                'stays = (primary,) if "/" in name else ()\n'
                "rest = (*(item for item in replica_set.in_sync if item != successor), *stays)",
            ),
        ),
    ),
    "log-leaves-with-hand-over": Mutant(
        "a frontend that hands a shard over leaves with the same commit, though the successor may have died",
        "7",
        (
            Edit(
                "topology",
                "hand_over",
                "rest = (*(item for item in replica_set.in_sync if item != successor), primary)",
                'stays = () if "/" in name else (primary,)\n'
                "rest = (*(item for item in replica_set.in_sync if item != successor), *stays)",
            ),
        ),
    ),
    "lost-probe-counts": Mutant(
        "a probe that was lost with its connection counts as unanswered",
        "6",
        (Edit("recovery.suspicions", "Suspicions.ask_again", "if suspicion is not None:", "if False:"),),
    ),
    "probed-once": Mutant(
        "who has just started is asked once, though its answer may be lost",
        "6",
        (
            Edit("recovery.suspicions", "Suspicions._again_after_s", "if soon else", "if False else"),
            Edit(
                "recovery.suspicions",
                "Suspicion.__init__",
                "limits.probe_repeat_s",
                "limits.probe_again_after_s",
            ),
            Edit("recovery.suspicions", "Suspicions.members_changed", "if name in came", "if name in ()"),
            Edit("recovery.suspicions", "Suspicions.judged_at", "not in self._registered", "in ()"),
        ),
    ),
    "unregistered-judged": Mutant(
        "who is named before its registration has come is judged by its silence until then",
        "6",
        (Edit("recovery.suspicions", "Suspicions.judged_at", "not in self._registered", "in ()"),),
    ),
    "manager-gives-to-departed": Mutant(
        "a manager gives a slot to an instance that has handed over all that it had",
        "6",
        (Edit("recovery.assign", "slots", "if item not in departed", "if True"),),
    ),
    "departed-substitute-counts": Mutant(
        "one that is about to end counts as who could take a slot of an owner whose model is dead",
        "6",
        (Edit("recovery.verdicts", "Verdicts._has_substitute", ") - departed", ")"),),
    ),
    "attempt-gives-to-departed": Mutant(
        "the commit of a recovery gives a slot to an instance that has handed over what it had",
        "6",
        (Edit("recovery.attempt", "Attempt.result", "self._members, self.departed", "self._members, ()"),),
    ),
    "lost-while-held": Mutant(
        "a state is called lost once its primary is gone, though a backup holds it",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses.lost_and_found",
                "back = returned or any(member in self._m.members for member in holders)",
                "gone = self._m.suspicions.is_gone(holders[0]) if holders else gone\n"
                "back = returned or any(member in self._m.members for member in holders)",
            ),
        ),
    ),
    "no-fence": Mutant(
        "downstream operators are not asked whether their states hold an orphan",
        "7.3",
        (
            Edit(
                "recovery.attempt",
                "Attempt._fence_downstream",
                "for op in self._graph.data.operators:",
                "for op in ():",
            ),
        ),
    ),
    "revoke-last-replica": Mutant(
        "an instance is revoked though another set has no replica but this one",
        "6",
        (
            Edit(
                "recovery.verdicts",
                "Verdicts.to_replace",
                "out = {*self._suspicions.open, *topology.revoked}",
                "return instances\nout = {*self._suspicions.open, *topology.revoked}",
            ),
            Edit(
                "recovery.verdicts",
                "Verdicts.is_needed",
                "revoked = self._knowledge.topology.revoked",
                "return False\nrevoked = self._knowledge.topology.revoked",
            ),
        ),
    ),
    "answering-holder-is-given-up": Mutant(
        "a lost state begins again 10 s later though one who holds it answers, and only cannot reach etcd",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses.restart",
                "given_up = not (self._may_any_wake_up(item) or self._some_answers(item))",
                "given_up = not self._may_any_wake_up(item)",
            ),
        ),
    ),
    "stopped-manager-gives-up": Mutant(
        "a manager that was stopped begins a lost state again before it reads who has come back",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses.late",
                "most = self._ctx.now + limits.hung_wait_s",
                "return\nmost = self._ctx.now + limits.hung_wait_s",
            ),
        ),
    ),
    "stopped-manager-does-not-doubt": Mutant(
        "a manager that was stopped calls a state lost before it reads who has come back",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions.late",
                "if pause_s(by_s) and now - by_s >= self._doubts_until:\n    self._doubt(forgets=False)",
                "",
            ),
        ),
    ),
    "dead-keeper-is-needed": Mutant(
        "a keeper that has ended is waited for, since the primary that was to get the state from it is there",
        "6",
        (
            Edit(
                "recovery.verdicts",
                "Verdicts._keeps",
                "return not dead or item.primary in self._knowledge.topology.revoked",
                "return True",
            ),
        ),
    ),
    "restart-takes-keeper": Mutant(
        "a state that begins again takes the last keeper of another lost one with it, which may only hang",
        "7.2",
        (
            Edit(
                "recovery.losses",
                "Losses.restart",
                "if not decided or self._takes_the_last_of_others(item, topology):",
                "if not decided:",
            ),
        ),
    ),
    "silent-asked-to-go-back": Mutant(
        "a primary that must go back is asked what it retains even after it has fallen silent",
        "7.3",
        (
            Edit(
                "recovery.verdicts",
                "Verdicts.to_roll_back",
                "if suspicion.health is not Health.NEEDS_ROLLBACK:",
                "if False:",
            ),
        ),
    ),
    "rollback-drops-keeper": Mutant(
        "a primary that goes back by itself has no keeper any more",
        "7.3",
        (
            Edit(
                "recovery.attempt",
                "Attempt._freeze_keepers",
                "move.rolls_back = True",
                "return",
            ),
        ),
    ),
    "rollback-to-pending": Mutant(
        "a primary without backup goes back to a record with pending dependencies",
        "7.3",
        (
            Edit(
                "recovery.attempt",
                "Attempt._is_safe",
                "return all("
                "self._is_decided(dep.op) and dep.seq <= self._moves[dep.op].end for dep in item.deps)",
                "return not any("
                "self._is_decided(dep.op) and dep.seq > self._moves[dep.op].end for dep in item.deps)",
            ),
        ),
    ),
    "shrink-from-outside": Mutant(
        "a manager drops a dead backup from a set on its living primary's behalf",
        "2",
        (
            Edit(
                "recovery.assign",
                "joiners",
                "taken = named(topology) if of != FRONTEND else set(replica_set.members)",
                "replica_set = replace(\n"
                "    replica_set, in_sync=tuple(item for item in replica_set.in_sync if item in members)\n"
                ")\n"
                "taken = named(topology) if of != FRONTEND else set(replica_set.members)",
            ),
        ),
    ),
    "cut-off-judge-judges": Mutant(
        "a manager that was cut off holds the silence of the others against them when it is back",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions.topology_changed",
                "if was_apart and self._ctx.now >= self._doubts_until:",
                "if False:",
            ),
        ),
    ),
    "deaf-judge-judges": Mutant(
        "a manager that hears nobody at all takes all of them for dead",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions._see_who_is_heard",
                "if hears_nobody != self._hears_nobody:",
                "if False:",
            ),
        ),
    ),
    "dead-counts-as-unheard": Mutant(
        "a manager doubts itself because of the role of an instance whose connection had broken",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions._was_apart",
                "name in self._met and name not in self.down and not self.is_silent(name)",
                "name in self._met and not self.is_silent(name)",
            ),
        ),
    ),
    "doubt-renewed": Mutant(
        "what others do while a manager doubts itself makes it doubt itself for longer",
        "6",
        (
            Edit(
                "recovery.suspicions",
                "Suspicions.topology_changed",
                "if was_apart and self._ctx.now >= self._doubts_until:",
                "if was_apart:",
            ),
        ),
    ),
    "starved-judge-judges": Mutant(
        "a manager whose own loop is late holds others' silence against them",
        "6",
        (
            Edit("lateness", "Lateness.late", "if by_s <= self._tolerated_s:\n    return", "return"),
            Edit(
                "recovery.suspicions",
                "Suspicions.late",
                "if by_s <= limits.starved_s:\n    return",
                "return",
            ),
        ),
    ),
    "tainted-primary-joins": Mutant(
        "a tainted primary that lives throws its state away and joins anew",
        "7.3",
        (
            Edit(
                "recovery.attempt",
                "Attempt._share_out",
                "if retains:\n"
                "    move.in_sync = (*move.in_sync, old_primary)\n"
                "else:\n"
                "    left_out.append(old_primary)",
                "left_out.append(old_primary)",
            ),
        ),
    ),
    "word-of-a-suspect": Mutant(
        "a keeper is revoked on what its primary said before that was suspected itself",
        "6",
        (
            Edit(
                "recovery.verdicts",
                "Verdicts._has_just_led",
                "if primary in self._suspicions.open or primary in self._suspicions.down:",
                "if False:",
            ),
        ),
    ),
    "owner-stays-doomed": Mutant(
        "an owner of slots is revoked by an attempt though what it keeps is the only copy by now",
        "6",
        (
            Edit(
                "recovery.verdicts",
                "Verdicts.to_replace",
                "self._m.attempt.to_replace & leaders",
                "self._m.attempt.to_replace",
            ),
        ),
    ),
}
