"""Where the time of one batch goes, from the traces of all processes on one clock; one batch under way.

Nine parts add up to the latency. Before the first operator starts: *forwarded*, until the shard's owner logs
the request; *logged*, until its follower holds that entry; *injected*, the rest. Then *models*, while any
operator computes or updates; *capture wait*, while one that wants to update waits for the copy of the version
before; *hops*, between operators. After the end of the last operator: *durable*, until the owner logs the
reply, as all that it depends on is durable; *reply logged*, until the follower holds it; *released*, until it
is answered.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.paper.recovery import recorded
from benchmarks.paper.running import CAPTURED, CORE, Sample, running
from benchmarks.paper.services import BARE, Service, Settings
from benchmarks.paper.traces import Note, notes
from benchmarks.report import ms

PARTS = (
    "forwarded",
    "logged",
    "injected",
    "models",
    "capture wait",
    "hops",
    "durable",
    "reply logged",
    "released",
)


@dataclass
class Batch:
    """What happened between a request's arrival and its reply, ns: intervals of operators at work, and of
    waits for a capture; when the owner sent the request's entry and the reply's to its follower, and when it
    had each. 0: it did not, as where no log is replicated."""

    arrived: int
    answered: int
    appended: int = 0
    logged: int = 0
    reply_appended: int = 0
    reply_logged: int = 0
    work: list[tuple[int, int]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)

    def parts(self) -> dict[str, float]:
        """ms of each of `PARTS`; {} if no operator worked on it."""
        if not self.work:
            return {}
        begin, end = min(start for start, _ in self.work), max(stop for _, stop in self.work)
        busy, waited = covered(self.work), covered(self.waits)
        before = _steps(self.arrived, (self.appended or self.logged, self.logged), begin)
        reply_appended = self.reply_appended or self.reply_logged
        after = _steps(end, (reply_appended, self.reply_logged), self.answered)
        spans = (*before, busy - waited, waited, end - begin - busy, *after)
        return {name: span / 1e6 for name, span in zip(PARTS, spans, strict=True)}


def _steps(begin: int, marks: Sequence[int], end: int) -> list[int]:
    """The lengths from `begin` over each mark to `end`; a mark that is not there, or not between, takes no
    time of its own."""
    at, lengths = begin, list[int]()
    for mark in (*marks, end):
        reached = min(max(mark, at), end) if mark else at
        lengths.append(reached - at)
        at = reached
    return lengths


def covered(intervals: Sequence[tuple[int, int]]) -> int:
    """Length of what intervals cover together."""
    total, reached = 0, 0
    for start, stop in sorted(intervals):
        if stop > reached:
            total += stop - max(start, reached)
            reached = stop
    return total


def batches_of(lines: Sequence[Note]) -> list[Batch]:
    """Batches one after the other, out of traces in order of time."""
    result: list[Batch] = []
    current: Batch | None = None
    began: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for note in lines:
        if note.what == "ClientRequest":
            current, began, wanted = Batch(note.at, 0), {}, {}
        elif current is None:
            continue
        elif note.what.startswith("-> ") and note.what.split()[2:3] == ["LogAppend"]:
            if not current.logged:
                current.appended = note.at
            elif current.work:
                current.reply_appended = note.at
        elif note.kind == "NoteLog":
            current.logged = current.logged or note.at
        elif note.kind == "NoteReply":
            current.reply_logged = note.at
        elif note.kind == "StartBatch":
            began[note.who] = note.at
        elif note.what == "UpdateWanted":
            wanted[note.who] = note.at
        elif note.what == "EnterUpdate" and note.who in wanted:
            current.waits.append((wanted.pop(note.who), note.at))
        elif note.what == "BatchDone" and note.who in began:
            current.work.append((began.pop(note.who), note.at))
        elif note.what.startswith("Answer"):
            current.answered = note.at
            result.append(current)
            current = None
    return result


def state_steps(lines: Sequence[Note], operator: str) -> dict[str, float]:
    """Of one state, medians in ms: its capture; its record's way from the first byte until it has come; until
    the primary is told so."""
    capture: list[int] = []
    began: dict[str, int] = {}
    sent: dict[str, int] = {}
    way: list[int] = []
    acknowledged: list[int] = []
    for note in lines:
        words = note.what.split()
        if note.kind == "Capture":
            began[note.who] = note.at
        elif note.what == "Captured" and note.who in began:
            capture.append(note.at - began.pop(note.who))
        elif len(words) >= 5 and words[2] == "StateRecord" and words[3] == operator:
            if words[0] == "->":
                sent[words[4]] = note.at
            elif words[4] in sent:
                way.append(note.at - sent[words[4]])
        elif len(words) >= 5 and words[:1] == ["<-"] and words[2] == "RecordAck" and words[4] in sent:
            acknowledged.append(note.at - sent.pop(words[4]))
    named = {"capture": capture, "record": way, "acknowledged": acknowledged}
    return {name: round(float(np.median(values)) / 1e6, 3) for name, values in named.items() if values}


async def breakdown(
    services: Sequence[Service], modes: Sequence[str], settings: Settings, seconds: float
) -> list[dict[str, object]]:
    """A row for each service, for bare metal and each mode; for a learner one that trains and one that
    infers."""
    return [
        row
        for service, mode in itertools.product(services, (BARE, *modes))
        for row in await _rows(service, mode, settings, seconds)
    ]


async def _rows(service: Service, mode: str, settings: Settings, seconds: float) -> list[dict[str, object]]:
    async with recorded() as (_, traces), running(service, mode, settings) as graph:
        await graph.window(1, 2.0, 0.0)
        before, moved = graph.cpu_by_kind(), await graph.counted()
        samples = await graph.window(1, seconds, 0.0)
        spent, total = graph.cpu_by_kind(), await graph.counted()
        lines = [note for note in notes(traces) if samples and samples[0].began <= note.at / 1e9]
    shared: dict[str, object] = {
        "service": service.name,
        "mode": mode,
        "case": "breakdown",
        **settings.said(service.name),
        "pairs": 1,
        "window_s": seconds,
        "states_ms": {
            op: state_steps([note for note in lines if note.who.startswith(f"{op}-")], op)
            for op in service.stateful
        },
        "cpu_ms_per_batch": {
            kind: round(1000 * (spent[kind] - before[kind]) / max(len(samples), 1), 3) for kind in spent
        },
        "core_ms_per_batch": round(1000 * (total[CORE] - moved[CORE]) / max(len(samples), 1), 3),
        "mb_per_batch": {
            name: round((total[name] - moved[name]) / max(len(samples), 1) / 1e6, 4) for name in CAPTURED
        },
    }
    return [{**shared, **kind} for kind in by_kind(samples, batches_of(lines))]


def by_kind(samples: Sequence[Sample], batches: Sequence[Batch]) -> list[dict[str, object]]:
    """Latency and its parts, of each kind of batch. Client and traces have one clock, which tells whose batch
    it is."""
    rows: list[dict[str, object]] = []
    for kind in dict.fromkeys(item.kind for item in samples):
        mine = [item for item in samples if item.kind == kind]
        parts = [
            split
            for batch in batches
            if any(item.began <= batch.arrived / 1e9 <= item.ended for item in mine)
            and (split := batch.parts())
        ]
        rows.append(
            {
                "kind": kind,
                "batches": len(parts),
                "latency_ms": ms(float(np.median([item.ended - item.began for item in mine])), 3),
                "parts_ms": {
                    name: round(float(np.mean([item[name] for item in parts])), 3) if parts else 0.0
                    for name in PARTS
                },
            }
        )
    return rows
