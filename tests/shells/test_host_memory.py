"""Host memory between real processes: `sdcp cache`, killed in the midst, and roles that go on (D40)."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.tls import TlsFiles, client_context
from sdcp.ports import ObjectMissingError, StoreUnavailableError
from sdcp.roles.cache import MAX_DESCRIPTORS
from sdcp.stores.remote import RemoteCache
from sdcp.stores.sealed import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")

DATA = os.urandom(1 << 20)


class Process:
    """`sdcp cache` on one folder and one port, as often as it is started."""

    def __init__(self, folder: Path, files: TlsFiles) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.base = f"https://127.0.0.1:{self.port}"
        self._settings = folder / "cache.toml"
        self._settings.write_text(
            f'[server]\nlisten = "127.0.0.1:{self.port}"\n'
            f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\nca = "{files.ca}"\nmatch_host = true\n'
            '[store]\ndirectory = "store"\n'
        )

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from sdcp.cli import main; main()", "cache", "--config", str(self._settings)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert (await self.process.stdout.readline()).startswith(b"ready ")

    async def stop(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    async def counted(self, client: Client, event: str) -> int:
        answer = await client.request("GET", f"{self.base}/metrics")
        for line in answer.body.decode().splitlines():
            if line.startswith(f'sdcp_events_total{{event="{event}"}}'):
                return round(float(line.split()[1]))
        return 0


class Site:
    """The process, and a drafter and a verifier in this one."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.process = Process(folder, issue(folder, "cache", "cache", ips=["127.0.0.1"]))

    async def start(self) -> None:
        await self.process.start()
        self._stack.push_async_callback(self.process.stop, signal.SIGKILL)
        self.drafter = await self._remote("drafter")
        self.verifier = await self._remote("verifier")

    async def _remote(self, role: str) -> RemoteCache:
        files = issue(self._folder, role, role, [f"https://{role}.test/"])
        self.client = await self._stack.enter_async_context(Client(client_context(files)))
        remote = RemoteCache(self.client, self.process.base)
        self._stack.push_async_callback(remote.close)
        return remote


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        made = Site(tmp_path, stack)
        await made.start()
        yield made


@pytest.mark.decision("D40-default", "D40-metrics")
async def test_processes_of_one_host_share_objects_without_a_setting(site: Site) -> None:
    ref = await site.drafter.create(DATA)
    await site.drafter.lease("l", [ref], 60_000)
    data = await site.verifier.fetch(ref, at_most=len(DATA))
    assert isinstance(data, memoryview)
    assert data == DATA
    for event in ("put_host_memory_octets", "get_host_memory_octets"):
        assert await site.process.counted(site.client, event) == len(DATA)
    await site.drafter.create(DATA[:1000])
    assert await site.process.counted(site.client, "put_tls_octets") == 1000
    assert await site.process.stop(signal.SIGTERM) == 0


async def test_the_cache_takes_the_descriptors_that_it_may_have(tmp_path: Path) -> None:
    """Each object in host memory has one, and many a system begins with 1024."""
    async with AsyncExitStack() as stack:
        site = Site(tmp_path, stack)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        try:
            await site.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        limits = resource.prlimit(site.process.process.pid, resource.RLIMIT_NOFILE)
        assert limits == (min(hard, MAX_DESCRIPTORS), hard)


@pytest.mark.decision("D40-tls")
async def test_a_killed_cache_is_used_again_and_what_was_read_stays(site: Site) -> None:
    ref = await site.drafter.create(DATA)
    read = await site.verifier.fetch(ref, at_most=len(DATA))
    await site.process.stop(signal.SIGKILL)
    assert read == DATA
    await site.process.start()
    for remote in (site.drafter, site.verifier):
        try:
            assert await remote.fetch(ref, at_most=len(DATA)) == DATA
        except ObjectMissingError:
            continue  # it lay in memory alone, and is as evicted
    for number in range(3):
        made = await site.drafter.create(DATA + bytes([number]))
        assert await site.verifier.fetch(made, at_most=len(DATA) + 1) == DATA + bytes([number])
    assert await site.process.counted(site.client, "get_host_memory") >= 2


async def test_a_kill_in_the_midst_of_many_writes_leaves_no_object_that_is_not_whole(site: Site) -> None:
    begun = asyncio.Event()

    async def write(number: int) -> str | None:
        ref = None
        for round_ in range(1000):
            try:
                ref = await site.drafter.create(DATA[number:] + bytes([round_ % 256]))
            except StoreUnavailableError:
                return ref
            if round_ == 2:
                begun.set()
        raise AssertionError("never killed")

    writers = [asyncio.ensure_future(write(number)) for number in range(4)]
    await begun.wait()
    await site.process.stop(signal.SIGKILL)
    refs = await asyncio.gather(*writers)
    await site.process.start()
    for number, ref in enumerate(refs):
        if ref is None:
            continue
        try:
            data = await site.verifier.fetch(ref, at_most=len(DATA) + 1)
        except ObjectMissingError:
            continue
        assert data[:-1] == DATA[number:]
