"""What a role may rely on, of any `sdcp.ports.Cache` (docs/mlc.md): in memory, in a folder, over TLS, in Valkey."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from sdcp.errors import Forbidden, MalformedBody
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.server import Server
from sdcp.http.tls import client_context, server_context
from sdcp.ports import (
    Cache,
    LogFencedError,
    LogMovedError,
    LogSlice,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.roles.cache import CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.files import FileCache
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.remote import RemoteCache
from sdcp.stores.valkey import ValkeyCache
from tests.unit.stores.samples import commit, fence
from tests.unit.stores.valkey_process import ValkeyProcess, needs_server

CAPACITY = 4 << 20


class World:
    """One store; `caches` by owner: a router and a verifier."""

    def __init__(self, kind: str, folder: Path, stack: AsyncExitStack) -> None:
        self.kind, self.folder, self._stack = kind, folder, stack
        self.caches: dict[str, Cache] = {}

    async def build(self) -> None:
        if self.kind == "memory":
            shared = MemoryStore(CAPACITY)
            self.caches = {owner: MemoryCache(shared, owner=owner) for owner in ("router", "verifier")}
        elif self.kind == "files":
            store = DurableStore(self.folder / "store", disk_bytes=CAPACITY)
            self._stack.push_async_callback(store.close)
            self.caches = {owner: FileCache(store, owner=owner) for owner in ("router", "verifier")}
        elif self.kind == "valkey":
            await self._start()
        else:
            await self._serve()

    async def _start(self) -> None:
        process = ValkeyProcess(self.folder / "server")
        self._stack.push_async_callback(process.kill)
        await process.start()
        for owner in ("router", "verifier"):
            cache = await ValkeyCache.open(f"{process.uri}/0?capacity={CAPACITY}", owner=owner)
            self._stack.push_async_callback(cache.close)
            self.caches[owner] = cache

    async def _serve(self) -> None:
        certificates = self.folder / "certificates"
        files = {
            role: issue(certificates, role, role, [f"https://{role}.test/"]) for role in ("cache", "router", "verifier")
        }
        role = CacheRole(MemoryStore(CAPACITY), Metrics(), body_bytes=CAPACITY * 2)
        server = await self._stack.enter_async_context(Server(role.handle, server_context(files["cache"])))
        for owner in ("router", "verifier"):
            client = await self._stack.enter_async_context(Client(client_context(files[owner])))
            self.caches[owner] = RemoteCache(client, [f"https://127.0.0.1:{server.port}/"])


@pytest.fixture(params=["memory", "files", "remote", pytest.param("valkey", marks=needs_server)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(request.param, tmp_path, stack)
        await made.build()
        yield made


@pytest.fixture
def cache(world: World) -> Cache:
    return world.caches["verifier"]


@pytest.fixture
def other(world: World) -> Cache:
    return world.caches["router"]


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 << 20])
async def test_what_one_creates_another_fetches(cache, other, size):
    data = secrets.token_bytes(size)
    ref = await cache.create(data)
    assert other.allows(ref)
    assert await other.fetch(ref, at_most=size) == data


async def test_rows_travel_as_they_lie_in_memory(cache, other):
    rows = np.arange(6 * 1000, dtype=np.float32).reshape(6, 1000)
    ref = await cache.create(memoryview(rows).cast("B"))
    data = await other.fetch(ref, at_most=rows.nbytes)
    assert np.array_equal(np.frombuffer(data, np.float32).reshape(6, 1000), rows)


async def test_names_are_not_to_be_guessed(cache):
    refs = {await cache.create(b"same") for _ in range(20)}
    assert len(refs) == 20
    assert all(len(ref.rpartition("/")[2]) >= 22 for ref in refs)


async def test_d11_only_under_the_prefix_and_no_larger_than_allowed(cache, other):
    ref = await cache.create(b"12345")
    with pytest.raises(ValueError, match="4"):
        await other.fetch(ref, at_most=4)
    parent, _, name = ref.rpartition("/")
    for foreign in (
        "https://elsewhere.test/objects/x",
        "http" + ref.removeprefix("https"),
        f"{parent}/../x",
        f"{parent}/",
        f"{parent}/a/b",
        f"{parent}/..",
        f"{parent}/%2e%2e",
        f"{ref}?x",
        f"{ref}#x",
        f"{parent}x/{name}",
        "",
    ):
        if foreign == ref:
            continue
        assert not cache.allows(foreign), foreign
        with pytest.raises(ValueError, match=r"."):
            await cache.fetch(foreign, at_most=10)


async def test_an_absent_object(cache, other):
    ref = await cache.create(b"x")
    await cache.delete(ref)
    await cache.delete(ref)
    with pytest.raises(ObjectMissingError):
        await other.fetch(ref, at_most=10)
    with pytest.raises(ObjectMissingError):
        await cache.lease("l", [ref], 1000)


async def test_leases_hold_until_they_are_released(cache, other):
    refs = [await cache.create(b"x"), await cache.create(b"y")]
    await cache.lease("l", refs, 60_000)
    await cache.lease("l", refs, 60_000)
    await cache.delete(refs[0])
    assert await other.fetch(refs[0], at_most=1) == b"x"
    await cache.release("l")
    await cache.release("l")
    await cache.delete(refs[0])
    with pytest.raises(ObjectMissingError):
        await other.fetch(refs[0], at_most=1)


async def test_a_lease_is_all_or_nothing(cache):
    ref = await cache.create(b"x")
    gone = await cache.create(b"y")
    await cache.delete(gone)
    with pytest.raises(ObjectMissingError):
        await cache.lease("l", [ref, gone], 60_000)
    await cache.delete(ref)
    with pytest.raises(ObjectMissingError):
        await cache.fetch(ref, at_most=1)


async def test_another_owners_lease_is_not_to_be_ended(cache, other):
    ref = await cache.create(b"x")
    await cache.lease("l", [ref], 60_000)
    with pytest.raises((Forbidden, StoreUnavailableError)):
        await other.release("l")
    await cache.delete(ref)
    assert await cache.fetch(ref, at_most=1) == b"x"


async def test_when_all_is_leased_the_writer_is_told(cache):
    ref = await cache.create(bytes(CAPACITY // 2))
    await cache.lease("l", [ref], 60_000)
    with pytest.raises(StoreFullError):
        await cache.create(bytes(CAPACITY // 2 + 1))
    await cache.release("l")
    await cache.create(bytes(CAPACITY // 2 + 1))


async def test_a_log_from_nothing(cache, other):
    ref = cache.ref_of("logs", "session")
    assert cache.allows_log(ref)
    assert not cache.allows(ref)
    assert await cache.read_log(ref) == LogSlice(0, b"", None)
    assert await other.read_log(ref, 7) == LogSlice(7, b"", None)
    first = await cache.append(ref, commit(1, 1), None)
    second = await cache.append(ref, commit(1, 2), first)
    assert await other.read_log(ref) == LogSlice(0, commit(1, 1) + commit(1, 2), second)


async def test_a_tail_and_a_slice_of_a_log(cache, other):
    ref = cache.ref_of("logs", "session")
    tag = await cache.append(ref, commit(1, 1) + commit(1, 2), None)
    whole, half = commit(1, 1) + commit(1, 2), len(commit(1, 1))
    assert await other.read_log(ref, half) == LogSlice(half, commit(1, 2), tag)
    assert await other.read_log(ref, 0, half) == LogSlice(0, commit(1, 1), tag)
    assert await other.read_log(ref, half, half + 3) == LogSlice(half, commit(1, 2)[:3], tag)
    for start, stop in ((len(whole), None), (len(whole) + 5, None), (3, 3), (3, 1), (0, 0)):
        assert await other.read_log(ref, start, stop) == LogSlice(start, b"", tag)
    assert await other.read_log(ref, 3, 9999) == LogSlice(3, whole[3:], tag)


async def test_an_append_goes_by_the_tag(cache, other):
    ref = cache.ref_of("logs", "session")
    first = await cache.append(ref, commit(1, 1), None)
    for tag in (None, '"7"'):
        with pytest.raises(LogMovedError):
            await other.append(ref, commit(1, 2), tag)
    await other.append(ref, commit(1, 2), first)
    with pytest.raises(LogMovedError):
        await cache.append(ref, commit(1, 3), first)
    with pytest.raises(LogMovedError):
        await cache.append(cache.ref_of("logs", "another"), commit(1), first)


async def test_a_fence_keeps_the_old_epoch_out(cache, other):
    """6.8, 6.9: the old verifier, even if it is only partitioned, can no longer commit."""
    ref = cache.ref_of("logs", "session")
    tag = await cache.append(ref, commit(1, 1), None)
    fenced = await other.append(ref, fence(2), tag)
    with pytest.raises(LogMovedError):
        await cache.append(ref, commit(1, 2), tag)
    with pytest.raises(LogFencedError):
        await cache.append(ref, commit(1, 2), fenced)
    with pytest.raises(LogFencedError):
        await other.append(ref, fence(2), fenced)
    await cache.append(ref, commit(2, 2), fenced)


async def test_of_two_writers_with_the_same_tag_one_wins(cache, other):
    ref = cache.ref_of("logs", "session")
    tag = await cache.append(ref, commit(1, 1), None)
    outcomes = await asyncio.gather(
        cache.append(ref, commit(1, 2), tag), other.append(ref, fence(2), tag), return_exceptions=True
    )
    assert sorted(isinstance(outcome, LogMovedError) for outcome in outcomes) == [False, True]
    whole = (await cache.read_log(ref)).data
    assert whole in (commit(1, 1) + commit(1, 2), commit(1, 1) + fence(2))


async def test_what_is_no_record_is_not_appended(cache):
    ref = cache.ref_of("logs", "session")
    with pytest.raises((MalformedBody, StoreUnavailableError)):
        await cache.append(ref, b"\xa1", None)
    assert await cache.read_log(ref) == LogSlice(0, b"", None)


async def test_the_wrong_kind_of_name(cache):
    ref = await cache.create(b"x")
    for call in (
        cache.fetch(cache.ref_of("logs", "s"), at_most=1),
        cache.append(ref, fence(1), None),
        cache.read_log(ref),
        cache.lease("l", [cache.ref_of("logs", "s")], 1000),
        cache.delete(cache.ref_of("logs", "s")),
    ):
        with pytest.raises(ValueError, match=r"."):
            await call
