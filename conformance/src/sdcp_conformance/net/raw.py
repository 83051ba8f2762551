"""What a sound client cannot be made to do: other TLS versions, no certificate, HTTP/1.1, octets of any kind."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import h2.config
import h2.connection

from sdcp_conformance.authority import Identity

SETTINGS, GOAWAY, RST_STREAM, HEADERS, DATA = 4, 7, 3, 1, 0


@dataclass(frozen=True)
class Attempt:
    """What came of it: the TLS version and ALPN agreed on, the octets received, and the fault that ended it."""

    version: str | None
    alpn: str | None
    received: bytes
    fault: str | None

    @property
    def frames(self) -> list[int]:
        """The types of the whole HTTP/2 frames received."""
        types, rest = [], self.received
        while len(rest) >= 9 and len(rest) >= (end := 9 + int.from_bytes(rest[:3], "big")):
            types.append(rest[3])
            rest = rest[end:]
        return types

    @property
    def served(self) -> bool:
        """Whether an HTTP/2 response began, or anything of HTTP/1.1 came."""
        return HEADERS in self.frames or self.received.startswith(b"HTTP/1.1 2")


def context_of(
    ca: Path, identity: Identity | None, *, tls12: bool = False, alpn: Sequence[str] = ("h2",)
) -> ssl.SSLContext:
    """A client's context with these habits; `identity` None: no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    if tls12:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


async def attempt(base: str, context: ssl.SSLContext, octets: bytes, limit_s: float = 3.0) -> Attempt:
    """Connect, send the octets, and read until the server ends it, a response has come, or the time is over."""
    parts = urlsplit(base)
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    except TimeoutError:
        return Attempt(None, None, b"", "the handshake took too long")
    except OSError as fault:
        return Attempt(None, None, b"", f"the handshake failed: {fault}")
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    version, alpn = tls.version(), tls.selected_alpn_protocol()
    received, fault_text = bytearray(), None
    try:
        async with asyncio.timeout(limit_s):
            writer.write(octets)
            while part := await reader.read(65_536):
                received += part
                if Attempt(version, alpn, bytes(received), None).served:
                    break
            else:
                fault_text = "the server closed the connection"
    except TimeoutError:
        fault_text = "nothing more came"
    except OSError as fault:
        fault_text = f"the connection failed: {fault}"
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
    return Attempt(version, alpn, bytes(received), fault_text)


def http2(
    method: str, url: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = (), *, end: bool = True
) -> bytes:
    """The octets of an HTTP/2 connection's beginning and one request, as it stands; `end` False: never ended."""
    config = h2.config.H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False
    )
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    parts = urlsplit(url)
    head = [(":method", method), (":scheme", "https"), (":authority", parts.netloc), (":path", parts.path)]
    connection.send_headers(1, [*head, *headers], end_stream=end and body is None)
    if body is not None:
        connection.send_data(1, body, end_stream=end)
    return bytes(connection.data_to_send())


def http1(method: str, url: str) -> bytes:
    """The octets of an HTTP/1.1 request."""
    parts = urlsplit(url)
    return f"{method} {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: 0\r\n\r\n".encode()
