"""Recorded histories: the lines, as types, and the writer of one process's file (docs: history.md).

A history alone, without access to the system, suffices to judge I1 to I5 and I7. Therefore a line is written
before the effect it reports leaves the process: a line without its effect is harmless, an effect without its
line is not. A `write` that raises has written nothing that counts, and its caller must not perform the
effect; it stops the instance, as if its proxy had died.

Payloads and tensors are never recorded. A process that does not record holds None instead of a writer and
builds no line.
"""

import errno
import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

ENVIRONMENT = "HAMS_HISTORY"
"""Environment variable that names the folder to record into; unset or empty: no recording."""

HEADER_NAME = "0-graph"
"""Instance name under which a harness writes the `graph` line: its file sorts first."""

line_bytes_max = 64 * 1024
"""Longest line of a history, newline included."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", gc=False):
    """What every line may carry: `at`, seconds of any clock, informative only. Unknown fields are ignored."""

    at: float | None = None


FORMAT = 2
"""Of the lines that are written now; a header that says nothing is of format 1 (history.md, "Formats")."""

FORMAT_BY_RECEIPT = 3
"""Of those where backups answer for what they have received (ADR 0013)."""


class OperatorEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One operator in the header. `kind`: stateful or stateless; `join`: combine, interleave or first.
    `required`: the inputs without which a Combine does not run; None, as in format 1: not known.

    Edges are named by the operator at their other end; "F" is the frontend, "F!" a feedback edge.
    """

    kind: str
    join: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    required: tuple[str, ...] | None = None


class GraphLine(HistoryLine, frozen=True, kw_only=True, tag="graph"):
    """The header, first line. `want`: in-sync backups per stateful operator, one number for all or one by
    name.

    `ordered`: the lines have one global order, as the simulation has. `mode`: of replication. `blocks`:
    nothing is durable that one instance alone holds, an ended epoch's version neither before it is announced
    again. `by_receipt`: `stable` lines say what counts of a dependency, and an end may go back.
    """

    operators: dict[str, OperatorEntry]
    format: int = 1
    mode: str | None = None
    blocks: bool = False
    by_receipt: bool = False
    id: str | None = None
    ordered: bool = False
    want: int | dict[str, int] | None = None


class CallLine(HistoryLine, frozen=True, kw_only=True, tag="call"):
    """A client begins an attempt sequence."""

    client: str
    key: str | None
    digest: str | None


class RetLine(HistoryLine, frozen=True, kw_only=True, tag="ret"):
    """A client's attempt sequence ended. `status`: ok, conflict, refused or error."""

    client: str
    key: str | None
    status: str
    digest: str | None = None


class LogLine(HistoryLine, frozen=True, kw_only=True, tag="log"):
    """A shard owner committed a request to its log; written before the injection. `source` ("from") is the
    fed-back value of an internal request."""

    i: str
    gen: int
    req: str
    key: str | None
    shard: int | None = None
    epoch: int | None = None
    digest: str | None = None
    source: str | None = msgspec.field(default=None, name="from")


class ExecLine(HistoryLine, frozen=True, kw_only=True, tag="exec"):
    """One executed unit, written before its outputs are sent. Stateful: `seq`, `version`, `chain`; stateless:
    `slot`."""

    i: str
    gen: int
    op: str
    epoch: int
    req: str
    lane: tuple[str, ...]
    inputs: tuple[str, ...] = msgspec.field(name="in")
    out: str | None
    route: tuple[str, ...]
    seq: int | None = None
    version: int | None = None
    chain: str | None = None
    slot: int | None = None


class ApplyLine(HistoryLine, frozen=True, kw_only=True, tag="apply"):
    """A backup or joiner applied a version, or copied it (`snapshot`); written before the acknowledgement."""

    i: str
    gen: int
    op: str
    epoch: int
    version: int
    chain: str | None = None
    snapshot: bool = False


class DurableLine(HistoryLine, frozen=True, kw_only=True, tag="durable"):
    """A version became durable; written by the primary before anyone is told."""

    i: str
    gen: int
    op: str
    epoch: int
    version: int


class StableLine(HistoryLine, frozen=True, kw_only=True, tag="stable"):
    """The whole ack set has received a version; written by the primary before anyone is told."""

    i: str
    gen: int
    op: str
    epoch: int
    version: int


class FailoverLine(HistoryLine, frozen=True, kw_only=True, tag="failover"):
    """Epoch `epoch` of `op` began in topology `gen`, with primary `i`; `end` is the last seq kept of the
    epoch before."""

    op: str
    gen: int
    epoch: int
    end: int
    i: str


class TakeoverLine(HistoryLine, frozen=True, kw_only=True, tag="takeover"):
    """Epoch `epoch` of a frontend shard began in topology `gen`, with owner `i`."""

    shard: int
    gen: int
    epoch: int
    i: str


class ReplyLine(HistoryLine, frozen=True, kw_only=True, tag="reply"):
    """A shard owner releases a reply made of `values` (sorted); written before the release."""

    i: str
    gen: int
    req: str
    values: tuple[str, ...]
    epoch: int | None = None
    digest: str | None = None


class CompleteLine(HistoryLine, frozen=True, kw_only=True, tag="complete"):
    """Every sink token of a request has arrived with durable dependencies."""

    req: str
    i: str | None = None


