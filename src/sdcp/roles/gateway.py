"""`sdcp gateway`: the OpenAI API in front of a router; towards the system it is a front end (D10, D33).

The API is plain HTTP on the address of `[api]`, meant for loopback or for a proxy beside it; with a certificate in
`[api]` it is served over TLS. Below its own base URI a gateway has no resource but its metrics.

Not here: the API itself (`sdcp.roles.openai_app`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from sdcp.engines.digests import IDENTITY_TOKENIZER, tokenizer_digest, tokenizer_file
from sdcp.errors import ConfigurationError, UnknownResource
from sdcp.http.client import Client
from sdcp.http.exchange import Request, Response
from sdcp.roles.config import GatewayModel, GatewaySettings
from sdcp.roles.delivery import FrontEnd
from sdcp.roles.openai_app import Api
from sdcp.roles.openai_text import FolderText, IdentityText, Text
from sdcp.roles.peers import Peers
from sdcp.roles.process import Context

logger = logging.getLogger("sdcp.roles")


async def make(context: Context[GatewaySettings]) -> GatewayRole:
    """Load the tokenizer and bind the API's address. Raises ConfigurationError."""
    settings = context.settings
    text, tokenizer = load_text(settings.model)
    client = context.client()
    front_end = FrontEnd(Peers(client), settings.routers.base_uris, tokenizer)
    api = Api(
        front_end, text, settings.api.model_name, settings.api.max_tokens, settings.limits.body_bytes, context.metrics
    )
    config = uvicorn.Config(
        api.application(),
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=round(settings.limits.drain_s),
        ssl_certfile=settings.api.certificate,
        ssl_keyfile=settings.api.key,
    )
    try:
        config.load()
    except OSError as fault:  # ssl.SSLError is one
        raise ConfigurationError(f"[api] certificate, key: {fault}") from None
    return GatewayRole(ApiServer(config), _bound(settings.api.listen), front_end, client)


def load_text(model: GatewayModel) -> tuple[Text, bytes]:
    """The model's tokenizer and its digest. Raises ConfigurationError."""
    if model.engine == "bigram" and model.tokenizer is None:
        return IdentityText(), IDENTITY_TOKENIZER
    named = model.tokenizer or model.path
    if named is None:
        raise ConfigurationError("[model] path or tokenizer: a gateway needs the model's tokenizer.json")
    file = tokenizer_file(named)
    folder = model.path if model.path is not None and model.path.is_dir() else file.parent
    return FolderText(Path(folder), file), tokenizer_digest(file)


class GatewayRole:
    """The role: `start`, `handle`, `drain` (`sdcp.roles.process.Role`). Closes `client` when it has drained."""

    def __init__(self, server: ApiServer, listening: socket.socket, front_end: FrontEnd, client: Client) -> None:
        self._server = server
        self._listening = listening
        self._front_end = front_end
        self._client = client
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where the API is."""
        host, port = self._listening.getsockname()[:2]
        return host, port

    async def start(self, base_uri: str) -> None:
        """Serve the API."""
        host, port = self.address
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([self._listening]))
        await self._server.up.wait()
        logger.info("the API is at %s:%d", host, port)

    async def handle(self, request: Request) -> Response:
        """A gateway has no SDCP resources. Raises UnknownResource."""
        raise UnknownResource("A gateway has no resources here; its API is at the address of [api].")

    async def drain(self) -> None:
        """Take no connection any more, finish what is under way."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        await self._front_end.settle()
        await self._client.close()


class ApiServer(uvicorn.Server):
    """uvicorn inside our process: signals are ours, and `up` says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, *args: Any, **named: Any) -> None:
        """Listen, then say so."""
        await super().startup(*args, **named)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process (`sdcp.roles.process`)."""
        yield


def _bound(listen: str) -> socket.socket:
    """A listening socket. Raises ConfigurationError."""
    host, _, port = listen.rpartition(":")
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as fault:
        raise ConfigurationError(f"[api] listen = {listen}: {fault.strerror or fault}") from None
