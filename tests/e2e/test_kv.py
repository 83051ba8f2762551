"""Two verifiers of a real model, as `sdcp up` sets them up: one is killed, the other goes on with its KV (6.9, D44)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import openai
import pytest

from sdcp.fleet import Plan
from sdcp.http.client import Client
from sdcp.http.faults import Unreachable
from sdcp.http.tls import TlsFiles, client_context
from tests.e2e.conftest import System

TARGET = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
PROMPT = "Write a short story about a robot."
TOKENS = 200
MORE = 150  # characters of at least three rounds: one of these names the KV that was there before
PUBLISHED, LOADED = r'_total{event="kv_published"} (\S+)', r'_total{event="kv_loaded"} (\S+)'
SESSIONS = r'level="sessions"} (\S+)'

pytestmark = pytest.mark.skipif(not TARGET.exists(), reason="run `sdcp models fetch demo` (make test does)")


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    plan = Plan(
        targets=(TARGET, TARGET),
        drafts=("ngram",),
        directory=tmp_path / "fleet",
        prompt=None,
        max_tokens=0,
        once=False,
        check=False,
        api="127.0.0.1:0",
    )
    made = System(plan, np.zeros((0, 0), np.float32))
    made.prepare()
    try:
        await made.start()
        made.begin_watch()
        yield made
    finally:
        await made.end()


async def figures(system: System, pattern: str) -> dict[str, float]:
    """What each verifier's metrics say about something, summed up; of one that is not there, nothing."""
    client = Client(client_context(TlsFiles.of(system.directory / "certs", "router")))
    found = {}
    for name in ("verifier-1", "verifier-2"):
        try:
            answer = await client.request("GET", f"{system.bases[name]}/metrics", deadline_s=20)
        except Unreachable:
            continue
        found[name] = sum(map(float, re.findall(pattern, answer.body.decode())))
    await client.close()
    return found


async def answered(system: System, kill: bool) -> str:
    """Stream an answer; kill the verifier that serves it when there is enough of it."""
    client = openai.AsyncOpenAI(base_url=f"{system.api_url}/v1", api_key="none", max_retries=0, timeout=120.0)
    stream = await client.chat.completions.create(
        model=TARGET.name,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
    )
    text, published_at = "", 0
    async for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        if kill and not published_at and sum((await figures(system, PUBLISHED)).values()):
            published_at = len(text)
        if kill and published_at and len(text) > published_at + MORE:
            serving = await figures(system, SESSIONS)
            system.kill(max(serving, key=lambda name: serving[name]))
            kill = False
    assert not kill, f"the answer was too short to kill anybody: {text}"
    return text


@pytest.mark.requirement("S6.9-resume", "S6.3-target-kv-published")
@pytest.mark.decision("D44-resume", "D44-loaded")
async def test_an_answer_goes_on_from_the_kv_of_a_verifier_that_was_killed(system: System) -> None:
    async with asyncio.timeout(300):
        moved = await answered(system, kill=True)
        assert sum((await figures(system, LOADED)).values()) == 1
        assert moved == await answered(system, kill=False)
