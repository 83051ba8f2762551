"""A second cache under a configured prefix, which the test plays: slow, redirecting, broken, another than it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from sdcp.http.exchange import Handler, Request, Response
from sdcp.http.server import Server
from sdcp.http.tls import server_context
from tests.shells.refusals.town import Town

OCTETS = (("content-type", "application/octet-stream"),)


@asynccontextmanager
async def played(town: Town, handler: Handler, certificate: str = "cache") -> AsyncIterator[None]:
    """Serve the prefix `elsewhere` with `handler`, under the certificate of this name."""
    port = urlsplit(town.bases["elsewhere"]).port
    assert port is not None
    async with Server(handler, server_context(town.files[certificate]), port=port):
        yield


def always(status: int, body: bytes = b"", *headers: tuple[str, str]) -> Handler:
    """A handler that answers everything so."""

    async def handle(_: Request) -> Response:
        return Response(status, (*OCTETS, *headers), body)

    return handle


async def never(_: Request) -> Response:
    """Does not answer until the client gives up."""
    await asyncio.Event().wait()
    raise AssertionError
