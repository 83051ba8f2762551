"""The client: one multiplexed connection for each server, one more for bulk, and requests that end in time.

A request is answered whatever the status; redirects are never followed (D11). Without an answer it ends in one of
`sdcp.http.faults`. When its deadline passes or its caller is cancelled, the stream is reset, so that the server stops
working for it.

Trying again: a request that certainly was not processed (refused, or cut off by GOAWAY) is sent once more at once on a
new connection, whatever it is. Beyond that only a request that its caller calls `idempotent` is repeated: after a
pause, random between nothing and a bound that doubles, and within its deadline.

A bulk transfer on a connection delays small messages behind it by many milliseconds, so objects travel on a second
connection (`objects=True`).

Not here: which statuses are errors, and what bodies mean (`sdcp.wire`, `sdcp.messages`).
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

from sdcp.http.call import Call, CallBody
from sdcp.http.client_connection import ClientConnection, ClientStream
from sdcp.http.connection import CHUNK, StreamLost
from sdcp.http.faults import AnswerTooLarge, DeadlineExceeded, NotTrusted, TransportError, Unreachable
from sdcp.http.identity import Peer, TrustPolicy
from sdcp.http.limits import ClientLimits
from sdcp.http.pool import Pool


class Answer(NamedTuple):
    """A complete answer. Header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    peer: Peer


class Reply:
    """An answer whose body comes as it is asked for. Header names are lower case."""

    __slots__ = ("_received", "headers", "peer", "status")

    def __init__(self, connection: ClientConnection, stream: ClientStream) -> None:
        self._received = stream.received
        self.status = stream.status
        self.headers = stream.headers
        self.peer: Peer = connection.peer

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body piece by piece; the server is held back while nobody asks. Raises TransportError."""
        while (chunk := await self._received.next_chunk()) is not None:
            yield chunk

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises AnswerTooLarge when it is longer than `max_bytes`, or another TransportError."""
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > max_bytes and not self._received.ended:
            raise _too_large(max_bytes)
        return await self._received.read(max_bytes, _too_large)


class Client:
    """Requests to any number of servers. `async with Client(...) as client` closes the connections at the end."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        trust: TrustPolicy | None = None,
        limits: ClientLimits | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`uniform` draws the pauses between tries, `sleep` waits them."""
        self.limits = limits or ClientLimits()
        self._pool = Pool(tls, trust or TrustPolicy(), self.limits)
        self._uniform = uniform
        self._sleep = sleep

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: CallBody | None = None,
        deadline_s: float | None = None,
        idempotent: bool = False,
        max_bytes: int | None = None,
        objects: bool = False,
        expect_role: str | None = None,
    ) -> Answer:
        """Send a request; return the answer, of any status, with its whole body of at most `max_bytes`.

        `body` is bytes, an async iterator, or a function that makes one (and can make it again for another try).
        `deadline_s` covers it all, every try included. `expect_role` must be a role of the server's certificate.
        Raises a TransportError, or ValueError for a URL that is not https.
        """
        call = Call(method, url, headers, body, objects)
        limit = self.limits.max_bytes if max_bytes is None else max_bytes
        scope = asyncio.timeout(self.limits.deadline_s if deadline_s is None else deadline_s)
        try:
            async with scope:
                return await self._until_answered(call, expect_role, limit, idempotent)
        except TimeoutError:
            if not scope.expired():  # from within, and none of our deadline's
                raise
            raise _late(call) from None

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: CallBody | None = None,
        deadline_s: float | None = None,
        idempotent: bool = False,
        objects: bool = False,
        expect_role: str | None = None,
    ) -> AsyncIterator[Reply]:
        """Like `request`, for a body that is read as it comes; leaving the block early resets the stream.

        Tries are repeated until the head of an answer has come; a failure in the midst of the body is the caller's.
        `deadline_s` covers the block.
        """
        call = Call(method, url, headers, body, objects)
        scope = asyncio.timeout(self.limits.deadline_s if deadline_s is None else deadline_s)
        try:
            async with scope, AsyncExitStack() as stack:
                yield await self._first_head(call, expect_role, idempotent, stack)
        except TimeoutError:
            if not scope.expired():  # from within, and none of our deadline's
                raise
            raise _late(call) from None

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        await self._pool.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _until_answered(self, call: Call, expect_role: str | None, limit: int, idempotent: bool) -> Answer:
        while True:
            try:
                return await self._whole(call, expect_role, limit)
            except TransportError as error:
                await self._before_next_try(call, error, idempotent)

    async def _first_head(self, call: Call, expect_role: str | None, idempotent: bool, stack: AsyncExitStack) -> Reply:
        while True:
            try:
                connection, stream = await self._send(call, expect_role)
                stack.callback(connection.abandon, stream)
                await stream.head
                return Reply(connection, stream)
            except TransportError as error:
                await self._before_next_try(call, error, idempotent)

    async def _whole(self, call: Call, expect_role: str | None, limit: int) -> Answer:
        connection, stream = await self._send(call, expect_role)
        try:
            await stream.head
            body = await Reply(connection, stream).read(limit)
            return Answer(stream.status, stream.headers, body, connection.peer)
        finally:
            connection.abandon(stream)

    async def _send(self, call: Call, expect_role: str | None) -> tuple[ClientConnection, ClientStream]:
        """One try, up to the point where the answer is awaited."""
        call.begin()
        connection = await self._pool.connection(call.origin)
        call.connected = True
        if expect_role is not None and expect_role not in connection.peer.roles:
            detail = f"{call.url}: the server's certificate does not bear the role {expect_role}"
            raise NotTrusted(detail, maybe_processed=False)
        body = call.body
        stream = await connection.open(call.fields, end=body is None)
        call.under_way = True
        if isinstance(body, bytes | memoryview) and len(body) <= CHUNK:
            with suppress(StreamLost):  # the stream's head says why
                connection.queue(stream, body, end=True)
        elif body is not None:
            connection.start_sending(stream, call.chunks())
        connection.push()
        return connection, stream

    async def _before_next_try(self, call: Call, error: TransportError, idempotent: bool) -> None:
        """Return when the request may be sent again, after the pause that is due; else raise `error`."""
        call.failed(error)
        if call.again_at_once(error):
            return
        if idempotent and call.again_later(error, self.limits.attempts):
            limits = self.limits
            bound = min(limits.longest_pause_s, limits.first_pause_s * 2.0 ** (call.tries - call.immediate - 1))
            await self._sleep(self._uniform(0.0, bound))
            return
        if call.doubtful and not error.maybe_processed:
            raise Unreachable(f"{error} (an earlier try may have been processed)", maybe_processed=True) from error
        raise error


def _late(call: Call) -> DeadlineExceeded:
    detail = f"{call.method} {call.url}: the deadline passed before the whole answer came"
    return DeadlineExceeded(detail, maybe_processed=call.maybe_processed)


def _too_large(max_bytes: int) -> AnswerTooLarge:
    return AnswerTooLarge(f"the answer's body is longer than {max_bytes} bytes", maybe_processed=True)
