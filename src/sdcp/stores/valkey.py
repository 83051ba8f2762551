"""A cache in a Valkey or Redis server (docs/decisions.md, D43): `valkey://host:port/db?prefix=sdcp`.

What has to be one step is one call of the script `valkey.lua`: an append with its version and its fence, a lease with
all its objects, the creation of an object. The server syncs before it answers (`sdcp.stores.valkey_server` checks that
it does), and appends that wait at the same time travel together, so that they share a sync.

What is repeated when an answer is lost: everything but an append, whose writer reads the log and knows (docs/mlc.md).

Not here: who may do what. Whoever has the server's password may do everything, except end another owner's lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self

from sdcp.errors import ConfigurationError, Conflict, Forbidden, MalformedBody
from sdcp.ports import (
    Entry,
    Kind,
    LogDamagedError,
    LogFencedError,
    LogMovedError,
    LogSlice,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.stores.naming import Naming, fresh_name
from sdcp.stores.records import epochs_of
from sdcp.stores.valkey_address import parse_address
from sdcp.stores.valkey_appends import Appends
from sdcp.stores.valkey_server import Server

_LONGEST_OBJECT = 256 << 20  # the server's own limit is 512 MiB
_LONGEST_LOG = 64 << 20
_ROOM = 1 << 20  # what is let go at once, at least, when the server's memory is full
_MICROSECONDS = 1_000_000


class ValkeyCache(Naming):
    """`sdcp.ports.Cache` on one server, for one owner. Made by `open`; `await close()` at the end."""

    def __init__(self, server: Server, owner: str) -> None:
        """`owner`: whose leases ours are."""
        self.owner = owner
        self._server = server
        self._appends = Appends(server)
        super().__init__(server.address.base)

    @classmethod
    async def open(cls, uri: str, *, owner: str = "local", deadline_s: float = 5.0) -> Self:
        """Connect, and check that the server keeps what it acknowledges. Raises ConfigurationError.

        `deadline_s` covers each call with all its tries.
        """
        cache = cls(Server(parse_address(uri), deadline_s), owner)
        try:
            await cache._server.call("try")
        except (StoreUnavailableError, StoreFullError) as fault:
            await cache.close()
            raise ConfigurationError(f"cache {fault}") from None
        except BaseException:
            await cache.close()
            raise
        return cache

    async def close(self) -> None:
        """Give the connections back; appends under way end as unanswered."""
        await self._appends.close()
        await self._server.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """See `Cache.create`."""
        name = name or fresh_name()
        octets = memoryview(data).nbytes
        if octets > _LONGEST_OBJECT:
            raise StoreFullError(f"an object of {octets} octets is too large: at most {_LONGEST_OBJECT} are kept")
        age = int(self._server.address.object_ttl_s * _MICROSECONDS)
        put = partial(self._server.call, "put", name, self.owner, data, self._server.address.capacity, age)
        answer = await self._with_room(octets, put)
        if answer[0] == b"other":
            raise Conflict(f"object {name!r} exists with other content, and objects never change")
        if answer[0] == b"full":
            raise StoreFullError(f"no room for {octets} octets: what could be evicted would not make it")
        return self.ref_of("objects", name)

    async def fetch(self, ref: str, *, at_most: int) -> bytes:
        """See `Cache.fetch`."""
        name = self._name(ref, "objects")

        async def read() -> Any:
            pipeline = self._server.pipeline()
            pipeline.execute_command(*self._server.script("use", name))
            pipeline.execute_command("GETRANGE", f"{self._server.key}o:{name}", 0, at_most)
            return await pipeline.execute()

        answer, data = await self._server.repeated(read)
        size = int(answer[1]) if answer[0] == b"there" else None
        if size is not None and size > at_most:
            raise ValueError(f"{ref} has {size} octets, and at most {at_most} are read")
        if size != len(data):  # absent, or gone between the two
            raise ObjectMissingError(f"{ref} is absent or was evicted")
        return data  # type: ignore[no-any-return]

    async def delete(self, ref: str) -> None:
        """See `Cache.delete`."""
        await self._server.call("delete", self._name(ref, "objects"))

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """See `Cache.lease`. Forbidden when the lease is another owner's."""
        names = " ".join(self._name(ref, "objects") for ref in refs)
        answer = await self._server.call("lease", lease, self.owner, ttl_ms * 1000, names)
        if answer[0] == b"absent":
            raise ObjectMissingError(f"no lease was taken, since there is no object {answer[1].decode()}")
        if answer[0] == b"another":
            raise Forbidden("this lease belongs to another owner; take one under a name of your own")

    async def release(self, lease: str) -> None:
        """See `Cache.release`. Forbidden when the lease is another owner's."""
        if await self._server.call("release", lease, self.owner) == [b"another"]:
            raise Forbidden("this lease belongs to another owner")

    # -- logs ---------------------------------------------------------------------------------------------------------

    def enforces_fences(self, ref: str) -> bool:
        """See `Cache.enforces_fences`: the script does."""
        return True

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`. Sent once: without an answer it is unknown whether it was done."""
        name = self._name(ref, "logs")
        records = " ".join(f"{'c' if commits else 'f'}{epoch:020}" for epoch, commits in epochs_of(data))
        if not records:
            raise MalformedBody("the body holds no record; append at least one")
        append = partial(self._appends.append, "append", name, etag or "", data, _LONGEST_LOG, records)
        return _appended(ref, await self._with_room(len(data), append))

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """See `Cache.read_log`."""
        name = self._name(ref, "logs")
        last = -1 if stop is None else max(stop - 1, 0)
        length = None if stop is None else max(stop - start, 0)
        if self._server.address.replicas:  # what a failover would take back is not there yet
            answer = await self._appends.append("read_settled", name, start, last)
        else:
            answer = await self._server.call("read", name, start, last)
        match answer:
            case [b"there", version, data]:
                return LogSlice(start, data[:length], version.decode())
            case [b"damaged", intact, data]:
                raise LogDamagedError(_damaged(ref), int(intact), data[:length][: max(int(intact) - start, 0)])
            case _:
                return LogSlice(start, b"", None)

    # -- the whole ----------------------------------------------------------------------------------------------------

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """See `Cache.listing`."""
        first = f"({after}" if after >= prefix and after else f"[{prefix}" if prefix else "-"
        last = f"[{prefix}\x7f" if prefix else "+"  # names are printable ASCII
        return [_entry(kind, found) for found in await self._server.call("list", kind, first, last, limit)]

    async def sweep(self) -> None:
        """See `Cache.sweep`: leases that have ended, objects that nobody used for long, logs past their time."""
        times = (self._server.address.object_ttl_s, self._server.address.log_retention_s)
        while await self._server.call("sweep", *(int(time * _MICROSECONDS) for time in times)) == [b"more"]:
            pass

    async def _with_room(self, octets: int, write: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
        """Write; as long as the server refuses for want of memory, let go what is not leased, and write again."""
        while True:
            try:
                return await write()
            except StoreFullError:
                if await self._server.call("evict", max(octets, _ROOM)) != [b"done"]:
                    raise


def _appended(ref: str, answer: Sequence[bytes]) -> str:
    """The new tag, or the exception that the answer of an append stands for."""
    match [each.decode() for each in answer]:
        case ["done", version]:
            return version
        case ["below", epoch, fence]:
            raise LogFencedError(f"the log is fenced at epoch {int(fence)}; a record of epoch {int(epoch)} is refused")
        case ["covered", epoch, highest]:
            raise LogFencedError(f"the log holds epoch {int(highest)}; a fence of epoch {int(epoch)} is not above it")
        case ["full"]:
            raise StoreFullError(f"{ref} would be longer than the {_LONGEST_LOG} octets that a log may have")
        case ["damaged", intact]:
            raise LogDamagedError(_damaged(ref), int(intact))
        case _:
            raise LogMovedError(f"{ref} has moved; read it again")


def _damaged(ref: str) -> str:
    return f"{ref} is damaged: it has not as many octets as were appended"


def _entry(kind: Kind, found: Sequence[bytes]) -> Entry:
    """One line of the script's `list`."""
    name, *rest = (each.decode() for each in found)
    if kind == "objects":
        size, version, owner, age, leased = rest
        return Entry(
            name, int(size), int(version), owner, int(age) / _MICROSECONDS, leased=leased == "1", level="valkey"
        )
    if kind == "logs":
        size, version, age = rest
        return Entry(name, int(size), int(version), age_s=int(age) / _MICROSECONDS, level="valkey")
    owner, left, objects = rest
    return Entry(
        name,
        0,
        owner=owner,
        expires_s=max(0.0, int(left) / _MICROSECONDS),
        objects=tuple(objects.split()),
        level="valkey",
    )
