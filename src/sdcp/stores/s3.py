"""A cache in a store that speaks S3 (docs/decisions.md, D42): `s3://bucket/folder?endpoint=https://…`.

    objects/{name}     an object, created on the condition that it is not there; its creator is noted in its metadata
    logs/{name}/{…}    a commit log                                                 (`sdcp.stores.s3_logs`)
    leases, leased     what S3 does not know by itself                              (`sdcp.stores.s3_leases`)

The store must take `If-None-Match: *` seriously, and list what was written: both are checked before it is used. It
refuses no stale epoch, so writers of its logs read back (6.8). It evicts nothing: what nobody deletes is removed by
`sdcp cache gc`.

Not here: who may do what. Whoever has credentials for the bucket may do what they allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Self

from sdcp.errors import ConfigurationError, Conflict
from sdcp.ports import (
    Entry,
    Kind,
    LogSlice,
    ObjectMissingError,
    SilentCacheError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.stores import s3_leases
from sdcp.stores.naming import Naming, fresh_name
from sdcp.stores.s3_bucket import Bucket, Key
from sdcp.stores.s3_leases import Leases
from sdcp.stores.s3_logs import Logs
from sdcp.stores.s3_place import parse_place

_TRIES = 3
_REFUSED = "status code: 4"  # the store has answered: no such bucket, no such key, not allowed
_LETTERS = f"-.{digits}{ascii_uppercase}_{ascii_lowercase}~"  # of names, in the order of their octets


class S3Cache(Naming):
    """`sdcp.ports.Cache` in one folder of a bucket, for one owner."""

    def __init__(self, bucket: Bucket, *, base: str, owner: str = "local") -> None:
        """`base`: what refs begin with, without a slash at its end. `bucket` is closed with this cache."""
        self.owner = owner
        self._bucket = bucket
        super().__init__(base)
        self._logs = Logs(bucket)
        self._leases = Leases(bucket, owner)

    @classmethod
    async def open(cls, uri: str, *, owner: str = "local", deadline_s: float = 5.0) -> Self:
        """Connect, and check that the store keeps conditions. Raises ConfigurationError.

        `deadline_s` covers each request with all its tries.
        """
        place = parse_place(uri)
        store, once = (place.connect(deadline_s, retries=retries) for retries in (_TRIES, 0))
        cache = cls(Bucket(store, once, deadline_s=deadline_s), base=place.base, owner=owner)
        try:
            await cache.check()
        except BaseException:
            await cache.close()
            raise
        return cache

    async def check(self) -> None:
        """Check that what is there is not written over, and that what was written is listed. ConfigurationError."""
        probe = f"probes/{fresh_name()}"
        try:
            await self._bucket.create(probe, b"1", once=True)
            twice = await self._bucket.create(probe, b"2", once=True)
            listed = any(key.path == probe for key in await self._bucket.keys("probes"))
            await self._bucket.delete([probe])
        except (StoreUnavailableError, StoreFullError) as fault:
            kind = ConfigurationError if _REFUSED in str(fault) else SilentCacheError
            raise kind(f"cache {self._base} cannot be used: {fault}") from None
        if twice:
            raise ConfigurationError(
                f"cache {self._base}: this store ignores `If-None-Match: *`, so one writer's record would replace "
                "another's; use a store with conditional writes"
            )
        if not listed:
            raise ConfigurationError(
                f"cache {self._base}: this store does not list what was written just before, so a log's end cannot be "
                "found; use a store whose lists are consistent"
            )

    async def close(self) -> None:
        """See `Cache.close`."""
        self._bucket.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """See `Cache.create`."""
        name = name or fresh_name()
        octets = memoryview(data).cast("B")
        if not await self._bucket.create(f"objects/{name}", octets, owner=self.owner):
            await self._check_same(name, octets)
        return self.ref_of("objects", name)

    async def _check_same(self, name: str, octets: memoryview) -> None:
        try:
            found = await self._bucket.get(f"objects/{name}", at_most=octets.nbytes)
        except ValueError:
            found = None
        if found is None or found[1] != octets:
            raise Conflict(f"object {name!r} exists with other content, and objects never change")

    async def fetch(self, ref: str, *, at_most: int) -> memoryview:
        """See `Cache.fetch`."""
        found = await self._bucket.get(f"objects/{self._name(ref, 'objects')}", at_most=at_most)
        if found is None:
            raise ObjectMissingError(f"{ref} is absent")
        return found[1]

    async def delete(self, ref: str) -> None:
        """See `Cache.delete`."""
        await self._leases.delete(self._name(ref, "objects"))

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """See `Cache.lease`. Forbidden when the lease is another owner's."""
        names = [self._name(ref, "objects") for ref in refs]
        await self._leases.take(lease, names, ttl_ms)

    async def release(self, lease: str) -> None:
        """See `Cache.release`. Forbidden when the lease is another owner's."""
        await self._leases.release(lease)

    async def sweep(self) -> None:
        """See `Cache.sweep`."""
        await self._leases.sweep()

    # -- logs ---------------------------------------------------------------------------------------------------------

    def enforces_fences(self, ref: str) -> bool:
        """See `Cache.enforces_fences`: S3 reads no records."""
        return False

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`. Sent once: without an answer it is unknown whether it was done."""
        return await self._logs.append(self._name(ref, "logs"), data, etag)

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """See `Cache.read_log`."""
        return await self._logs.read(self._name(ref, "logs"), start, stop)

    # -- what is there ------------------------------------------------------------------------------------------------

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Cache.listing`. Owners of objects are not told; a page of logs costs a list of all their names."""
        now = await self._leases.now()
        if kind == "logs":
            return await self._logs.entries(prefix, after, limit, now)
        leases = await self._leases.live(now)
        if kind == "leases":
            names = sorted(name for name in leases if name > after and name.startswith(prefix))
            return [s3_leases.entry(name, leases[name], now) for name in names[:limit]]
        held = s3_leases.held_by(leases)
        entries = [_entry(key, held, now) for key in await self._objects(prefix, after, limit)]
        return [each for each in entries if each.name > after and each.name.startswith(prefix)][:limit]

    async def _objects(self, prefix: str, after: str, limit: int) -> list[Key]:
        def more(found: Sequence[Key]) -> bool:
            names = [key.path.rpartition("/")[2] for key in found]
            past = bool(prefix) and names[-1] > prefix and not names[-1].startswith(prefix)
            return not past and sum(name.startswith(prefix) and name > after for name in names) < limit

        return await self._bucket.keys("objects", after=max(after, _before(prefix)), wanted=more)


def _entry(key: Key, held: set[str], now: float) -> Entry:
    name = key.path.rpartition("/")[2]
    return Entry(name=name, size=key.size, age_s=max(0.0, now - key.at.timestamp()), leased=name in held)


def _before(prefix: str) -> str:
    """A string before all names that begin with `prefix`, and after almost all that come before them."""
    rest, last = prefix[:-1], prefix[-1:]
    lower = _LETTERS[: _LETTERS.find(last)][-1:] if last else ""
    return f"{rest}{lower}~" if lower else rest
