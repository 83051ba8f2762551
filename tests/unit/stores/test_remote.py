"""What the remote store does with answers that are late, lost, odd, or of the wrong server (D11, docs/mlc.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from sdcp.errors import ConfigurationError
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.exchange import Request, Response
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.ports import LogSlice, StoreUnavailableError
from sdcp.roles.cache import CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.memory import MemoryStore
from sdcp.stores.remote import RemoteCache
from tests.unit.stores.samples import commit

ETAG = ("etag", '"1"')


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return {role: issue(folder, role, role, [f"https://{role}.test/"]) for role in ("cache", "verifier", "router")}


class Site:
    """Servers and clients of one test."""

    def __init__(self, files: dict[str, TlsFiles], stack: AsyncExitStack) -> None:
        self.files, self._stack = files, stack

    async def server(self, handler: Callable[[Request], Awaitable[Response]], role: str = "cache") -> Server:
        return await self._stack.enter_async_context(Server(handler, server_context(self.files[role])))

    async def remote(self, server: Server, deadline_s: float = 20.0) -> RemoteCache:
        client = await self._stack.enter_async_context(Client(client_context(self.files["verifier"])))
        return RemoteCache(client, f"https://127.0.0.1:{server.port}", deadline_s=deadline_s)


@pytest.fixture
async def site(files: dict[str, TlsFiles]) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield Site(files, stack)


def answering(status: int, *headers: tuple[str, str], body: bytes = b"") -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return Response(status, headers, body)

    return handle


async def test_an_append_without_an_answer_is_unknown_and_sent_once(site):
    store, asked = MemoryStore(), []
    role = CacheRole(store, Metrics(), body_bytes=1000)

    async def silent(request: Request) -> Response:
        if request.method != "PATCH":
            return await role.handle(request)
        asked.append(request.method)
        await role.handle(request)
        await asyncio.Event().wait()
        raise AssertionError

    remote = await site.remote(await site.server(silent), deadline_s=0.2)
    ref = remote.ref_of("logs", "s")
    with pytest.raises(StoreUnavailableError):
        await remote.append(ref, commit(1), None)
    assert asked == ["PATCH"]
    assert (await remote.read_log(ref)).data == commit(1), "the writer reads the log, and knows"


async def test_an_append_whose_connection_is_lost_is_sent_once(site):
    asked = []
    server: Server

    async def cutting(request: Request) -> Response:
        asked.append(request.method)
        for connection in list(server.connections):
            connection.abort()
        raise asyncio.CancelledError

    server = await site.server(cutting)
    remote = await site.remote(server)
    with pytest.raises(StoreUnavailableError):
        await remote.append(remote.ref_of("logs", "s"), commit(1), None)
    assert asked == ["PATCH"]


async def test_nobody_there(site):
    server = await site.server(answering(200))
    remote = await site.remote(server)
    await server.drain(0)
    for call in (
        remote.fetch(f"https://127.0.0.1:{server.port}/objects/a", at_most=1),
        remote.create(b"x"),
        remote.read_log(remote.ref_of("logs", "s")),
        remote.append(remote.ref_of("logs", "s"), commit(1), None),
        remote.release("l"),
    ):
        with pytest.raises(StoreUnavailableError):
            await call


async def test_a_server_that_is_no_cache_is_not_talked_to(site):
    asked = []

    async def handle(request: Request) -> Response:
        asked.append(request)
        return Response(200, (ETAG,), b"x")

    server = await site.server(handle, role="router")
    remote = await site.remote(server)
    with pytest.raises(StoreUnavailableError, match="role"):
        await remote.fetch(f"https://127.0.0.1:{server.port}/objects/a", at_most=1)
    assert not asked


@pytest.mark.parametrize("status", [204, 206, 301, 302, 307, 400, 403, 500, 503])
async def test_d11_no_redirect_is_followed_and_no_other_status_is_an_object(site, status):
    server = await site.server(answering(status, ("location", "/objects/b"), body=b"" if status == 204 else b"octets"))
    remote = await site.remote(server)
    with pytest.raises(StoreUnavailableError, match=str(status)):
        await remote.fetch(f"https://127.0.0.1:{server.port}/objects/a", at_most=100)


async def test_a_server_that_ignores_ranges_is_understood(site):
    remote = await site.remote(await site.server(answering(200, ETAG, body=b"0123456789")))
    assert await remote.read_log(remote.ref_of("logs", "s"), 3) == LogSlice(3, b"3456789", '"1"')
    assert await remote.read_log(remote.ref_of("logs", "s"), 3, 5) == LogSlice(3, b"34", '"1"')


async def test_a_server_that_says_no_tag_with_416_is_asked_for_the_whole_log(site):
    """RFC 9110 section 15.5.17 asks for no ETag, and a verifier that wants the tail needs one."""

    async def handle(request: Request) -> Response:
        return Response(416) if "range" in request.headers else Response(200, (ETAG,), b"abc")

    remote = await site.remote(await site.server(handle))
    assert await remote.read_log(remote.ref_of("logs", "s"), 3) == LogSlice(3, b"", '"1"')


@pytest.mark.parametrize("content_range", [None, "bytes 0-9/10", "bytes */10", "items 3-9/10"])
async def test_another_part_than_was_asked_for_is_refused(site, content_range):
    headers = (ETAG,) if content_range is None else (ETAG, ("content-range", content_range))
    remote = await site.remote(await site.server(answering(206, *headers, body=b"0123456789")))
    with pytest.raises(StoreUnavailableError, match="range"):
        await remote.read_log(remote.ref_of("logs", "s"), 3)


async def test_an_answer_without_a_tag_is_no_answer(site):
    remote = await site.remote(await site.server(answering(200, body=b"x")))
    with pytest.raises(StoreUnavailableError):
        await remote.read_log(remote.ref_of("logs", "s"))
    with pytest.raises(StoreUnavailableError):
        await remote.append(remote.ref_of("logs", "s"), commit(1), None)


async def test_objects_travel_on_a_connection_of_their_own(site):
    role = CacheRole(MemoryStore(), Metrics(), body_bytes=1000)
    server = await site.server(role.handle)
    remote = await site.remote(server)
    await remote.append(remote.ref_of("logs", "s"), commit(1), None)
    await remote.read_log(remote.ref_of("logs", "s"))
    assert len(server.connections) == 1
    await remote.fetch(await remote.create(b"x"), at_most=1)
    assert len(server.connections) == 2


async def test_what_a_prefix_may_be(site):
    server = await site.server(answering(200))
    client_of = await site.remote(server)
    assert client_of.ref_of("logs", "s") == f"https://127.0.0.1:{server.port}/logs/s"
    for prefix in (
        "http://a/",
        "https://a/?x",
        "https://a/#x",
        "https:///a",
        "https://[::1",
        "https://a:70000",
        "a",
        "",
    ):
        with pytest.raises(ConfigurationError):
            RemoteCache(client_of._client, prefix)


async def test_spellings_of_one_uri_are_one(site):
    remote = RemoteCache((await site.remote(await site.server(answering(200))))._client, "HTTPS://Cache.test:443/a/")
    assert remote.allows("https://cache.test/a/objects/x")
    assert remote.allows_log("https://CACHE.test:443/a/logs/x")
    assert not remote.allows("https://cache.test/a/logs/x")
    assert not remote.allows_log("https://cache.test/a/objects/x")
    for other in (
        "https://cache.test/objects/x",
        "https://cache.test/a/objects/x/y",
        "https://cache.test.evil/a/objects/x",
    ):
        assert not remote.allows(other)
        assert not remote.allows_log(other)
