from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sdcp.ports import Cache
from sdcp.stores.durable import DurableStore
from sdcp.stores.memory import MemoryStore
from sdcp.stores.segments import Sizes
from sdcp.stores.store import Store
from tests.unit.stores.worlds import World, world_of

SMALL = Sizes(segment=4096, ahead=1024)


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


MakeStore = Callable[..., Store]


@pytest.fixture(params=["memory", "durable"])
async def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[MakeStore]:
    """Make a store of the given capacity, journal and objects together; `idle_s` as the stores have it."""
    made: list[Store] = []

    def make(capacity: int = 1 << 30, idle_s: float | None = None) -> Store:
        store: Store = (
            MemoryStore(capacity, idle_s=idle_s, clock=clock)
            if request.param == "memory"
            else DurableStore(
                tmp_path / f"store{len(made)}",
                host_bytes=0,
                disk_bytes=capacity,
                idle_s=idle_s,
                sizes=SMALL,
                clock=clock,
            )
        )
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close()


# ---- the contract suite, over every scheme ----


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
