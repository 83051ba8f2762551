"""The store behind `sdcp cache`: process and host memory, over a local disk, over a network if there is one (D41).

    folder/journal/   logs: one journal, one sync for all appends that wait      (`sdcp.stores.journal`)
    folder/objects/   one file for each object that lies on disk, whole or absent (`sdcp.stores.object_files`)
    folder/leases/    one file for each lease
    folder/gone/      one for each object that is gone and that the network may still hold
    folder/lock       held while a process has the folder open

What survives: a killed process loses nothing that was answered, but for objects that were put as sealed segments and
still lie in host memory alone (D41). A power cut loses no append, and leaves no object partial. Without `sync_objects`
it may lose the objects of the last seconds, which then are absent as if evicted: most objects are rows of a round that
is over before a disk has seen them, and nobody should wait for one. It may also lose the leases of the last seconds,
and bring back objects deleted in them. After a restart each lease begins its time anew, since the clock that measured
it is gone: too long does no harm, too short would.

Why versions never come twice: they begin with the number of the journal's segment that the run made and synced before
it served anybody, and a folder's segments are numbered upwards only.

The disk holds at most `disk_bytes` of objects and journal. Logs come before objects, and when all that is left is
leased a put fails. Work that may wait for a disk is done in threads, and one lock guards the tables.

Not here: what lies in which level, and what moves (`sdcp.stores.levels_objects`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from sdcp.errors import ConfigurationError, Forbidden
from sdcp.messages.lease import Lease
from sdcp.ports import Entry, Kind
from sdcp.stores.journal import Journal
from sdcp.stores.levels import Levels
from sdcp.stores.levels_below import Below
from sdcp.stores.levels_network import NetworkLevel
from sdcp.stores.levels_objects import LevelObjects
from sdcp.stores.levels_room import Room
from sdcp.stores.object_files import GoneFiles, LeaseFiles, ObjectFiles
from sdcp.stores.sealed import Sealed
from sdcp.stores.segments import Sizes
from sdcp.stores.store import LogState, ObjectInfo
from sdcp.stores.table import Held, Table, page

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
        host_bytes: int = 256 << 20,
        disk_bytes: int = 8 << 30,
        network: NetworkLevel | None = None,
        network_bytes: int | None = None,
        sync_objects: bool = False,
        idle_s: float | None = None,
        log_retention_s: float | None = None,
        sizes: Sizes | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the folder, making it if need be. Raises ConfigurationError: in use, not writable, or damaged.

        `host_bytes` 0: no host memory; sealed segments are written to disk. With a `network`, which `close` closes,
        the store is made on the event loop that uses it; `network_bytes` None: no limit. `idle_s`: how long an
        object stays that no lease holds and nobody uses; None: until its room is needed. `log_retention_s`: for how
        long at least a log stays after its last append; None: for good.
        """
        self.folder = folder
        self._clock = clock
        self._wall_clock = wall_clock
        self._idle_s = idle_s
        self._log_retention_s = log_retention_s
        self._next_forgetting = 0.0
        self._lock = threading.Lock()
        self._lease_lock = threading.Lock()  # a lease's entry and its file change together
        self._table = Table()
        self._levels = Levels(
            self._table,
            memory_bytes=memory_bytes,
            host_bytes=host_bytes,
            host_objects=_descriptors(),
            disk_bytes=disk_bytes,
            network_bytes=0 if network is None else network_bytes,
        )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sdcp-store")
        self._awaited: dict[str, tuple[str, Lease, Held | None]] = {}
        self._lock_file = _locked(folder)
        try:
            files = ObjectFiles(folder / "objects", sync=sync_objects)
            self._leases = LeaseFiles(folder / "leases")
            self._restore(files, wait=network is not None)
            self._room = Room(files, self._levels, self._lock, self._threads, beside=self._beside)
            self._journal = Journal(
                folder / "journal", sizes=sizes or _sizes(disk_bytes), make_room=self._room.make_room
            )
        except BaseException:
            os.close(self._lock_file)
            raise
        self._objects = LevelObjects(self._room, version=self._version, clock=clock)
        self._objects.awaited.update(
            name for _, lease, _ in self._awaited.values() for name in lease.objects if self._table.look(name) is None
        )
        self._below: Below | None = None
        if network is not None:
            self._below = self._room.network = self._objects.network = Below(
                self._objects,
                self._room,
                network,
                GoneFiles(folder / "gone"),
                first_version=self._version(),
                clock=clock,
                listed=self._network_listed,
            )

    # -- objects ------------------------------------------------------------------------------------------------------

    async def put(self, name: str, data: bytes | memoryview, owner: str) -> tuple[ObjectInfo, bool]:
        """See `Store.put`."""
        return await self._objects.put(name, data, owner)

    async def put_sealed(self, name: str, segment: Sealed, owner: str) -> tuple[ObjectInfo, bool]:
        """See `SharedStore.put_sealed`."""
        return await self._objects.put_sealed(name, segment, owner)

    def look(self, name: str) -> ObjectInfo | None:
        """See `Store.look`."""
        with self._lock:
            self._objects.check_known(name)
            return self._table.look(name)

    async def get(self, name: str) -> tuple[ObjectInfo, bytes]:
        """See `Store.get`."""
        return await self._objects.get(name)

    async def get_sealed(self, name: str) -> tuple[ObjectInfo, Sealed]:
        """See `SharedStore.get_sealed`."""
        return await self._objects.get_sealed(name)

    async def delete(self, name: str) -> None:
        """See `Store.delete`."""
        await self._in_thread(self._delete, name)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        """See `Store.take_lease`."""
        await self._in_thread(self._take_lease, lease, owner, names, ttl_ms)
        if not self._levels.network_keeps:
            for (
                name
            ) in names:  # what lies where it may be lost is brought up; if it cannot be, the lease stays as it is
                await self._objects.bring_up(name)

    async def release_lease(self, lease: str, owner: str) -> None:
        """See `Store.release_lease`."""
        await self._in_thread(self._release_lease, lease, owner)

    async def sweep(self) -> None:
        """See `Store.sweep`."""
        await self._in_thread(self._expire)
        if self._idle_s is not None:
            await self._in_thread(self._objects.drop_idle, self._clock() - self._idle_s)
        if self._below is not None:
            self._below.mover.wake()
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

    # -- the network --------------------------------------------------------------------------------------------------

    async def settle(self, within_s: float | None = None) -> None:
        """Wait until the network level has been listed and has taken what it takes now, or has failed."""
        if self._below is not None:
            await self._below.mover.settle(within_s)

    async def _network_listed(self) -> None:
        await self._in_thread(self._restore_awaited)

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
            return self._table.list_objects(prefix, after, limit, now, self._levels.where)

    def figures(self) -> Mapping[str, int]:
        """See `Store.figures`."""
        with self._lock:
            sizes = {
                "objects": len(self._table),
                "object_octets": self._table.size,
                "leased_octets": self._table.leased_size,
                "leases": len(self._table.leases),
            }
            levels = self._levels.figures()
        journal = self._journal
        return {
            **sizes,
            **self._objects.counts,
            **{f"{level}_{name}": value for level, figures in levels.items() for name, value in figures.items()},
            "logs": len(journal),
            "log_octets": journal.octets,
            "logs_damaged": len(journal.damaged),
            "journal_octets": journal.room,
            "appends": journal.appends,
            "syncs": journal.syncs,
        }

    def level_figures(self) -> Mapping[str, Mapping[str, int]]:
        """See `Store.level_figures`."""
        with self._lock:
            return self._levels.figures()

    async def close(self) -> None:
        """See `Store.close`. What is leased and lies in host memory alone is written to disk."""
        if self._below is not None:
            await self._below.close()
        await self._in_thread(self._objects.write_down_leased)
        await self._in_thread(self._journal.close)
        self._threads.shutdown()
        os.close(self._lock_file)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    # -- what the levels ask ------------------------------------------------------------------------------------------

    def _version(self) -> int:
        return next(self._journal.versions)

    def _beside(self) -> int:
        return self._journal.room

    def _delete(self, name: str) -> None:
        self._expire()
        self._objects.delete(name)

    # -- in a thread: leases ------------------------------------------------------------------------------------------

    def _take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        self._expire()
        with self._lease_lock:
            with self._lock:
                for name in names:
                    self._objects.check_known(name)
                held = self._table.take(lease, owner, names, ttl_ms, self._clock())
            # If this fails the objects stay leased until the time is over: too long does no harm.
            self._room.on_disk(0, lambda: self._leases.write(lease, held))

    def _release_lease(self, lease: str, owner: str) -> None:
        with self._lease_lock:
            awaited = self._awaited.get(lease)
            if awaited is not None and awaited[0] != owner:
                raise Forbidden("this lease belongs to another certificate")
            with self._lock:
                self._table.release(lease, owner, self._clock())
            self._awaited.pop(lease, None)
            self._leases.remove(lease)

    def _expire(self) -> None:
        with self._lease_lock:
            with self._lock:
                ended = self._table.expire(self._clock())
            for lease in ended:
                self._leases.remove(lease)

    def _restore(self, files: ObjectFiles, *, wait: bool) -> None:
        """Enter what the folder holds. `wait`: objects that leases hold and that are not here may be in the network."""
        for info in files.found():
            now = self._clock()
            self._table.add_old(info, now - files.age_s(info), now)
            self._levels.add_to_disk(info)
        for name, owner, lease in self._leases.found():
            held = self._restore_lease(name, owner, lease)
            if wait and (held is None or len(held.names) < len(set(lease.objects))):
                self._awaited[name] = owner, lease, held
            elif held is None:
                self._leases.remove(name)

    def _restore_lease(self, name: str, owner: str, lease: Lease) -> Held | None:
        there = [each for each in lease.objects if self._table.look(each)]
        return self._table.take(name, owner, there, lease.ttl_ms, self._clock()) if there else None

    def _restore_awaited(self) -> None:
        """The network has been listed: complete the leases that have not been renewed or ended since the start."""
        with self._lease_lock:
            for name, (owner, lease, before) in self._awaited.items():
                with self._lock:
                    untouched = self._table.leases.get(name) is before
                    held = self._restore_lease(name, owner, lease) if untouched else before
                if untouched and held is None:
                    self._leases.remove(name)
            self._awaited.clear()
            self._objects.awaited.clear()


def _descriptors() -> int:
    """How many segments host memory may hold: each takes a descriptor, of which connections need some too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft // 2


def _sizes(disk_bytes: int) -> Sizes:
    return Sizes(ahead=min(Sizes().ahead, disk_bytes // _AHEAD))


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
