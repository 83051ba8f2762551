"""The API as the official client sees it, and as a client that goes away leaves it (D33 to D35)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import chain
from typing import Any

import httpx
import openai
import pytest

from sdcp import errors
from sdcp.messages.contract import Action, Sampling
from sdcp.roles.delivery import Account, Delivery, Wanted
from sdcp.roles.openai_app import Api
from sdcp.roles.openai_text import IdentityText
from sdcp.roles.telemetry import Metrics

DONE = Account(passes=2, proposed=6, accepted=3)


class FrontEnd:
    """Delivers what a test has written; an exception is raised, `None` waits for ever. Knows when it is left."""

    def __init__(self, *deliveries: Delivery | Exception | None) -> None:
        self.deliveries = deliveries
        self.wanted: Wanted | None = None
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()

    async def generate(self, wanted: Wanted) -> AsyncGenerator[Delivery]:
        self.wanted = wanted
        try:
            for delivery in self.deliveries:
                if delivery is None:
                    self.waiting.set()
                    await asyncio.Event().wait()
                if isinstance(delivery, Exception):
                    raise delivery
                assert delivery is not None
                yield delivery
        finally:
            self.left.set()


def api(front_end: FrontEnd) -> Any:
    text = IdentityText(stop=(7,))
    return Api(front_end, text, "m", 16, 1 << 16, Metrics()).application()  # type: ignore[arg-type]


def client(front_end: FrontEnd) -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(api(front_end), raise_app_exceptions=False)
    return openai.AsyncOpenAI(
        base_url="http://api/v1", api_key="any", max_retries=0, http_client=httpx.AsyncClient(transport=transport)
    )


def usual() -> FrontEnd:
    return FrontEnd(Delivery((5, 6), 1), Delivery((), 1), Delivery((8, 7), 2, Action.FINISH, DONE))


# ---- whole -----------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D35")
async def test_a_completion() -> None:
    front_end = usual()
    answer = await client(front_end).completions.create(
        model="m", prompt="1 2 3", max_tokens=9, temperature=0, stop=["x"], extra_body={"return_token_ids": True}
    )
    assert front_end.wanted == Wanted(
        prompt=(1, 2, 3), max_new=9, stop=(7,), rule=1, sampling=Sampling(temperature_milli=0)
    )
    (choice,) = answer.choices
    assert (answer.object, answer.model, choice.index) == ("text_completion", "m", 0)
    assert (choice.text, choice.finish_reason) == ("5 6 8", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 4, 7)
    extra = answer.model_extra or {}
    assert extra["prompt_token_ids"] == [1, 2, 3]
    assert (choice.model_extra or {})["token_ids"] == [5, 6, 8, 7]
    account = extra["sdcp"]
    assert (account["passes"], account["proposed"], account["accepted"], account["epoch"]) == (2, 6, 3, 2)
    assert account["tokens_per_pass"] == 2.0


async def test_a_chat_completion_that_its_length_cut() -> None:
    front_end = FrontEnd(Delivery((5,), 1), Delivery((6,), 1, Action.FINISH))
    answer = await client(front_end).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "1"}], max_completion_tokens=2
    )
    (choice,) = answer.choices
    assert (answer.object, choice.message.role, choice.message.content) == ("chat.completion", "assistant", "5 6")
    assert choice.finish_reason == "length"
    assert "sdcp" not in (answer.model_extra or {})  # the verifier keeps no account
    assert "token_ids" not in (choice.model_extra or {})


async def test_a_stop_string_ends_the_answer_and_the_generation() -> None:
    front_end = FrontEnd(Delivery((5, 6), 1), Delivery((8, 9), 1), None)
    answer = await client(front_end).completions.create(model="m", prompt="1", stop="6 8")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("5 ", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    await front_end.left.wait()


# ---- streams ---------------------------------------------------------------------------------------------------------


async def test_a_streamed_completion() -> None:
    stream = await client(usual()).completions.create(
        model="m",
        prompt="1",
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "5 6 8"
    ids = [(chunk.choices[0].model_extra or {}).get("token_ids", []) for chunk in chunks if chunk.choices]
    assert list(chain.from_iterable(ids)) == [5, 6, 8, 7]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices].count("stop") == 1
    assert (chunks[0].model_extra or {})["prompt_token_ids"] == [1]
    assert (chunks[-2].model_extra or {})["sdcp"]["passes"] == 2
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_streamed_chat_begins_with_the_role_and_has_no_usage_unasked() -> None:
    stream = await client(usual()).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "1"}], stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "5 6 8"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None and chunk.object == "chat.completion.chunk" for chunk in chunks)


async def test_pieces_come_as_they_are_delivered() -> None:
    front_end = FrontEnd(Delivery((5,), 1), None)
    events = _streamed(api(front_end))
    assert "".join([await anext(events), await anext(events)]).count("data: ") == 2
    await events.aclose()


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (errors.BadContract("P + max_new is over the model's context of 9 tokens."), 400, "context_length_exceeded"),
        (errors.InvalidContent("The prompt token 99 is not below V = 12."), 400, None),
        (errors.Overloaded("No verifier"), 503, "overloaded"),
        (errors.InternalFault("x"), 500, "internal_error"),
    ],
)
async def test_a_refusal_has_a_status_of_its_own_streamed_or_not(
    refusal: errors.ProblemError, status: int, code: str | None, stream: bool
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await client(FrontEnd(refusal)).completions.create(model="m", prompt="1", stream=stream)
    assert raised.value.status_code == status
    assert raised.value.code == code
    assert raised.value.response.json()["error"]["message"] == refusal.detail


async def test_a_session_that_fails_is_an_error_of_the_server() -> None:
    front_end = FrontEnd(Delivery((5,), 1), Delivery((), 1, Action.FAIL))
    with pytest.raises(openai.InternalServerError, match="generation failed"):
        await client(front_end).completions.create(model="m", prompt="1")


async def test_a_stream_that_fails_midway_says_so_after_what_is_valid() -> None:
    front_end = FrontEnd(Delivery((5,), 1), Delivery((6,), 1, Action.FAIL))
    stream = await client(front_end).completions.create(model="m", prompt="1", stream=True)
    assert (await anext(stream)).choices[0].text == ""
    assert (await anext(stream)).choices[0].text == "5"
    with pytest.raises(openai.APIError, match="generation failed"):
        await anext(stream)


async def test_a_parameter_that_cannot_be_honoured_is_named() -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client(FrontEnd()).completions.create(model="m", prompt="1", n=2)
    assert (raised.value.param, raised.value.code, raised.value.type) == (
        "n",
        "unsupported_parameter",
        "invalid_request_error",
    )


async def test_what_is_no_json_too_long_or_nowhere() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api(FrontEnd())), base_url="http://api") as http:
        assert (await http.post("/v1/completions", content=b"{")).json()["error"]["message"] == "The body is not JSON."
        assert (await http.post("/v1/completions", content=b" " * (1 << 17))).status_code == 413
        assert (await http.get("/v1/completions")).status_code == 405
        assert (await http.get("/v1/embeddings")).json()["error"]["code"] == "not_found"
        assert (await http.get("/healthz")).json() == {"status": "ok"}


async def test_models() -> None:
    assert [model.id async for model in client(FrontEnd()).models.list()] == ["m"]
    assert (await client(FrontEnd()).models.retrieve("m")).id == "m"
    with pytest.raises(openai.NotFoundError):
        await client(FrontEnd()).models.retrieve("other")


async def test_a_bug_is_told_without_its_inside() -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        await client(FrontEnd(RuntimeError("secret"))).completions.create(model="m", prompt="1")
    assert "secret" not in str(raised.value)


async def test_other_paths_and_methods_are_errors_of_the_api() -> None:
    transport = httpx.ASGITransport(api(FrontEnd()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        refused = await http.put("/v1/completions")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")  # RFC 9110 15.5.6
        for path in ("/v1/completions/", "/v1", "/"):  # no redirect either
            answer = await http.post(path, json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


# ---- clients that go away (D34) --------------------------------------------------------------------------------------


@pytest.mark.decision("D34")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before", [(), (Delivery((5,), 1),)])
async def test_a_client_that_goes_away_ends_its_generation(before: tuple[Delivery, ...], stream: bool) -> None:
    front_end = FrontEnd(*before, None)
    gone = asyncio.Event()
    serving = asyncio.ensure_future(_serve(api(front_end), stream, gone))
    await front_end.waiting.wait()
    gone.set()
    await serving
    assert front_end.left.is_set()


async def _serve(application: Any, stream: bool, gone: asyncio.Event, sent: Any = None) -> None:
    """One request over bare ASGI, whose client goes away when told."""
    body = json.dumps({"model": "m", "prompt": "1", "stream": stream}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if sent is not None and message.get("body"):
            await sent.put(message["body"].decode())

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "scheme": "http",
        "server": ("api", 80),
        "root_path": "",
    }
    await application(scope, receive, send)


async def _streamed(application: Any) -> AsyncGenerator[str]:
    sent: asyncio.Queue[str] = asyncio.Queue()
    gone = asyncio.Event()
    serving = asyncio.ensure_future(_serve(application, True, gone, sent))
    try:
        while True:
            yield await sent.get()
    finally:
        gone.set()
        await serving
