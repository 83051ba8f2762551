"""The server's end of one HTTP/2 connection: streams to requests, answers to streams.

A handler runs as a task of its own and is cancelled when its stream is reset or the connection lost (D27: that ends
the wait for an answer, not the work that a role has committed to). A peer that resets faster than its handlers can end
is disconnected. Once the answer is out, a body that the client still sends is refused with RST_STREAM NO_ERROR
(RFC 9113 section 8.1).

Not here: what requests mean (`sdcp.http.dispatch`), and when to stop (`sdcp.http.server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ngh2
from ngh2 import Configuration, ErrorCode, Role, Setting

from sdcp.errors import InternalFault, Overloaded, ProblemError
from sdcp.http.connection import Connection, Stream, StreamLost
from sdcp.http.exchange import Request, Response
from sdcp.http.problems import HeadersTooLarge, RequestTimeout, problem_response
from sdcp.http.received import ReceivedBody

if TYPE_CHECKING:
    from sdcp.http.server import Server

_HARD_HEADERS = 4  # times max_header_list: up to there 431 tells the client, beyond it the connection is cut
_REQUEST_SLACK = 2  # times max_streams: handlers that run, those of reset streams that are still ending among them


class ServerStream(Stream):
    """A request under way, and the task that answers it."""

    __slots__ = ("request", "task")

    def __init__(self, stream_id: int, received: ReceivedBody, request: Request) -> None:
        super().__init__(stream_id, received)
        self.request = request
        self.task: asyncio.Task[None] | None = None


class ServerConnection(Connection):
    """One client's connection."""

    role = Role.SERVER

    def __init__(self, server: Server) -> None:
        super().__init__(server.trust)
        self.streams: dict[int, ServerStream] = {}
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[ServerStream] = set()  # answered, with a body still coming
        self._last_stream = 0
        self._leaving = False  # the final GOAWAY is out
        self._drain_begun_at: float | None = None
        self._opened_at = self.loop.time()
        self._idle_since: float | None = self._opened_at
        self._settled = False  # the client's SETTINGS have come

    # -- life ---------------------------------------------------------------------------------------------------------

    def _configuration(self) -> tuple[Configuration, dict[int, int], int]:
        limits = self._server.limits
        configuration = Configuration(
            auto_window_update=False,
            stream_reset_rate_limit=limits.resets,
            glitch_rate_limit=limits.glitches,
            max_inbound_header_list_size=_HARD_HEADERS * limits.max_header_list,
        )
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list,
            Setting.NO_RFC7540_PRIORITIES: 1,
        }
        return configuration, settings, limits.connection_window

    def _event_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            ngh2.RequestReceived: self._on_request,
            ngh2.DataReceived: self._on_data,
            ngh2.TrailersReceived: self._on_trailers,
            ngh2.StreamReset: self._on_stream_over,
            ngh2.StreamClosed: self._on_stream_over,
            ngh2.SettingsReceived: self._on_settings,
            ngh2.PingAcknowledged: self._on_ping_acknowledged,
        }

    def _opened(self) -> None:
        self._server.connections.add(self)
        if self._server.draining.is_set():
            self.begin_drain()

    def _lost(self, error: Exception | None) -> None:
        for stream in list(self.streams.values()):
            self._end_stream(stream, None)
        if not self._tasks:
            self._server.connections.discard(self)

    async def finished(self) -> None:
        """Return when the connection is closed and the last handler has ended."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        await asyncio.shield(self.closed)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _on_request(self, event: Any) -> None:
        self._last_stream = event.stream_id
        self._idle_since = None
        received = ReceivedBody(self, event.stream_id, event.end_stream)
        request, size = self._request(event.headers, received)
        stream = self.streams[event.stream_id] = ServerStream(event.stream_id, received, request)
        if len(self._tasks) >= _REQUEST_SLACK * self._server.limits.max_streams:
            self.h2.terminate_connection(ErrorCode.ENHANCE_YOUR_CALM)
            return
        stream.task = self.loop.create_task(self._serve(stream, self._refusal(size)))
        self._server.requests += 1
        self._tasks.add(stream.task)
        # Not in a `finally` of the task: one that is cancelled before its first step never gets there.
        stream.task.add_done_callback(lambda task: self._ended(stream, task))

    def _request(self, fields: tuple[tuple[bytes, bytes], ...], received: ReceivedBody) -> tuple[Request, int]:
        """The request, and the size of its header list as RFC 9113 section 6.5.2 counts it."""
        headers: dict[str, str] = {}
        size = 32 * len(fields)
        for raw_name, raw_value in fields:
            size += len(raw_name) + len(raw_value)
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        path, _, query = headers.pop(":path", "").partition("?")
        method, authority = headers.pop(":method"), headers.pop(":authority", "")
        headers.pop(":scheme", None)
        return Request(method, path, query, authority, headers, self.peer, received), size

    def _refusal(self, header_list_size: int) -> ProblemError | None:
        server = self._server
        if header_list_size > server.limits.max_header_list:
            return HeadersTooLarge(f"the header list is longer than {server.limits.max_header_list} bytes")
        if server.requests >= server.limits.max_requests:
            return Overloaded("too many requests are under way here; try again later")
        return None

    async def _serve(self, stream: ServerStream, refusal: ProblemError | None) -> None:
        try:
            response = problem_response(refusal) if refusal is not None else await self._answer(stream)
            await self._respond(stream, response)
        except StreamLost:
            pass  # the client has gone, and wants no answer
        except asyncio.CancelledError:
            self.reset(stream)
            raise
        except Exception as error:  # a body that is an iterator may raise anything
            self._server.report(f"{stream.request.method} {stream.request.path}: the answer broke off", error)
            self.reset(stream, ErrorCode.INTERNAL_ERROR)

    async def _answer(self, stream: ServerStream) -> Response:
        request = stream.request
        try:
            return await self._server.handler(request)
        except ProblemError as error:
            return problem_response(error)
        except (StreamLost, asyncio.CancelledError):
            raise
        except Exception as error:
            self._server.report(f"{request.method} {request.path}: the handler failed", error)
            return problem_response(InternalFault("an internal fault; it has been logged here"))

    def _ended(self, stream: ServerStream, task: asyncio.Task[None]) -> None:
        """The handler is done, one way or another."""
        server = self._server
        server.requests -= 1
        self._tasks.discard(task)
        stream.received.drop()
        if stream.sent_all and not stream.closed:
            stream.queue_wait.begin(self.loop.time())  # from here on the client's reading is all we wait for
            if not stream.received.ended:
                self._refused.add(stream)
                self.schedule()
        if self.closed.done() and not self._tasks:
            server.connections.discard(self)

    async def _respond(self, stream: ServerStream, response: Response) -> None:
        body = response.body
        sized = isinstance(body, bytes | memoryview)
        empty = stream.request.method == "HEAD" or response.status in (204, 304) or (sized and not body)
        fields = [(b":status", b"%d" % response.status)]
        fields += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        if isinstance(body, bytes | memoryview) and response.status not in (204, 304):
            fields.append((b"content-length", b"%d" % memoryview(body).nbytes))
        self._start(stream, fields, end=empty)
        if isinstance(body, bytes | memoryview):
            if empty:
                self.push()
            else:
                await self.send(stream, body, end=True)
            return
        self.schedule()
        try:
            if not empty:
                await self.send_all(stream, body)
        finally:
            await _close(body)

    def _start(self, stream: ServerStream, fields: list[tuple[bytes, bytes]], *, end: bool) -> None:
        if stream.closed or self._broken:
            raise StreamLost(None)
        try:
            self.h2.send_response(stream.id, fields, end_stream=end)
        except ngh2.NGH2Error:
            raise StreamLost(None) from None
        stream.sent_all = end

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_data(self, event: Any) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            self.acknowledge(event.stream_id, len(event.data))
            return
        stream.received.feed(event.data, event.end_stream)

    def _on_trailers(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            stream.received.feed(b"", True)  # trailers end a body; nothing of ours is in them

    def _on_settings(self, event: Any) -> None:
        self._settled = True

    def _on_stream_over(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            self._end_stream(stream, event.error_code)

    def _end_stream(self, stream: ServerStream, code: int | None) -> None:
        """Reset by either side, or complete: a handler that is still at work works for nobody."""
        self.streams.pop(stream.id, None)
        self._refused.discard(stream)
        self._close_stream(stream, code)
        if stream.task is not None and not stream.sent_all:
            stream.task.cancel()
        if not self.streams:
            self._idle_since = self.loop.time()

    def _after_flush(self) -> None:
        if self._refused:
            self._reset_refused()
        if self._leaving and not self.streams and not self._paused and self.transport is not None:
            self.transport.close()

    def _reset_refused(self) -> None:
        """Ask for no more of the bodies whose answers are out."""
        for stream in [stream for stream in self._refused if stream.received.ended or not self.queued(stream)]:
            self._refused.discard(stream)
            if not stream.received.ended:
                self.reset(stream, ErrorCode.NO_ERROR)

    # -- time ---------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Deadlines: called every `tick_s`."""
        limits = self._server.limits
        if self._broken:
            return
        if not self._settled and now - self._opened_at > limits.handshake_s:
            self.abort()
            return
        for stream in list(self.streams.values()):
            self._check_stream(stream, now)
        if self._idle_since is not None and now - self._idle_since > limits.idle_s:
            self.begin_drain()
        if self._drain_begun_at is not None and now - self._drain_begun_at > limits.close_s:
            self._leave()
        self.ping_if_silent(now, limits.silence_s)

    def _check_stream(self, stream: ServerStream, now: float) -> None:
        limits = self._server.limits
        if stream.queue_wait.overdue(now, limits.patience_s, limits.min_bytes_per_s):
            self.reset(stream)
            self._end_stream(stream, ErrorCode.CANCEL)
        elif stream.received.wait.overdue(now, limits.patience_s, limits.min_bytes_per_s):
            stream.received.fail(RequestTimeout(f"the body did not come within {limits.patience_s:g} seconds"))

    def begin_drain(self) -> None:
        """Announce the end; the answer to a PING tells that no request can still be on its way to us."""
        if self._drain_begun_at is None and not self._broken:
            self._drain_begun_at = self.loop.time()
            self.h2.send_shutdown_notice()
            self.h2.ping(b"goingoff")
            self.flush()

    def end_now(self) -> None:
        """The grace is over: cancel what is under way and leave."""
        for stream in list(self.streams.values()):
            self.reset(stream)
            self._end_stream(stream, ErrorCode.CANCEL)
        self._leave()

    def _on_ping_acknowledged(self, event: Any) -> None:
        if self._drain_begun_at is not None and event.opaque_data == b"goingoff":
            self._leave()

    def _leave(self) -> None:
        """The final GOAWAY: later streams are not processed, and the client may safely ask elsewhere."""
        if not self._leaving and not self._broken:
            self._leaving = True
            with suppress(ngh2.NGH2Error):
                self.h2.send_goaway(ErrorCode.NO_ERROR, last_stream_id=self._last_stream)
            self.flush()


async def _close(body: AsyncIterator[bytes]) -> None:
    """Let a generator run its `finally` now, not when it is collected."""
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()
