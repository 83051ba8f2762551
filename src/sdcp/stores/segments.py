"""The files of the journal: segments one after another, and the mark of what is durable.

The *mark* is a small file that says how far the newest segment is durable. It is written after each sync and is not
synced itself: when the process is killed it is exact, after a power cut it may be behind, and it is never ahead. The
file `first` says which segment is the oldest that counts; it is synced before older ones are removed. The head of each
segment says which segment came before it and where that one ended: so what a file has lost at its end, or a file that
is gone, is a hole like any other, and so is a damaged head. A file with a hole is never written again: it may be
restored from a copy.

Not here: one segment's file (`sdcp.stores.segment`), what frames mean (`sdcp.stores.frames`), and which thread does
this (`sdcp.stores.journal`).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from sdcp.errors import ConfigurationError
from sdcp.stores.frames import HEAD_SIZE, Found, Head, Hole, Scan, decode_head, encode_head
from sdcp.stores.segment import Segment, log, sync_folder, write_synced

_MARK = struct.Struct(">QQI")
_SUFFIX = ".journal"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Octets: at most so many in a segment (one batch may exceed it), and how many are taken in advance."""

    segment: int = 64 << 20
    ahead: int = 4 << 20


Take = Callable[[Segment, Found], None]
Lost = Callable[[Path, int, Hole], None]


