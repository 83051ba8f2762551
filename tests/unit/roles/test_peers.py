"""Asking a peer: what is an answer, what a refusal, what neither (5.1, D1, D2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sdcp.errors import Forbidden, InternalFault, InvalidContent, NotAssigned, Overloaded, StaleBase
from sdcp.http.client import Answer
from sdcp.http.faults import Unreachable
from sdcp.http.identity import Peer
from sdcp.http.problems import problem_response
from sdcp.machines.effects import FetchTokens
from sdcp.machines.inputs import TokensFetched, TokensUnavailable
from sdcp.messages.session import SessionState
from sdcp.messages.status import Status
from sdcp.roles.objects import fetch_tokens
from sdcp.roles.peers import Peers, RefusedError, UnansweredError
from sdcp.roles.reporting import StatusReporter
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from sdcp.wire import cbor

NOBODY = Peer(frozenset(), frozenset(), frozenset())
STATE = SessionState(session=b"s" * 16, epoch=1, round=4, committed=2, digest=b"d" * 32)


class Client:
    """Answers with what it is given, and remembers what it was asked."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    async def request(self, method: str, url: str, **named: Any) -> Answer:
        self.asked.append((method, url, named))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def problem(error: Any, state: dict[str, Any] | None = None) -> Answer:
    response = problem_response(error, state)
    return Answer(response.status, dict(response.headers), bytes(response.body), NOBODY)  # type: ignore[arg-type]


async def ask(outcome: Any) -> SessionState:
    return await Peers(Client(outcome)).ask("POST", "https://v/sessions", SessionState, role="verifier")  # type: ignore[arg-type]


@pytest.mark.requirement("S5.1-media-type")
async def test_a_message_goes_out_with_its_media_type_and_one_comes_back() -> None:
    client = Client(Answer(200, {}, STATE.encode(), NOBODY))
    peers = Peers(client)  # type: ignore[arg-type]
    assert await peers.ask("POST", "https://v/x", SessionState, STATE, role="verifier", deadline_s=3) == STATE
    ((method, url, named),) = client.asked
    assert (method, url, named["body"], named["deadline_s"]) == ("POST", "https://v/x", STATE.encode(), 3)
    assert named["expect_role"] == "verifier"
    assert ("content-type", "application/sdcp+cbor") in named["headers"]


@pytest.mark.requirement("S5.1-problem-details", "S5.1-unlisted-status")
@pytest.mark.decision("D1-suffix", "D2")
async def test_a_refusal_is_an_error_by_its_type_or_class_with_the_round_of_its_state() -> None:
    with pytest.raises(RefusedError) as refused:
        await ask(problem(StaleBase("behind"), STATE.to_plain()))
    assert (type(refused.value.error), refused.value.last_round) == (StaleBase, 4)
    with pytest.raises(RefusedError) as refused:
        await ask(Answer(502, {"content-type": "text/html"}, b"<html>", NOBODY))
    assert (type(refused.value.error), refused.value.last_round) == (InternalFault, None)


@pytest.mark.decision("D2-not-needed")
@pytest.mark.parametrize("round_", [None, True, -1, "4", 4.0])
async def test_a_state_whose_round_is_no_round_is_no_help(round_: Any) -> None:
    with pytest.raises(RefusedError) as refused:
        await ask(problem(StaleBase("behind"), {"round": round_}))
    assert refused.value.last_round is None


@pytest.mark.parametrize(
    "outcome",
    [
        Unreachable("gone", maybe_processed=True),
        ValueError("not https"),
        Answer(200, {}, b"not cbor", NOBODY),
        Answer(200, {}, cbor.encode({}), NOBODY),
        Answer(302, {"location": "https://elsewhere"}, b"", NOBODY),
    ],
)
async def test_what_is_no_answer(outcome: Any) -> None:
    with pytest.raises(UnansweredError):
        await ask(outcome)


@pytest.mark.decision("D3", "D10")
async def test_a_peer_that_takes_us_for_somebody_else_is_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers(Client(problem(Forbidden("yours has not the role"))))  # type: ignore[arg-type]
    for url in ("https://v/a", "https://v/b", "https://w/a"):
        with pytest.raises(RefusedError):
            await peers.tell("POST", url, role="verifier")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "POST https://v/a: refused with 403: yours has not the role" in caplog.text
    assert "https://w/a" in caplog.text


@pytest.mark.parametrize("error", [NotAssigned("moved on"), StaleBase("behind"), Overloaded("full")])
async def test_what_the_protocol_expects_is_no_complaint(error: Any, caplog: pytest.LogCaptureFixture) -> None:
    """D13: a session that has moved on answers 403 `sdcp-not-assigned`."""
    with pytest.raises(RefusedError):
        await ask(problem(error))
    assert not caplog.records


def status(ttl_ms: int = 30) -> Status:
    return Status(instance="https://d:1/x", role=1, load=3, queue=0, ttl_ms=ttl_ms)


@pytest.mark.requirement("S6.1-status-interval", "S5.1-put-status")
@pytest.mark.decision("D7")
async def test_every_router_gets_every_report_even_when_another_does_not_answer() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    class Routers(Client):
        async def request(self, method: str, url: str, **named: Any) -> Answer:
            if url.startswith("https://dead"):
                raise Unreachable("dead", maybe_processed=False)
            heard.put_nowait(url)
            return Answer(204, {}, b"", NOBODY)

    reporter = StatusReporter(Peers(Routers(None)), ["https://dead", "https://r"], status)  # type: ignore[arg-type]
    reporter.start()
    async with asyncio.timeout(20):
        urls = [await heard.get() for _ in range(3)]
    await reporter.stop()
    assert set(urls) == {"https://r/instances/https%3A%2F%2Fd%3A1%2Fx/status"}


@pytest.mark.decision("D11-size", "D20-array")
@pytest.mark.parametrize(
    ("data", "at_most", "expected"),
    [
        (cbor.encode([1, 2]), 27, (1, 2)),
        (cbor.encode([]), 9, ()),
        (cbor.encode([1, -2]), 27, InvalidContent),
        (cbor.encode({}), 27, InvalidContent),
        (b"\xff", 27, InvalidContent),
        (cbor.encode([1] * 40), 27, InvalidContent),
    ],
)
async def test_objects_are_token_arrays_of_bounded_size(data: bytes, at_most: int, expected: Any) -> None:
    cache = LocalCache(MemoryStore(), owner="router", prefix="https://cache.example/")
    ref = await cache.create(data)
    found = await fetch_tokens(cache, FetchTokens(ref, at_most))
    if isinstance(expected, tuple):
        assert found == TokensFetched(ref, expected)
    else:
        assert isinstance(found, TokensUnavailable)
        assert type(found.error) is expected


@pytest.mark.decision("D11", "D20-validated")
async def test_what_is_not_there_is_503_and_what_is_not_ours_422() -> None:
    cache = LocalCache(MemoryStore(), owner="router", prefix="https://cache.example/")
    gone = await fetch_tokens(cache, FetchTokens("https://cache.example/objects/o1", 9))
    assert isinstance(gone, TokensUnavailable)
    assert isinstance(gone.error, Overloaded)
    foreign = await fetch_tokens(cache, FetchTokens("https://elsewhere.example/objects/o1", 9))
    assert isinstance(foreign, TokensUnavailable)
    assert isinstance(foreign.error, InvalidContent)
