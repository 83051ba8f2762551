"""Both ends of host memory against whatever datagrams and descriptors the other end sends (D40). Linux.

An input is one octet, then datagrams. The octet: bit 0 the end that is tried (0 cache, 1 role), bit 1 whether a ticket
is presented, or taken, first. A datagram: what descriptor is beside it (`BESIDE`), its length in two octets, itself.

What must hold: nothing is raised or left behind, and at the end no descriptor more is open than before. A cache is
given sealed segments alone, of the size that was said, and another connection is served all the while; its replies are
to what was asked, and none says that it failed. A role gets a reply and, of status 200 alone, a view of a segment as
long as the reply says, or None, as if there were no host memory.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import gc
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random

from fuzz.attempts import attempt
from fuzz.cbor_mutator import Octets, mutate_sequence
from fuzz.loopback import StillLoop, run, turns
from sdcp.errors import UnknownResource
from sdcp.http.identity import Peer
from sdcp.messages.host_memory import DELETE, GET, LEASE, PUT, RELEASE, SegmentReply, SegmentRequest, Ticket
from sdcp.roles.host_memory import TICKET_S
from sdcp.roles.host_memory import HostMemory as CacheEnd
from sdcp.stores.host_memory import HostMemory as RoleEnd
from sdcp.stores.sealed import Sealed, SpareSegments, new_segment

ROLE, ADMITTED = 1, 2
DATA = bytes(range(100))
LARGEST = 200
MOST = 40  # datagrams of an input
PEER = Peer(frozenset({"https://drafter/"}), frozenset(), frozenset(), frozenset({"drafter"}))
OTHER = Peer(frozenset({"https://verifier/"}), frozenset(), frozenset(), frozenset({"verifier"}))


def one(data: bytes) -> None:
    """Try one peer."""
    options, datagrams = data[0] if data else 0, _unpacked(data[1:])[:MOST]
    run(turns(1))  # so that the loop has the descriptors that it needs
    before = _descriptors()
    run((_role if options & ROLE else _cache)(bool(options & ADMITTED), datagrams))
    gc.collect()  # views hold descriptors
    assert _descriptors() <= before, "a descriptor left open"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- the cache's end ---------------------------------------------------------------------------------------------------


class Kept:
    """What the cache's end is for: it looks at what it is given, and has one object, `o`."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def perform(self, peer: Peer, request: SegmentRequest, segment: Sealed | None) -> tuple[int, Sealed | None]:
        """Do what is asked."""
        self.asked.append(request.id)
        await asyncio.sleep(0)
        assert (segment is not None) == (request.do == PUT), "a segment of nobody, or none"
        if segment is not None:
            with segment:
                _check_sealed(segment)
                assert segment.size == (request.size or 0) <= LARGEST, "of another size than was said"
            return 201, None
        if request.do == GET and request.name != "o":
            raise UnknownResource(f"there is no {request.name!r}")
        return (200, Sealed.of(DATA)) if request.do == GET else (204, None)


def _check_sealed(segment: Sealed) -> None:
    seals = fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_WRITE and seals & fcntl.F_SEAL_SHRINK, "it can still be changed"  # noqa: PT018
    assert len(bytes(segment.view())) == segment.size, "fewer octets than it says"


async def _cache(admitted: bool, datagrams: list[tuple[int, bytes]]) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    kept = Kept()
    with tempfile.TemporaryDirectory() as place:
        end = CacheEnd(Path(place) / "h", kept.perform, largest=LARGEST, clock=loop.time)
        end.start()
        ticket = end.ticket(PEER)
        with _connected(ticket.path) as connection:
            if admitted:
                connection.send(ticket.ticket)
            await turns(3)
            for what, octets in datagrams:
                _send(connection, what, octets)
                await turns(4)
            await turns(6)
            _check_replies(connection, kept.asked, admitted)
            await _other_is_served(end)
        await turns(3)
        loop.later(TICKET_S + 1)
        await turns(2)
        await end.close()
        await turns(2)
        assert not end._connections, "a connection left behind"


