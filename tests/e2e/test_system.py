"""The whole system from outside: six processes over mutual TLS, the OpenAI API in front, processes killed for real."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from sdcp.engines.bigram import write_bigram
from sdcp.http.client import Client
from sdcp.http.tls import TlsFiles, client_context
from sdcp.machines.reader import LogReader
from sdcp.messages.record import CommitRecord
from sdcp.stores.durable import DurableStore
from tests.e2e import sockets
from tests.e2e.conftest import System, cycle, plain_greedy

PROMPT = [3, 1, 4]
LONG = 1500


def client_of(system: System) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{system.api_url}/v1", api_key="none", max_retries=0, timeout=60.0)


async def streamed(client: openai.AsyncOpenAI, count: int) -> AsyncIterator[str]:
    stream = await client.completions.create(
        model="target", prompt=" ".join(map(str, PROMPT)), max_tokens=count, temperature=0, stream=True
    )
    async for chunk in stream:
        for choice in chunk.choices:
            yield choice.text


def tokens_of(text: str) -> list[int]:
    return [int(word) for word in text.split()]


@pytest.mark.requirement("S6.4-greedy-output", "S1.3-sole-commit-authority")
async def test_answers_are_the_targets_own_streamed_or_not_alone_or_together(system: System) -> None:
    client = client_of(system)
    expected = plain_greedy(system.logits, PROMPT, 40)
    whole = await client.completions.create(model="target", prompt="3 1 4", max_tokens=40, temperature=0)
    assert tokens_of(whole.choices[0].text) == expected
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 40)

    async def one() -> list[int]:
        return tokens_of("".join([piece async for piece in streamed(client, 40)]))

    assert await asyncio.gather(*(one() for _ in range(8))) == [expected] * 8
    assert [model.id async for model in client.models.list()] == ["target"]


@pytest.mark.requirement("S6.3-append-before-release", "S6.9-resume", "S6.9-fence-first", "S6.7-stable-indices")
@pytest.mark.parametrize("victim", ["verifier-1", "cache", "drafter-1", "drafter-2"])
async def test_nothing_is_lost_when_a_process_is_killed_in_mid_stream(system: System, victim: str) -> None:
    text, killed = "", False
    async for piece in streamed(client_of(system), LONG):
        text += piece
        if not killed and len(text.split()) > 50:
            killed = True
            system.kill(victim)
    assert tokens_of(text) == plain_greedy(system.logits, PROMPT, LONG)


@pytest.mark.requirement("S6.9-fence-first", "S6.9-older-output-discarded")
@pytest.mark.parametrize("verifiers", [2])
async def test_a_verifier_that_sleeps_through_its_fencing_holds_nobody_up(system: System) -> None:
    """It is paused for longer than its status lasts, and for less than its readers' patience."""
    expected = plain_greedy(system.logits, PROMPT, LONG)
    texts = ["", ""]

    async def one(number: int) -> None:
        async for piece in streamed(client_of(system), LONG):
            texts[number] += piece

    async with asyncio.timeout(100), asyncio.TaskGroup() as streams:  # one of them at each verifier, or both at one
        for number in range(2):
            streams.create_task(one(number))
        while not all(len(text.split()) > 50 for text in texts):
            await asyncio.sleep(0.01)
        for name in ("verifier-1", "verifier-2"):
            system.pause(name)
            await asyncio.sleep(5)
            system.resume(name)
            if name == "verifier-1":
                await asyncio.sleep(4)
    assert [tokens_of(text) for text in texts] == [expected] * 2


@pytest.mark.decision("D33", "D45-restart", "D45-fence-or-remind")
@pytest.mark.parametrize("victims", [("router",), ("router", "verifier-1"), ("router", "drafter-1", "drafter-2")])
async def test_a_router_that_lost_its_memory_takes_its_sessions_up_again(
    system: System, victims: tuple[str, ...]
) -> None:
    """Killed alone, or with those who only the router can replace."""
    expected = plain_greedy(system.logits, PROMPT, LONG)
    text, killed = "", False
    async with asyncio.timeout(100):
        async for piece in streamed(client_of(system), LONG):
            text += piece
            if not killed and len(text.split()) > 20:
                killed = True
                for victim in victims:
                    system.kill(victim)
    assert killed
    assert tokens_of(text) == expected
    assert await taken_up(system) == 1


