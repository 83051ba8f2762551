"""The gateway's process: its tokenizer, its address, its end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
import uvicorn
from tokenizers import Tokenizer, models

from sdcp.engines.digests import IDENTITY_TOKENIZER, tokenizer_digest
from sdcp.errors import ConfigurationError, UnknownResource
from sdcp.http.authority import issue
from sdcp.roles.config import Api as ApiSettings
from sdcp.roles.config import GatewayModel, GatewaySettings, RoutersToAsk, Tls
from sdcp.roles.gateway import ApiServer, GatewayRole, _bound, load_text, make
from sdcp.roles.openai_text import FolderText, IdentityText
from sdcp.roles.process import Context
from sdcp.roles.telemetry import Metrics


class FrontEnd:
    def __init__(self) -> None:
        self.settled = False

    async def settle(self) -> None:
        self.settled = True


class Client:
    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def test_the_reference_model_has_the_identity_tokenizer(tmp_path: Path) -> None:
    text, digest = load_text(GatewayModel(engine="bigram", path=tmp_path / "model.safetensors"))
    assert isinstance(text, IdentityText)
    assert digest == IDENTITY_TOKENIZER


def test_a_folder_s_tokenizer_and_its_digest(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    for model in (
        GatewayModel(engine="transformers", path=tmp_path),
        GatewayModel(engine="x", tokenizer=tmp_path / "tokenizer.json"),
    ):
        text, digest = load_text(model)
        assert isinstance(text, FolderText)
        assert digest == tokenizer_digest(tmp_path)


@pytest.mark.parametrize(
    "model", [GatewayModel(engine="transformers"), GatewayModel(engine="transformers", path=Path("nowhere"))]
)
def test_without_a_tokenizer_there_is_no_gateway(model: GatewayModel) -> None:
    with pytest.raises(ConfigurationError):
        load_text(model)


def test_an_address_that_is_taken_is_the_operator_s_to_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError, match=r"\[api\] listen"):
        _bound(f"127.0.0.1:{taken.getsockname()[1]}")


async def test_the_api_s_own_certificate_is_read_at_once(tmp_path: Path) -> None:
    files = issue(tmp_path, "gateway", "front-end", ["https://gateway.example"])
    (tmp_path / "bad.pem").write_text("no certificate")
    settings = GatewaySettings(
        tls=Tls(certificate=files.certificate, key=files.key, ca=files.ca),
        api=ApiSettings(listen="127.0.0.1:0", certificate=tmp_path / "bad.pem", key=files.key),
        model=GatewayModel(engine="bigram"),
        routers=RoutersToAsk(base_uris=("https://router.example",)),
    )
    with pytest.raises(ConfigurationError, match=r"\[api\] certificate"):
        await make(Context(settings, files, lambda what, fault: None, Metrics()))


async def test_it_serves_from_start_and_finishes_what_is_under_way() -> None:
    begun, finish = asyncio.Event(), asyncio.Event()

    async def application(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        begun.set()
        await finish.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = ApiServer(uvicorn.Config(application, log_level="error", lifespan="off", timeout_graceful_shutdown=20))
    front_end, client = FrontEnd(), Client()
    role = GatewayRole(server, _bound("127.0.0.1:0"), front_end, client)  # type: ignore[arg-type]
    await role.start("https://gateway.example")
    host, port = role.address
    async with httpx.AsyncClient() as http:
        under_way = asyncio.ensure_future(http.get(f"http://{host}:{port}/"))
        await begun.wait()
        draining = asyncio.ensure_future(role.drain())
        await asyncio.sleep(0)
        finish.set()
        assert (await under_way).status_code == 204
        await draining
        assert (front_end.settled, client.closed) == (True, True)
        with pytest.raises(httpx.ConnectError):
            await http.get(f"http://{host}:{port}/")


async def test_below_its_base_uri_there_is_nothing() -> None:
    role = GatewayRole(None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(UnknownResource):
        await role.handle(None)  # type: ignore[arg-type]
