"""The levels of `sdcp cache` as its settings want them (D41)."""

from __future__ import annotations

from sdcp.errors import ConfigurationError
from sdcp.roles.config import CacheSettings
from sdcp.roles.process import Context
from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_network import KEEPING, CacheLevel, NetworkLevel
from sdcp.stores.opening import open_cache

NETWORK_S = 60.0  # for a call about a large object to the level under the disk; `CacheLevel` ends others sooner


async def open_store(context: Context[CacheSettings]) -> DurableStore:
    """Open the folder and what lies under it. Raises ConfigurationError."""
    settings = context.settings.store
    network = await _network(context) if settings.network is not None else None
    try:
        return DurableStore(
            settings.directory,
            memory_bytes=settings.memory_bytes,
            host_bytes=settings.host_bytes if settings.host_memory else 0,
            disk_bytes=settings.disk_bytes,
            network=network,
            network_bytes=settings.network_bytes,
            sync_objects=settings.sync_objects,
            idle_s=settings.idle_s,
            log_retention_s=settings.log_retention_s,
        )
    except BaseException:
        if network is not None:
            await network.close()
        raise


async def _network(context: Context[CacheSettings]) -> NetworkLevel:
    uri = context.settings.store.network or ""
    client = context.client()

    async def close() -> None:
        await cache.close()
        await client.close()

    try:
        cache = await open_cache([uri], client=client, owner="cache", deadline_s=NETWORK_S, host_memory=False)
    except ConfigurationError as fault:
        await client.close()
        raise ConfigurationError(f"[store] network: {fault}") from None
    return CacheLevel(cache, keeps=uri.partition(":")[0] in KEEPING, close=close)
