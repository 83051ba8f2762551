"""Rows on their way: written as sampled, leased until the round is over, and nothing left behind (6.2, D25)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from sdcp.errors import Conflict
from sdcp.ports import ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.roles.artifacts import Artifacts
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from sdcp.wire.rows import decode_rows

SESSION = b"s" * 16
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


class Cache(LocalCache):
    """A local cache that can be held up, that can fail, and that counts."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), owner="drafter", prefix="https://cache.example/")
        self.leased = 0
        self.lease_taken = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.leasing = asyncio.Event()
        self.fault: Exception | None = None

    async def create(self, data: bytes | memoryview) -> str:
        if self.fault is not None:
            raise self.fault
        return await super().create(data)

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        self.leasing.set()
        await self.gate.wait()
        await super().lease(lease, refs, ttl_ms)
        self.leased += 1
        self.lease_taken.set()

    @property
    def left(self) -> tuple[float, float]:
        """Objects and leases that are there."""
        figures = self.store.figures()  # type: ignore[attr-defined]
        return figures["objects"], figures["leases"]


@pytest.mark.requirement(
    "S5.2-q-rows-format", "S5.2-q-rows-order", "S6.2-artifacts-written", "S6.2-leases-until-verdict"
)
async def test_the_first_rows_are_written_as_they_are_and_stay_until_released() -> None:
    cache = Cache()
    artifacts = Artifacts(cache)
    artifacts.hold(SESSION, 1, ROWS)
    ref = await artifacts.write(SESSION, 1, 2)
    assert np.array_equal(decode_rows(await cache.fetch(ref, at_most=32), 2, 4), ROWS[:2])
    with pytest.raises(Conflict):
        await cache.store.delete(ref.rpartition("/")[2])
    assert artifacts.mbps is not None
    artifacts.release(SESSION, 1)
    await artifacts.stop()
    assert cache.left == (0, 0)


async def test_writing_again_lets_the_first_object_go() -> None:
    cache = Cache()
    artifacts = Artifacts(cache)
    artifacts.hold(SESSION, 1, ROWS)
    first = await artifacts.write(SESSION, 1, 3)
    second = await artifacts.write(SESSION, 1, 1)
    assert first != second
    assert len(await cache.fetch(second, at_most=16)) == 16
    await artifacts.stop()
    with pytest.raises(ObjectMissingError):
        await cache.fetch(first, at_most=64)
    assert cache.left == (0, 0)


async def test_a_round_that_ends_while_its_rows_are_written_leaves_nothing() -> None:
    cache = Cache()
    artifacts = Artifacts(cache)
    artifacts.hold(SESSION, 1, ROWS)
    cache.gate.clear()
    writing = asyncio.create_task(artifacts.write(SESSION, 1, 3))
    await cache.leasing.wait()
    artifacts.release_all(SESSION)
    cache.gate.set()
    with pytest.raises(ObjectMissingError):  # it was deleted before it could be leased; nobody wants it any more
        await writing
    await artifacts.stop()
    assert cache.left == (0, 0)


async def test_a_write_that_is_cancelled_leaves_nothing() -> None:
    cache = Cache()
    artifacts = Artifacts(cache)
    artifacts.hold(SESSION, 1, ROWS)
    cache.gate.clear()
    writing = asyncio.create_task(artifacts.write(SESSION, 1, 3))
    await cache.leasing.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await artifacts.stop()
    assert cache.left == (0, 0)


@pytest.mark.parametrize("fault", [StoreFullError("full"), StoreUnavailableError("away")])
async def test_rows_that_could_not_be_written_can_be_written_later(fault: Exception) -> None:
    cache = Cache()
    artifacts = Artifacts(cache)
    artifacts.hold(SESSION, 1, ROWS)
    cache.fault = fault
    with pytest.raises(type(fault)):
        await artifacts.write(SESSION, 1, 3)
    cache.fault = None
    assert await artifacts.write(SESSION, 1, 3)
    await artifacts.stop()
    assert cache.left == (0, 0)


async def test_leases_are_renewed_while_a_verdict_is_awaited() -> None:
    cache = Cache()
    artifacts = Artifacts(cache, renew_s=0.001)
    artifacts.hold(SESSION, 1, ROWS)
    artifacts.hold(SESSION, 2, ROWS)  # held, not written: nothing to renew
    await artifacts.write(SESSION, 1, 3)
    artifacts.start()
    async with asyncio.timeout(20):
        while cache.leased < 3:
            cache.lease_taken.clear()
            await cache.lease_taken.wait()
    await artifacts.stop()
    assert cache.left == (0, 0)


async def test_sessions_and_rounds_are_apart() -> None:
    cache = Cache()
    artifacts = Artifacts(cache)
    for session, round_ in ((SESSION, 1), (SESSION, 2), (b"o" * 16, 1)):
        artifacts.hold(session, round_, ROWS)
        await artifacts.write(session, round_, 1)
    artifacts.release(SESSION, 1)
    assert len(artifacts) == 2
    artifacts.release_all(SESSION)
    assert len(artifacts) == 1
    await artifacts.stop()
    assert cache.left == (0, 0)