class Segments:
    """All segments of a folder: read once by `recover`, then one of them, `newest`, is written."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self._folder = folder
        self._by_number: dict[int, Segment] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.first = self._read_first()  # older segments do not count any more
        self._mark = _opened_mark(folder / "mark")
        self._last_used = 0  # the last segment that holds frames, and where it ends
        self._last_end = 0
        self.newest: Segment

    @property
    def room(self) -> int:
        """Octets that the files take, their heads aside."""
        return sum(segment.room - HEAD_SIZE for segment in list(self._by_number.values()))

    def recover(self, take: Take, lost: Lost) -> None:
        """Hand every frame to `take`, and every hole with its file and segment to `lost`, in the order in which they
        were written; cut a torn tail, and begin a new segment.

        Raises ConfigurationError when the files are not those of one journal, or the disk refuses; then no file stays
        open.
        """
        try:
            self._recover(take, lost)
        except OSError as fault:
            self._close_files()
            raise ConfigurationError(f"{self._folder}: the journal cannot be opened: {fault.strerror}") from None
        except BaseException:
            self._close_files()
            raise

    def _recover(self, take: Take, lost: Lost) -> None:
        numbers = self._numbers()
        marked, mark = self._read_mark()
        heads = {number: self._read_head(number) for number in numbers}
        ends = {head.previous: head.previous_end for head in heads.values() if head is not None}
        last = max(numbers, default=0)
        newest = max(last, marked, *ends)  # of those that there were
        if marked >= self.first and mark > HEAD_SIZE and (marked == newest or marked not in heads):
            ends.setdefault(marked, mark)  # of an older one that is there it may be far behind
        for number in sorted({*numbers, *(number for number in ends if number >= self.first)}):
            if number not in heads:
                self._note_missing(number, ends[number], lost)
            elif number == last > marked and heads[number] is None and self._is_unwritten(number):
                self._path(number).unlink()  # the start that made it was cut off before it served anybody
            else:
                self._check_follows(number, heads[number], lost)
                self._recover_one(number, ends.get(number), number == newest, take, lost)
        self._begin(newest + 1)
        self._remove_unused(heads)

    def growth(self, octets: int, ahead: int) -> int:
        """How much more of the disk `take_room(octets, ahead)` would take."""
        if self._full(octets):
            return max(octets, ahead)
        missing = self.newest.end + octets - self.newest.room
        return max(missing, ahead) if missing > 0 else 0

    def take_room(self, octets: int, ahead: int) -> None:
        """Make sure that the newest segment can take `octets` more; it may become a new one. Raises OSError."""
        if self._full(octets):
            self.newest.seal()
            self._begin(self.newest.number + 1)
        self.newest.take_room(octets, ahead)

    def _full(self, octets: int) -> bool:
        return self.newest.end > HEAD_SIZE and self.newest.end + octets > self.sizes.segment

    def write(self, octets: bytes) -> None:
        """Write a batch of frames into the newest segment, durably."""
        self.newest.write(octets)
        self._last_used, self._last_end = self.newest.number, self.newest.end
        self._write_mark()

    def written_before(self, time: float) -> int:
        """The last of the oldest segments that were all written before `time`; 0: not even the oldest was."""
        last = 0
        for number, segment in self._by_number.items():
            if segment is self.newest or segment.last_written >= time:
                break
            last = number
        return last

    def forget(self, last: int) -> None:
        """Remove the segments up to `last`, which is not the newest. Raises OSError; a restart ends what was begun."""
        if last < self.first:
            return
        temporary = self._folder / "first.new"
        fields = struct.pack(">Q", last + 1)
        write_synced(temporary, fields + struct.pack(">I", crc32(fields)))
        temporary.rename(self._folder / "first")
        sync_folder(self._folder)
        self.first = last + 1
        for number in [number for number in self._by_number if number <= last]:
            self._by_number.pop(number).path.unlink()

    def get(self, number: int) -> Segment | None:
        """A segment, or None when it was forgotten."""
        return self._by_number.get(number)

    def close(self) -> None:
        """Close all files; the newest segment gives back its room."""
        self.newest.seal()
        self._close_files()

    def _close_files(self) -> None:
        for segment in self._by_number.values():
            segment.close()
        os.close(self._mark)

    # -- the start ----------------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        """The segments there are, oldest first, without those that were to be removed when the process ended."""
        found = [path for path in self._folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal()]
        numbers = sorted(int(path.stem) for path in found if path == self._path(int(path.stem)))
        for number in numbers:
            if number < self.first:
                self._path(number).unlink()
        return [number for number in numbers if number >= self.first]

    def _read_head(self, number: int) -> Head | None:
        with self._path(number).open("rb") as file:
            head = decode_head(file.read(HEAD_SIZE))
        if head is not None and head.number != number:
            raise ConfigurationError(
                f"{self._path(number)}: this is segment {head.number}; rename it to {self._path(head.number).name}"
            )
        return head

    def _is_unwritten(self, number: int) -> bool:
        return not any(self._path(number).read_bytes()[HEAD_SIZE:])

    def _note_missing(self, number: int, end: int, lost: Lost) -> None:
        log.error("%s: missing, and it held appends that were acknowledged", self._path(number))
        lost(self._path(number), number, Hole(HEAD_SIZE, end))
        self._last_used, self._last_end = number, end

    def _check_follows(self, number: int, head: Head | None, lost: Lost) -> None:
        """Refuse files of which one cannot have come after the other."""
        if head is None:  # and with it is lost where the segment before it ended, and whether one is missing
            lost(self._path(number), number, Hole(0, HEAD_SIZE))
        elif head.previous != self._last_used and not (self._last_used == 0 and head.previous < self.first):
            raise ConfigurationError(
                f"{self._path(number)}: it follows segment {head.previous}, but segment {self._last_used} is there; "
                "these are not the files of one journal, so restore the folder from a copy"
            )

    def _recover_one(self, number: int, end: int | None, newest: bool, take: Take, lost: Lost) -> None:
        """Read one segment. `end` is how far it was acknowledged; None: nothing says so, and an older one is whole."""
        path = self._path(number)
        octets = memoryview(_mapped(path))
        segment = self._by_number[number] = Segment(path, number, HEAD_SIZE)
        scan = Scan(octets if newest else octets[:end], len(octets) if end is None and not newest else end or 0)
        used, whole = False, True
        for found in scan.frames():
            used = True
            if isinstance(found, Hole):
                whole = False
                lost(path, number, found)
            else:
                take(segment, found)
        if used:
            self._last_used, self._last_end = number, scan.end
        segment.end = segment.durable = scan.end
        segment.room = max(len(octets), HEAD_SIZE)
        if not newest or not whole:
            return
        if scan.torn():
            log.warning("%s: cut a torn tail of %d octets that nobody was told of", path, len(octets) - scan.end)
        segment.seal()

    def _begin(self, number: int) -> None:
        path = self._path(number)
        try:
            write_synced(path, encode_head(Head(number, self._last_used, self._last_end)))
            sync_folder(self._folder)
        except OSError:
            path.unlink(missing_ok=True)  # the segment before it may still be written, so it must stay the last
            raise
        self.newest = self._by_number[number] = Segment(path, number, HEAD_SIZE)
        self._write_mark()  # so that its number is known to be taken even if the file is lost before an append

    def _remove_unused(self, heads: Mapping[int, Head | None]) -> None:
        """Remove segments with a head alone, which starts without appends leave; never the newest, whose number counts.

        One with a damaged head stays, or what may be lost with it would be forgotten.
        """
        for number, segment in list(self._by_number.items()):
            if segment.end == HEAD_SIZE and heads.get(number) is not None:
                segment.close()
                segment.path.unlink()
                del self._by_number[number]

    def _write_mark(self) -> None:
        fields = _MARK.pack(self.newest.number, self.newest.durable, 0)[:-4]
        os.pwrite(self._mark, fields + struct.pack(">I", crc32(fields)), 0)

    def _read_mark(self) -> tuple[int, int]:
        octets = os.pread(self._mark, _MARK.size, 0)
        if len(octets) < _MARK.size or crc32(octets[:-4]) != _MARK.unpack(octets)[2]:
            return 0, 0
        number, durable, _ = _MARK.unpack(octets)
        return number, durable

    def _read_first(self) -> int:
        path = self._folder / "first"
        if not path.exists():
            return 1
        octets = path.read_bytes()
        first = int.from_bytes(octets[:8], "big")
        if len(octets) != 12 or crc32(octets[:8]) != struct.unpack(">I", octets[8:])[0] or first == 0:
            raise ConfigurationError(f"{path}: damaged; restore it from a copy")
        return first

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}{_SUFFIX}"


def _opened_mark(path: Path) -> int:
    """The mark's file, with its room taken: to write a mark never asks the disk for more. Raises ConfigurationError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, _MARK.size)
    except OSError as fault:
        os.close(fd)
        raise ConfigurationError(f"{path}: cannot be written: {fault.strerror}") from None
    return fd


def _mapped(path: Path) -> bytes | mmap.mmap:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
