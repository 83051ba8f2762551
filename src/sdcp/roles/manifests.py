"""The manifests of a router in its cache: how they are named, found and read (D45).

Words: a *tag* is what the names of one router's manifests begin with. The name goes on with the request's identifier,
so a request can be looked for without reading anything, and ends in 128 random bits.

Not here: what a manifest says (`sdcp.machines.manifest`), and going on with a session (`sdcp.roles.router`).
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sdcp.errors import ProblemError
from sdcp.http.resources import encode_id
from sdcp.machines.manifest import Manifest
from sdcp.messages.manifest import EndRecord, TakenRecord
from sdcp.ports import (
    Cache,
    Entry,
    LogDamagedError,
    LogFencedError,
    LogMovedError,
    NoListingError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)

logger = logging.getLogger("sdcp.roles")

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """A manifest that was read. `age_s`: since its last record, None where the cache does not know."""

    ref: str
    manifest: Manifest
    etag: str | None
    age_s: float | None


class Manifests:
    """The manifests of the router `name` and, at the start, of those that it takes over.

    `listable`: whether the cache lists its logs; if not, nothing is found again.
    """

    def __init__(self, cache: Cache, name: str, take_over: Sequence[str] = (), horizon_s: float = 86_400.0) -> None:
        self.name = name
        self.life = secrets.token_bytes(16)
        self.listable = True
        self._cache = cache
        self._names = (name, *take_over)
        self._horizon_s = horizon_s

    # ---- names -------------------------------------------------------------------------------------------------------

    def new(self, request: bytes) -> tuple[str, str]:
        """Return the URIs of a commit log and of a manifest for a request; nothing is created."""
        name = f"{_tag(self.name)}-{encode_id(request)}-{secrets.token_hex(16)}"
        return self._cache.ref_of("logs", f"c{name}"), self._cache.ref_of("logs", f"m{name}")

    def taken(self) -> TakenRecord:
        """Return the record that this life takes a session up."""
        return TakenRecord(router=self.name, life=self.life)

    # ---- finding -----------------------------------------------------------------------------------------------------

    async def find(self, request: bytes) -> list[Found]:
        """Return the manifests of one request, most often none or one. StoreUnavailableError."""
        found = []
        for name in self._names:
            for entry in await self._list(f"m{_tag(name)}-{encode_id(request)}-"):
                read = await self.read(entry)
                found += [read] if read is not None else []
        return found

    async def all(self) -> list[Entry]:
        """Return all manifests that may still matter, the one with the latest record first. StoreUnavailableError."""
        entries: list[Entry] = []
        for name in self._names:
            entries += await self._list(f"m{_tag(name)}-")
        recent = [entry for entry in entries if entry.age_s is None or entry.age_s <= self._horizon_s]
        return sorted(recent, key=lambda entry: entry.age_s or 0.0)

    async def read(self, entry: Entry) -> Found | None:
        """Return what a manifest says; None for one that is not ours to read. StoreUnavailableError."""
        ref = self._cache.ref_of("logs", entry.name)
        try:
            read = await self._cache.read_log(ref)
            manifest = Manifest()
            manifest.take(read.data)
            ours = manifest.whole and manifest.first.router in self._names
        except (ProblemError, LogDamagedError, ObjectMissingError, ValueError) as fault:
            logger.warning("the manifest %s cannot be read, and its session is left alone: %s", ref, fault)
            return None
        return Found(ref, manifest, read.etag, entry.age_s) if ours else None

    async def close(self, found: Found, record: EndRecord) -> None:
        """Write down that a session has ended that nobody was told of; if that fails, the next life does it."""
        try:
            numbered = replace(record, epoch=found.manifest.last + 1)
            await self._cache.append(found.ref, numbered.encode(), found.etag)
        except (LogMovedError, LogFencedError, StoreFullError, StoreUnavailableError) as fault:
            logger.warning("the manifest %s of a session that nobody knows stays open: %s", found.ref, fault)

    async def _list(self, prefix: str) -> list[Entry]:
        entries: list[Entry] = []
        while self.listable:
            try:
                page = await self._cache.listing("logs", prefix, entries[-1].name if entries else "", PAGE)
            except NoListingError as fault:
                self.listable = False
                logger.warning("no session can be taken up again: %s", fault)
                break
            entries += page
            if len(page) < PAGE:
                break
        return entries


def _tag(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]
