"""What a store finds that was killed while objects moved between its levels: each whole, or absent as if evicted (D41).

A kill at any moment leaves the folder as it is then. So the folder is copied before and after each thing that is done
to its files, and in the middle of each write, and every copy is opened.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sdcp.ports import ObjectMissingError
from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_network import CacheLevel
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.sealed import AVAILABLE, Sealed
from tests.unit.stores.conftest import SMALL

TINY = {"memory_bytes": 0, "sizes": SMALL}


@dataclass(frozen=True)
class Copy:
    """A folder as a kill left it: which objects were on disk, which leases answered for, what the network held."""

    folder: Path
    on_disk: set[str]
    leased: set[str]
    below: dict[str, bytes]


class Killer:
    """Copies the folder of a store at every step. `leased`: names of which a lease has been answered for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, to: Path) -> None:
        self._folder, self._to = folder, to
        self.copies: list[Copy] = []
        self.leased: set[str] = set()
        self._numbers = count()
        self.store: DurableStore | None = None
        self.below: MemoryStore | None = None
        for name in ("rename", "unlink"):
            monkeypatch.setattr(Path, name, self._around(getattr(Path, name)))

    def _around(self, step: Any) -> Any:
        def done(path: Path, *arguments: Any, **options: Any) -> Any:
            if self.store is None or self._folder not in path.parents:
                return step(path, *arguments, **options)
            self.copy()
            if path.name.startswith(".new-"):
                self.copy(cut=path.name)
            result = step(path, *arguments, **options)
            self.copy()
            return result

        return done

    def copy(self, cut: str = "") -> None:
        """Copy all files now. On disk for certain is what was there before and after."""
        assert self.store is not None
        before = set(self.store._levels.disk)
        to = self._to / str(next(self._numbers))
        shutil.copytree(self._folder, to, copy_function=_copy)
        if cut:
            part = to / "objects" / cut
            if part.exists():
                part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
        below = {} if self.below is None else dict(self.below._octets)
        self.copies.append(Copy(to, before & set(self.store._levels.disk), set(self.leased), below))


def _copy(source: str, target: str) -> None:
    """A file that another thread removes meanwhile is there, or is not."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def data_of(name: str) -> bytes:
    return name.encode() * 50


async def check(copy: Copy, names: list[str], **options: Any) -> None:
    """Open a copy: what was on disk is there and whole, all else is whole or absent, nothing is left half done."""
    store = DurableStore(copy.folder, **TINY, **options)
    await store.settle()
    for name in names:
        try:
            _, data = await store.get(name)
        except ObjectMissingError:
            assert name not in copy.on_disk, f"{name} was on disk"
        else:
            assert data == data_of(name)
    held = {each for entry in store.listing("leases") for each in entry.objects}
    assert copy.leased & copy.on_disk <= held, "a lease survives as far as its objects do"
    assert not list((copy.folder / "objects").glob(".new-*"))
    assert store.figures()["lost"] == 0
    await store.close()


@pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")
@pytest.mark.decision("D41-sealed", "D41-kill")
async def test_killed_while_host_memory_is_written_down(tmp_path, monkeypatch):
    killer = Killer(monkeypatch, tmp_path / "store", tmp_path)
    store = DurableStore(tmp_path / "store", host_bytes=400, disk_bytes=1000, **TINY)
    names = [f"o{number:02}" for number in range(12)]
    killer.store = store
    for number, name in enumerate(names):
        await store.put_sealed(name, Sealed.of(data_of(name)), "x")
        if number < 3:
            await store.take_lease(name, "x", [name], 60_000)
            killer.leased.add(name)
    while store._room._relieving:
        pass
    for name in names[:3]:
        assert (await store.get(name))[1] == data_of(name)
    copies = killer.copies
    assert len(copies) > 20
    await store.close()
    killer.store = None
    for copy in copies:
        await check(copy, names)


@pytest.mark.decision("D41-restart", "D41-kill")
async def test_killed_while_objects_move_to_the_network_and_back(tmp_path, monkeypatch):
    killer = Killer(monkeypatch, tmp_path / "store", tmp_path)
    below = killer.below = MemoryStore()
    store = DurableStore(
        tmp_path / "store",
        disk_bytes=1000,
        network=CacheLevel(MemoryCache(below), keeps=True),
        network_bytes=600,
        **TINY,
    )
    await store.settle()
    killer.store = store
    names = [f"o{number:02}" for number in range(14)]
    for number, name in enumerate(names):
        await store.put(name, data_of(name), "x")
        if number < 2:
            await store.take_lease(name, "x", [name], 60_000)
            killer.leased.add(name)
        await store.settle()
        killer.copy()
    for name in names:
        with suppress(ObjectMissingError):
            assert (await store.get(name))[1] == data_of(name)
    await store.delete(names[-1])
    copies = killer.copies
    assert len(copies) > 30
    killer.store = None
    await store.close()
    for copy in copies:
        network = MemoryStore()
        for name, octets in copy.below.items():
            await network.put(name, octets, "local")
        await check(copy, names, network=CacheLevel(MemoryCache(network), keeps=True))
