"""Both ends of the HTTP layer against whatever octets the other end sends (RFC 9113 section 10.5; 5.1).

An input is three octets, then what goes over the wire. The first: bit 0 the end that is tried (0 server, 1 client),
bit 1 whether preface and SETTINGS are sent first, bit 2 the transport is paused for a while, bit 3 time passes at the
end, bit 4 we begin to leave halfway, bit 5 (client) one request more than the server allows at first. The second: the
octets that come at a time, times 16; 0: all at once. The third: where, in sixteenths, bits 2 and 4 happen.

What must hold: nothing is raised into the transport, no task or request is left behind, nothing is reported as a fault
of a handler; what is held for a stream stays within its window, what waits to be sent within the high-water mark; other
connections of the same server are served all the while; a client's callers get an answer or a TransportError.
"""

from __future__ import annotations

import asyncio
import gc
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from random import Random

from fuzz import frames
from fuzz.cbor_mutator import Octets
from fuzz.frames import END_HEADERS, END_STREAM, PREFACE, fields, frame
from fuzz.loopback import Wire, run, turns
from fuzz.seeds import message_bodies
from sdcp.errors import ProblemError
from sdcp.http.client_connection import ClientConnection
from sdcp.http.connection import CHUNK, HIGH_WATER, Connection
from sdcp.http.dispatch import answer, dispatcher, receive
from sdcp.http.exchange import Request, Response
from sdcp.http.faults import TransportError
from sdcp.http.frames import MAX_FRAME
from sdcp.http.identity import TrustPolicy
from sdcp.http.limits import ClientLimits, ServerLimits
from sdcp.http.resources import (
    CACHE_RESOURCES,
    DRAFTER_RESOURCES,
    ROUTER_RESOURCES,
    VERIFIER_RESOURCES,
    Parameters,
    Resource,
    Table,
)
from sdcp.http.server import Server
from sdcp.http.server_connection import ServerConnection
from sdcp.wire.problem import decode_problem, decode_session_state, encode_problem

CLIENT, GREETED, PAUSED, LATER, LEAVING, CROWDED = 1, 2, 4, 8, 16, 32
WINDOW = 4096  # of a stream, small, so that an input can fill it
LARGEST_BODY = 2048
LIMITS = ServerLimits(max_streams=4, stream_window=WINDOW, connection_window=65535, max_requests=6)
CLIENT_LIMITS = ClientLimits(max_streams=2, stream_window=WINDOW, connection_window=65535, max_bytes=LARGEST_BODY)
GREETING = frame(frames.SETTINGS, 0, 0, b"")
TABLE = Table((*VERIFIER_RESOURCES, *DRAFTER_RESOURCES, *ROUTER_RESOURCES, *CACHE_RESOURCES))


def one(data: bytes) -> None:
    """Try one peer."""
    options, step, place, octets = *data[:3].ljust(3, b"\0"), data[3:]
    run((_client if options & CLIENT else _server)(options, step, place, octets))
    gc.collect()  # so that what failed unseen is said now


# -- a server ----------------------------------------------------------------------------------------------------------


def _endpoint(resource: Resource):  # type: ignore[no-untyped-def]
    """Every way of taking a body and giving one that the roles use."""

    async def serve(request: Request, parameters: Parameters) -> Response:
        request.parameter("from")
        if resource.body is not None:
            return answer(await receive(request, resource.body, LARGEST_BODY))
        if resource.method == "GET":
            return Response(200, (("content-type", resource.gives or "text/plain"),), _parts())
        if resource.method == "PATCH":
            return Response(200, (), b"".join([chunk async for chunk in request.chunks(LARGEST_BODY)]))
        return Response(201, (), await request.body(LARGEST_BODY))

    return serve


async def _parts() -> AsyncIterator[bytes]:
    for _ in range(3):
        await asyncio.sleep(0)
        yield b"x" * 100


HANDLER = dispatcher(TABLE, {resource.name: _endpoint(resource) for resource in TABLE.resources})


async def _server(options: int, step: int, place: int, octets: bytes) -> None:
    faults: list[object] = []
    server = Server(HANDLER, None, limits=LIMITS, report=lambda *what: faults.append(what))  # type: ignore[arg-type]
    connection, wire = _connected(ServerConnection(server))
    neighbour, neighbours_wire = _connected(ServerConnection(server))
    neighbour.data_received(PREFACE + GREETING)
    begun = PREFACE + GREETING if options & GREETED else b""
    await _feed(connection, begun + octets, step, _happenings(connection, options, place))
    await _other_is_served(neighbour, neighbours_wire)
    if options & LATER:
        for seconds in (11, 40, 700):
            connection.check(connection.loop.time() + seconds)
            await turns(2)
    for each in (wire, neighbours_wire):
        each.close()
    for end in (connection, neighbour):
        await _soon(end.finished(), "a handler that does not end")
    await turns(2)
    assert faults == [], f"reported: {faults}"
    assert (server.requests, server.connections) == (0, set()), "a request or a connection left behind"


