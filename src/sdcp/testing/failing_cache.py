"""A cache that fails when it is told to: a fake for tests of what stands on one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sdcp.ports import Cache, Entry, Kind, LogSlice, StoreUnavailableError


class FailingCache:
    """`sdcp.ports.Cache` in front of `behind`.

    failing: nothing is done, and StoreUnavailableError says so. unheard: it is done, and the answer is lost. silent: no
    answer ever comes. `calls` counts what was asked.
    """

    def __init__(self, behind: Cache) -> None:
        self.behind = behind
        self.failing = False
        self.unheard = False
        self.silent = False
        self.calls = 0

    def allows(self, ref: str) -> bool:
        """See `Cache.allows`."""
        return self.behind.allows(ref)

    def allows_log(self, ref: str) -> bool:
        """See `Cache.allows_log`."""
        return self.behind.allows_log(ref)

    def ref_of(self, kind: Kind, name: str) -> str:
        """See `Cache.ref_of`."""
        return self.behind.ref_of(kind, name)

    def enforces_fences(self, ref: str) -> bool:
        """See `Cache.enforces_fences`."""
        return self.behind.enforces_fences(ref)

    async def fetch(self, ref: str, *, at_most: int) -> bytes | memoryview:
        """See `Cache.fetch`."""
        await self._before()
        found = await self.behind.fetch(ref, at_most=at_most)
        self._after()
        return found

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """See `Cache.create`."""
        await self._before()
        ref = await self.behind.create(data, name=name)
        self._after()
        return ref

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """See `Cache.lease`."""
        await self._before()
        await self.behind.lease(lease, refs, ttl_ms)
        self._after()

    async def release(self, lease: str) -> None:
        """See `Cache.release`."""
        await self._before()
        await self.behind.release(lease)
        self._after()

    async def delete(self, ref: str) -> None:
        """See `Cache.delete`."""
        await self._before()
        await self.behind.delete(ref)
        self._after()

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Cache.listing`."""
        await self._before()
        entries = await self.behind.listing(kind, prefix, after, limit)
        self._after()
        return entries

    async def sweep(self) -> None:
        """See `Cache.sweep`."""
        await self.behind.sweep()

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`."""
        await self._before()
        tag = await self.behind.append(ref, data, etag)
        self._after()
        return tag

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """See `Cache.read_log`."""
        await self._before()
        found = await self.behind.read_log(ref, start, stop)
        self._after()
        return found

    async def close(self) -> None:
        """See `Cache.close`."""
        await self.behind.close()

    async def _before(self) -> None:
        self.calls += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.failing:
            raise StoreUnavailableError("this cache was told to fail")

    def _after(self) -> None:
        if self.unheard:
            raise StoreUnavailableError("this cache was told to lose its answers")
