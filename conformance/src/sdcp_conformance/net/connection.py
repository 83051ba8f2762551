"""One HTTP/2 connection over TLS: octets in and out, streams, flow control (RFC 9113). Both ends build on it."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from sdcp_conformance.authority import ROLE_URN

READ = 65_536


class TransportFault(Exception):
    """No answer came: the connection failed, was closed, or the stream was reset."""


@dataclass(frozen=True)
class Peer:
    """Whose certificate is at the other end: its SANs; `roles` by `urn:sdcp:role:ROLE` (D9)."""

    uris: frozenset[str] = frozenset()
    dns: frozenset[str] = frozenset()
    tls_version: str = ""
    alpn: str | None = None

    @property
    def roles(self) -> frozenset[str]:
        """The roles that the certificate bears."""
        return frozenset(uri.removeprefix(ROLE_URN) for uri in self.uris if uri.startswith(ROLE_URN))

    @classmethod
    def of(cls, writer: asyncio.StreamWriter) -> Peer:
        """Read the connection's TLS object."""
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate: dict[str, Any] = tls.getpeercert() or {}
        names = certificate.get("subjectAltName", ())
        uris = frozenset(str(value) for kind, value in names if kind == "URI")
        dns = frozenset(str(value) for kind, value in names if kind == "DNS")
        return cls(uris, dns, tls.version() or "", tls.selected_alpn_protocol())


@dataclass
class Stream:
    """What has come on one stream."""

    number: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str | None = None


class Connection:
    """Runs h2 over a reader and a writer. `closed` is set, with `why`, when nothing more can come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool) -> None:
        self.peer = Peer.of(writer)
        self.streams: dict[int, Stream] = {}
        self.closed = asyncio.Event()
        self.why = ""
        self._reader = reader
        self._writer = writer
        config = h2.config.H2Configuration(client_side=client, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self._progress = asyncio.Event()
        self._closing = False
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 24)
        self.flush()

    async def run(self) -> None:
        """Take in what comes until the connection ends."""
        try:
            while octets := await self._reader.read(READ):
                for event in self.h2.receive_data(octets):
                    self.on_event(event)
                self.flush()
                self._progress.set()
                self._progress = asyncio.Event()
            self._end("the peer closed the connection")
        except (OSError, h2.exceptions.ProtocolError) as fault:
            self._end(f"the connection failed: {fault or type(fault).__name__}")
        finally:
            self._end("the connection was closed")
            self._writer.close()

    def on_event(self, event: Any) -> None:
        """Take one event of h2."""
        if isinstance(event, h2.events.DataReceived):
            stream = self.streams.get(event.stream_id)
            if stream is not None:
                stream.body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self._finish(event.stream_id, None)
        elif isinstance(event, h2.events.StreamReset):
            self._finish(event.stream_id, f"the stream was reset with error {_code(event.error_code)}")
        elif isinstance(event, h2.events.ConnectionTerminated) and event.error_code:
            self._end(f"the peer ended the connection with error {_code(event.error_code)}")

    async def send_body(self, number: int, body: bytes) -> None:
        """Send a body, as flow control permits, and end the stream."""
        rest = memoryview(body)
        while True:
            window = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if window > 0 or not rest:
                chunk, rest = rest[:window], rest[window:]
                self.h2.send_data(number, bytes(chunk), end_stream=not rest)
                self.flush()
                if not rest:
                    return
            else:
                progress = self._progress
                await _either(progress, self.closed)
                if self.closed.is_set():
                    raise TransportFault(self.why)

    def flush(self) -> None:
        """Write what h2 has to say."""
        octets = self.h2.data_to_send()
        if octets and not self._writer.is_closing():
            self._writer.write(octets)

    def reset(self, number: int, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.CANCEL) -> None:
        """Reset one stream."""
        with suppress(h2.exceptions.ProtocolError):
            self.h2.reset_stream(number, code)
            self.flush()

    def abort(self) -> None:
        """Cut the connection off without a word."""
        self._end("the connection was cut off")
        self._writer.transport.abort()

    async def close(self) -> None:
        """Say goodbye and close, once: a second wait would end as the first one did, even when that was cancelled."""
        if self._closing:
            return
        self._closing = True
        with suppress(Exception):
            self.h2.close_connection()
            self.flush()
        self._end("the connection was closed")
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    def _finish(self, number: int, fault: str | None) -> None:
        stream = self.streams.get(number)
        if stream is not None and not stream.ended.is_set():
            stream.fault = fault
            stream.ended.set()

    def _end(self, why: str) -> None:
        if self.closed.is_set():
            return
        self.why = why
        self.closed.set()
        for number in list(self.streams):
            self._finish(number, why)
        self._progress.set()


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _code(code: Any) -> str:
    return str(getattr(code, "name", code))
