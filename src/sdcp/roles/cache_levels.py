"""The levels of `sdcp cache` as its settings want them (D41)."""

from __future__ import annotations

import asyncio
import logging

from sdcp.errors import ConfigurationError
from sdcp.ports import Cache, SilentCacheError, StoreUnavailableError
from sdcp.roles.config import CacheSettings
from sdcp.roles.process import Context
from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_network import KEEPING, CacheLevel, NetworkLevel
from sdcp.stores.opening import open_cache

logger = logging.getLogger("sdcp.roles")

OPEN_S = 5.0  # to open that level, at the start and later
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
    """Open it now, so that a mistake in its URI is seen; one that does not answer is opened when it does."""
    uri = context.settings.store.network or ""
    if uri.rstrip("/") == context.settings.server.known_base_uri:
        raise ConfigurationError(f"[store] network: {uri} is this cache itself; name one that lies under it, or none")
    client = context.client()
    opened: list[Cache] = []

    async def open_() -> Cache:
        async with asyncio.timeout(OPEN_S):
            cache = await open_cache([uri], client=client, owner="cache", deadline_s=NETWORK_S, host_memory=False)
        opened.append(cache)
        return cache

    async def open_late() -> Cache:
        try:
            return await open_()
        except ConfigurationError as fault:
            raise StoreUnavailableError(str(fault)) from None

    async def close() -> None:
        for cache in opened:
            await cache.close()
        await client.close()

    try:
        await open_()
    except (SilentCacheError, TimeoutError) as fault:
        logger.warning("[store] network: it does not answer, and is used when it does: %s", str(fault) or "time is up")
    except ConfigurationError as fault:
        await client.close()
        raise ConfigurationError(f"[store] network: {fault}") from None
    return CacheLevel(opened[0] if opened else open_late, keeps=uri.partition(":")[0] in KEEPING, close=close)
