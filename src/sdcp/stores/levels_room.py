"""Room in the levels of the durable store: reserved, and made by moving down what was used longest ago (D41).

Work that may wait for a disk is done in threads. One lock guards table and levels; it is never held across such work,
so that what was true before it is looked at again after it. A name whose file is being written, moved or removed is in
`moving`, and nobody else touches that file meanwhile.

Not here: putting and getting (`sdcp.stores.levels_objects`); moving to the network (`sdcp.stores.levels_below`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from sdcp.ports import StoreFullError, StoreUnavailableError
from sdcp.stores.levels import Level, Levels
from sdcp.stores.object_files import ObjectFiles
from sdcp.stores.segment import DISK_FULL, log
from sdcp.stores.store import ObjectInfo

Octets: TypeAlias = bytes | memoryview
HIGH, LOW = 7 / 8, 3 / 4
"""Host memory begins to be written down when it is more than HIGH full, until it is at LOW."""


class Network(Protocol):
    """What is told to the level below the disk."""

    def gone(self, info: ObjectInfo, *, was_there: bool) -> None:
        """An object is no more; `was_there`: the network has a copy. Under the lock."""
        ...

    def record_gone(self) -> None:
        """Note on disk what is no more, so that a kill forgets none of it. In a thread."""
        ...

    def look_after(self) -> None:
        """The disk may be nearly full. From any thread."""
        ...


class Room:
    """Room for objects in `levels`, whose disk is `files`. `lock` guards `levels` and its table, for others too."""

    def __init__(
        self,
        files: ObjectFiles,
        levels: Levels,
        lock: threading.Lock,
        threads: ThreadPoolExecutor,
        *,
        beside: Callable[[], int],
    ) -> None:
        """`beside` tells the octets on disk that are no objects: logs."""
        self.network: Network | None = None
        self.moving: set[str] = set()
        self.full = 0  # how often there was none
        self.files = files
        self.levels = levels
        self._table = levels.table
        self.lock = lock
        self.threads = threads
        self.beside = beside
        self._relieving = False

    # -- in a thread: host memory -------------------------------------------------------------------------------------

    def make_host_room(self, octets: int) -> bool:
        """Reserve room in host memory, writing down what was used longest ago. False: there is none to be had."""
        host = self.levels.host
        if host.limit is not None and octets > host.limit:
            return False
        passed_over: set[str] = set()
        while True:
            with self.lock:
                if host.fits(octets):
                    host.coming += octets
                    return True
                name = self.levels.to_leave_host(passed_over)
            if name is None:
                return False
            if not self.lower(name):
                passed_over.add(name)

    def relieve_host(self) -> None:
        """Write host memory down beside all requests, if it is nearly full."""
        with self.lock:
            if self._relieving or not self.levels.host.is_over(HIGH):
                return
            self._relieving = True
        self.threads.submit(self._relieve)

    def _relieve(self) -> None:
        passed_over: set[str] = set()
        try:
            while True:
                with self.lock:
                    name = self.levels.to_leave_host(passed_over) if self.levels.host.is_over(LOW) else None
                if name is None:
                    return
                if not self.lower(name):
                    passed_over.add(name)
        except Exception:
            log.exception("host memory could not be written down")
        finally:
            with self.lock:
                self._relieving = False

    def lower(self, name: str) -> bool:
        """Move an object from host memory to disk; with no room there evict it, but not if it is leased. False: no."""
        with self.lock:
            info, segment = self._table.look(name), self.levels.host.get(name)
            written = self.levels.is_below_host(name)
        if info is None or segment is None:
            return True
        try:
            if not written:
                self.write_down(info, segment.view())
        except (StoreFullError, StoreUnavailableError):
            return self._evict_from_host(info)
        with self.lock:
            if self._table.look(name) != info:
                return True
            if not self.levels.is_below_host(name):
                return False  # its file is being written or removed by another
            if self.levels.host.drop(name):
                self.levels.host.counts.demotions += 1
            return True

    def _evict_from_host(self, info: ObjectInfo) -> bool:
        with self.lock:
            if self._table.look(info.name) != info:
                return True
            if self._table.is_leased(info.name):
                return False
            self.evict(info, self.levels.host)
        return True

    # -- in a thread: the disk ----------------------------------------------------------------------------------------

    def write_down(self, info: ObjectInfo, data: Octets, *, evict: bool = True) -> bool:
        """Write a copy to disk; tell whether this wrote it. StoreFullError, StoreUnavailableError."""
        with self.lock:
            there = self._table.look(info.name) == info
            if not there or info.name in self.moving or info.name in self.levels.disk:
                return False
            self.moving.add(info.name)
        present = False

        def enter() -> None:
            nonlocal present
            present = self._table.look(info.name) == info
            if present:
                self.levels.add_to_disk(info)

        try:
            self.write(info, data, enter, evict=evict)
            if not present:  # deleted or evicted meanwhile
                self.files.remove(info)
            return present
        finally:
            with self.lock:
                self.moving.discard(info.name)

    def write(self, info: ObjectInfo, data: Octets, enter: Callable[[], None], *, evict: bool = True) -> None:
        """Make room, write an object's file, and `enter` it under the lock. StoreFullError, StoreUnavailableError."""
        if not self.make_room(info.size, False, coming=info.size, evict=evict):
            self.full += 1
            raise StoreFullError(f"no room for {info.size} octets: what could be evicted would not make it")
        try:
            self.on_disk(info.size, lambda: self.files.write(info, data), evict=evict)
        except BaseException:
            with self.lock:
                self.levels.disk.coming -= info.size
            raise
        with self.lock:
            self.levels.disk.coming -= info.size
            enter()

    def on_disk(self, octets: int, write: Callable[[], None], *, evict: bool = True) -> None:
        """Write; on a full disk make room and try again. StoreFullError, StoreUnavailableError."""
        while True:
            try:
                return write()
            except OSError as fault:
                if fault.errno not in DISK_FULL:
                    raise StoreUnavailableError(f"the disk cannot be written: {fault.strerror}") from None
                if not self.make_room(max(octets, 1), True, evict=evict):
                    self.full += 1
                    raise StoreFullError("the disk is full, and nothing on it may go") from None

    def make_room(self, octets: int, disk_full: bool, coming: int = 0, *, evict: bool = True) -> bool:
        """Allow `octets` more on disk; with `disk_full`, free so many whatever our own limit says.

        Copies go that the network has too, then, with `evict`, unleased objects; `coming` are reserved.
        """
        disk = self.levels.disk
        with self.lock:
            over = octets if disk_full else disk.size + disk.coming + self.beside() + octets - (disk.limit or 0)
            free = self.levels.to_free_disk(over, evict=evict, passed_over=self.moving)
            if free is not None:
                copies = [info for name in free[0] if (info := self._table.look(name)) is not None]
                evicted = [info for name in free[1] if (info := self._table.look(name)) is not None]
                for info in copies:
                    self.levels.drop_from_disk(info.name)
                    self.moving.add(info.name)
                for info in evicted:
                    self.evict(info, disk)
                disk.coming += coming
        if self.network is not None:
            self.network.look_after()
        if free is None:
            return False
        self.remove_copies(copies)
        for info in evicted:
            self.files.remove(info)
        if evicted:
            self.record_gone()
        return True

    def record_gone(self) -> None:
        """See `Network.record_gone`, if there is one."""
        if self.network is not None:
            self.network.record_gone()

    def remove_copies(self, infos: list[ObjectInfo]) -> None:
        """Remove files of objects that are elsewhere too; their names are in `moving` until it is done."""
        for info in infos:
            self.files.remove(info)
            with self.lock:
                self.moving.discard(info.name)

    # -- under the lock -----------------------------------------------------------------------------------------------

    def evict(self, info: ObjectInfo, level: Level[Any]) -> bool:
        """Take out an object that no lease holds; tell whether its file is to be removed."""
        self._table.drop(info.name)
        level.counts.evictions += 1
        return self.forget(info)

    def forget(self, info: ObjectInfo) -> bool:
        """Take all copies out of an object that the table has no more; tell whether its file is to be removed."""
        on_disk, in_network = self.levels.forget(info.name)
        if self.network is not None:
            self.network.gone(info, was_there=in_network)
        return on_disk
