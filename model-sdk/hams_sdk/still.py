"""Leaves of a state of which little changes: the kernel is asked for their written pages, in the place of
comparing all of their bytes (docs/adr/0049).

A large leaf in this host's memory is watched once `QUIET_CAPTURES` captures running have found at most one of
`QUIET_SHARE` of its chunks changed. From then on only written pages are compared. A leaf that is written
more is watched no more, as each first write to a watched page costs the model a microsecond.

Never: takes a page for unchanged unless the leaf lies where it lay, in memory and in the image, when the
image that it is compared with was captured. Every `CHECKED_AGAIN`-th time all is compared, and what a write
that no kernel saw has changed ends the instance: a device that writes into this memory does that.
"""

import bisect
import os
from dataclasses import replace

from hams_sdk import chunks
from hams_sdk.chunks import Piece, Table
from hams_sdk.datatypes import torch_module
from hams_sdk.errors import StateFault
from hams_sdk.pages import PAGE_NBYTES, TrackingUnavailable, WrittenPages, private_ranges

WATCHED_NBYTES_MIN = 1 << 20
"""Smaller leaves are always compared: that takes a tenth of a millisecond at most."""

QUIET_CAPTURES = 4
"""A leaf is watched after so many captures running in which little of it had changed."""

QUIET_SHARE = 64
"""Little is one chunk of so many, or one page."""

BUSY_CAPTURES = 64
"""A leaf that was watched and then written more is not watched for so many captures."""

CHECKED_AGAIN = 64
"""All of a watched leaf is compared in every one of so many captures."""

SWITCH = "HAMS_WATCH_PAGES"
"""An environment variable; with 0 nothing is watched."""

Place = tuple[int, int, int]
"""Where a leaf lies: its address, and its bytes [begin, end) of the image."""


