"""JSON in slices: where the large arrays of a body lie, and whether an array's brackets and commas stand
where they may.

A decoder in C holds the event loop for as long as its input is large: half a second for a body of 64 MiB that
holds nothing but brackets. So a large body is looked at in slices, by operations on whole slices that cost
the same whatever they hold. What remains to be decoded at once is small.

Never: decides what a value means; recurses with the input; looks at a slice twice.
"""

import re
from collections.abc import Generator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hams_protocol.frozen import frozen
from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.limits import json_slice_bytes

json_head_bytes_max = 256 << 10
"""JSON besides the data of tensors: names, shapes, parameters. It is decoded at once, so it is small."""

json_cut_bytes_min = 1024
"""Data of a tensor from this size on is not part of what is decoded at once."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that may pause."""

_DATA_DEPTH = 4
"""Of the brackets around the data of a tensor: the request, its inputs, one input, and its data."""

_DATA_KEY = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\Z')
_DATA_KEY_BYTES_MAX = 64
_QUOTE, _OPEN, _CLOSE = 34, 91, 93

_OTHER, _OPENS, _CLOSES, _COMMA, _SPACE = range(5)
_KINDS = np.zeros(256, np.uint8)
_KINDS[[_OPEN]] = _OPENS
_KINDS[[_CLOSE]] = _CLOSES
_KINDS[[ord(",")]] = _COMMA
_KINDS[[ord(space) for space in " \t\r\n"]] = _SPACE

_DEPTHS = np.zeros(256, np.int8)
_DEPTHS[[ord("["), ord("{")]] = 1
_DEPTHS[[ord("]"), ord("}")]] = -1


@frozen
class Outline:
    """A JSON body without the large arrays of its tensors' data: in `head` the n-th of them stands as the
    string `mark` + n."""

    head: bytes
    mark: bytes
    arrays: tuple[memoryview, ...]

    def array(self, data: memoryview) -> memoryview | None:
        """The array that stands for a value in the head; None: the value is what it is."""
        text = bytes(data[: len(self.mark) + 20])
        match = re.fullmatch(rb'"%b(\d+)"' % re.escape(self.mark), text)
        return None if match is None else self.arrays[int(match[1])]


class Slices:
    """Slices of a text, never cut within an escape, and which of their characters stand within strings."""

    def __init__(self, text: memoryview) -> None:
        self._text = text
        self._at = 0
        self._in_string = 0

    def next(self) -> tuple[int, bytes, npt.NDArray[np.bool_] | None]:
        """Where the next slice begins, its bytes, and which of them lie within strings (None: there are no
        strings). Empty at the end."""
        start = self._at
        part = bytes(self._text[start : start + json_slice_bytes])
        trailing = len(part) - len(part.rstrip(b"\\"))
        if trailing & 1:  # what is escaped belongs to it
            part += bytes(self._text[start + len(part) : start + len(part) + 1])
        self._at = start + len(part)
        if not part or (not self._in_string and b'"' not in part):
            return start, part, None
        plain = part
        if b"\\" in part:
            plain = part.replace(rb"\\", b"__").replace(rb"\"", b"__")
        quotes = np.frombuffer(plain, np.uint8) == _QUOTE
        parity = np.cumsum(quotes, dtype=np.uint8) + np.uint8(self._in_string)
        within = (parity & 1).astype(np.bool_) | quotes
        self._in_string = int(parity[-1] & 1)
        return start, part, within


