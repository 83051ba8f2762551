"""The whole system with commit logs in a store that speaks S3: it knows no fences, so verifiers read back (D42)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from sdcp.machines.reader import LogReader
from sdcp.messages.record import CommitRecord
from sdcp.ports import Cache
from sdcp.stores.opening import open_cache
from tests.e2e.conftest import System, plain_greedy
from tests.e2e.test_system import LONG, client_of, streamed, tokens_of
from tests.unit.stores.s3_process import S3Process


@pytest.fixture
def s3_uri(s3: S3Process) -> str:
    return s3.uri(s3.bucket())


@pytest.fixture(params=["rows by https, logs in S3", "all in S3"])
def caches(request: pytest.FixtureRequest, s3_uri: str) -> str:
    """`[cache]` of router, verifiers and drafters."""
    return f'prefixes = ["{s3_uri}"]' if request.param == "all in S3" else f'prefixes = ["@cache"]\nlogs = "{s3_uri}"'


@pytest.fixture
async def bucket(s3_uri: str) -> AsyncIterator[Cache]:
    opened = await open_cache([s3_uri])
    yield opened
    await opened.close()


async def outputs(cache: Cache) -> list[list[int]]:
    """The tokens of the valid records of each log."""
    found = []
    for entry in await cache.listing("logs"):
        records = list(LogReader().entries((await cache.read_log(cache.ref_of("logs", entry.name))).data))
        valid = [each.record for each in records if isinstance(each.record, CommitRecord) and not each.void]
        if valid:
            found.append([token for record in valid for token in record.tokens])
    return found


@pytest.mark.requirement("S6.8-read-back", "S6.9-fence-first", "S6.9-resume", "S6.7-stable-indices")
@pytest.mark.decision("D42-read-back", "D42-schemes")
@pytest.mark.parametrize("verifiers", [2])
async def test_a_verifier_is_killed_in_mid_stream_and_nothing_is_lost(system: System, bucket: Cache) -> None:
    prompt, text, killed = [3, 1, 4], "", False
    async for piece in streamed(client_of(system), LONG // 5):
        text += piece
        if not killed and len(text.split()) > 50:
            killed = True
            system.kill("verifier-1")
            system.kill("verifier-2")
    expected = plain_greedy(system.logits, prompt, LONG // 5)
    assert tokens_of(text) == expected
    assert expected in await outputs(bucket)


@pytest.mark.requirement("S6.4-q-rows-carried")
@pytest.mark.decision("D42-schemes")
async def test_rounds_with_rows(system: System, bucket: Cache) -> None:
    """Rule 2: drafters write rows under a lease, verifiers read them; in the end no lease is left."""
    client: openai.AsyncOpenAI = client_of(system)
    whole = await client.completions.create(model="target", prompt="3 1 4", max_tokens=40, temperature=1.0, seed=7)
    assert len(tokens_of(whole.choices[0].text)) == 40
    assert tokens_of(whole.choices[0].text) in await outputs(bucket)
    await system.end()
    assert await bucket.listing("leases") == []
