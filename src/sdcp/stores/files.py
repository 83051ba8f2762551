"""A folder of this machine as the cache of one process: durable, without a server.

Roles of other processes need `sdcp cache`: a folder is open in one process at a time, because fences are kept by one
writer.
"""

from __future__ import annotations

from pathlib import Path

from sdcp.stores.durable import DurableStore
from sdcp.stores.local import LocalCache


class FileCache(LocalCache):
    """`sdcp.ports.Cache` over a `DurableStore`, which is closed with it if it was opened by it."""

    def __init__(self, store: DurableStore | Path, *, owner: str = "local", prefix: str = "file:/cache/") -> None:
        """Open the folder, or take a store that is open. Raises ConfigurationError."""
        super().__init__(DurableStore(store) if isinstance(store, Path) else store, owner=owner, prefix=prefix)
        self._ours = isinstance(store, Path)

    async def close(self) -> None:
        """See `Cache.close`."""
        if self._ours:
            await self.store.close()
