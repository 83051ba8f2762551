"""The half of an HTTP/2 connection that both ends share (RFC 9113): asyncio transport, TLS, and libnghttp2 by `ngh2`.

Words: bytes received are *acknowledged* when somebody takes them, not when they arrive, and only then does the peer's
window open again. Bytes to send are *queued* in libnghttp2 until the peer's window and the transport have room; a
writer waits while more than `HIGH_WATER` of its stream are queued. So memory is bounded both ways, per stream.

All output goes through `flush`, once per turn of the loop. Nothing of `ngh2` is named outside this module, the
server's and the client's connection: to replace the library is to replace these three.

Not here: requests and answers, deadlines, retries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, cast

import ngh2
from ngh2 import Configuration, ErrorCode, Role, Setting

from sdcp.http.identity import Peer, TrustPolicy
from sdcp.http.tls import negotiated_h2

CHUNK = 64 * 1024
HIGH_WATER = 256 * 1024
LOW_WATER = HIGH_WATER // 2
PING = b"sdcpping"

Fields = Sequence[tuple[bytes, bytes]]


class Wait:
    """How long somebody has waited for the peer, and how much the peer has moved in that time."""

    __slots__ = ("moved", "since", "waited_s")

    def __init__(self) -> None:
        self.since: float | None = None
        self.waited_s = 0.0
        self.moved = 0

    def begin(self, now: float) -> None:
        """The wait begins."""
        self.since = now

    def end(self, now: float) -> None:
        """The wait is over, for now."""
        if self.since is not None:
            self.waited_s += now - self.since
            self.since = None

    def overdue(self, now: float, patience_s: float, bytes_per_s: float) -> bool:
        """Whether a peer that owes us at least `bytes_per_s` has used up its `patience_s` seconds besides."""
        return self.since is not None and self.waited_s + now - self.since > patience_s + self.moved / bytes_per_s


class ReceivedBody:
    """The bytes received on one stream, acknowledged as they are taken. One reader at a time."""

    __slots__ = ("_chunks", "_connection", "_dropped", "_failure", "_stream_id", "_waiter", "ended", "held", "wait")

    def __init__(self, connection: Connection, stream_id: int, ended: bool) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._chunks: deque[bytes] = deque()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._dropped = False
        self.ended = ended
        self.held = 0  # bytes received and not yet acknowledged
        self.wait = Wait()

    def feed(self, data: bytes, ended: bool) -> None:
        """More has come; `ended`: and that was all."""
        self.ended = ended
        self.wait.moved += len(data)
        if self._dropped:
            self._connection.acknowledge(self._stream_id, len(data))
        elif data:
            self._chunks.append(data)
            self.held += len(data)
        self._wake()

    def fail(self, failure: Exception) -> None:
        """Nothing more will come; whoever reads past what is here gets `failure`."""
        if not self.ended and self._failure is None:
            self._failure = failure
            self._wake()

    def drop(self) -> None:
        """Nobody will read: acknowledge all that is here and all that may come, so that others get the window."""
        self._dropped = True
        self._chunks.clear()
        if self.held:
            self._connection.acknowledge(self._stream_id, self.held)
            self.held = 0

    async def next_chunk(self) -> bytes | None:
        """The next bytes, or None at the end. Raises what `fail` was given."""
        while not self._chunks:
            if self.ended:
                return None
            if self._failure is not None:
                raise self._failure
            await self._more()
        return self._take()

    async def read(self, limit: int, too_large: Callable[[int], Exception]) -> bytes:
        """All that comes, at most `limit` bytes; raises `too_large(limit)` when it is more."""
        if self.ended and len(self._chunks) == 1:  # a small body that came with its head: the usual case
            if self.held > limit:
                raise too_large(limit)
            return self._take()
        parts: list[bytes] = []
        size = 0
        while (chunk := await self.next_chunk()) is not None:
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            parts.append(chunk)
        return b"".join(parts)

    def _take(self) -> bytes:
        chunk = self._chunks.popleft()
        self.held -= len(chunk)
        self._connection.acknowledge(self._stream_id, len(chunk), soon=not self.ended)
        return chunk

    async def _more(self) -> None:
        loop = self._connection.loop
        self._waiter = loop.create_future()
        self.wait.begin(loop.time())
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.wait.end(loop.time())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream:
    """One exchange. `closed` once the peer or we have ended it both ways, or reset it."""

    __slots__ = ("closed", "id", "queue_wait", "received", "sent_all", "writer")

    def __init__(self, stream_id: int, received: ReceivedBody) -> None:
        self.id = stream_id
        self.received = received
        self.sent_all = False  # everything of our side is queued
        self.closed = False
        self.writer: asyncio.Future[None] | None = None
        self.queue_wait = Wait()


class StreamLost(ConnectionError):
    """The stream ended under its writer; `code` is the HTTP/2 error code, None when the connection went."""

    def __init__(self, code: int | None) -> None:
        super().__init__("the connection was lost" if code is None else f"the stream was reset with code {code}")
        self.code = code


class Connection(asyncio.Protocol):
    """One HTTP/2 connection; `ServerConnection` and `ClientConnection` say what its events mean."""

    role: Role

    def __init__(self, trust: TrustPolicy) -> None:
        self.loop = asyncio.get_running_loop()
        self.peer = Peer(frozenset(), frozenset(), frozenset())
        self.heard_at = self.loop.time()
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._trust = trust
        self._writers: set[Stream] = set()
        self.fault: str | None = None  # why we gave the connection up, when the peer broke the protocol
        self._paused = self._scheduled = self._broken = False
        self._pinged = False
        self._handlers: dict[type, Callable[[Any], None]] = self._event_handlers()

    # -- what the two ends add ----------------------------------------------------------------------------------------

    def _configuration(self) -> tuple[Configuration, dict[int, int], int]:
        """The library's configuration, our SETTINGS, and the connection's receive window."""
        raise NotImplementedError

    def _event_handlers(self) -> dict[type, Callable[[Any], None]]:
        raise NotImplementedError

    def _after_flush(self) -> None:
        """Called whenever output has been handed over."""

    def _opened(self) -> None:
        """The connection is encrypted, speaks `h2`, and knows its peer."""

    def _lost(self, error: Exception | None) -> None:
        """The connection is gone."""

    # -- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse what is not `h2` over TLS 1.3 (5.1), read the peer's certificate once, send our SETTINGS."""
        self.transport = transport = cast(asyncio.Transport, transport)
        if not negotiated_h2(transport):
            self.fault = "the peer did not agree on h2 over TLS 1.3"
            self.abort()
            return
        tls = transport.get_extra_info("ssl_object")
        self.peer = Peer.of(tls.getpeercert() or {}, self._trust, tls.getpeercert(binary_form=True) or b"")
        transport.set_write_buffer_limits(high=HIGH_WATER)
        configuration, settings, window = self._configuration()
        self.h2 = ngh2.Connection(self.role, configuration)
        self.h2.initiate_connection(settings)
        self.h2.set_local_window_size(window)
        self.flush()
        self._opened()

    def data_received(self, data: bytes) -> None:
        """Feed the library and act on what it makes of the bytes."""
        if self._broken:
            return
        self.heard_at = self.loop.time()
        self._pinged = False
        try:
            self.h2.receive_data(data)
            events = self.h2.events()
        except ngh2.NGH2Error as error:
            self._fail(error)
            return
        handlers = self._handlers
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
        self.flush()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self._paused = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every waiting writer, then the subclass."""
        self._broken = True
        for stream in list(self._writers):
            self._release(stream, StreamLost(None))
        self._lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- output -------------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Flush at the next turn of the loop, together with whatever else this turn brings."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand to the transport what the windows allow, and wake the writers whose queues have drained."""
        self._scheduled = False
        transport = self.transport
        if self._broken or transport is None or transport.is_closing():
            return
        try:
            while not self._paused and (data := self.h2.data_to_send(CHUNK)):
                transport.write(data)
        except ngh2.NGH2Error as error:
            self._fail(error)
            return
        if self._writers:
            self._wake_writers()
        self._after_flush()
        if not self.h2.want_read and not self.h2.want_write:
            self._broken = True
            transport.close()

    def queued(self, stream: Stream) -> int:
        """Bytes of the stream's body that wait in the library."""
        return 0 if self._broken else self.h2.queued_body_size(stream.id)

    async def send(self, stream: Stream, data: bytes | memoryview, *, end: bool) -> None:
        """Queue `data`, waiting whenever the stream's queue is over HIGH_WATER. Raises StreamLost."""
        view = memoryview(data).cast("B")
        for start in range(0, max(len(view), 1), CHUNK):
            piece = view[start : start + CHUNK]
            self.queue(stream, piece, end=end and start + CHUNK >= len(view))
            if self.queued(stream) > HIGH_WATER:
                await self._drained(stream)

    async def send_all(self, stream: Stream, chunks: AsyncIterable[bytes | memoryview] | AsyncIterable[bytes]) -> None:
        """Send what an iterator yields, asking it for more only when there is room. Raises StreamLost."""
        async for chunk in chunks:
            if chunk:
                await self.send(stream, chunk, end=False)
        self.queue(stream, b"", end=True)

    def queue(self, stream: Stream, data: bytes | memoryview, *, end: bool) -> None:
        """Queue without waiting. Raises StreamLost."""
        if stream.closed or self._broken:
            raise StreamLost(None)
        try:
            if data:
                self.h2.send_data(stream.id, data, end_stream=end)
            elif end:
                self.h2.end_stream(stream.id)
        except ngh2.NGH2Error:
            raise StreamLost(None) from None
        stream.queue_wait.moved += len(data)
        stream.sent_all = stream.sent_all or end
        self.schedule()

    def acknowledge(self, stream_id: int, amount: int, *, soon: bool = True) -> None:
        """The peer may send `amount` bytes more. `soon` is False where other output is about to carry the news."""
        if self._broken or not amount:
            return
        try:
            self.h2.acknowledge_received_data(amount, stream_id)
        except ngh2.NGH2Error:
            return  # the stream is gone, and its bytes have been given back with it
        if soon:
            self.schedule()

    def reset(self, stream: Stream, code: int = ErrorCode.CANCEL) -> None:
        """End the stream at once, both ways."""
        if not stream.closed and not self._broken:
            try:
                self.h2.reset_stream(stream.id, code)
            except ngh2.NGH2Error:
                return
            self.schedule()

    def ping_if_silent(self, now: float, silence_s: float) -> None:
        """PING a peer that was silent for `silence_s`; give up one that has not answered after as long again."""
        silent_s = now - self.heard_at
        if self._broken or silent_s < silence_s:
            return
        if silent_s >= 2 * silence_s:
            self.abort()
        elif not self._pinged:
            self._pinged = True
            self.h2.ping(PING)
            self.flush()

    def abort(self) -> None:
        """Drop the connection without another word."""
        self._broken = True
        if self.transport is not None:
            self.transport.abort()

    def _fail(self, error: Exception) -> None:
        """The peer broke the protocol or a limit of it: nothing more can be said on this connection."""
        self.fault = str(error)
        self._broken = True
        if self.transport is not None:
            self.transport.close()

    # -- writers -----------------------------------------------------------------------------------------------------

    async def _drained(self, stream: Stream) -> None:
        stream.writer = self.loop.create_future()
        stream.queue_wait.begin(self.loop.time())
        self._writers.add(stream)
        self.flush()
        try:
            await stream.writer
        finally:
            self._writers.discard(stream)
            stream.writer = None
            stream.queue_wait.end(self.loop.time())

    def _wake_writers(self) -> None:
        queued = self.h2.queued_body_size
        for stream in [stream for stream in self._writers if queued(stream.id) <= LOW_WATER]:
            self._release(stream, None)

    def _release(self, stream: Stream, failure: Exception | None) -> None:
        self._writers.discard(stream)
        if stream.writer is not None and not stream.writer.done():
            if failure is None:
                stream.writer.set_result(None)
            else:
                stream.writer.set_exception(failure)

    def _close_stream(self, stream: Stream, code: int | None) -> None:
        """The stream is over: fail its reader and its writer."""
        stream.closed = True
        if stream.writer is not None:
            self._release(stream, StreamLost(code))
        stream.received.fail(StreamLost(code))


__all__ = [
    "CHUNK",
    "HIGH_WATER",
    "PING",
    "Configuration",
    "Connection",
    "ErrorCode",
    "ReceivedBody",
    "Role",
    "Setting",
    "Stream",
    "StreamLost",
    "Wait",
]
