"""A folder of this machine as the cache of one process: durable, without a server.

Roles of other processes need `sdcp cache`: a folder is open in one process at a time, because fences are kept by one
writer. Within a process it may be opened several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sdcp.stores.durable import DurableStore
from sdcp.stores.local import LocalCache


@dataclass(slots=True)
class _Open:
    store: DurableStore
    users: int = 0


_open: dict[Path, _Open] = {}
"""The folders that `FileCache`s of this process have opened."""


class FileCache(LocalCache):
    """`sdcp.ports.Cache` over a `DurableStore`, which the last one that opened its folder closes."""

    def __init__(self, store: DurableStore | Path, *, owner: str = "local", prefix: str = "file:/cache/") -> None:
        """Open the folder, or take a store that is open and stays so. Raises ConfigurationError."""
        self._folder: Path | None = None
        if isinstance(store, Path):
            folder = store.absolute()
            opened = _open.get(folder) or _open.setdefault(folder, _Open(DurableStore(folder)))
            opened.users += 1
            self._folder, store = folder, opened.store
        super().__init__(store, owner=owner, prefix=prefix)

    async def close(self) -> None:
        """See `Cache.close`; idempotent."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        _open[folder].users -= 1
        if not _open[folder].users:
            await _open.pop(folder).store.close()
