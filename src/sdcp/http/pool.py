"""A client's connections: for each server one for messages and one for objects, made when first needed.

Any number of requests share one attempt to connect; a request that is cancelled does not end the others' attempt.

Not here: requests and their retries (`sdcp.http.client`).
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from sdcp.http.client_connection import ClientConnection
from sdcp.http.faults import NotTrusted, Unreachable
from sdcp.http.identity import TrustPolicy
from sdcp.http.limits import ClientLimits


class Origin(NamedTuple):
    """Whose connection a request takes."""

    host: str
    port: int
    objects: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Pool:
    """The connections of one client."""

    def __init__(self, tls: ssl.SSLContext, trust: TrustPolicy, limits: ClientLimits) -> None:
        self._tls = tls
        self._trust = trust
        self._limits = limits
        self._current: dict[Origin, ClientConnection] = {}
        self._connecting: dict[Origin, asyncio.Task[ClientConnection]] = {}
        self._all: set[ClientConnection] = set()  # those that finish their last requests among them
        self._closed = False

    async def connection(self, origin: Origin) -> ClientConnection:
        """A connection that takes requests. Raises Unreachable or NotTrusted."""
        connection = self._current.get(origin)
        if connection is not None and connection.usable:
            return connection
        if self._closed:
            raise Unreachable("the client is closed", maybe_processed=False)
        task = self._connecting.get(origin)
        if task is None:
            task = self._connecting[origin] = asyncio.get_running_loop().create_task(self._connect(origin))
            task.add_done_callback(lambda done: self._connected(origin, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close them all; requests under way fail."""
        self._closed = True
        attempts = list(self._connecting.values())
        for task in attempts:
            task.cancel()
        if attempts:
            await asyncio.wait(attempts)
        await asyncio.gather(*(connection.close() for connection in list(self._all)))

    def _connected(self, origin: Origin, task: asyncio.Task[ClientConnection]) -> None:
        del self._connecting[origin]
        if task.cancelled() or task.exception() is not None:
            return
        self._current[origin] = task.result()

    async def _connect(self, origin: Origin) -> ClientConnection:
        try:
            return await self._open(origin)
        except asyncio.CancelledError:
            raise Unreachable("the client is closed", maybe_processed=False) from None
        except TimeoutError:
            detail = f"{origin} was not connected within {self._limits.connect_s:g} seconds"
            raise Unreachable(detail, maybe_processed=False) from None
        except ssl.SSLError as error:
            raise _tls_failure(origin, error) from None
        except OSError as error:
            raise Unreachable(f"{origin} cannot be reached: {error}", maybe_processed=False) from None

    async def _open(self, origin: Origin) -> ClientConnection:
        """TCP, TLS with the server's certificate checked against the host, and the server's first SETTINGS."""
        limits = self._limits
        connection = ClientConnection(self._trust, limits)
        try:
            async with asyncio.timeout(limits.connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    origin.host,
                    origin.port,
                    ssl=self._tls,
                    server_hostname=origin.host,
                    ssl_handshake_timeout=limits.connect_s,
                    ssl_shutdown_timeout=limits.close_s,
                )
                await connection.ready
        except BaseException:
            connection.abort()
            raise
        self._all.add(connection)
        connection.closed.add_done_callback(lambda _: self._gone(origin, connection))
        return connection

    def _gone(self, origin: Origin, connection: ClientConnection) -> None:
        self._all.discard(connection)
        if self._current.get(origin) is connection:
            del self._current[origin]


def _tls_failure(origin: Origin, error: ssl.SSLError) -> Unreachable:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotTrusted(f"the certificate of {origin} is refused: {error.verify_message}", maybe_processed=False)
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return NotTrusted(f"{origin} refuses our certificate: {reason}", maybe_processed=False)
    return Unreachable(f"no TLS with {origin}: {reason or error}", maybe_processed=False)