async def _other_is_served(neighbour: ServerConnection, wire: Wire) -> None:
    ask = fields((":method", "GET"), (":scheme", "https"), (":authority", "x"), (":path", "/objects/o"))
    neighbour.data_received(frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, ask))
    for _ in range(40):
        if wire.sent.count(b"x" * 100) == 3:
            return
        await asyncio.sleep(0)
    raise AssertionError("another connection is not served any more")


# -- a client ----------------------------------------------------------------------------------------------------------


async def _client(options: int, step: int, place: int, octets: bytes) -> None:
    connection, wire = _connected(ClientConnection(TrustPolicy(), CLIENT_LIMITS))
    if options & GREETED:
        connection.data_received(GREETING)
    asks = [asyncio.ensure_future(_ask(connection, number)) for number in range(3 if options & CROWDED else 2)]
    await turns(2)
    await _feed(connection, octets, step, _happenings(connection, options, place))
    if options & LATER:
        connection.ping_if_silent(connection.loop.time() + 30, CLIENT_LIMITS.silence_s)
        connection.ping_if_silent(connection.loop.time() + 50, CLIENT_LIMITS.silence_s)
    wire.close()
    outcomes = await _soon(asyncio.gather(*asks, return_exceptions=True), "a caller without an answer")
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, TransportError), f"a caller got {outcome!r}"
    assert not connection.streams, "a stream left behind"
    await _soon(connection.close(), "a connection that does not close")


async def _ask(connection: ClientConnection, number: int) -> None:
    asked = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"x"), (b":path", b"/")]
    stream = await connection.open(asked, end=number != 1)
    if number == 1:
        connection.start_sending(stream, _parts())
    connection.push()
    try:
        await stream.head
        assert 200 <= stream.status <= 999, f"an answer of status {stream.status}"
        _understand(stream.status, stream.headers.get("content-type"), await _body(connection, stream.received))
    finally:
        connection.abandon(stream)


async def _body(connection: ClientConnection, received) -> bytes:  # type: ignore[no-untyped-def]
    body = await received.read(LARGEST_BODY, lambda limit: TransportError("too long", maybe_processed=True))
    assert len(body) <= LARGEST_BODY, "more than was allowed"
    return bytes(body)


def _understand(status: int, content_type: str | None, body: bytes) -> None:
    """A refusal is understood whatever it holds, and can be told to somebody else."""
    if status >= 400:
        problem = decode_problem(status, content_type, body)
        assert isinstance(problem, ProblemError), "not an error"
        encode_problem(problem, decode_session_state(content_type, body))


# -- both --------------------------------------------------------------------------------------------------------------


def _connected(connection):  # type: ignore[no-untyped-def]
    wire = Wire(connection)
    connection.connection_made(wire)
    return connection, wire


async def _soon(awaited, what: str):  # type: ignore[no-untyped-def]
    """The result, within so many turns of the loop as in memory are always enough."""
    task = asyncio.ensure_future(awaited)
    for _ in range(500):
        if task.done():
            return task.result()
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    raise AssertionError(what)


class _happenings:  # noqa: N801 - read as a function
    """What happens at `place` on the way of the octets: the transport pauses, or we begin to leave."""

    def __init__(self, connection: Connection, options: int, place: int) -> None:
        self.connection, self.options, self.place = connection, options, (place % 16) / 16
        self.begun = self.over = False

    def at(self, part: float) -> None:
        connection = self.connection
        if not self.begun and part >= self.place:
            self.begun = True
            if self.options & PAUSED:
                connection.pause_writing()
            if self.options & LEAVING:
                connection.begin_drain() if isinstance(connection, ServerConnection) else connection.leave()
        elif self.begun and not self.over:
            self.over = True
            if self.options & PAUSED:
                connection.resume_writing()


async def _feed(connection: Connection, octets: bytes, step: int, happenings: _happenings) -> None:
    """Hand the octets over, `step` at a time, with turns of the loop between."""
    size = 16 * step or len(octets) or 1
    for at in range(0, len(octets), size):
        happenings.at(at / len(octets))
        if not connection.transport or connection.transport.is_closing():
            break
        connection.data_received(octets[at : at + size])
        _check_bounds(connection)
        await turns(2)
        _check_bounds(connection)
    happenings.at(1.0)
    await turns(6)
    happenings.at(1.0)
    await turns(2)


def _check_bounds(connection: Connection) -> None:
    assert len(connection._frames._begun) <= MAX_FRAME + 9 + len(PREFACE), "a frame held that is longer than allowed"
    assert len(connection.streams) <= 2 * LIMITS.max_streams + 1, "more streams than are allowed"
    for stream in connection.streams.values():
        assert stream.received.held <= WINDOW, f"{stream.received.held} octets held of one stream"
        assert connection.queued(stream) <= HIGH_WATER + CHUNK, "more waits to be sent than may"


# -- to begin with, and to change --------------------------------------------------------------------------------------