def _check_replies(connection: socket.socket, asked: list[int], admitted: bool) -> None:
    replies = [SegmentReply.decode(octets) for octets in _received(connection)]
    assert all(reply.status != 500 for reply in replies), f"a fault of the cache: {replies}"
    if not replies:
        assert not asked, "no answer, and it was done"
        return
    first, *others = replies
    assert (first.id, first.status) == (0, 204), "answered before it was admitted"
    assert len(others) >= len(asked), "asked, and not answered"
    assert admitted, "admitted without a ticket"


async def _other_is_served(end: CacheEnd) -> None:
    ticket = end.ticket(OTHER)
    with _connected(ticket.path) as connection:
        connection.send(ticket.ticket)
        connection.send(SegmentRequest(id=7, do=GET, name="o", size=LARGEST).encode())
        await turns(8)
        _, reply = [SegmentReply.decode(octets) for octets in _received(connection)]
        assert (reply.id, reply.status, reply.size) == (7, 200, len(DATA)), "another connection is not served any more"


# -- the role's end ----------------------------------------------------------------------------------------------------


async def _role(admitted: bool, datagrams: list[tuple[int, bytes]]) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        path = f"{place}/socket"
        listening.bind(path)
        listening.listen(4)
        listening.setblocking(False)
        end = RoleEnd(lambda: _ticket(path), deadline_s=2.0, clock=loop.time)
        end._spares = SpareSegments(0)  # those are made in a thread, some time
        asks = [
            asyncio.ensure_future(ask)
            for ask in (end.get("a", LARGEST), end.put("b", memoryview(DATA)), end.get("c", 50), end.get("d", LARGEST))
        ]
        await turns(4)
        connection, _ = listening.accept()
        with connection:
            connection.setblocking(False)
            if admitted:
                _send(connection, 0, SegmentReply(id=0, status=204).encode())
            await turns(4)
            for what, octets in datagrams:
                _send(connection, what, octets)
                await turns(3)
            _received(connection)
        await turns(6)
        for _ in range(3):  # the deadline is for each
            loop.later(3)
            await turns(6)
        assert all(ask.done() for ask in asks), "a caller without an answer"
        for at_most, ask in zip((LARGEST, 0, 50, LARGEST), asks, strict=True):
            _check_answer(ask.result(), at_most)
        end.close()
        loop.later(1)
        await turns(2)


async def _ticket(path: str) -> Ticket:
    return Ticket(path=path, ticket=bytes(16))


def _check_answer(answer: object, at_most: int) -> None:
    if not isinstance(answer, tuple):
        assert answer is None or isinstance(answer, SegmentReply), "an answer of no kind"
        return
    reply, view = answer
    assert (view is not None) == (reply.status == 200), "a view of another answer than 200, or none"
    if view is not None:
        assert view.readonly
        assert len(view) == (reply.size or 0) <= at_most, f"{len(view)} octets of {reply}; at most {at_most}"


# -- sockets and descriptors -------------------------------------------------------------------------------------------


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    connection.connect(path)
    return connection


def _send(connection: socket.socket, what: int, octets: bytes) -> None:
    """Send, unless the other end has closed or reads no more."""
    fds = BESIDE[what % len(BESIDE)]()
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    attempt(lambda: connection.sendmsg([octets], beside), OSError)
    for fd in fds:
        os.close(fd)


def _received(connection: socket.socket) -> list[bytes]:
    """All that came; descriptors beside it are closed."""
    came: list[bytes] = []
    while True:
        found, _ = attempt(lambda: socket.recv_fds(connection, 1 << 15, 4), OSError)
        if found is None or not found[0]:
            return came
        came.append(found[0])
        for fd in found[1]:
            os.close(fd)


def _sound() -> list[int]:
    with Sealed.of(DATA) as segment:
        return [os.dup(segment.fd)]


def _opened(access: int) -> list[int]:
    with Sealed.of(DATA) as segment:
        return [os.open(f"/proc/self/fd/{segment.fd}", access)]


