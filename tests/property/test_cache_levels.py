"""The durable store over all its levels against a plain twin: what was put comes back whole or is missing (D41).

The twin knows no levels, no limits and no network: only what was put, and what is leased until when. What a store may
do beyond it is to evict what nobody leases, to be full, and to be unavailable while its network is.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sdcp.errors import Conflict, PreconditionFailed
from sdcp.ports import ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_mover import MOST
from sdcp.stores.levels_network import CacheLevel
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.sealed import AVAILABLE, Sealed
from sdcp.stores.segments import Sizes
from sdcp.testing.failing_cache import FailingCache

T = TypeVar("T")
POOL = [f"o{number}" for number in range(16)]
NAMES = st.sampled_from(POOL)
LEASES = st.sampled_from(["l", "m", "n"])
LARGEST = 200
SIZES = Sizes(segment=256, ahead=64)
ENVELOPE = 80  # octets around an object in the network, at most


def content(name: str, size: int, variant: int) -> bytes:
    return (f"{name}.{variant}.".encode() * size)[:size]


def _copy(source: str, target: str) -> None:
    """As a kill leaves it: a file that is being removed is there, or is not."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


class Levels(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1000.0
        self.opened = 0
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.newest = 0
        self.leases: dict[str, tuple[set[str], float, int]] = {}
        self.fence = 0
        self.late = False

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        self.was_troubled = hasattr(self, "store") and self.is_troubled()
        return self.runner.run(doing)

    @initialize(
        memory=st.sampled_from([0, 250]),
        host=st.sampled_from([0, 300]),
        disk=st.sampled_from([600, 1500]),
        network=st.sampled_from([400, 10_000, None]),
        keeps=st.booleans(),
    )
    def begin(self, memory: int, host: int, disk: int, network: int | None, keeps: bool) -> None:
        self.limits = {"memory": memory, "host": host if AVAILABLE else 0, "disk": disk, "network": network}
        self.keeps = keeps
        self.below = MemoryStore()
        self.network = FailingCache(MemoryCache(self.below))
        self.open(self.folder / "0")

    def open(self, folder: Path) -> None:
        async def opening() -> DurableStore:
            below = CacheLevel(self.network, keeps=self.keeps) if self.limits["network"] is not None else None
            store = DurableStore(
                folder,
                memory_bytes=self.limits["memory"] or 0,
                host_bytes=self.limits["host"] or 0,
                disk_bytes=self.limits["disk"] or 0,
                network=below,
                network_bytes=self.limits["network"],
                sizes=SIZES,
                clock=lambda: self.now,
            )
            await store.settle()
            return store

        self.store = self.run(opening())
        # Then leases are whole, and begin their time anew, when the network has been listed: too long does no harm.
        self.late |= self.store._below is not None and not self.store._below.mover.listed

    # -- what the twin knows ------------------------------------------------------------------------------------------

    @property
    def troubled(self) -> bool:
        """Whether the network may be why something was unavailable: before it was asked for, or since."""
        return self.was_troubled or self.is_troubled()

    def is_troubled(self) -> bool:
        below = self.store._below
        return below is not None and (
            self.network.failing or self.network.unheard or not below.mover.listed or below.mover.failing
        )

    def leased(self) -> set[str]:
        return {name for names, end, _ in self.leases.values() if end > self.now for name in names}

    def missing(self, name: str) -> None:
        assert name not in self.leased(), f"{name} is leased and is missing"
        self.objects.pop(name, None)

    # -- what is asked ------------------------------------------------------------------------------------------------

    @rule(name=NAMES, size=st.sampled_from([0, 1, 100, LARGEST]), variant=st.integers(0, 1), sealed=st.booleans())
    def put(self, name: str, size: int, variant: int, sealed: bool) -> None:
        data = content(name, size, variant)

        async def putting() -> Any:
            if sealed and AVAILABLE:
                return await self.store.put_sealed(name, Sealed.of(data), "x")
            return await self.store.put(name, data, "x")

        try:
            info, new = self.run(putting())
        except PreconditionFailed:
            assert self.objects[name] != data
            return
        except StoreFullError:
            assert name not in self.leased()
            if self.limits["network"] is None and not self.limits["host"]:
                held = sum(len(self.objects[each]) for each in self.leased())
                assert held + self.store.figures()["journal_octets"] + size > (self.limits["disk"] or 0)
            return
        except StoreUnavailableError:
            assert self.troubled
            return
        if new:
            assert name not in self.leased(), "it was there, under a lease"
            assert info.version > self.newest
            self.newest = info.version
        else:
            assert self.objects[name] == data
            assert self.versions[name] == info.version
        assert info.size == size
        self.objects[name] = data
        self.versions[name] = info.version

    @rule(name=NAMES, sealed=st.booleans())
    def get(self, name: str, sealed: bool) -> None:
        async def getting() -> Any:
            if not (sealed and AVAILABLE):
                return await self.store.get(name)
            info, segment = await self.store.get_sealed(name)
            with segment:
                return info, bytes(segment.view())

        try:
            info, data = self.run(getting())
        except ObjectMissingError:
            self.missing(name)
        except StoreUnavailableError:
            assert self.troubled
        else:
            assert data == self.objects[name]
            assert info.version == self.versions[name]

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        try:
            self.run(self.store.delete(name))
        except Conflict:
            assert name in self.leased() or self.late
        except ObjectMissingError:
            self.missing(name)
        except StoreUnavailableError:
            assert self.troubled
        else:
            assert name not in self.leased()
            self.objects.pop(name)

    @rule(start=st.integers(0, 15), count=st.integers(2, 8), sealed=st.booleans())
    def put_many(self, start: int, count: int, sealed: bool) -> None:
        """Pressure."""
        for number in range(start, start + count):
            self.put(POOL[number % len(POOL)], 100, 0, sealed)
        self.settle()

    @rule(lease=LEASES, start=st.integers(0, 15), count=st.integers(1, 3), sealed=st.booleans())
    def begin_session(self, lease: str, start: int, count: int, sealed: bool) -> None:
        """Objects, and a lease on them at once."""
        names = [POOL[number % len(POOL)] for number in range(start, start + count)]
        for name in names:
            self.put(name, 100, 0, sealed)
        self.lease(lease, names, 1000)
        for number in range(start + count, start + count + 6):
            self.put(POOL[number % len(POOL)], 100, 1, not sealed)

    @rule()
    def get_all_leased(self) -> None:
        for name in sorted(self.leased()):
            self.get(name, False)

    @rule(lease=LEASES, at=st.lists(st.integers(0, 99), min_size=1, max_size=4), ttl=st.sampled_from([5, 60, 1000]))
    def lease_known(self, lease: str, at: list[int], ttl: int) -> None:
        """Lease what is there, as far as the twin knows."""
        there = sorted(self.objects)
        if there:
            self.lease(lease, [there[each % len(there)] for each in at], ttl)

    @rule(lease=LEASES, names=st.lists(NAMES, min_size=1, max_size=3), ttl=st.just(5))
    def lease(self, lease: str, names: list[str], ttl: int) -> None:
        try:
            self.run(self.store.take_lease(lease, "x", names, ttl * 1000))
        except ObjectMissingError:
            assert any(name not in self.leased() for name in names)
            self.forget(lease)
        except (StoreUnavailableError, StoreFullError):
            assert self.troubled or not self.keeps
            self.forget(lease)
        else:
            assert all(name in self.objects for name in names)
            self.leases[lease] = set(names), self.now + ttl, ttl

    def forget(self, lease: str) -> None:
        """After a refusal nobody relies on a lease that may have been changed: end it, here and there."""
        self.run(self.store.release_lease(lease, "x"))
        self.leases.pop(lease, None)

    @rule(lease=LEASES)
    def release(self, lease: str) -> None:
        self.run(self.store.release_lease(lease, "x"))
        self.leases.pop(lease, None)

    @rule()
    def append(self) -> None:
        """Logs take room, which objects must give."""
        self.fence += 1
        record = b"\xa1\x65epoch" + bytes([0x19, self.fence >> 8, self.fence & 255])
        state = self.store.log_state("s")
        try:
            self.run(self.store.append("s", record, None if state is None else state.version))
        except StoreFullError:
            self.fence -= 1

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.leases = {name: held for name, held in self.leases.items() if held[1] > self.now}
        self.run(self.store.sweep())

    @rule()
    def settle(self) -> None:
        self.run(self.store.settle())

    # -- what befalls it ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.limits["network"] is not None)
    @rule(failing=st.booleans(), unheard=st.booleans())
    def network_changes(self, failing: bool, unheard: bool) -> None:
        self.network.failing, self.network.unheard = failing, unheard

    @precondition(lambda self: self.opened < 3)
    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        self.opened += 1
        folder = self.store.folder
        if kill:
            folder = self.folder / str(self.opened)
            shutil.copytree(self.store.folder, folder, copy_function=_copy)
            lost = self.in_host_memory_alone()
            self.run(self.store.close())
        else:
            room = (self.limits["disk"] or 0) - self.store.figures()["journal_octets"]
            self.run(self.store.close())
            lost = self.in_host_memory_alone()
            held = sum(len(self.objects[name]) for name in self.leased())
            assert not lost & self.leased() or held > room, "an orderly end writes down what is leased"
        for name in lost:
            self.objects.pop(name, None)
        left = {lease: (names - lost, ttl) for lease, (names, _, ttl) in self.leases.items()}
        self.leases = {lease: (names, self.now + ttl, ttl) for lease, (names, ttl) in left.items() if names}
        self.open(folder)

    def in_host_memory_alone(self) -> set[str]:
        levels = self.store._levels
        return {name for name in levels.host if not levels.is_below_host(name)}

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def no_level_is_over_its_limit(self) -> None:
        if not hasattr(self, "store"):
            return
        figures = self.store.level_figures()
        for level in ("memory", "host", "network"):
            limit = self.limits[level]
            assert level not in figures or limit is None or figures[level]["octets"] <= limit, level
        # The journal may take its next room while an object is being written down: each had room by itself.
        taken = figures["disk"]["octets"] + self.store.figures()["journal_octets"]
        assert taken <= (self.limits["disk"] or 0) + SIZES.segment
        limit = self.limits["network"]
        if limit is not None:
            there = self.below.figures()
            doomed = self.store._below.mover.doomed_octets if self.store._below else 0
            in_motion = MOST * LARGEST + doomed
            assert there["object_octets"] <= limit + in_motion + ENVELOPE * there["objects"]

    @invariant()
    def every_object_is_somewhere_and_every_copy_is_of_an_object(self) -> None:
        if not hasattr(self, "store"):
            return
        with self.store._lock:
            levels = self.store._levels
            names = set(levels.table._objects)
            assert all(levels.has_home(name) for name in names)
            assert all(name in names for level in levels.all for name in level)
            assert set(levels.only_on_disk) | set(levels.also_in_network) == set(levels.disk)
            assert set(levels.also_in_network) == set(levels.disk) & set(levels.network)
            for level in levels.all:
                assert level.size == sum(levels.table._objects[name].info.size for name in level)

    @invariant()
    def nothing_leased_is_gone(self) -> None:
        if not hasattr(self, "store"):
            return
        below = self.store._below
        if below is None or below.mover.listed:
            gone = [name for name in self.leased() if self.store.look(name) is None]
            assert not gone

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)


