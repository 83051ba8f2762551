"""What a role may rely on, of any `sdcp.ports.Cache` (docs/mlc.md), whatever scheme it was opened by.

Where backends differ, a property of the world or of the port says so, and never the scheme.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from sdcp.errors import Conflict, Forbidden, MalformedBody
from sdcp.ports import (
    Cache,
    LogFencedError,
    LogMovedError,
    LogSlice,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.unit.stores.samples import commit, fence
from tests.unit.stores.worlds import CAPACITY, World, world_of


@pytest.fixture(params=["memory", "file", "https", "s3", "valkey"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
async def cache(world: World) -> AsyncIterator[Cache]:
    opened = await world.open("verifier")
    yield opened
    await opened.close()


@pytest.fixture
async def other(world: World) -> AsyncIterator[Cache]:
    opened = await world.open("router")
    yield opened
    await opened.close()


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


async def test_when_all_is_leased_the_writer_is_told(world, cache):
    ref = await cache.create(bytes(CAPACITY // 2))
    await cache.lease("l", [ref], 60_000)
    if world.evicts:
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
    if cache.enforces_fences(ref):
        with pytest.raises(LogFencedError):
            await cache.append(ref, commit(1, 2), fenced)
        with pytest.raises(LogFencedError):
            await other.append(ref, fence(2), fenced)
        await cache.append(ref, commit(2, 2), fenced)
    else:  # whoever appends reads back, and finds the fence before the record (6.8)
        await cache.append(ref, commit(1, 2), fenced)
        assert (await cache.read_log(ref)).data == commit(1, 1) + fence(2) + commit(1, 2)


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


# -- names that a caller chose -----------------------------------------------------------------------------------------


async def test_a_named_object_is_created_once(cache, other):
    name = f"m{secrets.token_urlsafe(16)}"
    ref = await cache.create(b"12345", name=name)
    assert ref == cache.ref_of("objects", name)
    assert await other.create(b"12345", name=name) == ref
    for data in (b"1234", b"123456", b"12346", b""):
        with pytest.raises(Conflict):
            await other.create(data, name=name)
    assert await other.fetch(ref, at_most=5) == b"12345"


async def test_of_many_that_create_one_name_one_wins_whole(cache, other):
    name = f"m{secrets.token_urlsafe(16)}"
    given = [bytes([number]) * 1000 for number in range(16)]
    outcomes = await asyncio.gather(
        *((cache, other)[number % 2].create(data, name=name) for number, data in enumerate(given)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 15
    winner = next(number for number, outcome in enumerate(outcomes) if isinstance(outcome, str))
    assert await cache.fetch(cache.ref_of("objects", name), at_most=1000) == given[winner]


@pytest.mark.parametrize("name", ["a", "~a.b-c_d~", "A" * 200])
async def test_any_name_will_do(cache, other, name):
    ref = await cache.create(b"x", name=name)
    assert other.allows(ref)
    await other.lease(name, [ref], 60_000)
    assert await other.fetch(ref, at_most=1) == b"x"
    await other.release(name)
    log = cache.ref_of("logs", name)
    await cache.append(log, commit(1), None)
    assert (await other.read_log(log)).data == commit(1)


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_lease_ends_by_time_and_not_before(cache, other):
    short, renewed = await cache.create(b"x"), await cache.create(b"y")
    await cache.lease("short", [short], 1)
    await cache.lease("renewed", [renewed], 1)
    await cache.lease("renewed", [renewed], 60_000)
    async with asyncio.timeout(30):
        while await is_there(other, short):
            await asyncio.sleep(0.05)  # for what time ends there is only waiting
            await cache.sweep()
            await other.delete(short)
    await other.delete(renewed)
    assert await is_there(other, renewed)


async def test_a_lease_that_is_taken_again_holds_exactly_what_was_said_last(cache, other):
    refs = [await cache.create(bytes([number])) for number in range(3)]
    await cache.lease("l", refs[:2], 60_000)
    await cache.lease("l", refs[1:], 60_000)
    for ref in refs:
        await other.delete(ref)
    assert [await is_there(other, ref) for ref in refs] == [False, True, True]
    with pytest.raises(ObjectMissingError):
        await cache.lease("l", refs, 60_000)
    for ref in refs:
        await other.delete(ref)
    assert [await is_there(other, ref) for ref in refs] == [False, True, True], "and is as it was when it is refused"


async def test_an_object_is_held_until_its_last_lease_ends(cache, other):
    ref = await cache.create(b"x")
    await cache.lease("one", [ref, ref], 60_000)
    await other.lease("two", [ref], 60_000)
    await cache.release("one")
    await cache.delete(ref)
    assert await is_there(cache, ref)
    await other.release("two")
    await cache.delete(ref)
    assert not await is_there(cache, ref)


async def test_who_takes_a_lease_while_another_deletes_either_has_it_or_is_told(cache, other):
    for number in range(10):
        ref = await cache.create(b"x")
        taken, _ = await asyncio.gather(
            cache.lease(f"l{number}", [ref], 60_000), other.delete(ref), return_exceptions=True
        )
        assert taken is None or isinstance(taken, ObjectMissingError)
        assert taken is not None or await is_there(other, ref)


async def is_there(cache, ref):
    try:
        await cache.fetch(ref, at_most=10)
    except ObjectMissingError:
        return False
    return True


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_of_many_writers_exactly_one_wins_each_time(cache, other):
    ref, tag, tags, told = cache.ref_of("logs", "session"), None, [], b""
    for round_ in range(5):
        records = [commit(1, round_, tokens=number) for number in range(16)]
        outcomes = await asyncio.gather(
            *((cache, other)[number % 2].append(ref, record, tag) for number, record in enumerate(records)),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, LogMovedError) for outcome in outcomes) == 15
        won = next(number for number, outcome in enumerate(outcomes) if isinstance(outcome, str))
        told += records[won]
        tag = outcomes[won]
        tags.append(tag)
        assert await other.read_log(ref) == LogSlice(0, told, tag)
    assert len(set(tags)) == 5, "a tag never comes twice"


async def test_many_logs_at_once_do_not_mix(cache, other):
    refs = [cache.ref_of("logs", f"session-{number}") for number in range(20)]
    tags = await asyncio.gather(*(cache.append(ref, commit(1, number), None) for number, ref in enumerate(refs)))
    tags = await asyncio.gather(
        *(other.append(ref, fence(number + 2), tags[number]) for number, ref in enumerate(refs))
    )
    for number, ref in enumerate(refs):
        assert await cache.read_log(ref) == LogSlice(0, commit(1, number) + fence(number + 2), tags[number])


async def test_every_part_of_a_log_of_many_records(cache, other):
    """Wherever a reader begins, and wherever it stops, it gets those octets and the tag of the whole log."""
    ref, tag, whole = cache.ref_of("logs", "session"), None, b""
    for round_ in range(30):
        tag = await cache.append(ref, commit(1, round_, tokens=round_ % 7 * 40), tag)
        whole += commit(1, round_, tokens=round_ % 7 * 40)
    for start in (0, 1, 100, len(whole) // 2, len(whole) - 1, len(whole), len(whole) + 1, len(whole) + 10_000):
        for stop in (None, start, start + 1, start + 500, len(whole)):
            assert await other.read_log(ref, start, stop) == LogSlice(start, whole[start:stop], tag), (start, stop)


# -- what is there -----------------------------------------------------------------------------------------------------


async def test_listings_page_by_page(cache, other):
    refs = {name: await cache.create(name.encode(), name=name) for name in ("a1", "b1", "b10", "b2", "b3", "ba", "c1")}
    await cache.lease("l1", [refs["b1"], refs["b2"]], 60_000)
    await cache.lease("l2", [refs["b2"]], 60_000)
    pages, after = [], ""
    while page := await other.listing("objects", "b", after, 2):
        pages.append(page)
        after = page[-1].name
    assert [[entry.name for entry in page] for page in pages] == [["b1", "b10"], ["b2", "b3"], ["ba"]]
    entries = {entry.name: entry for page in pages for entry in page}
    assert all(entries[name].size == len(name) for name in entries)
    assert {name for name, entry in entries.items() if entry.leased} == {"b1", "b2"}
    assert [entry.name for entry in await other.listing("objects", "b1")] == ["b1", "b10"]
    assert len(await other.listing("objects")) == 7
    leases = await other.listing("leases")
    assert [(entry.name, set(entry.objects)) for entry in leases] == [("l1", {"b1", "b2"}), ("l2", {"b2"})]
    assert all(0 < entry.expires_s < 70 and entry.owner for entry in leases)
    assert [entry.name for entry in await other.listing("leases", "l", "l1")] == ["l2"]
    await cache.release("l1")
    assert [entry.name for entry in await other.listing("leases")] == ["l2"]


async def test_listings_of_logs(cache, other):
    assert await other.listing("logs") == []
    sizes = {}
    for name in ("c1", "c2", "c3", "d1"):
        tag = await cache.append(cache.ref_of("logs", name), commit(1, 1), None)
        await cache.append(cache.ref_of("logs", name), commit(1, 2), tag)
        sizes[name] = len(commit(1, 1) + commit(1, 2))
    found = await other.listing("logs", "c", "", 2)
    found += await other.listing("logs", "c", found[-1].name, 2)
    assert {entry.name: entry.size for entry in found} == {name: sizes[name] for name in ("c1", "c2", "c3")}
    assert await other.listing("logs", "x") == []


# -- a server that is away ---------------------------------------------------------------------------------------------


async def test_a_server_that_is_away_is_told_from_one_that_has_nothing(world):
    """Every call ends within the deadline, as unknown; and when the server is back, all that it had told is there."""
    if not world.has_server:
        return
    cache = await world.open("verifier", deadline_s=1.0)
    ref = await cache.create(b"x")
    log = cache.ref_of("logs", "session")
    tag = await cache.append(log, commit(1, 1), None)
    await world.pause()
    calls = (
        cache.fetch(ref, at_most=1),
        cache.create(b"y"),
        cache.lease("l", [ref], 1000),
        cache.delete(ref),
        cache.read_log(log),
        cache.append(log, commit(1, 2), tag),
    )
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailableError] * len(calls)
    await world.resume()
    async with asyncio.timeout(30):
        found = await answered(cache, log)
    assert found.data in (commit(1, 1), commit(1, 1) + commit(1, 2)), "an append without an answer is there, or is not"
    after = await cache.append(log, commit(1, 3), found.etag)
    assert await cache.read_log(log) == LogSlice(0, found.data + commit(1, 3), after)
    await cache.close()


async def answered(cache, log):
    """Read until the server answers; until then it is unavailable, and never without the log."""
    while True:
        try:
            return await cache.read_log(log)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)  # another process, or its connections, are coming back
