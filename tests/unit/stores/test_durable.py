"""What the durable store keeps beyond its process, and what it does when the disk or its content fails it."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError, Conflict
from sdcp.ports import ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.stores.durable import DurableStore
from sdcp.stores.segments import Sizes
from sdcp.stores.store import LogState
from tests.unit.stores.conftest import SMALL, Clock
from tests.unit.stores.samples import commit, fence


def killed(folder: Path, to: Path) -> Path:
    """The folder as a process that is killed now leaves it."""
    return Path(shutil.copytree(folder, to))


async def append_until_full(store: DurableStore, state: LogState) -> tuple[LogState, bytes]:
    """Append to log `s` until there is no room; return its state and what was appended."""
    appended = b""
    for round_ in range(1000):
        try:
            state = await store.append("s", commit(1, round_), state.version)
        except StoreFullError:
            return state, appended
        appended += commit(1, round_)
    raise AssertionError("the disk never filled")


@pytest.mark.decision("D41-put")
async def test_objects_leases_and_logs_outlive_a_kill(tmp_path):
    store = DurableStore(tmp_path / "a")
    info, _ = await store.put("kept", b"octets", "verifier")
    await store.put("free", b"x", "router")
    await store.take_lease("l", "verifier", ["kept"], 60_000)
    await store.append("s", commit(1), None)
    folder = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    again = DurableStore(folder)
    assert await again.get("kept") == (info, b"octets")
    assert again.look("free").owner == "router"
    with pytest.raises(Conflict):
        await again.delete("kept")
    await again.release_lease("l", "verifier")
    await again.delete("kept")
    assert (await again.read_log("s", 0))[0] == commit(1)
    await again.close()
    third = DurableStore(folder)
    assert third.look("kept") is None
    assert third.figures()["leases"] == 0
    await third.close()


async def test_a_restored_lease_gets_its_whole_time_again_and_then_ends(tmp_path):
    store = DurableStore(tmp_path)
    await store.put("a", b"x", "v")
    await store.take_lease("l", "v", ["a"], 1000)
    await store.close()
    clock = Clock()
    store = DurableStore(tmp_path, clock=clock)
    clock.now += 0.9
    with pytest.raises(Conflict):
        await store.delete("a")
    clock.now += 0.2
    await store.delete("a")
    await store.close()
    assert not list((tmp_path / "leases").iterdir())


async def test_versions_of_objects_rise_over_restarts_also_of_the_same_name(tmp_path):
    seen = []
    for _ in range(4):
        store = DurableStore(tmp_path)
        seen.append((await store.put("a", b"same", "x"))[0].version)
        await store.delete("a")
        await store.close()
    assert seen == sorted(set(seen))


async def test_memory_is_a_level_and_not_the_truth(tmp_path):
    store = DurableStore(tmp_path, memory_bytes=250)
    for name in "abc":
        await store.put(name, name.encode() * 100, "x")
    for name in "abcabc":
        assert (await store.get(name))[1] == name.encode() * 100
    figures = store.figures()
    assert figures["memory_octets"] <= 250
    assert figures["memory_misses"] == 6, "two of three fit, and a cyclic walk misses always"
    await store.get("c")
    assert store.figures()["memory_hits"] == 1
    await store.put("large", bytes(251), "x")
    assert (await store.get("large"))[1] == bytes(251)
    await store.close()


@pytest.mark.parametrize("spoil", ["flip", "cut", "gone", "empty"])
async def test_a_damaged_object_is_absent_never_wrong(tmp_path, spoil):
    store = DurableStore(tmp_path, memory_bytes=0)
    await store.put("a", bytes(1000), "x")
    await store.take_lease("l", "x", ["a"], 60_000)
    path = next((tmp_path / "objects").iterdir())
    octets = bytearray(path.read_bytes())
    octets[-5] ^= 1
    if spoil == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": octets, "cut": octets[:500], "empty": b""}[spoil])
    with pytest.raises(ObjectMissingError):
        await store.get("a")
    assert store.look("a") is None
    assert store.figures()["lost"] == 1
    await store.put("a", b"anew", "x")
    await store.take_lease("m", "x", ["a"], 60_000)
    await store.release_lease("l", "x")
    with pytest.raises(Conflict):
        await store.delete("a")
    await store.close()


async def test_files_that_were_never_whole_are_removed_at_the_start(tmp_path):
    store = DurableStore(tmp_path)
    for name in "abc":
        await store.put(name, bytes(1000), "x")
    await store.take_lease("l", "x", ["a"], 60_000)
    await store.close()
    cut = next(path for path in (tmp_path / "objects").iterdir() if path.stem == "a")
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "objects" / ".new-7").write_bytes(b"x")
    (tmp_path / "leases" / "m").write_bytes(b"\xa1")
    store = DurableStore(tmp_path)
    assert [name for name in "abc" if store.look(name)] == ["b", "c"]
    assert len(list((tmp_path / "objects").iterdir())) == 2
    assert not list((tmp_path / "leases").iterdir())
    await store.close()


async def test_a_folder_is_open_in_one_process_at_a_time(tmp_path):
    store = DurableStore(tmp_path)
    with pytest.raises(ConfigurationError, match="open"):
        DurableStore(tmp_path)
    await store.close()
    await DurableStore(tmp_path).close()


async def test_a_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file"):
        DurableStore(tmp_path / "file")


async def test_a_refused_start_lets_go_of_the_folder(tmp_path):
    store = DurableStore(tmp_path)
    await store.append("s", fence(1), None)
    await store.close()
    journal = next((tmp_path / "journal").glob("*.journal"))
    moved = journal.rename(journal.with_name("00000007.journal"))
    with pytest.raises(ConfigurationError, match="journal"):
        DurableStore(tmp_path)
    moved.rename(journal)
    await DurableStore(tmp_path).close()


async def test_logs_come_before_objects_when_the_limit_is_reached(tmp_path):
    store = DurableStore(tmp_path, disk_bytes=4096, sizes=SMALL)
    await store.put("a", bytes(1000), "x")
    await store.put("b", bytes(3000), "x")
    await store.take_lease("l", "x", ["b"], 60_000)
    await store.append("s", fence(1), None)
    assert store.look("a") is None, "evicted for the journal"
    state, _ = await append_until_full(store, store.log_state("s"))
    await store.release_lease("l", "x")
    await store.append("s", commit(1, 100), state.version)
    assert store.look("b") is None
    await store.close()


@pytest.mark.parametrize("disk_bytes", [1 << 16, 1 << 20, 4 << 20, 5 << 20])
async def test_the_journal_of_a_small_store_leaves_room_for_objects(tmp_path, disk_bytes):
    store = DurableStore(tmp_path, disk_bytes=disk_bytes)
    await store.append("s", fence(1), None)
    await store.put("a", bytes(disk_bytes // 2), "x")
    await store.append("s", commit(1, 1), store.log_state("s").version)
    assert store.look("a") is not None
    await store.close()


async def test_a_full_disk_evicts_then_refuses_then_resumes(tmp_path, monkeypatch):
    store = DurableStore(tmp_path)
    await store.put("a", bytes(10), "x")
    await store.put("b", bytes(10), "x")
    await store.take_lease("l", "x", ["b"], 60_000)
    write = store._room.files.write
    room = 1

    def full(info, data):
        if store.look("a") is not None or not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(info, data)

    monkeypatch.setattr(store._room.files, "write", full)
    await store.put("c", bytes(10), "x")
    assert store.look("a") is None
    room = 0
    with pytest.raises(StoreFullError):
        await store.put("d", bytes(1000), "x")
    assert (await store.get("b"))[1] == (await store.get("c"))[1] == bytes(10)
    monkeypatch.undo()
    await store.put("d", bytes(1000), "x")
    await store.close()


async def test_a_disk_that_fails_otherwise_is_unavailable(tmp_path, monkeypatch):
    store = DurableStore(tmp_path, memory_bytes=0)
    await store.put("a", b"x", "x")

    def failing(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store._room.files, "write", failing)
    monkeypatch.setattr(store._room.files, "read", failing)
    with pytest.raises(StoreUnavailableError):
        await store.put("b", b"x", "x")
    with pytest.raises(StoreUnavailableError):
        await store.get("a")
    monkeypatch.undo()
    assert (await store.get("a"))[1] == b"x", "a read that failed loses nothing"
    await store.close()


async def test_readers_and_evictions_at_once_see_whole_objects_or_none(tmp_path):
    store = DurableStore(tmp_path, memory_bytes=0, disk_bytes=20_000, sync_objects=False)

    async def write(number: int) -> None:
        await store.put(f"o{number}", bytes([number % 256]) * 1000, "x")

    async def read(number: int) -> None:
        try:
            _, data = await store.get(f"o{number}")
        except ObjectMissingError:
            return
        assert data == bytes([number % 256]) * 1000

    for base in range(0, 200, 10):
        await asyncio.gather(*(write(base + i) for i in range(10)), *(read(max(0, base - i)) for i in range(20)))
    assert store.figures()["object_octets"] <= 20_000
    assert store.figures()["lost"] == 0
    await store.close()


async def test_logs_stay_for_their_time_and_then_go(tmp_path):
    clock = Clock()
    clock.now = 0.0
    store = DurableStore(tmp_path, sizes=SMALL, log_retention_s=100.0, wall_clock=clock)
    await store.append("old", commit(1, tokens=2000), None)
    await store.append("new", fence(1), None)
    clock.now = max(path.stat().st_mtime for path in (tmp_path / "journal").glob("*.journal")) + 99.0
    await store.sweep()
    await store.append("newer", fence(1), None)
    assert store.log_state("old")
    clock.now += 102.0
    await store.sweep()
    await store.append("newest", fence(1), None)
    assert store.log_state("old") is None
    assert store.log_state("new"), "it lies in the segment that is being written"
    await store.close()


# -- a disk that is really full ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=1m"):
        pytest.skip("mounting a tmpfs needs Linux and its root")
    yield folder
    libc.umount2(bytes(folder), 2)


async def test_on_a_full_file_system_nothing_is_lost_and_service_resumes(small_disk):
    store = DurableStore(small_disk / "store", sizes=Sizes(segment=1 << 20, ahead=4096))
    filler = small_disk / "filler"
    await store.put("leased", bytes(100_000), "x")
    await store.take_lease("l", "x", ["leased"], 60_000)
    state = await store.append("s", commit(1, 0), None)
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    with pytest.raises(StoreFullError):
        await store.put("more", bytes(10_000), "x")
    state, more = await append_until_full(store, state)
    whole = commit(1, 0) + more
    assert await store.read_log("s", 0) == (whole, state)
    assert (await store.get("leased"))[1] == bytes(100_000)
    filler.unlink()
    state = await store.append("s", commit(1, 9999), state.version)
    await store.put("more", bytes(10_000), "x")
    await store.close()
    store = DurableStore(small_disk / "store")
    assert await store.read_log("s", 0) == (whole + commit(1, 9999), state)
    await store.close()


async def test_unleased_objects_make_room_on_a_full_file_system(small_disk):
    store = DurableStore(small_disk / "store", sizes=Sizes(segment=1 << 20, ahead=4096))
    for number in range(20):
        await store.put(f"o{number}", bytes(100_000), "x")
    assert store.look("o0") is None
    assert (await store.get("o19"))[1] == bytes(100_000)
    version = None
    for number in range(200):
        version = (await store.append("s", commit(1, number), version)).version
    await store.close()