def outline(body: memoryview, mark: bytes) -> Steps[Outline]:
    """Cut the large arrays out of a body. Raises RequestRefused if what is left is not small."""
    slices = Slices(body)
    depth = 0
    opened = -1
    cuts: list[tuple[int, int]] = []
    cut_bytes = 0
    while True:
        start, part, within = slices.next()
        if not part:
            break
        deltas = _DEPTHS[np.frombuffer(part, np.uint8)]
        if within is not None:
            deltas[within] = 0
        places = np.flatnonzero(deltas)
        steps = deltas[places].astype(np.int64)
        depths = depth + np.cumsum(steps)
        opens = places[(steps > 0) & (depths == _DATA_DEPTH)] + start
        closes = places[(steps < 0) & (depths == _DATA_DEPTH - 1)] + start
        if opened >= 0:
            opens = np.concatenate(([opened], opens))
        pairs = min(len(opens), len(closes))
        long = np.flatnonzero(closes[:pairs] - opens[:pairs] >= json_cut_bytes_min)
        for first, last in zip(opens[long].tolist(), closes[long].tolist(), strict=True):
            before = bytes(body[max(first - _DATA_KEY_BYTES_MAX, 0) : first])
            if body[first] == _OPEN and _DATA_KEY.search(before):
                cuts.append((first, last + 1))
                cut_bytes += last + 1 - first
        opened = int(opens[-1]) if len(opens) > len(closes) else -1
        if len(depths):
            depth = int(depths[-1])
        yield
    if len(body) - cut_bytes > json_head_bytes_max:
        raise RequestRefused(
            f"expected at most {json_head_bytes_max} bytes of JSON besides the data of tensors, got "
            f"{len(body) - cut_bytes}"
        )
    parts: list[bytes | memoryview] = []
    at = 0
    for number, (first, last) in enumerate(cuts):
        parts += (body[at:first], b'"%b%d"' % (mark, number))
        at = last
    parts.append(body[at:])
    return Outline(b"".join(parts), mark, tuple([body[first:last] for first, last in cuts]))


class Elements:
    """An array of values, flat or nested: what of each slice are values, what is nesting, and whether they
    stand where they may."""

    def __init__(self, text: memoryview) -> None:
        self._slices = Slices(text)
        self._last = _COMMA
        self._spaced = False
        self.nesting: list[bytes] = []
        self.commas = 0
        self.has_values = False

    def next(self) -> tuple[bytes, int] | None:
        """The values of the next slice with the commas between, and where behind the last of these commas is
        (0: none). None at the end, or where something stands that may not."""
        _, part, within = self._slices.next()
        if not part:
            return None
        codes = np.frombuffer(part, np.uint8)
        kinds = _KINDS[codes]
        if within is not None:
            kinds[within] = _OTHER
        if not self._is_in_order(kinds, within):
            raise ValueError("expected commas between values, and brackets around them")
        commas = kinds == _COMMA
        count = int(np.count_nonzero(commas))
        others = kinds == _OTHER
        self.nesting.append(codes[~others & (kinds != _SPACE)].tobytes())
        chosen = others | commas
        self.commas += count
        self.has_values = self.has_values or bool(others.any())
        values = codes[chosen].tobytes()
        cut = int(np.flatnonzero(commas[chosen])[-1]) + 1 if count else 0
        return values, cut

    def _is_in_order(self, kinds: npt.NDArray[np.uint8], within: npt.NDArray[np.bool_] | None) -> bool:
        """No two values without a comma between, no comma without values on both sides, no value beside the
        outside of a bracket."""
        places = np.flatnonzero(kinds != _SPACE)
        if not len(places):
            self._spaced = True
            return True
        kinds_there = kinds[places]
        before = np.concatenate((np.array([self._last], np.uint8), kinds_there[:-1]))
        spaced = np.concatenate(([self._spaced or places[0] > 0], np.diff(places) > 1))
        wrong = (
            (spaced & (before == _OTHER) & (kinds_there == _OTHER))
            | ((before == _CLOSES) & ((kinds_there == _OTHER) | (kinds_there == _OPENS)))
            | ((kinds_there == _OPENS) & ((before == _OTHER) | (before == _CLOSES)))
            | ((before == _COMMA) & ((kinds_there == _COMMA) | (kinds_there == _CLOSES)))
            | ((before == _OPENS) & (kinds_there == _COMMA))
        )
        self._last = int(kinds_there[-1])
        self._spaced = bool(places[-1] < len(kinds) - 1)
        return not wrong.any()
