"""What an operator's instances have learnt of its times, in etcd: an instance that serves writes it now and
then, one that has learnt nothing yet reads it. So it outlives restarts and failovers.

One key per operator, `profile_bytes_max` at most. It is a hint: a policy may forget all of it at any time and
serves on, so it decides nothing between instances. What is read may be of anybody: bytes that are no profile
are refused with a line in the log. An empty value is a person's word that all instances shall forget, and a
profile behind `PROFILE_GIVEN` one that all shall know it in place of what they have learnt.

Invariant: an instance overwrites a value only after it has read and applied it. So no write in flight undoes
the word of a person, whose own writes are unconditional.
"""

import asyncio
import hashlib
import logging
import platform
from collections.abc import Callable
from pathlib import Path

from hams_protocol.graph import Operator
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_schedule.profile import Profiles
from hams_schedule.stored import ProfileRefused, load, merge, packed, parts_of
from hams_wire import records
from hams_wire.coordination.port import ABSENT, Coordination
from hams_wire.errors import CoordinationError, NotApplied
from hams_wire.node import Node
from hams_wire.scheduling import PolicyQueue

profile_report_s = 10.0
"""What was learnt of an operator's times is written into etcd this often, if it has changed enough."""

profile_change_share = 0.02
profile_change_samples_max = 1024
"""It has changed enough if so many of its samples are new, or a class was forgotten."""

log = logging.getLogger("hams.proxy")


