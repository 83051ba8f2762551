"""The objects of `sdcp cache`: over TLS, as they are or coded in zstd (D46), and as segments of host memory (D40).

The store holds plain octets and knows no coding. Whoever put an object is known by `Peer.name`, which a renewed
certificate keeps; it, or a router, may delete it.

Not here: the Unix socket (`sdcp.roles.host_memory`), and when coding pays (`sdcp.http.codings`).
"""

from __future__ import annotations

import asyncio

from sdcp.errors import BodyTooLarge, Forbidden, NotAcceptable, PreconditionFailed, UnknownResource
from sdcp.http.codings import ZSTD, accepts_zstd, code, decoded, pays
from sdcp.http.dispatch import no_content
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import ROUTER, Peer
from sdcp.http.resources import OCTETS, Parameters
from sdcp.messages.host_memory import SegmentRequest
from sdcp.roles.cache_answers import head, name_of, part_of, whole
from sdcp.roles.preconditions import coded_tag, tag, unchanged, wanted_part
from sdcp.roles.telemetry import Metrics
from sdcp.stores.host_memory import SHARED_FROM
from sdcp.stores.sealed import Sealed
from sdcp.stores.store import SharedStore, Store

_VARY = (("vary", "accept-encoding"),)


class Objects:
    """Endpoints for objects (`sdcp.http.dispatch.Endpoint`), and the same for segments."""

    def __init__(self, store: Store, metrics: Metrics, body_bytes: int) -> None:
        """`body_bytes` bounds an object, coded or not."""
        self._store = store
        self._metrics = metrics
        self._body_bytes = body_bytes

    async def put(self, request: Request, parameters: Parameters) -> Response:
        """PUT objects/{name}."""
        name = name_of(parameters["name"])
        if "if-match" in request.headers:
            raise PreconditionFailed("objects never change: PUT only creates, and takes no If-Match")
        sent = await request.body(self._body_bytes)
        way = "tls"
        body = sent
        if "content-encoding" in request.headers:
            body = await asyncio.to_thread(decoded, request.headers, sent, self._body_bytes)
            way = "tls_zstd"
        with self._metrics.time("put"):
            info, created = await self._store.put(name, body, request.peer.name)
        self._count("put", way, len(body))
        return Response(201 if created else 200, (("etag", tag(info.version)),))

    async def get(self, request: Request, parameters: Parameters) -> Response:
        """GET or HEAD objects/{name}."""
        name = name_of(parameters["name"])
        info = self._store.look(name)
        if info is None:
            raise UnknownResource(f"there is no object {name!r}, or it was evicted")
        if (known := unchanged(request.headers.get("if-none-match"), info.version)) is not None:
            return Response(304, (("etag", known), *_VARY))
        if request.method == "HEAD":
            return head(OCTETS, info.version, info.size, _VARY)
        with self._metrics.time("get"):
            info, data = await self._store.get(name)  # it may be another by now: tag and range are of what is sent
        part = wanted_part(request.headers, info.version, len(data))
        if part is not None:
            self._count("get", "tls", part.stop - part.start)
            octets = memoryview(data)[part.start : part.stop]
            return part_of(OCTETS, info.version, octets, part.content_range, _VARY)
        if "range" not in request.headers and accepts_zstd(request.headers) and pays(data):
            return await self._coded(info.version, data)
        self._count("get", "tls", len(data))
        return whole(OCTETS, info.version, data, _VARY)

    async def _coded(self, version: int, data: bytes | memoryview) -> Response:
        """The whole in zstd: another representation, under a tag of its own, of which no part can be had."""
        octets = await asyncio.to_thread(code, data)
        self._count("get", "tls_zstd", len(data))
        fields = (("content-type", OCTETS), ("content-encoding", ZSTD), ("etag", coded_tag(version)), *_VARY)
        return Response(200, fields, octets)

    async def delete(self, request: Request, parameters: Parameters) -> Response:
        """DELETE objects/{name}."""
        await self.remove(request.peer, name_of(parameters["name"]))
        return no_content()

    async def remove(self, peer: Peer, name: str) -> None:
        """Delete an object for its creator or a router. Forbidden for others."""
        info = self._store.look(name)
        if info is not None and info.owner != peer.name and ROUTER not in peer.roles:
            raise Forbidden("an object is deleted by who created it, or by a router")
        await self._store.delete(name)

    async def put_segment(self, store: SharedStore, peer: Peer, name: str, segment: Sealed) -> int:
        """Create an object from a segment, which is the store's from now on; the status of the reply."""
        size = segment.size
        with self._metrics.time("put_host_memory"):
            _, created = await store.put_sealed(name, segment, peer.name)
        self._count("put", "host_memory", size)
        return 201 if created else 200

    async def get_segment(self, store: SharedStore, request: SegmentRequest) -> Sealed:
        """The segment of an object, which the caller closes.

        BodyTooLarge when it is more than was asked for, NotAcceptable when it is too little to be shared.
        """
        known = self._store.look(request.name)
        if known is not None and known.size < SHARED_FROM:
            raise NotAcceptable(f"object {request.name!r} has {known.size} octets; such small ones go by TLS")
        with self._metrics.time("get_host_memory"):
            info, segment = await store.get_sealed(request.name)
        if request.size is None or info.size > request.size:
            segment.close()
            raise BodyTooLarge(f"object {request.name!r} has {info.size} octets, and at most {request.size} are read")
        self._count("get", "host_memory", info.size)
        return segment

    def _count(self, what: str, way: str, octets: int) -> None:
        """Count an object and its plain octets, by the way that they travelled."""
        self._metrics.count(f"{what}_{way}")
        self._metrics.count(f"{what}_{way}_octets", octets)
