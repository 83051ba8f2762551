"""A real authority, real TLS on the loopback, and a client that speaks raw HTTP/2, so that it can misbehave."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import ngh2
import pytest

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context

PATIENCE_S = 20  # a test that takes longer hangs


class Pki:
    """An authority with a verifier (which serves) and a router and a drafter (which call), and a foreign authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.verifier = issue(folder, "verifier", "verifier", ["https://127.0.0.1:7001/"])
        self.router = issue(folder, "router", "router", ["https://127.0.0.1:7000/"])
        self.drafter = issue(folder, "drafter", "drafter", ["https://127.0.0.1:7002/d"])
        self.elsewhere = issue(folder, "elsewhere", "verifier", [], dns=["elsewhere.example"])
        self.foreign = issue(folder / "foreign", "router", "router")

    @property
    def server(self) -> ssl.SSLContext:
        return server_context(self.verifier)

    @property
    def client(self) -> ssl.SSLContext:
        return client_context(self.router)

    def mixed(self, files: TlsFiles) -> TlsFiles:
        """A certificate of one authority in the hands of somebody who trusts ours."""
        return TlsFiles(files.certificate, files.key, self.folder / "ca.pem")


class RawClient:
    """HTTP/2 by hand on a TLS connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(auto_window_update=False))
        self.h2.initiate_connection({ngh2.Setting.ENABLE_PUSH: 0})
        self.seen: list[ngh2.Event] = []

    def request(self, method: str = "POST", path: str = "/", *more: tuple[bytes, bytes], end: bool = False) -> int:
        fields = [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", b"x"),
            (b":path", path.encode()),
        ]
        return self.h2.send_request([*fields, *more], end_stream=end)

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def until(self, kind: type, stream_id: int | None = None) -> ngh2.Event:
        """Send what is queued, and read until such an event has come."""
        while True:
            with suppress(ConnectionResetError):  # what the server said before it closed is still to be read
                await self.flush()
            for event in self.seen:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    self.seen.remove(event)
                    return event
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            try:
                self.h2.receive_data(data)
            except ngh2.ConnectionStateError:  # both sides have said GOAWAY, and all streams are done
                raise ConnectionResetError("the connection has ended") from None
            self.seen += self.h2.events()

    async def status(self, stream_id: int) -> int:
        event = await self.until(ngh2.ResponseReceived, stream_id)
        return int(dict(event.headers)[b":status"])

    async def settle(self) -> None:
        """One PING round trip: the server has handled all that was sent before."""
        self.h2.ping(b"settling")
        await self.until(ngh2.PingAcknowledged)

    async def closed(self) -> None:
        """Return when the server has closed the connection."""
        while await self.reader.read(65536):
            pass


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable]:
    """Roles run on uvloop where it is built, on asyncio's own loop elsewhere: everything here runs on both."""
    factories: dict[str, Callable] = {"asyncio": asyncio.new_event_loop}
    with suppress(ImportError):
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def serving(pki: Pki) -> Callable[..., object]:
    """`async with serving(handler, limits=..., client_limits=...) as (server, client, base)`."""

    @asynccontextmanager
    async def serve(handler, *, client=None, **options) -> AsyncIterator[tuple[Server, Client, str]]:
        async with (
            asyncio.timeout(PATIENCE_S),
            Server(handler, pki.server, **options) as server,
            Client(pki.client, **(client or {})) as caller,
        ):
            yield server, caller, f"https://127.0.0.1:{server.port}"

    return serve


@pytest.fixture
def raw(pki: Pki) -> Callable[..., object]:
    """`async with raw(server) as client`: a RawClient."""

    @asynccontextmanager
    async def connect(server: Server) -> AsyncIterator[RawClient]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=pki.client, server_hostname="127.0.0.1"
        )
        try:
            yield RawClient(reader, writer)
        finally:
            writer.transport.abort()

    return connect
