"""The cache in a Valkey or Redis server (D43), beyond the contract of every cache: against a real server."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from sdcp.errors import Conflict, Forbidden
from sdcp.ports import (
    LogDamagedError,
    LogFencedError,
    LogMovedError,
    LogSlice,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.stores import valkey_server
from sdcp.stores.memory import MemoryCache
from sdcp.stores.valkey import ValkeyCache
from tests.unit.stores.samples import commit, fence
from tests.unit.stores.valkey_process import ValkeyProcess, free_port, needs_server

pytestmark = needs_server
U64_MAX = 2**64 - 1


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[ValkeyProcess]:
    made = ValkeyProcess(tmp_path / "server")
    await made.start()
    yield made
    await made.kill()


@asynccontextmanager
async def opened(uri: str, *, owner: str = "verifier", deadline_s: float = 5.0) -> AsyncIterator[ValkeyCache]:
    cache = await ValkeyCache.open(uri, owner=owner, deadline_s=deadline_s)
    try:
        yield cache
    finally:
        await cache.close()


@pytest.fixture
async def cache(process: ValkeyProcess) -> AsyncIterator[ValkeyCache]:
    async with opened(process.uri) as made:
        yield made


# -- appends -----------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D43-append")
async def test_the_script_and_the_law_of_records_say_the_same(cache):
    """Random appends, also of several records, at epochs beyond what a double holds, to both kinds of store."""
    luck = random.Random(7)
    memory = MemoryCache()
    epochs = (0, 1, 2, 9, 10, 2**53, 2**53 + 1, U64_MAX - 1, U64_MAX)
    outcomes = set()
    for log in range(12):
        refs = memory.ref_of("logs", f"c{log}"), cache.ref_of("logs", f"c{log}")
        tags: tuple[str | None, str | None] = (None, None)
        for _ in range(25):
            low = luck.randrange(len(epochs))
            data = b"".join(
                (commit if luck.random() < 0.6 else fence)(luck.choice(epochs[low : low + 2]))
                for _ in range(luck.choice((1, 1, 1, 2, 3)))
            )
            given = tags if luck.random() < 0.9 else (None, None)
            answers = [await _outcome(*each) for each in zip((memory, cache), refs, (data, data), given, strict=True)]
            taken = [isinstance(answer, str) for answer in answers]
            assert taken[0] == taken[1], (answers, data)
            if all(taken):
                tags = (answers[0], answers[1])
            else:
                assert type(answers[0]) is type(answers[1])
                assert isinstance(answers[0], LogMovedError) or str(answers[0]) == str(answers[1])
            outcomes.add(type(answers[0]))
            assert (await memory.read_log(refs[0])).data == (await cache.read_log(refs[1])).data
    assert outcomes == {str, LogMovedError, LogFencedError}


async def _outcome(cache, ref, data, tag):
    try:
        return await cache.append(ref, data, tag)
    except (LogMovedError, LogFencedError) as refusal:
        return refusal


@pytest.mark.decision("D43-versions")
async def test_tags_rise_over_all_logs_and_over_what_the_server_forgot(process, cache):
    first = await cache.append(cache.ref_of("logs", "a"), commit(1), None)
    second = await cache.append(cache.ref_of("logs", "b"), commit(1), None)
    await process.command("FLUSHALL")
    third = await cache.append(cache.ref_of("logs", "a"), commit(1), None)
    assert int(first) < int(second) < int(third)
    tomorrow = int(third) + 86_400_000_000
    await process.command("SET", "{sdcp}:version", str(tomorrow))  # its clock has gone back since
    assert int(await cache.append(cache.ref_of("logs", "c"), commit(1), None)) == tomorrow + 1


@pytest.mark.decision("D43-once")
async def test_an_append_without_answer_was_sent_once(process, cache):
    """A proxy hands the append on and hangs up: done once, and the writer is told that nobody knows."""
    async with _Proxy(process.port) as proxy:
        async with opened(f"valkey://127.0.0.1:{proxy.port}") as through:
            ref = through.ref_of("logs", "s")
            tag = await through.append(ref, commit(1, 1), None)
            proxy.hang_up_after = b"append"
            with pytest.raises(StoreUnavailableError):
                await through.append(ref, commit(1, 2), tag)
            assert proxy.hung_up == 1
            proxy.hang_up_after = None
            # 6.3 step 8: its writer reads the log, and finds its record there.
            found = await through.read_log(ref)
        assert found.data == commit(1, 1) + commit(1, 2)
        assert found.etag != tag


async def test_reads_and_leases_are_repeated(process):
    async with _Proxy(process.port) as proxy, opened(f"valkey://127.0.0.1:{proxy.port}") as through:
        for operation in (b"put", b"use", b"lease", b"release", b"read", b"delete"):
            proxy.hang_up_next = operation
            ref = await through.create(b"octets", name="o-a-name")
            assert await through.fetch(ref, at_most=6) == b"octets"
            await through.lease("l", [ref], 60_000)
            await through.release("l")
            assert await through.read_log(through.ref_of("logs", "s")) == LogSlice(0, b"", None)
            await through.delete(ref)
        assert proxy.hung_up == 6


@pytest.mark.decision("D43-together")
async def test_appends_that_wait_travel_together_and_each_gets_its_own_answer(process, cache):
    refs = [cache.ref_of("logs", f"c{n}") for n in range(300)]
    tags = await asyncio.gather(*(cache.append(ref, commit(1, n), None) for n, ref in enumerate(refs)))
    assert len(set(tags)) == 300
    for n, (ref, tag) in enumerate(zip(refs, tags, strict=True)):
        assert await cache.read_log(ref) == LogSlice(0, commit(1, n), tag)
    assert (await process.info("commandstats"))["cmdstat_append"]["calls"] == 300


async def test_one_refused_append_does_not_spoil_those_beside_it(cache):
    ref = cache.ref_of("logs", "fenced")
    tag = await cache.append(ref, fence(5), None)
    outcomes = await asyncio.gather(
        cache.append(cache.ref_of("logs", "a"), commit(1), None),
        cache.append(ref, commit(4), tag),
        cache.append(ref, commit(5), "17"),
        cache.append(cache.ref_of("logs", "b"), commit(1), None),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [str, LogFencedError, LogMovedError, str]


async def test_who_gives_up_takes_nobodys_answer(cache):
    """Cancelled calls leave no answer behind on a connection for the next one to take."""
    refs = [await cache.create(bytes([n]) * 1000) for n in range(20)]
    log = cache.ref_of("logs", "s")
    for turn in range(30):
        reads = [asyncio.create_task(cache.fetch(ref, at_most=1000)) for ref in refs]
        append = asyncio.create_task(cache.append(cache.ref_of("logs", f"turn{turn}"), commit(1), None))
        for _ in range(turn % 10):
            await asyncio.sleep(0)
        for task in (*reads[::2], append):
            task.cancel()
        done = await asyncio.gather(*reads, append, return_exceptions=True)
        for n, data in enumerate(done[:20]):
            assert isinstance(data, asyncio.CancelledError) or data == bytes([n]) * 1000
    tag = await cache.append(log, commit(1), None)
    assert await cache.read_log(log) == LogSlice(0, commit(1), tag)


async def test_an_append_that_is_given_up_before_it_travels_is_not_done(process, cache):
    process.signal(signal.SIGSTOP)
    travelling = asyncio.create_task(cache.append(cache.ref_of("logs", "a"), commit(1), None))
    await _turns()
    waiting = asyncio.create_task(cache.append(cache.ref_of("logs", "b"), commit(1), None))
    await _turns()
    waiting.cancel()
    process.signal(signal.SIGCONT)
    await travelling
    await cache.append(cache.ref_of("logs", "c"), commit(1), None)
    assert [entry.name for entry in await cache.listing("logs")] == ["a", "c"]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_connection_whose_check_failed_is_not_used(process, monkeypatch):
    """Whatever went wrong: the next call does not get it unchecked."""
    async with opened(process.uri) as cache:
        await process.command("CLIENT", "KILL", "TYPE", "normal")
        monkeypatch.setattr(valkey_server, "complaints", lambda *_: 1 // 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await cache.listing("logs")


async def test_a_server_that_lost_the_script_is_given_it_again(process, cache):
    ref = await cache.create(b"x")
    for call in (
        lambda: cache.fetch(ref, at_most=1),
        lambda: cache.append(cache.ref_of("logs", "s"), commit(1), None),
        lambda: cache.create(b"y"),
    ):
        await process.command("SCRIPT", "FLUSH")
        await call()


@pytest.mark.decision("D43-damage")
async def test_a_log_that_was_shortened_is_refused(process, cache):
    ref = cache.ref_of("logs", "s")
    tag = await cache.append(ref, commit(1, 1) + commit(1, 2), None)
    await process.command("SET", "{sdcp}:l:s", commit(1, 1))
    with pytest.raises(LogDamagedError, match="damaged") as damage:
        await cache.read_log(ref, 3)
    assert (damage.value.intact, damage.value.data) == (len(commit(1, 1)), commit(1, 1)[3:])
    with pytest.raises(LogDamagedError, match="damaged"):
        await cache.append(ref, commit(1, 3), tag)
    await process.command("DEL", "{sdcp}:m:s")
    for call in (cache.append(ref, commit(1, 3), None), cache.read_log(ref)):
        with pytest.raises(LogDamagedError) as damage:
            await call
        assert (damage.value.intact, damage.value.data) == (0, b"")


# -- objects and leases ------------------------------------------------------------------------------------------------


async def test_a_name_of_the_callers(cache):
    ref = await cache.create(b"manifest", name="m0123")
    assert ref == cache.ref_of("objects", "m0123")
    assert await cache.create(b"manifest", name="m0123") == ref
    with pytest.raises(Conflict):
        await cache.create(b"another", name="m0123")
    assert await cache.fetch(ref, at_most=8) == b"manifest"


@pytest.mark.decision("D43-capacity")
async def test_the_least_recently_used_unleased_objects_go(process):
    async with opened(f"{process.uri}/0?capacity=1000") as cache:
        used, old, leased = [await cache.create(bytes(300)) for _ in range(3)]
        await cache.lease("l", [leased], 60_000)
        seconds, _ = await process.command("TIME")
        for minutes, ref in ((3, used), (2, old)):
            at = str((int(seconds) - 60 * minutes) * 1_000_000)
            await process.command("ZADD", "{sdcp}:unleased", at, ref.rpartition("/")[2])
        await cache.fetch(used, at_most=300)
        last = await cache.create(bytes(200))
        with pytest.raises(ObjectMissingError):
            await cache.fetch(old, at_most=300)
        for ref in (leased, used):
            assert await cache.fetch(ref, at_most=300) == bytes(300)
        assert await cache.fetch(last, at_most=200) == bytes(200)
        with pytest.raises(StoreFullError):
            await cache.create(bytes(701))
        assert await cache.fetch(used, at_most=300) == bytes(300), "what would not make room stays"
        await cache.create(bytes(700))
        assert [entry.name for entry in await cache.listing("objects") if entry.leased] == [leased.rpartition("/")[2]]


@pytest.mark.decision("D43-memory")
async def test_when_the_servers_memory_is_full_what_is_leased_stays(process):
    size = 64 << 10
    async with opened(process.uri) as cache:
        used = int((await process.info("memory"))["used_memory"])
        await process.command("CONFIG", "SET", "maxmemory", str(used + (6 << 20)))
        leased = await cache.create(bytes(size))
        await cache.lease("l", [leased], 60_000)
        log = cache.ref_of("logs", "s")
        tag = await cache.append(log, commit(1, 1), None)
        first = await cache.create(bytes(size))
        for _ in range(200):
            await cache.create(bytes(size))
        with pytest.raises(ObjectMissingError):
            await cache.fetch(first, at_most=size)
        left = [cache.ref_of("objects", entry.name) for entry in await cache.listing("objects")]
        await cache.lease("all", left, 60_000)
        with pytest.raises(StoreFullError):
            await asyncio.gather(*(cache.create(bytes(size)) for _ in range(200)))
        used = int((await process.info("memory"))["used_memory"])
        await process.command("CONFIG", "SET", "maxmemory", str(used - (1 << 20)))
        with pytest.raises(StoreFullError):
            await cache.append(log, commit(1, 2), tag)
        assert await cache.read_log(log) == LogSlice(0, commit(1, 1), tag)
        assert await cache.fetch(leased, at_most=size) == bytes(size), "a read needs no memory"
        await cache.release("all")
        await cache.append(log, commit(1, 2), tag)


@pytest.mark.decision("D43-memory")
async def test_a_read_is_answered_though_it_cannot_be_noted_as_a_use(process, cache):
    ref = await cache.create(b"x", name="m1")
    await process.command("ZADD", "{sdcp}:unleased", "1", "m1")
    await process.command("CONFIG", "SET", "maxmemory", "1")
    assert await cache.fetch(ref, at_most=1) == b"x"


@pytest.mark.decision("D43-leases")
async def test_leases_end_by_the_servers_clock(cache):
    ref = await cache.create(b"x")
    await cache.lease("short", [ref], 1)
    await cache.lease("long", [ref], 60_000)
    while len(await cache.listing("leases")) > 1:
        await cache.sweep()
    await cache.delete(ref)
    assert await cache.fetch(ref, at_most=1) == b"x"
    await cache.release("long")
    await cache.delete(ref)
    assert await cache.listing("objects") == []


async def test_more_leases_of_one_object_than_one_call_ends(process, cache):
    ref = await cache.create(b"x", name="m1")
    await asyncio.gather(*(cache.lease(f"l{n}", [ref], 60_000) for n in range(1100)))
    for key in ("{sdcp}:ends", "{sdcp}:h:m1"):
        over = "for _, each in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, each) end"
        await process.command("EVAL", over, "1", key)
    await cache.delete(ref)
    assert await cache.listing("objects") == []
    await cache.sweep()
    assert await cache.listing("leases") == []
    assert await process.command("EXISTS", "{sdcp}:unleased") == 0
    await cache.create(b"y", name="m1")


async def test_a_lease_that_is_taken_anew_holds_the_new_objects_only(cache):
    one, two, three = [await cache.create(bytes([n])) for n in range(3)]
    await cache.lease("l", [one, two], 60_000)
    await cache.lease("l", [two, three, three], 60_000)
    (lease,) = await cache.listing("leases")
    assert lease.objects == tuple(ref.rpartition("/")[2] for ref in (two, three))
    for ref in (one, two, three):
        await cache.delete(ref)
    with pytest.raises(ObjectMissingError):
        await cache.fetch(one, at_most=1)
    for ref in (two, three):
        await cache.fetch(ref, at_most=1)


async def test_a_lease_belongs_to_who_took_it(process, cache):
    ref = await cache.create(b"x")
    await cache.lease("l", [ref], 60_000)
    async with opened(process.uri, owner="router") as router:
        with pytest.raises(Forbidden):
            await router.lease("l", [ref], 60_000)
        with pytest.raises(Forbidden):
            await router.release("l")
        await router.release("unknown")
        await router.delete(ref)
    assert await cache.fetch(ref, at_most=1) == b"x"


@pytest.mark.decision("D43-sweep")
async def test_what_time_has_ended_is_let_go(process):
    async with opened(f"{process.uri}/0?object_ttl_s=0&log_retention_s=0.000001") as cache:
        await cache.create(b"nobody wants it")
        leased = await cache.create(b"x")
        await cache.lease("l", [leased], 60_000)
        ref = cache.ref_of("logs", "s")
        tag = await cache.append(ref, commit(1), None)
        while await cache.listing("logs"):
            await cache.sweep()
        assert [entry.name for entry in await cache.listing("objects")] == [leased.rpartition("/")[2]]
        assert await cache.read_log(ref) == LogSlice(0, b"", None)
        with pytest.raises(LogMovedError):
            await cache.append(ref, commit(1), tag)
        assert int(await cache.append(ref, commit(1), None)) > int(tag)
        await cache.release("l")
        while await cache.listing("objects"):
            await cache.sweep()
        while await cache.listing("logs"):
            await cache.sweep()
        keys = await process.command("KEYS", "*")
        assert isinstance(keys, list)
        assert set(keys) == {b"{sdcp}:version", b"{sdcp}:octets"}
        assert await process.command("GET", "{sdcp}:octets") == b"0"


async def test_more_than_one_call_lets_go_at_once(process, cache):
    await asyncio.gather(*(cache.create(b"x") for _ in range(1100)))
    async with opened(f"{process.uri}/0?object_ttl_s=0") as strict:
        await strict.sweep()
    assert await cache.listing("objects") == []


async def test_a_listing_goes_on_where_the_last_one_ended(cache):
    names = sorted(f"{letter}{n}" for letter in "a-B_z" for n in range(7))
    for name in names:
        await cache.append(cache.ref_of("logs", name), commit(1), None)
    found: list[str] = []
    while page := await cache.listing("logs", after=found[-1] if found else "", limit=4):
        assert len(page) <= 4
        found += [entry.name for entry in page]
    assert found == names
    assert [entry.name for entry in await cache.listing("logs", "a")] == [f"a{n}" for n in range(7)]
    assert [entry.name for entry in await cache.listing("logs", "a", "a4")] == ["a5", "a6"]
    assert await cache.listing("logs", "a", "b") == []
    assert (await cache.listing("logs", "a", "", 1))[0].size == len(commit(1))


async def test_caches_of_one_server_know_nothing_of_each_other(process, cache):
    ref = await cache.create(b"x")
    async with opened(f"{process.uri}/0?prefix=other") as other, opened(f"{process.uri}/1") as third:
        for foreign in (other, third):
            assert not foreign.allows(ref)
            assert await foreign.listing("objects") == []
            await foreign.append(foreign.ref_of("logs", "s"), commit(1), None)


# -- ways to a server --------------------------------------------------------------------------------------------------


async def test_a_unix_socket(tmp_path):
    process = ValkeyProcess(tmp_path / "server", unix=True)
    await process.start()
    try:
        async with opened(f"{process.uri}?db=2&prefix=here") as cache:
            ref = await cache.create(b"x")
            assert ref.startswith(f"unix://{process.socket}/2/here/objects/o")
            assert await cache.fetch(ref, at_most=1) == b"x"
    finally:
        await process.kill()


async def test_tls_with_certificates_of_both(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, issued in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("verifier"))):
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    port = free_port()
    process = ValkeyProcess(
        tmp_path / "server",
        tls_port=str(port),
        tls_cert_file=str(tmp_path / "server.pem"),
        tls_key_file=str(tmp_path / "server.pem"),
        tls_ca_cert_file=str(tmp_path / "ca.pem"),
    )
    await process.start()
    try:
        client = f"certificate={tmp_path}/client.pem&key={tmp_path}/client.pem"
        async with opened(f"rediss://127.0.0.1:{port}/0?ca={tmp_path}/ca.pem&{client}") as cache:
            ref = await cache.create(b"x")
            assert ref.startswith(f"valkeys://127.0.0.1:{port}/0/sdcp/objects/o")
            assert await cache.fetch(ref, at_most=1) == b"x"
        for uri in (
            f"valkeys://127.0.0.1:{port}/0?{client}",  # not by an authority of this machine
            f"valkeys://localhost:{port}/0?ca={tmp_path}/ca.pem&{client}",  # not its name
            f"valkeys://127.0.0.1:{port}/0?ca={tmp_path}/ca.pem",  # it wants to know who we are
        ):
            with pytest.raises(Exception, match=r"certificate|reset|closed|SSL"):
                await ValkeyCache.open(uri, deadline_s=0.5)
    finally:
        await process.kill()


class _Proxy:
    """Hands octets on to a server. When a client sends the operation `hang_up_after` (`hang_up_next`: once only), it
    lets the server answer, keeps the answer, and hangs up."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.hang_up_after: bytes | None = None
        self.hang_up_next: bytes | None = None
        self.hung_up = 0

    async def __aenter__(self) -> _Proxy:
        self._listening = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        await self._listening.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        back = asyncio.create_task(_copy(server_reader, writer))
        while data := await reader.read(1 << 16):
            wanted = self.hang_up_next or self.hang_up_after
            hangs_up = wanted is not None and b"\r\n" + wanted + b"\r\n" in data and b"EVALSHA" in data
            if hangs_up:
                back.cancel()
            server_writer.write(data)
            if hangs_up:
                self.hang_up_next = None
                self.hung_up += 1
                await server_reader.read(1)  # the server has carried it out
                break
        for end in (writer, server_writer):
            end.close()
        with suppress(asyncio.CancelledError, OSError):
            await back


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
