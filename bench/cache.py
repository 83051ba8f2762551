"""Appends and objects of the cache beside what the disk does: `python bench/cache.py [folder]`.

The yardstick is one thread that writes a commit record's octets to a file and calls fdatasync, over and over. The store
shares one sync among all appends that wait, so with many logs it is to beat that; over TLS each append adds a request.
The folder (default: a temporary one) decides which disk is measured.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.server import Server
from sdcp.http.tls import client_context, server_context
from sdcp.messages.record import CommitRecord
from sdcp.roles.cache import CacheRole
from sdcp.roles.process import new_event_loop
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.remote import RemoteCache

RECORD = CommitRecord(
    epoch=1, round=100, tokens=(17, 2345, 678, 90123), committed=400, digest=bytes(32), accepted=3, low=0, load=50
).encode()
ROWS = os.urandom(4 * 49_152 * 4)  # q rows of four tokens of a vocabulary of 49,152
SECONDS = 1.5


def raw_appends(folder: Path) -> float:
    """Appends a second of one thread that syncs each."""
    with open(folder / "raw", "wb", buffering=0) as file:
        begun, done = time.perf_counter(), 0
        while time.perf_counter() - begun < SECONDS:
            file.write(RECORD)
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - begun)


async def appends(logs: int, append: Callable[[str, object], Awaitable[object]], label: str) -> None:
    """`logs` writers, each waiting for its answer before its next record, as a verifier's sessions do."""
    waits: list[float] = []

    async def writer(name: str, until: float) -> None:
        tag: object = None
        while (now := time.perf_counter()) < until:
            tag = await append(name, tag)
            waits.append(time.perf_counter() - now)

    begun = time.perf_counter()
    await asyncio.gather(*(writer(f"{label}-{logs}-{number}", begun + SECONDS) for number in range(logs)))
    rate = len(waits) / (time.perf_counter() - begun)
    waits.sort()
    print(f"{label:6} {logs:4} logs  {rate:8.0f}/s   p50 {median(waits) * 1e3:6.2f} ms   p99 {_p99(waits):6.2f} ms")


async def objects(
    label: str, create: Callable[[bytes], Awaitable[str]], fetch: Callable[[str], Awaitable[bytes]]
) -> None:
    """Write and read rows, one after another."""
    writes, reads = [], []
    for _ in range(60):
        begun = time.perf_counter()
        ref = await create(ROWS)
        middle = time.perf_counter()
        await fetch(ref)
        writes.append(middle - begun)
        reads.append(time.perf_counter() - middle)
    write_ms, read_ms = median(writes) * 1e3, median(reads) * 1e3
    print(f"{label:6} rows of {len(ROWS) >> 10} KiB: write p50 {write_ms:.2f} ms, read p50 {read_ms:.2f} ms")


async def tails(store: DurableStore) -> None:
    """The last record of a short log and of a long one."""
    for rounds in (10, 20_000):
        state = await store.append(f"long{rounds}", RECORD * (rounds - 1), None)
        state = await store.append(f"long{rounds}", RECORD, state.version)
        begun = time.perf_counter()
        for _ in range(200):
            await store.read_log(f"long{rounds}", state.size - len(RECORD))
        print(f"store  tail of a log of {rounds:6} records: {(time.perf_counter() - begun) / 200 * 1e6:.0f} µs")


async def main(folder: Path) -> None:
    print(f"raw    fdatasync, one thread {raw_appends(folder):8.0f}/s   ({len(RECORD)} octets a record)")
    for sync in (True, False):
        store = DurableStore(folder / f"objects-{sync}", sync_objects=sync)
        await objects(
            "sync" if sync else "nosync",
            lambda data, store=store: _put(store, data),
            lambda name, store=store: _get(store, name),
        )
        await store.close()
    store = DurableStore(folder / "store")
    await tails(store)
    for logs in (1, 8, 64, 256):
        before = store.figures()
        await appends(logs, lambda name, tag: _append(store, name, tag), "store")
        after = store.figures()
        print(f"              {(after['appends'] - before['appends']) / (after['syncs'] - before['syncs']):.1f} a sync")
    await over_tls(folder, store)


async def over_tls(folder: Path, store: DurableStore) -> None:
    """The same through `sdcp.stores.remote` and the role, both ends in this process."""
    server_files = issue(folder / "ca", "cache", "cache")
    client_files = issue(folder / "ca", "verifier", "verifier", ["https://verifier.test/"])
    role = CacheRole(store, Metrics(), body_bytes=1 << 30)
    async with (
        Server(role.handle, server_context(server_files)) as server,
        Client(client_context(client_files)) as client,
    ):
        remote = RemoteCache(client, [f"https://127.0.0.1:{server.port}"])
        for logs in (1, 8, 64):
            await appends(logs, lambda name, tag: remote.append(remote.ref_of("logs", name), RECORD, tag), "tls")
        await objects("tls", remote.create, lambda ref: remote.fetch(ref, at_most=len(ROWS)))
    await role.drain()


async def _append(store: DurableStore, name: str, version: int | None) -> int:
    return (await store.append(name, RECORD, version)).version


async def _put(store: DurableStore, data: bytes) -> str:
    name = os.urandom(16).hex()
    await store.put(name, data, "bench")
    return name


async def _get(store: DurableStore, name: str) -> bytes:
    return (await store.get(name))[1]


def _p99(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.99)] * 1e3


if __name__ == "__main__":
    folder_given = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=folder_given) as chosen, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(Path(chosen)))
