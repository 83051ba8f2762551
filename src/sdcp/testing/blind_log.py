"""The log of a verifier of another make, at a store that takes any conditional append (6.8 last sentence).

It keeps 6.8 by the letter: each append is conditional on the log as read last, and after it the log is read. But it
never looks at what it reads before it appends again. So its records come to stand behind fences, void, where readers
and the writers of higher epochs meet them. Ours leaves none (`sdcp.machines.commit_log`), since it looks first.

Not here: stores that refuse stale epochs.
"""

from __future__ import annotations

from typing import Any

from sdcp.machines.commit_log import TIMER, Fenced, Recorded, Step
from sdcp.machines.effects import AppendLog, ReadLog, SetTimer
from sdcp.machines.inputs import LogAppended, LogRead, LogUnanswered
from sdcp.machines.reader import LogReader
from sdcp.messages.record import CommitRecord
from sdcp.wire import cbor


class BlindLog:
    """In place of `CommitLog`. With `enforces_fences` it does not read back: wrong at such a store."""

    def __init__(self, ref: str, epoch: int, reader: LogReader, etag: str | None, *, enforces_fences: bool) -> None:
        self._ref = ref
        self._epoch = epoch
        self._size = reader.size
        self._etag = etag
        self._trusts = enforces_fences
        self._data = b""

    def append(self, record: CommitRecord) -> Step:
        """Send a record on its way."""
        self._data = record.encode()
        return self._send()

    def handle(self, answer: Any) -> Step:
        """Take the answer to the effect."""
        match answer:
            case LogAppended() if self._trusts:
                start, self._size = self._size, self._size + len(self._data)
                self._etag = answer.etag
                return [], Recorded(start, None)
            case LogRead():
                return self._examine(answer)
            case LogUnanswered():
                return [SetTimer(TIMER, 1)], None
        return [ReadLog(self._ref, 0)], None

    def _send(self) -> Step:
        return [AppendLog(self._ref, self._data, self._etag)], None

    def _examine(self, answer: LogRead) -> Step:
        """Find its own record; its append has failed if a higher fence precedes it."""
        self._size, self._etag = len(answer.data), answer.etag
        start = fence = 0
        for end, value in cbor.decode_sequence(answer.data):
            assert isinstance(value, dict)
            if answer.data[start:end] == self._data:
                return [], Fenced() if fence > self._epoch else Recorded(start, None)
            fence = fence if "round" in value else max(fence, value["epoch"])
            start = end
        return self._send()
