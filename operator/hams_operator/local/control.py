"""The supervisor's control socket: other `hams` commands reach a run by it. One JSON object per line.

Question `{"ask": "status"}`, answer `{"status": {...}}`; question `{"ask": "down"}`, answer
`{"ending": true}`, and the process ends when everything is down; question
`{"ask": "restart", "of": "learner"}`, answer `{"restarts": true}`; question
`{"ask": "profile", "of": "translate"}`, answer `{"profiles": [...]}`, of all operators without `of`; question
`{"ask": "forget", "of": "translate"}`, answer `{"forgets": ["translate"]}`; question `{"ask": "stored",
"of": "translate"}`, answer `{"stored": {"translate": BASE64}}`; question `{"ask": "give", "of": "translate",
"profile": BASE64}`, answer `{"gives": true}`. A question that cannot be answered is answered by
`{"error": text}`. Only the user who started the run can connect: the socket lies in a folder of mode 700.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from hams_operator.graph_status import GraphStatus
from hams_operator.learning import NothingLearnt
from hams_operator.local.home import RunFile
from hams_wire.errors import CoordinationError
from hams_wire.profiles import ProfileReport

control_line_bytes_max = 1 << 20
"""A question or an answer on the control socket, such as the stored profiles of 45 operators at their
largest; of more they are asked for one by one."""

control_answer_s = 10.0
"""A supervisor that has not answered a question for this long is said not to."""


QUESTIONS = ("status", "down", "restart", "profile", "forget", "stored", "give")


class Question(msgspec.Struct, frozen=True):
    """What is asked: status, down, restart of the lost state of `of`, profile of `of`, to forget that, what
    is stored of it, or to give all instances of `of` the stored `profile`."""

    ask: str
    of: str = ""
    profile: bytes = b""


class ControlReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is answered; exactly one field is set."""

    status: GraphStatus | None = None
    ending: bool = False
    restarts: bool = False
    profiles: tuple[ProfileReport, ...] | None = None
    forgets: tuple[str, ...] = ()
    stored: dict[str, bytes] | None = None
    gives: bool = False
    error: str | None = None


class NoAnswer(Exception):
    """The supervisor cannot be asked; the text says why."""


class Supervised(Protocol):
    """What a run can be asked."""

    async def status(self) -> GraphStatus:
        """How it is. Raises CoordinationError."""

    async def allow_restart(self, name: str) -> str:
        """Let a lost state begin again; why not, if it cannot. Raises CoordinationError."""

    async def profile(self, operator: str) -> tuple[ProfileReport, ...]:
        """What instances of an operator, of all if it is "", have learnt. Raises NothingLearnt."""

    async def forget(self, operator: str) -> tuple[str, ...]:
        """Have them forget it; of which operators. Raises NothingLearnt, CoordinationError."""

    async def stored(self, operator: str) -> dict[str, bytes]:
        """What is stored of that, empty where there is nothing. Raises NothingLearnt, CoordinationError."""

    async def give(self, operator: str, data: bytes) -> None:
        """Have the instances of an operator know a stored profile. Raises NothingLearnt,
        CoordinationError."""


class ControlServer:
    """The supervisor's end of the socket. `down` is called when somebody asks for the end of the `run`."""

    def __init__(self, run: Supervised, down: Callable[[], None]) -> None:
        self._run = run
        self._down = down
        self._server: asyncio.Server | None = None
        self._looking = asyncio.Lock()

    async def open(self, path: Path) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=control_line_bytes_max)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):  # ValueError: a line over the limit
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                await writer.drain()
        writer.close()

    async def _answer(self, line: bytes) -> ControlReply:
        try:
            question = msgspec.json.decode(line, type=Question)
        except msgspec.MsgspecError as error:
            return ControlReply(error=f"not a question: {error}")
        try:
            return await self._answer_to(question)
        except CoordinationError as error:
            return ControlReply(error=f"etcd does not answer: {error}")
        except NothingLearnt as error:
            return ControlReply(error=str(error))

    async def _answer_to(self, question: Question) -> ControlReply:
        """Raises CoordinationError, NothingLearnt."""
        match question.ask:
            case "status":
                async with self._looking:  # one look at a time: looks share the observer
                    return ControlReply(status=await self._run.status())
            case "down":
                self._down()
                return ControlReply(ending=True)
            case "restart":
                why = await self._run.allow_restart(question.of)
                return ControlReply(restarts=not why, error=why or None)
            case "profile":
                return ControlReply(profiles=await self._run.profile(question.of))
            case "forget":
                return ControlReply(forgets=await self._run.forget(question.of))
            case "stored":
                return ControlReply(stored=await self._run.stored(question.of))
            case "give":
                await self._run.give(question.of, question.profile)
                return ControlReply(gives=True)
            case other:
                return ControlReply(error=f"expected {', '.join(QUESTIONS)}, got {other}")


def ask(run: RunFile, question: str, of: str = "", profile: bytes = b"") -> ControlReply:
    """Ask a run's supervisor. Raises NoAnswer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(control_answer_s)
            channel.connect(str(run.control))
            channel.sendall(msgspec.json.encode(Question(question, of, profile)) + b"\n")
            with channel.makefile("rb") as lines:
                line = lines.readline(control_line_bytes_max)
    except TimeoutError:
        raise NoAnswer(
            f"the supervisor of {run.graph} (process {run.pid}) has not answered for {control_answer_s:g} s"
        ) from None
    except OSError as error:
        raise NoAnswer(
            f"the supervisor of {run.graph} (process {run.pid}) cannot be asked: {error.strerror or error}"
        ) from None
    if not line:
        raise NoAnswer(f"the supervisor of {run.graph} (process {run.pid}) is ending")
    try:
        answer = msgspec.json.decode(line, type=ControlReply)
    except msgspec.MsgspecError as error:
        raise NoAnswer(f"the supervisor of {run.graph} speaks another language: {error}") from None
    if answer.error is not None:
        raise NoAnswer(f"{run.graph}: {answer.error}")
    return answer
