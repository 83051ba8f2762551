"""`sdcp cache` over mutual TLS, as docs/mlc.md words it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sdcp.errors import Conflict
from sdcp.http.authority import issue
from sdcp.http.client import Answer, Client
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.messages.lease import Lease
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.ports import LogDamagedError
from sdcp.roles.cache import MAX_APPEND, CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.local import LocalCache
from sdcp.stores.remote import RemoteCache
from sdcp.wire.cbor import encode
from sdcp.wire.problem import decode_problem
from tests.shells.cache_process import running

CBOR_SEQ = ("content-type", "application/cbor-seq")
FIRST = ("if-none-match", "*")
NAMES = ("cache", "router", "verifier", "drafter", "front-end")
BODY_BYTES = 100_000


def commit(epoch: int, round_: int = 1) -> bytes:
    return CommitRecord(epoch=epoch, round=round_, tokens=(1, 2), committed=2 * round_, digest=bytes(32)).encode()


def fence(epoch: int) -> bytes:
    return FenceRecord(epoch=epoch).encode()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    files = {name: issue(folder, name, name, [f"https://{name}.test/"]) for name in NAMES}
    files["drafter-2"] = issue(folder, "drafter-2", "drafter", ["https://other.test/"])
    return files


class Cache:
    """The role behind a server, and one client for each name."""

    def __init__(self, store: DurableStore, server: Server, clients: dict[str, Client]) -> None:
        self.store, self.server, self.clients = store, server, clients
        self.base = f"https://127.0.0.1:{server.port}/mlc"

    async def ask(
        self, who: str, method: str, path: str, *headers: tuple[str, str], body: bytes | None = None
    ) -> Answer:
        return await self.clients[who].request(
            method, f"{self.base}/{path}", headers=headers, body=body, max_bytes=1 << 20
        )


@pytest.fixture
async def cache(certificates: dict[str, TlsFiles], tmp_path: Path) -> AsyncIterator[Cache]:
    async with contextlib.AsyncExitStack() as stack:
        store = DurableStore(tmp_path / "store", disk_bytes=1 << 24)
        role = CacheRole(store, Metrics(), base_path="/mlc", body_bytes=BODY_BYTES)
        await role.start("https://127.0.0.1/mlc")
        stack.push_async_callback(role.drain)
        server = await stack.enter_async_context(Server(role.handle, server_context(certificates["cache"])))
        clients = {
            name: await stack.enter_async_context(Client(client_context(files))) for name, files in certificates.items()
        }
        yield Cache(store, server, clients)


def detail(answer: Answer) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return decode_problem(answer.status, answer.headers["content-type"], answer.body).detail


# -- objects -----------------------------------------------------------------------------------------------------------


async def test_put_creates_once_and_says_what_it_did(cache):
    first = await cache.ask("drafter", "PUT", "objects/a", body=b"one")
    again = await cache.ask("verifier", "PUT", "objects/a", body=b"one")
    other = await cache.ask("drafter", "PUT", "objects/a", body=b"two")
    assert (first.status, again.status, other.status) == (201, 200, 412)
    assert first.headers["etag"] == again.headers["etag"]
    assert first.headers["etag"].startswith('"'), "a strong tag"
    conditional = await cache.ask("drafter", "PUT", "objects/a", ("if-match", first.headers["etag"]), body=b"two")
    assert conditional.status == 412


async def test_get_head_and_what_is_not_there(cache):
    tag = (await cache.ask("drafter", "PUT", "objects/a", body=b"0123456789")).headers["etag"]
    got = await cache.ask("front-end", "GET", "objects/a")
    assert (got.status, got.body, got.headers["etag"]) == (200, b"0123456789", tag)
    head = await cache.ask("router", "HEAD", "objects/a")
    assert (head.status, head.body, head.headers["content-length"], head.headers["etag"]) == (200, b"", "10", tag)
    for method in ("GET", "HEAD", "DELETE"):
        assert (await cache.ask("router", method, "objects/b")).status == 404
    unchanged = await cache.ask("router", "GET", "objects/a", ("if-none-match", tag))
    assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (304, b"", tag)


async def test_ranges_of_an_object(cache):
    await cache.ask("drafter", "PUT", "objects/a", body=b"0123456789")
    part = await cache.ask("drafter", "GET", "objects/a", ("range", "bytes=3-5"))
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"345", "bytes 3-5/10")
    none = await cache.ask("drafter", "GET", "objects/a", ("range", "bytes=10-"))
    assert (none.status, none.headers["content-range"]) == (416, "bytes */10")


async def test_an_object_is_deleted_by_its_creator_or_a_router(cache):
    for name in ("a", "b"):
        await cache.ask("drafter", "PUT", f"objects/{name}", body=b"x")
    for stranger in ("drafter-2", "verifier", "front-end"):
        assert (await cache.ask(stranger, "DELETE", "objects/a")).status == 403
    assert (await cache.ask("drafter", "DELETE", "objects/a")).status == 204
    assert (await cache.ask("router", "DELETE", "objects/b")).status == 204
    assert (await cache.ask("drafter", "GET", "objects/a")).status == 404


async def test_an_entity_tag_never_comes_twice(cache):
    tags = []
    for _ in range(3):
        tags.append((await cache.ask("drafter", "PUT", "objects/a", body=b"same")).headers["etag"])
        await cache.ask("drafter", "DELETE", "objects/a")
    assert len(set(tags)) == 3
    assert sorted(tags) == tags


async def test_limits_and_names(cache):
    assert (await cache.ask("drafter", "PUT", "objects/a", body=bytes(BODY_BYTES + 1))).status == 413
    assert (await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=bytes(MAX_APPEND + 1))).status == 413
    for name in (".hidden", "..", "a%2Fb", "a%20b", "x" * 201):
        assert (await cache.ask("drafter", "PUT", f"objects/{name}", body=b"x")).status == 404
    assert (await cache.ask("drafter", "POST", "objects/a", body=b"x")).status == 405


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_a_log_grows_under_its_tag(cache):
    first = await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=fence(1))
    assert first.status == 201
    tag = first.headers["etag"]
    second = await cache.ask("verifier", "PATCH", "logs/s", CBOR_SEQ, ("if-match", tag), body=commit(1))
    assert second.status == 204
    assert second.headers["etag"] > tag
    whole = await cache.ask("verifier", "GET", "logs/s")
    assert (whole.status, whole.body) == (200, fence(1) + commit(1))
    assert whole.headers["etag"] == second.headers["etag"]
    assert whole.headers["content-type"] == "application/cbor-seq"
    head = await cache.ask("verifier", "HEAD", "logs/s")
    assert head.headers["content-length"] == str(len(whole.body))
    tail = await cache.ask("router", "GET", "logs/s", ("range", f"bytes={len(fence(1))}-"))
    assert (tail.status, tail.body, tail.headers["etag"]) == (206, commit(1), second.headers["etag"])
    same = await cache.ask("router", "GET", "logs/s", ("if-none-match", second.headers["etag"]))
    assert same.status == 304


async def test_a_log_that_has_moved_is_412(cache):
    tag = (await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=fence(1))).headers["etag"]
    for condition in (FIRST, ("if-match", '"1"'), ("if-match", f"W/{tag}")):
        assert (await cache.ask("verifier", "PATCH", "logs/s", CBOR_SEQ, condition, body=commit(1))).status == 412
    assert (await cache.ask("verifier", "PATCH", "logs/t", CBOR_SEQ, ("if-match", tag), body=commit(1))).status == 412
    assert (await cache.ask("verifier", "PATCH", "logs/s", CBOR_SEQ, body=commit(1))).status == 428


async def test_a_stale_epoch_is_409_of_table_2(cache):
    tag = (await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=fence(2) + commit(3))).headers["etag"]
    for body in (commit(1), fence(3), fence(1)):
        answer = await cache.ask("verifier", "PATCH", "logs/s", CBOR_SEQ, ("if-match", tag), body=body)
        assert answer.status == 409
        assert b"#sdcp-stale-epoch" in answer.body
    assert (await cache.ask("router", "GET", "logs/s")).headers["etag"] == tag


async def test_bodies_that_are_no_records(cache):
    assert (await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=b"\xa1")).status == 400
    assert (await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=b"")).status == 400
    assert (
        await cache.ask("router", "PATCH", "logs/s", ("content-type", "application/cbor"), FIRST, body=fence(1))
    ).status == 415
    assert (await cache.ask("router", "GET", "logs/s")).status == 404


async def test_logs_are_for_routers_and_verifiers_only(cache):
    await cache.ask("router", "PATCH", "logs/s", CBOR_SEQ, FIRST, body=fence(1))
    for who in ("drafter", "front-end", "cache"):
        assert (await cache.ask(who, "PATCH", "logs/t", CBOR_SEQ, FIRST, body=fence(1))).status == 403
        assert (await cache.ask(who, "GET", "logs/s")).status == 403
    assert (await cache.ask("cache", "PUT", "leases/l", body=b"")).status == 403


@pytest.fixture
async def rotten(cache: Cache) -> tuple[Cache, str]:
    """A log of three records whose second is damaged on the disk, its tag, and a log without damage."""
    tag = (await cache.ask("router", "PATCH", "logs/bad", CBOR_SEQ, FIRST, body=commit(1))).headers["etag"]
    for round_ in (2, 3):
        match = ("if-match", tag)
        tag = (await cache.ask("router", "PATCH", "logs/bad", CBOR_SEQ, match, body=commit(1, round_))).headers["etag"]
    await cache.ask("router", "PATCH", "logs/good", CBOR_SEQ, FIRST, body=commit(2))
    journal = next((cache.store.folder / "journal").glob("*.journal"))
    octets = journal.read_bytes()
    with journal.open("r+b") as file:
        file.seek(octets.index(commit(1, 2)))
        file.write(b"\x00")
    return cache, tag


@pytest.mark.decision("D47-damaged")
async def test_a_damaged_log_is_named_and_the_others_are_served(rotten):
    cache, tag = rotten
    intact = len(commit(1))
    answer = await cache.ask("router", "GET", "logs/bad")
    assert answer.status == 500
    assert f"'bad' is intact up to octet {intact}" in detail(answer)
    assert json.loads(answer.body)["intact"] == intact
    for condition in (("if-match", tag), FIRST):
        refused = await cache.ask("router", "PATCH", "logs/bad", CBOR_SEQ, condition, body=commit(1, 4))
        assert (refused.status, json.loads(refused.body)["intact"]) == (500, intact)
    assert (await cache.ask("router", "HEAD", "logs/bad")).status == 500
    assert (await cache.ask("router", "GET", "logs/good")).body == commit(2)


@pytest.mark.decision("D47-served")
async def test_the_intact_octets_of_a_damaged_log_go_to_who_asks_for_nothing_else(rotten):
    cache, _ = rotten
    intact = len(commit(1))
    for _ in range(2):  # the damage is found by the first, known to the second
        for beyond in ("bytes=0-", f"bytes=0-{intact}", f"bytes={intact}-", "bytes=-5", f"bytes={intact - 1}-{intact}"):
            assert (await cache.ask("router", "GET", "logs/bad", ("range", beyond))).status == 500
        part = await cache.ask("router", "GET", "logs/bad", ("range", f"bytes=3-{intact - 1}"))
        assert (part.status, part.body) == (206, commit(1)[3:])
        assert part.headers["content-range"] == f"bytes 3-{intact - 1}/*", "its length is not said: nobody knows it"
        assert "etag" not in part.headers


@pytest.mark.decision("D47-served")
async def test_who_reads_a_damaged_log_through_the_port_gets_an_error_with_its_intact_octets(rotten):
    cache, tag = rotten
    remote = RemoteCache(cache.clients["router"], cache.base, expect_role=None)
    local = LocalCache(cache.store, owner="local", prefix="memory:/cache/")
    for reader in (remote, local, remote):
        ref = reader.ref_of("logs", "bad")
        with pytest.raises(LogDamagedError, match="'bad'") as caught:
            await reader.read_log(ref)
        assert (caught.value.data, caught.value.intact) == (commit(1), len(commit(1)))
        for start, stop in ((2, None), (2, 9), (0, len(commit(1))), (len(commit(1)), None), (500, 600)):
            with pytest.raises(LogDamagedError) as caught:
                await reader.read_log(ref, start, stop)
            assert caught.value.data == commit(1)[start:stop]
        with pytest.raises(LogDamagedError) as caught:
            await reader.append(ref, commit(1, 4), tag if reader is remote else tag.strip('"'))
        assert caught.value.intact == len(commit(1))


# -- leases ------------------------------------------------------------------------------------------------------------


def lease(*names: str, ttl_ms: int = 60_000) -> bytes:
    return Lease(objects=names, ttl_ms=ttl_ms).encode()


async def test_a_leased_object_is_409_to_delete(cache):
    cbor = ("content-type", "application/cbor")
    await cache.ask("drafter", "PUT", "objects/a", body=b"x")
    for _ in range(2):
        assert (await cache.ask("drafter", "PUT", "leases/l", cbor, body=lease("a"))).status == 204
    assert (await cache.ask("router", "DELETE", "objects/a")).status == 409
    for _ in range(2):
        assert (await cache.ask("drafter", "DELETE", "leases/l")).status == 204
    assert (await cache.ask("router", "DELETE", "objects/a")).status == 204


async def test_a_lease_names_what_is_missing(cache):
    cbor = ("content-type", "application/cbor")
    await cache.ask("drafter", "PUT", "objects/a", body=b"x")
    answer = await cache.ask("drafter", "PUT", "leases/l", cbor, body=lease("a", "b", "c"))
    assert answer.status == 404
    assert "'b', 'c'" in detail(answer)
    assert (await cache.ask("drafter", "DELETE", "objects/a")).status == 204, "nothing was leased"


async def test_a_lease_belongs_to_the_certificate_that_took_it(cache):
    cbor = ("content-type", "application/cbor")
    await cache.ask("drafter", "PUT", "objects/a", body=b"x")
    await cache.ask("drafter", "PUT", "leases/l", cbor, body=lease("a"))
    assert (await cache.ask("drafter-2", "PUT", "leases/l", cbor, body=lease("a"))).status == 403
    assert (await cache.ask("drafter-2", "DELETE", "leases/l")).status == 403
    assert (await cache.ask("router", "DELETE", "objects/a")).status == 409


@pytest.mark.parametrize("value", [{}, {"objects": ["a"]}, {"objects": "a", "ttl_ms": 1}, {"objects": [], "ttl_ms": 0}])
async def test_what_is_no_lease(cache, value):
    answer = await cache.ask("drafter", "PUT", "leases/l", ("content-type", "application/cbor"), body=encode(value))
    assert answer.status == 400


# -- the process -------------------------------------------------------------------------------------------------------


async def test_a_second_process_on_the_folder_is_refused_in_one_line(certificates, tmp_path):
    async with running(tmp_path, certificates["cache"]) as process:
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from sdcp.cli import main; main()", "cache", "--config", str(process.settings)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await second.communicate()
        assert second.returncode == 2
        assert b"another process" in stderr
        assert len(stderr.strip().splitlines()) == 1
        assert await process.stop(signal.SIGTERM) == 0


async def test_a_router_lists_what_there_is_page_by_page(cache):
    remote = RemoteCache(cache.clients["router"], cache.base)
    refs = [await remote.create(b"12345", name=f"o{number}") for number in range(5)]
    await remote.create(b"other", name="p1")
    await remote.lease("l1", refs[:1], 5_000)
    await remote.append(remote.ref_of("logs", "m1"), commit(1), None)

    first = await remote.listing("objects", "o", limit=2)
    assert [entry.name for entry in first] == ["o0", "o1"]
    assert [entry.leased for entry in first] == [True, False]
    rest = await remote.listing("objects", "o", after=first[-1].name)
    assert [entry.name for entry in rest] == ["o2", "o3", "o4"]
    assert {(entry.size, entry.owner) for entry in rest} == {(5, "https://router.test/")}
    [lease] = await remote.listing("leases")
    assert (lease.name, lease.objects, lease.owner) == ("l1", ("o0",), "https://router.test/")
    assert lease.expires_s is not None
    assert 0 < lease.expires_s <= 5
    [log] = await remote.listing("logs", "m")
    assert (log.name, log.size) == ("m1", len(commit(1)))
    assert await remote.listing("logs", "n") == []


@pytest.mark.parametrize("kind", ["objects", "logs", "leases"])
async def test_only_routers_list(cache, kind):
    for who in ("verifier", "drafter", "front-end"):
        assert (await cache.ask(who, "GET", kind)).status == 403
    for limit in ("0", "-1", "x", "", "1e3", "9" * 30):
        answer = await cache.ask("router", "GET", f"{kind}?limit={limit}")
        assert answer.status == 400
        assert "limit must be a number" in detail(answer)
    assert (await cache.ask("router", "GET", f"{kind}?prefix=a&prefix=b")).status == 400


async def test_a_named_object_is_created_once(cache):
    verifier = RemoteCache(cache.clients["verifier"], cache.base)
    drafter = RemoteCache(cache.clients["drafter"], cache.base)
    ref = await verifier.create(b"kv", name="k1")
    assert ref == verifier.ref_of("objects", "k1") == await drafter.create(b"kv", name="k1")
    with pytest.raises(Conflict):
        await drafter.create(b"altered", name="k1")
    assert await drafter.fetch(ref, at_most=10) == b"kv"
