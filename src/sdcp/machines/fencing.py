"""Fence first, then read (6.8, 6.9): how a router takes a session from the verifier that served it. Sans-IO.

A fence carries only an epoch, so it is never recognized as one's own (D19, docs/mlc.md): a router without an answer
that says *appended* reads the log again and fences above every epoch in it. The last record that counts is the one
read after the fence, because up to the fence the old verifier may still commit.

Not here: what happens with what was read (`sdcp.machines.router`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from sdcp.errors import InvalidContent
from sdcp.machines.effects import AppendLog, CancelTimer, ReadLog, SetTimer
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, LogUnanswered, TimerFired
from sdcp.machines.recorded import Recorded
from sdcp.messages.fields import U64_MAX
from sdcp.messages.record import FenceRecord

TIMER = "fence"
IMMEDIATE_ATTEMPTS = 8  # a verifier that still commits moves the log; after so many races, give it a moment

LOG_DAMAGED = "The commit log is damaged: records that were acknowledged cannot be read."
"""To peers; which octets of which file, a cache says in its log alone."""

Effects = Sequence[Any]


class _Step(Enum):
    LOOKING = auto()  # for the log's entity tag and the epochs in it
    FENCING = auto()  # the append is out
    READING = auto()  # the fence is in: now what was committed before it
    DONE = auto()


class Fencing:
    """One fence. `epoch` is the one it takes; `done` once the log, read after it, shows it as the highest fence.

    `waited_ms` is how long it has waited for the log in all.
    """

    def __init__(self, recorded: Recorded, ref: str, above: int, retry_ms: int) -> None:
        """`above`: the highest epoch that the router has used for the session."""
        self._recorded = recorded
        self._ref = ref
        self._retry_ms = retry_ms
        self._step = _Step.LOOKING
        self._attempts = 0
        self._above = above
        self.epoch = above
        self.waited_ms = 0

    @property
    def done(self) -> bool:
        """Whether the fence is in and everything before it is read."""
        return self._step is _Step.DONE

    def begin(self) -> Effects:
        """Look at the log."""
        self._step = _Step.LOOKING
        return [ReadLog(self._ref, self._recorded.end)]

    def handle(self, event: object) -> Effects:
        """Take one answer of the log, or the timer. Raises InvalidContent for a log that is no chain or lost octets."""
        match event:
            case LogRead():
                self._recorded.take(event.start, event.data, event.etag)
                return self._pause() if self._recorded.missing else self._read()
            case LogAppended() if self._step is _Step.FENCING:
                self._step = _Step.READING
                return [ReadLog(self._ref, self._recorded.end)]
            case LogMoved() | LogFenced() if self._step is _Step.FENCING:
                self._attempts += 1
                return self.begin() if self._attempts % IMMEDIATE_ATTEMPTS else self._pause()
            case LogUnanswered(damage=str()):
                raise InvalidContent(LOG_DAMAGED)
            case LogUnanswered():
                return self._pause()
            case TimerFired(name=name) if name == TIMER and not self.done:
                return [ReadLog(self._ref, self._recorded.end)]
        return []

    def _read(self) -> Effects:
        if self._step is _Step.LOOKING:
            self._step = _Step.FENCING
            self.epoch = self._next_epoch()
            return [AppendLog(self._ref, FenceRecord(epoch=self.epoch).encode(), self._recorded.etag)]
        if self._step is not _Step.READING:
            return []
        if self._recorded.fence > self.epoch:  # somebody else has fenced since: above that one too
            return self.begin()
        if self._recorded.fence < self.epoch:  # asked before the fence was in, or the fence was lost
            return self._pause()
        self._step = _Step.DONE
        return [CancelTimer(TIMER)]

    def _next_epoch(self) -> int:
        """One above every epoch there was; a log may hold the last one that a record can bear, whoever wrote it."""
        epoch = max(self._above, self._recorded.highest) + 1
        if epoch > U64_MAX:
            raise InvalidContent("The commit log cannot be fenced any more: its epoch is the last one there is.")
        return epoch

    def _pause(self) -> Effects:
        """An append without an answer may be in the log all the same: look again before the next one."""
        if self._step is _Step.FENCING:
            self._step = _Step.LOOKING
        self.waited_ms += self._retry_ms
        return [SetTimer(TIMER, self._retry_ms)]
