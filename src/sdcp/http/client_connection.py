"""The client's end of one HTTP/2 connection: many requests at once, each with its answer.

A connection is *ready* when the server's SETTINGS have come: only then has the server accepted our certificate, since
in TLS 1.3 a client's handshake completes before the server has seen it. It is *leaving* after GOAWAY, or when its
stream identifiers are used up: what is under way goes on, new requests need another connection.

Not here: which connection a request takes, deadlines, and trying again (`sdcp.http.client`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import ngh2
from ngh2 import Configuration, ErrorCode, Role, Setting

from sdcp.http.connection import Connection, Fields, Stream, StreamLost
from sdcp.http.faults import ProtocolFault, TransportError, Unreachable
from sdcp.http.identity import TrustPolicy
from sdcp.http.limits import ClientLimits
from sdcp.http.received import ReceivedBody

Chunks = AsyncIterator[bytes | memoryview] | AsyncIterator[bytes]


class ClientStream(Stream):
    """A request under way. `head` resolves to the status and headers of the answer."""

    __slots__ = ("head", "headers", "sender", "status")

    def __init__(self, stream_id: int, received: ReceivedBody, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream_id, received)
        self.head: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sender: asyncio.Task[None] | None = None


class ClientConnection(Connection):
    """One connection to one server."""

    role = Role.CLIENT

    def __init__(self, trust: TrustPolicy, limits: ClientLimits) -> None:
        super().__init__(trust)
        self.streams: dict[int, ClientStream] = {}
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.leaving = False
        self._limits = limits
        self._max_streams = limits.max_streams
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = 0  # places given to waiters that have not taken them yet
        self._idle_since: float | None = self.loop.time()
        self._tick: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Whether a new request may be sent here."""
        return not self._broken and not self.leaving

    # -- life ---------------------------------------------------------------------------------------------------------

    def _configuration(self) -> tuple[Configuration, dict[int, int], int]:
        limits = self._limits
        configuration = Configuration(
            auto_window_update=False,
            # We count streams ourselves, so that what waits here is certainly not sent when a GOAWAY comes.
            peer_max_concurrent_streams=2**31 - 1,
            max_inbound_header_list_size=limits.max_header_list,
        )
        settings = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list,
            Setting.NO_RFC7540_PRIORITIES: 1,
        }
        return configuration, settings, limits.connection_window

    def _event_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            ngh2.ResponseReceived: self._on_response,
            ngh2.DataReceived: self._on_data,
            ngh2.TrailersReceived: self._on_trailers,
            ngh2.StreamReset: self._on_reset,
            ngh2.StreamClosed: self._on_closed,
            ngh2.SettingsReceived: self._on_settings,
            ngh2.GoAwayReceived: self._on_goaway,
        }

    def _opened(self) -> None:
        self._tick = self.loop.call_later(self._tick_s, self._check)

    def _lost(self, error: Exception | None) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError(self.fault or "the server closed the connection"))
            self.ready.exception()  # whoever connects asks; if nobody does any more, nothing is lost
        for stream in list(self.streams.values()):
            self._end_stream(stream, None)
        self._admit()

    def leave(self) -> None:
        """Take no further request; close when those under way are done."""
        self.leaving = True
        self._admit()
        self._close_if_done()

    async def close(self) -> None:
        """Say goodbye and close; requests under way fail."""
        self.leaving = True
        if not self._broken:
            self.h2.terminate_connection(ErrorCode.NO_ERROR)
            self.flush()
        if self.transport is not None:
            self.transport.close()
            await asyncio.shield(self.closed)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def open(self, fields: Fields, *, end: bool) -> ClientStream:
        """Queue a request's head, when the server's limit of streams permits. Raises Unreachable."""
        if self.usable and len(self.streams) + self._granted >= self._max_streams:
            await self._turn()
        if not self.usable:
            raise Unreachable("the connection is closing", maybe_processed=False)
        try:
            stream_id = self.h2.send_request(fields, end_stream=end)
        except ngh2.NGH2Error as error:  # identifiers used up, or GOAWAY just received
            self.leave()
            raise Unreachable(f"the connection takes no request: {error}", maybe_processed=False) from None
        stream = ClientStream(stream_id, ReceivedBody(self, stream_id, False), self.loop)
        stream.sent_all = end
        self.streams[stream_id] = stream
        self._idle_since = None
        return stream

    def start_sending(self, stream: ClientStream, chunks: Chunks) -> None:
        """Send the body beside the wait for the answer, which may come before the body has all been sent."""
        stream.sender = self.loop.create_task(self._send(stream, chunks))

    async def _send(self, stream: ClientStream, chunks: Chunks) -> None:
        try:
            await self.send_all(stream, chunks)
        except StreamLost:
            pass  # the answer, or its failure, says why
        except Exception as error:  # the caller's iterator failed: so does its request
            self._fail_stream(stream, error)
            self.reset(stream)

    def abandon(self, stream: ClientStream) -> None:
        """The caller wants no more of it: tell the server, so that it stops working for us."""
        if stream.sender is not None:
            stream.sender.cancel()
        stream.received.drop()
        if not stream.closed:
            self.reset(stream)
            self._end_stream(stream, ErrorCode.CANCEL)

    async def _turn(self) -> None:
        """Wait for a stream to end, first come, first served."""
        turn = self.loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._granted -= 1
                self._admit()
            raise
        self._granted -= 1

    def _admit(self) -> None:
        while self._waiting and (not self.usable or len(self.streams) + self._granted < self._max_streams):
            turn = self._waiting.popleft()
            if not turn.done():
                self._granted += 1
                turn.set_result(None)

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_response(self, event: Any) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None or stream.head.done():
            return
        for raw_name, raw_value in event.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            stream.headers[name] = f"{stream.headers[name]}, {value}" if name in stream.headers else value
        stream.status = int(stream.headers.pop(":status"))
        stream.received.ended = event.end_stream
        stream.head.set_result(None)

    def _on_data(self, event: Any) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            self.acknowledge(event.stream_id, len(event.data))
            return
        stream.received.feed(event.data, event.end_stream)

    def _on_trailers(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            stream.received.feed(b"", True)

    def _on_reset(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            self._end_stream(stream, event.error_code)

    def _on_closed(self, event: Any) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        if event.local_error is not None:  # it could not be sent
            fault: TransportError = Unreachable(f"the request was not sent: {event.local_error}", maybe_processed=False)
            self._end_stream(stream, event.error_code, fault)
        elif event.error_code == ErrorCode.PROTOCOL_ERROR:  # our side found the answer malformed, and reset it
            fault = ProtocolFault("the answer breaks HTTP/2", maybe_processed=True)
            self._end_stream(stream, event.error_code, fault)
        else:
            self._end_stream(stream, event.error_code)

    def _on_settings(self, event: Any) -> None:
        self._max_streams = event.settings.get(Setting.MAX_CONCURRENT_STREAMS, self._max_streams)
        if not self.ready.done():
            self.ready.set_result(None)
        self._admit()

    def _on_goaway(self, event: Any) -> None:
        # The library itself closes, as refused, the streams that the server says it will not process.
        self.leave()

    def _after_flush(self) -> None:
        """After GOAWAY the library drops requests that were still to be sent, without a word."""
        if self.leaving and self.streams:
            for stream in [stream for stream in self.streams.values() if not self._begun(stream)]:
                self._end_stream(stream, ErrorCode.REFUSED_STREAM)

    def _begun(self, stream: ClientStream) -> bool:
        """Whether any of the request may have gone out: then the library knows the stream."""
        try:
            self.h2.stream_local_window_size(stream.id)
        except ngh2.StreamUnavailableError:
            return False
        except ngh2.NGH2Error:
            return True
        return True

    def _end_stream(self, stream: ClientStream, code: int | None, failure: TransportError | None = None) -> None:
        self.streams.pop(stream.id, None)
        if stream.head.done() and stream.received.ended:
            self._close_stream(stream, code)
        else:
            failure = failure or self._failure(code)
            self._close_stream(stream, code, failure)
            self._fail_stream(stream, failure)
        if not self.streams:
            self._idle_since = self.loop.time()
        self._admit()
        self._close_if_done()

    def _failure(self, code: int | None) -> TransportError:
        """What a caller is told whose answer was not complete."""
        if code == ErrorCode.REFUSED_STREAM:
            return Unreachable("the server refused the request unprocessed", maybe_processed=False)
        if code is not None:
            return Unreachable(f"the server reset the request (HTTP/2 error {code})", maybe_processed=True)
        if self.fault is not None:
            return ProtocolFault(f"the server broke HTTP/2: {self.fault}", maybe_processed=True)
        return Unreachable("the connection was lost before the answer came", maybe_processed=True)

    @staticmethod
    def _fail_stream(stream: ClientStream, failure: Exception) -> None:
        if not stream.head.done():
            stream.head.set_exception(failure)
            stream.head.exception()  # asked already when its caller has gone
        stream.received.fail(failure)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def _tick_s(self) -> float:
        return min(self._limits.silence_s, self._limits.idle_s) / 4

    def _check(self) -> None:
        now = self.loop.time()
        if self._idle_since is not None and now - self._idle_since > self._limits.idle_s:
            self.leave()
        self.ping_if_silent(now, self._limits.silence_s)
        self._tick = self.loop.call_later(self._tick_s, self._check)

    def _close_if_done(self) -> None:
        if self.leaving and not self.streams and self.transport is not None and not self.transport.is_closing():
            self.flush()
            self.transport.close()
