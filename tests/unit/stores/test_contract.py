"""What a role may rely on, of any `sdcp.ports.Cache` (docs/mlc.md), whatever scheme it was opened by.

Where backends differ, a property of the world or of the port says so, and never the scheme.
"""

from __future__ import annotations

import asyncio
import secrets

import numpy as np
import pytest

from sdcp.errors import Conflict, Forbidden
from sdcp.ports import (
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.unit.stores.samples import commit, fence
from tests.unit.stores.worlds import CAPACITY


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


# -- what is there -----------------------------------------------------------------------------------------------------


async def test_listings_page_by_page(cache, other):
    refs = {name: await cache.create(name.encode(), name=name) for name in ("a1", "b1", "b10", "b2", "b3", "ba", "c1")}
    await cache.lease("l1", [refs["b1"], refs["b2"]], 60_000)
    await cache.lease("l2", [refs["b2"]], 60_000)
    pages, after = [], ""
    while page := await other.listing("objects", "b", after, 2):
        pages.append(page)
        assert page[-1].name > after
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
