"""The durable store over its levels: what moves down under pressure and up on use, what never goes (D41)."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sdcp.errors import Conflict, Forbidden, PreconditionFailed
from sdcp.ports import ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_network import CacheLevel
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.sealed import AVAILABLE, Sealed
from sdcp.testing.failing_cache import FailingCache
from tests.unit.stores.conftest import SMALL, Clock
from tests.unit.stores.samples import commit
from tests.unit.stores.test_durable import killed

needs_memfd = pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")


class Opener:
    """Opens stores, and closes at the end those that are open."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._open: list[DurableStore] = []

    def __call__(self, folder: Path | str = "store", **options: Any) -> DurableStore:
        sizes = {"disk_bytes": 1000, "host_bytes": 0, "memory_bytes": 0}
        store = DurableStore(self._folder / folder, **(sizes | options), sizes=SMALL, clock=self._clock)
        self._open.append(store)
        return store

    async def close(self, store: DurableStore) -> None:
        self._open.remove(store)
        await store.close()

    async def close_all(self) -> None:
        while self._open:
            await self.close(self._open[-1])


@pytest.fixture
async def opened(tmp_path: Path, clock: Clock) -> AsyncIterator[Opener]:
    opener = Opener(tmp_path, clock)
    yield opener
    await opener.close_all()


def data_of(name: str, size: int = 100) -> bytes:
    return (name.encode() * size)[:size]


async def put(store: DurableStore, *names: str, size: int = 100) -> None:
    for name in names:
        await store.put(name, data_of(name, size), "x")


async def put_sealed(store: DurableStore, *names: str, size: int = 100) -> None:
    for name in names:
        await store.put_sealed(name, Sealed.of(data_of(name, size)), "x")


def where(store: DurableStore) -> dict[str, str]:
    return {entry.name: entry.level for entry in store.listing("objects")}


def files(store: DurableStore) -> set[str]:
    return {path.stem for path in (store.folder / "objects").iterdir()}


def figure(store: DurableStore, level: str, name: str) -> int:
    return store.level_figures()[level][name]


async def at_ease(store: DurableStore) -> None:
    """Wait until host memory is being written down no more."""
    while store._room._relieving:
        await asyncio.sleep(0)


# -- host memory -------------------------------------------------------------------------------------------------------


@needs_memfd
@pytest.mark.decision("D41-sealed")
async def test_a_sealed_segment_needs_no_disk(opened):
    store = opened(host_bytes=1000, memory_bytes=1000)
    await put_sealed(store, "rows")
    assert where(store) == {"rows": "host"}
    assert files(store) == set()
    info, data = await store.get("rows")
    assert data == data_of("rows")
    assert await store.put("rows", data_of("rows"), "x") == (info, False)
    with pytest.raises(PreconditionFailed):
        await store.put("rows", b"other", "x")
    await store.delete("rows")
    assert where(store) == {}
    assert figure(store, "host", "octets") == 0


@needs_memfd
@pytest.mark.decision("D41-sealed")
async def test_a_kill_loses_what_lies_in_host_memory_alone_as_if_evicted(opened, tmp_path):
    store = opened(host_bytes=1000)
    await put_sealed(store, "rows")
    await put(store, "prompt")
    await store.take_lease("l", "x", ["rows", "prompt"], 60_000)
    await store.take_lease("m", "x", ["rows"], 60_000)
    again = opened(killed(store.folder, tmp_path / "killed"))
    assert where(again) == {"prompt": "disk"}
    assert {entry.name: entry.objects for entry in again.listing("leases")} == {"l": ("prompt",)}
    with pytest.raises(ObjectMissingError):
        await again.get("rows")


@needs_memfd
@pytest.mark.decision("D41-end")
async def test_an_orderly_end_writes_down_what_is_leased(opened):
    store = opened(host_bytes=1000)
    await put_sealed(store, "leased", "free")
    await store.take_lease("l", "x", ["leased"], 60_000)
    version = store.look("leased").version
    await opened.close(store)
    again = opened()
    assert where(again) == {"leased": "disk"}
    info, data = await again.get("leased")
    assert (info.version, data) == (version, data_of("leased"))
    with pytest.raises(Conflict):
        await again.delete("leased")


