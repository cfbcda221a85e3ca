"""Payload bytes of what instances hold for others and send each other."""

from collections.abc import Iterable

from hams_protocol.messages import Admit, Consumed, DoneEntry, LogEntry, Payload, Token


def payload_nbytes(payload: Payload | None) -> int:
    """0 if there is none."""
    return 0 if payload is None else payload.nbytes


def token_nbytes(token: Token) -> int:
    """Of a token."""
    return payload_nbytes(token.payload)


def entry_nbytes(entry: LogEntry) -> int:
    """Of an entry of a log: of a request, of what it came from, or of a reply."""
    if isinstance(entry, Admit):
        origin = 0 if entry.origin is None else token_nbytes(entry.origin)
        return payload_nbytes(entry.payload) + origin
    return 0 if isinstance(entry, DoneEntry) else sum([token_nbytes(token) for token in entry.tokens])


def carried_nbytes(units: Iterable[Consumed]) -> int:
    """Of what a record or a copy carries beside the state: outputs, and what came on fan-out edges."""
    sizes: dict[int, int] = {}
    for unit in units:
        for token in (*[sent for _, sent in unit.outputs], *unit.fan_inputs):
            if token.payload is not None:
                sizes[id(token.payload)] = token.payload.nbytes
    return sum(sizes.values())
