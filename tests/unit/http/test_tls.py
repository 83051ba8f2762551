"""TLS 1.3 with mutual certificate authentication, `h2` and nothing else (5.1); the errors of its files."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError
from sdcp.http.client import Client
from sdcp.http.exchange import Request, Response
from sdcp.http.faults import NotTrusted, Unreachable
from sdcp.http.limits import ClientLimits
from sdcp.http.tls import TlsFiles, client_context, server_context


async def refuse(request: Request) -> Response:
    raise AssertionError("a request got through")


async def who(request: Request) -> Response:
    return Response(200, (), ",".join(sorted(request.peer.uris)).encode())


async def first_bytes(port: int, context: ssl.SSLContext) -> bytes:
    """What a server says to a client of this kind, its handshake done. Raises ssl.SSLError where it fails."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    try:
        return await reader.read(1)
    finally:
        writer.transport.abort()


async def test_tls_1_2_is_refused(serving: Callable, pki) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki.router.ca)
    context.load_cert_chain(pki.router.certificate, pki.router.key)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(refuse) as (server, _, _):
        with pytest.raises(OSError):  # noqa: PT011 - an alert or a reset, as the loop likes
            await first_bytes(server.port, context)
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        assert await first_bytes(server.port, context) != b""


@pytest.mark.decision("D3-handshake")
async def test_a_client_without_a_certificate_fails_the_handshake(serving: Callable, pki) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki.router.ca)
    context.set_alpn_protocols(["h2"])
    async with serving(refuse) as (server, _, _):
        with pytest.raises(ssl.SSLError):
            await first_bytes(server.port, context)
        async with Client(context) as client:
            with pytest.raises(NotTrusted, match="refuses our certificate") as refused:
                await client.request("GET", f"https://127.0.0.1:{server.port}/", idempotent=True)
        assert not refused.value.maybe_processed


async def test_a_certificate_of_another_authority_is_refused(serving: Callable, pki) -> None:
    async with serving(refuse) as (server, _, base), Client(client_context(pki.mixed(pki.foreign))) as client:
        with pytest.raises(NotTrusted, match="refuses our certificate"):
            await client.request("GET", base)
        assert not server.connections


async def test_a_server_of_another_authority_is_refused(serving: Callable, pki) -> None:
    async with serving(refuse) as (_, _, base), Client(client_context(pki.foreign)) as client:
        with pytest.raises(NotTrusted, match=r"certificate of .* is refused"):
            await client.request("GET", base, idempotent=True)


async def test_a_server_with_another_name_is_refused(pki) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=server_context(pki.elsewhere))
    port = listener.sockets[0].getsockname()[1]
    async with listener, Client(pki.client) as client:
        with pytest.raises(NotTrusted, match=r"certificate of .* is refused"):
            await client.request("GET", f"https://127.0.0.1:{port}/")


@pytest.mark.parametrize("offered", [["http/1.1"], []])
async def test_a_client_that_does_not_offer_h2_is_cut_off(serving: Callable, pki, offered: list[str]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki.router.ca)
    context.load_cert_chain(pki.router.certificate, pki.router.key)
    if offered:
        context.set_alpn_protocols(offered)
    async with serving(refuse) as (server, _, _):
        try:
            said = await first_bytes(server.port, context)
        except OSError:
            said = b""
        assert said == b""


async def test_a_server_that_does_not_agree_on_h2_is_refused(pki) -> None:
    context = server_context(pki.verifier)
    context.set_alpn_protocols(["http/1.1"])
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with listener, Client(pki.client) as client:
        with pytest.raises(Unreachable, match="did not agree on h2"):
            await client.request("GET", f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")


async def test_a_server_that_speaks_no_tls_is_unreachable(pki) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(hello, "127.0.0.1", 0)
    async with listener, Client(pki.client) as client:
        with pytest.raises(Unreachable):
            await client.request("GET", f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")


async def test_the_peer_is_read_from_the_certificate(serving: Callable) -> None:
    async with serving(who) as (server, client, base):
        answer = await client.request("GET", base)
        assert answer.body == b"https://127.0.0.1:7000/,urn:sdcp:role:router"
        assert answer.peer.owns("https://127.0.0.1:7001")
        assert answer.peer.roles == {"verifier"}
        (connection,) = server.connections
        assert connection.peer.roles == {"router"}
        assert len(connection.peer.fingerprint) == 64


async def test_the_role_of_the_server_can_be_demanded(serving: Callable) -> None:
    async with serving(who) as (_, client, base):
        assert (await client.request("GET", base, expect_role="verifier")).status == 200
        with pytest.raises(NotTrusted, match="does not bear the role router"):
            await client.request("GET", base, expect_role="router", idempotent=True)


async def test_a_peer_that_never_finishes_the_handshake_is_dropped(serving: Callable) -> None:
    from sdcp.http.limits import ServerLimits

    async with serving(refuse, limits=ServerLimits(handshake_s=0.05)) as (server, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()


async def test_a_server_that_never_answers_is_given_up(pki) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener, Client(pki.client, limits=ClientLimits(connect_s=0.05)) as client:
        with pytest.raises(Unreachable) as failed:
            await client.request("GET", url)
        assert not failed.value.maybe_processed


@pytest.mark.parametrize("make", [server_context, client_context])
@pytest.mark.parametrize(
    ("field", "content", "said"),
    [
        ("certificate", None, "the certificate file .* cannot be read: No such file"),
        ("key", None, "the private key file .* cannot be read"),
        ("ca", None, "the CA certificate file .* cannot be read"),
        ("certificate", b"hello", "are not a PEM certificate and its PEM private key"),
        ("key", b"hello", "are not a PEM certificate and its PEM private key"),
        ("ca", b"hello", "holds no PEM certificate"),
        ("ca", b"", "holds no PEM certificate"),
    ],
)
def test_files_that_do_not_serve_are_named(
    pki, tmp_path: Path, make: Callable, field: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    given = {"certificate": pki.router.certificate, "key": pki.router.key, "ca": pki.router.ca}
    with pytest.raises(ConfigurationError, match=said):
        make(TlsFiles(**{**given, field: path}))


def test_an_encrypted_key_is_no_prompt(pki, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pki.router.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigurationError, match="encrypted"):
        server_context(TlsFiles(pki.router.certificate, locked, pki.router.ca))
