"""Whatever bytes a peer sends, nothing escapes, nothing hangs, nothing is left behind (RFC 9113 section 10.5)."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from sdcp.http.client_connection import ClientConnection
from sdcp.http.exchange import Request, Response
from sdcp.http.faults import TransportError
from sdcp.http.identity import TrustPolicy
from sdcp.http.limits import ClientLimits, ServerLimits
from sdcp.http.server import Server
from sdcp.http.server_connection import ServerConnection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TLS = SimpleNamespace(
    version=lambda: "TLSv1.3",
    selected_alpn_protocol=lambda: "h2",
    getpeercert=lambda binary_form=False: b"" if binary_form else {},
)
HEADERS = [
    b"\x83\x87\x84\x41\x01x",  # POST https / with authority x
    b"\x82\x87\x84\x41\x01x",  # GET
    b"\x82\x87\x84",
    b"\x88",  # :status 200
    b"\x88\x5c\x013",  # with content-length 3
    b"\x40\x01A\x01b",  # a name in capitals
]


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"ssl_object": TLS})
        self.sent = bytearray()
        self.closing = False
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


streams = st.sampled_from([0, 1, 2, 3, 5, 7])
frames = st.one_of(
    st.builds(frame, st.just(1), st.sampled_from([4, 5, 0, 1, 0x2D]), streams, st.sampled_from(HEADERS)),
    st.builds(frame, st.just(0), st.sampled_from([0, 1, 8]), streams, st.binary(max_size=40)),
    st.builds(frame, st.just(3), st.just(0), streams, st.binary(min_size=4, max_size=4)),
    st.builds(frame, st.just(4), st.sampled_from([0, 1]), st.just(0), st.sampled_from([b"", b"\0\4\0\0\0\0", b"x"])),
    st.builds(frame, st.just(6), st.sampled_from([0, 1]), streams, st.binary(min_size=8, max_size=8)),
    st.builds(frame, st.just(7), st.just(0), st.just(0), st.sampled_from([bytes(8), b"\x7f\xff\xff\xff" + bytes(4)])),
    st.builds(frame, st.just(8), st.just(0), streams, st.sampled_from([b"\0\0\0\1", bytes(4), b"\x7f\xff\xff\xff"])),
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), streams, st.binary(max_size=30)),
    st.binary(max_size=30),
)
cuts = st.lists(st.integers(0, 1500), max_size=6)


async def feed(protocol: asyncio.Protocol, data: bytes, at: list[int]) -> None:
    """Hand over `data` in pieces, with a turn of the loop between them."""
    begun = 0
    for cut in [*sorted(at), len(data)]:
        if piece := data[begun:cut]:
            protocol.data_received(piece)
            begun = cut
        await asyncio.sleep(0)


async def handle(request: Request) -> Response:
    if request.method == "GET":
        return Response(200, (), parts())
    return Response(200, (), await request.body(60))


async def parts() -> AsyncIterator[bytes]:
    for _ in range(3):
        await asyncio.sleep(0)
        yield b"x" * 100


@settings(max_examples=150, deadline=None)
@given(st.lists(frames, max_size=10), cuts, st.booleans())
def test_a_server_bears_any_client(sent: list[bytes], at: list[int], greeted: bool) -> None:
    async def scenario() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        server = Server(handle, None, limits=ServerLimits(max_streams=4), report=lambda *what: faults.append(what))
        connection = ServerConnection(server)
        wire = Wire(connection)
        connection.connection_made(wire)
        settings_frame = frame(4, 0, 0, b"") if greeted else b""
        await feed(connection, PREFACE + settings_frame + b"".join(sent), at)
        connection.check(connection.loop.time())
        wire.close()
        await asyncio.wait_for(connection.finished(), 5)
        await asyncio.sleep(0)
        assert (server.requests, server.connections, faults) == (0, set(), [])

    asyncio.run(scenario())


@settings(max_examples=150, deadline=None)
@given(st.lists(frames, max_size=10), cuts, st.booleans())
def test_a_client_bears_any_server(sent: list[bytes], at: list[int], with_body: bool) -> None:
    async def ask(connection: ClientConnection) -> bytes:
        fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"x"), (b":path", b"/")]
        stream = await connection.open(fields, end=not with_body)
        if with_body:
            connection.start_sending(stream, parts())
        connection.push()
        try:
            await stream.head
            return await stream.received.read(1000, lambda limit: TransportError("long", maybe_processed=True))
        finally:
            connection.abandon(stream)

    async def scenario() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        connection = ClientConnection(TrustPolicy(), ClientLimits())
        wire = Wire(connection)
        connection.connection_made(wire)
        connection.data_received(frame(4, 0, 0, b""))
        asks = [asyncio.ensure_future(ask(connection)) for _ in range(3)]
        await asyncio.sleep(0)
        await feed(connection, b"".join(sent), at)
        wire.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), 5)
        assert all(isinstance(outcome, bytes | TransportError) for outcome in outcomes), outcomes
        assert not connection.streams
        assert faults == []

    asyncio.run(scenario())


def test_the_grammar_reaches_the_handlers() -> None:
    """A fuzzer that is always refused at the door tests the door alone."""

    async def scenario() -> bytes:
        connection = ServerConnection(Server(handle, None))
        wire = Wire(connection)
        connection.connection_made(wire)
        body = frame(1, 4, 1, HEADERS[0]) + frame(0, 1, 1, b"abc")
        await feed(connection, PREFACE + frame(4, 0, 0, b"") + body, [])
        for _ in range(5):
            await asyncio.sleep(0)
        wire.close()
        await connection.finished()
        return bytes(wire.sent)

    assert b"abc" in asyncio.run(scenario())
