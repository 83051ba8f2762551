"""A server that the kit plays a role with: each request is given whole to a handler, with the certificate behind it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h2.errors
import h2.events
import h2.exceptions

from sdcp_conformance.net.connection import Connection, Peer, Stream, TransportFault


class DropConnection(Exception):
    """Raised by a handler: cut the connection off instead of answering."""


class NoAnswer(Exception):
    """Raised by a handler: reset this stream alone instead of answering."""


@dataclass
class Request:
    """What the subject sent. `gone` is set when it no longer waits for the answer."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    peer: Peer
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Response:
    """What it is answered."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """Serves on a socket that is bound already; `close` cuts everything off."""

    def __init__(self, handler: Handler, context: ssl.SSLContext, bound: socket.socket) -> None:
        self._handler = handler
        self._context = context
        self._bound = bound
        self._server: asyncio.Server | None = None
        self.connections: set[_ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept connections."""
        self._server = await asyncio.start_server(self._accept, sock=self._bound, ssl=self._context)

    async def close(self) -> None:
        """Stop, and cut every connection off."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every connection off, and go on accepting new ones."""
        for connection in list(self.connections):
            connection.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _ServerConnection(reader, writer, self._handler, self._keep)
        self.connections.add(connection)
        try:
            await connection.run()
        except asyncio.CancelledError:
            connection.abort()
        finally:
            self.connections.discard(connection)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _ServerConnection(Connection):
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        keep: Callable[[asyncio.Task[None]], None],
    ) -> None:
        super().__init__(reader, writer, client=False)
        self._handler = handler
        self._keep = keep
        self._asked: dict[int, Request] = {}

    def on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            stream = Stream(event.stream_id, [(str(name), str(value)) for name, value in event.headers])
            self.streams[stream.number] = stream
            self._keep(asyncio.create_task(self._serve(stream)))
            return
        super().on_event(event)
        if isinstance(event, h2.events.StreamReset) and event.stream_id in self._asked:
            self._asked[event.stream_id].gone.set()

    async def _serve(self, stream: Stream) -> None:
        await stream.ended.wait()
        if stream.fault is not None:
            self.streams.pop(stream.number, None)
            return
        request = self._asked[stream.number] = _request(stream, self.peer)
        try:
            response = await self._handler(request)
            await self._answer(stream.number, response)
        except DropConnection:
            self.abort()
        except NoAnswer:
            self.reset(stream.number, h2.errors.ErrorCodes.INTERNAL_ERROR)
        except (h2.exceptions.ProtocolError, TransportFault):
            pass  # the subject waits no longer
        finally:
            self._asked.pop(stream.number, None)
            self.streams.pop(stream.number, None)

    async def _answer(self, number: int, response: Response) -> None:
        fields = [(":status", str(response.status)), *response.headers]
        if response.status != 204:
            fields.append(("content-length", str(len(response.body))))
        self.h2.send_headers(number, fields, end_stream=not response.body)
        self.flush()
        if response.body:
            await self.send_body(number, response.body)

    def abort(self) -> None:
        for request in self._asked.values():
            request.gone.set()
        super().abort()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for request in self._asked.values():
                request.gone.set()


def _request(stream: Stream, peer: Peer) -> Request:
    headers = dict(stream.headers)
    parts = urlsplit(headers.get(":path", "/"))
    query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    method = headers.get(":method", "")
    fields = {name: value for name, value in headers.items() if not name.startswith(":")}
    return Request(method, parts.path, query, fields, bytes(stream.body), peer)


def reserve() -> socket.socket:
    """A socket bound to a free port of 127.0.0.1, to serve on later."""
    bound = socket.socket()
    with suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound
