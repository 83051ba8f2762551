"""TLS contexts of section 5.1: TLS 1.3 only, certificates on both sides, ALPN `h2` and nothing else.

Python's `ssl` completes a handshake in which no protocol was agreed, so a context alone cannot insist on `h2`:
the connection classes ask `negotiated_h2` before they read a byte, and abort otherwise. And asyncio closes a connection
whose handshake fails without sending the alert that says why: `telling_why` sends it.

Not here: who the peer is and what it may do (`sdcp.http.identity`), and making certificates (`sdcp.http.authority`).
"""

from __future__ import annotations

import socket
import ssl
from asyncio import BaseTransport
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdcp.errors import ConfigurationError

ALPN = "h2"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: our certificate (with any intermediates), its private key, and the authorities that peers may have."""

    certificate: Path
    key: Path
    ca: Path

    @classmethod
    def of(cls, directory: Path | str, name: str) -> TlsFiles:
        """The files that `sdcp.http.authority.issue` writes for `name`."""
        folder = Path(directory)
        return cls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that asks every client for a certificate of `files.ca`. Raises ConfigurationError."""
    context = _TellingContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # Connections live for hours: a session ticket would only cost every handshake one more record.
    context.num_tickets = 0
    return _load(context, files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that shows our certificate, and checks the server's for the URI's host. Raises ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # CERT_REQUIRED and check_hostname are its defaults
    context.hostname_checks_common_name = False  # RFC 9110 section 4.3.4 (RFC 6125): subjectAltName alone
    return _load(context, files)


def negotiated_h2(transport: BaseTransport) -> bool:
    """Whether this connection runs TLS 1.3 and agreed on `h2` by ALPN (5.1)."""
    tls = transport.get_extra_info("ssl_object")
    return tls is not None and tls.version() == "TLSv1.3" and tls.selected_alpn_protocol() == ALPN


@contextmanager
def telling_why(accepted: socket.socket) -> Iterator[None]:
    """Around a server's handshake on `accepted`: when it fails, the client is sent the TLS alert that says why."""
    token = _accepted.set(accepted)
    try:
        yield
    finally:
        _accepted.reset(token)


_accepted: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)


class _TellingContext(ssl.SSLContext):
    """A context whose connections send what OpenSSL has written for the peer when a handshake fails."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *rest: Any, **named: Any) -> ssl.SSLObject:
        tls = super().wrap_bio(incoming, outgoing, *rest, **named)
        if isinstance(tls, _TellingObject):
            tls.outgoing, tls.accepted = outgoing, _accepted.get()
        return tls


class _TellingObject(ssl.SSLObject):
    outgoing: ssl.MemoryBIO
    accepted: socket.socket | None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.accepted is not None:
                with suppress(OSError):
                    self.accepted.send(self.outgoing.read())
            raise


_TellingContext.sslobject_class = _TellingObject


def _load(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    _load_identity(context, files)
    _load_authorities(context, files.ca)
    return context


def _load_identity(context: ssl.SSLContext, files: TlsFiles) -> None:
    _readable("certificate", files.certificate)
    _readable("private key", files.key)
    try:
        # An encrypted key would otherwise stop the process at a prompt on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"{files.key} is not the private key of {files.certificate}") from None
        raise ConfigurationError(
            f"{files.certificate} and {files.key} are not a PEM certificate and its PEM private key"
        ) from None


def _load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    _readable("CA certificate", ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise ConfigurationError(f"{ca} holds no PEM certificate of an authority") from None


def _readable(what: str, path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise ConfigurationError(f"the {what} file {path} cannot be read: {error.strerror}") from None


def _no_password() -> str:
    raise ConfigurationError("the private key is encrypted; give one that is readable without a passphrase")
