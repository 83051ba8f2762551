"""Objects by memory of the host: what a role sees of it, and that TLS stands in whenever it is not to be had (D40)."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sdcp.errors import Conflict
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.exchange import Request, Response
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.messages.host_memory import LEASE, SegmentReply, SegmentRequest, Ticket
from sdcp.ports import ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.roles.cache import CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.datagrams import Datagrams
from sdcp.stores.host_memory import IN_FLIGHT, RETRY_S, SHARED_FROM, HostMemory
from sdcp.stores.memory import MemoryStore
from sdcp.stores.remote import RemoteCache
from sdcp.stores.sealed import AVAILABLE, Sealed, new_segment

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")

DATA = os.urandom(SHARED_FROM + 5)
CAPACITY = 8 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return {role: issue(folder, role, role, [f"https://{role}.test/"]) for role in ("cache", "verifier", "drafter")}


class Site:
    """A cache with host memory, and what asked it for what over TLS."""

    def __init__(self, folder: Path, files: dict[str, TlsFiles], stack: AsyncExitStack) -> None:
        self.folder, self.files, self._stack = folder, files, stack
        self.asked: list[str] = []
        self.metrics = Metrics()
        self.store = MemoryStore(CAPACITY)
        self.role = self._role()
        self.caches: list[RemoteCache] = []

    def _role(self, *, host_memory: bool = True) -> CacheRole:
        folder = self.folder / "host-memory" if host_memory else None
        return CacheRole(self.store, self.metrics, body_bytes=CAPACITY, host_memory=folder)

    async def start(self) -> None:
        await self.role.start("https://cache.test/")
        self.server = await self._stack.enter_async_context(Server(self._handle, server_context(self.files["cache"])))

    async def restart(self, *, host_memory: bool = True) -> None:
        """As after a crash, but the store's memory is kept: the sockets are gone, and a new role serves."""
        await self.role._host_memory.close()
        self.role = self._role(host_memory=host_memory)
        await self.role.start("https://cache.test/")

    async def _handle(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.path.split('/')[1]}")
        return await self.role.handle(request)

    async def remote(self, who: str, *, host_memory: bool = True) -> RemoteCache:
        client = await self._stack.enter_async_context(Client(client_context(self.files[who])))
        remote = RemoteCache(client, f"https://127.0.0.1:{self.server.port}", host_memory=host_memory)
        self.caches.append(remote)
        return remote

    def counted(self, event: str) -> int:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f'sdcp_events_total{{event="{event}"}}'):
                return round(float(line.split()[1]))
        return 0


@pytest.fixture
async def site(tmp_path: Path, files: dict[str, TlsFiles]) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        made = Site(tmp_path, files, stack)
        await made.start()
        yield made
        for cache in made.caches:
            await cache.close()
        await made.role.drain()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# -- as it should be ---------------------------------------------------------------------------------------------------


@pytest.mark.decision("D40-tls", "D40-metrics")
async def test_large_objects_go_by_host_memory_and_small_ones_by_tls(site: Site) -> None:
    drafter, verifier = await site.remote("drafter"), await site.remote("verifier")
    ref = await drafter.create(DATA)
    await drafter.lease("l", [ref], 60_000)
    data = await verifier.fetch(ref, at_most=len(DATA))
    assert isinstance(data, memoryview)
    assert data.readonly
    assert data == DATA
    await drafter.delete(ref)
    assert site.store.look(ref.rpartition("/")[2]) is not None, "leased"
    await drafter.release("l")
    await drafter.delete(ref)
    await drafter.delete(ref)
    assert site.store.look(ref.rpartition("/")[2]) is None
    assert site.store.figures()["leases"] == 0
    assert site.asked == ["POST host-memory", "POST host-memory"]
    assert site.counted("put_host_memory_octets") == site.counted("get_host_memory_octets") == len(DATA)
    small = await drafter.create(DATA[: SHARED_FROM - 1])
    assert bytes(await verifier.fetch(small, at_most=SHARED_FROM - 1)) == DATA[: SHARED_FROM - 1]
    assert bytes(await verifier.fetch(small, at_most=SHARED_FROM)) == DATA[: SHARED_FROM - 1]
    assert (site.counted("put_tls"), site.counted("get_tls")) == (1, 2)


