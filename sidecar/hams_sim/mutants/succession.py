"""Mutants of a change of shape."""

from hams_sim.mutants.mutant import Edit, Mutant

_PREDECESSOR = "succession.predecessor"
_DECISION = "succession.decision"

MUTANTS: dict[str, Mutant] = {
    "admits-while-closed": Mutant(
        "a frontend of a shape that is closed takes requests that others forward",
        "11",
        (Edit(_PREDECESSOR, "PredecessorMachine.loses", "return isinstance", "return False and isinstance"),),
    ),
    "begins-at-another-cut": Mutant(
        "a process begins with what it fetched, though something was admitted meanwhile",
        "11",
        (
            Edit(
                "succession.takeover",
                "TakeoverMachine._fetched",
                "if cut is None or self._cut_now(self._seen) != cut:",
                "cut = self._cut_now(self._seen)\nif cut is None:",
            ),
        ),
    ),
    "closes-unasked": Mutant(
        "the predecessor is closed before its frontends have said that they hold back",
        "11",
        (Edit(_DECISION, "next_step", "if all_hold(frontends, old.quiet, new.uid):", "if frontends:"),),
    ),
    "closed-reopens": Mutant(
        "a frontend that is closed goes on when the record of the succession is gone",
        "11",
        (
            Edit(
                _PREDECESSOR,
                "PredecessorMachine._stays",
                "return self.is_over or (record is None and self.phase is Phase.CLOSE)",
                "return self.is_over",
            ),
        ),
    ),
    "done-at-another-cut": Mutant(
        "a successor takes over with states that were taken at different cuts",
        "11",
        (
            Edit(_DECISION, "taken_at_another", "return any", "return False and any"),
            Edit(
                _DECISION,
                "_why_not_taken",
                "if not any(item.of == name and item.cut == cut for item in new.taken.values()):",
                "if not any(item.of == name for item in new.taken.values()):",
            ),
            Edit(
                _DECISION,
                "why_not_complete",
                "late = [name for name in frontends if name not in new.taken or new.taken[name].cut != cut]",
                "late = [name for name in frontends if name not in new.taken]",
            ),
        ),
    ),
    "done-unguarded": Mutant(
        "the switch does not compare that both topologies are those that were judged",
        "11",
        (
            Edit(
                _DECISION,
                "guards_of",
                "return Guard.RECORD, Guard.NOT_ENDED, Guard.OLD_TOPOLOGY, Guard.NEW_TOPOLOGY, Guard.FOLLOWS",
                "return Guard.RECORD, Guard.NOT_ENDED, Guard.FOLLOWS",
            ),
        ),
    ),
    "done-without-copies": Mutant(
        "a successor takes over before its states have the copies that are asked for",
        "11",
        (
            Edit(
                _DECISION,
                "_why_not_taken",
                "if few := too_few_copies(new.graph, new.topology, name):",
                "if few := '':",
            ),
        ),
    ),
    "done-while-open": Mutant(
        "the predecessor counts as at rest while requests are open",
        "11",
        (Edit(_PREDECESSOR, "is_at_rest", "and not shard.open_requests", "and True"),),
    ),
    "expired-not-told": Mutant(
        "keys whose replies are not kept any more are not told with the last replies",
        "11",
        (
            Edit(
                "succession.replies",
                "pages",
                "yield Page(tuple(replies), expired, False, whole)",
                "yield Page(tuple(replies), (), False, whole)",
            ),
        ),
    ),
    "fetches-unclosed": Mutant(
        "a process fetches as soon as the predecessor's frontends hold back",
        "11",
        (
            Edit(
                "succession.takeover",
                "TakeoverMachine._cut_now",
                "return cut_of(self._shards, seen.topology, dict(seen.quiet), self._uid)",
                "return cut_of(self._shards, seen.topology, dict(seen.quiet), self._uid) or (('', 0),)",
            ),
            Edit(_DECISION, "taken_at_another", "return any", "return False and any"),
            Edit(
                _DECISION,
                "_why_not_taken",
                "if not any(item.of == name and item.cut == cut for item in new.taken.values()):",
                "if not any(item.of == name for item in new.taken.values()):",
            ),
            Edit(
                _DECISION,
                "why_not_complete",
                "late = [name for name in frontends if name not in new.taken or new.taken[name].cut != cut]",
                "late = [name for name in frontends if name not in new.taken]",
            ),
        ),
    ),
    "first-table-taken": Mutant(
        "a frontend that comes later takes the first table that it is told, whole or not",
        "11",
        (Edit("succession.search", "ReplySearch.step", "if event.whole:", "if True:"),),
    ),
    "holds-for-ever": Mutant(
        "a frontend holds requests back until somebody else ends the succession",
        "11",
        (
            Edit(
                _PREDECESSOR,
                "PredecessorMachine.dues",
                "takes_back = self.is_resting and not self._swapping",
                "takes_back = False",
            ),
        ),
    ),
    "hopeless-tried-again": Mutant(
        "a change that a model refuses is tried again",
        "11",
        (Edit(_DECISION, "refused", "if record.hopeless:", "if False:"),),
    ),
    "opens-early": Mutant(
        "a successor's frontend serves before its predecessor has handed over",
        "11",
        (Edit("succession.successor", "SuccessorGate.answer", "if not self.is_open:", "if False:"),),
    ),
    "over-goes-on": Mutant(
        "a frontend whose successor serves goes on when the record says so",
        "11",
        (
            Edit(
                _PREDECESSOR,
                "PredecessorMachine._stays",
                "return self.is_over or (record is None and self.phase is Phase.CLOSE)",
                "return record is None and self.phase is Phase.CLOSE",
            ),
        ),
    ),
    "own-replies-forgotten": Mutant(
        "a successor is not told the replies that its predecessor has taken over itself",
        "11",
        (
            Edit(
                "succession.takeover",
                "TakeoverMachine._sources",
                'return (StateSource(asked[0].host, ""), *asked)',
                "return tuple(asked)",
            ),
        ),
    ),
    "passed-on-twice": Mutant(
        "a request without a key is passed on again though its outcome is not known",
        "11",
        (
            Edit(
                "succession.passing",
                "after",
                "if left_s <= 0 or (attempt is Attempt.UNKNOWN and not has_key):",
                "if left_s <= 0:",
            ),
        ),
    ),
    "pushed-out-forgotten": Mutant(
        "a key that leaves the table for want of room is not known to be gone",
        "11",
        (
            Edit(
                "succession.replies",
                "Table.add",
                "self._expired[key_hash(oldest)] = None",
                "pass",
            ),
        ),
    ),
    "quiet-of-another": Mutant(
        "what a frontend has said for an earlier attempt counts for this one",
        "11",
        (
            Edit(
                "succession.records",
                "cut_of",
                "if said is None or said.to != to or not said.closed:",
                "if said is None or not said.closed:",
            ),
            Edit(
                "succession.records",
                "all_hold",
                "all(name in quiet and quiet[name].to == to for name in frontends)",
                "all(name in quiet for name in frontends)",
            ),
        ),
    ),
    "quiet-of-old-epoch": Mutant(
        "what an owner has said counts for a later epoch of its shard",
        "11",
        (
            Edit(
                "succession.records",
                "cut_of",
                "last = [at for shard, epoch, at in said.shards if shard == name and epoch == roles.epoch]",
                "last = [at for shard, epoch, at in said.shards if shard == name]",
            ),
        ),
    ),
    "refused-taken": Mutant(
        "a model is given a state of a layout that it does not take",
        "11",
        (
            Edit(
                "succession.takeover",
                "TakeoverMachine._why_refused",
                "if not layout or not self._layout or layout == self._layout:",
                "if True:",
            ),
        ),
    ),
    "requests-not-held": Mutant(
        "a frontend gives requests to its core while a successor takes over",
        "11",
        (Edit(_PREDECESSOR, "PredecessorMachine._place", "if self.is_resting:", "if False:"),),
    ),
    "tries-not-counted": Mutant(
        "a change that fails again and again is tried for ever",
        "11",
        (
            Edit(
                _DECISION,
                "record_of",
                "tries = 1 if before is None or not again else before.tries + (step.phase is Phase.HOLD)",
                "tries = 1",
            ),
        ),
    ),
    "waits-unquiet": Mutant(
        "a frontend says that it is quiet while clients of its own wait",
        "11",
        (
            Edit(
                _PREDECESSOR,
                "PredecessorMachine._stands",
                "if self.is_resting and self.record is not None and not event.waiting_clients:",
                "if self.is_resting and self.record is not None:",
            ),
        ),
    ),
    "whole-forgotten": Mutant(
        "a table made of one that is not whole is called whole",
        "11",
        (Edit("succession.replies", "Table.add", "self.whole = self.whole and page.whole", "pass"),),
    ),
}
