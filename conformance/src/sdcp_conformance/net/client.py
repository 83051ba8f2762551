"""Requests with one certificate; every answer is shown to a `Watch`, which notes what breaks the draft."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h2.exceptions

from sdcp_conformance.encoding import decode, encode
from sdcp_conformance.net.connection import Connection, Peer, Stream, TransportFault
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.problems import Problem
from sdcp_conformance.watch import SDCP_CBOR, Watch


@dataclass(frozen=True)
class Answer:
    """What the subject answered. `asked` says to what, in words, for failures."""

    asked: str
    status: int
    headers: dict[str, str]
    body: bytes
    peer: Peer

    @property
    def message(self) -> dict[str, Any]:
        """The body as a CBOR map. Fails the check unless this is a success that has one."""
        ensure(200 <= self.status < 300, f"{self.asked}: expected a success, came {self.summary}")
        try:
            value = decode(self.body)
        except ValueError as fault:
            value = f"no CBOR item: {fault}"
        ensure(isinstance(value, dict), f"{self.asked}: expected a CBOR map in the answer, came {value!r:.80}")
        assert isinstance(value, dict)
        return value

    @property
    def problem(self) -> Problem:
        """The Problem Details of a refusal. Fails the check when this is no refusal."""
        ensure(self.status >= 400, f"{self.asked}: expected a refusal, came {self.summary}")
        return Problem.read(self.body)

    @property
    def summary(self) -> str:
        """Status, and what a problem says, in one line."""
        if self.status < 400:
            return f"status {self.status}"
        problem = Problem.read(self.body)
        return f"status {self.status} {problem.suffix or ''} ({problem.detail})".replace("  ", " ")

    def succeeded(self) -> Answer:
        """Fail unless the status is 2xx; return self."""
        ensure(200 <= self.status < 300, f"{self.asked}: expected a success, came {self.summary}")
        return self

    def no_content(self) -> Answer:
        """Fail unless this is 204 without content (Table 1)."""
        expect(self.status, 204, f"{self.asked}: status ({self.summary})")
        expect(self.body, b"", f"{self.asked}: content of the 204")
        return self

    def refused(self, kind: str | int | Iterable[int]) -> Problem:
        """Fail unless refused so: a type of Table 2 with its status, or a status (or one of several). Returns it."""
        if isinstance(kind, str):
            self.problem.check_type(kind, self.status, self.asked, self.summary)
            return self.problem
        statuses = {kind} if isinstance(kind, int) else set(kind)
        wanted = " or ".join(map(str, sorted(statuses)))
        ensure(self.status in statuses, f"{self.asked}: expected a refusal with {wanted}, came {self.summary}")
        return self.problem

    def rejected(self, what: str = "") -> Problem:
        """Fail unless refused with some 4xx, where the draft leaves the status open; `what` says why. Returns it."""
        wanted = f"{self.asked}: expected a refusal with a 4xx{what and f' for {what}'}"
        ensure(400 <= self.status < 500, f"{wanted}, came {self.summary}")
        return self.problem


class Client:
    """One certificate; connections are opened when needed. `watch` sees every answer unless told otherwise."""

    def __init__(self, context: ssl.SSLContext, watch: Watch, patience_s: float = 10.0) -> None:
        self._context = context
        self._watch = watch
        self._patience_s = patience_s
        self._connections: dict[tuple[str, int], Connection] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def request(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        headers: Iterable[tuple[str, str]] = (),
        media: str | None = SDCP_CBOR,
        timeout_s: float | None = None,
        watched: bool = True,
    ) -> Answer:
        """Send one request and return the answer. A map or list is sent as CBOR, octets as they are.

        Raises TransportFault when no answer comes, and fails the check when it takes longer than `timeout_s`.
        """
        fields = [] if body is None or media is None else [("content-type", media)]
        content = body if isinstance(body, bytes | None) else encode(body)
        asked = f"{method} {urlsplit(url).path}"
        limit = timeout_s or self._patience_s
        try:
            async with asyncio.timeout(limit):
                answer = await self._exchange(method, url, [*fields, *headers], content, asked)
        except TimeoutError:
            ensure(False, f"{asked}: expected an answer within {limit:g} s, none came")
            raise
        if watched:
            self._watch.answer(method, urlsplit(url).path, answer.status, answer.headers, answer.body)
        return answer

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            await connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every connection off in the midst of whatever it does."""
        for connection in self._connections.values():
            connection.abort()

    async def _exchange(
        self, method: str, url: str, fields: list[tuple[str, str]], body: bytes | None, asked: str
    ) -> Answer:
        parts = urlsplit(url)
        connection = await self._connected(parts.hostname or "", parts.port or 443)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        head = [(":method", method), (":scheme", "https"), (":authority", parts.netloc), (":path", target)]
        if body is not None:
            fields = [*fields, ("content-length", str(len(body)))]
        stream = Stream(connection.h2.get_next_available_stream_id())
        connection.streams[stream.number] = stream
        try:
            connection.h2.send_headers(stream.number, head + fields, end_stream=body is None)
            connection.flush()
            if body is not None:
                with suppress(h2.exceptions.ProtocolError):  # an answer may come before all is sent
                    await connection.send_body(stream.number, body)
            await stream.ended.wait()
        finally:
            del connection.streams[stream.number]
            if not stream.ended.is_set():
                connection.reset(stream.number)
        headers = dict(stream.headers)
        if stream.fault is not None and ":status" not in headers:
            raise TransportFault(f"{asked}: no answer: {stream.fault}")
        return Answer(asked, int(headers.pop(":status")), headers, bytes(stream.body), connection.peer)

    async def _connected(self, host: str, port: int) -> Connection:
        key = (host, port)
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or connection.closed.is_set():
                connection = self._connections[key] = await self._connect(host, port)
            return connection

    async def _connect(self, host: str, port: int) -> Connection:
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._context)
        except OSError as fault:
            raise TransportFault(f"no connection to {host}:{port}: {fault}") from None
        connection = _ClientConnection(reader, writer, client=True)
        task = asyncio.create_task(connection.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return connection


class _ClientConnection(Connection):
    def on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            stream = self.streams.get(event.stream_id)
            if stream is not None:
                stream.headers = [(str(name), str(value)) for name, value in event.headers]
            return
        super().on_event(event)