TestLevels = Levels.TestCase
TestLevels.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def step(machine: Levels, luck: Random) -> None:
    """One thing that happens: there is always pressure, and always something leased."""
    name, lease, start, sealed = luck.choice(POOL), luck.choice("lmn"), luck.randrange(16), luck.random() < 0.5
    happenings = [
        (6, lambda: machine.put(name, luck.choice([0, 1, 100, LARGEST]), luck.randrange(2), sealed)),
        (6, lambda: machine.get(name, sealed)),
        (2, lambda: machine.delete(name)),
        (3, lambda: machine.put_many(start, luck.randint(2, 8), sealed)),
        (3, lambda: machine.begin_session(lease, start, luck.randint(1, 3), sealed)),
        (2, lambda: machine.lease_known(lease, [luck.randrange(99) for _ in range(luck.randint(1, 4))], 60)),
        (1, lambda: machine.lease(lease, [name, luck.choice(POOL)], 5)),
        (1, lambda: machine.release(lease)),
        (2, machine.get_all_leased),
        (1, machine.append),
        (3, lambda: machine.wait(luck.choice([0.5, 2.0, 10.0]))),
        (3, machine.settle),
        (1, lambda: machine.restart(luck.random() < 0.5)),
    ]
    if machine.limits["network"] is not None:
        troubled = luck.random() < 0.3
        happenings.append((2, lambda: machine.network_changes(troubled, troubled and luck.random() < 0.5)))
    (happen,) = luck.choices([do for _, do in happenings], [weight for weight, _ in happenings])
    happen()
    machine.no_level_is_over_its_limit()
    machine.every_object_is_somewhere_and_every_copy_is_of_an_object()
    machine.nothing_leased_is_gone()


@pytest.mark.parametrize("seed", range(16))
def test_long_lives(seed: int) -> None:
    luck = Random(seed)
    machine = Levels()
    try:
        machine.begin(
            memory=luck.choice([0, 250]),
            host=luck.choice([0, 300]),
            disk=luck.choice([700, 1500]),
            network=luck.choice([400, 900, 10_000, None]),
            keeps=luck.random() < 0.6,
        )
        for _ in range(200):
            step(machine, luck)
    finally:
        machine.teardown()
