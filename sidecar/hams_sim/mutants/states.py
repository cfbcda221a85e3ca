"""Mutants of stateful operators: primaries, backups, keepers, checkpoints."""

from hams_sim.mutants.mutant import Edit, Mutant

MUTANTS: dict[str, Mutant] = {
    "act-before-commit": Mutant(
        "a frozen backup drops what it holds before the new topology is committed",
        "7",
        (
            Edit(
                "stateful.questions",
                "Questions.freeze",
                "m.backup.following.frozen.freeze(freeze.generation)",
                "m.backup.following.frozen.freeze(freeze.generation)\nm.backup._held.clear()",
            ),
            Edit(
                "stateful.keeper",
                "Keeper._freeze",
                "held.backup.following.frozen.freeze(freeze.generation)",
                "held.backup.following.frozen.freeze(freeze.generation)\nheld.backup._held.clear()",
            ),
        ),
    ),
    "alone-without-deps": Mutant(
        "a primary alone calls versions durable before their dependencies are",
        "2",
        (
            Edit(
                "stateful.durability",
                "Durability._settled",
                "if knowledge.status(others(version.record.deps, self.name)) is not Status.DURABLE:",
                "if False:",
            ),
        ),
    ),
    "apply-before-upstream-durable": Mutant(
        "a backup applies a record whose dependencies on others are still pending",
        "2",
        (Edit("stateful.backup", "Backup.apply", "if status is not Status.DURABLE:", "if False:"),),
    ),
    "apply-orphan": Mutant(
        "a backup applies a record that depends on an orphan",
        "2",
        (
            Edit("stateful.backup", "Backup.apply", "if status is Status.ORPHAN:", "if False:"),
            Edit(
                "stateful.backup",
                "Backup.apply",
                "if status is not Status.DURABLE:",
                "if status not in (Status.DURABLE, Status.ORPHAN):",
            ),
        ),
    ),
    "apply-with-gap": Mutant(
        "a backup applies a record though it lacks the one before",
        "2",
        (
            Edit(
                "stateful.backup",
                "Backup._record",
                "if self.received < 0 or record.previous > self.received:",
                "if self.received < 0:",
            ),
        ),
    ),
    "birth-lost-in-catch-up": Mutant(
        "a joiner that catches up is sent what the newest version changed, not all since what it holds",
        "2",
        (
            Edit(
                "stateful.durability",
                "Durability._changed_for",
                "return state.born_after(follower.received, born)",
                "return state.born_after(self.durable - 1, born)",
            ),
        ),
    ),
    "born-before-it-was-made": Mutant(
        "a state is said to be as old as the one before it: who lacks it is sent nothing",
        "2",
        (
            Edit(
                "versions",
                "VersionStore.append",
                "version = Version(record, changed, record.state, record.version)",
                "version = Version(record, changed, record.state, before.born if before else record.version)",
            ),
        ),
    ),
    "checkpoint-oldest": Mutant(
        "a checkpoint is written of the oldest version held, though newer ones are durable",
        "7.2",
        (
            Edit(
                "stateful.checkpoints",
                "Checkpoints._write",
                "if version is None or version.state is None or (m.epoch, version.number) <= self._written:",
                "version = next(iter(m.store.versions), None)\n"
                "if version is None or version.state is None or (m.epoch, version.number) <= self._written:",
            ),
        ),
    ),
    "checkpoint-speculative": Mutant(
        "a checkpoint is written of a version that is not durable",
        "7.2",
        (
            Edit(
                "stateful.checkpoints",
                "Checkpoints._write",
                "if version is None or version.state is None or (m.epoch, version.number) <= self._written:",
                "version = m.store.newest\n"
                "if version is None or version.state is None or (m.epoch, version.number) <= self._written:",
            ),
        ),
    ),
    "checkpoint-without-consumed": Mutant(
        "a checkpoint is written without the units that its version has consumed",
        "7.2",
        (
            Edit(
                "stateful.checkpoints",
                "Checkpoints._write",
                "copy = StateCopy(",
                "units = ()\ncopy = StateCopy(",
            ),
        ),
    ),
    "consumed-not-restored": Mutant(
        "who goes back to a record forgets which units its state has consumed",
        "7.6",
        (
            Edit(
                "stateful.machine",
                "StatefulMachine._go_back",
                "return True",
                "self.lineage.clear()\nreturn True",
            ),
        ),
    ),
    "copy-speculative": Mutant(
        "a joiner copies a version that is not durable",
        "7.7",
        (
            Edit(
                "stateful.durability",
                "Durability.copy_to",
                "version = m.store.at_or_below(number)",
                "number = self._ready_up_to()\nversion = m.store.at_or_below(number)",
            ),
        ),
    ),
    "copy-without-consumed": Mutant(
        "a joiner copies the tensors without the consumed units",
        "7.7",
        (
            Edit(
                "stateful.durability",
                "Durability.copy_to",
                "units = pruned(m.lineage.up_to(version.number), m.knowledge, self._ctx.now)",
                "units = ()",
            ),
        ),
    ),
    "delta-on-wrong-base": Mutant(
        "what changed is laid over the newest version applied, not over the one that it changed from",
        "2",
        (
            Edit(
                "stateful.backup",
                "Backup._whole",
                "base = self._state_of(carrier.since)",
                "base = self._m.store.versions[-1].state if self._m.store.versions else None",
            ),
        ),
    ),
    "deps-not-transitive": Mutant(
        "outputs depend on the inputs of their batch, but not on those of the state before",
        "2",
        (
            Edit(
                "stateful.primary",
                "Primary.batch_done",
                "deps = merge([self._execution.deps, *(m.joins.deps(unit) for unit, _ in accepted)])",
                "deps = merge([m.joins.deps(unit) for unit, _ in accepted])",
            ),
        ),
    ),
    "drained-stays": Mutant(
        "a primary that has handed its set over, and is named joiner before it hears of that, stays",
        "7",
        (
            Edit(
                "stateful.machine",
                "StatefulMachine._as_joiner",
                "if self.primary is not None:\n    self._left_out()",
                "",
            ),
        ),
    ),
    "durable-before-all": Mutant(
        "a version is durable once one member of the ack set has applied it",
        "2",
        (
            Edit(
                "stateful.durability",
                "Durability.advance",
                "elif target is None:\n    target = self._ready_up_to() if m.by_receipt else self._settled()",
                "elif target is None:\n"
                "    target = self._ready_up_to() if m.by_receipt else self._settled()\n"
                "else:\n"
                "    target = max(follower.applied for follower in self.followers.ack_set)",
            ),
        ),
    ),
    "durable-before-rollback": Mutant(
        "a primary that has told what it could go back to makes more of it durable",
        "7.3",
        (
            Edit(
                "stateful.fences",
                "Fences.raise_fence",
                "self.may_go_back = self.may_go_back or tainted or must_go_back",
                "self.may_go_back = self.may_go_back or tainted",
            ),
        ),
    ),
    "durable-version-dropped": Mutant(
        "a backup keeps as many versions as its primary's window is wide, and not those beside it",
        "2",
        (
            Edit(
                "stateful.backup",
                "Backup.apply",
                "m.operator.window + 2",
                "m.operator.window + 1",
            ),
        ),
    ),
    "durable-when-tainted": Mutant(
        "who has told a manager that its state holds an orphan makes more of it durable",
        "7.3",
        (
            Edit(
                "stateful.fences",
                "Fences.raise_fence",
                "self.may_go_back = self.may_go_back or tainted or must_go_back",
                "self.may_go_back = self.may_go_back or must_go_back",
            ),
        ),
    ),
    "durable-without-keeper": Mutant(
        "a version is durable before the keeper that the topology names has applied it",
        "2",
        (
            Edit(
                "replica.followers",
                "Followers.applied_by_all",
                "applied = [follower.applied for follower in self.all.values() if follower.ack]",
                "applied = [\n"
                "    follower.applied\n"
                "    for follower in self.all.values()\n"
                "    if follower.ack and not follower.keeper\n"
                "]",
            ),
        ),
    ),
    "early-ask-ignored": Mutant(
        "a joiner that asks before its primary knows that it is named gets no copy",
        "7.7",
        (
            Edit(
                "stateful.machine",
                "StatefulMachine._is_early",
                "if ask.generation <= self.knowledge.topology.generation:\n    return False",
                "return False",
            ),
        ),
    ),
    "frozen-keeper-goes-on": Mutant(
        "a keeper that has answered a Freeze goes on applying records",
        "7.2",
        (
            Edit(
                "stateful.keeper",
                "Keeper._freeze",
                "held.backup.following.frozen.freeze(freeze.generation)",
                "pass",
            ),
        ),
    ),
    "frozen-takes-records": Mutant(
        "a frozen backup goes on taking records of the old epoch",
        "7.2",
        (
            Edit("stateful.backup", "Backup._record", "if self.following.frozen.stands:", "if False:"),
            Edit("stateful.backup", "Backup.apply", "if self.following.frozen.stands:", "if False:"),
        ),
    ),
    "goes-on-after-hand-over": Mutant(
        "a primary whose proposed handover may yet be committed executes again, its successor being gone",
        "7",
        (
            Edit(
                "stateful.durability",
                "Durability.is_handed_over",
                "return self._m.knowledge.topology.generation <= self._handed_in",
                "return False",
            ),
        ),
    ),
    "hand-over-unflushed": Mutant(
        "a primary hands its set over before its window is flushed",
        "7",
        (
            Edit(
                "stateful.durability",
                "Durability.hand_over",
                "unflushed = self._seq > self.durable",
                "unflushed = False",
            ),
        ),
    ),
    "held-outputs-survive-failover": Mutant(
        "outputs that were held when an epoch ended leave in the next one",
        "9",
        (
            Edit(
                "stateful.durability",
                "Durability.__init__",
                "self._held_outputs: deque[tuple[int, Outputs]] = deque()",
                'self._held_outputs = vars(machine).setdefault("held", deque())',
            ),
            Edit(
                "stateful.durability",
                "Durability._release_durable",
                "m.outbox.put(target, m.knowledge.pruned(token))",
                "m.outbox.put(target, replace(token, deps=()))",
            ),
        ),
    ),
    "joiner-ends-unawares": Mutant(
        "a joiner that is to end does so at once, though it may have been admitted",
        "7",
        (
            Edit(
                "stateful.backup",
                "Backup.may_count",
                "return self.in_sync or (self._said[1] >= 0 and self.following.may_be_admitted)",
                "return self.in_sync",
            ),
        ),
    ),
    "keeper-ends-unasked": Mutant(
        "a keeper whose own role ends does so at once, though the topology names it",
        "6",
        (
            Edit(
                "stateful.machine",
                "StatefulMachine._end",
                "if not self.keeper.is_needed:",
                "if True:",
            ),
        ),
    ),
    "begins-again-on-a-copy": Mutant(
        "a state that begins again from nothing runs on what its model had taken over of the lost one",
        "7.2",
        (
            Edit(
                "stateful.machine",
                "StatefulMachine._as_first_primary",
                "if restored is not None or replica_set.epoch > 1:",
                "if restored is not None:",
            ),
        ),
    ),
    "stopped-keeper-ends": Mutant(
        "a keeper that is to end and was stopped does so before it reads that it is named",
        "7",
        (
            Edit(
                "stateful.keeper",
                "Keeper.late",
                "if self._named_by != FOREVER:",
                "if False:",
            ),
        ),
    ),
    "fetches-for-ever": Mutant(
        "a primary asks a keeper for its state for ever, if it never had a connection to it that could break",
        "7.2",
        (
            Edit(
                "stateful.fetching",
                "Fetching.__init__",
                "self._down_since = FOREVER if keeper in machine.links.up else machine.ctx.now",
                "self._down_since = machine.links.down.get(keeper, FOREVER)",
            ),
        ),
    ),
    "keeper-takes-late-copy": Mutant(
        "a keeper that is named without a state takes a copy that comes late",
        "2",
        (
            Edit(
                "stateful.keeper",
                "Keeper.topology_changed",
                "self._named_without(replica_set)",
                "pass",
            ),
        ),
    ),
    "keeper-forgets": Mutant(
        "a keeper forgets what it holds when its set's epoch ends, before a fresh primary has it",
        "7.2",
        (
            Edit(
                "stateful.keeper",
                "Keeper.topology_changed",
                "version = None if end is None else held.store.find(end)",
                "version = None",
            ),
        ),
    ),
    "keeper-unaware-of-itself": Mutant(
        "who keeps a state downstream does not apply its records when its own versions become durable",
        "2",
        (
            Edit(
                "stateful.durability",
                "Durability.advance",
                "m.keeper.durable_rose()",
                "",
            ),
        ),
    ),
    "keeper-without-consumed": Mutant(
        "a fresh primary gets the tensors from a keeper without the consumed units",
        "7.2",
        (
            Edit(
                "stateful.keeper",
                "Keeper._copy_asked",
                "known = self._knowledge.completed.snapshot()",
                "units = ()\nknown = self._knowledge.completed.snapshot()",
            ),
        ),
    ),
    "stems-unsaid": Mutant(
        "a backup that takes over does not look for what was lost upstream in the records that it holds",
        "7.2",
        (
            Edit(
                "stateful.primary",
                "Primary.holds_more_than",
                "(self._execution.deps, *(version.record.deps for version in m.store.versions))",
                "(self._execution.deps,)",
            ),
        ),
    ),
    "kept-pending": Mutant(
        "a former primary reports its newest record though its dependencies are pending",
        "7.2",
        (
            Edit(
                "stateful.former",
                "FormerState._is_durable",
                "return knowledge.status(others) is Status.DURABLE",
                "return True",
            ),
        ),
    ),
    "kept-without-consumed": Mutant(
        "a former state comes back without its consumed units",
        "6",
        (
            Edit(
                "stateful.former",
                "FormerState.__init__",
                "self.layout = layout",
                "self.layout = layout\nlineage.clear()",
            ),
        ),
    ),
    "leave-ack-set-before-shrink": Mutant(
        "a backup leaves the ack set when its removal is proposed, not when it is known",
        "2",
        (
            Edit(
                "replica.leader",
                "Leader._drop",
                "if changed is not None:\n    return changed",
                'if changed is not None:\n    follower.ack = hasattr(self, "_log")\n    return changed',
            ),
        ),
    ),
    "newest-fence-only": Mutant(
        "a late Fence of another manager relaxes a stricter one of the same generation",
        "7.3",
        (
            Edit(
                "stateful.fences",
                "Fences.raise_fence",
                "self._held = (*rest[-limits.fences_max + 1 :], fence)",
                "self._held = (fence,)",
            ),
        ),
    ),
    "no-keeper": Mutant(
        "a set that has lost its last backup calls no keeper, so suspects wait for another backup",
        "3",
        (Edit("stateful.choice", "KeeperChoice.is_wanted", "and m.operator.backups > 0", "and False"),),
    ),
    "no-reload": Mutant(
        "a promoted backup goes on with whatever its model holds",
        "7.2",
        (
            Edit(
                "stateful.primary",
                "Primary.promoted",
                "self.load_newest()",
                "",
            ),
        ),
    ),
    "no-window": Mutant(
        "any number of versions may be not yet durable",
        "2",
        (
            Edit(
                "stateful.durability",
                "Durability.window_open",
                "return pending < self._m.operator.window",
                "return True",
            ),
            Edit(
                "stateful.primary",
                "Primary._form_batches",
                "if m.attempts.holds or (m.mode.replicates and self.undurable > m.operator.window):",
                "if m.attempts.holds:",
            ),
        ),
    ),
    "old-freeze-accepted": Mutant(
        "a Freeze of a generation that has passed is answered",
        "7",
        (
            Edit(
                "replica.freeze",
                "refusal",
                "if freeze.generation != generation:",
                "if freeze.generation > generation:",
            ),
        ),
    ),
    "oldest-not-asked-for": Mutant(
        "a primary asks only for what its newest state depends on",
        "2",
        (
            Edit(
                "stateful.durability",
                "Durability._ask_waiting",
                "if not self._m.by_receipt:",
                "if False:",
            ),
        ),
    ),
    "outputs-not-resent": Mutant(
        "a new primary does not send the outputs again that came with its records",
        "7.6",
        (
            Edit(
                "stateful.primary",
                "Primary.promoted",
                "for consumed in m.lineage.units():",
                "for consumed in ():",
            ),
        ),
    ),
    "outputs-without-own-dep": Mutant(
        "outputs do not depend on the version that they were released with",
        "2",
        (
            Edit(
                "stateful.execution",
                "Execution._own",
                "waits = self._m.mode.waits_for_durable",
                "waits = False",
            ),
        ),
    ),
    "proposals-pile-up": Mutant(
        "a primary proposes again while the outcome of its last proposal is not known",
        "8, I6",
        (
            Edit(
                "replica.proposals", "Proposals.propose", "self._under_way = True", "self._under_way = False"
            ),
        ),
    ),
    "receipt-counts-as-apply": Mutant(
        "the receipt of a record makes its version durable",
        "2",
        (
            Edit(
                "replica.followers",
                "Followers.acknowledge",
                "follower.applied = max(follower.applied, applied)",
                "follower.applied = max(follower.applied, received)",
            ),
        ),
    ),
    "record-ack-of-old-epoch": Mutant(
        "an acknowledgement of an epoch that has ended counts in the next one",
        "2",
        (Edit("stateful.durability", "Durability._record_ack", "if ack.epoch != self.epoch:", "if False:"),),
    ),
    "record-of-old-epoch": Mutant(
        "a backup takes records of an epoch older than the one it knows",
        "2",
        (
            Edit(
                "stateful.backup",
                "Backup._record",
                "if record.epoch != self._epoch:",
                "if record.epoch > self._epoch:",
            ),
        ),
    ),
    "records-without-fan-inputs": Mutant(
        "records do not bring along what came from fan-outs",
        "4",
        (Edit("stateful.execution", "Execution._consume", "if m.fan_out_sources:", "if False:"),),
    ),
    "takeover-releases-at-once": Mutant(
        "where outputs are held, a new primary sends what its records brought before it is durable",
        "9",
        (
            Edit(
                "stateful.primary",
                "Primary.promoted",
                "self._durability.release(m.version, pruned)",
                "for target, token in pruned:\n    m.outbox.put(target, token)",
            ),
        ),
    ),
    "release-before-durable": Mutant(
        "outputs that are to be held leave before their version is durable",
        "9",
        (
            Edit(
                "stateful.durability",
                "Durability.release",
                "if self._m.mode.holds_outputs:",
                "if False:",
            ),
        ),
    ),
    "runs-while-copied": Mutant(
        "a model that stops to be copied runs its next batch meanwhile",
        "9",
        (
            Edit(
                "stateful.primary",
                "Primary._form_batches",
                "if m.mode.stops_to_copy and m.captures_open:",
                "if False:",
            ),
        ),
    ),
    "set-before-ack-set": Mutant(
        "a joiner is proposed as in sync before the primary counts on its acknowledgements",
        "2",
        (
            Edit(
                "replica.leader",
                "Leader.consider",
                "follower.ack = True",
                'follower.ack = hasattr(self, "_log")',
            ),
            Edit(
                "replica.leader",
                "Leader._is_admissible",
                "follower.ack",
                '(follower.ack or not hasattr(self, "_log"))\n',
            ),
        ),
    ),
    "skip-without-deps": Mutant(
        "a skip does not carry the dependencies of the tokens that it stems from",
        "3",
        (
            Edit(
                "stateful.execution",
                "Execution.record_forward",
                "merged = m.knowledge.prune(merge([self.deps, m.joins.deps(unit)]))",
                "inputs = () if forward.kind is Kind.SKIP else m.joins.deps(unit)\n"
                "merged = m.knowledge.prune(merge([self.deps, inputs]))",
            ),
        ),
    ),
    "successor-not-asked": Mutant(
        "a primary hands its set over before its successor can have said that it is to end as well",
        "7",
        (
            Edit(
                "replica.leader",
                "Leader.__init__",
                "ctx.now + 2 * limits.resend_after_s if replica_set.epoch > 1 else ctx.now",
                "ctx.now",
            ),
        ),
    ),
    "suspect-without-backup": Mutant(
        "a suspect of which another instance died runs alone where no backup is in sync",
        "3",
        (
            Edit(
                "stateful.primary",
                "Primary._may_run_alone",
                "if self._durability.is_protected or not m.operator.backups or not m.mode.replicates:",
                "if True:",
            ),
        ),
    ),
    "update-during-capture": Mutant(
        "the model enters its update while the version before is still being captured",
        "2",
        (
            Edit(
                "stateful.primary",
                "Primary._try_update",
                "is_open = self._durability.window_open and not m.captures_open",
                "is_open = self._durability.window_open",
            ),
        ),
    ),
    "update-with-orphans": Mutant(
        "a batch with an input that became orphan enters its update all the same",
        "2",
        (
            Edit(
                "stateful.primary",
                "Primary._try_update",
                "if not all(self._still_runs(unit) for unit in self._running):",
                "if False:",
            ),
            Edit(
                "stateful.primary",
                "Primary.batch_done",
                "if event.updated and (not valid or fenced):",
                "if False:",
            ),
        ),
    ),
    "waiting-counts-as-slow": Mutant(
        "a backup that waits for the dependencies of others is dropped as if it were slow",
        "2",
        (
            Edit(
                "replica.progress",
                "Progress.gone_at",
                "if self.received < self.sent:",
                "if self.applied < self.sent:",
            ),
        ),
    ),
    "copy-overtakes-topology": Mutant(
        "a keeper takes a copy from a primary that knows a newer topology",
        "2",
        (
            Edit(
                "stateful.keeper",
                "Keeper._copied",
                " or copy.generation > self._knowledge.topology.generation",
                "",
            ),
        ),
    ),
}
