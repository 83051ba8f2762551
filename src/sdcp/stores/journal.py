"""The logs of the durable store: one journal for all of them, written by one thread (6.8, docs/mlc.md).

An append is answered when `fdatasync` has returned. All appends that wait when the thread comes back from the disk
share the next write and the next sync, whatever logs they belong to: one log alone never has two appends under way,
since each is conditional on the one before. The thread also decides (version, fence, epoch), one append after another,
so no lock orders them, and nothing of a batch is visible before it is durable.

An append costs its record, a read costs what it returns: an index in memory holds, for each append, where it lies.
At the start the index is made again from the headers of the frames and every checksum is checked. A log with damage
among its acknowledged octets is named (D47): what precedes the damage is read, as part of an error that says so, and
nothing is appended; the others go on. After a hole, which may be of any log, a log counts as damaged unless a later
frame of it shows that it lost nothing there; and no log may begin that looks as if it went on.

After a failed write or sync nobody knows what is on disk: then no append is taken until a restart has read it again.
A full disk is no such failure. It shows when room is taken, before anything is written.

Nothing in the protocol says when nobody will read a log any more, so logs go by age alone (`forget`), and segments go
when they hold no log that stays. What is left of a log whose beginning is gone is passed over at the start; logs that
were forgotten and lie in segments that stay come back with a restart, to be forgotten again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sdcp.ports import LogDamagedError, LogMovedError, StoreFullError, StoreUnavailableError
from sdcp.stores.frames import Found, Frame, Hole, encode_frame
from sdcp.stores.log_index import LogIndex, place_of, segment_of
from sdcp.stores.records import NO_RECORDS, advance
from sdcp.stores.segment import DISK_FULL, Segment, log
from sdcp.stores.segments import Segments, Sizes
from sdcp.stores.store import LogState

RUN_SHIFT = 40
"""A version is the number of the segment that this run began with, then 40 bits counted in the run."""
_BATCH = 256  # appends that share a sync at most, so that the first of them does not wait for a crowd
_FIRST_EPOCH = 1  # a session's log begins with it, one that is taken over is fenced above it (6.8, 6.9)
MakeRoom = Callable[[int, bool], bool]


@dataclass(slots=True)
class _Append:
    log: str
    data: bytes
    version: int | None
    answer: asyncio.Future[LogState]
    loop: asyncio.AbstractEventLoop


@dataclass(frozen=True, slots=True)
class _Forget:
    before: float


Outcome = LogState | Exception


class Journal:
    """Logs in `folder`. `append` is awaited on a loop; `state` and `read` may be called from any thread."""

    def __init__(
        self, folder: Path, *, sizes: Sizes | None = None, make_room: MakeRoom = lambda octets, disk_full: not disk_full
    ) -> None:
        """Read the folder, or begin one. `make_room(octets, disk_full)` is asked, in the journal's thread, to allow
        its growth, and after the disk was found full, to free so many octets on it.

        Raises ConfigurationError when the files are not those of one journal.
        """
        self._logs: dict[str, LogIndex] = {}
        self._damaged: set[str] = set()
        self._holes: list[tuple[int, str]] = []  # place and description of each, in order
        self._segments = Segments(folder, sizes or Sizes())
        self._segments.recover(self._recovered, self._lost)
        self._suspect_logs()
        self.versions = count((self._segments.newest.number << RUN_SHIFT) + 1)
        self.syncs = self.appends = 0
        self.octets = sum(index.state.size for index in self._logs.values())
        self._make_room = make_room
        self._failure: str | None = None
        self._queue: queue.SimpleQueue[_Append | _Forget | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sdcp-journal", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def room(self) -> int:
        """Octets that the journal takes on disk."""
        return self._segments.room

    @property
    def damaged(self) -> list[str]:
        """Names of the logs that are refused."""
        return sorted(self._damaged)

    async def append(self, name: str, data: bytes, version: int | None) -> LogState:
        """See `Store.append`. Cancelling the wait leaves it unknown whether the append was done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[LogState] = loop.create_future()
        self._queue.put(_Append(name, data, version, answer, loop))
        return await answer

    def state(self, name: str) -> LogState | None:
        """See `Store.log_state`."""
        index = self._logs.get(name)
        if index is None:
            if self._holes:
                raise LogDamagedError(f"there is no log {name!r}, but one may be lost: {self._holes[-1][1]}", 0)
            return None
        if index.damage:
            raise LogDamagedError(index.damage, index.intact)
        return index.state

    def read(self, name: str, start: int, stop: int | None) -> tuple[bytes, LogState | None]:
        """See `Store.read_log`. Blocks on the disk for as long as it takes."""
        index = self._logs.get(name)
        if index is None:
            return b"", self.state(name)
        data, state = index.read(start, stop, self._segments.get)
        if index.damage:
            self._damaged.add(name)  # perhaps found just now
            raise LogDamagedError(index.damage, index.intact, data)
        return data, state

    def names(self) -> list[str]:
        """Names of all logs, also of those that are refused."""
        return list(self._logs)

    def size_of(self, name: str) -> tuple[int, int] | None:
        """Octets and version of a log, also of one that is refused; None when there is none."""
        index = self._logs.get(name)
        return None if index is None else (index.state.size, index.state.version)

    def forget(self, before: float) -> None:
        """Remove logs that were appended to last before `before` (seconds since the epoch); give or take a segment.

        It is done in the journal's thread, some time soon.
        """
        self._queue.put(_Forget(before))

    def close(self) -> None:
        """Finish the appends that wait, then close the files."""
        self._queue.put(None)
        self._thread.join()
        self._segments.close()

    # -- the start, and reading ---------------------------------------------------------------------------------------

    def _recovered(self, segment: Segment, found: Found) -> None:
        frame = found.frame
        index = self._logs.get(frame.name)
        if index is None and frame.start and self._segments.first > 1 and not self._holes:
            return  # its beginning was forgotten, so it was; lost it cannot be, since there is no hole before it
        if index is None or not frame.start:  # also when it was forgotten and then begun anew
            index = self._logs[frame.name] = LogIndex(frame.name, frame.state)
            self._damaged.discard(frame.name)
            expected = 0
        else:
            expected = index.state.size
        if frame.start >= expected:  # or the index could not be searched
            index.add(frame, segment.number, found.payload, found.crc)
        where = f"at octet {found.payload} of {segment.path}"
        if frame.start != expected:
            self._note_damage(index, expected, f"what comes {where} does not follow it")
        elif not found.intact:
            self._note_damage(index, expected, f"what follows is damaged {where}")

    def _lost(self, path: Path, number: int, hole: Hole) -> None:
        what = f"octets {hole.start} to {hole.stop} of {path} cannot be read, and they were acknowledged"
        log.error("%s: restore the file from a copy", what)
        self._holes.append((place_of(number, hole.start), what))

    def _suspect_logs(self) -> None:
        """After the start: a log without a frame after the last hole may have gone on in one."""
        for index in self._logs.values():
            hole = next((what for place, what in self._holes if place > index.places[-1]), None)
            if hole is not None:
                self._note_damage(index, index.state.size, f"it may have gone on where {hole}")

    def _note_damage(self, index: LogIndex, intact: int, what: str) -> None:
        index.note_damage(intact, what)
        self._damaged.add(index.name)

    # -- the writing thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        while running:
            waiting: list[_Append] = []
            running = self._gather(waiting)
            while waiting:
                waiting = self._commit(waiting)

    def _gather(self, waiting: list[_Append]) -> bool:
        """Wait for one append, take those that wait with it; tell whether more may come."""
        work = self._queue.get()
        while work is not None:
            if isinstance(work, _Forget):
                self._forget(work.before)
            else:
                waiting.append(work)
            if len(waiting) >= _BATCH or self._queue.empty():
                return True
            work = self._queue.get()
        return False

    def _commit(self, waiting: list[_Append]) -> list[_Append]:
        """Decide on the appends, write and sync those that may be, answer; return those whose log was busy."""
        later: list[_Append] = []
        accepted: dict[str, tuple[_Append, Frame]] = {}
        outcomes: list[tuple[_Append, Outcome]] = []
        for append in waiting:
            if append.log in accepted:
                later.append(append)  # decided once the one before it is durable, or is not
                continue
            try:
                accepted[append.log] = append, self._decide(append)
            except Exception as refusal:
                outcomes.append((append, refusal))
        failure = self._write([(frame, append.data) for append, frame in accepted.values()]) if accepted else None
        outcomes += [(append, failure or frame.state) for append, frame in accepted.values()]
        _answer(outcomes)
        return later

    def _decide(self, append: _Append) -> Frame:
        if self._failure is not None:
            raise StoreUnavailableError(self._failure)
        state = self.state(append.log) if append.version is not None or append.log in self._logs else None
        if (state.version if state else None) != append.version:
            raise LogMovedError(f"log {append.log!r} has moved; read it again")
        fence, epoch = advance((state.fence, state.epoch) if state else NO_RECORDS, append.data)
        if state is None and self._holes and epoch > _FIRST_EPOCH:
            self.state(append.log)  # a log that goes on, and of which nothing is left
        start = state.size if state else 0
        return Frame(append.log, start, LogState(next(self.versions), start + len(append.data), fence, epoch))

    def _write(self, appends: list[tuple[Frame, bytes]]) -> Exception | None:
        """Make the appends durable, then visible; or return why not one of them is."""
        try:
            size = sum(len(data) + len(frame.name) + 128 for frame, data in appends)
            if not self._take_room(size):
                return StoreFullError("the disk is full; nothing was appended")
            segment = self._segments.newest
            encoded = [(frame, *encode_frame(frame, data, segment.durable)) for frame, data in appends]
            at = segment.end
            self._segments.write(b"".join(octets for _, octets, _, _ in encoded))
        except OSError as fault:
            self._failure = f"the journal failed and takes no appends until a restart: {fault.strerror}"
            log.critical("%s", self._failure)
            return StoreUnavailableError(self._failure)
        for frame, octets, payload, crc in encoded:
            index = self._logs.get(frame.name) or LogIndex(frame.name, frame.state)
            index.add(frame, segment.number, at + payload, crc)
            self._logs[frame.name] = index
            at += len(octets)
        self.syncs += 1
        self.appends += len(appends)
        self.octets += sum(len(data) for _, data in appends)
        return None

    def _forget(self, before: float) -> None:
        last = self._segments.written_before(before)
        old = [name for name, index in self._logs.items() if index.last_segment <= last]
        for name in old:
            self.octets -= self._logs.pop(name).state.size
            self._damaged.discard(name)
        self._holes = [hole for hole in self._holes if segment_of(hole[0]) > last]
        needed = min((index.first_segment for index in self._logs.values()), default=last + 1)
        try:
            self._segments.forget(min(last, needed - 1))
        except OSError as fault:
            log.error("old segments could not all be removed: %s", fault.strerror)
        if old:
            log.info("forgot %d logs", len(old))

    def _take_room(self, size: int) -> bool:
        """Make sure that `size` octets fit in the newest segment, which may become a new one. False: no room."""
        # The last of a disk is taken octet by octet: a log comes before all that could be evicted for it.
        return self._try_room(size, self._segments.sizes.ahead) or self._try_room(size, 0)

    def _try_room(self, size: int, ahead: int) -> bool:
        growth = self._segments.growth(size, ahead)
        if growth and not self._make_room(growth, False):
            return False
        while True:
            try:
                self._segments.take_room(size, ahead)
                return True
            except OSError as fault:
                if fault.errno not in DISK_FULL:
                    raise
                if not self._make_room(growth, True):
                    return False


def _answer(outcomes: list[tuple[_Append, Outcome]]) -> None:
    """Settle the appends on their loops, with one wake-up for each loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[_Append, Outcome]]] = defaultdict(list)
    for append, outcome in outcomes:
        by_loop[append.loop].append((append, outcome))
    for loop, settled in by_loop.items():
        with suppress(RuntimeError):  # a closed loop: nobody waits there any more
            loop.call_soon_threadsafe(_settle, settled)


def _settle(outcomes: Iterable[tuple[_Append, Outcome]]) -> None:
    for append, outcome in outcomes:
        if append.answer.done():
            continue  # its caller went away
        if isinstance(outcome, Exception):
            append.answer.set_exception(outcome)
        else:
            append.answer.set_result(outcome)
