"""The server: listens, admits, limits, drains. One asyncio loop, no threads (draft section 5.1).

A handler is `async def handler(request) -> Response`. It is cancelled when the client resets the stream or goes away.
A `ProblemError` it raises is answered as Problem Details; anything else is answered 500 with nothing of its inside, and
reported to `report`. `drain` stops the server without losing a request that it has accepted.

Not here: the exchange on one connection (`sdcp.http.server_connection`), resources (`sdcp.http.dispatch`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from sdcp.http.exchange import Handler
from sdcp.http.identity import TrustPolicy
from sdcp.http.limits import ServerLimits
from sdcp.http.server_connection import ServerConnection
from sdcp.http.tls import telling_why

Report = Callable[[str, BaseException], None]

_logger = logging.getLogger("sdcp.http")
_BACKLOG = 512
_ACCEPT_PAUSE_S = 0.1  # when the process has run out of file descriptors


def report_to_log(what: str, error: BaseException) -> None:
    """The default `report`: the logger `sdcp.http`, with the traceback."""
    _logger.error(what, exc_info=error)


class Server:
    """An HTTP/2 server of one handler. `async with Server(...) as server` starts it and drains it."""

    def __init__(
        self,
        handler: Handler,
        tls: ssl.SSLContext,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        trust: TrustPolicy | None = None,
        limits: ServerLimits | None = None,
        report: Report = report_to_log,
    ) -> None:
        """`port` 0 takes a free one: read it from `port` after `start`."""
        self.handler = handler
        self.limits = limits or ServerLimits()
        self.report = report
        self.trust = trust or TrustPolicy()
        self.host = host
        self.port = port
        self.draining = asyncio.Event()  # set when nothing new is accepted any more
        self.connections: set[ServerConnection] = set()
        self.requests = 0  # under way, on all connections
        self._tls = tls
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._greeting: set[asyncio.Task[None]] = set()
        self._tick: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken or is none of this machine's."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._accepting = loop.create_task(self._accept(self._listener))
        self._tick = loop.call_later(self.limits.tick_s, self._check)

    async def drain(self, grace_s: float) -> bool:
        """Stop: refuse what is new, finish what is under way, then close. True when all was finished in `grace_s`.

        Clients are told by GOAWAY (RFC 9113 section 6.8), so that none of their requests is lost or done twice.
        """
        await self._stop_accepting()
        self.draining.set()
        for connection in list(self.connections):
            connection.begin_drain()
        finished = await self._wait_closed(grace_s)
        if not finished:
            for connection in list(self.connections):
                connection.end_now()
            await self._wait_closed(self.limits.close_s)
        for connection in list(self.connections):
            connection.abort()
        await self._wait_closed(self.limits.close_s)
        if self._tick is not None:
            self._tick.cancel()
        return finished

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(0)

    # -- accepting ----------------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                self.report("cannot accept a connection", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self.connections) + len(self._greeting) >= self.limits.max_connections:
                accepted.close()
                continue
            task = loop.create_task(self._greet(accepted))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, accepted: socket.socket) -> None:
        """The TLS handshake, within its deadline. A peer without an acceptable certificate gets no further (D3)."""
        limits = self.limits
        loop = asyncio.get_running_loop()
        try:
            # asyncio does this only for sockets made as IPPROTO_TCP, which accepted ones are not. Without it an answer
            # that follows a WINDOW_UPDATE waits for the client's delayed ACK, 40 ms.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with telling_why(accepted):
                await loop.connect_accepted_socket(
                    lambda: ServerConnection(self),
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=limits.handshake_s,
                    ssl_shutdown_timeout=limits.close_s,
                )
        except OSError as error:  # alerts and timeouts among them: the peer's fault, and it has been told
            _logger.info("a client was refused in the TLS handshake: %s", error)

    async def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        if self._listener is not None:
            self._listener.close()
        for task in list(self._greeting):
            task.cancel()
        if self._greeting:
            await asyncio.wait(list(self._greeting))

    # -- time ---------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self._tick = loop.call_later(self.limits.tick_s, self._check)

    async def _wait_closed(self, seconds: float) -> bool:
        """Whether all connections closed, and all handlers ended, in this time."""
        waiting = [asyncio.ensure_future(connection.finished()) for connection in self.connections]
        if not waiting:
            return True
        _, pending = await asyncio.wait(waiting, timeout=seconds)
        for task in pending:
            task.cancel()
        return not pending