class LostLine(HistoryLine, frozen=True, kw_only=True, tag="lost"):
    """A state was lost beyond what is tolerated, and it is said. `version` is the last one kept.

    `kind`, since format 2: `gone` (nobody is known who holds it), `restarted` (the next epoch begins at
    `version`), `stems` (it has taken in more of a lost state upstream than that began again with).
    """

    op: str
    epoch: int
    version: int
    kind: str | None = None
    why: str | None = None


class FaultLine(HistoryLine, frozen=True, kw_only=True, tag="fault"):
    """The harness injects a fault."""

    what: str | None = None
    i: str | None = None


class HealLine(HistoryLine, frozen=True, kw_only=True, tag="heal"):
    """The harness has ended its faults."""

    what: str | None = None
    i: str | None = None


class FinalOperator(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the harness found of one operator at the end; `insync` are the backups in sync, by id or
    counted."""

    primary: str | None
    epoch: int
    insync: tuple[str, ...] | int
    version: int | None


class FinalLine(HistoryLine, frozen=True, kw_only=True, tag="final"):
    """The harness's last line: roles, and what is still open."""

    ops: dict[str, FinalOperator]
    open: tuple[object, ...]


Line = (
    GraphLine
    | CallLine
    | RetLine
    | LogLine
    | ExecLine
    | ApplyLine
    | DurableLine
    | StableLine
    | FailoverLine
    | TakeoverLine
    | ReplyLine
    | CompleteLine
    | LostLine
    | FaultLine
    | HealLine
    | FinalLine
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """One line of JSON with its newline."""
    return _encoder.encode(line) + b"\n"


def decode(text: bytes | str) -> Line:
    """The line that this JSON object is; `msgspec.DecodeError` says what is missing or wrong."""
    return _decoder.decode(text)


# ---- digests ----


def tensor_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes | memoryview]]) -> str:
    """Digest of a payload or reply: (name, KServe datatype, shape, little-endian bytes) of each tensor, in
    any order.

    SHA-256, first 16 hex digits, over the tensors sorted by name; name, datatype, shape (int64 each) and
    bytes are each preceded by their length in bytes as a little-endian uint64.
    """
    digest = hashlib.sha256()
    for name, datatype, shape, data in sorted(tensors, key=lambda tensor: tensor[0]):
        for part in (name.encode(), datatype.encode(), struct.pack(f"<{len(shape)}q", *shape), data):
            digest.update(struct.pack("<Q", part.nbytes if isinstance(part, memoryview) else len(part)))
            digest.update(part)
    return digest.hexdigest()[:16]


# ---- the writer ----


class HistoryError(Exception):
    """Recording failed: the line is not in the file, so the effect that it reports must not happen."""


class HistoryExists(HistoryError):
    """The folder has a file of this instance already: instance ids are never reused, and a folder holds one
    history."""


class HistoryLineTooLong(HistoryError):
    """A line is longer than `line_bytes_max`."""


class HistoryNotWritten(HistoryError):
    """The file system refused the line. `no_space`: it is full, so the same line may be accepted later."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code
        self.no_space = code is None or code in (errno.ENOSPC, errno.EDQUOT)


class HistoryWriter:
    """Appends lines to `<directory>/<instance>.jsonl`, one unbuffered write each; the page cache outlives a
    killed process.

    Invariant: whatever was refused, the file never holds half a line followed by another.
    """

    def __init__(self, directory: Path | str, instance: str) -> None:
        if not _SAFE_NAME.fullmatch(instance):
            raise ValueError(
                f"instance id {instance!r} cannot name a history file: expected letters, digits, '.', '_' "
                "and '-' (at most 200)"
            )
        folder = Path(directory)
        self.path = folder / f"{instance}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # also where a file has that name
            raise HistoryNotWritten(
                f"history folder {folder} cannot be made: {error.strerror}; expected a folder, or a name for "
                "one, that this user can write",
                error.errno,
            ) from error
        try:
            self._file = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except FileExistsError:
            raise HistoryExists(
                f"{self.path} exists already: a folder holds one history, and an instance id is used once"
            ) from None
        except OSError as error:
            raise HistoryNotWritten(
                f"history file {self.path} cannot be made: {error.strerror}", error.errno
            ) from error
        self._size = 0

    def write(self, *lines: Line) -> None:
        """Append lines, all or none; on return they survive the death of this process.

        Raises HistoryLineTooLong or HistoryNotWritten: then nothing was recorded and the reported effects
        must not happen.
        """
        chunks = [encode(line) for line in lines]
        for chunk in chunks:
            if len(chunk) > line_bytes_max:
                raise HistoryLineTooLong(
                    f"a line of {len(chunk)} bytes for {self.path}: at most "
                    f"{line_bytes_max}: {chunk[:200]!r}..."
                )
        data = b"".join(chunks)
        code: int | None = None
        written = 0
        try:
            written = os.write(self._file, data)
        except OSError as error:
            code = error.errno
        if written == len(data):
            self._size += written
            return
        if written:
            # A disk that fills up takes a part. Half a line is cut off again: only at the very end of a file
            # is it ignored.
            os.ftruncate(self._file, self._size)
        why = "the file system took a part of it" if code is None else os.strerror(code)
        raise HistoryNotWritten(f"{len(lines)} history line(s) not written to {self.path}: {why}", code)

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def writer_from(environment: Mapping[str, str], instance: str) -> HistoryWriter | None:
    """The writer that HAMS_HISTORY asks for, or None: not recording costs nothing but this look-up at
    start."""
    directory = environment.get(ENVIRONMENT, "")
    return HistoryWriter(directory, instance) if directory else None
