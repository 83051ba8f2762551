"""The store behind `sdcp cache`: memory over a local disk (docs/mlc.md).

    folder/journal/   logs: one journal, one sync for all appends that wait      (`sdcp.stores.journal`)
    folder/objects/   one file for each object, whole or absent                  (`sdcp.stores.object_files`)
    folder/leases/    one file for each lease
    folder/lock       held while a process has the folder open

What survives: a killed process loses nothing that was answered. A power cut loses no append, and leaves no object
partial. Without `sync_objects` it may lose the objects of the last seconds, which then are absent as if evicted: most
objects are rows of a round that is over before a disk has seen them, and nobody should wait for one. It may also lose
the leases of the last seconds, and bring back objects deleted in them. After a restart each lease begins its time anew,
since the clock that measured it is gone: too long does no harm, too short would.

Why versions never come twice: they begin with the number of the journal's segment that the run made and synced before
it served anybody, and a folder's segments are numbered upwards only.

Memory holds what was put or read last, up to `memory_bytes`; all of it is on disk too, so it may go at any time. The
disk holds at most `disk_bytes` of objects and journal. When more is wanted, unleased objects go, least recently used
first; logs come before objects, and when all that is left is leased a put fails. Work that may wait for a disk is done
in threads, and one lock guards the tables: it is never held across such work.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from sdcp.errors import ConfigurationError, PreconditionFailed
from sdcp.ports import Entry, Kind, ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.stores.journal import Journal
from sdcp.stores.object_files import LeaseFiles, ObjectFiles
from sdcp.stores.segments import DISK_FULL, Sizes, log
from sdcp.stores.store import LogState, ObjectInfo
from sdcp.stores.table import Table, page

P = ParamSpec("P")
T = TypeVar("T")
_THREADS = 4
_AHEAD = 16  # the journal takes in advance at most this part of the disk, so that a small cache has room for objects
_FORGETTING_S = 600.0  # between two looks for logs that are old enough to go


class DurableStore:
    """`sdcp.stores.store.Store` in a folder that no other process has open."""

    def __init__(
        self,
        folder: Path,
        *,
        memory_bytes: int = 256 << 20,
        disk_bytes: int = 8 << 30,
        sync_objects: bool = False,
        log_retention_s: float | None = None,
        sizes: Sizes | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the folder, making it if need be. Raises ConfigurationError: in use, not writable, or damaged.

        `log_retention_s`: for how long at least a log stays after its last append; None: for good.
        """
        self.folder = folder
        self._clock = clock
        self._wall_clock = wall_clock
        self._log_retention_s = log_retention_s
        self._next_forgetting = 0.0
        self._disk_bytes = disk_bytes
        self._lock = threading.Lock()
        self._lease_lock = threading.Lock()  # a lease's entry and its file change together
        self._table = Table()
        self._memory = _Memory(memory_bytes)
        self._creating: dict[str, threading.Event] = {}
        self._coming = 0  # octets of objects being written
        self._counts = dict.fromkeys(("puts", "hits", "misses", "evictions", "lost", "full"), 0)
        self._lock_file = _locked(folder)
        try:
            self._objects = ObjectFiles(folder / "objects", sync=sync_objects)
            self._leases = LeaseFiles(folder / "leases")
            self._restore()
            self._journal = Journal(folder / "journal", sizes=sizes or _sizes(disk_bytes), make_room=self._make_room)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sdcp-store")

    # -- objects ------------------------------------------------------------------------------------------------------

    async def put(self, name: str, data: bytes | memoryview, owner: str) -> tuple[ObjectInfo, bool]:
        """See `Store.put`."""
        return await self._in_thread(self._put, name, bytes(data), owner)

    def look(self, name: str) -> ObjectInfo | None:
        """See `Store.look`."""
        with self._lock:
            return self._table.look(name)

    async def get(self, name: str) -> tuple[ObjectInfo, bytes]:
        """See `Store.get`."""
        with self._lock:
            info = self._table.use(name)
            data = self._memory.get(name)
        if data is not None:
            self._counts["hits"] += 1
            return info, data
        return info, await self._in_thread(self._read, info)

    async def delete(self, name: str) -> None:
        """See `Store.delete`."""
        await self._in_thread(self._delete, name)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        """See `Store.take_lease`."""
        await self._in_thread(self._take_lease, lease, owner, names, ttl_ms)

    async def release_lease(self, lease: str, owner: str) -> None:
        """See `Store.release_lease`."""
        await self._in_thread(self._release_lease, lease, owner)

    async def sweep(self) -> None:
        """See `Store.sweep`."""
        await self._in_thread(self._expire)
        now = self._wall_clock()
        if self._log_retention_s is not None and now >= self._next_forgetting:
            self._next_forgetting = now + min(_FORGETTING_S, self._log_retention_s)
            self._journal.forget(now - self._log_retention_s)

    # -- logs ---------------------------------------------------------------------------------------------------------

    async def append(self, log: str, data: bytes, version: int | None) -> LogState:
        """See `Store.append`."""
        return await self._journal.append(log, data, version)

    def log_state(self, log: str) -> LogState | None:
        """See `Store.log_state`."""
        return self._journal.state(log)

    async def read_log(self, log: str, start: int, stop: int | None = None) -> tuple[bytes, LogState | None]:
        """See `Store.read_log`."""
        return await self._in_thread(self._journal.read, log, start, stop)

    # -- the whole ----------------------------------------------------------------------------------------------------

    def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Store.listing`. Of a log, its age is not known."""
        if kind == "logs":
            named = ((name, self._journal.size_of(name)) for name in page(self._journal.names(), prefix, after, limit))
            return [Entry(name, *known, level="disk") for name, known in named if known is not None]
        with self._lock:
            now = self._clock()
            if kind == "leases":
                return self._table.list_leases(prefix, after, limit, now)
            return self._table.list_objects(prefix, after, limit, now, self._level_of)

    def figures(self) -> Mapping[str, int]:
        """See `Store.figures`."""
        with self._lock:
            sizes = {
                "objects": len(self._table),
                "object_octets": self._table.size,
                "leased_octets": self._table.leased_size,
                "leases": len(self._table.leases),
                "memory_octets": self._memory.size,
            }
        journal = self._journal
        return {
            **sizes,
            **self._counts,
            "logs": len(journal),
            "log_octets": journal.octets,
            "logs_damaged": len(journal.damaged),
            "journal_octets": journal.room,
            "appends": journal.appends,
            "syncs": journal.syncs,
        }

    async def close(self) -> None:
        """See `Store.close`."""
        await self._in_thread(self._journal.close)
        self._threads.shutdown()
        os.close(self._lock_file)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    # -- in a thread: objects -----------------------------------------------------------------------------------------

    def _put(self, name: str, data: bytes, owner: str) -> tuple[ObjectInfo, bool]:
        while True:
            with self._lock:
                info = self._table.look(name)
                other = self._creating.get(name)
                if info is None and other is None:
                    done = self._creating[name] = threading.Event()
                    break
            if other is not None:
                other.wait()
            elif info is not None and (same := self._same(info, data)) is not None:
                return same, False
        try:
            return self._create(name, data, owner), True
        finally:
            with self._lock:
                del self._creating[name]
            done.set()

    def _same(self, info: ObjectInfo, data: bytes) -> ObjectInfo | None:
        """The object, if it has these octets; None when it is gone by now. PreconditionFailed for other octets."""
        try:
            if self._read(info) == data:
                return info
        except ObjectMissingError:
            return None
        raise PreconditionFailed(f"object {info.name!r} exists with other content, and objects never change")

    def _create(self, name: str, data: bytes, owner: str) -> ObjectInfo:
        info = ObjectInfo(name, next(self._journal.versions), len(data), owner)
        if not self._make_room(info.size, False, coming=info.size):
            self._counts["full"] += 1
            raise StoreFullError(f"no room for {info.size} octets: what could be evicted would not make it")
        try:
            self._on_disk(info.size, lambda: self._objects.write(info, data))
        except BaseException:
            with self._lock:
                self._coming -= info.size
            raise
        with self._lock:
            self._coming -= info.size
            self._table.add(info, self._clock())
            self._memory.add(name, data)
            self._counts["puts"] += 1
        return info

    def _read(self, info: ObjectInfo) -> bytes:
        try:
            data = self._objects.read(info)
        except OSError as fault:
            raise StoreUnavailableError(f"object {info.name!r} cannot be read: {fault.strerror}") from None
        with self._lock:
            self._counts["misses"] += 1
            present = self._table.look(info.name) == info
            if data is not None and present:
                self._memory.add(info.name, data)
            elif data is None and present:
                self._table.lose(info.name)
                self._counts["lost"] += 1
                log.error("object %r: its file is damaged; it counts as evicted", info.name)
        if data is None:
            self._objects.remove(info)
            raise ObjectMissingError(f"there is no object {info.name!r}, or it was evicted")
        return data

    def _delete(self, name: str) -> None:
        self._expire()
        with self._lock:
            info = self._table.remove(name)
            self._memory.drop(name)
        self._objects.remove(info)

    def _level_of(self, name: str) -> str:
        return "memory" if name in self._memory else "disk"

    # -- in a thread: leases ------------------------------------------------------------------------------------------

    def _take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        self._expire()
        with self._lease_lock:
            with self._lock:
                held = self._table.take(lease, owner, names, ttl_ms, self._clock())
            # If this fails the objects stay leased until the time is over: too long does no harm.
            self._on_disk(0, lambda: self._leases.write(lease, held))

    def _release_lease(self, lease: str, owner: str) -> None:
        with self._lease_lock:
            with self._lock:
                self._table.release(lease, owner)
            self._leases.remove(lease)

    def _expire(self) -> None:
        with self._lease_lock:
            with self._lock:
                ended = self._table.expire(self._clock())
            for lease in ended:
                self._leases.remove(lease)

    def _restore(self) -> None:
        for info in self._objects.found():
            self._table.add(info, self._clock() - self._objects.age_s(info))
        for name, owner, lease in self._leases.found():
            there = [each for each in lease.objects if self._table.look(each)]
            if there:
                self._table.take(name, owner, there, lease.ttl_ms, self._clock())
            else:
                self._leases.remove(name)

    # -- room ---------------------------------------------------------------------------------------------------------

    def _make_room(self, octets: int, disk_full: bool, coming: int = 0) -> bool:
        """Allow `octets` more, evicting as need be; with `disk_full`, free so many whatever our own limit says."""
        with self._lock:
            used = self._table.size + self._coming + self._journal.room
            over = octets if disk_full else used + octets - self._disk_bytes
            victims = []
            if over > 0:
                victims = self._table.evict(over)
                if not victims:
                    return False
            for victim in victims:
                self._memory.drop(victim.name)
            self._coming += coming
            self._counts["evictions"] += len(victims)
        for victim in victims:
            self._objects.remove(victim)
        return True

    def _on_disk(self, octets: int, write: Callable[[], None]) -> None:
        """Write; on a full disk evict and try again. StoreFullError, StoreUnavailableError."""
        while True:
            try:
                return write()
            except OSError as fault:
                if fault.errno not in DISK_FULL:
                    raise StoreUnavailableError(f"the disk cannot be written: {fault.strerror}") from None
                if not self._make_room(max(octets, 1), True):
                    self._counts["full"] += 1
                    raise StoreFullError("the disk is full, and nothing on it may go") from None


def _sizes(disk_bytes: int) -> Sizes:
    return Sizes(ahead=min(Sizes().ahead, disk_bytes // _AHEAD))


class _Memory:
    """Octets of objects by name, least recently used first, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self.size = 0
        self._capacity = capacity
        self._octets: dict[str, bytes] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._octets

    def get(self, name: str) -> bytes | None:
        """An object's octets, if they are here; a use of them."""
        data = self._octets.pop(name, None)
        if data is not None:
            self._octets[name] = data
        return data

    def add(self, name: str, data: bytes) -> None:
        """Keep an object's octets, and let go of others; one larger than all the room is not kept."""
        if len(data) > self._capacity:
            return
        self.drop(name)
        self._octets[name] = data
        self.size += len(data)
        while self.size > self._capacity:
            self.drop(next(iter(self._octets)))

    def drop(self, name: str) -> None:
        """Let go of an object's octets, if they are here."""
        self.size -= len(self._octets.pop(name, b""))


def _locked(folder: Path) -> int:
    """Make the folder and lock it against other processes; the lock ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as fault:
        raise ConfigurationError(f"{folder}: cannot be used as a store: {fault.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ConfigurationError(f"{folder}: another process has this store open") from None
    return fd
