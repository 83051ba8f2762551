"""The lowest level of a cache: objects in a networked store, behind a port of a few calls (D41).

An object lies there in an *envelope* that says whose octets these are and bears a SHA-256 of all of it, so that what
comes back is what was moved down or nothing. Its name there tells version, owner and name, so that a listing is enough
to know what is kept; a cache needs a URI of its own, since what it does not know there it may remove.

Not here: what is moved, and when (`sdcp.stores.levels_below`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Protocol

from sdcp.ports import Cache, Entry, ObjectMissingError, StoreUnavailableError
from sdcp.stores.store import NAME, ObjectInfo

_HEAD = struct.Struct(">8sQQHH")  # magic, version, size, owner's length, name's length
_MAGIC = b"SDCPNET1"
_DIGEST_SIZE = 32
_PAGE = 1000
_SLOWEST = 8 << 20  # octets per second
KEEPING = ("s3", "valkey", "valkeys", "redis", "rediss", "unix")
"""Schemes of URIs of caches that evict nothing by themselves."""
log = logging.getLogger("sdcp.stores")


class NetworkLevel(Protocol):
    """What the cache asks of the level. Every call ends within a deadline, with StoreUnavailableError at the latest."""

    @property
    def keeps(self) -> bool:
        """Whether what was put stays until it is deleted; if not, it may be evicted there, leased or not."""
        ...

    def takes(self, info: ObjectInfo) -> bool:
        """Whether such an object can be kept there at all."""
        ...

    async def put(self, info: ObjectInfo, data: bytes) -> None:
        """Keep an object; idempotent. StoreFullError, StoreUnavailableError (unknown whether done)."""
        ...

    async def get(self, info: ObjectInfo) -> bytes:
        """The octets that were put, all of them. ObjectMissingError, also when they were altered."""
        ...

    async def delete(self, info: ObjectInfo) -> None:
        """Remove an object; idempotent."""
        ...

    def listing(self) -> AsyncIterator[list[tuple[ObjectInfo, float]]]:
        """All objects, page by page, each with the seconds since it was put there."""
        ...

    async def close(self) -> None:
        """No call comes after it."""
        ...


class CacheLevel:
    """`NetworkLevel` over a `Cache`, whichever: S3, Valkey, another `sdcp cache`."""

    def __init__(
        self,
        cache: Cache | Callable[[], Awaitable[Cache]],
        *,
        keeps: bool,
        deadline_s: float = 10.0,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`cache`, or how to open it, StoreUnavailableError while it does not answer: then a call tries that first.

        `deadline_s` for each call, and more for large objects. `close` is awaited at the end.
        """
        self._cache: Cache | None = None if callable(cache) else cache
        self._open = cache if callable(cache) else None
        self._opening = asyncio.Lock()
        self._keeps = keeps
        self._deadline_s = deadline_s
        self._close = close

    @property
    def keeps(self) -> bool:
        """See `NetworkLevel.keeps`."""
        return self._keeps

    def takes(self, info: ObjectInfo) -> bool:
        """See `NetworkLevel.takes`: not when owner and name together are longer than a name there may be."""
        return NAME.fullmatch(_name(info)) is not None

    async def put(self, info: ObjectInfo, data: bytes) -> None:
        """See `NetworkLevel.put`."""
        async with self._in_time(info) as cache:
            await cache.create(_enveloped(info, data), name=_name(info))

    async def get(self, info: ObjectInfo) -> bytes:
        """See `NetworkLevel.get`."""
        try:
            async with self._in_time(info) as cache:
                envelope = await cache.fetch(cache.ref_of("objects", _name(info)), at_most=info.size + _around(info))
            return _opened(info, envelope)
        except ValueError as fault:
            log.error("object %r: what the network level holds is not what was put there: %s", info.name, fault)
            raise ObjectMissingError(f"there is no object {info.name!r}, or it was evicted") from None

    async def delete(self, info: ObjectInfo) -> None:
        """See `NetworkLevel.delete`."""
        async with self._in_time(info) as cache:
            await cache.delete(cache.ref_of("objects", _name(info)))

    async def listing(self) -> AsyncIterator[list[tuple[ObjectInfo, float]]]:
        """See `NetworkLevel.listing`. What has no name of ours is passed over."""
        after = ""
        while True:
            async with self._in_time(None) as cache:
                entries = await cache.listing("objects", after=after, limit=_PAGE)
            if not entries:
                return
            yield [(info, entry.age_s or 0.0) for entry in entries if (info := _info(entry)) is not None]
            after = entries[-1].name

    async def close(self) -> None:
        """See `NetworkLevel.close`."""
        if self._close is not None:
            await self._close()

    async def _opened(self) -> Cache:
        async with self._opening:
            if self._cache is None:
                assert self._open is not None
                self._cache = await self._open()
        return self._cache

    @asynccontextmanager
    async def _in_time(self, info: ObjectInfo | None) -> AsyncIterator[Cache]:
        what = "its listing" if info is None else f"object {info.name!r}"
        seconds = self._deadline_s + (0 if info is None else info.size / _SLOWEST)
        try:
            async with asyncio.timeout(seconds):
                yield self._cache or await self._opened()
        except TimeoutError:
            raise StoreUnavailableError(f"the network level did not answer for {what} within {seconds:.3g} s") from None


# -- names and envelopes -----------------------------------------------------------------------------------------------


def _name(info: ObjectInfo) -> str:
    owner = base64.urlsafe_b64encode(info.owner.encode()).rstrip(b"=").decode("ascii")
    return f"{info.version:x}.u{owner}.{info.name}"


def _info(entry: Entry) -> ObjectInfo | None:
    """The object that an entry of a listing stands for, or None when it is none of ours."""
    try:
        version, owner, name = entry.name.split(".", 2)
        info = ObjectInfo(name, int(version, 16), 0, base64.urlsafe_b64decode(f"{owner[1:]}==").decode())
    except (ValueError, binascii.Error):
        return None
    size = entry.size - _around(info)
    if size < 0 or _name(info) != entry.name or NAME.fullmatch(name) is None:
        return None
    return ObjectInfo(name, info.version, size, info.owner)


def _around(info: ObjectInfo) -> int:
    """Octets of the envelope beside those of the object."""
    return _HEAD.size + len(info.owner.encode()) + len(info.name) + _DIGEST_SIZE


def _front(info: ObjectInfo) -> bytes:
    owner = info.owner.encode()
    head = _HEAD.pack(_MAGIC, info.version, info.size, len(owner), len(info.name))
    return head + owner + info.name.encode("ascii")


def _enveloped(info: ObjectInfo, data: bytes) -> bytes:
    front = _front(info)
    digest = sha256(front)
    digest.update(data)
    return b"".join((front, data, digest.digest()))


def _opened(info: ObjectInfo, envelope: bytes | memoryview) -> bytes:
    """The object's octets. Raises ValueError when the envelope is another's, or was altered."""
    front = _front(info)
    view = memoryview(envelope)
    if len(view) != info.size + _around(info) or view[: len(front)] != front:
        raise ValueError("it is another object")
    if sha256(view[:-_DIGEST_SIZE]).digest() != view[-_DIGEST_SIZE:]:
        raise ValueError("its digest is another")
    return bytes(view[len(front) : -_DIGEST_SIZE])
