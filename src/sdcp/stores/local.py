"""A store of this process behind `sdcp.ports.Cache`: URIs in, names out, no network.

Not here: roles. In one process there is nobody to keep apart; an owner still cannot end another's lease.
"""

from __future__ import annotations

from collections.abc import Sequence

from sdcp.errors import Conflict, PreconditionFailed
from sdcp.ports import Entry, Kind, LogMovedError, LogSlice, ObjectMissingError
from sdcp.stores.naming import Naming, fresh_name
from sdcp.stores.store import Store


class LocalCache(Naming):
    """`sdcp.ports.Cache` over `store`, for one owner: `<prefix>objects/<name>`, `<prefix>logs/<name>`."""

    def __init__(self, store: Store, *, owner: str, prefix: str) -> None:
        """`prefix` ends in a slash; whoever shares a store uses the same."""
        self.store = store
        self.owner = owner
        super().__init__(prefix.removesuffix("/"))

    async def close(self) -> None:
        """See `Cache.close`. The store stays: others may share it."""

    async def fetch(self, ref: str, *, at_most: int) -> bytes:
        """See `Cache.fetch`; what is returned is not copied."""
        info, data = await self.store.get(self._name(ref, "objects"))
        if info.size > at_most:
            raise ValueError(f"{ref} has {info.size} octets, and at most {at_most} are read")
        return data

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """See `Cache.create`."""
        name = name or fresh_name()
        try:
            await self.store.put(name, data, self.owner)
        except PreconditionFailed as other:
            raise Conflict(other.detail) from None
        return self.ref_of("objects", name)

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """See `Cache.lease`."""
        await self.store.take_lease(lease, self.owner, [self._name(ref, "objects") for ref in refs], ttl_ms)

    async def release(self, lease: str) -> None:
        """See `Cache.release`."""
        await self.store.release_lease(lease, self.owner)

    async def delete(self, ref: str) -> None:
        """See `Cache.delete`."""
        try:
            await self.store.delete(self._name(ref, "objects"))
        except (ObjectMissingError, Conflict):
            return

    def enforces_fences(self, ref: str) -> bool:
        """See `Cache.enforces_fences`: our stores do."""
        return True

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`."""
        state = await self.store.append(self._name(ref, "logs"), data, _version(etag))
        return str(state.version)

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """See `Cache.read_log`."""
        data, state = await self.store.read_log(self._name(ref, "logs"), start, stop)
        return LogSlice(start, data, None if state is None else str(state.version))

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Cache.listing`."""
        return self.store.listing(kind, prefix, after, limit)

    async def sweep(self) -> None:
        """See `Cache.sweep`."""
        await self.store.sweep()


def _version(etag: str | None) -> int | None:
    if etag is None:
        return None
    if not etag.isdecimal():
        raise LogMovedError(f"{etag!r} is no entity tag of this store")
    return int(etag)
