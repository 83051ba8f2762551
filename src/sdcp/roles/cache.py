"""`sdcp cache`: the multi-level cache of docs/mlc.md over mutual TLS (1.4, 6.8).

What the store does, this says in HTTP: names become paths, versions entity tags, exceptions problems. Who may call is
in `CACHE_RESOURCES`; here is only what depends on the object: it is deleted by its creator or a router. Whoever put an
object or took a lease is known by `Peer.name`, which a renewed certificate keeps.

Not here: keeping anything (`sdcp.stores.durable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from sdcp.errors import (
    Forbidden,
    InternalFault,
    MalformedBody,
    Overloaded,
    PreconditionFailed,
    ProblemError,
    StaleEpoch,
    StoreFull,
    UnknownResource,
)
from sdcp.http.dispatch import dispatcher, no_content, receive
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import ROUTER
from sdcp.http.resources import CACHE_RESOURCES, CBOR, CBOR_SEQ, OCTETS, Parameters, Table
from sdcp.messages.lease import Lease
from sdcp.messages.listing import MOST_ENTRIES, ListedEntry, Listing
from sdcp.ports import (
    Entry,
    Kind,
    LogFencedError,
    LogMovedError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.roles.config import CacheSettings
from sdcp.roles.preconditions import expected_version, tag, unchanged, wanted_part
from sdcp.roles.process import Context
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.store import NAME, LogDamagedError, Store

MAX_APPEND = 1 << 20  # a commit record of 65 tokens has less than a thousandth of it
MAX_LEASE = 1 << 20
SWEEP_S = 1.0

_PROBLEMS: dict[type[Exception], type[ProblemError]] = {
    ObjectMissingError: UnknownResource,
    LogMovedError: PreconditionFailed,
    LogFencedError: StaleEpoch,
    StoreFullError: StoreFull,
    StoreUnavailableError: Overloaded,
    LogDamagedError: InternalFault,
}


async def make(context: Context[CacheSettings]) -> CacheRole:
    """Open the store of the settings. Raises ConfigurationError."""
    settings = context.settings
    store = DurableStore(
        settings.store.directory,
        memory_bytes=settings.store.memory_bytes,
        disk_bytes=settings.store.disk_bytes,
        sync_objects=settings.store.sync_objects,
        log_retention_s=settings.store.log_retention_s,
    )
    base_path = urlsplit(settings.server.base_uri or "").path
    return CacheRole(store, context.metrics, base_path=base_path, body_bytes=settings.limits.body_bytes)


class CacheRole:
    """The role: `start`, `handle`, `drain` (`sdcp.roles.process.Role`)."""

    def __init__(
        self, store: Store, metrics: Metrics, *, base_path: str = "/", body_bytes: int, sweep_s: float = SWEEP_S
    ) -> None:
        """`store` is closed by `drain`. `body_bytes` bounds an object. Leases end at most `sweep_s` late on disk."""
        self._store = store
        self._metrics = metrics
        self._body_bytes = body_bytes
        self._sweep_s = sweep_s
        self._sweeping: asyncio.Task[None] | None = None
        self._under_way = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._dispatch = dispatcher(
            Table(CACHE_RESOURCES, base_path),
            {
                "PUT objects/{name}": self._put_object,
                "GET objects/{name}": self._get_object,
                "DELETE objects/{name}": self._delete_object,
                "PATCH logs/{name}": self._append,
                "GET logs/{name}": self._get_log,
                "PUT leases/{lease}": self._take_lease,
                "DELETE leases/{lease}": self._release_lease,
                "GET objects": partial(self._list, "objects"),
                "GET logs": partial(self._list, "logs"),
                "GET leases": partial(self._list, "leases"),
            },
        )
        for figure in store.figures():
            metrics.watch(f"store_{figure}", partial(self._figure, figure))

    async def start(self, base_uri: str) -> None:
        """Begin to let expired leases and old logs go."""
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ProblemError."""
        if self._closing:
            raise Overloaded("this cache is going down; ask again in a moment")
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._dispatch(request)
        except tuple(_PROBLEMS) as refusal:
            raise _PROBLEMS[type(refusal)](str(refusal)) from refusal
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def drain(self) -> None:
        """Finish the requests that are under way, then close the store."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        while self._under_way:
            await self._idle.wait()
        self._closing = True
        await self._store.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    async def _put_object(self, request: Request, parameters: Parameters) -> Response:
        name = _name(parameters["name"])
        if "if-match" in request.headers:
            raise PreconditionFailed("objects never change: PUT only creates, and takes no If-Match")
        body = await request.body(self._body_bytes)
        with self._metrics.time("put"):
            info, created = await self._store.put(name, body, request.peer.name)
        return Response(201 if created else 200, (("etag", tag(info.version)),))

    async def _get_object(self, request: Request, parameters: Parameters) -> Response:
        name = _name(parameters["name"])
        info = self._store.look(name)
        if info is None:
            raise UnknownResource(f"there is no object {name!r}, or it was evicted")
        if unchanged(request.headers.get("if-none-match"), info.version):
            return Response(304, (("etag", tag(info.version)),))
        if request.method == "HEAD":
            return _head(OCTETS, info.version, info.size)
        with self._metrics.time("get"):
            info, data = await self._store.get(name)  # it may be another by now: tag and range are of what is sent
        return _octets(request, OCTETS, info.version, memoryview(data))

    async def _delete_object(self, request: Request, parameters: Parameters) -> Response:
        name = _name(parameters["name"])
        info = self._store.look(name)
        if info is not None and info.owner != request.peer.name and ROUTER not in request.peer.roles:
            raise Forbidden("an object is deleted by who created it, or by a router")
        await self._store.delete(name)
        return no_content()

    # -- logs ---------------------------------------------------------------------------------------------------------

    async def _append(self, request: Request, parameters: Parameters) -> Response:
        name = _name(parameters["name"])
        data = await request.body(MAX_APPEND)
        state = self._store.log_state(name)
        version = expected_version(request.headers, None if state is None else state.version)
        with self._metrics.time("append"):
            state = await self._store.append(name, data, version)
        return Response(201 if version is None else 204, (("etag", tag(state.version)),))

    async def _get_log(self, request: Request, parameters: Parameters) -> Response:
        name = _name(parameters["name"])
        state = self._store.log_state(name)
        if state is None:
            raise UnknownResource(f"there is no log {name!r}")
        if unchanged(request.headers.get("if-none-match"), state.version):
            return Response(304, (("etag", tag(state.version)),))
        if request.method == "HEAD":
            return _head(CBOR_SEQ, state.version, state.size)
        part = wanted_part(request.headers, state.version, state.size)
        if part is None:
            data, _ = await self._store.read_log(name, 0, state.size)
            return _whole(CBOR_SEQ, state.version, data)
        data, _ = await self._store.read_log(name, part.start, part.stop)
        return _partial(CBOR_SEQ, state.version, data, part.content_range)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def _take_lease(self, request: Request, parameters: Parameters) -> Response:
        name = _name(parameters["lease"])
        lease = await receive(request, Lease, MAX_LEASE)
        await self._store.take_lease(name, request.peer.name, lease.objects, lease.ttl_ms)
        return no_content()

    async def _release_lease(self, request: Request, parameters: Parameters) -> Response:
        await self._store.release_lease(_name(parameters["lease"]), request.peer.name)
        return no_content()

    # -- the whole ----------------------------------------------------------------------------------------------------

    async def _list(self, kind: Kind, request: Request, _: Parameters) -> Response:
        prefix, after = request.parameter("prefix") or "", request.parameter("after") or ""
        entries = self._store.listing(kind, prefix, after, _limit(request.parameter("limit")))
        body = Listing(entries=tuple(map(_listed, entries))).encode()
        return Response(200, (("content-type", CBOR),), body)

    def _figure(self, name: str) -> float:
        return self._store.figures()[name]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            await self._store.sweep()


def _name(parameter: bytes | str) -> str:
    if isinstance(parameter, bytes) or not NAME.fullmatch(parameter):
        raise UnknownResource("names are 1 to 200 letters, digits, '-', '_', '~' and '.', and do not begin with '.'")
    return parameter


def _limit(parameter: str | None) -> int:
    if parameter is None:
        return MOST_ENTRIES
    if not parameter.isascii() or not parameter.isdigit() or len(parameter) > 9 or not int(parameter):
        raise MalformedBody("limit must be a number from 1 on")
    return min(int(parameter), MOST_ENTRIES)


def _listed(entry: Entry) -> ListedEntry:
    return ListedEntry(
        name=entry.name,
        size=entry.size,
        version=entry.version,
        owner=entry.owner or None,
        age_ms=_ms(entry.age_s),
        leased=entry.leased or None,
        expires_ms=_ms(entry.expires_s),
        objects=entry.objects or None,
        level=entry.level or None,
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds * 1000))


def _octets(request: Request, media_type: str, version: int, data: memoryview) -> Response:
    part = wanted_part(request.headers, version, len(data))
    if part is None:
        return _whole(media_type, version, data)
    return _partial(media_type, version, data[part.start : part.stop], part.content_range)


def _whole(media_type: str, version: int, data: bytes | memoryview) -> Response:
    return Response(200, _fields(media_type, version), data)


def _partial(media_type: str, version: int, data: bytes | memoryview, content_range: str) -> Response:
    return Response(206, (*_fields(media_type, version), ("content-range", content_range)), data)


def _head(media_type: str, version: int, size: int) -> Response:
    """The answer to HEAD, without reading what GET would send: an existence check renews nothing."""
    return Response(200, (*_fields(media_type, version), ("content-length", str(size))), _unsent())


async def _unsent() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for octets in nothing:
        yield octets


def _fields(media_type: str, version: int) -> tuple[tuple[str, str], ...]:
    return (("content-type", media_type), ("etag", tag(version)), ("accept-ranges", "bytes"))