@pytest.mark.decision("D40-datagrams")
async def test_an_object_is_the_same_by_either_way(site: Site) -> None:
    drafter, by_tls = await site.remote("drafter"), await site.remote("verifier", host_memory=False)
    handed = await drafter.create(DATA)
    sent = await by_tls.create(DATA)
    assert bytes(await by_tls.fetch(handed, at_most=len(DATA))) == DATA
    assert bytes(await drafter.fetch(sent, at_most=len(DATA))) == DATA
    assert site.asked.count("POST host-memory") == 1


@pytest.mark.decision("D40-who")
async def test_what_is_handed_over_is_its_creators(site: Site) -> None:
    drafter, verifier = await site.remote("drafter"), await site.remote("verifier")
    ref = await drafter.create(DATA)
    name = ref.rpartition("/")[2]
    assert site.store.look(name).owner == "https://drafter.test/"
    with pytest.raises(StoreUnavailableError, match="403"):
        await verifier.delete(ref)
    await drafter.lease("l", [ref], 60_000)
    await drafter.delete(ref)
    assert site.store.look(name) is not None, "leased"
    await drafter.release("l")
    await drafter.delete(ref)
    assert site.store.look(name) is None


@pytest.mark.decision("D40-datagrams")
async def test_refusals_are_those_of_tls(site: Site) -> None:
    drafter = await site.remote("drafter")
    ref = await drafter.create(DATA, name="o" + "n" * 22)
    assert await drafter.create(DATA, name="o" + "n" * 22) == ref
    with pytest.raises(Conflict):
        await drafter.create(DATA[::-1], name="o" + "n" * 22)
    with pytest.raises(ValueError, match=str(len(DATA))):
        await drafter.fetch(ref, at_most=len(DATA) - 1)
    with pytest.raises(ObjectMissingError):
        await drafter.fetch(f"{ref}x", at_most=len(DATA))
    with pytest.raises(ObjectMissingError):
        await drafter.lease("l", [f"{ref}x"], 1000)
    with pytest.raises(StoreFullError):
        await drafter.create(bytes(CAPACITY + 1))
    big = await drafter.create(os.urandom(CAPACITY - len(DATA)))
    await drafter.lease("l", [ref, big], 60_000)
    with pytest.raises(StoreFullError):
        await drafter.create(os.urandom(SHARED_FROM))


async def test_a_lease_of_nothing_is_refused(site: Site) -> None:
    drafter = await site.remote("drafter")
    ref = await drafter.create(DATA)
    channel = drafter._host_memory
    for request in (
        SegmentRequest(id=0, do=LEASE, name="l", ttl_ms=1000),
        SegmentRequest(id=0, do=LEASE, name="l", objects=(ref.rpartition("/")[2],)),
    ):
        assert await channel._status(request) == 400
    assert site.store.figures()["leases"] == 0


@pytest.mark.decision("D40-view")
async def test_what_is_evicted_stays_as_it_was_for_who_reads_it(site: Site) -> None:
    drafter, verifier = await site.remote("drafter"), await site.remote("verifier")
    ref = await drafter.create(DATA)
    data = await verifier.fetch(ref, at_most=len(DATA))
    while site.store.look(ref.rpartition("/")[2]) is not None:
        await drafter.create(os.urandom(1 << 20))
    with pytest.raises(ObjectMissingError):
        await verifier.fetch(ref, at_most=len(DATA))
    assert data == DATA


async def test_many_at_once(site: Site) -> None:
    drafter, verifier = await site.remote("drafter"), await site.remote("verifier")
    made = await asyncio.gather(*(drafter.create(DATA + bytes([number])) for number in range(3 * IN_FLIGHT)))
    read = await asyncio.gather(*(verifier.fetch(ref, at_most=len(DATA) + 1) for ref in made))
    assert [data[-1] for data in read] == list(range(3 * IN_FLIGHT))
    assert site.asked == ["POST host-memory", "POST host-memory"]


