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
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from zlib import crc32

from sdcp.ports import LogDamagedError, LogMovedError, StoreFullError, StoreUnavailableError
from sdcp.stores.frames import Found, Frame, Hole, encode_frame
from sdcp.stores.records import NO_RECORDS, advance
from sdcp.stores.segments import DISK_FULL, Segment, Segments, Sizes, log
from sdcp.stores.store import LogState

RUN_SHIFT = 40
"""A version is the number of the segment that this run began with, then 40 bits counted in the run."""
_BATCH = 256  # appends that share a sync at most, so that the first of them does not wait for a crowd
_OFFSET_BITS = 40
_FIRST_EPOCH = 1  # a session's log begins with it, one that is taken over is fenced above it (6.8, 6.9)
MakeRoom = Callable[[int, bool], bool]


@dataclass(slots=True)
class _Index:
    """Where the appends of a log lie: per append its offset in the log, its place (segment, offset) and CRC."""

    state: LogState
    starts: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))
    crcs: array[int] = field(default_factory=lambda: array("I"))
    damage: str | None = None
    intact: int = 0  # when there is damage: octets that precede it

    @property
    def first_segment(self) -> int:
        """The segment of the first append."""
        return self.places[0] >> _OFFSET_BITS

    @property
    def last_segment(self) -> int:
        """The segment of the last append."""
        return self.places[-1] >> _OFFSET_BITS

    def add(self, frame: Frame, segment: int, payload: int, crc: int) -> None:
        """Enter an append; the state goes last, since readers go by it."""
        self.crcs.append(crc)
        self.places.append(segment << _OFFSET_BITS | payload)
        self.starts.append(frame.start)
        self.state = frame.state


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
        self._logs: dict[str, _Index] = {}
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
        state = index.state
        end = index.intact if index.damage else state.size
        data = self._octets(name, index, start, end if stop is None else min(stop, end), end)
        if index.damage:  # perhaps found just now
            raise LogDamagedError(index.damage, index.intact, data)
        return data, state

    def _octets(self, name: str, index: _Index, start: int, stop: int, size: int) -> bytes:
        """Octets `start` to `stop` of the first `size`; fewer when damage is found, which is noted in the index."""
        pieces: list[bytes] = []
        at = max(0, bisect_right(index.starts, start) - 1)
        base = covered = index.starts[at]
        while covered < stop:
            end = min(index.starts[at + 1], size) if at + 1 < len(index.starts) else size
            payload = self._payload(name, index, at, end - covered)
            if payload is None:
                break
            pieces.append(payload)
            covered, at = end, at + 1
        return b"".join(pieces)[max(0, start - base) : max(start, stop) - base]

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
            index = self._logs[frame.name] = _Index(frame.state)
            self._damaged.discard(frame.name)
            expected = 0
        else:
            expected = index.state.size
        index.add(frame, segment.number, found.payload, found.crc)
        if frame.start != expected:
            self._damage(
                frame.name, index, expected, f"what follows is missing before octet {found.payload} of {segment.path}"
            )
        elif not found.intact:
            self._damage(
                frame.name, index, frame.start, f"what follows is damaged at octet {found.payload} of {segment.path}"
            )

    def _lost(self, path: Path, number: int, hole: Hole) -> None:
        what = f"octets {hole.start} to {hole.stop} of {path} cannot be read, and they were acknowledged"
        log.error("%s: restore the file from a copy", what)
        self._holes.append((number << _OFFSET_BITS | hole.start, what))

    def _suspect_logs(self) -> None:
        """After the start: a log without a frame after the last hole may have gone on in one."""
        for name, index in self._logs.items():
            after = next((what for place, what in self._holes if place > index.places[-1]), None)
            if after is not None and not index.damage:
                self._damage(name, index, index.state.size, f"it may have gone on where {after}")

    def _payload(self, name: str, index: _Index, at: int, size: int) -> bytes | None:
        """The octets of one append; None when they are damaged, which is noted in the index."""
        place = index.places[at]
        segment = self._segments.get(place >> _OFFSET_BITS)
        if segment is None:
            raise StoreUnavailableError(f"log {name!r} was forgotten while it was being read")
        try:
            octets = segment.read(place & (1 << _OFFSET_BITS) - 1, size)
        except OSError as fault:
            raise StoreUnavailableError(f"log {name!r} cannot be read: {fault.strerror}") from None
        if crc32(octets) != index.crcs[at]:
            offset = place & (1 << _OFFSET_BITS) - 1
            self._damage(name, index, index.starts[at], f"what follows is damaged at octet {offset} of {segment.path}")
            return None
        return octets

    def _damage(self, name: str, index: _Index, intact: int, what: str) -> None:
        """Note the first damage of a log, behind `intact` octets."""
        if index.damage and index.intact <= intact:
            return
        index.intact = intact
        index.damage = (
            f"log {name!r} is intact up to octet {intact}; {what}; "
            "until the file is restored from a copy its intact octets are read and nothing is appended"
        )
        self._damaged.add(name)
        log.error("%s", index.damage)

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
            index = self._logs.get(frame.name) or _Index(frame.state)
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
        self._holes = [hole for hole in self._holes if hole[0] >> _OFFSET_BITS > last]
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
