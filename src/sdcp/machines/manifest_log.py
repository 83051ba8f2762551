"""Writing one session's manifest: conditional appends that survive lost answers and find out about other writers (D45).

Records wait until the append before them is durable, and then go out together. The entity tag is what protects them:
whoever finds records that it did not write has lost the session. But who takes a session up takes in what it finds,
until its own record of that is durable: a dead life's last append may still arrive. A log that vanished is a cache that
lost its memory: then nothing is kept any more, and the session goes its way without.

    write ──▶ AppendManifest ──LogAppended──▶ durable
                │  ▲  └─LogUnanswered─▶ wait, longer each time ─┐
       LogMoved │  │ nothing new                                │
                ▼  │                                            │
    look ──▶ ReadManifest ◀─────────────────────────────────────┘
                ├── our own records alone ─▶ durable
                └── records of others ─────▶ lost (taking up: take them in, append again)

Not here: what the records say (`manifest`), and what has to wait for them (`router_kept`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from sdcp.errors import ProblemError
from sdcp.machines.effects import AppendManifest, ReadManifest, SetTimer
from sdcp.machines.inputs import LogAppended, LogRead, LogUnanswered
from sdcp.machines.manifest import Manifest
from sdcp.messages.manifest import AssignedRecord, ManifestRecord, PromptRecord, RequestRecord

TIMER = "manifest"
RETRY_FIRST_MS = 50
RETRY_MOST_MS = 5_000

Effects = list[Any]


class ManifestLog:
    """The log at `ref`, a new one or one that was read: `told` is what it says, `etag` its entity tag then.

    `awaited`: the effect whose answer is waited for. `lost`: somebody else writes the manifest.
    """

    def __init__(self, ref: str, told: Manifest | None = None, etag: str | None = None) -> None:
        self.ref = ref
        self._told = told  # until our first append is durable
        self.awaited: AppendManifest | ReadManifest | SetTimer | None = None
        self.lost = False
        self._vanished = False
        self._size, self._number = (told.size, told.last) if told is not None else (0, 0)
        self._etag = etag
        self._records: deque[ManifestRecord] = deque()
        self._batch: list[ManifestRecord] = []  # what is being appended, and as octets:
        self._sent = b""
        self._looks = False
        self._delay_ms = RETRY_FIRST_MS

    @property
    def settled(self) -> bool:
        """Whether all that anybody waits for, which no assignment is, is durable, and who wanted a look has had it."""
        waited_for = any(not isinstance(each, AssignedRecord) for each in (*self._batch, *self._records))
        return self._vanished or not (waited_for or self._looks)

    def write(self, record: ManifestRecord) -> None:
        """Let a record be appended; it gets its number then."""
        self._records.append(record)

    def look(self) -> None:
        """Let it be found out whether somebody else writes."""
        self._looks = True

    def go(self) -> Effects:
        """Return what has to be done now, if nothing is under way."""
        if self.awaited is not None or self._vanished or self.lost:
            return []
        if not self._records:
            return self._read() if self._looks else []
        # One at a time while a long prompt is on its way; else all that there is.
        long = any(isinstance(record, RequestRecord | PromptRecord) for record in self._records)
        self._batch = [self._records.popleft() for _ in range(1 if long else len(self._records))]
        self._encode()
        return self._append()

    def _encode(self) -> None:
        numbered = (replace(each, epoch=self._number + place) for place, each in enumerate(self._batch, start=1))
        self._sent = b"".join(each.encode() for each in numbered)

    def handle(self, answer: object) -> Effects:
        """Take the answer to what is awaited, or its timer."""
        match answer:
            case LogAppended(etag=etag):
                self._durable(etag)
                return self.go()
            case LogUnanswered():
                delay_ms, self._delay_ms = self._delay_ms, min(2 * self._delay_ms, RETRY_MOST_MS)
                return self._ask(SetTimer(TIMER, delay_ms))
            case LogRead():
                return self._found(answer)
        return self._read()  # it has moved, or time to try again

    def _found(self, read: LogRead) -> Effects:
        self.awaited = None
        if read.etag is None and self._size:
            self._vanished = True
            return []
        self._etag = read.etag
        if read.data == self._sent:
            self._durable(read.etag)
            return self.go()
        self.lost = bool(read.data) and not self._takes_in(read.data)
        return [] if self.lost else self._append()

    def _takes_in(self, data: bytes) -> bool:
        """Whether these records of others change nothing about who has the session."""
        if self._told is None:
            return False
        try:
            self._told.take(data)
        except ProblemError:
            return False
        self._size, self._number = self._told.size, self._told.last
        self._encode()
        return True

    def _durable(self, etag: str | None) -> None:
        self._size += len(self._sent)
        self._number += len(self._batch)
        self._batch = []
        self._etag, self._sent, self.awaited, self._told = etag, b"", None, None
        self._looks = False  # the append had its condition
        self._delay_ms = RETRY_FIRST_MS

    def _append(self) -> Effects:
        return self._ask(AppendManifest(self.ref, self._sent, self._etag))

    def _read(self) -> Effects:
        return self._ask(ReadManifest(self.ref, self._size))

    def _ask(self, effect: AppendManifest | ReadManifest | SetTimer) -> Effects:
        self.awaited = effect
        return [effect]
