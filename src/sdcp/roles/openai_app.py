"""The OpenAI API over HTTP: completions and chat completions, streamed or not, models, and `/healthz`.

An ASGI application. Streams are server-sent events as the official clients read them: chunks, the last of them with the
reason of the end, a chunk of usage if that was asked for, `[DONE]`. The member `sdcp` of a response, and of a stream's
last chunk with choices, says what speculation did (D35). A client that goes away ends its generation (D34).

Not here: parameters (`openai_params`), text (`openai_text`), and the way to router and verifier (`delivery`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sdcp.errors import ProblemError
from sdcp.messages.contract import Action
from sdcp.roles.delivery import Account, Delivery, FrontEnd
from sdcp.roles.openai_errors import ApiError, failed, translated
from sdcp.roles.openai_params import Asked, understand
from sdcp.roles.openai_text import Text, Transcript
from sdcp.roles.telemetry import Metrics

logger = logging.getLogger("sdcp.roles")

RETRY_AFTER = {503: {"retry-after": "1"}}


@dataclass(frozen=True, slots=True)
class Api:
    """What the application is made from."""

    front_end: FrontEnd
    text: Text
    model: str
    max_tokens: int
    body_bytes: int
    metrics: Metrics
    began: int = field(default_factory=lambda: int(time.time()))

    def application(self) -> Starlette:
        """The ASGI application."""
        application = Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/v1/models", self._models),
                Route("/v1/models/{model:path}", self._model),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/chat/completions", self._chat_completions, methods=["POST"]),
            ],
            exception_handlers={
                ApiError: _told,
                _GoneError: _nobody,
                404: _no_such_path,
                405: _no_such_method,
                Exception: _broken,
            },
        )
        application.router.redirect_slashes = False  # a POST that is sent elsewhere is a surprise
        return application

    async def _health(self, _: Request) -> Response:
        """Liveness: this process answers. Whether a router does is not looked at."""
        return JSONResponse({"status": "ok"})

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        if request.path_params["model"] != self.model:
            raise ApiError("There is no such model here.", status=404, param="model", code="model_not_found")
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        return {"id": self.model, "object": "model", "created": self.began, "owned_by": "sdcp"}

    async def _completions(self, request: Request) -> Response:
        return await self._generate(request, chat=False)

    async def _chat_completions(self, request: Request) -> Response:
        return await self._generate(request, chat=True)

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        body = await self._body(request)
        # Tokenizing a long prompt takes long enough to hold up other streams.
        asked = await asyncio.to_thread(understand, body, self.text, self.model, self.max_tokens, chat=chat)
        answer = _Answer(self, asked, chat)
        if not asked.stream:
            return JSONResponse(await _unless_gone(request, answer.whole()))
        # The first delivery is awaited here, so that a refusal still has a status of its own.
        events = answer.events()
        first = await _unless_gone(request, anext(events))
        return StreamingResponse(_resumed(first, events), media_type="text/event-stream", headers=_UNCACHED)

    async def _body(self, request: Request) -> Any:
        received = bytearray()
        async for chunk in request.stream():
            received += chunk
            if len(received) > self.body_bytes:
                raise ApiError(f"The body is over {self.body_bytes} bytes.", status=413)
        try:
            return json.loads(received)
        except (ValueError, RecursionError):
            raise ApiError("The body is not JSON.") from None


_UNCACHED = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class _Answer:
    """One answer: its deliveries as text, in the shapes of the API."""

    def __init__(self, api: Api, asked: Asked, chat: bool) -> None:
        self._api = api
        self._asked = asked
        self._chat = chat
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._transcript = Transcript(api.text.decoder(), asked.stop_strings, asked.wanted.stop)
        self._account: Account | None = None
        self._epoch = 0
        self._began = time.monotonic()
        self._first = self._last = 0.0

    # ---- deliveries to pieces ----------------------------------------------------------------------------------------

    async def _pieces(self) -> AsyncGenerator[tuple[str, list[int]]]:
        """Yield pieces of text with the tokens that came with them. Raises ApiError."""
        transcript = self._transcript
        try:
            async with aclosing(self._api.front_end.generate(self._asked.wanted)) as deliveries:
                async for delivery in deliveries:
                    known = len(transcript.token_ids)
                    piece = transcript.push(delivery.tokens)
                    self._note(delivery)
                    if delivery.finish == Action.FAIL and transcript.reason is None:
                        raise failed()
                    yield piece, transcript.token_ids[known:]
                    if transcript.reason is not None:
                        break
        except ProblemError as error:
            raise translated(error) from error
        yield transcript.finish(), []

    def _note(self, delivery: Delivery) -> None:
        self._account = delivery.account or self._account
        self._epoch = delivery.epoch
        if delivery.tokens:
            self._last = time.monotonic()
            if not self._first:
                self._first = self._last
                self._api.metrics.took("first_token", self._first - self._began)
            self._api.metrics.count("tokens", len(delivery.tokens))

    # ---- whole -------------------------------------------------------------------------------------------------------

    async def whole(self) -> dict[str, Any]:
        """The response of a request without `stream`."""
        pieces = [piece async for piece, _ in self._pieces()]
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._transcript.reason}
        text = "".join(pieces)
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        if self._asked.token_ids:
            choice["token_ids"] = self._transcript.token_ids
        return self._document([choice], whole=True) | {"usage": self._usage()} | self._prompt_ids() | self._sdcp()

    # ---- streamed ----------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[bytes]:
        """Server-sent events. The first one comes with the first delivery; an error before it is raised."""
        begun = False
        try:
            async with aclosing(self._pieces()) as pieces:
                async for piece, tokens in pieces:
                    if not begun:
                        begun = True
                        yield self._first_event()
                    if piece or (tokens and self._asked.token_ids):
                        yield self._event([self._choice(piece, tokens)])
        except ApiError as error:
            if not begun:
                raise
            yield _data(error.body())
            return
        yield self._event([self._choice("", [], self._transcript.reason)], self._sdcp())
        if self._asked.include_usage:
            yield self._event([], {"usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _first_event(self) -> bytes:
        """A chat begins with the role; a completion with an empty piece. Both carry the prompt's ids, if wanted."""
        choice = self._choice("", [])
        if self._chat:
            choice["delta"] = {"role": "assistant", "content": ""}
        return self._event([choice], self._prompt_ids())

    def _choice(self, piece: str, tokens: list[int], reason: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._chat:
            choice["delta"] = {"content": piece} if piece else {}
        else:
            choice["text"] = piece
        if self._asked.token_ids and tokens:
            choice["token_ids"] = tokens
        return choice

    def _event(self, choices: list[dict[str, Any]], more: dict[str, Any] | None = None) -> bytes:
        usage = {"usage": None} if self._asked.include_usage else {}
        return _data(self._document(choices) | usage | (more or {}))

    # ---- what they have in common ------------------------------------------------------------------------------------

    def _document(self, choices: list[dict[str, Any]], *, whole: bool = False) -> dict[str, Any]:
        kind = "text_completion"
        if self._chat:
            kind = "chat.completion" if whole else "chat.completion.chunk"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._api.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        prompt, completion = len(self._asked.wanted.prompt), len(self._transcript.token_ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._asked.wanted.prompt)} if self._asked.token_ids else {}

    def _sdcp(self) -> dict[str, Any]:
        """What speculation did, as far as the verifier told it (D35)."""
        account = self._account
        if account is None:
            return {}
        tokens, seconds = len(self._transcript.token_ids), self._last - self._first
        return {
            "sdcp": {
                "passes": account.passes,
                "proposed": account.proposed,
                "accepted": account.accepted,
                "tokens_per_pass": round(tokens / account.passes, 3) if account.passes else None,
                "tokens_per_second": round((tokens - 1) / seconds, 1) if seconds > 0 and tokens > 1 else None,
                "epoch": self._epoch,
            }
        }


def _data(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _resumed(first: bytes, events: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


class _GoneError(Exception):
    """The client has gone: nobody is there to be answered."""


async def _unless_gone(request: Request, work: Any) -> Any:
    """Await `work`, and cancel it when the client goes away, so that nobody generates for nobody."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise _GoneError
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _told(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body(), status_code=error.status, headers=RETRY_AFTER.get(error.status))


async def _no_such_path(request: Request, _: Exception) -> Response:
    error = ApiError(f"There is nothing at {request.url.path}.", status=404, code="not_found")
    return JSONResponse(error.body(), status_code=404)


async def _no_such_method(request: Request, refused: Exception) -> Response:
    error = ApiError(f"{request.url.path} does not take {request.method}.", status=405, code="method_not_allowed")
    return JSONResponse(error.body(), status_code=405, headers=getattr(refused, "headers", None))  # Allow


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _broken(_: Request, __: Exception) -> Response:
    error = ApiError("A fault of this gateway.", status=500, kind="server_error", code="internal_error")
    return JSONResponse(error.body(), status_code=500)
