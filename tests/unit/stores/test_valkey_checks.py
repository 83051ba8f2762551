"""Which Valkey or Redis servers are trusted with commit logs, and what a cache's URI says (D43)."""

from __future__ import annotations

import time

import pytest

from sdcp.errors import ConfigurationError
from sdcp.ports import StoreUnavailableError
from sdcp.stores.valkey import ValkeyCache
from sdcp.stores.valkey_address import parse_address
from sdcp.stores.valkey_checks import complaints
from sdcp.stores.valkey_server import RECHECK_S
from tests.unit.stores.samples import commit
from tests.unit.stores.valkey_process import ValkeyProcess, free_port, needs_server

GOOD = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no", "maxmemory-policy": "noeviction"}
INFO = {
    "redis_version": "7.2.4",
    "cluster_enabled": "0",
    "role": "master",
    "aof_enabled": "1",
    "connected_slaves": "0",
}


@pytest.fixture
async def start(tmp_path):
    made: list[ValkeyProcess] = []

    async def started(**settings: str | None) -> ValkeyProcess:
        made.append(ValkeyProcess(tmp_path / f"server{len(made)}", **settings))
        await made[-1].start()
        return made[-1]

    yield started
    for process in made:
        await process.kill()


async def _refused(uri: str, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        await ValkeyCache.open(uri, deadline_s=2.0)


# -- real servers ------------------------------------------------------------------------------------------------------


@needs_server
@pytest.mark.decision("D43-checked")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"appendonly": "no"}, r"appendonly is no: .* write `appendonly yes` into its configuration file"),
        ({"appendfsync": "everysec"}, r"appendfsync is everysec: .* `CONFIG SET appendfsync always`"),
        ({"appendfsync": "no"}, r"appendfsync is no"),
        ({"no_appendfsync_on_rewrite": "yes"}, r"write `no-appendfsync-on-rewrite no`"),
        ({"maxmemory_policy": "allkeys-lru"}, r"maxmemory-policy is allkeys-lru: it may evict logs"),
        ({"cluster_enabled": "yes"}, r"part of a cluster"),
        ({"rename_command": 'CONFIG ""'}, r"does not permit CONFIG GET"),
        ({"replicaof": "127.0.0.1 1"}, r"it is a replica"),
    ],
)
async def test_a_server_that_would_lose_appends_is_refused_at_start(start, settings, sentence):
    process = await start(**settings)
    await _refused(process.uri, sentence)
    if settings != {"replicaof": "127.0.0.1 1"}:
        assert await process.command("DBSIZE") == 0, "nothing was written"


@needs_server
async def test_everything_that_is_wrong_is_said_at_once(start):
    process = await start(appendonly="no", appendfsync="everysec", maxmemory_policy="allkeys-random")
    await _refused(process.uri, r"cannot keep commit logs: appendonly .*; appendfsync .*; maxmemory-policy ")


@needs_server
@pytest.mark.decision("D43-checked")
@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
async def test_a_policy_that_evicts_only_what_has_a_time_to_live_will_do(start, policy):
    """No key of ours has one."""
    process = await start(maxmemory_policy=policy)
    cache = await ValkeyCache.open(process.uri)
    await cache.lease("l", [await cache.create(b"x")], 1000)
    await cache.append(cache.ref_of("logs", "s"), commit(1), None)
    await cache.close()
    keys = await process.command("KEYS", "*")
    assert isinstance(keys, list)
    assert {await process.command("PTTL", key.decode()) for key in keys} == {-1}


@needs_server
@pytest.mark.decision("D43-assumed")
async def test_a_service_that_hides_its_settings_is_taken_at_the_operators_word(start):
    process = await start(rename_command='CONFIG ""')
    cache = await ValkeyCache.open(f"{process.uri}/0?assume-durable=1")
    await cache.append(cache.ref_of("logs", "s"), commit(1), None)
    await cache.close()
    visible = await start(appendfsync="everysec")
    await _refused(f"{visible.uri}/0?assume-durable=1", "appendfsync is everysec")


@needs_server
async def test_a_user_who_may_do_what_is_needed_and_no_more(start, monkeypatch):
    """A permission that is missing is named when the role starts, not in the middle of a session."""
    commands = "+info +config|get +script|load +evalsha +select"
    data = "+get +set +hget +hmget +hset +del +exists +strlen +append +getrange +incrby +decrby +time +@sortedset"
    process = await start(user=f"sdcp on >secret ~{{sdcp}}:* {commands} {data}")
    monkeypatch.setenv("SDCP_VALKEY_USER", "sdcp")
    monkeypatch.setenv("SDCP_VALKEY_PASSWORD", "secret")
    cache = await ValkeyCache.open(process.uri)
    ref = await cache.create(b"x")
    assert "secret" not in ref
    assert await cache.fetch(ref, at_most=1) == b"x"
    await cache.lease("l", [ref], 60_000)
    await cache.release("l")
    tag = await cache.append(cache.ref_of("logs", "s"), commit(1), None)
    assert (await cache.read_log(cache.ref_of("logs", "s"))).etag == tag
    await cache.delete(ref)
    await cache.sweep()
    assert len(await cache.listing("logs")) == 1
    await cache.close()
    await _refused(f"{process.uri}/0?prefix=other", "key")
    monkeypatch.setenv("SDCP_VALKEY_PASSWORD", "wrong")
    await _refused(process.uri, "(?i)password pair.* set SDCP_VALKEY_USER and SDCP_VALKEY_PASSWORD")


