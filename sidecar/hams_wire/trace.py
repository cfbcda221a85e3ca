"""What an instance was told and what it did, to the microsecond: for finding out where the time of a failover
goes, never in production.

With `HAMS_TRACE` naming a folder, every event and effect of a core machine, and what its shell waits for,
becomes a line in a file of its process: CLOCK_MONOTONIC in ns (one clock for all processes of a host), the
instance, and a few words. Written at once, so that a kill -9 loses nothing. `hams bench timeline` puts the
files of all processes together.

Never: changes what is traced, raises into it (what cannot be written ends the trace, not the instance), or
costs more than one comparison where it is off.
"""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from hams_protocol.effects import Answer, Capture, Effect, Propose, Send, StartBatch, WriteCheckpoint
from hams_protocol.events import (
    CasSettled,
    CheckpointWritten,
    Event,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    TopologyLearnt,
)
from hams_protocol.ids import InstanceId
from hams_protocol.messages import (
    Deliver,
    Durable,
    Heartbeat,
    Message,
    Probe,
    ProbeAnswer,
    RecordAck,
    StateCopy,
    StateRecord,
    Suspect,
    TopologyNews,
)

log = logging.getLogger("hams.trace")

ENVIRONMENT = "HAMS_TRACE"
"""Environment variable that names the folder; unset or empty: nothing is traced."""


class Trace:
    """The trace of one instance. It stays open: a process ends with its instance, or soon after."""

    def __init__(self, folder: Path, instance: InstanceId) -> None:
        """Raises OSError."""
        self._instance = instance
        self._ended = False
        self._file = os.open(
            folder / f"{instance}-{os.getpid()}.trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )

    def note(self, what: str) -> None:
        """Write one line."""
        if self._ended:
            return
        try:
            os.write(self._file, f"{time.monotonic_ns()} {self._instance} {what}\n".encode())
        except OSError as error:
            self._ended = True
            log.error("the trace ends here: it cannot be written: %s", error)

    def event(self, event: Event) -> None:
        """What the machine is told."""
        match event:
            case Received(sender, message):
                if not isinstance(message, Heartbeat):
                    self.note(f"<- {sender} {_about(message)}")
            case PeerDown(peer, refused):
                self.note(f"PeerDown {peer}{' refused' if refused else ''}")
            case PeerUp(peer):
                self.note(f"PeerUp {peer}")
            case TopologyLearnt(topology, revision):
                self.note(f"TopologyLearnt generation {topology.generation} at {revision}")
            case CasSettled(topology, revision, committed):
                outcome = "committed" if committed else "lost to"
                self.note(f"CasSettled {outcome} generation {topology.generation} at {revision}")
            case MembersChanged(members):
                self.note(f"MembersChanged {len(members)}")
            case CheckpointWritten(version=version, whole=whole):
                self.note(f"CheckpointWritten {version}{'' if whole else ' failed'}")
            case _:
                self.note(type(event).__name__)

    def effect(self, effect: Effect) -> None:
        """What the machine wants done."""
        match effect:
            case Send(target, message):
                if not isinstance(message, Heartbeat):
                    self.note(f"-> {target} {_about(message)}")
            case Propose(revision, topology):
                self.note(f"Propose generation {topology.generation} at {revision}")
            case Answer(handle, outcome):
                self.note(f"Answer {handle} {type(outcome).__name__}")
            case StartBatch(units=units):
                # The requests: who reads a failover tells by them what is run again from what is new.
                self.note(f"StartBatch {' '.join(str(item.unit.request) for item in units)}")
            case Capture(version):
                self.note(f"Capture {version}")
            case WriteCheckpoint(copy):
                self.note(f"WriteCheckpoint {copy.version}")
            case _:
                self.note(type(effect).__name__)


def _about(message: Message) -> str:
    match message:
        case Deliver(target=target, token=token):
            return f"Deliver {token.request} {token.source}->{target}"
        case StateRecord(op=op, version=version) | StateCopy(op=op, version=version):
            nbytes = 0 if message.state is None else message.state.nbytes
            return f"{type(message).__name__} {op} {version} of {nbytes} bytes"
        case RecordAck(op=op, received=received, applied=applied):
            return f"RecordAck {op} {received} applied {applied}"
        case Durable(versions):
            return f"Durable {' '.join(f'{dep.op}:{dep.epoch}:{dep.seq}' for dep in versions)}"
        case Suspect(suspect, reason):
            return f"Suspect {suspect} {reason}"
        case Probe(nonce) | ProbeAnswer(nonce):
            return f"{type(message).__name__} {nonce}"
        case TopologyNews(topology):
            return f"TopologyNews {topology.generation}"
        case _:
            return type(message).__name__


def trace_from(environment: Mapping[str, str], instance: InstanceId) -> Trace | None:
    """A trace if the environment asks for one. Raises OSError."""
    folder = environment.get(ENVIRONMENT, "")
    return Trace(Path(folder), instance) if folder else None
