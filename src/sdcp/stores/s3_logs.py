"""Commit logs in a store that speaks S3 (docs/decisions.md, D42): one key for each append, named by its first octet.

    logs/{name}/{octet:016d}

An append creates the key at which the log ends, on the condition that it is not there: of writers that knew the same
log one wins, and it costs what the record costs. A tag is the log's size, which only grows, and something of its name,
so that the tag of another log makes no hole in this one. To read n records: one list request for each thousand of them,
and n requests of octets, many at once.

The store cannot refuse a stale epoch: who appends reads back (6.8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile

from sdcp.errors import MalformedBody
from sdcp.ports import Entry, LogDamagedError, LogMovedError, LogSlice
from sdcp.stores.records import epochs_of
from sdcp.stores.s3_bucket import Bucket, Key

LONGEST_APPEND = 1 << 20
LONGEST_READ = 64 << 20
_BACK = (0, 1 << 12, LONGEST_APPEND)
"""How far before an octet its record is looked for, one after the other; then from the log's beginning."""

_DIGITS = 16


@dataclass(frozen=True, slots=True)
class _Part:
    """What one append added: octets `start` to `end` of the log."""

    key: Key
    start: int

    @property
    def end(self) -> int:
        return self.start + self.key.size


class Logs:
    """The logs of one bucket's folder."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def append(self, name: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`; MalformedBody for what are no records."""
        size = _size(name, etag)
        if not data or len(data) > LONGEST_APPEND:
            raise MalformedBody(f"an append has 1 to {LONGEST_APPEND} octets, not {len(data)}")
        for _ in epochs_of(data):
            pass
        if not await self._bucket.create(_path(name, size), data, once=True):
            raise LogMovedError(f"log {name!r} has moved; read it again")
        return _tag(name, size + len(data))

    async def read(self, name: str, start: int, stop: int | None) -> LogSlice:
        """See `Cache.read_log`. LogDamagedError when a key is gone; ValueError when there is too much to read."""
        parts = await self._parts(name, start)
        if not parts:
            return LogSlice(start, b"", None)
        whole = list(_joined(parts, 0 if parts[0].start > start else parts[0].start))
        data = await self._octets(whole, start, stop)
        if len(whole) < len(parts):
            intact = whole[-1].end if whole else 0
            raise LogDamagedError(f"log {name!r}: octets {intact} to {parts[len(whole)].start} are gone", intact, data)
        return LogSlice(start, data, _tag(name, parts[-1].end))

    async def entries(self, prefix: str, after: str, limit: int, now: float) -> list[Entry]:
        """Logs as `Cache.listing` shows them. All names of logs are asked for, and all keys of those that are shown."""
        names = [name for name in await self._bucket.folders("logs") if name > after and name.startswith(prefix)]

        async def entry(name: str) -> Entry:
            last = (await self._parts(name, 0))[-1]
            return Entry(name=name, size=last.end, age_s=max(0.0, now - last.key.at.timestamp()))

        return list(await asyncio.gather(*map(entry, names[:limit])))

    async def _parts(self, name: str, start: int) -> list[_Part]:
        """What the log holds from the part that has octet `start`, or ends there, to its end; all if there is none."""
        for back in _BACK:
            if start <= back:
                break
            found = await self._parts_after(name, start - back)
            if found and found[0].start <= start:
                return found
        return await self._parts_after(name, 0)

    async def _parts_after(self, name: str, octet: int) -> list[_Part]:
        after = f"{octet - 1:0{_DIGITS}d}" if octet else ""
        keys = await self._bucket.keys(f"logs/{name}", after=after)
        return [_Part(key, int(key.path.rpartition("/")[2])) for key in keys]

    async def _octets(self, parts: Iterable[_Part], start: int, stop: int | None) -> bytes:
        wanted = [part for part in parts if part.end > start and (stop is None or part.start < stop)]
        if sum(part.key.size for part in wanted) > LONGEST_READ:
            raise ValueError(f"more than the {LONGEST_READ} octets that are read at once; say where to stop")
        if not wanted:
            return b""
        pieces = await asyncio.gather(*map(self._piece, wanted))
        octets = b"".join(pieces)
        first = wanted[0].start
        return octets[max(0, start - first) : None if stop is None else max(0, stop - first)]

    async def _piece(self, part: _Part) -> bytes:
        found = await self._bucket.get(part.key.path, at_most=part.key.size)
        if found is None or found[0].size != part.key.size:
            raise LogDamagedError(f"{part.key.path} is gone, or is not what it was", part.start)
        return bytes(found[1])


def _joined(parts: Iterable[_Part], start: int) -> Iterable[_Part]:
    """The first of them, as long as each begins where the one before it ended, the first one at `start`."""
    end = start

    def follows(part: _Part) -> bool:
        nonlocal end
        fits, end = part.start == end, part.end
        return fits

    return takewhile(follows, parts)


def _path(name: str, octet: int) -> str:
    return f"logs/{name}/{octet:0{_DIGITS}d}"


def _tag(name: str, size: int) -> str:
    return f"{size}.{sha256(name.encode()).hexdigest()[:8]}"


def _size(name: str, etag: str | None) -> int:
    if etag is None:
        return 0
    size = etag.partition(".")[0]
    if not size.isdecimal() or etag != _tag(name, int(size)) or int(size) == 0:
        raise LogMovedError(f"{etag!r} is no entity tag of this log")
    return int(size)
