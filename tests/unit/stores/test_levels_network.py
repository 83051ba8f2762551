"""The network level over a cache: what comes back is what was put there, or nothing (D41)."""

from __future__ import annotations

import asyncio

import pytest

from sdcp.ports import ObjectMissingError, StoreUnavailableError
from sdcp.stores.levels_network import CacheLevel
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.store import ObjectInfo
from sdcp.testing.failing_cache import FailingCache

OWNER = "https://drafter.example:7401"
INFO = ObjectInfo("o.name-1", (3 << 40) + 7, 6, OWNER)


class Altered(MemoryCache):
    """A cache that gives back other octets than were put."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.alter = lambda data: data

    async def fetch(self, ref, *, at_most):
        return self.alter(await super().fetch(ref, at_most=at_most))


async def everything(level: CacheLevel) -> list[ObjectInfo]:
    return [info for page in [page async for page in level.listing()] for info, _ in page]


@pytest.mark.parametrize("data", [b"", b"octets", bytes(100_000)])
async def test_an_object_comes_back_and_is_listed_with_all_that_is_known_of_it(data):
    level = CacheLevel(MemoryCache(), keeps=True)
    info = ObjectInfo(INFO.name, INFO.version, len(data), OWNER)
    await level.put(info, data)
    await level.put(info, data)
    assert await level.get(info) == data
    assert await everything(level) == [info]
    await level.delete(info)
    await level.delete(info)
    with pytest.raises(ObjectMissingError):
        await level.get(info)
    assert await everything(level) == []


@pytest.mark.decision("D41-envelope")
async def test_every_bit_that_is_altered_and_every_octet_that_is_missing_is_found(caplog):
    cache = Altered(MemoryStore())
    level = CacheLevel(cache, keeps=True)
    await level.put(INFO, b"octets")
    (entry,) = await cache.listing("objects")
    for at in range(entry.size):
        cache.alter = lambda data, at=at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(ObjectMissingError):
            await level.get(INFO)
        cache.alter = lambda data, at=at: data[:at]
        with pytest.raises(ObjectMissingError):
            await level.get(INFO)
    cache.alter = lambda data: data + b"x"
    with pytest.raises(ObjectMissingError):
        await level.get(INFO)
    assert "not what was put there" in caplog.text


@pytest.mark.decision("D41-envelope")
async def test_another_objects_envelope_is_not_taken_for_this_one():
    cache = Altered(MemoryStore())
    level = CacheLevel(cache, keeps=True)
    others = [
        ObjectInfo("o.name-2", INFO.version, 6, OWNER),
        ObjectInfo(INFO.name, INFO.version + 1, 6, OWNER),
        ObjectInfo(INFO.name, INFO.version, 6, OWNER[:-1] + "2"),
    ]
    await level.put(INFO, b"octets")
    for other in others:
        await level.put(other, b"octets")
    names = {entry.name for entry in await cache.listing("objects")}
    assert len(names) == 4
    stored = {name: await cache.fetch(cache.ref_of("objects", name), at_most=1000) for name in names}
    right = 0
    for envelope in stored.values():
        cache.alter = lambda _, envelope=envelope: envelope
        try:
            assert await level.get(INFO) == b"octets"
            right += 1
        except ObjectMissingError:
            pass
    assert right == 1


async def test_names_that_are_none_of_ours_are_passed_over():
    cache = MemoryCache()
    level = CacheLevel(cache, keeps=True)
    for name in ("o123", "1.2.3", "zz.uQQ.a", "1.xQQ.a", "01.uQQ.a", "1.uQ.a", "1.u.b", "1.u_w.a", "1.uQQ."):
        await cache.create(b"x" * 1000, name=name)
    assert [info.name for info in await everything(level)] == ["b"]
    await cache.create(b"", name="1.uQQ.short")
    assert [info.name for info in await everything(level)] == ["b"]


async def test_a_listing_of_many_pages():
    level = CacheLevel(MemoryCache(), keeps=True)
    infos = [ObjectInfo(f"o{number}", number + 1, 1, "x") for number in range(2003)]
    for info in infos:
        await level.put(info, b"x")
    pages = [page async for page in level.listing()]
    assert len(pages) == 3
    assert sorted(info.version for page in pages for info, _ in page) == [info.version for info in infos]


async def test_what_would_have_too_long_a_name_is_not_taken():
    level = CacheLevel(MemoryCache(), keeps=True)
    assert level.takes(ObjectInfo("o" * 100, 1 << 44, 1, OWNER))
    assert not level.takes(ObjectInfo("o" * 190, 1, 1, OWNER))
    assert not level.takes(ObjectInfo("o", 1, 1, "x" * 150))


async def test_no_answer_is_an_answer_after_the_deadline():
    cache = FailingCache(MemoryCache())
    level = CacheLevel(cache, keeps=True, deadline_s=0.01)
    await level.put(INFO, b"octets")
    cache.silent = True
    for call in (level.put(INFO, b"octets"), level.get(INFO), level.delete(INFO), everything(level)):
        with pytest.raises(StoreUnavailableError, match=r"within 0\.01 s"):
            await call
    cache.silent = False
    assert await level.get(INFO) == b"octets"


async def test_closing_closes_what_is_behind():
    closed = []

    async def close() -> None:
        closed.append(True)

    await CacheLevel(MemoryCache(), keeps=True, close=close).close()
    await CacheLevel(MemoryCache(), keeps=True).close()
    assert closed == [True]


@pytest.mark.decision("D41-late")
async def test_what_does_not_answer_at_the_start_is_opened_when_it_does():
    cache, tries = MemoryCache(), []

    async def open_() -> MemoryCache:
        tries.append(True)
        if len(tries) == 1:
            raise StoreUnavailableError("no answer")
        return cache

    level = CacheLevel(open_, keeps=True)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        await level.put(INFO, b"octets")
    await asyncio.gather(*(level.put(INFO, b"octets") for _ in range(3)))
    assert await level.get(INFO) == b"octets"
    assert len(tries) == 2
