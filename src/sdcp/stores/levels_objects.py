"""The objects of the durable store: put, got and deleted, whatever level they are in (D41, docs/mlc.md).

An object that is put as octets is written to disk before it is answered for, and copied into process memory. One that
is put as a sealed segment stays in host memory alone: it is there for as long as this process lives. It is written down
when host memory is nearly full, or at an orderly end if it is leased.

Not here: how room is made in a level (`sdcp.stores.levels_room`, which also says what is locked), and when something
moves between disk and network (`sdcp.stores.levels_below`).
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

from sdcp.errors import PreconditionFailed
from sdcp.ports import ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.stores.levels_below import Below
from sdcp.stores.levels_room import Octets, Room
from sdcp.stores.sealed import Sealed
from sdcp.stores.segment import log
from sdcp.stores.store import ObjectInfo

P = ParamSpec("P")
T = TypeVar("T")
_SWEPT = 100  # idle objects at a time, for which everybody else waits


class LevelObjects:
    """The objects of a store, in the levels of `room`."""

    def __init__(self, room: Room, *, version: Callable[[], int], clock: Callable[[], float]) -> None:
        """`version` makes new versions."""
        self.network: Below | None = None
        self.awaited: set[str] = set()  # names that leases held before a restart and that the network may hold
        self._room = room
        self._levels = room.levels
        self._table = room.levels.table
        self._files = room.files
        self._lock = room.lock
        self._version = version
        self._clock = clock
        self._creating: dict[str, threading.Event] = {}
        self._counts = dict.fromkeys(("puts", "lost", "idle"), 0)

    @property
    def counts(self) -> Mapping[str, int]:
        """What was counted of objects, whatever their level."""
        evictions = sum(level.counts.evictions for level in self._levels.all)
        return {**self._counts, "full": self._room.full, "evictions": evictions}

    # -- calls --------------------------------------------------------------------------------------------------------

    async def put(self, name: str, data: Octets, owner: str) -> tuple[ObjectInfo, bool]:
        """See `Store.put`."""
        return await self._put(name, data, partial(self._create, name, bytes(data), owner))

    async def put_sealed(self, name: str, segment: Sealed, owner: str) -> tuple[ObjectInfo, bool]:
        """See `SharedStore.put_sealed`."""
        with segment:
            info = self._put_at_once(name, segment, owner)
            if info is not None:
                self._room.relieve_host()
                return info, True
            create = partial(self._create_sealed, name, segment, owner)
            return await self._put(name, segment.view(), create)

    async def get(self, name: str) -> tuple[ObjectInfo, bytes]:
        """See `Store.get`."""
        info = self._use(name)
        data = await self._octets(info)
        return info, data if isinstance(data, bytes) else await self._in_thread(bytes, data)

    async def get_sealed(self, name: str) -> tuple[ObjectInfo, Sealed]:
        """See `SharedStore.get_sealed`."""
        info = self._use(name)
        with self._lock:
            segment = self._levels.host.get(name)
            if segment is not None:
                self._levels.host.counts.hits += 1
                return info, _shared(segment, name)
        return info, await self._in_thread(self._sealed, info, await self._octets(info))

    def delete(self, name: str) -> None:
        """See `Store.delete`. In a thread."""
        with self._lock:
            self.check_known(name)
            info = self._table.remove(name)
            on_disk = self._room.forget(info)
        if on_disk:
            self._files.remove(info)
        self._room.record_gone()

    def drop_idle(self, before: float) -> None:
        """Remove, from all levels, what no lease has held and nobody has used since `before`. In a thread."""
        while True:
            with self._lock:
                gone = self._table.idle(before, _SWEPT)
                on_disk = [info for info in gone if self._room.forget(info)]
                self._counts["idle"] += len(gone)
            if not gone:
                return
            for info in on_disk:
                self._files.remove(info)
            self._room.record_gone()

    def check_known(self, name: str) -> None:
        """StoreUnavailableError when it cannot be told yet whether there is such an object."""
        if self.network is not None and not self.network.is_known(name):
            raise StoreUnavailableError(
                "the network level has not been listed yet, so nobody knows whether there is such an object; "
                "ask again in a moment"
            )

    @property
    def _is_listed(self) -> bool:
        """Whether all names in the network are known; if not, what is new goes to disk, to outlive a kill too."""
        return self.network is None or self.network.mover.listed

    def _check_not_awaited(self, name: str) -> None:
        if name in self.awaited and self._table.look(name) is None:
            self.check_known(name)

    async def read_to_move(self, info: ObjectInfo) -> bytes | None:
        """See `Above.read_to_move`."""
        return await self._in_thread(partial(self._read, info, moving=True))

    def write_down_leased(self) -> None:
        """Write to disk what is leased and only in host memory, since the process is about to end. In a thread."""
        with self._lock:
            names = [name for name in self._levels.host if self._table.is_leased(name)]
        for name in names:
            if not self._room.lower(name):
                log.error("object %r is leased and ends with this process: it could not be written to disk", name)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._room.threads, partial(work, *args, **kwargs))

    # -- putting ------------------------------------------------------------------------------------------------------

    async def _put(self, name: str, data: Octets, create: Callable[[], ObjectInfo]) -> tuple[ObjectInfo, bool]:
        while True:
            info = await self._with_room(len(data), partial(self._put_new, name, create))
            if info is not None:
                return info, True
            with self._lock:
                there = self._table.look(name)
            if there is not None and await self._is_same(there, data):
                with self._lock:
                    self._table.keep(name, self._clock())
                return there, False

    async def _with_room(self, octets: int, work: Callable[[], T]) -> T:
        """Do it in a thread; without room for `octets`, once more after the network has taken what it takes."""
        try:
            return await self._in_thread(work)
        except StoreFullError:
            if self.network is None or not await self.network.relieve(octets):
                raise
            return await self._in_thread(work)

    def _put_new(self, name: str, create: Callable[[], ObjectInfo]) -> ObjectInfo | None:
        """Create an object; None when there is one of this name by now. In a thread."""
        with self._lock:
            self._check_not_awaited(name)
            other = self._creating.get(name)
            if other is None and self._table.look(name) is not None:
                return None
            if other is None:
                done = self._creating[name] = threading.Event()
        if other is not None:
            other.wait()
            return None
        try:
            return create()
        finally:
            with self._lock:
                del self._creating[name]
            done.set()

    async def _is_same(self, info: ObjectInfo, data: Octets) -> bool:
        """Whether an object has these octets; False when it is gone by now. PreconditionFailed for other octets."""
        try:
            found = await self._octets(info)
        except ObjectMissingError:
            return False
        if not await self._in_thread(operator.eq, found, data):
            raise PreconditionFailed(f"object {info.name!r} exists with other content, and objects never change")
        return True

    def _create(self, name: str, data: Octets, owner: str) -> ObjectInfo:
        info = ObjectInfo(name, self._version(), len(data), owner)

        def enter() -> None:
            self._table.add(info, self._clock())
            self._levels.add_to_disk(info)
            if isinstance(data, bytes):
                self._levels.keep_in_memory(name, data)
            self._counts["puts"] += 1

        self._room.write(info, data, enter)
        return info

    def _put_at_once(self, name: str, segment: Sealed, owner: str) -> ObjectInfo | None:
        """Put a segment into host memory, if it is new and there is room."""
        with self._lock:
            self._check_not_awaited(name)
            fits = self._levels.host.fits(segment.size)
            if not fits or not self._is_listed or name in self._creating or self._table.look(name) is not None:
                return None
            return self._enter_sealed(name, segment, owner)

    def _create_sealed(self, name: str, segment: Sealed, owner: str) -> ObjectInfo:
        """Put a segment into host memory, or else to disk. In a thread."""
        if self._is_listed and self._room.make_host_room(segment.size):
            with self._lock:
                self._levels.host.coming -= segment.size
                info = self._enter_sealed(name, segment, owner)
            if info is not None:
                return info
        return self._create(name, segment.view(), owner)

    def _enter_sealed(self, name: str, segment: Sealed, owner: str) -> ObjectInfo | None:
        try:
            own = segment.share()
        except OSError:  # no descriptor is left: the disk needs none
            return None
        info = ObjectInfo(name, self._version(), segment.size, owner)
        self._table.add(info, self._clock())
        self._levels.host.add(name, info.size, own)
        self._counts["puts"] += 1
        return info

    # -- getting ------------------------------------------------------------------------------------------------------

    def _use(self, name: str) -> ObjectInfo:
        with self._lock:
            self.check_known(name)
            return self._levels.use(name, self._clock())

    async def _octets(self, info: ObjectInfo) -> Octets:
        """An object's octets, from the fastest level that has them whole. ObjectMissingError, StoreUnavailableError."""
        self._count_reading(info)
        while True:
            with self._lock:
                if self._table.look(info.name) != info:
                    raise ObjectMissingError(f"there is no object {info.name!r}, or it was evicted")
                data: Octets | None = self._levels.memory.get(info.name)
                segment = self._levels.host.get(info.name)
                on_disk = info.name in self._levels.disk
            if data is None and segment is not None:
                data = segment.view()
            elif data is None and on_disk:
                data = await self._in_thread(self._read, info)
            elif data is None and self.network is not None:
                data = await self._fetch(self.network, info)
            if data is not None:
                return data

    def _count_reading(self, info: ObjectInfo) -> None:
        with self._lock:
            for level in self._levels.all:
                if info.name in level:
                    level.counts.hits += 1
                    return
                level.counts.misses += 1

    def _read(self, info: ObjectInfo, *, moving: bool = False) -> bytes | None:
        """An object's octets on disk; None when they are not there any more, or damaged. In a thread.

        `moving`: the caller has put it into `Room.moving`.
        """
        try:
            data = self._files.read(info)
        except OSError as fault:
            raise StoreUnavailableError(f"object {info.name!r} cannot be read: {fault.strerror}") from None
        with self._lock:
            present = self._table.look(info.name) == info
            if data is not None:
                if present and self._levels.keep_in_memory(info.name, data):
                    self._levels.memory.counts.promotions += 1
                return data
            if not present or (not moving and info.name in self._room.moving) or info.name not in self._levels.disk:
                return None
            log.error("object %r: its file is damaged", info.name)
            self._levels.drop_from_disk(info.name)
            self._lose_if_last(info)
            self._room.moving.add(info.name)
        self._room.remove_copies([info])
        return None

    async def _fetch(self, network: Below, info: ObjectInfo) -> bytes | None:
        """An object's octets from the network, copied into the levels above; None when it has them no more."""
        data = await network.get(info)
        if data is None:
            with self._lock:
                if self._table.look(info.name) == info and self._levels.drop_from_network(info.name):
                    self._lose_if_last(info)
            return None
        await self._in_thread(self._raise, info, data)
        return data

    def _raise(self, info: ObjectInfo, data: bytes) -> None:
        """Copy an object into process memory and, if no object must go for it, to disk. In a thread."""
        with self._lock:
            if self._table.look(info.name) == info and self._levels.keep_in_memory(info.name, data):
                self._levels.memory.counts.promotions += 1
        try:
            if self._room.write_down(info, data, evict=False):
                self._levels.disk.counts.promotions += 1
        except (StoreFullError, StoreUnavailableError):
            return  # it has been read, which is what was asked for

    async def bring_up(self, name: str) -> None:
        """Copy an object to disk, if it is in the network alone. StoreFullError, StoreUnavailableError."""
        with self._lock:
            info = self._table.look(name)
            if info is None or name in self._levels.disk or name in self._levels.host:
                return
        await self._in_thread(self._room.write_down, info, await self._octets(info))

    def _sealed(self, info: ObjectInfo, data: Octets) -> Sealed:
        """A segment of an object's octets, kept in host memory if there is room. In a thread."""
        try:
            segment = Sealed.of(data)
        except OSError as fault:
            raise _unshared(info.name, fault) from None
        if not self._room.make_host_room(info.size):
            return segment
        with self._lock:
            self._levels.host.coming -= info.size
            if self._table.look(info.name) == info and info.name not in self._levels.host:
                self._levels.host.add(info.name, info.size, _shared(segment, info.name))
                self._levels.host.counts.promotions += 1
        return segment

    def _lose_if_last(self, info: ObjectInfo) -> None:
        if not self._levels.has_home(info.name):
            self._table.lose(info.name)
            self._room.forget(info)
            self._counts["lost"] += 1
            log.error("object %r: its last copy is damaged or gone; it counts as evicted", info.name)


def _shared(segment: Sealed, name: str) -> Sealed:
    try:
        return segment.share()
    except OSError as fault:
        raise _unshared(name, fault) from None


def _unshared(name: str, fault: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(f"object {name!r} cannot be shared: {fault.strerror}")
