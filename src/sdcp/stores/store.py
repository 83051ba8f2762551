"""What a store of the multi-level cache does, whatever it is made of (docs/mlc.md).

Words: a *version* is the number behind an entity tag; it rises with every change in the store and never comes twice,
not after delete and re-create, not after a restart. An *owner* is who created an object or took a lease: a name that
its certificate gives it. A *fence* and an *epoch* are those of a log's records (6.8).

A store knows no roles: whoever calls `delete` or `append` has the right to. What a caller did wrong is a
`ProblemError`; what is so in the store is one of `sdcp.ports`' exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sdcp.ports import Entry, Kind
from sdcp.stores.sealed import Sealed

NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}")
"""Names of objects, logs and leases: one path segment that needs no escapes, and a file name everywhere."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of an object without reading it. `size` in octets."""

    name: str
    version: int
    size: int
    owner: str


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as of its last durable append: `size` in octets, the highest fence (None: no fence) and epoch."""

    version: int
    size: int
    fence: int | None
    epoch: int


class Store(Protocol):
    """Objects, logs and leases. Every method may be awaited from many tasks at once."""

    async def put(self, name: str, data: bytes | memoryview, owner: str) -> tuple[ObjectInfo, bool]:
        """Create an immutable object; tell whether it is new (False: it was there with the same octets).

        PreconditionFailed when it is there with others; StoreFullError when what is left is leased or a log.
        """
        ...

    def look(self, name: str) -> ObjectInfo | None:
        """What is known of an object; renews nothing and promises nothing about a later read.

        StoreUnavailableError while it cannot be told whether there is one.
        """
        ...

    async def get(self, name: str) -> tuple[ObjectInfo, bytes]:
        """An object's octets: all of them, and those that were put. ObjectMissingError."""
        ...

    async def delete(self, name: str) -> None:
        """Remove an object; ObjectMissingError, or Conflict while a lease holds it."""
        ...

    async def take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        """Take or renew a lease on exactly these objects, or on none: ObjectMissingError names what is missing.

        Forbidden when the lease belongs to another owner.
        """
        ...

    async def release_lease(self, lease: str, owner: str) -> None:
        """Release a lease; idempotent. Forbidden when it belongs to another owner."""
        ...

    def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """What is kept, in the order of its names: at most `limit` that begin with `prefix` and come after `after`.

        Not a use of any object; what was put or removed between two pages may be in neither.
        """
        ...

    async def sweep(self) -> None:
        """Let go what time has ended: leases, and objects and logs if they are kept for a time only.

        Cheap, to be called often.
        """
        ...

    async def append(self, log: str, data: bytes, version: int | None) -> LogState:
        """Append records durably, if the log's version is `version` (None: there is no log yet).

        LogMovedError, LogFencedError, StoreFullError, StoreUnavailableError (unknown whether done), LogDamagedError;
        MalformedBody when `data` is not a CBOR sequence of records.
        """
        ...

    def log_state(self, log: str) -> LogState | None:
        """The log's state, or None when there is none. LogDamagedError."""
        ...

    async def read_log(self, log: str, start: int, stop: int | None = None) -> tuple[bytes, LogState | None]:
        """Octets `start` to `stop` (None: to the end), and the state they belong to.

        LogDamagedError, with those of the octets that precede the damage, wherever that is.
        """
        ...

    def figures(self) -> Mapping[str, int]:
        """Sizes, counts and counters, by name, for metrics."""
        ...

    def level_figures(self) -> Mapping[str, Mapping[str, int]]:
        """For each level that there is: limit, octets, objects, leased_octets, hits, misses, evictions, …"""
        ...

    async def close(self) -> None:
        """Finish what is under way; no method is called after it."""
        ...


@runtime_checkable
class SharedStore(Protocol):
    """What a `Store` does besides that keeps objects as sealed segments, which a host's processes share (D40)."""

    async def put_sealed(self, name: str, segment: Sealed, owner: str) -> tuple[ObjectInfo, bool]:
        """As `put`, of a segment that the store owns from now on and closes, whether or not it takes it."""
        ...

    async def get_sealed(self, name: str) -> tuple[ObjectInfo, Sealed]:
        """As `get`; the segment has a descriptor of its own, which the caller closes."""
        ...
