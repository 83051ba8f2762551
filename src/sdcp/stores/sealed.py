"""Immutable segments of memory that the processes of one machine share by descriptor (Linux: sealed memfds, D40).

A sealed segment can be neither written, nor shrunk, nor grown, by whoever holds its descriptor, and the kernel grants
no seal while a writable mapping exists: so what a receiver has checked is what it uses, and no read of it ever faults.

Not here: how a descriptor travels (`sdcp.stores.host_memory`).
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import sys
from functools import cache
from types import TracebackType

_LATER_S = 0.01

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
        if fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_PATH | os.O_WRONLY):
            raise ValueError("the segment cannot be read through this descriptor")
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


class SpareSegments:
    """Segments whose memory is taken in advance, in a thread: to take it costs five times as much as to fill it.

    For one event loop. What is prepared stays taken until it is used, or `close`: `count` segments of the last size.
    """

    def __init__(self, count: int = 2, *, largest: int = 64 << 20) -> None:
        """`count` are kept, none of more than `largest` octets."""
        self._count = count
        self._largest = largest
        self._ready: list[int] = []
        self._coming = 0
        self._closed = False

    def take(self) -> int:
        """A descriptor for `fill`: of a spare segment, else of a new one."""
        return self._ready.pop() if self._ready else new_segment()

    def prepare(self, size: int) -> None:
        """Have a spare segment of `size` octets, unless there are enough: a little later, after what is urgent now."""
        if size > self._largest or len(self._ready) + self._coming >= self._count:
            return
        self._coming += 1
        asyncio.get_running_loop().call_later(_LATER_S, self._begin, size)

    def close(self) -> None:
        """Give back what was prepared; idempotent."""
        self._closed = True
        while self._ready:
            os.close(self._ready.pop())

    def _begin(self, size: int) -> None:
        if self._closed:
            self._coming -= 1
            return
        asyncio.get_running_loop().run_in_executor(None, _allocated, size).add_done_callback(self._prepared)

    def _prepared(self, coming: asyncio.Future[int | None]) -> None:
        self._coming -= 1
        fd = None if coming.cancelled() else coming.result()
        if fd is not None and self._closed:
            os.close(fd)
        elif fd is not None:
            self._ready.append(fd)


def _allocated(size: int) -> int | None:
    """The descriptor of a new segment that has its memory; None: there is none left."""
    try:
        fd = new_segment()
    except OSError:
        return None
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        return None
    return fd


@cache
def _memory_device() -> int:
    """The device number of the kernel's own memory file system, where every memfd of ordinary pages lies."""
    fd = new_segment()
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