async def test_no_descriptor_leaks(site: Site) -> None:
    drafter, verifier = await site.remote("drafter"), await site.remote("verifier")

    async def some() -> None:
        for _ in range(5):
            ref = await drafter.create(DATA)
            await verifier.fetch(ref, at_most=len(DATA))
            with pytest.raises(ValueError, match="octets"):
                await verifier.fetch(ref, at_most=SHARED_FROM)
            with pytest.raises(Conflict):
                await drafter.create(DATA[::-1], name=ref.rpartition("/")[2])
            await drafter.delete(ref)

    await some()
    spares = drafter._host_memory._spares  # segments that are kept ready
    spares.close()
    while spares._coming:
        await asyncio.sleep(0)
    before = descriptors()
    await some()
    assert descriptors() == before


# -- TLS stands in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["neither", "cache", "role"])
@pytest.mark.decision("D40-default", "D40-ticket", "D40-tls")
async def test_it_is_used_only_where_both_have_it_on(site: Site, on: str) -> None:
    if on != "cache":
        await site.restart(host_memory=False)
    drafter = await site.remote("drafter", host_memory=on == "role")
    ref = await drafter.create(DATA)
    assert bytes(await drafter.fetch(ref, at_most=len(DATA))) == DATA
    assert site.asked == ["POST host-memory"] * (on == "role") + ["PUT objects", "GET objects"]


@pytest.mark.decision("D40-tls")
async def test_a_socket_that_is_not_here_is_not_asked_for_again_soon(site: Site) -> None:
    """As on another host: the cache gives tickets, and the path leads nowhere."""
    drafter = await site.remote("drafter")
    os.rename(site.folder / "host-memory", site.folder / "elsewhere")
    refs = [await drafter.create(DATA) for _ in range(3)]
    assert site.asked == ["POST host-memory"] + ["PUT objects"] * 3
    assert bytes(await drafter.fetch(refs[0], at_most=len(DATA))) == DATA


@pytest.mark.decision("D40-tls")
async def test_a_restarted_cache_is_found_again_at_once_and_nothing_is_lost(site: Site) -> None:
    drafter = await site.remote("drafter")
    before = await drafter.create(DATA)
    await site.restart()
    after = await drafter.create(DATA)
    for ref in (before, after):
        assert await drafter.fetch(ref, at_most=len(DATA)) == DATA
    assert site.asked == ["POST host-memory", "PUT objects", "POST host-memory"]


class LyingCache:
    """The other end of a channel, which answers as a test says, and takes any ticket."""

    def __init__(self, folder: Path, answer: Callable[[LyingCache, SegmentRequest], None]) -> None:
        self.path = str(folder / "socket")
        self.tickets = 0
        self._answer = answer
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listening.bind(self.path)
        self._listening.listen()
        asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    async def ticket(self) -> Ticket:
        self.tickets += 1
        return Ticket(path=self.path, ticket=bytes(16))

    def _accept(self) -> None:
        self.datagrams = Datagrams(self._listening.accept()[0], self._received, lambda: None)

    def _received(self, datagram: bytes, fd: int | None) -> None:
        if fd is not None:
            os.close(fd)
        if len(datagram) == 16:
            self.reply(SegmentReply(id=0, status=204))
        else:
            self._answer(self, SegmentRequest.decode(datagram))

    def reply(self, reply: SegmentReply, fd: int | None = None) -> None:
        self.datagrams.send(reply.encode(), fd)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listening.fileno())
        self._listening.close()
        self.datagrams.close()


def unsealed(cache: LyingCache, request: SegmentRequest) -> None:
    fd = new_segment()
    os.write(fd, DATA)
    cache.reply(SegmentReply(id=request.id, status=200, size=len(DATA)), fd)
    os.close(fd)


def larger(cache: LyingCache, request: SegmentRequest) -> None:
    with Sealed.of(DATA + b"x") as segment:
        cache.reply(SegmentReply(id=request.id, status=200, size=segment.size), segment.fd)


def shorter(cache: LyingCache, request: SegmentRequest) -> None:
    with Sealed.of(DATA[:-1]) as segment:
        cache.reply(SegmentReply(id=request.id, status=200, size=len(DATA)), segment.fd)


