"""The cache's socket for segments and peers that break its rules: none gets in, hangs it, or leaves a descriptor."""

from __future__ import annotations

import array
import asyncio
import fcntl
import gc
import mmap
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sdcp.errors import Overloaded, UnknownResource
from sdcp.http.identity import Peer
from sdcp.messages.host_memory import GET, PUT, SegmentReply, SegmentRequest, Ticket
from sdcp.roles import host_memory
from sdcp.roles.host_memory import MAX_AGE_S, MAX_PER_PEER, TICKET_S, HostMemory
from sdcp.stores.host_memory import IN_FLIGHT
from sdcp.stores.sealed import AVAILABLE, Sealed, new_segment

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")

DRAFTER = Peer(frozenset({"https://drafter.test/"}), frozenset(), frozenset(), frozenset({"drafter"}))
VERIFIER = Peer(frozenset({"https://verifier.test/"}), frozenset(), frozenset(), frozenset({"verifier"}))
DATA = os.urandom(10_000)
LARGEST = 1 << 20


class Site:
    """A host memory that keeps what it is given, in order; `gate` holds requests back."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.kept: dict[str, tuple[str, bytes]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_once = 0
        self.host_memory = HostMemory(folder, self.perform, largest=LARGEST, clock=lambda: self.now)
        self.sockets: list[socket.socket] = []

    async def perform(self, peer: Peer, request: SegmentRequest, segment: Sealed | None) -> tuple[int, Sealed | None]:
        self.at_once += 1
        await self.gate.wait()
        self.at_once -= 1
        if segment is not None:
            with segment:
                self.kept[request.name] = (peer.name, bytes(segment.view()))
            return 201, None
        if request.name == "fault":
            raise RuntimeError("a fault of ours")
        if request.name not in self.kept:
            raise UnknownResource(request.name)
        return 200, Sealed.of(self.kept[request.name][1])

    def ticket(self) -> Ticket:
        return self.host_memory.ticket(DRAFTER)

    async def connect(self, path: str) -> socket.socket:
        """A raw connection: a test breaks the rules on it as it likes."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        self.sockets.append(connection)
        connection.connect(path)
        return connection

    async def admitted(self) -> socket.socket:
        ticket = self.ticket()
        connection = await self.connect(ticket.path)
        connection.send(ticket.ticket)
        assert SegmentReply.decode((await received(connection))[0]).status == 204
        return connection

    async def close(self) -> None:
        for connection in self.sockets:
            connection.close()
        self.gate.set()
        await self.host_memory.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path / "host-memory")
    made.host_memory.start()
    yield made
    await made.close()


async def received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The next datagram and its descriptors; b"" when the other end has closed."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection.fileno(), lambda: readable.done() or readable.set_result(None))
    try:
        async with asyncio.timeout(20):
            await readable
    finally:
        loop.remove_reader(connection.fileno())
    try:
        datagram, fds, _, _ = socket.recv_fds(connection, 1 << 16, 4)
    except ConnectionResetError:
        return b"", []
    return datagram, list(fds)


def request(number: int, do: str, name: str = "o", size: int = len(DATA)) -> bytes:
    return SegmentRequest(id=number, do=do, name=name, size=size).encode()


def send(connection: socket.socket, datagram: bytes, *fds: int) -> None:
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([datagram], beside)


async def put(connection: socket.socket, fd: int, size: int = len(DATA)) -> SegmentReply:
    send(connection, request(1, PUT, size=size), fd)
    return SegmentReply.decode((await received(connection))[0])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# -- getting in --------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D40-who", "D40-datagrams")
async def test_a_ticket_opens_a_connection_that_is_its_owners(site: Site) -> None:
    ticket = site.ticket()
    site.host_memory.ticket(VERIFIER)
    connection = await site.connect(ticket.path)
    connection.send(ticket.ticket)
    assert SegmentReply.decode((await received(connection))[0]).status == 204
    with Sealed.of(DATA) as segment:
        assert (await put(connection, segment.fd)).status == 201
    assert site.kept["o"] == (DRAFTER.name, DATA)
    send(connection, request(2, GET))
    datagram, (fd,) = await received(connection)
    reply = SegmentReply.decode(datagram)
    assert (reply.id, reply.status, reply.size) == (2, 200, len(DATA))
    with Sealed.received(fd, len(DATA)) as segment:
        assert segment.view() == DATA


@pytest.mark.decision("D40-ticket")
async def test_a_ticket_is_good_once(site: Site) -> None:
    ticket = site.ticket()
    first, second = await site.connect(ticket.path), await site.connect(ticket.path)
    first.send(ticket.ticket)
    assert SegmentReply.decode((await received(first))[0]).status == 204
    second.send(ticket.ticket)
    assert await received(second) == (b"", [])


