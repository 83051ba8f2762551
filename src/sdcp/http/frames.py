"""Cuts the bytes of an HTTP/2 connection into whole frames (RFC 9113 section 4.1) before the library sees them.

ngh2 0.3 gathers the parts of a DATA frame, and when we reset its stream in their midst it forgets them without giving
their window back: a connection on which enough bodies were refused would stand still. Fed whole frames, it has no part
to forget.
"""

from __future__ import annotations

CLIENT_PREFACE = 24  # octets that a client sends before its first frame (RFC 9113 section 3.4)
MAX_FRAME = 16 * 1024  # SETTINGS_MAX_FRAME_SIZE as we leave it
_HEAD = 9


class WholeFrames:
    """Holds back the beginning of a frame until the frame is whole: at most MAX_FRAME octets and a head."""

    __slots__ = ("_begun", "_skip", "_wanted")

    def __init__(self, skip: int) -> None:
        """`skip` octets come before the first frame."""
        self._skip = skip
        self._begun = bytearray()
        self._wanted = skip + _HEAD  # how long `_begun` must be before there is anything new to see in it

    def cut(self, data: bytes | bytearray) -> bytes | bytearray | memoryview:
        """All that is whole by now. A frame that is longer than we allow is passed on at once, to be refused."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._wanted:
                return b""
            data, self._begun = self._begun, bytearray()
        whole = self._whole(data)
        if whole < len(data):
            view = memoryview(data)  # bodies pass here: nothing of them is copied but what waits
            self._begun += view[whole:]
            return view[:whole]
        return data

    def _whole(self, data: bytes | bytearray) -> int:
        """The length of what is whole at the head of `data`."""
        at, end = self._skip, len(data)
        if at > end:
            return 0
        self._wanted = _HEAD
        while at + _HEAD <= end:
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if size > MAX_FRAME:
                at = end
            elif at + _HEAD + size > end:
                self._wanted = _HEAD + size
                break
            else:
                at += _HEAD + size
        self._skip = 0
        return at
