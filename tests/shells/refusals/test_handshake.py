"""Who gets no connection at all, at every role's process: mutual TLS 1.3 and HTTP/2 or nothing (5.1, D3)."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable

import pytest

from sdcp.http.authority import issue
from sdcp.http.tls import TlsFiles, client_context
from tests.shells.refusals.raw import RawClient, connected
from tests.shells.refusals.town import Town

pytestmark = pytest.mark.asyncio(loop_scope="session")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
every_process = pytest.mark.parametrize("at", ["verifier", "drafter-process", "router-process", "cache"])


def without_certificate(town: Town) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(town.files["router"].ca))
    context.set_alpn_protocols(["h2"])
    return context


def of_another_authority(town: Town) -> ssl.SSLContext:
    foreign = issue(town.processes.folder / "foreign", "router", "router")
    return client_context(TlsFiles(foreign.certificate, foreign.key, town.files["router"].ca))


def tls_1_2(town: Town) -> ssl.SSLContext:
    context = client_context(town.files["router"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def first_octet(base: str, context: ssl.SSLContext) -> bytes:
    """In TLS 1.3 a client is done before the server has looked at its certificate: the alert comes with this read."""
    with connected(base, context) as tls:
        tls.sendall(PREFACE)
        return tls.recv(1)


@pytest.mark.requirement("S5.1-tls13", "S5.1-mutual-authentication")
@pytest.mark.decision("D3-handshake")
@every_process
@pytest.mark.parametrize(
    ("make", "alert"),
    [
        (without_certificate, "CERTIFICATE_REQUIRED"),
        (of_another_authority, "UNKNOWN_CA"),
        (tls_1_2, "PROTOCOL_VERSION"),
    ],
)
async def test_the_handshake_fails_with_the_alert_that_says_why(
    town: Town, at: str, make: Callable[[Town], ssl.SSLContext], alert: str
) -> None:
    with pytest.raises(ssl.SSLError) as failed:
        first_octet(town.bases[at], make(town))
    assert alert in (failed.value.reason or ""), failed.value


@pytest.mark.requirement("S5.1-http-version")
@every_process
@pytest.mark.parametrize("protocols", [[], ["http/1.1"], ["h2c"]], ids=["no ALPN", "http/1.1", "h2c"])
async def test_whoever_does_not_speak_http_2_is_cut_off(town: Town, at: str, protocols: list[str]) -> None:
    context = ssl.create_default_context(cafile=str(town.files["router"].ca))
    context.load_cert_chain(town.files["router"].certificate, town.files["router"].key)
    if protocols:
        context.set_alpn_protocols(protocols)
    try:
        with connected(town.bases[at], context) as tls:
            tls.sendall(b"GET /v1/metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert tls.recv(65_536) == b""
    except (ConnectionError, ssl.SSLEOFError):
        pass  # cut off before we had written or read all


@pytest.mark.requirement("S5.1-http-version", "S5.1-tls13")
@every_process
async def test_the_same_connection_with_all_that_is_needed_is_served(town: Town, at: str) -> None:
    with RawClient.to(town.bases[at], town.files["router"]) as client:
        stream, octets = client.prepare("GET", f"{town.bases[at]}/metrics", b"", "text/plain")
        client.send(octets)
        assert client.answer(stream).status == 200
