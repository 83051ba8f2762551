"""Where the appends of one log lie in the journal, and how they are read again (6.8, D47).

A place is a segment's number, then 40 bits of offset in it. What is read is checked against the CRC that was computed
when it was appended; what precedes damage stays readable, and the damage stays known.

Not here: which logs there are, and what is appended (`sdcp.stores.journal`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

from sdcp.ports import StoreUnavailableError
from sdcp.stores.frames import Frame
from sdcp.stores.segment import Segment, log
from sdcp.stores.store import LogState

_OFFSET_BITS = 40


def place_of(segment: int, offset: int) -> int:
    """The place of an octet; a later one is greater."""
    return segment << _OFFSET_BITS | offset


def segment_of(place: int) -> int:
    """The number of the segment of a place."""
    return place >> _OFFSET_BITS


@dataclass(slots=True)
class LogIndex:
    """Of each append its offset in the log, its place and its CRC. `intact`: when there is damage, what precedes it."""

    name: str
    state: LogState
    starts: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))
    crcs: array[int] = field(default_factory=lambda: array("I"))
    damage: str | None = None
    intact: int = 0

    @property
    def first_segment(self) -> int:
        """The segment of the first append."""
        return segment_of(self.places[0])

    @property
    def last_segment(self) -> int:
        """The segment of the last append."""
        return segment_of(self.places[-1])

    def add(self, frame: Frame, segment: int, payload: int, crc: int) -> None:
        """Enter an append; the state goes last, since readers go by it."""
        self.crcs.append(crc)
        self.places.append(place_of(segment, payload))
        self.starts.append(frame.start)
        self.state = frame.state

    def note_damage(self, intact: int, what: str) -> None:
        """Note damage behind `intact` octets, unless some is known that comes before it."""
        if self.damage and self.intact <= intact:
            return
        self.intact = intact
        self.damage = (
            f"log {self.name!r} is intact up to octet {intact}; {what}; "
            "until the file is restored from a copy its intact octets are read and nothing is appended"
        )
        log.error("%s", self.damage)

    def read(self, start: int, stop: int | None, segment: Callable[[int], Segment | None]) -> tuple[bytes, LogState]:
        """Octets `start` to `stop` (None: to the end), and the state they belong to.

        Fewer when there is damage, known before or found now. StoreUnavailableError.
        """
        state = self.state
        size = self.intact if self.damage else state.size
        stop = size if stop is None else min(stop, size)
        pieces: list[bytes] = []
        at = max(0, bisect_right(self.starts, start) - 1)
        base = covered = self.starts[at]
        while covered < stop:
            end = min(self.starts[at + 1], size) if at + 1 < len(self.starts) else size
            payload = self._payload(at, end - covered, segment)
            if payload is None:
                break
            pieces.append(payload)
            covered, at = end, at + 1
        return b"".join(pieces)[max(0, start - base) : max(start, stop) - base], state

    def _payload(self, at: int, size: int, segment: Callable[[int], Segment | None]) -> bytes | None:
        """The octets of one append; None when they are damaged, which is noted."""
        place = self.places[at]
        file, offset = segment(segment_of(place)), place & (1 << _OFFSET_BITS) - 1
        if file is None:
            raise StoreUnavailableError(f"log {self.name!r} was forgotten while it was being read")
        try:
            octets = file.read(offset, size)
        except OSError as fault:
            raise StoreUnavailableError(f"log {self.name!r} cannot be read: {fault.strerror}") from None
        if crc32(octets) != self.crcs[at]:
            self.note_damage(self.starts[at], f"what follows is damaged at octet {offset} of {file.path}")
            return None
        return octets
