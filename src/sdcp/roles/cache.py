"""`sdcp cache`: the multi-level cache of docs/mlc.md over mutual TLS (1.4, 6.8).

What the store does, this says in HTTP: names become paths, versions entity tags, exceptions problems. Who may call is
in `CACHE_RESOURCES`; here is only what depends on the object: it is deleted by its creator or a router. Whoever put an
object or took a lease is known by `Peer.name`, which a renewed certificate keeps.

Not here: keeping anything (`sdcp.stores.durable`).
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from sdcp.errors import (
    LogDamaged,
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
from sdcp.http.identity import Peer
from sdcp.http.resources import CACHE_RESOURCES, CBOR, CBOR_SEQ, Parameters, Table
from sdcp.messages.host_memory import DELETE, GET, RELEASE, SegmentRequest
from sdcp.messages.lease import Lease
from sdcp.messages.listing import MOST_ENTRIES, ListedEntry, Listing
from sdcp.ports import (
    Entry,
    Kind,
    LogDamagedError,
    LogFencedError,
    LogMovedError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.roles.cache_answers import head, name_of, part_of, whole
from sdcp.roles.cache_levels import open_store
from sdcp.roles.cache_objects import Objects
from sdcp.roles.config import CacheSettings
from sdcp.roles.host_memory import HostMemory
from sdcp.roles.preconditions import expected_version, tag, unchanged, wanted_part
from sdcp.roles.process import Context
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.sealed import Sealed
from sdcp.stores.store import SharedStore, Store

MAX_APPEND = 1 << 20  # a commit record of 65 tokens has less than a thousandth of it
MAX_LEASE = 1 << 20
SWEEP_S = 1.0
MAX_DESCRIPTORS = 1 << 16
LISTED_S = 10.0  # how long a start waits for the network level to be listed; what is not known then is 503 until it is
_UNKNOWN_SIZE = 1 << 63  # of a log that has lost octets: no part of it is its end

_PROBLEMS: dict[type[BaseException], type[ProblemError]] = {
    ObjectMissingError: UnknownResource,
    LogMovedError: PreconditionFailed,
    LogFencedError: StaleEpoch,
    StoreFullError: StoreFull,
    StoreUnavailableError: Overloaded,
}


async def make(context: Context[CacheSettings]) -> CacheRole:
    """Open the store of the settings. Raises ConfigurationError."""
    settings = context.settings
    _permit_descriptors()
    store = await open_store(context)
    return CacheRole(
        store,
        context.metrics,
        base_path=urlsplit(settings.server.base_uri or "").path,
        body_bytes=settings.limits.body_bytes,
        host_memory=settings.store.directory / "host-memory" if settings.store.host_memory else None,
    )


def _permit_descriptors() -> None:
    """Take the descriptors that the system permits: each object in host memory and each connection has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class CacheRole:
    """The role: `start`, `handle`, `drain` (`sdcp.roles.process.Role`)."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        base_path: str = "/",
        body_bytes: int,
        sweep_s: float = SWEEP_S,
        host_memory: Path | None = None,
    ) -> None:
        """`store` is closed by `drain`. `body_bytes` bounds an object. Leases end at most `sweep_s` late on disk.

        `host_memory` is a folder of our own for the socket over which processes of this host share segments (D40).
        """
        self._store = store
        self._host_memory = (
            HostMemory(host_memory, self._segment, largest=body_bytes)
            if host_memory is not None and isinstance(store, SharedStore)
            else None
        )
        self._metrics = metrics
        self._objects = Objects(store, metrics, body_bytes)
        self._sweep_s = sweep_s
        self._sweeping: asyncio.Task[None] | None = None
        self._under_way = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._dispatch = dispatcher(
            Table(CACHE_RESOURCES, base_path),
            {
                "PUT objects/{name}": self._objects.put,
                "GET objects/{name}": self._objects.get,
                "DELETE objects/{name}": self._objects.delete,
                "PATCH logs/{name}": self._append,
                "GET logs/{name}": self._get_log,
                "PUT leases/{lease}": self._take_lease,
                "DELETE leases/{lease}": self._release_lease,
                "GET objects": partial(self._list, "objects"),
                "GET logs": partial(self._list, "logs"),
                "GET leases": partial(self._list, "leases"),
                "POST host-memory": self._give_ticket,
            },
        )
        by_level = {f"{level}_{name}" for level, figures in store.level_figures().items() for name in figures}
        for figure in store.figures():
            if figure not in by_level:
                metrics.watch(f"store_{figure}", partial(self._figure, figure))
        metrics.watch_levels(store.level_figures)

    async def start(self, base_uri: str) -> None:
        """Begin to let expired leases and old logs go; wait, for a time, until all objects are known."""
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        if self._host_memory is not None:
            self._host_memory.start()
        if isinstance(self._store, DurableStore):
            await self._store.settle(LISTED_S)

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ProblemError."""
        with self._admitted():
            return await self._dispatch(request)

    def _admitted(self) -> _Admission:
        if self._closing:
            raise Overloaded("this cache is going down; ask again in a moment")
        return _Admission(self)

    def enter(self) -> None:
        """One request more is under way."""
        self._under_way += 1
        self._idle.clear()

    def leave(self) -> None:
        """One request less is under way."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def drain(self) -> None:
        """Finish the requests that are under way, then close the store."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        if self._host_memory is not None:
            await self._host_memory.close()
        while self._under_way:
            await self._idle.wait()
        self._closing = True
        await self._store.close()

    # -- host memory (D40) --------------------------------------------------------------------------------------------

    async def _give_ticket(self, request: Request, parameters: Parameters) -> Response:
        if self._host_memory is None:
            raise UnknownResource("this cache shares no memory with processes of its host")
        return Response(200, (("content-type", CBOR),), self._host_memory.ticket(request.peer).encode())

    async def _segment(self, peer: Peer, request: SegmentRequest, segment: Sealed | None) -> tuple[int, Sealed | None]:
        """See `sdcp.roles.host_memory.Perform`."""
        with self._admitted():
            assert isinstance(self._store, SharedStore)
            if segment is not None:
                return await self._objects.put_segment(self._store, peer, request.name, segment), None
            if request.do == GET:
                return 200, await self._objects.get_segment(self._store, request)
            if request.do == DELETE:
                await self._objects.remove(peer, request.name)
            elif request.do == RELEASE:
                await self._store.release_lease(request.name, peer.name)
            elif request.objects is None or request.ttl_ms is None:
                raise MalformedBody("a lease lacks `objects` or `ttl_ms`")
            else:
                await self._store.take_lease(request.name, peer.name, request.objects, request.ttl_ms)
            return 204, None

    # -- logs ---------------------------------------------------------------------------------------------------------

    async def _append(self, request: Request, parameters: Parameters) -> Response:
        name = name_of(parameters["name"])
        data = await request.body(MAX_APPEND)
        state = None if "if-none-match" in request.headers else self._store.log_state(name)
        version = expected_version(request.headers, None if state is None else state.version)
        with self._metrics.time("append"):
            state = await self._store.append(name, data, version)
        return Response(201 if version is None else 204, (("etag", tag(state.version)),))

    async def _get_log(self, request: Request, parameters: Parameters) -> Response:
        name = name_of(parameters["name"])
        try:
            state = self._store.log_state(name)
        except LogDamagedError as damage:
            return await self._get_intact(request, name, damage)
        if state is None:
            raise UnknownResource(f"there is no log {name!r}")
        if (known := unchanged(request.headers.get("if-none-match"), state.version)) is not None:
            return Response(304, (("etag", known),))
        if request.method == "HEAD":
            return head(CBOR_SEQ, state.version, state.size)
        part = wanted_part(request.headers, state.version, state.size)
        if part is None:
            data, _ = await self._store.read_log(name, 0, state.size)
            return whole(CBOR_SEQ, state.version, data)
        data, _ = await self._store.read_log(name, part.start, part.stop)
        return part_of(CBOR_SEQ, state.version, data, part.content_range)

    async def _get_intact(self, request: Request, name: str, damage: LogDamagedError) -> Response:
        """A part of a damaged log, to who asks for nothing beyond its intact octets; no tag, and no size (D47)."""
        part = wanted_part(request.headers, 0, _UNKNOWN_SIZE)
        if request.method == "HEAD" or part is None or part.stop > damage.intact:
            raise damage
        try:
            data, _ = await self._store.read_log(name, part.start, part.stop)
        except LogDamagedError as found:
            data = found.data
        if len(data) != part.stop - part.start:
            raise damage
        fields = (("content-type", CBOR_SEQ), ("content-range", f"bytes {part.start}-{part.stop - 1}/*"))
        return Response(206, fields, data)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def _take_lease(self, request: Request, parameters: Parameters) -> Response:
        name = name_of(parameters["lease"])
        lease = await receive(request, Lease, MAX_LEASE)
        await self._store.take_lease(name, request.peer.name, lease.objects, lease.ttl_ms)
        return no_content()

    async def _release_lease(self, request: Request, parameters: Parameters) -> Response:
        await self._store.release_lease(name_of(parameters["lease"]), request.peer.name)
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


class _Admission:
    """One request under way, over TLS or from this host, as a `with` block.

    What a store raises within leaves it as the ProblemError of it.
    """

    __slots__ = ("_role",)

    def __init__(self, role: CacheRole) -> None:
        self._role = role

    def __enter__(self) -> None:
        self._role.enter()

    def __exit__(self, kind: type[BaseException] | None, refusal: BaseException | None, _: object) -> None:
        self._role.leave()
        if isinstance(refusal, LogDamagedError):
            raise LogDamaged(str(refusal), intact=refusal.intact) from refusal
        problem = _PROBLEMS.get(kind) if kind is not None else None
        if problem is not None:
            raise problem(str(refusal)) from refusal


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
