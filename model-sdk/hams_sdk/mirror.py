"""The leaves of a state that lie on one device, as they lie in its image: on the device twice, and in pinned
memory.

A capture gathers the leaves into one buffer of the device and compares it there, chunk by chunk, with the
buffer of the capture before. Only what differs crosses to the host, into pinned memory, which so holds all of
the image's bytes again. All of it happens on a stream of its own, beside the next compute stage of the model.

Both buffers of the device are made when there is something to compare with: a batch has run by then, and has
taken what memory it needs. Where `DEVICE_SPARE` of the device's memory would not stay free there are none.
Then everything crosses, and is compared on the host.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from hams_sdk import chunks
from hams_sdk.chunks import ALIGN
from hams_sdk.datatypes import torch_module

DEVICE_SPARE = 0.2
"""Of a device's memory: so much stays free beside what a capture keeps there to compare with."""

DEVICE_ROOM_SHARE = 8
"""What is kept there has room for one part in so many more, as states grow."""

_WORD_NBYTES = 8


class Mirror:
    """What one device holds of an image. Used by the capture thread alone."""

    def __init__(self, device: Any, lacks_memory: bool = False) -> None:
        """`lacks_memory`: nothing is kept on the device."""
        torch = torch_module()
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            # What the first `state_dict` computed, before there was this stream to do it upon.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self.begin = self.end = 0  # of the image
        self._layout: list[Any] = []
        self._alike: list[list[int]] = []  # leaves that are copied in one call: there are hundreds
        self._pinned: Any = None
        self._buffers: list[Any] = []  # as captured now, and as captured before
        self._views: list[list[list[Any]]] = []  # the leaves' places in each; in pinned memory without any
        self._room: list[Any] = []  # memory of the device, which the buffers are the beginning of
        self._settled = False
        self._lacks_memory = lacks_memory

    @property
    def compares(self) -> bool:
        """Whether there is something on the device to compare with."""
        return bool(self._buffers)

    def take(
        self,
        leaves: Sequence[Any],
        spans: Sequence[tuple[int, int]],
        after: Iterable[Any],
        chunk_nbytes: int = 0,
    ) -> list[tuple[int, int]] | None:
        """Bring the bytes of all leaves into pinned memory, once the events `after` have come. `spans`: their
        bytes [begin, end) of the image, ascending; none is empty.

        With `chunk_nbytes`: returns which bytes [begin, end) of the image may differ from those that were
        settled, in whole chunks but at the ends; None if nothing is settled or there is no room to compare.
        """
        torch = torch_module()
        layout = [(span, leaf.dtype, leaf.shape) for span, leaf in zip(spans, leaves, strict=True)]
        if layout != self._layout:
            self._lay_out(layout)
        if chunk_nbytes and not self._buffers and not self._lacks_memory:
            self._make_buffers()
        settled, self._settled = self._settled and bool(self._buffers), False
        compares = settled and chunk_nbytes > 0 and chunk_nbytes % ALIGN == 0
        # The caller holds the leaves until the stream is synchronised, so their memory is not handed out
        # again meanwhile.
        with torch.no_grad(), self.beside(after):
            written, lacked = None, False
            try:
                written = self._enqueue(leaves, chunk_nbytes if compares else 0)
            except torch.cuda.OutOfMemoryError:
                if not self._buffers:
                    raise
                lacked = True
            if lacked:  # not within `except`: what was raised holds what it was about
                self.drop_buffers()
                written = self._enqueue(leaves, 0)
            if self._stream is not None:
                self._stream.synchronize()
        return written

    def _enqueue(self, leaves: Sequence[Any], chunk_nbytes: int) -> list[tuple[int, int]] | None:
        """Start all copies; see `take`. Nothing is compared if `chunk_nbytes` is 0."""
        words = [_words(leaf) for leaf in leaves]
        for indices, views in zip(self._alike, self._views[0], strict=True):
            _copy_all(views, [words[index] for index in indices])
        written = self._written(chunk_nbytes) if chunk_nbytes else None
        if self._buffers:
            for begin, end in [(self.begin, self.end)] if written is None else written:
                span = slice(begin - self.begin, end - self.begin)
                self._pinned[span].copy_(self._buffers[0][span], non_blocking=True)
        return written

    def settle(self) -> None:
        """What was taken last is what the next capture is compared with."""
        if self._buffers:
            self._buffers.reverse()
            self._views.reverse()
            self._settled = True

    def forget(self) -> None:
        """The next capture is compared with something else than what was taken last."""
        self._settled = False

    def drop_buffers(self) -> None:
        """Keep nothing on the device from now on: everything crosses."""
        self._lacks_memory, self._settled = True, False
        if self._buffers:
            self._buffers, self._views = [], [self._views_of(self._pinned, self._layout)]
        self._room = []
        if self._stream is not None:
            torch_module().cuda.empty_cache()

    def bytes_of(self, begin: int, end: int) -> np.ndarray:
        """Bytes [begin, end) of the image, as they were taken last; in place."""
        taken: np.ndarray = self._pinned.numpy()[begin - self.begin : end - self.begin]
        return taken

    def beside(self, after: Iterable[Any]) -> AbstractContextManager[Any]:
        """Upon the side stream, once the events have come."""
        if self._stream is None:
            return nullcontext()
        for event in after:
            self._stream.wait_event(event)
        stream: AbstractContextManager[Any] = torch_module().cuda.stream(self._stream)
        return stream

    def _lay_out(self, layout: list[Any]) -> None:
        """Make room on the host for other leaves than before, or other places."""
        torch = torch_module()
        self._layout, self._buffers, self._views, self._settled = [], [], [], False  # until all of it is done
        self.begin, last = layout[0][0][0], layout[-1][0][1]
        self.end = last + -last % ALIGN
        nbytes = self.end - self.begin
        if self._pinned is None or self._pinned.numel() < nbytes:  # pinning is slow: kept as long as it fits
            self._pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._stream is not None)
        by_size: dict[int, list[int]] = {}
        for index, (_, dtype, _) in enumerate(layout):
            by_size.setdefault(dtype.itemsize, []).append(index)
        self._alike = list(by_size.values())
        self._views = [self._views_of(self._pinned, layout)]
        self._layout = layout

    def _views_of(self, memory: Any, layout: Sequence[Any]) -> list[list[Any]]:
        """The leaves' places in a buffer, those of one size of elements together."""
        views = [
            _words(memory[begin - self.begin : end - self.begin].view(dtype).reshape(shape))
            for (begin, end), dtype, shape in layout
        ]
        return [[views[index] for index in indices] for indices in self._alike]

    def _has_room(self, nbytes: int) -> bool:
        """Whether enough of the device's memory stays free beside two buffers, and what comparing them
        takes."""
        if self._stream is None:
            return True
        free, total = torch_module().cuda.mem_get_info(self._device)
        return bool(free - 2 * nbytes - nbytes / _WORD_NBYTES >= DEVICE_SPARE * total)

    def _make_buffers(self) -> None:
        """Make both, in the memory that there is from another layout, if it is enough."""
        torch = torch_module()
        nbytes = self.end - self.begin
        if not self._room or self._room[0].numel() < nbytes:
            if self._room and self._stream is not None:
                self._room = []
                torch.cuda.empty_cache()  # or it would count as used
            if not self._has_room(nbytes + nbytes // DEVICE_ROOM_SHARE):
                return
            try:
                with self.beside(()):
                    self._room = [
                        torch.empty(
                            nbytes + nbytes // DEVICE_ROOM_SHARE, dtype=torch.uint8, device=self._device
                        )
                        for _ in range(2)
                    ]
            except torch.cuda.OutOfMemoryError:  # another process was faster
                return
        with self.beside(()):
            made = [memory[:nbytes].zero_() for memory in self._room]
        views = [self._views_of(memory, self._layout) for memory in made]
        self._buffers, self._views = made, views

    def _written(self, chunk_nbytes: int) -> list[tuple[int, int]]:
        """Compare both buffers, byte by byte."""
        torch = torch_module()
        now, before = (memory.view(torch.int64) for memory in self._buffers)
        differs = now != before
        words = chunk_nbytes // _WORD_NBYTES
        head = min(len(differs), -self.begin % chunk_nbytes // _WORD_NBYTES)  # of a chunk begun before
        whole = (len(differs) - head) // words
        tail = head + whole * words
        parts = [
            differs[:head].any().reshape(-1) if head else differs[:0],
            differs[head:tail].view(whole, words).any(1) if whole else differs[:0],
            differs[tail:].any().reshape(-1) if tail < len(differs) else differs[:0],
        ]
        first = self.begin // chunk_nbytes
        changed = torch.cat(parts).cpu().nonzero().reshape(-1).tolist()
        return [
            (
                max((first + index) * chunk_nbytes, self.begin),
                min((first + index + number) * chunk_nbytes, self.end),
            )
            for index, number in chunks.runs_of(changed)
        ]


def _copy_all(targets: Sequence[Any], sources: Sequence[Any]) -> None:
    """Copy each tensor to its place, all of one datatype: in one call, if this PyTorch can."""
    in_one_call = getattr(torch_module(), "_foreach_copy_", None)
    if in_one_call is not None:
        in_one_call(targets, sources, non_blocking=True)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def _words(tensor: Any) -> Any:
    """The elements of a tensor as whole numbers of their size. A copy of numbers that are no whole ones may
    change those that are not numbers (NaN): where it goes by a wider datatype, as of halves on a GPU."""
    torch = torch_module()
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])