@needs_server
async def test_a_password_in_the_uri_is_in_no_other(start):
    process = await start(requirepass="secret")
    await _refused(process.uri, "(?i)auth")
    cache = await ValkeyCache.open(f"valkey://:secret@127.0.0.1:{process.port}")
    assert await cache.create(b"x", name="m1") == f"valkey://127.0.0.1:{process.port}/0/sdcp/objects/m1"
    await cache.close()


@needs_server
@pytest.mark.decision("D43-checked")
async def test_a_server_with_other_settings_in_the_place_of_the_first(start, tmp_path):
    process = await start()
    cache = await ValkeyCache.open(process.uri, deadline_s=2.0)
    ref = cache.ref_of("logs", "s")
    tag = await cache.append(ref, commit(1, 1), None)
    await process.kill()
    process.settings["appendfsync"] = "everysec"
    await process.start()
    for call in (cache.append(ref, commit(1, 2), tag), cache.read_log(ref), cache.create(b"x")):
        with pytest.raises(StoreUnavailableError, match="appendfsync is everysec"):
            await call
    await process.kill()
    process.settings["appendfsync"] = "always"
    await process.start()
    assert (await cache.read_log(ref)).data == commit(1, 1)
    await cache.append(ref, commit(1, 2), tag)
    await cache.close()


@needs_server
@pytest.mark.decision("D43-rechecked")
async def test_a_server_whose_settings_are_changed_meanwhile(start, monkeypatch):
    process = await start()
    cache = await ValkeyCache.open(process.uri, deadline_s=2.0)
    ref = cache.ref_of("logs", "s")
    tag = await cache.append(ref, commit(1, 1), None)
    await process.command("CONFIG", "SET", "appendfsync", "everysec")
    now = time.monotonic()
    monkeypatch.setattr(cache._server, "_clock", lambda: now + RECHECK_S)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="appendfsync is everysec"):
            await cache.append(ref, commit(1, 2), tag)
    await process.command("CONFIG", "SET", "appendfsync", "always")
    tag = (await cache.read_log(ref)).etag  # the first of them was done: a writer reads, as without an answer
    await cache.append(ref, commit(1, 3), tag)
    assert (await cache.read_log(ref)).data == commit(1, 1) + commit(1, 2) + commit(1, 3)
    await cache.close()


async def test_no_server():
    await _refused(f"valkey://127.0.0.1:{free_port()}", "127.0.0.1")


# -- what servers tell -------------------------------------------------------------------------------------------------


def test_servers_that_will_do():
    address = parse_address("valkey://host")
    assert complaints(INFO, GOOD, address) == []
    assert complaints({**INFO, "redis_version": "255.255.255"}, GOOD, address) == []
    assert complaints({}, None, parse_address("valkey://host?assume-durable=1")) == []


@pytest.mark.decision("D43-replicas")
@pytest.mark.parametrize(
    ("uri", "info", "sentence"),
    [
        ("valkey://host", {"redis_version": "6.2.14"}, "version 6.2; 7.0 is the oldest"),
        ("valkey://host", {"aof_last_write_status": "err"}, "last write to the append-only file failed"),
        ("valkey://host", {"aof_rewrite_in_progress": "1", "aof_base_size": "0"}, "for the first time"),
        ("valkey://host?replicas=1", {"redis_version": "7.0.15", "connected_slaves": "1"}, "needs WAITAOF"),
        ("valkey://host?replicas=2", {"connected_slaves": "1"}, "it has 1 replicas, and the URI wants 2"),
    ],
)
def test_servers_that_will_not(uri, info, sentence):
    (found,) = complaints({**INFO, **info}, GOOD, parse_address(uri))
    assert sentence in found


def test_what_is_hidden_is_named():
    address = parse_address("valkey://host")
    assert "INFO and CONFIG GET" in complaints({}, None, address)[0]
    assert "permit CONFIG GET," in complaints(INFO, None, address)[0]
    assert "permit INFO," in complaints({}, GOOD, address)[0]


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D43-uri")
@pytest.mark.parametrize(
    ("uri", "base"),
    [
        ("valkey://host", "valkey://host:6379/0/sdcp"),
        ("redis://HOST:1/3?prefix=a", "valkey://host:1/3/a"),
        ("rediss://u:p@host/", "valkeys://host:6379/0/sdcp"),
        ("valkeys://[::1]:7", "valkeys://[::1]:7/0/sdcp"),
        ("unix:///run/v.sock?db=1", "unix:///run/v.sock/1/sdcp"),
    ],
)
def test_the_same_server_has_the_same_uris_however_it_was_named(uri, base):
    assert parse_address(uri).base == base


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("https://host", "the scheme must be one of valkey, redis"),
        ("valkey:///0", "say the server's name"),
        ("valkey://host:x", "the port"),
        ("valkey://host/zero", "the database must be a whole number"),
        ("valkey://host?prefix=a/b", "prefix must be one name"),
        ("valkey://host?appendfsync=no", "unknown option appendfsync; there are db, prefix"),
        ("valkey://host?db=1", "unknown option db"),
        ("valkey://host?capacity=-1", "capacity must be a whole number"),
        ("valkey://host?object_ttl_s=nan", "object_ttl_s must be a number"),
        ("valkeys://host?ca=/nowhere.pem", "there is no file /nowhere.pem"),
        ("valkey://host?ca=x", "use valkeys://"),
        ("unix:run.sock", "full path"),
    ],
)
def test_addresses_that_are_none(uri, sentence):
    with pytest.raises(ConfigurationError, match=r".") as refused:
        parse_address(uri)
    assert sentence in str(refused.value)


def test_a_password_is_not_shown():
    with pytest.raises(ConfigurationError) as refused:
        parse_address("valkey://u:secret@host?capacity=x")
    assert "secret" not in str(refused.value)
