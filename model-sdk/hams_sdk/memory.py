"""The shared memory that the proxy allots: which places a frame may name.

Each region is mapped twice: read-only for inputs, so that a model which writes into an input is stopped there
(with its stack in the log) instead of corrupting what other operators get, and writable for outputs and
captures. The model never allocates.
"""

import ctypes
import mmap
import os
import platform
from collections.abc import Sequence
from typing import Any

from hams_sdk.chunks import Table, address_of
from hams_sdk.errors import ContractBroken

Place = tuple[int, int, int]
"""Region number, offset and size in bytes."""

_locked: list[memoryview] = []
"""The mutex that this process holds for its session: it must stay mapped, as the C library lists it."""


class Regions:
    """The mapped regions of a setup frame, in its order."""

    def __init__(self, regions: list[dict[str, Any]], directory: str | None) -> None:
        """Map them. `directory`: where the files lie in this file system, if not where the proxy says. Raises
        ContractBroken, OSError."""
        self._readable: list[memoryview] = []
        self._writable: list[memoryview] = []
        for region in regions:
            path, nbytes = str(region["path"]), int(region["nbytes"])
            if directory is not None:
                path = os.path.join(directory, os.path.basename(path))
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_size < nbytes:
                    raise ContractBroken(f"{path}: {os.fstat(fd).st_size} bytes, the proxy says {nbytes}")
                self._writable.append(memoryview(mmap.mmap(fd, nbytes)))
                self._readable.append(memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)))
            finally:
                os.close(fd)

    def readable(self, place: Place) -> memoryview:
        """A place to read. Raises ContractBroken if it lies outside."""
        return self._slice(self._readable, place)

    def writable(self, place: Place) -> memoryview:
        """A place to write. Raises ContractBroken if it lies outside."""
        return self._slice(self._writable, place)

    def table(self, number: int, places: list[Place], chunk_nbytes: int) -> Table:
        """The chunks of an image that lies at places one after another, all but the last of whole chunks.
        Raises ContractBroken."""
        addresses: list[int] = []
        nbytes = 0
        for place in places:
            view = self.writable(place)
            if nbytes % chunk_nbytes:
                raise ContractBroken(f"place {place!r} follows {nbytes} bytes, which are no whole chunks")
            first = address_of(view)
            addresses += range(first, first + len(view), chunk_nbytes)
            nbytes += len(view)
        return Table(number, nbytes, chunk_nbytes, addresses)

    def laid_over(
        self, base: Table, number: int, nbytes: int, changed: Sequence[int], places: list[Place]
    ) -> Table:
        """An image of `nbytes` with the chunks of `base`, but for those `changed`, ascending, which lie at
        places one after another. Raises ContractBroken."""
        size, part = base.chunk_nbytes, self.table(number, places, base.chunk_nbytes)
        there = -(-nbytes // size)
        addresses = base.addresses[:there] + [0] * (there - len(base.addresses))
        table = Table(number, nbytes, size, addresses)
        if len(changed) != len(part.addresses) or any(not 0 <= index < there for index in changed):
            raise ContractBroken(f"{len(part.addresses)} chunks for {len(changed)} places of {there}")
        if part.nbytes != sum([table.size(index) for index in changed]):
            raise ContractBroken(f"{part.nbytes} bytes for chunks of another size")
        for index, address in zip(changed, part.addresses, strict=True):
            addresses[index] = address
        grown = [index for index in range(there) if index >= len(base.addresses)]
        last = [there - 1] if nbytes != base.nbytes and there else []
        if missing := set(grown + last).difference(changed):
            raise ContractBroken(f"chunk {min(missing)} of {nbytes} bytes is not in the image before")
        return table

    def lock(self, place: Place) -> bool:
        """Lock the robust mutex at a place, for as long as the calling thread lives; False if that is not
        possible here. The kernel tells the proxy then at once if this process is killed. Raises
        ContractBroken."""
        if platform.libc_ver()[0] != "glibc":
            return False  # another C library has another layout of it
        memory = self.writable(place)
        _locked.append(memory)
        return bool(ctypes.CDLL(None).pthread_mutex_trylock(ctypes.c_void_p(address_of(memory))) == 0)

    @staticmethod
    def _slice(regions: list[memoryview], place: Place) -> memoryview:
        try:
            number, offset, nbytes = place
            region = regions[number]
        except (ValueError, TypeError, IndexError) as error:
            raise ContractBroken(f"bad place {place!r}") from error
        if not (number >= 0 and 0 <= offset <= offset + nbytes <= len(region)):
            raise ContractBroken(f"place {place!r} lies outside its region of {len(region)} bytes")
        return region[offset : offset + nbytes]
