"""The client's side of I1, I2 and I4: requests, keys and replies.

A key leads from what a client saw to what the shards did; a null key is not compared. A line written again by
a later owner says the same again; one that says something else is a violation.
"""

from hams_history.lines import CallLine, LogLine, ReplyLine, RetLine
from hams_history.tables import Tables


class Clients:
    """Runs the checks when built."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.findings = tables.findings
        self._keys: dict[str, list[str]] = {}
        self._one_input()
        self._one_reply()
        self._one_request_per_key()
        self._every_reply()
        self._conflicts()
        self._returned()
        if not tables.calls:
            self.findings.skip("I1 and I7, what clients sent", "the history has no call lines")
        if not tables.rets:
            self.findings.skip("I1 and I2, what clients got", "the history has no ret lines")

    def _one_input(self) -> None:
        fed_back: dict[str, tuple[int, LogLine]] = {}
        for request, logs in self.tables.logs.items():
            position, first = logs[0]
            if first.key is not None:
                self._keys.setdefault(first.key, []).append(request)
            for again, other in logs[1:]:
                same = first.digest is None or other.digest is None or first.digest == other.digest
                if not same or (first.key, first.source) != (other.key, other.source):
                    self.findings.violation(
                        "I1",
                        f"request {request} has two inputs: {_input(first)} and {_input(other)}",
                        position,
                        again,
                    )
            if first.source is not None:
                before, known = fed_back.setdefault(first.source, (position, first))
                if known.req != request:
                    self.findings.violation(
                        "I4",
                        f"the fed-back value {first.source} was logged twice, as {known.req} and as "
                        f"{request}",
                        before,
                        position,
                    )

    def _one_reply(self) -> None:
        for request, replies in self.tables.replies.items():
            position, first = replies[0]
            for again, other in replies[1:]:
                if first.values != other.values or not _agree(first.digest, other.digest):
                    self.findings.violation(
                        "I2",
                        f"two replies for request {request}: {_reply(first)} and {_reply(other)}",
                        position,
                        again,
                    )
                    break

    def _one_request_per_key(self) -> None:
        for key, requests in self._keys.items():
            if len(requests) < 2 or (self._lost(requests) and not self._in_one_log(requests)):
                continue
            self.findings.violation(
                "I4",
                f"key {key} was logged twice, as {' and '.join(requests)}",
                *(self.tables.logs[one][0][0] for one in requests),
            )
            replied = [one for one in requests if one in self.tables.replies]
            if len(replied) > 1:
                self.findings.violation(
                    "I2",
                    f"two replies for key {key}, of {' and '.join(replied)}",
                    *(self.tables.replies[one][0][0] for one in replied),
                )

    def _every_reply(self) -> None:
        """A client's request is complete once it has a reply, and be that an error."""
        for request, position in self.tables.completes.items():
            logs = self.tables.logs.get(request)
            if logs is None or logs[0][1].source is not None or request in self.tables.replies:
                continue
            if not self.tables.has_lost(request):
                self.findings.violation(
                    "I1", f"{request} is complete, and no reply of it was released", logs[0][0], position
                )

    def _lost(self, requests: list[str]) -> bool:
        return any(map(self.tables.has_lost, requests))

    def _in_one_log(self, requests: list[str]) -> bool:
        """Whether two of these were logged in one epoch of a shard: no loss lies between."""
        epochs = [
            (request.partition("/")[0], line.epoch)
            for request in requests
            for line in [self.tables.logs[request][0][1]]
            if line.epoch is not None
        ]
        return len(set(epochs)) < len(epochs)

    # ---- what clients got ----

    def _returned(self) -> None:
        calls: dict[tuple[str, str], tuple[int, CallLine]] = {}
        for position, call in self.tables.calls:
            if call.key is not None:
                calls.setdefault((call.client, call.key), (position, call))
        seen: dict[str, tuple[int, RetLine]] = {}
        for position, ret in self.tables.rets:
            if ret.status != "ok" or ret.key is None:
                continue
            key = ret.key
            requests = self._keys.get(key, [])
            if not requests:
                self.findings.violation(
                    "I1", f"{ret.client} got ok for key {key}, but no request was logged under it", position
                )
                continue
            self._logged_payload(position, ret, requests, calls.get((ret.client, key)))
            self._released(position, ret, requests)
            if len(requests) > 1 and self._lost(requests):
                continue  # one of them may have forgotten what the other was told
            before, first = seen.setdefault(key, (position, ret))
            if not _agree(first.digest, ret.digest):
                self.findings.violation(
                    "I2",
                    f"two replies for key {key}: {first.client} got digest {first.digest}, {ret.client} got "
                    f"{ret.digest}",
                    before,
                    position,
                )

    def _conflicts(self) -> None:
        """A conflict says that a key came with another payload: then it did."""
        payloads: dict[str, set[str | None]] = {}
        for _, call in self.tables.calls:
            if call.key is not None:
                payloads.setdefault(call.key, set()).add(call.digest)
        for position, ret in self.tables.rets:
            sent = payloads.get(ret.key or "", set())
            if ret.status == "conflict" and len(sent) == 1 and None not in sent:
                self.findings.violation(
                    "I2",
                    f"{ret.client} got conflict for key {ret.key}, under which nothing but payload "
                    f"{next(iter(sent))} was ever sent",
                    position,
                )

    def _logged_payload(
        self, position: int, ret: RetLine, requests: list[str], call: tuple[int, CallLine] | None
    ) -> None:
        logs = [entry for request in requests for entry in self.tables.logs[request]]
        if call is None or any(_agree(line.digest, call[1].digest) for _, line in logs):
            return
        self.findings.violation(
            "I1",
            f"{ret.client} got ok for key {ret.key} with payload {call[1].digest}, but the one logged under "
            f"it has payload {logs[0][1].digest}:"
            " this is a conflict",
            call[0],
            logs[0][0],
            position,
        )

    def _released(self, position: int, ret: RetLine, requests: list[str]) -> None:
        replies = [
            entry
            for request in requests
            for entry in self.tables.replies.get(request, ())
            if not self.tables.ordered or entry[0] < position
        ]
        if not replies:
            self.findings.violation(
                "I1",
                f"{ret.client} got ok for key {ret.key}, but no reply of {' or '.join(requests)} was released"
                f"{' before' if self.tables.ordered else ''}",
                position,
                self.tables.logs[requests[0]][0][0],
            )
        elif not any(_agree(line.digest, ret.digest) for _, line in replies):
            self.findings.violation(
                "I2",
                f"two replies for key {ret.key}: {replies[0][1].digest} was released, {ret.client} got "
                f"{ret.digest}",
                replies[0][0],
                position,
            )


def _agree(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


def _input(line: LogLine) -> str:
    origin = f"fed back from {line.source}" if line.source is not None else f"key {line.key}"
    return f"{origin}, digest {line.digest}"


def _reply(line: ReplyLine) -> str:
    return f"values {', '.join(line.values) or 'none'}, digest {line.digest}, by {line.i}"
