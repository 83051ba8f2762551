"""A store in this process's memory: for tests, and for a whole deployment in one process.

It keeps every promise of docs/mlc.md but durability: when the process ends, all is gone, fences too. So a router and
its verifiers may share one only while they share the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from sdcp.errors import PreconditionFailed
from sdcp.ports import Entry, Kind, LogMovedError, StoreFullError
from sdcp.stores.local import LocalCache
from sdcp.stores.records import NO_RECORDS, advance
from sdcp.stores.sealed import Sealed
from sdcp.stores.store import LogState, ObjectInfo
from sdcp.stores.table import Table, page

CAPACITY = 1 << 30
_SWEPT = 1000  # idle objects at a time


@dataclass(slots=True)
class _Log:
    state: LogState
    touched: float
    octets: bytearray = field(default_factory=bytearray)


class MemoryStore:
    """`sdcp.stores.store.Store` in dicts, for at most `capacity` octets of objects and logs together.

    `idle_s`: how long an object stays that no lease holds and nobody uses; None: until its room is needed.
    """

    def __init__(
        self,
        capacity: int = CAPACITY,
        *,
        idle_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity = capacity
        self._idle_s = idle_s
        self._clock = clock
        self._table = Table()
        self._octets: dict[str, bytes] = {}
        self._sealed: dict[str, Sealed] = {}  # an object is here or in `_octets`
        self._logs: dict[str, _Log] = {}
        self._log_size = 0
        self._versions = count(1)
        self._evictions = 0
        self._idle = 0

    # -- objects ------------------------------------------------------------------------------------------------------

    async def put(self, name: str, data: bytes | memoryview, owner: str) -> tuple[ObjectInfo, bool]:
        """See `Store.put`."""
        found = self._table.look(name)
        if found is not None:
            return self._same(found, data)
        info = self._enter(name, len(data), owner)
        self._octets[name] = bytes(data)
        return info, True

    async def put_sealed(self, name: str, segment: Sealed, owner: str) -> tuple[ObjectInfo, bool]:
        """See `SharedStore.put_sealed`."""
        with segment:
            found = self._table.look(name)
            if found is not None:
                return self._same(found, segment.view())
            info = self._enter(name, segment.size, owner)
            self._sealed[name] = segment.share()
            return info, True

    def look(self, name: str) -> ObjectInfo | None:
        """See `Store.look`."""
        return self._table.look(name)

    async def get(self, name: str) -> tuple[ObjectInfo, bytes]:
        """See `Store.get`."""
        info = self._table.use(name, self._clock())
        return info, bytes(self._content(name))

    async def get_sealed(self, name: str) -> tuple[ObjectInfo, Sealed]:
        """See `SharedStore.get_sealed`."""
        info = self._table.use(name, self._clock())
        if name not in self._sealed:
            self._sealed[name] = Sealed.of(self._octets[name])
            del self._octets[name]
        return info, self._sealed[name].share()

    async def delete(self, name: str) -> None:
        """See `Store.delete`."""
        self._expire()
        self._table.remove(name)
        self._forget(name)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        """See `Store.take_lease`."""
        self._expire()
        self._table.take(lease, owner, names, ttl_ms, self._clock())

    async def release_lease(self, lease: str, owner: str) -> None:
        """See `Store.release_lease`."""
        self._table.release(lease, owner, self._clock())

    async def sweep(self) -> None:
        """See `Store.sweep`."""
        self._expire()
        while self._idle_s is not None and (gone := self._table.idle(self._clock() - self._idle_s, _SWEPT)):
            for info in gone:
                self._forget(info.name)
            self._idle += len(gone)

    # -- logs ---------------------------------------------------------------------------------------------------------

    async def append(self, log: str, data: bytes, version: int | None) -> LogState:
        """See `Store.append`."""
        kept = self._logs.get(log)
        if (kept.state.version if kept else None) != version:
            raise LogMovedError(f"log {log!r} has moved; read it again")
        fence, epoch = advance((kept.state.fence, kept.state.epoch) if kept else NO_RECORDS, data)
        self._make_room(len(data))
        state = LogState(next(self._versions), (kept.state.size if kept else 0) + len(data), fence, epoch)
        kept = self._logs.setdefault(log, _Log(state, 0.0))
        kept.octets += data
        kept.state, kept.touched = state, self._clock()
        self._log_size += len(data)
        return state

    def log_state(self, log: str) -> LogState | None:
        """See `Store.log_state`."""
        kept = self._logs.get(log)
        return kept.state if kept else None

    async def read_log(self, log: str, start: int, stop: int | None = None) -> tuple[bytes, LogState | None]:
        """See `Store.read_log`."""
        kept = self._logs.get(log)
        return (bytes(kept.octets[start:stop]), kept.state) if kept else (b"", None)

    # -- the whole ----------------------------------------------------------------------------------------------------

    def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Store.listing`."""
        now = self._clock()
        if kind == "objects":
            return self._table.list_objects(prefix, after, limit, now, lambda _: "memory")
        if kind == "leases":
            return self._table.list_leases(prefix, after, limit, now)
        named = ((name, self._logs[name]) for name in page(self._logs, prefix, after, limit))
        return [
            Entry(name, kept.state.size, kept.state.version, age_s=now - kept.touched, level="memory")
            for name, kept in named
        ]

    def figures(self) -> Mapping[str, int]:
        """See `Store.figures`."""
        return {
            "objects": len(self._table),
            "object_octets": self._table.size,
            "leased_octets": self._table.leased_size,
            "leases": len(self._table.leases),
            "evictions": self._evictions,
            "idle": self._idle,
            "logs": len(self._logs),
            "log_octets": self._log_size,
        }

    def level_figures(self) -> Mapping[str, Mapping[str, int]]:
        """See `Store.level_figures`: one level, for logs too."""
        return {
            "memory": {
                "limit": self.capacity,
                "octets": self._table.size + self._log_size,
                "objects": len(self._table),
                "leased_octets": self._table.leased_size,
                "evictions": self._evictions,
            }
        }

    async def close(self) -> None:
        """Nothing is under way, and nothing is kept."""
        for name in tuple(self._sealed):
            self._forget(name)

    def _same(self, found: ObjectInfo, data: bytes | memoryview) -> tuple[ObjectInfo, bool]:
        if self._content(found.name) != data:
            raise PreconditionFailed(f"object {found.name!r} exists with other content, and objects never change")
        self._table.keep(found.name, self._clock())
        return found, False

    def _enter(self, name: str, size: int, owner: str) -> ObjectInfo:
        """Make room for a new object and enter it in the table; its octets are the caller's to keep."""
        self._make_room(size)
        info = ObjectInfo(name, next(self._versions), size, owner)
        self._table.add(info, self._clock())
        return info

    def _content(self, name: str) -> bytes | memoryview:
        segment = self._sealed.get(name)
        return self._octets[name] if segment is None else segment.view()

    def _forget(self, name: str) -> None:
        self._octets.pop(name, None)
        segment = self._sealed.pop(name, None)
        if segment is not None:
            segment.close()

    def _expire(self) -> None:
        self._table.expire(self._clock())

    def _make_room(self, octets: int) -> None:
        over = self._table.size + self._log_size + octets - self.capacity
        if over <= 0:
            return
        self._expire()
        victims = self._table.evict(over)
        if not victims:
            raise StoreFullError(f"no room for {octets} octets: what could be evicted would not make it")
        for victim in victims:
            self._forget(victim.name)
        self._evictions += len(victims)


class MemoryCache(LocalCache):
    """`sdcp.ports.Cache` over a `MemoryStore`; several roles of one process share one through `LocalCache`."""

    def __init__(
        self, store: MemoryStore | None = None, *, owner: str = "local", prefix: str = "memory:/cache/"
    ) -> None:
        super().__init__(store or MemoryStore(), owner=owner, prefix=prefix)
