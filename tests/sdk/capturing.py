"""A proxy's side of captures, in memory."""

from hams_sdk import chunks
from hams_sdk.state import State

CHUNK = 4096


class Proxy:
    """What a proxy holds: the memory of images, and the newest table."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.memory: list[bytearray] = []
        self.table: chunks.Table | None = None
        self.copied = self.compared = 0
        self.changed: list[int] = []

    def space(self, nbytes: int) -> memoryview:
        self.memory.append(bytearray(nbytes))
        return memoryview(self.memory[-1])

    def capture(self) -> bytes:
        """The image, of which only what changed was copied."""
        if self.table is None:
            report = self.state.capture(self.space)
            self.state.is_base()
            first = chunks.address_of(memoryview(self.memory[-1]))
            addresses = list(range(first, first + report.nbytes, CHUNK))
        else:
            before = len(self.memory)
            report = self.state.capture_changed(self.table, self.space)
            at = chunks.address_of(memoryview(self.memory[-1])) if len(self.memory) > before else 0
            addresses = self.table.addresses[: chunks.count(report.nbytes, CHUNK)]
            assert report.changed is not None
            self.changed = [index for first, n in report.changed for index in range(first, first + n)]
            for first, length in report.changed:
                addresses[first : first + length] = [at + index * CHUNK for index in range(length)]
                at += length * CHUNK
        self.copied, self.compared = report.copied, report.compared
        self.table = chunks.Table(0, report.nbytes, CHUNK, addresses)
        return bytes(self.table.whole())


def whole(state: State) -> bytes:
    memory = bytearray()

    def space(nbytes: int) -> memoryview:
        memory.extend(bytes(nbytes))
        return memoryview(memory)

    state.capture(space)
    return bytes(memory)