@pytest.mark.decision("D40-ticket")
async def test_a_ticket_expires(site: Site) -> None:
    ticket = site.ticket()
    site.now += TICKET_S
    connection = await site.connect(ticket.path)
    connection.send(ticket.ticket)
    assert await received(connection) == (b"", [])


@pytest.mark.parametrize("first", [bytes(16), b"x", request(1, GET)])
@pytest.mark.decision("D40-ticket")
async def test_nothing_but_a_ticket_opens_a_connection(site: Site, first: bytes) -> None:
    site.kept["o"] = ("somebody", DATA)
    connection = await site.connect(site.ticket().path)
    connection.send(first)
    assert await received(connection) == (b"", [])


@pytest.mark.decision("D40-end")
async def test_a_descriptor_beside_a_ticket_is_closed(site: Site) -> None:
    ticket = site.ticket()
    connection = await site.connect(ticket.path)
    before = descriptors()
    with Sealed.of(DATA) as segment:
        send(connection, ticket.ticket, segment.fd)
        assert await received(connection) == (b"", [])
    assert descriptors() == before


@pytest.mark.decision("D40-bounds")
async def test_unused_tickets_of_one_peer_are_counted(site: Site) -> None:
    for _ in range(MAX_PER_PEER):
        site.ticket()
    with pytest.raises(Overloaded):
        site.ticket()
    site.host_memory.ticket(Peer(frozenset({"https://other.test/"}), frozenset(), frozenset()))
    site.now += TICKET_S
    site.ticket()


@pytest.mark.decision("D40-bounds")
async def test_connections_of_one_peer_are_counted(site: Site) -> None:
    connections = [await site.admitted() for _ in range(MAX_PER_PEER)]
    ticket = site.ticket()
    connection = await site.connect(ticket.path)
    connection.send(ticket.ticket)
    assert await received(connection) == (b"", [])
    connections[0].close()
    await until(lambda: len(site.host_memory._connections) < MAX_PER_PEER)
    await site.admitted()


@pytest.mark.decision("D40-bounds")
async def test_no_more_connections_in_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "MAX_CONNECTIONS", 2)
    tickets = [site.ticket() for _ in range(3)]
    connections = [await site.connect(ticket.path) for ticket in tickets]
    assert await received(connections[2]) == (b"", [])
    connections[0].send(tickets[0].ticket)
    assert SegmentReply.decode((await received(connections[0]))[0]).status == 204


