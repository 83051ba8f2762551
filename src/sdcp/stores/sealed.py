"""Immutable segments of memory that the processes of one machine share by descriptor (Linux: sealed memfds, D40).

A sealed segment can be neither written, nor shrunk, nor grown, by whoever holds its descriptor, and the kernel grants
no seal while a writable mapping exists: so what a receiver has checked is what it uses, and no read of it ever faults.

Not here: how a descriptor travels (`sdcp.stores.host_memory`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from functools import cache
from types import TracebackType

AVAILABLE = sys.platform == "linux"
"""Whether this system has sealed segments at all."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE if AVAILABLE else 0


class Sealed:
    """A sealed segment of `size` octets: its descriptor `fd`, which `close` closes, and the mapping of it."""

    __slots__ = ("_mapped", "fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        """Own `fd`, which bears all seals; see `of` and `received`."""
        self.fd = fd
        self.size = size
        self._mapped: mmap.mmap | None = None

    @classmethod
    def of(cls, data: bytes | memoryview) -> Sealed:
        """Copy `data` into a new segment and seal it. OSError: no memory or no descriptor is left."""
        return fill(new_segment(), data)

    @classmethod
    def received(cls, fd: int, size: int) -> Sealed:
        """Own a descriptor from another process, if it is a memfd with all seals, of `size` octets, without holes.

        Raises ValueError, and leaves `fd` open, if it is anything else.
        """
        found = os.fstat(fd)
        if found.st_dev != _memory_device():
            raise ValueError("the descriptor is no memfd of ordinary pages")
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("the segment is not sealed against writing, shrinking, growing and further seals")
        if found.st_size != size:
            raise ValueError(f"the segment has {found.st_size} octets, not {size}")
        if size and os.lseek(fd, 0, os.SEEK_HOLE) < size:
            raise ValueError("the segment has holes, which would take memory when they are read")
        return cls(fd, size)

    def view(self) -> memoryview:
        """All octets, read-only; stays valid after `close` for as long as the view lives."""
        if not self.size:
            return memoryview(b"")
        if self._mapped is None:
            self._mapped = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        return memoryview(self._mapped)

    def share(self) -> Sealed:
        """The same segment under a descriptor of its own."""
        return Sealed(os.dup(self.fd), self.size)

    def close(self) -> None:
        """Close the descriptor; idempotent. The mapping goes when no view of it is left."""
        self._mapped = None
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Sealed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def new_segment() -> int:
    """Return the descriptor of an empty segment that can be sealed."""
    return os.memfd_create("sdcp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def fill(fd: int, data: bytes | memoryview) -> Sealed:
    """Write `data` from the beginning of an unsealed segment, cut it there, and seal it; `fd` is closed on OSError."""
    try:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], done)
        os.ftruncate(fd, done)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Sealed(fd, done)


@cache
def _memory_device() -> int:
    """The device number of the kernel's own memory file system, where every memfd of ordinary pages lies."""
    fd = new_segment()
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
