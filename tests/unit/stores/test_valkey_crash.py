"""A Valkey or Redis server that is killed, stopped, or comes back with a torn file: D43, over a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError
from sdcp.ports import LogMovedError, LogSlice, StoreUnavailableError
from sdcp.stores.valkey import ValkeyCache
from sdcp.wire import cbor
from tests.unit.stores.samples import commit
from tests.unit.stores.valkey_process import ValkeyProcess, needs_server

pytestmark = needs_server
SESSIONS = 1000
ROUNDS_BEFORE_THE_KILL = 5000


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[ValkeyProcess]:
    made = ValkeyProcess(tmp_path / "server", repl_diskless_sync_delay="0")
    await made.start()
    yield made
    await made.kill()


@dataclass(slots=True)
class Session:
    """A verifier's: one record after another, until there is no answer."""

    ref: str
    tags: list[str] = field(default_factory=list)

    async def run(self, cache: ValkeyCache, answered: asyncio.Queue[str]) -> None:
        while True:
            try:
                tag = await cache.append(self.ref, self.record(len(self.tags)), self.tags[-1] if self.tags else None)
            except StoreUnavailableError:
                return
            self.tags.append(tag)
            answered.put_nowait(tag)

    def record(self, round_: int) -> bytes:
        return commit(1, round_, tokens=round_ % 7)


@pytest.mark.decision("D43-durable")
async def test_kill_9_in_the_middle_of_a_thousand_concurrent_appends(process):
    """Every acknowledged append is there after a restart, none is torn, and tags go on rising."""
    cache = await ValkeyCache.open(process.uri, deadline_s=10.0)
    sessions = [Session(cache.ref_of("logs", f"c{n}")) for n in range(SESSIONS)]
    answered: asyncio.Queue[str] = asyncio.Queue()
    running = [asyncio.create_task(session.run(cache, answered)) for session in sessions]
    for _ in range(ROUNDS_BEFORE_THE_KILL):
        await answered.get()
    assert sum(not task.done() for task in running) == SESSIONS
    await process.kill()
    await asyncio.gather(*running)
    await process.start()
    highest = max(int(session.tags[-1]) for session in sessions if session.tags)
    unanswered = 0
    for session in sessions:
        found = await cache.read_log(session.ref)
        records = [value for _, value in cbor.decode_sequence(found.data)]
        done = len(session.tags)
        assert len(records) in (done, done + 1), "an acknowledged append is lost, or one was done twice"
        assert found.data == b"".join(session.record(round_) for round_ in range(len(records)))
        if len(records) == done:
            assert found.etag == (session.tags[-1] if session.tags else None)
        unanswered += len(records) - done
        next_tag = await cache.append(session.ref, commit(1, 10_000), found.etag)
        assert int(next_tag) > highest
    assert unanswered < SESSIONS
    await cache.close()


@pytest.mark.decision("D43-torn")
@pytest.mark.parametrize("cut", [1, 40, 200])
async def test_a_torn_file_costs_whole_appends_that_nobody_was_answered(process, cut):
    """A power cut in the middle of a write: the server drops what is torn, record and version together."""
    cache = await ValkeyCache.open(process.uri)
    ref = cache.ref_of("logs", "s")
    first = await cache.append(ref, commit(1, 1), None)
    second = await cache.append(ref, commit(1, 2), first)
    await process.kill()
    file = max((process.folder / "appendonlydir").glob("*.incr.aof"))
    os.truncate(file, file.stat().st_size - cut)
    await process.start()
    assert await cache.read_log(ref) == LogSlice(0, commit(1, 1), first)
    third = await cache.append(ref, commit(1, 2), first)
    assert int(third) > int(second), "no version comes twice, not even a lost one"
    await cache.close()


@pytest.mark.decision("D43-full")
async def test_a_server_whose_disk_is_full_ends_and_loses_nothing(process):
    """Its file may grow no further (a limit on its size stands for a full disk)."""
    cache = await ValkeyCache.open(process.uri, deadline_s=1.0)
    session = Session(cache.ref_of("logs", "s"))
    process.limit_files(32 << 10)
    await session.run(cache, asyncio.Queue())
    done = len(session.tags)
    assert done > 20
    await process.ended()
    await process.start()
    found = await cache.read_log(session.ref)
    assert found.data == b"".join(session.record(round_) for round_ in range(done))
    assert found.etag == session.tags[-1]
    await cache.append(session.ref, session.record(done), found.etag)
    await cache.close()


