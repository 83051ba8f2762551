"""Writing one session's commit log: conditional appends that survive lost answers and respect fences (6.8, mlc).

One record is on its way at a time. Whatever happens to it, it ends in exactly one of two outcomes: `Recorded`, it is
durable and valid, or `Fenced`, it never will be and the session must stop (6.3 step 8). Until then the same record is
repeated and never abandoned (D27). Words (valid, void, fence) as in `reader`.

    append ──▶ AppendLog ──LogAppended──▶ Recorded        (a store without fences: read back first, 6.8)
                 │  ▲  ├───LogFenced────▶ Fenced          (after an append without an answer: read first)
        LogMoved │  │  └─LogUnanswered──▶ wait, longer each time ─┐
                 ▼  │ only void records since                     │
               ReadLog ◀──────────────────────────────────────────┘
                 ├── our own record, valid, whatever follows behind a fence ─▶ Recorded
                 └── a higher fence, or a valid record that is not ours ─────▶ Fenced

We are stricter than 6.8 in one point: a log that vanished, lost octets (D47), or has a tail that cannot be read, counts
as fenced.
An answer to another effect than the one outstanding changes nothing.
Not here: what a record says, and the octets' way to the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sdcp.errors import MalformedBody
from sdcp.machines.effects import AppendLog, ReadLog, SetTimer
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, LogUnanswered, TimerFired
from sdcp.machines.reader import LogReader
from sdcp.messages.record import CommitRecord

TIMER = "log"
RETRY_FIRST_MS = 50
RETRY_MOST_MS = 5_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record is durable and valid; it starts at octet `start`. `load` as in LogAppended, when that told it."""

    start: int
    load: int | None


@dataclass(frozen=True, slots=True)
class Fenced:
    """The record is not, and never will be, a valid part of the log."""


Effect: TypeAlias = AppendLog | ReadLog | SetTimer
Answer: TypeAlias = LogAppended | LogMoved | LogFenced | LogUnanswered | LogRead | TimerFired
Step: TypeAlias = tuple[list[Effect], Recorded | Fenced | None]


class CommitLog:
    """The log of one session, read up to now by `reader` (its `etag` then), written under `epoch`."""

    def __init__(
        self, ref: str, epoch: int, reader: LogReader, etag: str | None, *, enforces_fences: bool = True
    ) -> None:
        self.ref = ref
        self._epoch = epoch
        self._reader = reader
        self._etag = etag
        self._enforces_fences = enforces_fences
        self._record: CommitRecord | None = None
        self._data = b""
        self._load: int | None = None
        self._awaited: Effect | None = None
        self._delay_ms = RETRY_FIRST_MS
        self._doubtful = False  # whether the record may be in the log without our knowing

    @property
    def awaited(self) -> Effect | None:
        """The effect whose answer moves the record on; None when none is on its way."""
        return self._awaited

    def append(self, record: CommitRecord) -> Step:
        """Send a record on its way; none other may be on its way now."""
        if self._record is not None:
            raise RuntimeError("a record is on its way already")
        self._record, self._data, self._load = record, record.encode(), None
        return self._send()

    def handle(self, answer: Answer) -> Step:
        """Take the answer to an effect; one that nothing waits for changes nothing."""
        match self._awaited, answer:
            case AppendLog(), LogAppended() if self._enforces_fences:
                return self._appended(answer)
            case AppendLog(), LogAppended():
                self._load = answer.load
                return self._read()
            case AppendLog(), LogFenced() if self._doubtful:
                self._doubtful = False  # a copy of before the fence may be in the log, but none comes after it
                return self._read()
            case AppendLog(), LogFenced():
                return self._end(Fenced())
            case (AppendLog(), LogMoved()) | (SetTimer(), TimerFired()):
                return self._read()
            case ((AppendLog() | ReadLog()), LogUnanswered(damage=str())):
                return self._end(Fenced())
            case ((AppendLog() | ReadLog()), LogUnanswered()):
                self._doubtful = True
                return self._wait()
            case ReadLog(), LogRead() if self._record is not None:
                return self._examine(self._record, answer)
        return [], None

    def _send(self) -> Step:
        if self._reader.fence > self._epoch:  # seen behind our last record: a store need not know
            return self._end(Fenced())
        return self._ask(AppendLog(self.ref, self._data, self._etag))

    def _read(self) -> Step:
        return self._ask(ReadLog(self.ref, self._reader.size))

    def _wait(self) -> Step:
        delay_ms, self._delay_ms = self._delay_ms, min(2 * self._delay_ms, RETRY_MOST_MS)
        return self._ask(SetTimer(TIMER, delay_ms))

    def _ask(self, effect: Effect) -> Step:
        self._awaited = effect
        return [effect], None

    def _appended(self, answer: LogAppended) -> Step:
        start = self._reader.size
        self._reader.size += len(self._data)  # read by its writer
        self._etag = answer.etag
        return self._end(Recorded(start, answer.load))

    def _examine(self, record: CommitRecord, answer: LogRead) -> Step:
        """Look at all that stands in the log since we last knew it (6.8 last sentence)."""
        if answer.etag is None and self._reader.size:
            return self._end(Fenced())
        try:
            entries = list(self._reader.entries(answer.data))
        except MalformedBody:
            return self._end(Fenced())
        self._etag = answer.etag
        valid = [entry for entry in entries if isinstance(entry.record, CommitRecord) and not entry.void]
        if not valid:
            return self._send()
        alone = len(valid) == 1 or self._reader.fence > self._epoch  # what follows it is behind a fence, by others
        if valid[0].record == record and alone:  # of equal epoch, round and digest, but from another life: not ours
            return self._end(Recorded(valid[0].start, self._load))
        return self._end(Fenced())

    def _end(self, outcome: Recorded | Fenced) -> Step:
        self._record = self._awaited = None
        self._data, self._delay_ms, self._doubtful = b"", RETRY_FIRST_MS, False
        return [], outcome