@pytest.mark.requirement("S6.3-append-before-release", "S1.3-sole-commit-authority")
async def test_a_gateway_that_is_killed_takes_its_streams_with_it_and_nothing_else(system: System) -> None:
    """Nobody can withdraw the request now: its session comes to its own end, all of it in the log."""
    expected = plain_greedy(system.logits, PROMPT, LONG)
    pieces: list[str] = []

    async def read() -> None:
        async for piece in streamed(client_of(system), LONG):
            pieces.append(piece)
            if len(pieces) == 20:
                system.kill("gateway")

    with pytest.raises((openai.APIError, httpx.TransportError)):
        await read()
    seen = tokens_of("".join(pieces))
    assert 20 <= len(seen) < LONG
    assert seen == expected[: len(seen)]
    async with asyncio.timeout(60):
        again = await served_again(system)
        assert tokens_of("".join([piece async for piece in streamed(again, 40)])) == expected[:40]
        while await sessions(system):
            await asyncio.sleep(0.05)
    await system.end()
    assert sorted(await outputs(system.directory / "store"), key=len) == [expected[:40], expected]


async def served_again(system: System) -> openai.AsyncOpenAI:
    """A client of the gateway that was started anew."""
    while True:
        client = client_of(system)
        try:
            await client.models.list()
        except openai.APIConnectionError:
            await asyncio.sleep(0.05)
        else:
            return client


async def outputs(folder: Path) -> list[list[int]]:
    """The committed output of each commit log in a store whose process has ended."""
    store = DurableStore(folder)
    try:
        return [committed((await store.read_log(entry.name, 0))[0]) for entry in store.listing("logs", "c")]
    finally:
        await store.close()


def committed(log: bytes) -> list[int]:
    records = [entry.record for entry in LogReader().entries(log) if not entry.void]
    return [token for record in records if isinstance(record, CommitRecord) for token in record.tokens]


async def test_a_client_that_goes_away_stops_its_session(system: System) -> None:
    stream = streamed(client_of(system), 10**6)
    await anext(stream)
    assert await sessions(system) == 1
    await stream.aclose()
    while await sessions(system):
        await asyncio.sleep(0.05)


async def sessions(system: System) -> int:
    """Live sessions at the verifier, by its own metrics."""
    return await metric(system, "verifier-1", r'sdcp_level\{level="sessions"\}')


async def taken_up(system: System) -> int:
    """Sessions that the router found in the cache."""
    return await metric(system, "router", r'sdcp_events_total\{event="sessions_taken_up"\}')


async def metric(system: System, member: str, name: str) -> int:
    client = Client(client_context(TlsFiles.of(system.directory / "certs", "gateway")))
    try:
        answer = await client.request("GET", f"{system.bases[member]}/metrics")
        found = re.search(rf"{name} (\S+)", bytes(answer.body).decode())
        assert found is not None
        return int(float(found[1]))
    finally:
        await client.close()


async def test_what_cannot_be_honoured_is_refused_by_name(system: System) -> None:
    client = client_of(system)
    for parameter, value in (("n", 2), ("best_of", 3), ("logit_bias", {"5": 1}), ("suffix", "x"), ("echo", True)):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="target", prompt="1", max_tokens=1, extra_body={parameter: value})
        assert caught.value.param == parameter
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="other", prompt="1", max_tokens=1)


@pytest.mark.skipif(not sockets.PROC.joinpath("self/net/tcp").exists(), reason="the kernel shows no sockets here")
async def test_no_port_but_loopback_is_open(system: System) -> None:
    """Every process listens at its base URI, the gateway at the API's address too, and at nothing else."""
    found = {name: sockets.listening(pid) for name, pid in system.pids.items()}
    expected = {name: {base.removeprefix("https://")} for name, base in system.bases.items()}
    expected["gateway"].add(system.api_url.removeprefix("http://"))
    assert found == expected
    assert len(found) == 6
    assert all(place.startswith("127.0.0.1:") for places in found.values() for place in places)


@pytest.mark.skipif(not sockets.PROC.joinpath("self/net/tcp").exists(), reason="the kernel shows no sockets here")
def test_a_socket_that_listens_elsewhere_would_be_seen() -> None:
    before = sockets.listening(os.getpid())
    with socket.create_server(("127.0.0.2", 0)) as other:
        assert sockets.listening(os.getpid()) - before == {f"127.0.0.2:{other.getsockname()[1]}"}
    assert sockets.place("00000000:0050") == "0.0.0.0:80"
    assert sockets.place("0" * 32 + ":0050") == ":::80"


async def test_nothing_outlives_the_one_who_started_it(tmp_path: Path) -> None:
    """`sdcp up` killed with SIGKILL cannot stop anybody: its roles see their standard input end."""
    write_bigram(tmp_path / "t.safetensors", cycle(1))
    command = [sys.executable, "-m", "sdcp.cli", "up", "--target", "t.safetensors", "--draft", "t.safetensors"]
    up = await asyncio.create_subprocess_exec(
        *command, "--api", "127.0.0.1:0", cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    assert up.stderr is not None
    bases = []
    async for line in up.stderr:
        bases += re.findall(rb"https://127\.0\.0\.1:(\d+)", line)
        if b"Ctrl-C" in line:
            break
    up.kill()
    await up.wait()
    assert len(bases) == 5
    for port in bases:
        while await answers(int(port)):
            await asyncio.sleep(0.05)


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