@needs_memfd
@pytest.mark.decision("D41-down")
async def test_under_pressure_the_least_recently_used_moves_to_disk_leased_or_not(opened):
    store = opened(host_bytes=300)
    await put_sealed(store, "a", "b")
    await store.take_lease("l", "x", ["b"], 60_000)
    await store.get("a")
    await put_sealed(store, "c", "d")
    await at_ease(store)
    assert figure(store, "host", "octets") <= 300
    assert where(store)["b"] == "disk"
    assert where(store)["d"] == "host"
    assert figure(store, "host", "demotions") >= 1
    assert figure(store, "host", "evictions") == 0
    for name in "abcd":
        assert (await store.get(name))[1] == data_of(name)
    assert files(store) == {name for name, level in where(store).items() if level == "disk"}


@needs_memfd
async def test_nearly_full_host_memory_is_written_down_beside_requests(opened):
    store = opened(host_bytes=1000, disk_bytes=10_000)
    await put_sealed(store, *(f"o{number}" for number in range(9)))
    await at_ease(store)
    assert figure(store, "host", "octets") == 700
    assert where(store)["o0"] == where(store)["o1"] == "disk"
    assert where(store)["o2"] == "host"


@needs_memfd
async def test_a_segment_that_fits_into_no_host_memory_goes_to_disk(opened):
    store = opened(host_bytes=50)
    await put_sealed(store, "a")
    assert where(store) == {"a": "disk"}
    _, segment = await store.get_sealed("a")
    assert segment.view() == data_of("a")
    assert figure(store, "host", "octets") == 0
    segment.close()


@needs_memfd
@pytest.mark.decision("D41-up")
async def test_what_is_asked_for_as_a_segment_comes_up_into_host_memory(opened):
    store = opened(host_bytes=1000, memory_bytes=1000)
    await put(store, "a")
    _, segment = await store.get_sealed("a")
    assert segment.view() == data_of("a")
    segment.close()
    assert figure(store, "host", "promotions") == 1
    (await store.get_sealed("a"))[1].close()
    assert (figure(store, "host", "hits"), figure(store, "host", "misses")) == (1, 0)
    assert files(store) == {"a"}, "the copy on disk stays, so that moving down again costs nothing"
    await put_sealed(store, "b", size=1000)
    assert figure(store, "host", "objects") == 1
    assert where(store) == {"a": "memory", "b": "host"}


@needs_memfd
async def test_with_a_full_disk_host_memory_evicts_what_is_unleased_and_keeps_the_rest(opened):
    store = opened(host_bytes=400, disk_bytes=1000)
    await put(store, "big", size=950)
    await store.take_lease("l", "x", ["big"], 60_000)
    await put_sealed(store, "leased", "free", "late")
    await store.take_lease("m", "x", ["leased", "late"], 60_000)
    await put_sealed(store, "more")
    await at_ease(store)
    assert where(store) == {"big": "disk", "leased": "host", "late": "host", "more": "host"}
    assert figure(store, "host", "evictions") == 1
    await store.take_lease("n", "x", ["more"], 60_000)
    for name in ("leased", "late", "more"):
        assert (await store.get(name))[1] == data_of(name)
    with pytest.raises(StoreFullError):
        await put_sealed(store, "large", size=101)
    await store.release_lease("m", "x")
    await put_sealed(store, "large", size=101)


