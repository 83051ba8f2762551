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
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, cast

import ngh2
from ngh2 import Configuration, ErrorCode, Role

from sdcp.http.frames import CLIENT_PREFACE, WholeFrames
from sdcp.http.identity import Peer, TrustPolicy
from sdcp.http.received import ReceivedBody, Wait
from sdcp.http.tls import negotiated_h2

CHUNK = 64 * 1024
HIGH_WATER = 256 * 1024
LOW_WATER = HIGH_WATER // 2
PING = b"sdcpping"

Fields = Sequence[tuple[bytes, bytes]]


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


class Connection(asyncio.Protocol, ABC):
    """One HTTP/2 connection; `ServerConnection` and `ClientConnection` say what its events mean."""

    role: Role
    streams: dict[int, Any]

    def __init__(self, trust: TrustPolicy) -> None:
        self.loop = asyncio.get_running_loop()
        self.peer = Peer(frozenset(), frozenset(), frozenset())
        self.heard_at = self.loop.time()
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._trust = trust
        self._writers: set[Stream] = set()
        self.fault: str | None = None  # why we gave the connection up, when the peer broke the protocol
        self._paused = self._scheduled = self._broken = self._handling = False
        self._pinged = False
        self._frames = WholeFrames(CLIENT_PREFACE if self.role is Role.SERVER else 0)
        self._handlers: dict[type, Callable[[Any], None]] = self._event_handlers()

    # -- what the two ends add ----------------------------------------------------------------------------------------

    @abstractmethod
    def _configuration(self) -> tuple[Configuration, dict[int, int], int]:
        """The library's configuration, our SETTINGS, and the connection's receive window."""

    @abstractmethod
    def _event_handlers(self) -> dict[type, Callable[[Any], None]]:
        """What each event of the library means to this end."""

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
            self.h2.receive_data(self._frames.cut(data))
            events = self.h2.events()
        except ngh2.NGH2Error as error:
            self._fail(error)
            return
        self._handle(events)
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

    def push(self) -> None:
        """Flush now when one exchange is all there is; else let the turn gather what the others add."""
        if len(self.streams) <= 1:
            self.flush()
        else:
            self.schedule()

    def flush(self) -> None:
        """Hand to the transport what the windows allow, and wake the writers whose queues have drained."""
        if self._handling:  # after the last event, so that nobody sees the library ahead of its events
            self.schedule()
            return
        self._scheduled = False
        transport = self.transport
        if self._broken or transport is None or transport.is_closing():
            return
        h2 = self.h2
        try:
            while not self._paused and h2.want_write and (data := h2.data_to_send(CHUNK)):
                transport.write(data)
            events = h2.events()
        except ngh2.NGH2Error as error:
            self._fail(error)
            return
        if events:  # sending ends streams too
            self._handle(events)
        if self._writers:
            self._wake_writers()
        self._after_flush()
        if not self._broken and not h2.want_read and not h2.want_write:
            self._broken = True
            transport.close()

    def queued(self, stream: Stream) -> int:
        """Bytes of the stream's body that wait in the library."""
        return 0 if self._broken else self.h2.queued_body_size(stream.id)

    async def send(self, stream: Stream, data: bytes | memoryview, *, end: bool) -> None:
        """Queue `data`, waiting whenever the stream's queue is over HIGH_WATER. Raises StreamLost."""
        if end and len(data) <= CHUNK:
            self.queue(stream, data, end=True)
            self.push()
            return
        view = memoryview(data).cast("B")
        for start in range(0, max(len(view), 1), CHUNK):
            piece = view[start : start + CHUNK]
            self.queue(stream, piece, end=end and start + CHUNK >= len(view))
            self.schedule()
            if self.queued(stream) > HIGH_WATER:
                await self._drained(stream)

    async def send_all(self, stream: Stream, chunks: AsyncIterable[bytes | memoryview] | AsyncIterable[bytes]) -> None:
        """Send what an iterator yields, asking it for more only when there is room. Raises StreamLost."""
        async for chunk in chunks:
            if chunk:
                await self.send(stream, chunk, end=False)
        self.queue(stream, b"", end=True)
        self.schedule()

    def queue(self, stream: Stream, data: bytes | memoryview, *, end: bool) -> None:
        """Queue without waiting and without flushing. Raises StreamLost."""
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
            self.flush()

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

    def _handle(self, events: Sequence[Any]) -> None:
        handlers = self._handlers
        self._handling = True
        try:
            for event in events:
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
        finally:
            self._handling = False

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

    def _close_stream(self, stream: Stream, code: int | None, failure: Exception | None = None) -> None:
        """The stream is over: fail its writer, and its reader with `failure` if the body was not complete."""
        stream.closed = True
        if stream.writer is not None:
            self._release(stream, StreamLost(code))
        if not stream.received.ended:
            stream.received.fail(failure or StreamLost(code))