@pytest.mark.decision("D43-replicas")
async def test_an_append_counts_when_the_replicas_have_it_on_their_disks(process, tmp_path):
    replica = ValkeyProcess(tmp_path / "replica", replicaof=f"127.0.0.1 {process.port}")
    await replica.start()
    try:
        while (await process.info("replication")).get("slave0", {}).get("state") != "online":
            await asyncio.sleep(0.02)  # another process: there is only asking
        uri = f"{process.uri}/0?replicas=1"
        if (await process.info("server"))["redis_version"] < "7.2":
            with pytest.raises(ConfigurationError, match="needs WAITAOF"):
                await ValkeyCache.open(uri)
            pytest.skip("needs a server that has WAITAOF: Valkey, or Redis from 7.2")
        cache = await ValkeyCache.open(uri, deadline_s=8.0)
        ref = cache.ref_of("logs", "s")
        tag = await cache.append(ref, commit(1, 1), None)
        assert await replica.command("GET", "{sdcp}:l:s") == commit(1, 1)
        with pytest.raises(LogMovedError):
            await cache.append(ref, commit(1, 2), None)
        replica.signal(signal.SIGSTOP)
        with pytest.raises(StoreUnavailableError, match="fewer than 1 replicas"):
            await cache.append(ref, commit(1, 2), tag)
        with pytest.raises(StoreUnavailableError, match="fewer than 1 replicas"):
            await cache.read_log(ref)
        replica.signal(signal.SIGCONT)
        found = await cache.read_log(ref)
        assert found.data == commit(1, 1) + commit(1, 2), "done all the same: its writer finds it"
        await cache.append(ref, commit(1, 3), found.etag)
        await cache.close()
    finally:
        await replica.kill()


async def test_objects_and_leases_come_back(process):
    cache = await ValkeyCache.open(process.uri)
    ref = await cache.create(b"x" * 100_000)
    await cache.lease("l", [ref], 600_000)
    await process.kill()
    await process.start()
    assert await cache.fetch(ref, at_most=100_000) == b"x" * 100_000
    await cache.delete(ref)
    (lease,) = await cache.listing("leases")
    assert lease.objects == (ref.rpartition("/")[2],)
    assert [entry.leased for entry in await cache.listing("objects")] == [True]
    await cache.close()


@pytest.mark.decision("D43-once")
@pytest.mark.parametrize("gone", ["stopped", "frozen"])
async def test_without_a_server_every_call_ends(process, gone):
    """Stopped: nobody listens. Frozen: connections are taken, and nothing is answered."""
    cache = await ValkeyCache.open(process.uri, deadline_s=0.5)
    ref, log = await cache.create(b"x"), cache.ref_of("logs", "s")
    tag = await cache.append(log, commit(1, 1), None)
    if gone == "stopped":
        await process.stop()
    else:
        process.signal(signal.SIGSTOP)
    async with asyncio.timeout(60):  # far more than the deadline: a call that hangs is a fault, not a slow machine
        outcomes = await asyncio.gather(
            cache.append(log, commit(1, 2), tag),
            cache.append(cache.ref_of("logs", "t"), commit(1, 1), None),
            cache.read_log(log),
            cache.fetch(ref, at_most=1),
            cache.create(b"y"),
            cache.delete(ref),
            cache.lease("l", [ref], 1000),
            cache.release("l"),
            cache.listing("objects"),
            cache.sweep(),
            return_exceptions=True,
        )
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailableError}
    assert all("127.0.0.1" in str(outcome) for outcome in outcomes)
    if gone == "stopped":
        await process.start()
    else:
        process.signal(signal.SIGCONT)
    found = await _until_there(cache, log)
    assert found.data in (commit(1, 1), commit(1, 1) + commit(1, 2))
    await cache.append(log, commit(1, 3), found.etag)
    await cache.close()


async def _until_there(cache: ValkeyCache, log: str) -> LogSlice:
    while True:
        try:
            return await cache.read_log(log)
        except StoreUnavailableError:
            continue
