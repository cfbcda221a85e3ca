"""The dirty pages of this process's memory: those that were written, as its kernel knows them.

Linux 6.7 protects pages against writes, lifts the protection at the first write to each without asking
anybody (userfaultfd, `UFFD_FEATURE_WP_ASYNC`), and tells which pages it was lifted of (the ioctl
`PAGEMAP_SCAN` of /proc/self/pagemap, which protects them again at once). No write of the processor is missed,
whatever wrote: this process, a system call, a debugger. What a device writes into pinned memory is, and what
other processes write into shared memory: so only private anonymous memory is watched, and nothing once the
process uses a GPU.

A first write to a page costs about a microsecond. So pages are watched of which few are written.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Sequence
from pathlib import Path

PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")

SPANS_MAX = 4_096
"""Spans of written pages that one call returns; with more nothing is known."""

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
"""The number of the system call."""
_O_CLOEXEC, _O_NONBLOCK, _USER_MODE_ONLY = 0o2000000, 0o4000, 1
_API = 0xAA
_WP_UNPOPULATED, _WP_ASYNC = 1 << 13, 1 << 15
_MODE_WP = 2
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_WRITTEN = 1 << 1


def _request(kind: int, number: int, nbytes: int) -> int:
    """The number of an ioctl that reads and writes so many bytes."""
    return 3 << 30 | nbytes << 16 | kind << 8 | number


class _ApiRequest(ctypes.Structure):
    _fields_ = (("api", ctypes.c_uint64), ("features", ctypes.c_uint64), ("ioctls", ctypes.c_uint64))


class _AddressRange(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("nbytes", ctypes.c_uint64))


class _Register(ctypes.Structure):
    _fields_ = (("range", _AddressRange), ("mode", ctypes.c_uint64), ("ioctls", ctypes.c_uint64))


class _Region(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("categories", ctypes.c_uint64))


class _ScanRequest(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "size",
            "flags",
            "start",
            "end",
            "walk_end",
            "vec",
            "vec_len",
            "max_pages",
            "category_inverted",
            "category_mask",
            "category_anyof_mask",
            "return_mask",
        )
    )


_UFFDIO_API = _request(_API, 0x3F, ctypes.sizeof(_ApiRequest))
_UFFDIO_REGISTER = _request(_API, 0x00, ctypes.sizeof(_Register))
_UFFDIO_UNREGISTER = 2 << 30 | ctypes.sizeof(_AddressRange) << 16 | _API << 8 | 0x01
_PAGEMAP_SCAN = _request(ord("f"), 16, ctypes.sizeof(_ScanRequest))


class TrackingUnavailable(Exception):
    """The kernel does not say which pages were written. The text says why."""


class WrittenPages:
    """The pages of some ranges of memory that were written. Used by one thread; the descriptors live as long
    as it does."""

    _fds: Sequence[int] = ()

    def __init__(self) -> None:
        """Raises TrackingUnavailable where the kernel cannot, or may not."""
        number = _USERFAULTFD.get(platform.machine())
        if number is None:
            raise TrackingUnavailable(
                f"expected a kernel of {' or '.join(_USERFAULTFD)}, found {platform.machine()}"
            )
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        self._regions = (_Region * SPANS_MAX)()
        fd = int(self._libc.syscall(number, _O_CLOEXEC | _O_NONBLOCK | _USER_MODE_ONLY))
        if fd < 0:
            raise TrackingUnavailable(f"userfaultfd: {os.strerror(ctypes.get_errno())}")
        self._fds = (fd,)
        asked = _ApiRequest(_API, _WP_ASYNC | _WP_UNPOPULATED, 0)
        try:
            self._ioctl(fd, _UFFDIO_API, asked)
            self._fds = (fd, os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self.close()
            raise TrackingUnavailable(f"write protection without a handler: {error.strerror}") from None

    def close(self) -> None:
        """Watch nothing any more."""
        for fd in self._fds:
            os.close(fd)
        self._fds = ()

    def __del__(self) -> None:
        self.close()

    def watch(self, begin: int, end: int) -> bool:
        """Watch the pages of [begin, end), addresses of whole pages, from now on; False if they cannot be."""
        try:
            self._ioctl(
                self._fds[0], _UFFDIO_REGISTER, _Register(_AddressRange(begin, end - begin), _MODE_WP, 0)
            )
        except OSError:
            return False
        if self.written(begin, end) is None:
            self.unwatch(begin, end)
            return False
        return True

    def unwatch(self, begin: int, end: int) -> None:
        """Watch these pages no more, if they are watched."""
        try:
            self._ioctl(self._fds[0], _UFFDIO_UNREGISTER, _AddressRange(begin, end - begin))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOMEM):  # that memory is not mapped any more
                raise

    def written(self, begin: int, end: int) -> list[tuple[int, int]] | None:
        """The spans of [begin, end) that were written since `watch` or the last such call, ascending; None if
        that is not known: they are not all watched, or these are too many spans."""
        spans: list[tuple[int, int]] = []
        at = begin
        while at < end:
            regions = ctypes.addressof(self._regions)
            flags = _WP_MATCHING | _CHECK_WPASYNC
            scan = _ScanRequest(
                ctypes.sizeof(_ScanRequest),
                flags,
                at,
                end,
                0,
                regions,
                SPANS_MAX,
                0,
                0,
                _WRITTEN,
                0,
                _WRITTEN,
            )
            try:
                count = self._ioctl(self._fds[1], _PAGEMAP_SCAN, scan)
            except OSError:
                return None
            spans += [(int(self._regions[n].start), int(self._regions[n].end)) for n in range(count)]
            if len(spans) > SPANS_MAX or scan.walk_end <= at:
                return None
            at = scan.walk_end
        return spans

    def _ioctl(self, fd: int, request: int, argument: ctypes.Structure) -> int:
        """Raises OSError."""
        done = int(self._libc.ioctl(fd, request, ctypes.byref(argument)))
        if done < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return done


def private_ranges() -> list[tuple[int, int]]:
    """The addresses that are mapped to write, of no file, and shared with no other process; ascending. Empty
    where the kernel does not say."""
    ranges: list[tuple[int, int]] = []
    try:
        lines = Path("/proc/self/maps").read_bytes().splitlines()  # names of files may be any bytes
    except OSError:
        return ranges
    for line in lines:
        where, permissions, _, _, inode = line.split(maxsplit=5)[:5]
        begin, end = (int(part, 16) for part in where.split(b"-"))
        if permissions != b"rw-p" or inode != b"0":
            continue
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return ranges
