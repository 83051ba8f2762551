"""One request of a client and what has become of it so far: what is sent, and whether it may be sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from sdcp.http.client_connection import Chunks
from sdcp.http.faults import NotTrusted, TransportError, Unreachable
from sdcp.http.pool import Origin

CallBody = bytes | memoryview | Chunks | Callable[[], Chunks]
_IMMEDIATE_TRIES = 2  # more, at once, of a request that a server certainly did not process


class Call:
    """A request, from its first try to its last."""

    __slots__ = (
        "body",
        "connected",
        "doubtful",
        "fields",
        "immediate",
        "method",
        "origin",
        "spent",
        "tries",
        "under_way",
        "url",
    )

    def __init__(
        self, method: str, url: str, headers: Iterable[tuple[str, str]], body: CallBody | None, objects: bool
    ) -> None:
        """Raises ValueError for a URL that is not https, or has no host."""
        host, port, authority, target = _parts(url)
        self.method = method
        self.url = url
        self.body = body
        self.origin = Origin(host, port, objects)
        self.fields = [
            (b":method", method.encode("ascii")),
            (b":scheme", b"https"),
            (b":authority", authority),
            (b":path", target),
        ]
        self.fields += [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers]
        if isinstance(body, bytes | memoryview):
            self.fields.append((b"content-length", b"%d" % memoryview(body).nbytes))
        self.tries = 0
        self.immediate = 0
        self.connected = False  # this try got as far as a connection
        self.under_way = False  # this try has been sent
        self.doubtful = False  # an earlier try may have been processed
        self.spent = False  # the body was an iterator, and has been begun

    def begin(self) -> None:
        """Another try."""
        self.tries += 1
        self.connected = self.under_way = False

    def chunks(self) -> Chunks:
        """The body to send; an iterator can be had only once."""
        body = self.body
        if isinstance(body, bytes | memoryview):
            return _once(body)
        if callable(body):
            return body()
        if body is None:
            return _once(b"")
        self.spent = True
        return body

    @property
    def maybe_processed(self) -> bool:
        """Whether a server may have acted on this request, or may yet."""
        return self.doubtful or self.under_way

    def failed(self, error: TransportError) -> None:
        """This try ended in `error`."""
        self.under_way = False
        self.doubtful = self.doubtful or error.maybe_processed

    def again_at_once(self, error: TransportError) -> bool:
        """Whether `error` leaves no doubt that the request was not processed, and another connection may take it."""
        if (
            error.maybe_processed
            or not self.connected
            or not self._may_repeat(error)
            or self.immediate >= _IMMEDIATE_TRIES
        ):
            return False
        self.immediate += 1
        return True

    def again_later(self, error: TransportError, attempts: int) -> bool:
        """Whether an idempotent request may be tried again after a pause."""
        return self._may_repeat(error) and self.tries - self.immediate < attempts

    def _may_repeat(self, error: TransportError) -> bool:
        return isinstance(error, Unreachable) and not isinstance(error, NotTrusted) and not self.spent


@lru_cache(maxsize=1024)  # a role asks the same few URLs again and again
def _parts(url: str) -> tuple[str, int, bytes, bytes]:
    """Host, port, `:authority` and `:path` of an https URL."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"{url!r} is not an https URL with a host")
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    authority = parts.netloc.rpartition("@")[2]
    return parts.hostname, parts.port or 443, authority.encode("ascii"), target.encode("ascii")


async def _once(body: bytes | memoryview) -> AsyncIterator[bytes | memoryview]:
    yield body
