"""How appends lie in a segment of the journal, and how a segment is read again after a crash.

A segment is a head, then frames, then perhaps zeros (room taken in advance). A frame is one append to one log:

    magic, sizes, version, start, fence, epoch, durable, CRC of the payload, CRC of all of this | name | payload

Both checksums are CRC-32. The header's own lets a frame with a bad payload still name its log. `durable` is how much of
the segment was on disk for certain when the frame was written; that is what tells the two ways of being broken apart:

- *torn*: what was being written when the power went, never acknowledged. It may be cut off;
- *damaged*: it lies below some frame's `durable`, below the mark that the writer keeps beside the segments, or below
  the end that the next segment's head tells of this one. It was acknowledged, so it must not vanish: a bad payload
  damages its log, and octets that are no frame are a *hole*, in which any log may have gone on.

Not here: files being written (`sdcp.stores.journal`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from sdcp.stores.store import LogState

MAGIC = b"\xa5SJ1"
_HEADER = struct.Struct(">4sHBIQQQQQII")  # magic, name, flags, payload, version, start, fence, epoch, durable, CRCs
_CRC = struct.Struct(">I")
_FENCED = 1
_HEAD = struct.Struct(">8sQQQI")  # magic, number, previous, where the previous ends, CRC of all of this
_HEAD_MAGIC = b"SDCPJRN2"
HEAD_SIZE = _HEAD.size
_WINDOW = 1 << 16  # octets that are searched at once


@dataclass(frozen=True, slots=True)
class Frame:
    """One append: `start` is its offset in its log, `state` the log after it."""

    name: str
    start: int
    state: LogState


class Found(NamedTuple):
    """A frame read again: where its payload begins in the segment, its CRC, and whether it is what was written."""

    frame: Frame
    payload: int
    crc: int
    intact: bool


class Hole(NamedTuple):
    """Acknowledged octets of a segment, from `start` to `stop`, that cannot be read and name no log."""

    start: int
    stop: int


class Head(NamedTuple):
    """What begins a segment: its number, the last segment before it that holds frames (0: none), and that one's end."""

    number: int
    previous: int
    previous_end: int


def encode_head(head: Head) -> bytes:
    """The octets of a segment's head."""
    fields = _HEAD.pack(_HEAD_MAGIC, *head, 0)[: -_CRC.size]
    return fields + _CRC.pack(crc32(fields))


def decode_head(octets: bytes) -> Head | None:
    """A segment's head, or None when it was never written whole."""
    if len(octets) < HEAD_SIZE or crc32(octets[: HEAD_SIZE - _CRC.size]) != _CRC.unpack_from(octets, HEAD_SIZE - 4)[0]:
        return None
    magic, number, previous, previous_end, _ = _HEAD.unpack_from(octets)
    return Head(number, previous, previous_end) if magic == _HEAD_MAGIC else None


def encode_frame(frame: Frame, payload: bytes, durable: int) -> tuple[bytes, int, int]:
    """Return the frame's octets, the offset of the payload in them, and the payload's CRC."""
    name, state = frame.name.encode("ascii"), frame.state
    flags = 0 if state.fence is None else _FENCED
    crc = crc32(payload)
    header = _HEADER.pack(
        MAGIC,
        len(name),
        flags,
        len(payload),
        state.version,
        frame.start,
        state.fence or 0,
        state.epoch,
        durable,
        crc,
        0,
    )[: -_CRC.size]
    header += _CRC.pack(crc32(name, crc32(header)))
    return header + name + payload, len(header) + len(name), crc


@dataclass(slots=True)
class Scan:
    """Reads the frames of one segment. After the iteration `end` is where the next frame would begin.

    `mark` is how far the segment is known to be durable (0: nothing known); it may lie beyond the octets there are.
    """

    octets: memoryview
    mark: int
    end: int = HEAD_SIZE

    def frames(self) -> Iterator[Found | Hole]:
        """Yield the frames, and the holes between and after them, up to the end or the torn tail."""
        durable = self._durable()
        while True:
            header = self._header(self.end)
            if header is not None:
                found, after = self._found(header)
                if not found.intact and self.end >= durable:
                    break  # torn: neither it nor what was written with it was acknowledged
                yield found
                self.end = after
            elif self.end < durable:
                hole = Hole(self.end, self._next_frame(self.end + 1, durable))
                yield hole
                self.end = hole.stop
            else:
                break

    def torn(self) -> bool:
        """Whether anything but zeros lies beyond the end."""
        return any(any(self.octets[at : at + 65536]) for at in range(self.end, len(self.octets), 65536))

    def _durable(self) -> int:
        """How much of the segment was durable for certain: what the mark or some frame says."""
        if self.mark >= len(self.octets):
            return self.mark
        at, durable = HEAD_SIZE, self.mark
        while (at := self._find_magic(at)) >= 0:
            header = self._header(at)
            if header is None:
                at += 1  # the magic within a payload
                continue
            durable = max(durable, min(header.durable, at))
            at = header.after
        return durable

    def _next_frame(self, at: int, durable: int) -> int:
        """Where the next frame begins, if one does before `durable`; else `durable`."""
        while 0 <= (at := self._find_magic(at)) < durable:
            if self._header(at) is not None:
                return at
            at += 1
        return durable

    def _find_magic(self, at: int) -> int:
        """Where MAGIC comes next, or -1."""
        for start in range(at, len(self.octets), _WINDOW):
            found = bytes(self.octets[start : start + _WINDOW + len(MAGIC) - 1]).find(MAGIC)
            if found >= 0:
                return start + found
        return -1

    def _header(self, at: int) -> _Header | None:
        if at + _HEADER.size > len(self.octets):
            return None
        magic, name_size, flags, size, version, start, fence, epoch, durable, crc, own = _HEADER.unpack_from(
            self.octets, at
        )
        name_at = at + _HEADER.size
        payload = name_at + name_size
        checked = crc32(self.octets[name_at:payload], crc32(self.octets[at : name_at - _CRC.size]))
        name = bytes(self.octets[name_at:payload])
        if magic != MAGIC or checked != own or payload + size > len(self.octets) or not name.isascii():
            return None
        state = LogState(version, start + size, fence if flags & _FENCED else None, epoch)
        frame = Frame(name.decode("ascii"), start, state)
        return _Header(frame, payload, payload + size, crc, durable)

    def _found(self, header: _Header) -> tuple[Found, int]:
        intact = crc32(self.octets[header.payload : header.after]) == header.crc
        return Found(header.frame, header.payload, header.crc, intact), header.after


class _Header(NamedTuple):
    frame: Frame
    payload: int
    after: int
    crc: int
    durable: int
