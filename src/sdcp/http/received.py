"""The body received on one stream, and how long its sender keeps us waiting.

Bytes are acknowledged when somebody takes them, not when they arrive, and only then does the sender's window open
again (RFC 9113 section 5.2): a reader that stops holds the sender back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdcp.http.connection import Connection


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
        return self._take() if await self._any() else None

    async def read(self, limit: int, too_large: Callable[[int], Exception]) -> bytes:
        """All that comes, at most `limit` bytes; raises `too_large(limit)` when it is more."""
        if self.ended and len(self._chunks) == 1:  # a small body that came with its head: the usual case
            if self.held > limit:
                raise too_large(limit)
            return self._take()
        parts: list[bytes] = []
        size = 0
        while await self._any():
            size += self.held
            parts += self._chunks
            self._chunks.clear()
            self._acknowledge(self.held)
            if size > limit:
                raise too_large(limit)
        return b"".join(parts)

    async def _any(self) -> bool:
        """Wait until something is here; False: the body has ended. Raises what `fail` was given."""
        while not self._chunks:
            if self.ended:
                return False
            if self._failure is not None:
                raise self._failure
            await self._more()
        return True

    def _take(self) -> bytes:
        chunk = self._chunks.popleft()
        self._acknowledge(len(chunk))
        return chunk

    def _acknowledge(self, amount: int) -> None:
        self.held -= amount
        self._connection.acknowledge(self._stream_id, amount, soon=not self.ended)

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
