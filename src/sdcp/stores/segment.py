"""One file of the journal: it grows at its end, and what is written is durable.

It takes room in advance (`posix_fallocate`), so that a full disk shows before anything is written, and so that
`fdatasync` need not write the file's size each time. When it is full it is cut to its frames and never written again.

Not here: which file is written (`sdcp.stores.segments`).
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
log = logging.getLogger("sdcp.stores")


class Segment:
    """One file. `end` is where the next frame goes, `durable` how far it is synced, `room` how far the file reaches."""

    def __init__(self, path: Path, number: int, end: int) -> None:
        self.number = number
        self.path = path
        self.end = self.durable = self.room = end
        # A file object, which whoever reads keeps open: a segment may be forgotten meanwhile.
        self._file = path.open("r+b", buffering=0)
        self._fd = self._file.fileno()

    @property
    def last_written(self) -> float:
        """When it was written last, in seconds since the epoch."""
        return os.fstat(self._fd).st_mtime

    def take_room(self, octets: int, ahead: int) -> None:
        """Make sure that `octets` more can be written. Raises OSError (ENOSPC); nothing is changed then."""
        missing = self.end + octets - self.room
        if missing > 0:
            missing = max(missing, ahead)
            os.posix_fallocate(self._fd, self.room, missing)
            self.room += missing

    def write(self, octets: bytes) -> None:
        """Write at the end and sync. After an OSError nobody knows what is on disk: write no more."""
        view, at = memoryview(octets), self.end
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written
        os.fdatasync(self._fd)
        self.end = self.durable = at

    def read(self, offset: int, size: int) -> bytes:
        """Octets of the file; fewer when it is too short."""
        return os.pread(self._fd, size, offset)

    def seal(self) -> None:
        """Give back the room beyond the end, for good."""
        os.ftruncate(self._fd, self.end)
        os.fsync(self._fd)
        self.room = self.end

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_synced(path: Path, octets: bytes | memoryview) -> None:
    """Write a new file and sync it; its name is durable after `sync_folder`."""
    with open(path, "wb", buffering=0) as file:
        view = memoryview(octets)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
