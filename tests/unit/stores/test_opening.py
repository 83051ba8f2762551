"""Caches by their URIs, and several as one: which URI means what, what is refused, and where what goes (D11, D42)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError, Forbidden
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.tls import client_context
from sdcp.ports import Cache, LogFencedError, LogSlice, ObjectMissingError, StoreUnavailableError
from sdcp.stores.opening import SCHEMES, open_cache
from tests.unit.stores.s3_process import S3Process
from tests.unit.stores.samples import commit, fence


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(client_context(issue(tmp_path / "certs", "a", "verifier", ["https://a.test/"]))) as made:
        yield made


# -- what a URI means --------------------------------------------------------------------------------------------------


@pytest.mark.decision("D42-schemes")
@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://127.0.0.1:7400", "the scheme must be one of https:, file:, memory:, s3:, valkey:"),
        ("ftp://a/b", "the scheme must be one of"),
        ("/var/lib/sdcp", "the scheme must be one of"),
        ("", "the scheme must be one of"),
        ("https://a/?x", "https URI"),
        ("file:store", "full path of a folder"),
        ("file://host/folder", "full path of a folder"),
        ("file:///a/../b", "full path of a folder"),
        ("file:///a/.", "full path of a folder"),
        ("file:///a%20b", "full path of a folder"),
        ("file:///a?b", "full path of a folder"),
        ("memory:x", "memory:/ and a name"),
        ("memory:/a/b", "memory:/ and a name"),
        ("memory:/", "memory:/ and a name"),
        ("s3:///x", "say a bucket"),
        ("valkey://", "say the server's name"),
    ],
)
async def test_what_cannot_be_opened_is_said_in_one_line(client, uri, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        await open_cache([uri], client=client)
    assert "\n" not in str(refused.value)


async def test_an_https_cache_needs_a_certificate():
    with pytest.raises(ConfigurationError, match="certificate"):
        await open_cache(["https://127.0.0.1:7400"])


@pytest.mark.decision("D42-schemes")
@pytest.mark.parametrize(
    ("uri", "module", "library", "extra"),
    [
        ("s3://bucket/x", "sdcp.stores.s3", "obstore", "s3"),
        ("valkey://127.0.0.1/0", "sdcp.stores.valkey", "valkey", "valkey"),
    ],
)
async def test_a_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch, uri, module, library, extra):
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name == library or name.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError, match=rf"needs {library}.*: run pip install 'sdcp\[{extra}\]'"):
        await open_cache([uri])


async def test_every_scheme_of_the_settings_can_be_opened():
    for scheme in SCHEMES:
        with pytest.raises(ConfigurationError) as refused:
            await open_cache([f"{scheme}:?"])
        assert "the scheme must be" not in str(refused.value)


async def test_a_folder_is_open_as_long_as_anybody_in_this_process_has_it(tmp_path):
    uri = f"file://{tmp_path}/store"
    one, two = await open_cache([uri], owner="a"), await open_cache([f"{uri}/"], owner="b")
    ref = await one.create(b"x")
    await one.close()
    await one.close()
    assert await two.fetch(ref, at_most=1) == b"x"
    tag = await two.append(two.ref_of("logs", "s"), commit(1), None)
    await two.close()
    again = await open_cache([uri])
    assert await again.read_log(again.ref_of("logs", "s")) == LogSlice(0, commit(1), tag)
    assert ref == f"{uri}/objects/{ref.rpartition('/')[2]}"
    await again.close()


async def test_memory_is_shared_by_name_within_the_process():
    one, two = await open_cache(["memory:/one"]), await open_cache(["memory:/one"])
    other = await open_cache(["memory:/other"])
    ref = await one.create(b"x")
    assert await two.fetch(ref, at_most=1) == b"x"
    assert not other.allows(ref)


async def test_a_server_that_cannot_be_used_leaves_nothing_open(tmp_path, s3):
    uri = f"file://{tmp_path}/store"
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await open_cache([uri, f"s3://no-such-bucket/x?endpoint={s3.endpoint}"])
    from sdcp.stores import files

    assert files._open == {}


@pytest.mark.parametrize("second", ["memory:/a/", "memory:/a"])
async def test_one_place_is_named_once(second):
    opened = await open_cache(["memory:/a", second])
    assert opened.allows("memory:/a/objects/x")


async def test_two_names_of_one_place_are_refused(s3: S3Process):
    uri = s3.uri(s3.bucket())
    with pytest.raises(ConfigurationError, match="the same place"):
        await open_cache([uri, f"{uri}&region=us-east-1"])


# -- several as one ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def two(s3: S3Process) -> AsyncIterator[Cache]:
    """Objects in memory, logs in S3, and a third cache from which peers may name what they like."""
    opened = await open_cache(["memory:/first", "memory:/third"], logs=s3.uri(s3.bucket()), owner="verifier")
    yield opened
    await opened.close()


@pytest.fixture
async def third() -> Cache:
    return await open_cache(["memory:/third"], owner="drafter")


@pytest.mark.decision("D42-several")
async def test_new_objects_go_to_the_first_and_new_logs_where_they_were_told_to(two):
    assert (await two.create(b"x")).startswith("memory:/first/objects/")
    assert two.ref_of("leases", "l") == "memory:/first/leases/l"
    log = two.ref_of("logs", "s")
    assert log.startswith("s3://")
    tag = await two.append(log, commit(1), None)
    assert await two.read_log(log) == LogSlice(0, commit(1), tag)
    assert [entry.name for entry in await two.listing("logs")] == ["s"]
    assert len(await two.listing("objects")) == 1


@pytest.mark.decision("D42-several", "D42-read-back")
async def test_each_ref_is_used_where_it_is_and_each_log_has_its_own_rule(two, third):
    ref = await third.create(b"named by a peer")
    assert two.allows(ref)
    assert await two.fetch(ref, at_most=20) == b"named by a peer"
    in_memory, in_s3 = third.ref_of("logs", "s"), two.ref_of("logs", "s")
    assert two.allows_log(in_memory)
    assert (two.enforces_fences(in_memory), two.enforces_fences(in_s3)) == (True, False)
    tag = await two.append(in_memory, fence(2), None)
    with pytest.raises(LogFencedError):
        await two.append(in_memory, commit(1), tag)
    await two.append(in_s3, commit(1), await two.append(in_s3, fence(2), None))
    await two.delete(ref)
    with pytest.raises(ObjectMissingError):
        await third.fetch(ref, at_most=20)


async def test_d11_what_is_under_no_prefix_is_not_used(two):
    for ref in ("memory:/fourth/objects/x", "memory:/first/objects/../x", "memory:/firstobjects/x", "", "objects/x"):
        assert not two.allows(ref)
        assert not two.allows_log(ref)
        with pytest.raises(ValueError, match="none of the objects"):
            await two.fetch(ref, at_most=1)
        with pytest.raises(ValueError, match="none of the objects"):
            await two.lease("l", [ref], 1000)
        with pytest.raises(ValueError, match="none of the logs"):
            await two.append(ref, commit(1), None)


@pytest.mark.decision("D42-several")
async def test_a_lease_over_several_is_all_or_nothing_too(two, third):
    here, there = await two.create(b"x"), await third.create(b"y")
    await two.lease("l", [here, there], 60_000)
    for ref in (here, there):
        await two.delete(ref)
        assert await two.fetch(ref, at_most=1)
    await two.release("l")
    await two.delete(there)
    with pytest.raises(ObjectMissingError):
        await two.lease("m", [here, there], 60_000)
    assert await two.listing("leases") == []
    await two.delete(here)
    with pytest.raises(ObjectMissingError):
        await two.fetch(here, at_most=1)


async def test_a_lease_that_moves_from_one_to_another_leaves_the_first(two, third):
    here, there = await two.create(b"x"), await third.create(b"y")
    await two.lease("l", [here], 60_000)
    await two.lease("l", [there], 60_000)
    assert await two.listing("leases") == []
    assert [entry.objects for entry in await third.listing("leases")] == [(there.rpartition("/")[2],)]
    await two.release("l")
    await two.sweep()
    assert await third.listing("leases") == []


async def test_leases_that_cannot_be_given_back_are_not_remembered(two, third, monkeypatch):
    """A drafter takes one for every round: while a cache is away they must not pile up."""

    async def away(lease: str) -> None:
        raise StoreUnavailableError("away")

    ref = await third.create(b"x")
    for cache in two._caches:
        monkeypatch.setattr(cache, "release", away)
    for number in range(3):
        await two.lease(f"l{number}", [ref], 1000)
        with pytest.raises(StoreUnavailableError):
            await two.release(f"l{number}")
    assert not two._leased


@pytest.mark.decision("D42-several")
async def test_a_refusal_of_one_cache_ends_what_the_others_gave(two, third):
    ours = await two.create(b"x")
    theirs = await third.create(b"y")
    await third.lease("l", [theirs], 60_000)
    with pytest.raises(Forbidden):
        await two.lease("l", [ours, theirs], 60_000)
    await two.delete(ours)
    with pytest.raises(ObjectMissingError):
        await two.fetch(ours, at_most=1)