class ProfileStore:
    """The stored profile of one operator, and the one that the present instance learns."""

    def __init__(self, graph_uid: str, operator: Operator) -> None:
        self._uid = graph_uid
        self._operator = operator.name
        self._identity = identity_of(operator)
        self._stored: bytes | None = None
        self._revision = ABSENT
        """Revision of the newest change of the key that was seen."""
        self._given: bytes | None = None
        """What a person has given, until it is read: what others store meanwhile does not hide it."""
        self._key_changed = asyncio.Event()
        self._profiles: Profiles | None = None
        self._adopted = 0
        self._written: tuple[int, int] = (0, 0)

    async def adopt_from(self, coordination: Coordination, graph_uid: str) -> None:
        """Begin with the stored profile of the graph that this one follows, until this one has a profile of
        its own."""
        try:
            entry = await coordination.get(records.profile_key(graph_uid, self._operator))
        except CoordinationError as error:
            log.info("the stored profile of %s is not adopted: %s", self._operator, error)
            return
        self._stored = None if entry is None else entry.value

    def begin(self, node: Node) -> None:
        """An instance begins to serve, with a profile that is empty."""
        queue = _queue_of(node)
        self._profiles = queue.profiles if queue is not None else None
        self._adopted, self._written = 0, (0, 0)
        given, self._given = self._given, None
        learnt = self._decoded(self._stored if given is None else given)
        if learnt is not None and self._profiles is not None:
            self._adopt(learnt, self._profiles)

    def on_key_changed(self, name: str, value: bytes | None, revision: int) -> None:
        """A key of the graph, as it is or as it has become, and the revision of that change."""
        if name != f"{records.PROFILES}{self._operator}":
            return
        if value is None:
            self._revision = ABSENT
            return
        # A restored etcd reports again what a person gave before: that says nothing of what was learnt since.
        # The value alone does not tell it: a person may give the same profile twice.
        reported_again = value == self._stored and revision <= self._revision
        self._stored, self._revision = value, revision
        if value.startswith(records.PROFILE_GIVEN) and not reported_again:
            self._given = value
        elif value == records.PROFILE_FORGOTTEN:
            self._given = None
            self._forget()
        self._key_changed.set()

    def _forget(self) -> None:
        if self._profiles is not None:
            log.info("what was learnt of the times of %s is forgotten, as a person has said", self._operator)
            self._profiles.forget()
            self._adopted, self._written = 0, (0, 0)

    async def run(self, now: Callable[[], Node | None], every_s: float = profile_report_s) -> None:
        """Write what the serving instance has learnt, and read what others have while this one has learnt
        nothing. Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await self._key_changed.wait()
            except TimeoutError:
                node = now()
                if node is not None and not node.stopped.done() and _writes(node):
                    await self._write(node)
                continue
            self._key_changed.clear()  # before the read: a change during it is read in the next round
            await self._read_stored()

    async def _read_stored(self) -> None:
        """Know what is stored now, where a person gave it or this instance has learnt nothing itself."""
        profiles = self._profiles
        given, self._given = self._given, None
        if profiles is None or (given is None and not self._may_adopt(profiles)):
            return
        learnt = await asyncio.to_thread(self._decoded, self._stored if given is None else given)
        # Meanwhile another instance may have begun here, or a person may have had all forgotten.
        if learnt is None or profiles is not self._profiles or self._stored == records.PROFILE_FORGOTTEN:
            return
        if given is not None or self._may_adopt(profiles):
            self._adopt(learnt, profiles)

    def _may_adopt(self, profiles: Profiles) -> bool:
        """Whether an instance adopts what others have learnt since: not if it has run batches, learnt from
        them or not yet."""
        return self._is_ignorant(profiles) and not profiles.held

    def _is_ignorant(self, profiles: Profiles) -> bool:
        """Whether an instance knows only what others have learnt."""
        return profiles.samples == self._adopted

    def _decoded(self, data: bytes | None) -> Profiles | None:
        """The profile in `data`; None if there is none, or if it is refused."""
        if not data or self._profiles is None:
            return None
        try:
            return load(data.removeprefix(records.PROFILE_GIVEN), self._identity)
        except ProfileRefused as error:
            log.warning("the stored profile of %s is passed over: %s", self._operator, error)
            return None

    def _adopt(self, learnt: Profiles, profiles: Profiles) -> None:
        """Know what others have learnt in place of what was known from there before."""
        profiles.forget()
        merge(profiles, learnt)
        profiles.take_over()
        self._adopted = profiles.samples
        self._written = profiles.samples, profiles.resets

    async def _write(self, node: Node) -> None:
        """Store what was learnt, if it has changed enough."""
        profiles = self._profiles
        if profiles is None or self._is_ignorant(profiles) or not self._has_changed(profiles):
            return
        if self._key_changed.is_set():
            return  # a person's word may be among what is not read yet
        # All of one moment: it goes on learning meanwhile, and a person may say something.
        written, revision = (profiles.samples, profiles.resets), self._revision
        parts = parts_of(profiles, self._identity)
        data = await asyncio.to_thread(packed, parts)
        try:
            await node.swap(records.profile_key(self._uid, self._operator), revision, data)
            self._written = written
        except NotApplied:
            return  # the watch tells what is there instead; what was learnt is stored over that
        except CoordinationError as error:
            log.info("what was learnt of the times of %s is stored later: %s", self._operator, error)

    def _has_changed(self, profiles: Profiles) -> bool:
        samples, resets = self._written
        enough = min(profile_change_share * samples, profile_change_samples_max)
        return profiles.resets != resets or abs(profiles.samples - samples) > enough


def identity_of(operator: Operator) -> str:
    """What times hold for: a model with its configuration, what tells its requests apart, a kind of
    processor. Under another identity they are a weak prior."""
    model, batch = operator.model, operator.batch
    parts = (model.entrypoint, model.config, model.image, batch.app_by, batch.feature, _processor())
    return f"{model.entrypoint} {hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _processor() -> str:
    """The kind of processor that models run on here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {named}"


def _queue_of(node: Node) -> PolicyQueue | None:
    """The queue whose policy learns, if there is one."""
    machine = node.machine
    assert isinstance(machine, StatefulMachine | StatelessMachine), "a proxy's machine"
    queue = machine.queue
    return queue if isinstance(queue, PolicyQueue) and queue.learns else None


def _writes(node: Node) -> bool:
    """Whether this instance is the one that stores: the primary, or the owner of the first slot."""
    machine = node.machine
    if isinstance(machine, StatefulMachine):
        return machine.primary is not None
    assert isinstance(machine, StatelessMachine), "a proxy's machine"
    slots = machine.knowledge.slots_of(machine.operator.name)
    return bool(slots) and slots[0].instance == node.instance
