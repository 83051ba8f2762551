"""Both ends of the kit's HTTP/2 against each other, and traffic that breaks the rules."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sdcp_conformance.authority import Authority, Identity
from sdcp_conformance.net.client import Client
from sdcp_conformance.net.connection import TransportFault
from sdcp_conformance.net.raw import attempt, context_of, http1, http2
from sdcp_conformance.net.server import DropConnection, Handler, NoAnswer, Request, Response, Server, reserve
from sdcp_conformance.outcome import Failed
from sdcp_conformance.watch import Watch


class Pair:
    """A server with a handler that tests set, and a client of it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.identity = self.authority.issue("server", ["cache"], ["https://server.test/s"])
        self.ours = self.authority.issue("client", ["router"], ["https://client.test/c"])
        self.handler: Handler = self.echo
        self.requests: list[Request] = []
        bound = reserve()
        self.base = f"https://127.0.0.1:{bound.getsockname()[1]}/s"
        self.server = Server(self.handle, self.identity.server_context(), bound)
        self.watch = Watch()
        self.client = Client(self.ours.client_context(), self.watch, 5.0)

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        return await self.handler(request)

    async def echo(self, request: Request) -> Response:
        return Response(200, (("x-path", request.path),), request.body)


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.server.start()
    yield pair
    await pair.client.close()
    await pair.server.close()


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1_000_000])
async def test_bodies_of_every_size(pair: Pair, size: int) -> None:
    body = bytes(index % 251 for index in range(size))
    answer = await pair.client.request("PUT", f"{pair.base}/x?from=3", body, media="a/b")
    assert (answer.status, answer.body, answer.headers["x-path"]) == (200, body, "/s/x")
    request = pair.requests[0]
    assert (request.query, request.headers["content-type"]) == ({"from": "3"}, "a/b")


async def test_who_is_at_the_other_end(pair: Pair) -> None:
    answer = await pair.client.request("GET", pair.base)
    assert (answer.peer.roles, answer.peer.tls_version, answer.peer.alpn) == ({"cache"}, "TLSv1.3", "h2")
    assert "https://client.test/c" in pair.requests[0].peer.uris
    assert pair.requests[0].peer.roles == {"router"}


async def test_many_at_once(pair: Pair) -> None:
    body = bytes(100_000)
    answers = await asyncio.gather(*(pair.client.request("POST", pair.base, body) for _ in range(50)))
    assert {(answer.status, len(answer.body)) for answer in answers} == {(200, 100_000)}
    assert len(pair.server.connections) == 1


async def test_one_stream_is_reset_and_the_others_live(pair: Pair) -> None:
    gate = asyncio.Event()

    async def handler(request: Request) -> Response:
        if request.path.endswith("lost"):
            raise NoAnswer
        await gate.wait()
        return Response(204)

    pair.handler = handler
    other = asyncio.create_task(pair.client.request("POST", f"{pair.base}/other"))
    with pytest.raises(TransportFault, match="INTERNAL_ERROR"):
        await pair.client.request("POST", f"{pair.base}/lost")
    gate.set()
    assert (await other).status == 204


async def test_a_connection_that_is_cut_off_is_opened_again(pair: Pair) -> None:
    async def handler(request: Request) -> Response:
        raise DropConnection

    pair.handler = handler
    with pytest.raises(TransportFault, match="no answer"):
        await pair.client.request("POST", pair.base)
    pair.handler = pair.echo
    assert (await pair.client.request("POST", pair.base)).status == 200


async def test_a_peer_that_does_not_hear_us_close_is_left_alone(pair: Pair) -> None:
    await pair.client.request("POST", pair.base)
    (connection,) = pair.server.connections
    connection._writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(2):
        await pair.client.close()


async def test_who_gives_up_is_gone(pair: Pair) -> None:
    waiting = asyncio.Event()

    async def handler(request: Request) -> Response:
        waiting.set()
        await request.gone.wait()
        waiting.clear()
        return Response(204)

    pair.handler = handler
    asking = asyncio.create_task(pair.client.request("POST", pair.base))
    await waiting.wait()
    asking.cancel()
    await asyncio.wait([asking])
    async with asyncio.timeout(5):
        await pair.requests[0].gone.wait()


async def test_an_answer_that_does_not_come_fails_the_check(pair: Pair) -> None:
    async def handler(request: Request) -> Response:
        await request.gone.wait()
        return Response(204)

    pair.handler = handler
    with pytest.raises(Failed, match=r"expected an answer within 0.1 s"):
        await pair.client.request("POST", pair.base, timeout_s=0.1)


async def test_nobody_serves_there(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = Client(authority.issue("x").client_context(), Watch(), 5.0)
    bound = reserve()
    with pytest.raises(TransportFault, match="no connection"):
        await client.request("GET", f"https://127.0.0.1:{bound.getsockname()[1]}/")
    bound.close()


@pytest.mark.parametrize(
    ("without", "settings", "octets", "served"),
    [
        (False, {}, http2, True),
        (True, {}, http2, False),
        (False, {"tls12": True}, http2, False),
    ],
)
async def test_traffic_by_hand(pair: Pair, without: bool, settings: dict[str, Any], octets: Any, served: bool) -> None:
    identity: Identity | None = None if without else pair.ours
    context = context_of(pair.authority.ca, identity, **settings)
    found = await attempt(pair.base, context, octets("GET", f"{pair.base}/x"), 1.0)
    assert found.served is served, found
    assert served or found.fault


async def test_http_1_is_not_served(pair: Pair) -> None:
    context = context_of(pair.authority.ca, pair.ours, alpn=["http/1.1"])
    found = await attempt(pair.base, context, http1("GET", pair.base), 1.0)
    assert not found.served


async def test_another_authority_is_not_trusted(pair: Pair, tmp_path: Path) -> None:
    context = Authority(tmp_path, "other").issue("other").client_context()
    context.load_verify_locations(pair.authority.ca)
    with pytest.raises((TransportFault, ssl.SSLError)):
        await Client(context, Watch(), 5.0).request("GET", pair.base)
