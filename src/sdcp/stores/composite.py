"""Several caches as one: each ref goes to the cache under whose prefix it is (D11, docs/decisions.md D42)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sdcp.errors import Forbidden
from sdcp.ports import Cache, Entry, Kind, LogSlice, ObjectMissingError, StoreFullError, StoreUnavailableError


class CompositeCache:
    """`sdcp.ports.Cache` over `caches`: new objects go to the first of them, new logs to `logs`, which is one too."""

    def __init__(self, caches: Sequence[Cache], *, logs: Cache) -> None:
        """They are closed with this one."""
        self._caches = tuple(caches)
        self._logs = logs
        self._leased: dict[str, tuple[Cache, ...]] = {}  # which caches know of a lease; most often one

    async def close(self) -> None:
        """See `Cache.close`."""
        for cache in self._caches:
            await cache.close()

    def allows(self, ref: str) -> bool:
        """See `Cache.allows`."""
        return any(cache.allows(ref) for cache in self._caches)

    def allows_log(self, ref: str) -> bool:
        """See `Cache.allows_log`."""
        return any(cache.allows_log(ref) for cache in self._caches)

    def ref_of(self, kind: Kind, name: str) -> str:
        """See `Cache.ref_of`."""
        return self._home(kind).ref_of(kind, name)

    # -- objects ------------------------------------------------------------------------------------------------------

    async def fetch(self, ref: str, *, at_most: int) -> bytes | memoryview:
        """See `Cache.fetch`."""
        return await self._of_object(ref).fetch(ref, at_most=at_most)

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """See `Cache.create`."""
        return await self._home("objects").create(data, name=name)

    async def delete(self, ref: str) -> None:
        """See `Cache.delete`."""
        await self._of_object(ref).delete(ref)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """See `Cache.lease`. All or nothing over several caches too: if one refuses, the others are released."""
        held: dict[Cache, list[str]] = {}
        for ref in refs:
            held.setdefault(self._of_object(ref), []).append(ref)
        before = self._leased.get(lease, ())
        self._leased[lease] = tuple(dict.fromkeys((*before, *held)))
        try:
            for cache, names in held.items():
                await cache.lease(lease, names, ttl_ms)
        except (ObjectMissingError, StoreFullError, Forbidden):
            if not before:
                await self._give_back(lease, held)
            raise
        self._leased[lease] = tuple(held)
        for cache in before:
            if cache not in held:
                await cache.release(lease)

    async def _give_back(self, lease: str, held: Iterable[Cache]) -> None:
        """Release what some of them gave before one refused; what does not answer, or never gave, is left to time."""
        del self._leased[lease]
        for cache in held:
            with suppress(StoreUnavailableError, Forbidden):
                await cache.release(lease)

    async def release(self, lease: str) -> None:
        """See `Cache.release`."""
        # Forgotten whether or not the caches answer: a lease that cannot be given back ends by time.
        for cache in self._leased.pop(lease, (self._home("leases"),)):
            await cache.release(lease)

    async def sweep(self) -> None:
        """See `Cache.sweep`."""
        await asyncio.gather(*(cache.sweep() for cache in self._caches))

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Cache.listing`."""
        return await self._home(kind).listing(kind, prefix, after, limit)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def enforces_fences(self, ref: str) -> bool:
        """See `Cache.enforces_fences`."""
        return self._of_log(ref).enforces_fences(ref)

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`."""
        return await self._of_log(ref).append(ref, data, etag)

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """See `Cache.read_log`."""
        return await self._of_log(ref).read_log(ref, start, stop)

    # -- which --------------------------------------------------------------------------------------------------------

    def _home(self, kind: Kind) -> Cache:
        return self._logs if kind == "logs" else self._caches[0]

    def _of_object(self, ref: str) -> Cache:
        for cache in self._caches:
            if cache.allows(ref):
                return cache
        raise ValueError(f"{ref} is none of the objects under the configured cache prefixes")

    def _of_log(self, ref: str) -> Cache:
        for cache in self._caches:
            if cache.allows_log(ref):
                return cache
        raise ValueError(f"{ref} is none of the logs under the configured cache prefixes")
