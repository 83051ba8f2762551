"""A real server that speaks S3 as the level under the disk (D41, D42)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_network import KEEPING, CacheLevel
from sdcp.stores.opening import SCHEMES, open_cache
from tests.unit.stores.conftest import SMALL
from tests.unit.stores.s3_process import S3Process


def test_schemes_of_stores_that_keep_are_schemes() -> None:
    assert set(KEEPING) < set(SCHEMES)


@pytest.mark.decision("D41-levels", "D41-restart", "D41-down")
async def test_objects_move_to_a_bucket_and_come_back_after_a_restart(s3: S3Process, tmp_path: Path) -> None:
    uri = s3.uri(s3.bucket())

    async def opened() -> DurableStore:
        cache = await open_cache([uri])
        level = CacheLevel(cache, keeps=True, close=cache.close)
        store = DurableStore(
            tmp_path / "store", memory_bytes=0, host_bytes=0, disk_bytes=1000, network=level, sizes=SMALL
        )
        await store.settle()
        return store

    store = await opened()
    names = [f"o{number}" for number in range(15)]
    for name in names:
        await store.put(name, name.encode() * 40, "https://drafter.test/")
        await store.settle()
    assert {entry.level for entry in store.listing("objects")} == {"disk", "network"}
    await store.take_lease("l", "x", names, 60_000)
    infos = {name: store.look(name) for name in names}
    await store.close()
    store = await opened()
    for name in names:
        assert await store.get(name) == (infos[name], name.encode() * 40)
    await store.release_lease("l", "x")
    for name in names:
        await store.delete(name)
    await store.settle()
    await store.close()
    cache = await open_cache([uri])
    assert await cache.listing("objects") == []
    await cache.close()