def _unsealed(seals: int, size: int = len(DATA), octets: bytes = DATA) -> list[int]:
    fd = new_segment()
    os.write(fd, octets)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return [fd]


_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
BESIDE = (
    lambda: [],
    _sound,
    lambda: [],
    lambda: _opened(os.O_RDONLY),
    lambda: _opened(os.O_WRONLY),
    lambda: _opened(os.O_PATH),
    lambda: _unsealed(0),
    lambda: _unsealed(_ALL_SEALS & ~fcntl.F_SEAL_GROW),
    lambda: _unsealed(_ALL_SEALS & ~fcntl.F_SEAL_WRITE),
    lambda: _unsealed(_ALL_SEALS, 1 << 40),
    lambda: _unsealed(_ALL_SEALS, 0, b""),
    lambda: [os.open("/dev/null", os.O_RDWR)],
    lambda: [os.open("/proc", os.O_RDONLY)],
    lambda: [os.eventfd(0)],
    lambda: _sound() + _sound(),
    lambda: _sound() + _unsealed(0) + _sound(),
)
"""What descriptors may be beside a datagram."""


# -- to begin with, and to change --------------------------------------------------------------------------------------


def _unpacked(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while len(data) >= 3:
        size = int.from_bytes(data[1:3], "big")
        found.append((data[0], data[3 : 3 + size]))
        data = data[3 + size :]
    return found


def _packed(datagrams: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(bytes([what]) + len(octets).to_bytes(2, "big") + octets for what, octets in datagrams)


def mutate(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change one datagram as CBOR, what is beside it, or their order; now and then octets."""
    datagrams = _unpacked(data[1:])
    if not datagrams or luck.random() < 0.1:
        return octets(data, len(data) + 16)
    at = luck.randrange(len(datagrams))
    what, body = datagrams[at]
    match luck.randrange(6):
        case 0:
            datagrams[at] = luck.randrange(len(BESIDE)), body
        case 1:
            datagrams.insert(at, luck.choice(datagrams))
        case 2:
            datagrams.append(datagrams.pop(at))
        case 3 if len(datagrams) > 1:
            del datagrams[at]
        case _:
            datagrams[at] = what, mutate_sequence(body, luck, octets)[: (1 << 16) - 1]
    options = luck.randrange(4) if luck.random() < 0.05 else data[0]
    return bytes([options]) + _packed(datagrams)


def seeds() -> Iterable[bytes]:
    """Sound conversations from either side, and every descriptor beside a put and beside the reply to a get."""
    requests = [
        (1, SegmentRequest(id=1, do=PUT, name="p", size=len(DATA))),
        (0, SegmentRequest(id=2, do=GET, name="o", size=LARGEST)),
        (0, SegmentRequest(id=3, do=LEASE, name="l", objects=("o", "p"), ttl_ms=1000)),
        (0, SegmentRequest(id=4, do=RELEASE, name="l")),
        (0, SegmentRequest(id=5, do=DELETE, name="o")),
        (0, SegmentRequest(id=6, do=GET, name="absent")),
    ]
    replies = [
        (1, SegmentReply(id=1, status=200, size=len(DATA))),
        (0, SegmentReply(id=2, status=201)),
        (1, SegmentReply(id=3, status=200, size=len(DATA))),
        (0, SegmentReply(id=4, status=404, detail="absent")),
    ]
    for options, talk in ((ADMITTED, requests), (0, requests), (ADMITTED | ROLE, replies), (ROLE, replies)):
        yield bytes([options]) + _packed((what, message.encode()) for what, message in talk)
    for what in range(len(BESIDE)):
        yield bytes([ADMITTED]) + _packed([(what, requests[0][1].encode())])
        yield bytes([ADMITTED | ROLE]) + _packed([(what, replies[0][1].encode())])
    yield bytes([ADMITTED]) + _packed([(0, b"x" * 3000), (0, b"")])
