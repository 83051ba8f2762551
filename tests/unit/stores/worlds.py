"""The caches of the contract suite, one world for each scheme: opened by URI, shared by a router and a verifier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.ports import Cache
from sdcp.roles.cache import CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.files import FileCache
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.opening import open_cache
from tests.unit.stores.s3_process import S3Process
from tests.unit.stores.valkey_process import PROGRAM, ValkeyProcess

CAPACITY = 4 << 20


class World:
    """One store, and what is true of it.

    evicts: it has CAPACITY octets for objects, and lets unleased ones go for new ones. A server is `away` between
    `pause` and `resume`; without one there is nothing to pause.
    """

    evicts = False
    has_server = False

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack

    async def begin(self) -> None:
        """Set up what the caches share."""

    async def open(self, owner: str, *, deadline_s: float = 20.0) -> Cache:
        """Open the store as `owner`: router or verifier."""
        raise NotImplementedError

    async def pause(self) -> None:
        """From now on the server does not answer."""

    async def resume(self) -> None:
        """It does again, and has what it had."""


class MemoryWorld(World):
    evicts = True

    async def begin(self) -> None:
        self._store = MemoryStore(CAPACITY)

    async def open(self, owner: str, *, deadline_s: float = 20.0) -> Cache:
        return MemoryCache(self._store, owner=owner)


class FilesWorld(World):
    evicts = True

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        super().__init__(stack)
        self._folder = folder

    async def begin(self) -> None:
        self._store = DurableStore(self._folder, disk_bytes=CAPACITY)
        self.stack.push_async_callback(self._store.close)

    async def open(self, owner: str, *, deadline_s: float = 20.0) -> Cache:
        return FileCache(self._store, owner=owner)


class HttpsWorld(World):
    """A cache role in this process, over mutual TLS. Away is: its port is closed."""

    evicts = True
    has_server = True

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        super().__init__(stack)
        self._files: dict[str, TlsFiles] = {
            role: issue(folder, role, role, [f"https://{role}.test/"]) for role in ("cache", "router", "verifier")
        }

    async def begin(self) -> None:
        self._role = CacheRole(MemoryStore(CAPACITY), Metrics(), body_bytes=CAPACITY * 2)
        self._port = 0
        await self.resume()
        self.stack.push_async_callback(self.pause)

    async def open(self, owner: str, *, deadline_s: float = 20.0) -> Cache:
        client = await self.stack.enter_async_context(Client(client_context(self._files[owner])))
        return await open_cache([f"https://127.0.0.1:{self._port}/"], client=client, deadline_s=deadline_s)

    async def pause(self) -> None:
        await self._server.drain(0)

    async def resume(self) -> None:
        self._server = Server(self._role.handle, server_context(self._files["cache"]), port=self._port)
        await self._server.start()
        self._port = self._server.port


class S3World(World):
    has_server = True

    def __init__(self, stack: AsyncExitStack, process: S3Process) -> None:
        super().__init__(stack)
        self._process = process
        self.bucket = process.bucket()

    async def open(self, owner: str, *, deadline_s: float = 20.0) -> Cache:
        return await open_cache([self._process.uri(self.bucket)], owner=owner, deadline_s=deadline_s)

    async def pause(self) -> None:
        self._process.pause()
        self.stack.callback(self._process.resume)

    async def resume(self) -> None:
        self._process.resume()


class ValkeyWorld(World):
    evicts = True
    has_server = True

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        super().__init__(stack)
        self._process = ValkeyProcess(folder)

    async def begin(self) -> None:
        await self._process.start()
        self.stack.push_async_callback(self._process.stop)

    async def open(self, owner: str, *, deadline_s: float = 20.0) -> Cache:
        uri = f"{self._process.uri}/0?capacity={CAPACITY}"
        return await open_cache([uri], owner=owner, deadline_s=deadline_s)

    async def pause(self) -> None:
        await self._process.kill()

    async def resume(self) -> None:
        await self._process.start()


MAKERS: dict[str, Callable[[AsyncExitStack, Path, pytest.FixtureRequest], World]] = {
    "memory": lambda stack, folder, request: MemoryWorld(stack),
    "file": lambda stack, folder, request: FilesWorld(stack, folder / "store"),
    "https": lambda stack, folder, request: HttpsWorld(stack, folder / "certificates"),
    "s3": lambda stack, folder, request: S3World(stack, request.getfixturevalue("s3")),
    "valkey": lambda stack, folder, request: ValkeyWorld(stack, folder / "valkey"),
}


@asynccontextmanager
async def world_of(scheme: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Make the world of a scheme, and end it."""
    if scheme == "valkey" and PROGRAM is None:
        pytest.skip("needs valkey-server or redis-server: `apt-get install redis-server`")
    async with AsyncExitStack() as stack:
        world = MAKERS[scheme](stack, folder, request)
        await world.begin()
        yield world
