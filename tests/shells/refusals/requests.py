"""What it takes to bring a drafter or a router into the states in which they refuse (D33)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sdcp.errors import SessionClosed
from sdcp.http.exchange import Request, Response
from sdcp.http.problems import problem_response
from sdcp.http.server import Server
from sdcp.http.tls import server_context
from tests.shells.refusals.town import TOKENIZER, Town, changed

FOR_GOOD_MS = 3_600_000
PATIENCE_S = 20.0


@dataclass(frozen=True)
class SilentVerifier:
    """`base` is its base URI; `asked` is set once a proposal has come."""

    base: str
    asked: asyncio.Event


@asynccontextmanager
async def silent_verifier(town: Town) -> AsyncIterator[SilentVerifier]:
    """A verifier that keeps a drafter waiting, and in the end tells it that all is over."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def handle(_: Request) -> Response:
        asked.set()
        await over.wait()
        return problem_response(SessionClosed("The session has finished, as far as this test goes."))

    async with Server(handle, server_context(town.files["verifier"])) as server:
        yield SilentVerifier(f"https://127.0.0.1:{server.port}", asked)
        over.set()
        await server.drain(PATIENCE_S)


async def report_verifier(town: Town, at: str = "router-process") -> None:
    """Report the verifier of the town to a router, in its name and for good."""
    base = town.bases["verifier"]
    status = {"instance": "the-verifier", "role": 2, "load": 0, "queue": 0, "ttl_ms": FOR_GOOD_MS}
    status |= {"base": base, "model": town.target, "tokenizer": TOKENIZER}
    answer = await town.ask("verifier", "PUT", f"{town.bases[at]}/instances/the-verifier/status", status)
    assert answer.status == 204, answer


def request_for(town: Town, **changes: Any) -> dict[str, Any]:
    """A request that the verifier of the town can serve."""
    request = {"request": secrets.token_bytes(16), "prompt": [3, 4], "max_new": 4, "stop": [], "rule": 1}
    return changed({**request, "target": town.target}, changes)
