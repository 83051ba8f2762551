"""What a role may rely on of the logs of any `sdcp.ports.Cache` (docs/mlc.md), and of one whose server is away.

As in `test_contract`, what differs is said by a property of the world or of the port.
"""

from __future__ import annotations

import asyncio

import pytest

from sdcp.errors import MalformedBody
from sdcp.ports import LogFencedError, LogMovedError, LogSlice, StoreUnavailableError
from tests.unit.stores.samples import commit, fence


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
    try:
        after = await cache.append(log, commit(1, 3), found.etag)
    except LogMovedError:  # what waited in the server came after the read
        found = await cache.read_log(log)
        assert found.data == commit(1, 1) + commit(1, 2)
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
