"""One attempt at a recovery: steps 2 to 4 of protocol.md, section 7, as a transaction that only asks and
holds.

An attempt belongs to one generation. It freezes the backups of sets without primary, fences every stateful
operator downstream, lets those that hold an orphan fail over (or roll back) as well, until nothing new is
found; its result is the next topology. Nothing is purged, promoted or taken as durable before that is
committed: if it cannot be, the attempt is forgotten and another begins. Keepers, and former states of former
members, are frozen only where no in-sync member answers. A set for which nobody answers, though somebody may
yet come, is put off (`put_off`): the others go on without it.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from hams_protocol.context import Context
from hams_protocol.deps import Dep
from hams_protocol.effects import Send
from hams_protocol.graph import Graph
from hams_protocol.ids import InstanceId
from hams_protocol.messages import (
    Fence,
    FenceAnswer,
    Freeze,
    FreezeAnswer,
    Refused,
    RetainedVersion,
    TopologyNews,
)
from hams_protocol.modes import ModePolicy
from hams_protocol.recovery import assign
from hams_protocol.recovery.survival import Survival
from hams_protocol.topology import ReplicaSet, Topology


class Move:
    """A replica set that gets another primary, or goes back with the one it has."""

    __slots__ = (
        "answers",
        "asked",
        "asked_former",
        "choices",
        "decided",
        "end",
        "in_sync",
        "joining",
        "keepers",
        "old",
        "primary",
        "retained",
        "rolls_back",
    )

    def __init__(self, old: ReplicaSet) -> None:
        self.old = old
        self.asked: dict[InstanceId, int] = {}
        self.answers: dict[InstanceId, FreezeAnswer] = {}
        self.asked_former = False
        self.decided = False
        self.primary: InstanceId | None = None
        self.end = -1
        self.in_sync: tuple[InstanceId, ...] = ()
        self.joining: tuple[InstanceId, ...] = ()
        self.keepers: tuple[InstanceId, ...] = ()
        self.retained: tuple[RetainedVersion, ...] = ()
        self.choices: tuple[RetainedVersion, ...] | None = None
        """What it may go on from, newest first, where that is sought anew with each answer (`Survival`)."""
        self.rolls_back = False
        """Its primary goes back by itself, and `asked` are its keepers: whether they hold the end."""

    @property
    def has_nothing(self) -> bool:
        """Whether its primary is yet to get the state: there is nobody but its keepers to go on with."""
        return self.rolls_back and self.choices == ()

    @property
    def missing(self) -> list[InstanceId]:
        """The instances that were asked and have not answered, where the attempt waits for them."""
        if self.decided and not self.rolls_back:
            return []
        return [instance for instance in self.asked if instance not in self.answers]


class FenceQuestion:
    """What one downstream primary was asked last, and whether it has said that it is clean."""

    __slots__ = ("clean", "ends", "number", "primary")

    def __init__(self, primary: InstanceId) -> None:
        self.primary = primary
        self.ends: tuple[Dep, ...] = ()
        self.number = -1
        self.clean = False


class Attempt:
    """The questions of one recovery attempt and what the answers amount to."""

    def __init__(
        self,
        ctx: Context,
        graph: Graph,
        topology: Topology,
        known: Topology,
        members: assign.Members,
        number: int,
        revision: int,
        patient: Iterable[str] = (),
    ) -> None:
        """`topology` is the `known` one of that generation and revision, with those revoked that this
        attempt's commit will revoke (`to_replace`).

        `patient` are the sets that are not given up as lost yet: a revoked member may come back with its
        state.
        """
        self._ctx = ctx
        self._graph = graph
        self.topology = topology
        self.known = known
        self.to_replace: frozenset[InstanceId] = frozenset()
        self.departed: Collection[InstanceId] = ()
        self.revision = revision
        self._members = members
        # Numbers of different attempts do not overlap, so a late answer to an earlier attempt matches none
        # here.
        self._question = number * QUESTIONS_PER_ATTEMPT
        self._moves: dict[str, Move] = {}
        self._fences: dict[str, FenceQuestion] = {}
        self._rollbacks: dict[str, FenceQuestion] = {}
        self._silent: set[InstanceId] = set()
        self.asked_at = ctx.now
        self.lost: set[str] = set()
        self.put_off: set[str] = set()
        self._patient = frozenset(patient)
        self._by_receipt = ModePolicy.of(graph.data.mode).by_receipt
        self._survival = Survival(topology, self._moves, self.lost)
        self.hopeless = False

    # -- questions -------------------------------------------------------------------------------------------

    def begin(self, orphaned: Iterable[str], rollbacks: Iterable[str], silent: Iterable[InstanceId]) -> None:
        """Freeze the sets without primary; ask those that must roll back what they retain."""
        self._silent = set(silent)
        for name in orphaned:
            self._freeze(name)
        for name in rollbacks:
            replica_set = self.topology.find(name)
            if replica_set.primary is not None and name not in self._moves:
                question = self._rollbacks[name] = FenceQuestion(replica_set.primary)
                self._ask_fence(name, question, ())
        self._fence_downstream()

    def _freeze(self, name: str) -> None:
        old = self.topology.find(name)
        move = self._moves[name] = Move(old)
        gone = set(self.topology.revoked) | self._silent
        # A silent member would hold the attempt up, and is not needed: every member in sync has applied all
        # that is durable.
        for instance in old.in_sync:
            if instance not in gone:
                self._question += 1
                move.asked[instance] = self._question
                self._ctx.send(instance, Freeze(self._question, self.topology.generation, name, old.epoch))
        if not move.asked:
            self._decide(move)

    def _freeze_former(self, move: Move) -> bool:
        """No in-sync member answers: keepers, and the states that former members brought along, if the
        topology still names those. Whether there is anybody to ask."""
        move.asked_former = True
        before = self._question
        for instance in (*assign.returned(self._members, move.old), *move.old.keepers):
            if (
                instance not in self._silent
                and instance not in self.topology.revoked
                and instance not in move.asked
            ):
                self._question += 1
                move.asked[instance] = self._question
                self._ctx.send(
                    instance, Freeze(self._question, self.topology.generation, move.old.name, move.old.epoch)
                )
        return self._question > before

    def _fence_downstream(self) -> None:
        """Every stateful operator downstream of an end hears of it; of new ends again.

        An operator whose primary is revoked, or whose state is lost until it is back, need not: whatever its
        set goes on with has only durable dependencies, and no end lies below those.
        """
        for op in self._graph.data.operators:
            if not op.stateful or op.name in self._moves or op.name in self._rollbacks:
                continue
            upstream = self._graph.stateful_upstream[op.name]
            ends = tuple(
                Dep(name, self._moves[name].old.epoch, self._moves[name].end)
                for name in upstream
                if self._is_decided(name)
            )
            replica_set = self.topology.find(op.name)
            if (
                not ends
                or replica_set.primary is None
                or replica_set.primary in self.topology.revoked
                or replica_set.lost
            ):
                continue
            question = self._fences.setdefault(op.name, FenceQuestion(replica_set.primary))
            if question.ends != ends:
                self._ask_fence(op.name, question, ends)

    def _is_decided(self, name: str) -> bool:
        return name in self._moves and self._moves[name].decided and name not in self.lost

    def _ask_fence(self, name: str, question: FenceQuestion, ends: tuple[Dep, ...]) -> None:
        self._question += 1
        question.ends, question.number, question.clean = ends, self._question, False
        self._ctx.send(question.primary, Fence(self._question, self.topology.generation, name, ends))

    # -- answers ---------------------------------------------------------------------------------------------

    def freeze_answer(self, sender: InstanceId, answer: FreezeAnswer) -> None:
        """One more backup has frozen."""
        move = self._moves.get(answer.name)
        if move is None or sender not in move.missing or move.asked[sender] != answer.attempt:
            return
        move.answers[sender] = answer
        if move.rolls_back and self._by_receipt:
            self._settle()
        elif move.rolls_back:
            # A keeper that lacks the end is left behind: in the next epoch it would count as a holder of it.
            if answer.applied is not None and answer.applied >= move.end:
                move.keepers = (*move.keepers, sender)
        elif len(move.answers) == len(move.asked):
            self._decide(move)

    def fence_answer(self, sender: InstanceId, answer: FenceAnswer) -> None:
        """A primary downstream is clean, or has to go back as well."""
        rollback = self._rollbacks.get(answer.name)
        if rollback is not None and rollback.number == answer.attempt:
            self._roll_back(answer)
            return
        question = self._fences.get(answer.name)
        if question is None or question.number != answer.attempt:
            return
        if not answer.tainted:
            question.clean = True
            return
        del self._fences[answer.name]
        old = self.topology.find(answer.name)
        gone = set(self.topology.revoked) | self._silent
        if any(instance not in gone for instance in old.in_sync):
            self._freeze(answer.name)
            self._moves[answer.name].retained = answer.retained
        else:
            self._roll_back(answer)

    def refused(self, sender: InstanceId, refusal: Refused, revision: int) -> None:
        """Somebody does not know this topology yet: here it is, and the question again."""
        if refusal.generation >= self.topology.generation:
            return
        news = Send(sender, TopologyNews(self.known, revision))
        move = self._moves.get(refusal.name)
        if move is not None and sender in move.missing and move.asked[sender] == refusal.attempt:
            self._ctx.emit(news)
            self._ctx.send(
                sender, Freeze(refusal.attempt, self.topology.generation, refusal.name, move.old.epoch)
            )
            return
        for questions in (self._fences, self._rollbacks):
            question = questions.get(refusal.name)
            if question is not None and question.number == refusal.attempt:
                self._ctx.emit(news)
                self._ctx.send(
                    sender, Fence(refusal.attempt, self.topology.generation, refusal.name, question.ends)
                )
                return

    def silent(self, instance: InstanceId) -> None:
        """A member fails its probe: nobody waits for it any more."""
        self._silent.add(instance)
        for move in list(self._moves.values()):
            if instance in move.missing and not move.has_nothing:
                del move.asked[instance]
                if move.decided or len(move.answers) != len(move.asked):
                    continue
                if move.rolls_back:
                    self._settle()
                else:
                    self._decide(move)

    def waiting_for(self) -> set[InstanceId]:
        """The instances that have not answered yet."""
        waiting = {item for move in self._moves.values() for item in move.missing}
        waiting |= {question.primary for question in self._fences.values() if not question.clean}
        return waiting | {question.primary for question in self._rollbacks.values()}

    def ask_again(self, of: InstanceId | None = None) -> None:
        """Questions and answers may be lost: every question without an answer once more, or those to one
        instance."""
        generation = self.topology.generation
        for name, move in self._moves.items():
            for instance in move.missing:
                if of is None or instance == of:
                    question = Freeze(move.asked[instance], generation, name, move.old.epoch)
                    self._ctx.send(instance, question)
        for questions in (self._fences, self._rollbacks):
            for name, fence in questions.items():
                if not fence.clean and (of is None or fence.primary == of):
                    self._ctx.send(fence.primary, Fence(fence.number, generation, name, fence.ends))

    # -- decisions -------------------------------------------------------------------------------------------

    def _decide(self, move: Move) -> None:
        """The **lowest** applied version becomes the end: everything durable is in it."""
        held = {
            instance: answer.applied
            for instance, answer in move.answers.items()
            if answer.applied is not None
        }
        if not held:
            if not move.asked_former and self._freeze_former(move):
                return
            waits = any(
                peer not in self.topology.revoked and peer not in move.answers
                for peer in (*move.old.in_sync, *move.old.keepers)
            )
            if move.old.primary not in self.topology.revoked:
                if waits:
                    self.hopeless = True
                    return
            elif waits or move.old.lost or move.old.name in self._patient:
                del self._moves[move.old.name]
                self.put_off.add(move.old.name)
                return
            move.decided = True
            self.lost.add(move.old.name)
            return
        replicas = [instance for instance in sorted(held) if instance not in move.old.keepers]
        if replicas:
            move.primary = min(replicas, key=lambda instance: held[instance])
        else:
            of = move.old.name
            move.primary = assign.fresh_primary(self._living_members(), of, move.old, self.topology)
        if (
            move.primary is None
        ):  # what the keeper holds is safe there, until somebody comes who can go on with it
            del self._moves[move.old.name]
            self.put_off.add(move.old.name)
            return
        # A version above the lowest one is missing somewhere in the ack set, so it was never called durable.
        # An end below it would undo what was.
        move.end = min(held.values())
        if self._by_receipt and move.old.name in self._graph.operators:
            least = move.primary if replicas else min(held, key=lambda instance: (held[instance], instance))
            move.choices = tuple(item for item in move.answers[least].retained if item.version <= move.end)
            self._settle()
            return
        self._share_out(move, list(held))
        move.decided = True
        self._fence_downstream()

    def _share_out(self, move: Move, holders: list[InstanceId]) -> None:
        """Who of those that hold the end gets which role; who lacks it joins."""
        assert move.primary is not None, "somebody goes on"
        held = {move.primary, *holders}
        replicas = [instance for instance in sorted(holders) if instance not in move.old.keepers]
        move.in_sync = tuple(instance for instance in replicas if instance != move.primary)
        knows_keepers = move.primary in self._members and self._members[move.primary].keeps
        if knows_keepers and not move.in_sync:
            move.keepers = tuple(instance for instance in sorted(holders) if instance in move.old.keepers)
        left_out = [instance for instance in (*move.old.in_sync, *move.old.joining) if instance not in held]
        old_primary = move.old.primary
        if old_primary is not None and old_primary not in self.topology.revoked and old_primary not in held:
            retains = any(item.version == move.end for item in move.retained)
            if retains:
                move.in_sync = (*move.in_sync, old_primary)
            else:
                left_out.append(old_primary)
        move.joining = self._living(left_out)

    def _roll_back(self, answer: FenceAnswer) -> None:
        """No backup to go to: the primary goes back to its newest retained record **with only durable
        deps**."""
        self._rollbacks.pop(answer.name, None)
        self._fences.pop(answer.name, None)
        move = self._moves[answer.name] = Move(self.topology.find(answer.name))
        if self._by_receipt:
            move.primary, move.choices = move.old.primary, answer.retained
            self._freeze_keepers(move)
            self._settle()
            return
        move.decided = True
        chosen = next((item.version for item in answer.retained if self._is_safe(item)), None)
        if chosen is None:
            self.lost.add(answer.name)
            return
        move.primary, move.end = move.old.primary, chosen
        move.joining = self._living([*move.old.in_sync, *move.old.joining])
        self._freeze_keepers(move)
        self._fence_downstream()

    def _settle(self) -> None:
        """By receipt: somebody has told what there is to go on from, and the ends upstream of others may have
        sunk with that."""
        self._survival.settle()
        self._fence_downstream()

    def _settled(self, move: Move) -> None:
        """By receipt: the end is known for good, and so is who holds it."""
        holders = [
            instance
            for instance, answer in sorted(move.answers.items())
            if any(item.version == move.end for item in answer.retained)
        ]
        if move.rolls_back:
            move.keepers = tuple(holders)
            move.joining = self._living([*move.old.in_sync, *move.old.joining])
        else:
            self._share_out(move, holders)

    def _freeze_keepers(self, move: Move) -> None:
        """A keeper that holds the end stays: the primary may die before the commit, or before it has called
        another one."""
        move.rolls_back = True
        keepers = self._living(move.old.keepers)
        if move.has_nothing:  # a silent one is waited for, until its primary gives it up
            keepers = tuple(item for item in move.old.keepers if item not in self.topology.revoked)
        for keeper in keepers:
            self._question += 1
            move.asked[keeper] = self._question
            question = Freeze(self._question, self.topology.generation, move.old.name, move.old.epoch)
            self._ctx.send(keeper, question)

    def _is_safe(self, item: RetainedVersion) -> bool:
        return all(self._is_decided(dep.op) and dep.seq <= self._moves[dep.op].end for dep in item.deps)

    def _living_members(self) -> assign.Members:
        return {name: item for name, item in self._members.items() if name not in self._silent}

    def _living(self, instances: Iterable[InstanceId]) -> tuple[InstanceId, ...]:
        return tuple(
            item
            for item in instances
            if item in self._members and item not in self.topology.revoked and item not in self._silent
        )

    @property
    def is_empty(self) -> bool:
        """Whether everything it was about is put off."""
        return not (self._moves or self._fences or self._rollbacks)

    # -- result ----------------------------------------------------------------------------------------------

    def result(self) -> Topology | None:
        """The topology to commit, once every question is answered."""
        if self.waiting_for():
            return None
        topology = self.topology
        for name, move in self._moves.items():
            if name in self.lost:
                empty = [item for item, answer in move.answers.items() if answer.applied is None]
                keepers = tuple(item for item in move.old.keepers if item not in empty)
                topology = topology.with_set(replace(move.old, lost=True, joining=(), keepers=keepers))
            elif move.primary is not None:
                if move.choices is not None:
                    self._settled(move)
                topology = topology.with_set(
                    assign.moved(move.old, move.primary, move.end, move.in_sync, move.joining, move.keepers)
                )
        topology = assign.slots(self._graph, topology, self._members, self.departed)
        topology = assign.joiners(self._graph, topology, self._members)
        return topology.next()


QUESTIONS_PER_ATTEMPT = 1 << 20
"""Question numbers are unique over the attempts of one manager."""
