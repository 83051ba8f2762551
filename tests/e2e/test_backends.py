"""The whole system with commit logs in a store that speaks S3: it knows no fences, so verifiers read back (D42)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from sdcp.http.authority import issue
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


@pytest.mark.decision("D42-checked")
async def test_a_role_whose_store_cannot_be_used_says_so_in_one_line(tmp_path: Path, s3: S3Process) -> None:
    issue(tmp_path, "router", "router", ["https://127.0.0.1:1"])
    settings = tmp_path / "router.toml"
    settings.write_text(
        '[tls]\ncertificate = "router.pem"\nkey = "router.key"\nca = "ca.pem"\n'
        f'[cache]\nprefixes = ["s3://no-such-bucket/x?endpoint={s3.endpoint}"]\n'
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sdcp.cli", "router", "--config", str(settings)), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode().startswith("sdcp: cache s3://no-such-bucket/x cannot be used: ")
    assert said.count(b"\n") == 1
