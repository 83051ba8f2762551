"""What a handler is given and what it returns: `Request` and `Response`, and no more HTTP than it needs to know.

Header names are lower case. A path is as it came, percent-encoded; `sdcp.http.resources` takes it apart.

Not here: the connection under it (`sdcp.http.connection`), and which handler is called (`sdcp.http.dispatch`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from sdcp.errors import BodyTooLarge, MalformedBody
from sdcp.http.identity import Peer

Headers = Mapping[str, str]
Body = bytes | memoryview | AsyncIterator[bytes]


class Received(Protocol):
    """Where a body comes from: the stream, or what a test puts in its place."""

    async def next_chunk(self) -> bytes | None:
        """The next bytes, or None at the end."""
        ...

    async def read(self, limit: int, too_large: Callable[[int], Exception]) -> bytes:
        """All that comes, at most `limit` bytes; raises `too_large(limit)` when it is more."""
        ...


class Request:
    """One request. Its body is read once: with `body`, or piece by piece with `chunks`."""

    __slots__ = ("_received", "authority", "headers", "method", "path", "peer", "query")

    def __init__(
        self, method: str, path: str, query: str, authority: str, headers: Headers, peer: Peer, received: Received
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.authority = authority
        self.headers = headers
        self.peer = peer
        self._received = received

    async def body(self, limit: int) -> bytes:
        """The whole body, at most `limit` bytes; raises BodyTooLarge as soon as it is known to be longer (413)."""
        self._announced_within(limit)
        return await self._received.read(limit, self._too_large)

    async def chunks(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes; the sender is held back while nobody asks for the next piece."""
        if limit is not None:
            self._announced_within(limit)
        taken = 0
        while (chunk := await self._received.next_chunk()) is not None:
            taken += len(chunk)
            if limit is not None and taken > limit:
                raise self._too_large(limit)
            yield chunk

    def parameter(self, name: str) -> str | None:
        """The query parameter `name`, or None. Raises MalformedBody when it is given twice."""
        found = [value for key, value in parse_qsl(self.query, keep_blank_values=True) if key == name]
        if len(found) > 1:
            raise MalformedBody(f"the query gives {name!r} {len(found)} times; give it once")
        return found[0] if found else None

    def _announced_within(self, limit: int) -> None:
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise self._too_large(limit)

    @staticmethod
    def _too_large(limit: int) -> BodyTooLarge:
        return BodyTooLarge(f"the body is longer than the {limit} bytes that this resource takes")


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. `body` may be an async iterator: it is asked for more only as fast as the client reads.

    `content-length` is added for a body of bytes; a body is left out of an answer to HEAD.
    """

    status: int
    headers: Iterable[tuple[str, str]] = ()
    body: Body = b""


Handler = Callable[[Request], Awaitable[Response]]