@pytest.mark.decision("D40-who", "D40-ticket")
async def test_another_users_process_does_not_get_in(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = site.ticket()
    folder = Path(ticket.path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(host_memory, "same_user", lambda connection: False)
    connection = await site.connect(ticket.path)
    with suppress(OSError):  # perhaps it is closed already
        connection.send(ticket.ticket)
    assert await received(connection) == (b"", [])


@pytest.mark.decision("D40-ticket")
async def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    site = Site(folder)
    site.host_memory.start()
    with pytest.raises(UnknownResource):
        site.ticket()
    await site.close()


async def test_a_path_too_long_for_a_socket_goes_to_the_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    deep = tmp_path / ("d" * 100) / "host-memory"
    without = Site(deep)
    without.host_memory.start()
    with pytest.raises(UnknownResource):
        without.ticket()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    site = Site(deep)
    site.host_memory.start()
    assert Path(site.ticket().path).parent.parent == tmp_path
    await site.admitted()
    await site.close()


# -- what is handed over -----------------------------------------------------------------------------------------------


@pytest.mark.decision("D40-seal")
async def test_what_is_not_sealed_is_refused_and_the_connection_goes_on(site: Site) -> None:
    connection = await site.admitted()
    before = descriptors()
    fd = new_segment()
    os.write(fd, DATA)
    assert (await put(connection, fd)).status == 422
    kept = mmap.mmap(fd, len(DATA), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    assert (await put(connection, fd)).status == 422, "a mapping through which it could still be changed"
    kept.close()
    os.close(fd)
    with Sealed.of(DATA) as segment:
        assert (await put(connection, segment.fd, len(DATA) + 1)).status == 422
        assert (await put(connection, segment.fd, len(DATA) - 1)).status == 422
        for access in (os.O_PATH, os.O_WRONLY):
            unreadable = os.open(f"/proc/self/fd/{segment.fd}", access)
            assert (await put(connection, unreadable)).status == 422
            os.close(unreadable)
    assert site.kept == {}
    with Sealed.of(DATA) as segment:
        assert (await put(connection, segment.fd)).status == 201
    assert descriptors() == before


@pytest.mark.decision("D40-bounds")
async def test_what_is_too_large_is_refused_unread(site: Site) -> None:
    connection = await site.admitted()
    with Sealed.of(bytes(LARGEST + 1)) as segment:
        reply = await put(connection, segment.fd, segment.size)
    assert reply.status == 413
    assert str(LARGEST) in (reply.detail or "")
    with Sealed.of(bytes(LARGEST)) as segment:
        assert (await put(connection, segment.fd, segment.size)).status == 201


async def test_names_are_those_of_objects(site: Site) -> None:
    connection = await site.admitted()
    for name in ("../x", "", "a/b", ".hidden", "x" * 201):
        send(connection, request(1, GET, name))
        assert SegmentReply.decode((await received(connection))[0]).status == 404


async def test_a_fault_of_ours_is_500_and_the_connection_goes_on(site: Site) -> None:
    connection = await site.admitted()
    for name, status in (("fault", 500), ("nothing", 404)):
        send(connection, request(1, GET, name))
        assert SegmentReply.decode((await received(connection))[0]).status == status


@pytest.mark.parametrize(
    "datagram",
    [b"\xff", b"\xa0", request(1, GET)[:-1], bytes(20_000), request(1, PUT), b"\xa1\x62id\x01"],
    ids=["no CBOR", "empty map", "cut off", "too long", "PUT of nothing", "members missing"],
)
@pytest.mark.decision("D40-end")
async def test_what_is_no_request_ends_the_connection(site: Site, datagram: bytes) -> None:
    connection = await site.admitted()
    send(connection, datagram)
    assert await received(connection) == (b"", [])


@pytest.mark.decision("D40-end")
async def test_descriptors_that_nobody_asked_for_end_the_connection_and_are_closed(site: Site) -> None:
    before = descriptors()
    with Sealed.of(DATA) as segment:
        for fds in ([segment.fd] * 2, [segment.fd] * 100):
            connection = await site.admitted()
            send(connection, request(1, PUT), *fds)
            assert await received(connection) == (b"", [])
        connection = await site.admitted()
        send(connection, request(1, GET), segment.fd)
        assert await received(connection) == (b"", [])
    for each in site.sockets:
        each.close()
    assert descriptors() == before


@pytest.mark.decision("D40-who")
async def test_a_connection_grows_old(site: Site) -> None:
    connection = await site.admitted()
    site.now += MAX_AGE_S
    send(connection, request(1, GET))
    assert await received(connection) == (b"", [])


# -- how much at once --------------------------------------------------------------------------------------------------


@pytest.mark.decision("D40-bounds")
async def test_a_flood_of_descriptors_waits_outside(site: Site) -> None:
    connection = await site.admitted()
    other = await site.admitted()
    site.gate.clear()
    before = descriptors()
    sent = 0
    with Sealed.of(DATA) as segment:
        while sent < 10_000:
            try:
                send(connection, request(sent + 1, PUT, f"o{sent}"), segment.fd)
            except BlockingIOError:
                if site.at_once == IN_FLIGHT:
                    break
                await asyncio.sleep(0)
                continue
            sent += 1
    assert IN_FLIGHT < sent < 10_000
    assert site.at_once == IN_FLIGHT
    assert descriptors() <= before + IN_FLIGHT
    site.gate.set()
    with Sealed.of(DATA) as segment:
        assert (await put(other, segment.fd)).status == 201
    connection.close()
    await until(lambda: len(site.host_memory._connections) == 1)
    assert descriptors() == before - 2, "both ends of the flooded connection"


async def test_who_reads_no_replies_is_cut_off(site: Site) -> None:
    connection = await site.admitted()
    before = descriptors()
    sent = 0
    try:
        while sent < 100_000:
            try:
                send(connection, request(sent, GET, "nothing"))
                sent += 1
            except BlockingIOError:
                await asyncio.sleep(0)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert 0 < sent < 100_000
    assert descriptors() < before


async def test_what_is_under_way_is_answered_before_the_end(site: Site) -> None:
    connection = await site.admitted()
    site.gate.clear()
    with Sealed.of(DATA) as segment:
        send(connection, request(1, PUT), segment.fd)
    await until(lambda: site.at_once == 1)
    closing = asyncio.ensure_future(site.host_memory.close())
    await asyncio.sleep(0)
    site.gate.set()
    assert SegmentReply.decode((await received(connection))[0]).status == 201
    assert await received(connection) == (b"", [])
    await closing
    with pytest.raises(FileNotFoundError):
        await site.connect(site.host_memory._path)
