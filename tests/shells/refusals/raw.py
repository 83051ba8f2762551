"""HTTP/2 by hand on a blocking TLS socket, for what a sound client cannot be made to do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import ngh2

from sdcp.http.client import Answer
from sdcp.http.identity import Peer
from sdcp.http.tls import TlsFiles, client_context

PATIENCE_S = 20.0
GOAWAY = 7
_NOBODY = Peer(frozenset(), frozenset(), frozenset())


@contextmanager
def connected(base: str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """A TLS connection to the process at this base URI. Raises ssl.SSLError for a handshake that fails at our end."""
    parts = urlsplit(base)
    assert parts.hostname is not None
    with (
        socket.create_connection((parts.hostname, parts.port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as tls,
    ):
        yield tls


class RawClient:
    """One connection. What the server says is not acted upon before an answer is awaited."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self._unread = b""
        self._pending: list[ngh2.Event] = []
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
        self._h2.initiate_connection({ngh2.Setting.ENABLE_PUSH: 0})
        self._h2.ping(b"settling")
        tls.sendall(self._h2.data_to_send())
        self._until(ngh2.PingAcknowledged)
        tls.sendall(self._h2.data_to_send())

    @classmethod
    @contextmanager
    def to(cls, base: str, files: TlsFiles) -> Iterator[RawClient]:
        """Connect with this certificate."""
        with connected(base, client_context(files)) as tls:
            yield cls(tls)

    def prepare(self, method: str, url: str, body: bytes, media: str) -> tuple[int, bytes]:
        """The stream's number and the octets of a request, not sent yet."""
        parts = urlsplit(url)
        fields = [(b":method", method), (b":scheme", "https"), (b":authority", parts.netloc), (b":path", parts.path)]
        fields += [(b"content-type", media), (b"content-length", str(len(body)))]
        stream = self._h2.send_request([(name, value.encode()) for name, value in fields], end_stream=False)
        self._h2.send_data(stream, body, end_stream=True)
        return stream, self._h2.data_to_send()

    def send(self, octets: bytes) -> None:
        """Send what was prepared."""
        self._tls.sendall(octets)

    def until_goaway(self) -> None:
        """Return when the server has sent GOAWAY; nothing that came is answered, no PING either."""
        while GOAWAY not in _frame_types(self._unread):
            self._unread += self._receive()

    def answer(self, stream: int) -> Answer:
        """The answer on a stream."""
        head = self._until(ngh2.ResponseReceived)
        assert head.stream_id == stream
        headers = {name.decode(): value.decode() for name, value in head.headers}
        body, ended = b"", head.end_stream
        while not ended:
            data = self._until(ngh2.DataReceived)
            body, ended = body + data.data, data.end_stream
        return Answer(int(headers.pop(":status")), headers, body, _NOBODY)

    def _until(self, kind: type) -> ngh2.Event:
        while True:
            for event in self._events():
                if isinstance(event, kind):
                    return event
            self._unread += self._receive()

    def _events(self) -> Iterator[ngh2.Event]:
        """One event after the other; what was not asked for is passed over."""
        octets, self._unread = self._unread, b""
        self._h2.receive_data(octets)
        self._pending += self._h2.events()
        while self._pending:
            yield self._pending.pop(0)

    def _receive(self) -> bytes:
        octets = self._tls.recv(65_536)
        if not octets:
            raise ConnectionResetError("the server closed the connection")
        return octets


def _frame_types(octets: bytes) -> set[int]:
    """The types of the whole frames in `octets` (RFC 9113 section 4.1)."""
    types: set[int] = set()
    while len(octets) >= 9 and len(octets) >= (end := 9 + int.from_bytes(octets[:3], "big")):
        types.add(octets[3])
        octets = octets[end:]
    return types
