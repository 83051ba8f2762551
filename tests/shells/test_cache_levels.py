"""The levels of `sdcp cache` as its peers meet them: a cache below it, and a process killed while it moves (D41)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.faults import TransportError
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.messages.lease import Lease
from sdcp.roles.cache import CacheRole
from sdcp.roles.process import with_metrics
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.levels_network import CacheLevel
from sdcp.stores.remote import RemoteCache
from tests.shells.cache_process import Process

SIZE = 4096
CBOR = ("content-type", "application/cbor")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: issue(folder, name, name, [f"https://{name}.test/"]) for name in ("cache", "router", "drafter")}


def data_of(name: str) -> bytes:
    return (name.encode() * SIZE)[:SIZE]


@contextlib.asynccontextmanager
async def serving(store: DurableStore, files: TlsFiles) -> AsyncIterator[str]:
    """A cache over this store; it has drained when the block ends."""
    metrics = Metrics()
    role = CacheRole(store, metrics, body_bytes=1 << 20)
    async with Server(with_metrics(role.handle, metrics, "/"), server_context(files)) as server:
        base = f"https://127.0.0.1:{server.port}"
        await role.start(base)
        try:
            yield base
        finally:
            await role.drain()


@pytest.mark.decision("D41-metrics")
async def test_metrics_are_by_level(certificates, tmp_path):
    async with (
        serving(DurableStore(tmp_path / "store"), certificates["cache"]) as base,
        Client(client_context(certificates["drafter"])) as drafter,
    ):
        await drafter.request("PUT", f"{base}/objects/a", body=data_of("a"))
        lease = Lease(objects=("a",), ttl_ms=60_000).encode()
        await drafter.request("PUT", f"{base}/leases/l", headers=[CBOR], body=lease)
        for _ in range(2):
            await drafter.request("GET", f"{base}/objects/a", max_bytes=SIZE)
        text = (await drafter.request("GET", f"{base}/metrics", max_bytes=1 << 20)).body.decode()
    for line in (
        f'sdcp_store_octets{{level="memory"}} {float(SIZE)}',
        f'sdcp_store_octets{{level="disk"}} {float(SIZE)}',
        'sdcp_store_objects{level="host"} 0.0',
        f'sdcp_store_leased_octets{{level="disk"}} {float(SIZE)}',
        'sdcp_store_hits_total{level="memory"} 2.0',
        'sdcp_store_evictions_total{level="disk"} 0.0',
        'sdcp_level{level="store_objects"} 1.0',
    ):
        assert line in text
    assert 'level="network"' not in text


@pytest.mark.decision("D41-levels", "D41-roles", "D41-keeps", "D41-restart")
async def test_a_cache_under_a_cache(certificates, tmp_path):
    """The upper one has room for some objects, the lower one for all; what is leased above never rests below alone."""
    names = [f"o{number}" for number in range(40)]
    async with (
        serving(DurableStore(tmp_path / "lower"), certificates["cache"]) as below,
        Client(client_context(certificates["cache"])) as client,
        Client(client_context(certificates["drafter"])) as drafter,
        Client(client_context(certificates["router"])) as router,
    ):

        def opened() -> DurableStore:
            level = CacheLevel(RemoteCache(client, below), keeps=False)
            return DurableStore(
                tmp_path / "upper",
                memory_bytes=0,
                host_bytes=0,
                disk_bytes=20 * SIZE,
                network=level,
                network_bytes=None,
            )

        store = opened()
        async with serving(store, certificates["cache"]) as base:
            for number, name in enumerate(names):
                assert (await drafter.request("PUT", f"{base}/objects/{name}", body=data_of(name))).status == 201
                if number == 0:
                    lease = Lease(objects=(name,), ttl_ms=60_000).encode()
                    await drafter.request("PUT", f"{base}/leases/l", headers=[CBOR], body=lease)
                await store.settle()
            levels = {entry.name: entry.level for entry in store.listing("objects")}
            assert set(levels) == set(names), "nothing was evicted"
            assert levels["o0"] == "disk"
            assert levels["o1"] == "network"
            listed = await router.request("GET", f"{below}/objects", max_bytes=1 << 20)
            assert b".o1" in listed.body
        async with serving(opened(), certificates["cache"]) as base:
            for name in names:
                answer = await drafter.request("GET", f"{base}/objects/{name}", max_bytes=SIZE)
                assert (answer.status, answer.body) == (200, data_of(name))
            assert (await drafter.request("DELETE", f"{base}/objects/o1")).status == 204


@pytest.mark.parametrize("acknowledged", [25, 33, 50])
@pytest.mark.decision("D41-kill")
async def test_killed_while_objects_move_down(certificates, tmp_path, acknowledged):
    process = Process(tmp_path, certificates["cache"])
    below = tmp_path / "below"
    with process.settings.open("a") as settings:
        settings.write(f'memory_bytes = 0\ndisk_bytes = {24 * SIZE}\nnetwork = "file://{below}"\n')
    names = [f"o{number}" for number in range(60)]
    done: list[str] = []
    leased = names[:3]

    async def put(client: Client, mine: list[str]) -> None:
        with contextlib.suppress(TransportError):
            for name in mine:
                answer = await client.request("PUT", f"{process.base}/objects/{name}", body=data_of(name))
                assert answer.status == 201
                done.append(name)
                if len(done) == acknowledged:
                    process.kill()

    try:
        async with Client(client_context(certificates["drafter"])) as client:
            await process.start()
            await put(client, leased)
            lease = Lease(objects=tuple(leased), ttl_ms=600_000).encode()
            await client.request("PUT", f"{process.base}/leases/l", headers=[CBOR], body=lease)
            await asyncio.gather(*(put(client, names[start::4]) for start in range(3, 7)))
            await process.stop(signal.SIGKILL)
            assert len(done) >= acknowledged
            await process.start()
            kept = 0
            for name in names:
                answer = await client.request("GET", f"{process.base}/objects/{name}", max_bytes=SIZE)
                assert answer.status in (200, 404)
                assert answer.status == 404 or answer.body == data_of(name)
                assert answer.status == 200 or name not in leased
                kept += answer.status == 200
            assert kept > 15, "what was on disk is there"
            assert (await client.request("DELETE", f"{process.base}/objects/{leased[0]}")).status == 409
    finally:
        await process.stop(signal.SIGKILL)
    assert not list((tmp_path / "store" / "objects").glob(".new-*"))
    assert any(below.joinpath("objects").iterdir()), "something had moved"


async def test_a_cache_does_not_lie_under_itself(tmp_path):
    base = "https://127.0.0.1:1"  # the mistake is seen before a port is taken
    process = Process(tmp_path, issue(tmp_path, "cache", "cache", [base]))
    settings = process.settings.read_text()
    process.settings.write_text(f'[server]\nlisten = "127.0.0.1:1"\n{settings}network = "{base}/"\n')
    with pytest.raises(AssertionError, match="is this cache itself"):
        await process.start()


@pytest.mark.decision("D41-late")
async def test_a_cache_starts_without_its_network(certificates, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    process = Process(tmp_path, certificates["cache"])
    settings = process.settings.read_text()
    process.settings.write_text(f'{settings}network = "s3://bucket/x?endpoint=http://127.0.0.1:1"\n')
    await process.start()
    try:
        async with Client(client_context(certificates["drafter"])) as drafter:
            answer = await drafter.request("PUT", f"{process.base}/objects/a", body=data_of("a"))
            assert answer.status == 201
            assert (await drafter.request("GET", f"{process.base}/objects/a")).body == data_of("a")
    finally:
        ended = await process.stop(signal.SIGTERM)
    assert ended == 0
    assert "it does not answer, and is used when it does" in process.log.read_text()
    process.settings.write_text(f'{settings}network = "s3://bucket/x?unheard=of"\n')
    with pytest.raises(AssertionError, match="unknown option unheard"):  # no `ready`: its log is the message
        await process.start()