class StillLeaves:
    """Knowledge of the leaves of one state, from capture to capture. Used by the capture thread alone."""

    def __init__(self) -> None:
        self._pages: WrittenPages | None = None
        self.why_not = f"{SWITCH}=0" if os.environ.get(SWITCH) == "0" else ""
        """The reason that nothing is watched, "" if leaves may be."""
        self._quiet: dict[str, int] = {}
        self._watched: dict[str, tuple[int, int]] = {}
        """The addresses of the pages of each leaf that is watched."""
        self._base: dict[str, Place] = {}
        """The places of leaves in the image that the next capture is compared with."""
        self._against: dict[str, Place] = {}
        self._seen: dict[str, Place] = {}
        self._spans: list[tuple[int, int]] = []
        """The written pages of all that is watched, since the last capture."""
        self._captures = 0
        self._begun = False
        self._private: list[tuple[int, int]] | None = None
        """`private_ranges`, as far as this capture has asked for them."""

    @property
    def watched(self) -> frozenset[str]:
        """The paths of the leaves that are watched."""
        return frozenset(self._watched)

    def begin(self) -> None:
        """A capture begins, and nothing is written until it has ended."""
        self._against, self._base, self._seen = self._base, {}, {}
        self._captures += 1
        self._begun, self._private = True, None
        torch = torch_module()
        if self._watched and torch is not None and torch.cuda.is_initialized():
            self._give_up("a GPU is used, which may write into this memory")
        self._spans = []
        for begin, end in self._ranges():
            spans = None if self._pages is None else self._pages.written(begin, end)
            if spans is None:
                for path in [path for path, pages in self._watched.items() if _meet(pages, (begin, end))]:
                    self._unwatch(path, 0)
            else:
                self._spans += spans

    def skip(self) -> None:
        """An image is captured whole, and nothing is known of its leaves."""
        self._seen, self._begun = {}, False

    def settle(self) -> None:
        """The next capture is compared with this one."""
        if self._begun:  # leaves come and go
            for path in [path for path in self._watched if path not in self._seen]:
                self._unwatch(path, 0)
            self._quiet = {path: quiet for path, quiet in self._quiet.items() if path in self._seen}
        self._base, self._seen, self._begun = self._seen, {}, False

    def forget(self) -> None:
        """The next capture is compared with something else."""
        self._base, self._seen, self._begun = {}, {}, False

    def split(self, piece: Piece, path: str, base: Table) -> list[Piece]:
        """A leaf, in the parts that may have been written and those that were not. Raises StateFault if one
        of these has changed all the same."""
        place = (piece.address, piece.begin, piece.end)
        self._seen[path] = place
        pages = _pages_of(piece)
        if path in self._watched and self._watched[path] != pages:
            self._unwatch(path, 0)
        if path not in self._watched:
            if self._quiet.get(path, 0) >= QUIET_CAPTURES:
                self._watch(path, pages)
            return [piece]
        if self._against.get(path) != place:
            return [piece]
        written = self._written_of(piece)
        nbytes = sum([end - begin for begin, end in written])
        if nbytes > (piece.end - piece.begin) // QUIET_SHARE + PAGE_NBYTES:
            self._unwatch(path, -BUSY_CAPTURES)
            return [piece]
        parts = _parts(piece, pages, written)
        if self._captures % CHECKED_AGAIN == 0:
            for part in parts:
                if part.written is not None and not chunks.is_there(part, part.begin, part.end, base):
                    raise StateFault(
                        f'state "{path}" was changed by a write that the kernel has not seen, as a device\'s '
                        f"into pinned memory: set {SWITCH}=0 for this model"
                    )
        return parts

    def note(self, path: str, changed: int, of: int) -> None:
        """A capture has found so many of its chunks changed."""
        quiet = self._quiet.get(path, 0)
        if changed * QUIET_SHARE <= of + QUIET_SHARE or quiet < 0:
            self._quiet[path] = min(quiet + 1, QUIET_CAPTURES)
        else:
            self._quiet[path] = 0

    def _watch(self, path: str, pages: tuple[int, int]) -> None:
        torch = torch_module()
        if torch is not None and torch.cuda.is_initialized():
            self._give_up("a GPU is used, which may write into this memory")
        if self.why_not:
            return
        try:
            if self._pages is None:
                self._pages = WrittenPages()
        except TrackingUnavailable as error:
            self._give_up(str(error))
            return
        if self._private is None:
            self._private = private_ranges()
        at = bisect.bisect_right(self._private, pages[0], key=lambda known: known[0]) - 1
        private = at >= 0 and pages[1] <= self._private[at][1]
        if private and self._pages.watch(*pages):
            self._watched[path] = pages
        else:
            self._quiet[path] = -BUSY_CAPTURES

    def _unwatch(self, path: str, quiet: int) -> None:
        pages = self._watched.pop(path)
        self._quiet[path] = quiet
        if self._pages is not None:
            self._pages.unwatch(*pages)

    def _give_up(self, why: str) -> None:
        """Watch nothing any more."""
        self.why_not = why
        self._watched.clear()
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _ranges(self) -> list[tuple[int, int]]:
        """The pages that are watched, as disjoint ranges: leaves may share memory."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(self._watched.values()):
            if merged and begin < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        return merged

    def _written_of(self, piece: Piece) -> list[tuple[int, int]]:
        """The addresses of a leaf's pages that were written."""
        begin, end = _pages_of(piece)
        first = bisect.bisect_right(self._spans, begin, key=lambda span: span[1])
        last = bisect.bisect_left(self._spans, end, key=lambda span: span[0])
        return [(max(one, begin), min(other, end)) for one, other in self._spans[first:last]]


def _pages_of(piece: Piece) -> tuple[int, int]:
    """The addresses of the whole pages of a leaf."""
    begin = -(-piece.address // PAGE_NBYTES) * PAGE_NBYTES
    end = (piece.address + piece.end - piece.begin) // PAGE_NBYTES * PAGE_NBYTES
    return begin, end


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _parts(piece: Piece, pages: tuple[int, int], spans: list[tuple[int, int]]) -> list[Piece]:
    """A leaf cut at the pages that were written. What lies outside of whole pages may always have been."""
    last = piece.address + piece.end - piece.begin
    parts: list[Piece] = []

    def add(begin: int, end: int, *, may_differ: bool) -> None:
        if begin < end:
            at = piece.begin + begin - piece.address
            written = None if may_differ else ()
            part = replace(piece, begin=at, end=at + end - begin, address=begin, leaf=-1, written=written)
            parts.append(part)

    add(piece.address, pages[0], may_differ=True)
    at = pages[0]
    for begin, end in spans:
        add(at, begin, may_differ=False)
        add(begin, end, may_differ=True)
        at = end
    add(at, pages[1], may_differ=False)
    add(pages[1], last, may_differ=True)
    return parts