def mutate(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change frames; now and then the options, or octets."""
    data = data.ljust(3, b"\0")
    chance = luck.random()
    if chance < 0.05:
        return bytes([luck.randrange(64), luck.choice((0, 1, 2, 8, 255)), luck.randrange(16)]) + data[3:]
    if chance < 0.2:
        return data[:3] + octets(data[3:], len(data) + 16)
    return data[:3] + frames.mutate(data[3:], luck, octets, _ANSWERS if data[0] & CLIENT else _REQUESTS)


def _request(stream: int, method: str, path: str, body: bytes | None = None, **more: str) -> bytes:
    """A whole request, its body in one frame."""
    asked = [(":method", method), (":scheme", "https"), (":authority", "x"), (":path", path)]
    asked += [(name.replace("_", "-"), value) for name, value in more.items()]
    flags = END_HEADERS if body is not None else END_HEADERS | END_STREAM
    head = frame(frames.HEADERS, flags, stream, fields(*asked))
    return head if body is None else head + frame(frames.DATA, END_STREAM, stream, body)


def _answer(stream: int, status: str, body: bytes, **more: str) -> bytes:
    answered = [(":status", status)] + [(name.replace("_", "-"), value) for name, value in more.items()]
    head = frame(frames.HEADERS, END_HEADERS, stream, fields(*answered))
    return head + frame(frames.DATA, END_STREAM, stream, body)


_SOME = sorted(message_bodies(), key=zlib.crc32)[::12]
_CONTROL = [
    frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"),
    frame(frames.SETTINGS, 1, 0, b""),
    frame(frames.SETTINGS, 0, 0, b"\0\4\0\0\0\0\0\3\0\0\0\1"),
    frame(frames.SETTINGS, 0, 0, b"\0\1\0\0\0\0\0\5\0\0\x40\0\0\6\0\0\0\1"),
    frame(frames.PING, 0, 0, b"12345678"),
    frame(frames.PING, 1, 0, b"goingoff"),
    frame(frames.GOAWAY, 0, 0, bytes(8)),
    frame(frames.GOAWAY, 0, 0, b"\x7f\xff\xff\xff" + bytes(4) + b"why"),
    frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\x40\0"),
    frame(frames.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"),
    frame(frames.PRIORITY, 0, 1, b"\0\0\0\3\x10"),
    frame(frames.DATA, frames.PADDED, 1, b"\2abc\0\0"),
]
_REQUESTS = [
    _request(1, "GET", "/objects/o"),
    _request(3, "HEAD", "/logs/a", accept="application/cbor-seq;q=0.5, */*;q=0"),
    _request(5, "DELETE", "/leases/l"),
    _request(1, "PUT", "/objects/o", b"octets", content_length="6"),
    _request(3, "PATCH", "/logs/a", b"\xa1eepoch\1", content_type="application/cbor-seq"),
    _request(1, "GET", "/sessions/AAAAAAAAAAAAAAAAAAAAAA/output?from=3&from=4"),
    _request(7, "POST", "/elsewhere", b""),
    frame(frames.HEADERS, END_HEADERS, 1, b"\x83\x87\x84\x41\x01x"),
    frame(frames.DATA, 0, 1, bytes(1000)),
    frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, fields(("trailer", "t"))),
    *(
        _request(stream, "POST", path, body, content_type="application/sdcp+cbor")
        for stream, path in ((1, "/sessions"), (3, "/proposals"), (5, "/assignments"), (7, "/events"))
        for body in _SOME
    ),
    *_CONTROL,
]
_ANSWERS = [
    _answer(1, "200", b"abc", content_length="3"),
    _answer(3, "409", b'{"type":"x#sdcp-stale-base","session-state":{}}', content_type="application/problem+json"),
    _answer(1, "503", b"{", content_type="application/problem+json; x=y", retry_after="1"),
    frame(frames.HEADERS, END_HEADERS, 1, fields((":status", "103"))),
    frame(frames.HEADERS, END_HEADERS | END_STREAM, 3, b"\x89"),
    frame(frames.DATA, 0, 3, bytes(1000)),
    frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, fields(("trailer", "t"))),
    frame(frames.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + fields((":method", "GET"))),
    *(_answer(1, "200", body, content_type="application/sdcp+cbor") for body in _SOME),
    *_CONTROL,
]


def seeds() -> Iterable[bytes]:
    """Each frame alone after a greeting, to a server and to a client, and sound conversations."""
    for spare in _REQUESTS:
        yield bytes([GREETED, 0, 0]) + spare
    for spare in _ANSWERS:
        yield bytes([CLIENT | GREETED, 0, 0]) + spare
    yield bytes([PAUSED, 1, 8]) + PREFACE + GREETING + b"".join(_REQUESTS[:6])
    yield bytes([GREETED | LEAVING | LATER, 2, 4]) + _REQUESTS[0] + _CONTROL[5]
    yield bytes([CLIENT | CROWDED | PAUSED | LEAVING, 1, 8]) + GREETING + b"".join(_ANSWERS[:6])