@needs_memfd
async def test_host_memory_takes_no_more_descriptors_than_half_of_what_there_are(opened, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    store = opened(host_bytes=10_000, disk_bytes=10_000)
    await put_sealed(store, *(f"o{number}" for number in range(12)))
    assert figure(store, "host", "objects") <= 4
    assert len(where(store)) == 12


@needs_memfd
async def test_without_a_descriptor_a_segment_goes_to_disk_and_is_not_shared(opened, monkeypatch):
    store = opened(host_bytes=1000)
    segment = Sealed.of(data_of("a"))
    segment.view()

    def no_descriptor(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", no_descriptor)
    monkeypatch.setattr(os, "memfd_create", no_descriptor)
    await store.put_sealed("a", segment, "x")
    assert where(store) == {"a": "disk"}
    with pytest.raises(StoreUnavailableError, match="Too many open files"):
        await store.get_sealed("a")
    monkeypatch.undo()
    (await store.get_sealed("a"))[1].close()


@needs_memfd
async def test_no_descriptor_stays_open_whatever_becomes_of_an_object(opened):
    store = opened(host_bytes=300, disk_bytes=500)
    await put_sealed(store, "first")
    await store.delete("first")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    await put_sealed(store, *(f"o{number}" for number in range(20)))
    await at_ease(store)
    while names := list(where(store)):
        (await store.get_sealed(names[0]))[1].close()
        await store.delete(names[0])
    await at_ease(store)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@needs_memfd
async def test_of_many_segments_of_one_name_one_is_kept(opened):
    store = opened(host_bytes=250)
    segments = [Sealed.of(data_of("same")) for _ in range(8)]
    outcomes = await asyncio.gather(*(store.put_sealed("same", segment, "x") for segment in segments))
    assert sorted(new for _, new in outcomes) == [False] * 7 + [True]
    assert all(segment.fd == -1 for segment in segments)


# -- the network -------------------------------------------------------------------------------------------------------


class Under:
    """What lies below a store: a cache in memory that outlives the store, and fails when it is told to."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.cache = FailingCache(MemoryCache(self.store))

    def level(self, *, keeps: bool = True, deadline_s: float = 30.0) -> CacheLevel:
        return CacheLevel(self.cache, keeps=keeps, deadline_s=deadline_s)

    def names(self) -> set[str]:
        return {entry.name.split(".", 2)[2] for entry in self.store.listing("objects")}


@pytest.fixture
def under() -> Under:
    return Under()


@pytest.mark.decision("D41-down")
async def test_a_disk_that_is_nearly_full_moves_down_what_was_used_longest_ago(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefgh")
    await store.settle()
    assert under.names() == set(), "not more than seven eighths"
    await store.get("a")
    await store.take_lease("l", "x", ["b"], 60_000)
    await put(store, "i")
    await store.settle()
    assert under.names() == {"b", "c"}, "leased or not, until three quarters are left"
    assert files(store) == set("abcdefghi"), "copies on disk stay until their room is needed"
    await put(store, "j", "k")
    assert files(store) == set("acdefghijk")
    assert len(where(store)) == 11
    assert figure(store, "disk", "demotions") >= 2
    assert figure(store, "disk", "evictions") == 0


@pytest.mark.decision("D41-up")
async def test_what_comes_back_from_the_network_is_copied_up_if_nothing_must_go_for_it(opened, under):
    store = opened(network=under.level(), memory_bytes=150)
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k")
    await store.settle()
    gone = next(name for name, level in where(store).items() if level == "network")
    calls = under.cache.calls
    assert (await store.get(gone))[1] == data_of(gone)
    assert where(store)[gone] == "memory"
    assert under.cache.calls == calls + 1
    assert (await store.get(gone))[1] == data_of(gone)
    assert under.cache.calls == calls + 1
    figures = store.level_figures()
    assert (figures["network"]["hits"], figures["memory"]["hits"]) == (1, 1)
    assert figures["disk"]["octets"] <= 1000
    assert gone in files(store), "at the cost of a copy that the network has"


async def test_a_put_waits_for_the_network_when_the_disk_holds_but_what_is_leased(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefgh")
    await store.take_lease("l", "x", [*"abcdefgh"], 60_000)
    await put(store, "large", size=700)
    assert {name for name, level in where(store).items() if level == "network"} <= set("abcdefgh")
    for name in "abcdefgh":
        assert (await store.get(name))[1] == data_of(name)
    assert (await store.get("large"))[1] == data_of("large", 700)


@pytest.mark.decision("D41-bottom")
async def test_the_network_evicts_what_is_unleased_and_never_what_is_leased(opened, under):
    store = opened(network=under.level(), network_bytes=300)
    await put(store, *"abcdefgh")
    await store.take_lease("l", "x", ["b"], 60_000)
    for name in "ijklmnopqrstuvwxyz":
        await put(store, name)
        await store.settle()
        assert figure(store, "network", "octets") <= 300
        assert figure(store, "disk", "octets") <= 1000
    assert under.names() == {name for name in where(store) if name in store._levels.network}
    assert "a" not in where(store)
    assert (await store.get("b"))[1] == data_of("b")
    assert figure(store, "network", "evictions") > 0


@pytest.mark.decision("D41-bottom")
async def test_when_all_that_is_left_is_leased_at_every_level_a_put_is_refused(opened, under):
    store = opened(network=under.level(), network_bytes=300)
    for number in range(40):
        name = f"o{number:02}"
        try:
            await put(store, name)
        except StoreFullError:
            break
        await store.take_lease(name, "x", [name], 60_000)
        await store.settle()
    else:
        raise AssertionError("it never filled")
    assert number == 13, "ten on disk and three in the network"
    for other in range(number):
        assert (await store.get(f"o{other:02}"))[1] == data_of(f"o{other:02}")
    await store.release_lease("o00", "x")
    await store.settle()
    await put(store, "after")


@pytest.mark.decision("D41-restart")
async def test_what_lies_in_the_network_is_there_after_a_restart(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k")
    await store.settle()
    levels = where(store)
    assert "network" in levels.values()
    infos = {name: store.look(name) for name in levels}
    await store.take_lease("l", "x", list(levels), 60_000)
    await opened.close(store)
    again = opened(network=under.level())
    await again.settle()
    assert {name: again.look(name) for name in levels} == infos
    assert set(again.listing("leases")[0].objects) == set(levels), "the lease holds what the network holds too"
    for name in levels:
        assert (await again.get(name))[1] == data_of(name)
        with pytest.raises(Conflict):
            await again.delete(name)


@pytest.mark.decision("D41-unlisted")
async def test_until_the_network_is_listed_nobody_says_that_an_object_is_missing(opened, under, clock):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k")
    below = next(name for name, level in where(store).items() if level == "network")
    await store.take_lease("l", "x", [below, "k"], 60_000)
    await store.take_lease("m", "x", [below], 60_000)
    await store.take_lease("n", "x", [below], 60_000)
    await opened.close(store)
    under.cache.failing = True
    again = opened(network=under.level())
    await again.settle()
    with pytest.raises(StoreUnavailableError, match="listed"):
        again.look(below)
    for call in (
        again.get(below),
        again.get_sealed(below),
        again.delete(below),
        again.take_lease("o", "x", [below], 1000),
    ):
        with pytest.raises(StoreUnavailableError, match="listed"):
            await call
    assert (await again.get("k"))[1] == data_of("k")
    await put(again, "new")
    with pytest.raises(Forbidden):
        await again.release_lease("m", "y")
    await again.release_lease("m", "x")
    under.cache.failing = False
    await again.settle()
    with pytest.raises(StoreUnavailableError):
        again.look(below)
    clock.now += 1.1
    await again.sweep()
    await again.settle()
    assert (await again.get(below))[1] == data_of(below)
    assert {entry.name: set(entry.objects) for entry in again.listing("leases")} == {"l": {below, "k"}, "n": {below}}
    with pytest.raises(ObjectMissingError):
        await again.get("never")


@pytest.mark.decision("D41-trouble")
async def test_a_network_that_fails_costs_nothing_above_it(opened, under, clock):
    store = opened(network=under.level())
    await store.settle()
    under.cache.failing = True
    await put(store, *"abcdefghijklmno")
    await store.settle()
    assert under.names() == set()
    assert figure(store, "disk", "octets") <= 1000
    assert where(store)["o"] == "disk"
    assert "a" not in where(store), "evicted, since nothing could be moved"
    under.cache.failing = False
    clock.now += 1.1
    await store.sweep()
    await store.settle()
    assert under.names()


@pytest.mark.decision("D41-trouble")
async def test_an_object_that_is_only_in_a_network_that_fails_is_unavailable_not_missing(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k")
    below = next(name for name, level in where(store).items() if level == "network")
    under.cache.failing = True
    with pytest.raises(StoreUnavailableError):
        await store.get(below)
    under.cache.failing = False
    assert (await store.get(below))[1] == data_of(below)


@pytest.mark.decision("D41-trouble")
async def test_a_network_that_never_answers_holds_nobody_up(opened, under):
    store = opened(network=under.level(deadline_s=0.01))
    await put(store, *"abcdefghi")
    await store.settle()
    under.cache.silent = True
    await put(store, *"jklmnopq")
    await store.settle()
    assert (await store.get("q"))[1] == data_of("q")
    assert figure(store, "disk", "octets") <= 1000
    below = [name for name, level in where(store).items() if level == "network"]
    for name in below:
        with pytest.raises(StoreUnavailableError, match="within"):
            await store.get(name)


async def test_an_upload_whose_answer_is_lost_is_done_again_or_undone(opened, under, clock):
    store = opened(network=under.level())
    await store.settle()
    under.cache.unheard = True
    await put(store, *"abcdefghi")
    await store.settle()
    there = under.names()
    assert there
    assert figure(store, "network", "objects") == 0
    one = sorted(there)[0]
    await store.delete(one)
    under.cache.unheard = False
    clock.now += 1.1
    await put(store, "j", "k")
    await store.settle()
    assert one not in under.names(), "its object is gone"
    assert under.names() == {name for name in where(store) if name in store._levels.network}


@needs_memfd
@pytest.mark.decision("D41-idle")
async def test_what_is_idle_goes_from_all_levels_and_does_not_come_back(opened, under, clock):
    store = opened(network=under.level(), memory_bytes=300, host_bytes=300, idle_s=60)
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k")
    await put_sealed(store, "s")
    await store.settle()
    assert set(where(store).values()) == {"memory", "host", "disk", "network"}
    kept = sorted(name for name in store._levels.network if name not in store._levels.disk)[:1]
    await store.take_lease("l", "x", kept, 1_000_000)
    clock.now += 60
    await store.sweep()
    await store.settle()
    assert set(where(store)) == under.names() == set(kept)
    assert files(store) == set() == set(store._levels.host) | set(store._levels.memory)
    assert (store.figures()["idle"], store.figures()["evictions"]) == (11, 0)
    await opened.close(store)
    again = opened(network=under.level(), idle_s=60)
    await again.settle()
    assert set(where(again)) == set(kept)


@pytest.mark.decision("D41-idle")
async def test_after_a_restart_the_idle_time_begins_anew(opened, under, clock):
    store = opened(network=under.level(), idle_s=60)
    await put(store, *"abcdefghi")
    await store.settle()
    there = set(where(store))
    clock.now += 59
    await opened.close(store)
    again = opened(network=under.level(), idle_s=60)
    await again.settle()
    clock.now += 59
    await again.sweep()
    assert set(where(again)) == there
    clock.now += 1
    await again.sweep()
    await again.settle()
    assert where(again) == {}
    assert under.names() == set()


@pytest.mark.decision("D41-gone")
async def test_an_object_that_is_deleted_is_deleted_below_too_when_that_answers(opened, under, clock):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    name = sorted(under.names())[0]
    under.cache.failing = True
    await store.delete(name)
    await store.put(name, b"anew", "x")
    await store.settle()
    assert name in under.names()
    under.cache.failing = False
    clock.now += 1.1
    await store.sweep()
    await store.settle()
    assert name not in under.names()
    assert (await store.get(name))[1] == b"anew"


@pytest.mark.decision("D41-gone")
@pytest.mark.parametrize("kill", [False, True])
async def test_what_is_gone_does_not_come_back_from_the_network(opened, under, tmp_path, kill):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    deleted, replaced, *_ = sorted(under.names())
    under.cache.failing = True
    await store.delete(deleted)
    await store.delete(replaced)
    await store.put(replaced, b"anew", "x")
    folder = store.folder
    if kill:
        folder = killed(folder, tmp_path / "killed")
    await opened.close(store)
    under.cache.failing = False
    again = opened(folder, network=under.level())
    await again.settle()
    assert again.look(deleted) is None
    assert (await again.get(replaced))[1] == b"anew"
    assert not {deleted, replaced} & under.names()
    assert not list((folder / "gone").iterdir())


@pytest.mark.decision("D41-gone")
async def test_what_was_made_and_deleted_before_the_listing_uncovers_nothing_older(opened, under, clock):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k")
    below = next(name for name, level in where(store).items() if level == "network")
    await opened.close(store)
    under.cache.failing = True
    again = opened(network=under.level())
    await again.settle()
    await again.put(below, b"anew", "x")
    await again.delete(below)
    under.cache.failing = False
    clock.now += 1.1
    await again.settle()
    assert again.look(below) is None
    assert below not in under.names()


async def test_an_object_deleted_on_its_way_down_is_gone_everywhere(opened, under, monkeypatch):
    store = opened(network=under.level())
    await store.settle()
    held, begun = asyncio.Event(), asyncio.Event()
    create = under.cache.create

    async def slow(data: bytes, *, name: str | None = None) -> str:
        begun.set()
        await held.wait()
        return await create(data, name=name)

    monkeypatch.setattr(under.cache, "create", slow)
    await put(store, *"abcdefghi")
    await begun.wait()
    await store.delete("a")
    held.set()
    await store.settle()
    assert "a" not in under.names()
    assert "a" not in where(store)


async def test_what_the_network_altered_or_lost_is_missing_never_wrong(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    await put(store, "j", "k", "m")
    below = [name for name, level in where(store).items() if level == "network"]
    assert len(below) >= 2
    await store.take_lease("l", "x", below, 60_000)
    altered, lost = below[:2]
    for entry in under.store.listing("objects"):
        if entry.name.endswith(f".{altered}"):
            under.store._octets[entry.name] = secrets.token_bytes(entry.size)
        if entry.name.endswith(f".{lost}"):
            await under.store.delete(entry.name)
    for name in (altered, lost):
        with pytest.raises(ObjectMissingError):
            await store.get(name)
        assert store.look(name) is None
    assert store.figures()["lost"] == 2
    await store.put(altered, b"anew", "x")
    assert (await store.get(altered))[1] == b"anew"


async def test_with_a_copy_in_the_network_a_damaged_file_costs_nothing(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    name = sorted(under.names())[0]
    path = next(path for path in (store.folder / "objects").iterdir() if path.stem == name)
    path.write_bytes(path.read_bytes()[:-1])
    assert (await store.get(name))[1] == data_of(name)
    assert store.figures()["lost"] == 0


async def test_a_damaged_file_that_was_to_move_down_is_missing_and_holds_up_nothing(opened, under):
    store = opened(network=under.level())
    await put(store, *"abcdefgh")
    await store.settle()
    path = next(path for path in (store.folder / "objects").iterdir() if path.stem == "a")
    path.write_bytes(path.read_bytes()[:-1])
    await put(store, "i")
    await store.settle()
    assert store.look("a") is None
    assert under.names() == {"b"}


@pytest.mark.decision("D41-keeps")
async def test_where_the_network_may_evict_what_is_leased_stays_on_disk(opened, under):
    store = opened(network=under.level(keeps=False))
    await put(store, *"abcdefgh")
    await store.take_lease("l", "x", ["a", "b"], 60_000)
    await put(store, "i")
    await store.settle()
    assert under.names() == {"c", "d"}
    await put(store, "j", "k", "m")
    below = next(name for name, level in where(store).items() if level == "network")
    await store.take_lease("m", "x", [below], 60_000)
    assert below in files(store), "a lease brings up what lies where it may be lost"
    for entry in under.store.listing("objects"):
        await under.store.delete(entry.name)
    for name in ("a", "b", below):
        assert (await store.get(name))[1] == data_of(name)


@pytest.mark.decision("D41-foreign")
async def test_what_another_folder_put_there_is_left_alone_and_told(opened, under, caplog):
    store = opened(network=under.level())
    await put(store, *"abcdefghi")
    await store.settle()
    names = under.names()
    assert names
    other = opened("other", network=under.level())
    await other.settle()
    assert where(other) == {}
    assert "URI of its own" in caplog.text
    await put(other, "a")
    assert under.names() == names


async def test_versions_rise_over_restarts_with_a_network(opened, under):
    seen = []
    for _ in range(4):
        store = opened(network=under.level())
        await store.settle()
        seen.append((await store.put("a", data_of("a"), "x"))[0].version)
        await put(store, *"bcdefghij")
        await store.settle()
        for name in list(where(store)):
            await store.delete(name)
        await store.settle()
        assert under.names() == set()
        await opened.close(store)
    assert seen == sorted(set(seen))


async def test_logs_take_the_room_that_copies_have(opened, under):
    store = opened(network=under.level(), disk_bytes=6000)
    await put(store, *(f"o{number:02}" for number in range(56)))
    await store.settle()
    version = None
    for number in range(25):
        version = (await store.append("s", commit(1, number, tokens=20), version)).version
        await store.settle()
    assert len(where(store)) == 56, "nothing was evicted"
    assert figure(store, "disk", "octets") + store.figures()["journal_octets"] <= 6000


async def test_a_small_network_that_is_full_of_leased_leaves_the_disk_to_evict(opened, under, clock):
    store = opened(network=under.level(), network_bytes=100)
    await put(store, "a")
    await store.take_lease("l", "x", ["a"], 60_000)
    await put(store, *"bcdefghi")
    await store.settle()
    for name in "jklmno":
        clock.now += 40
        await store.take_lease("l", "x", ["a"], 60_000)
        await put(store, name)
        await store.settle()
    assert under.names() == {"a"}
    assert figure(store, "disk", "octets") <= 1000
    assert (await store.get("a"))[1] == data_of("a")