def nothing(cache: LyingCache, request: SegmentRequest) -> None:
    cache.reply(SegmentReply(id=request.id, status=200, size=len(DATA)))


def otherwise(cache: LyingCache, request: SegmentRequest) -> None:
    with Sealed.of(DATA) as segment:
        cache.reply(SegmentReply(id=request.id, status=202, size=len(DATA)), segment.fd)


def gone(cache: LyingCache, request: SegmentRequest) -> None:
    cache.datagrams.close()


@pytest.mark.parametrize("answer", [unsealed, larger, shorter, nothing, otherwise, gone])
@pytest.mark.decision("D40-seal", "D40-tls")
async def test_a_reply_that_is_not_what_it_says_is_not_believed(tmp_path: Path, answer: Callable[..., None]) -> None:
    cache = LyingCache(tmp_path, answer)
    host_memory = HostMemory(cache.ticket, deadline_s=20)
    assert await host_memory.get("o", len(DATA)) is None
    before = descriptors()
    assert await host_memory.get("o", len(DATA)) is None
    assert descriptors() == before
    host_memory.close()
    cache.close()


async def test_replies_to_nobody_are_passed_over_and_closed(tmp_path: Path) -> None:
    def chatter(cache: LyingCache, request: SegmentRequest) -> None:
        with Sealed.of(DATA) as segment:
            for number in (request.id + 1, request.id, request.id):
                cache.reply(SegmentReply(id=number, status=200, size=len(DATA)), segment.fd)

    cache = LyingCache(tmp_path, chatter)
    host_memory = HostMemory(cache.ticket, deadline_s=20)
    for _ in range(2):
        _, view = await host_memory.get("o", len(DATA))
        assert view == DATA
        del view
        before = descriptors()
    assert descriptors() == before
    host_memory.close()
    cache.close()


async def test_a_cache_that_does_not_answer_keeps_nobody_longer_than_the_deadline(tmp_path: Path) -> None:
    cache = LyingCache(tmp_path, lambda cache, request: None)
    host_memory = HostMemory(cache.ticket, deadline_s=0.05)
    others = asyncio.ensure_future(host_memory.get("b", len(DATA)))
    with pytest.raises(StoreUnavailableError, match="the cache did not answer"):
        await host_memory.get("a", len(DATA))
    with pytest.raises(StoreUnavailableError):
        await others
    host_memory.close()
    cache.close()


async def test_a_caller_that_gives_up_leaves_nothing_behind(tmp_path: Path) -> None:
    asked: list[SegmentRequest] = []
    cache = LyingCache(tmp_path, lambda cache, request: asked.append(request))
    host_memory = HostMemory(cache.ticket, deadline_s=20)
    waiting = asyncio.ensure_future(host_memory.get("a", len(DATA)))
    while not asked:
        await asyncio.sleep(0)
    before = descriptors()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with Sealed.of(DATA) as segment:
        cache.reply(SegmentReply(id=asked[0].id, status=200, size=len(DATA)), segment.fd)
    second = asyncio.ensure_future(host_memory.get("a", len(DATA)))
    while len(asked) < 2:
        await asyncio.sleep(0)
    cache.reply(SegmentReply(id=asked[1].id, status=404))
    reply, view = await second
    assert (reply.status, view) == (404, None)
    assert descriptors() == before
    host_memory.close()
    cache.close()


@pytest.mark.decision("D40-tls")
async def test_it_is_tried_again_after_a_while(tmp_path: Path) -> None:
    now = 0.0
    tickets = 0

    async def none() -> None:
        nonlocal tickets
        tickets += 1

    host_memory = HostMemory(none, deadline_s=20, clock=lambda: now)
    for _ in range(3):
        assert await host_memory.get("o", 1) is None
    assert tickets == 1
    now += RETRY_S
    assert await asyncio.gather(*(host_memory.get("o", 1) for _ in range(3))) == [None] * 3
    assert tickets == 2
    host_memory.close()
    now += RETRY_S
    assert await host_memory.get("o", 1) is None
    assert tickets == 2
