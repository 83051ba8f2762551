"""What is only so of a store that speaks S3: its answers on the wire, its keys, and what is left half done (D42)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import MemoryStore

from sdcp.errors import ConfigurationError, Forbidden
from sdcp.ports import LogDamagedError, LogMovedError, LogSlice, ObjectMissingError, StoreUnavailableError
from sdcp.stores import s3_leases
from sdcp.stores.s3 import S3Cache
from sdcp.stores.s3_bucket import Bucket
from sdcp.stores.s3_place import parse_place
from tests.unit.stores.s3_process import S3Process
from tests.unit.stores.samples import commit, fence

BASE = "s3://bucket/sdcp"


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def cache(memory: MemoryStore) -> AsyncIterator[S3Cache]:
    opened = S3Cache(Bucket(memory, memory, deadline_s=20.0), base=BASE, owner="verifier")
    yield opened
    await opened.close()


def keys(memory: MemoryStore) -> list[str]:
    return sorted(meta["path"] for meta in obstore.list(memory).collect())


# -- where it is -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_what_a_uri_says(bare_environment):
    place = parse_place("s3://bucket/a/b/?endpoint=https://s3.test:9000&region=eu-central-1")
    assert (place.base, place.endpoint, place.region) == ("s3://bucket/a/b", "https://s3.test:9000", "eu-central-1")
    assert parse_place("s3://bucket").base == "s3://bucket"
    assert parse_place("s3://bucket").endpoint is None
    bare_environment.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert parse_place("s3://bucket").allow_http


@pytest.mark.decision("D42-credentials")
@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://key:secret@bucket/x", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/x?secret=y", "unknown option secret"),
        ("s3://bucket/x#y", "say a bucket"),
        ("s3:///x", "say a bucket"),
        ("s3://Bucket/x", "say a bucket"),
        ("s3://bucket/a/../b", "a folder's name"),
        ("s3://bucket/a%2fb", "a folder's name"),
        ("s3://bucket/a//b", "a folder's name"),
        ("s3://bucket/x?endpoint=http://s3.test:9000", "has no TLS"),
        ("s3://bucket/x?endpoint=http://127.0.0.1.test:9000", "has no TLS"),
    ],
)
def test_what_a_uri_may_not_say(bare_environment, uri, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        parse_place(uri)
    assert "secret@" not in str(refused.value)


def test_without_tls_only_on_this_machine_or_when_it_is_said(bare_environment):
    for uri in ("http://127.0.0.1:9000", "http://[::1]:9000", "http://localhost:9000"):
        assert parse_place(f"s3://bucket/x?endpoint={uri}").allow_http
    assert parse_place("s3://bucket/x?endpoint=http://s3.test:9000&allow-http=1").allow_http


# -- its answers -------------------------------------------------------------------------------------------------------

Change = Callable[[bytes, bytes], bytes | None]
"""Of a request and its answer: what the client gets, or None for nothing, and the end of the connection."""


@asynccontextmanager
async def between(s3: S3Process, change: Change, request: Callable[[bytes], bytes] = lambda sent: sent):
    """A proxy before the server; gives its endpoint."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = await _message(reader)
        backend, out = await asyncio.open_connection("127.0.0.1", s3.port)
        out.write(request(sent).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        answer = change(sent, await backend.read())
        out.close()
        writer.write(answer or b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP/1.1 request, whose length is said or 0."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)


def only(method: bytes, path: bytes, change: Change) -> Change:
    """Change answers to this method, of paths that have this in them."""
    return lambda sent, answer: (
        change(sent, answer) if sent.startswith(method + b" ") and path in sent.split(b" ")[1] else answer
    )


@pytest.mark.decision("D42-lost-answer")
async def test_an_append_whose_answer_is_lost_was_sent_once_and_is_there(s3):
    bucket, asked = s3.bucket(), []

    def lose(sent: bytes, answer: bytes) -> None:
        asked.append(sent)

    async with between(s3, only(b"PUT", b"/logs/", lose)) as endpoint:
        cache = await S3Cache.open(f"s3://{bucket}/x?endpoint={endpoint}")
        ref = cache.ref_of("logs", "s")
        with pytest.raises(StoreUnavailableError):
            await cache.append(ref, commit(1), None)
        assert len(asked) == 1
        found = await cache.read_log(ref)
        assert found.data == commit(1), "the writer reads the log, and knows"
        await cache.close()
    again = await S3Cache.open(f"s3://{bucket}/x?endpoint={s3.endpoint}")
    with pytest.raises(LogMovedError):
        await again.append(ref, commit(1), None)
    await again.close()


async def test_an_object_whose_answer_is_lost_is_asked_for_again(s3):
    bucket, lost = s3.bucket(), []

    def lose_once(sent: bytes, answer: bytes) -> bytes | None:
        lost.append(sent)
        return None if len(lost) == 1 else answer

    async with between(s3, only(b"PUT", b"/objects/", lose_once)) as endpoint:
        cache = await S3Cache.open(f"s3://{bucket}/x?endpoint={endpoint}")
        ref = await cache.create(b"hello")
        assert len(lost) == 2, "the second says that it is there, and it is the same"
        assert await cache.fetch(ref, at_most=5) == b"hello"
        await cache.close()


@pytest.mark.parametrize("kept", [0, 1, 99])
async def test_an_answer_that_is_cut_is_no_object_and_no_log(s3, kept):
    bucket = s3.bucket()

    def cut(sent: bytes, answer: bytes) -> bytes:
        head, _, body = answer.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n" + body[:kept]

    whole = await S3Cache.open(f"s3://{bucket}/x?endpoint={s3.endpoint}")
    ref, log = await whole.create(bytes(1000)), whole.ref_of("logs", "s")
    await whole.append(log, commit(1, tokens=1000), None)
    await whole.close()
    async with between(s3, only(b"GET", b"/x/", cut)) as endpoint:
        cache = await S3Cache.open(f"s3://{bucket}/x?endpoint={endpoint}", deadline_s=2.0)
        for call in (cache.fetch(ref, at_most=1000), cache.read_log(log)):
            with pytest.raises(StoreUnavailableError):
                await call
        await cache.close()


async def test_a_list_that_is_cut_is_no_shorter_log(s3):
    bucket = s3.bucket()
    whole = await S3Cache.open(f"s3://{bucket}/x?endpoint={s3.endpoint}")
    log = whole.ref_of("logs", "s")
    await whole.append(log, commit(1, 2), await whole.append(log, commit(1, 1), None))
    await whole.close()
    cuts: list[int] = []

    def cut(sent: bytes, answer: bytes) -> bytes:
        return answer[: cuts[0]] if cuts else answer

    async with between(s3, only(b"GET", b"list-type=2", cut)) as endpoint:
        cache = await S3Cache.open(f"s3://{bucket}/x?endpoint={endpoint}", deadline_s=2.0)
        for length in (0, 1, 100, 300, 500, 700):
            cuts[:] = [length]
            with pytest.raises(StoreUnavailableError):
                await cache.read_log(log)
        await cache.close()


async def test_a_log_of_more_keys_than_a_list_has(s3):
    """The server gives a thousand at a time; the end is found, and a tail is read without what is before it."""
    records = [commit(1, round_) for round_ in range(1050)]
    starts = [sum(map(len, records[:number])) for number in range(len(records))]
    cache = await S3Cache.open(s3.uri(s3.bucket()), deadline_s=60.0)
    await asyncio.gather(
        *(cache._bucket.create(f"logs/s/{start:016d}", record) for start, record in zip(starts, records, strict=True))
    )
    log, end = cache.ref_of("logs", "s"), starts[-1] + len(records[-1])
    assert (await cache.read_log(log, 0, 100)).data == b"".join(records)[:100]
    found = await cache.read_log(log, starts[-3])
    assert found.data == b"".join(records[-3:])
    tag = await cache.append(log, fence(2), found.etag)
    assert await cache.read_log(log, end) == LogSlice(end, fence(2), tag)
    assert [entry.size for entry in await cache.listing("logs")] == [end + len(fence(2))]
    await cache.close()


async def test_an_object_that_is_too_large_is_not_read(s3):
    cache = await S3Cache.open(s3.uri(s3.bucket()))
    ref = await cache.create(bytes(1 << 20))
    with pytest.raises(ValueError, match="1048576"):
        await cache.fetch(ref, at_most=1 << 10)
    await cache.close()


# -- what is checked before it is used ---------------------------------------------------------------------------------


@pytest.mark.decision("D42-checked")
async def test_a_store_that_writes_over_what_is_there_is_not_used(s3):
    bucket = s3.bucket()

    def without_condition(sent: bytes) -> bytes:
        return b"\r\n".join(line for line in sent.split(b"\r\n") if not line.lower().startswith(b"if-none-match"))

    async with between(s3, lambda sent, answer: answer, without_condition) as endpoint:
        with pytest.raises(ConfigurationError, match="conditional writes"):
            await S3Cache.open(f"s3://{bucket}/x?endpoint={endpoint}")


@pytest.mark.decision("D42-checked")
async def test_a_store_whose_lists_are_late_is_not_used(s3):
    bucket = s3.bucket()
    empty = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" % (len(empty), empty)
    change = only(b"GET", b"list-type=2", lambda sent, _: answer)
    async with between(s3, change) as endpoint:
        with pytest.raises(ConfigurationError, match="lists are consistent"):
            await S3Cache.open(f"s3://{bucket}/x?endpoint={endpoint}")


@pytest.mark.decision("D42-checked")
async def test_a_bucket_that_is_not_there_and_a_server_that_is_not_there(s3):
    with pytest.raises(ConfigurationError, match=r"s3://no-such-bucket/x cannot be used: .* \(NoSuchBucket\)$"):
        await S3Cache.open(f"s3://no-such-bucket/x?endpoint={s3.endpoint}")
    with pytest.raises(ConfigurationError, match=r"cannot be used"):
        await S3Cache.open("s3://no-such-bucket/x?endpoint=http://127.0.0.1:1", deadline_s=1.0)


@pytest.mark.decision("D42-credentials")
async def test_who_has_no_credentials_is_told_where_they_belong(cache, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise BaseError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token")

    monkeypatch.setattr(obstore, "put", refuse)
    with pytest.raises(ConfigurationError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        await cache.check()


async def test_a_bucket_that_was_removed_is_not_taken_for_an_empty_one(s3):
    bucket = s3.bucket()
    cache = await S3Cache.open(s3.uri(bucket))
    ref = await cache.create(b"x")
    await cache.delete(ref)
    s3.remove(bucket)
    for call in (cache.fetch(ref, at_most=1), cache.read_log(cache.ref_of("logs", "s")), cache.create(b"x")):
        with pytest.raises(StoreUnavailableError):
            await call
    await cache.close()


# -- logs --------------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D42-log")
async def test_an_append_is_one_key_at_the_octet_where_the_log_ended(cache, memory):
    ref = cache.ref_of("logs", "s")
    tag = await cache.append(ref, commit(1, 1), None)
    await cache.append(ref, commit(1, 2), tag)
    assert keys(memory) == ["logs/s/0000000000000000", f"logs/s/{len(commit(1, 1)):016d}"]


async def test_a_tag_of_another_log_or_made_up_makes_no_hole(cache):
    ref, other = cache.ref_of("logs", "s"), cache.ref_of("logs", "other")
    tag = await cache.append(other, commit(1, 1), None)
    for wrong in (tag, "0", "00", "", "-1", "7", f"0.{tag.partition('.')[2]}", "٣", f"{tag} "):
        with pytest.raises(LogMovedError):
            await cache.append(ref, commit(1, 1), wrong)
    assert await cache.read_log(ref) == LogSlice(0, b"", None)


@pytest.mark.decision("D42-gone", "D47")
async def test_a_log_in_which_a_key_is_gone_is_damaged_and_never_shortened(cache, memory):
    ref, tag, starts, whole = cache.ref_of("logs", "s"), None, [], b""
    for round_ in range(5):
        starts.append(len(whole))
        tag = await cache.append(ref, commit(1, round_), tag)
        whole += commit(1, round_)
    for gone in range(4):
        path = f"logs/s/{starts[gone]:016d}"
        kept = bytes(obstore.get(memory, path).bytes())
        obstore.delete(memory, path)
        with pytest.raises(LogDamagedError) as damage:
            await cache.read_log(ref)
        assert (damage.value.intact, damage.value.data) == (starts[gone], whole[: starts[gone]])
        with pytest.raises(LogDamagedError):
            await cache.read_log(ref, starts[gone] + 1)
        obstore.put(memory, path, kept)
    assert await cache.read_log(ref) == LogSlice(0, whole, tag)


async def test_the_tail_is_found_wherever_a_reader_was(cache):
    """Records of all sizes; a reader that has read to an octet asks for what follows, whether there is any or not."""
    ref, tag, whole = cache.ref_of("logs", "s"), None, b""
    for round_ in range(40):
        record = commit(1, round_, tokens=3000 if round_ == 20 else round_)
        tag = await cache.append(ref, record, tag)
        whole += record
    for start in (*range(0, len(whole), 97), len(whole)):
        assert await cache.read_log(ref, start) == LogSlice(start, whole[start:], tag)


# -- leases ------------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D42-leases")
async def test_what_ends_leaves_nothing(cache, memory):
    refs = [await cache.create(bytes([number])) for number in range(3)]
    await cache.lease("l", refs, 60_000)
    await cache.lease("l", refs[:1], 60_000)
    await cache.release("l")
    for ref in refs:
        await cache.delete(ref)
    assert keys(memory) == []


async def test_a_lease_of_another_owner(cache, memory):
    other = S3Cache(Bucket(memory, memory, deadline_s=20.0), base=BASE, owner="router")
    ref = await cache.create(b"x")
    await cache.lease("l", [ref], 60_000)
    for call in (other.lease("l", [ref], 1000), other.release("l")):
        with pytest.raises(Forbidden):
            await call
    await other.delete(ref)
    assert await cache.fetch(ref, at_most=1) == b"x"
    await other.close()


@pytest.mark.decision("D42-leases")
async def test_what_was_left_half_done_is_swept(cache, memory, monkeypatch):
    """A deleter that ended before it deleted, one that ended before it let go, a marker alone, a lease that is over."""
    doomed, held, free = [await cache.create(bytes([number])) for number in range(3)]
    await cache.lease("live", [held], 60_000)
    await cache.lease("over", [free], 1)
    for ref in (doomed, held):
        obstore.put(memory, f"leased/{ref.rpartition('/')[2]}/.tombstone", b"")
    obstore.put(memory, f"leased/{free.rpartition('/')[2]}/nobody", b"")
    with pytest.raises(ObjectMissingError):
        await cache.lease("l", [doomed], 60_000)
    await cache.sweep()
    assert await cache.fetch(doomed, at_most=1) == b"\0", "what is young may be somebody's who is at it"
    monkeypatch.setattr(s3_leases, "LEFT_OVER_S", -5.0)
    await cache.sweep()
    with pytest.raises(ObjectMissingError):
        await cache.fetch(doomed, at_most=1)
    monkeypatch.undo()
    assert [entry.name for entry in await cache.listing("objects")] == sorted(
        ref.rpartition("/")[2] for ref in (held, free)
    )


async def test_a_lease_that_is_not_ours_to_read(cache, memory):
    ref = await cache.create(b"x")
    obstore.put(memory, "leases/l", b"\xff")
    with pytest.raises(StoreUnavailableError, match="no lease of ours"):
        await cache.lease("l", [ref], 1000)


async def test_a_stale_record_is_taken_and_stands_behind_the_fence(cache):
    """The store reads no records; that it is void is for readers to see (6.8)."""
    ref = cache.ref_of("logs", "s")
    tag = await cache.append(ref, commit(1, 1), None)
    tag = await cache.append(ref, fence(2), tag)
    await cache.append(ref, commit(1, 2), tag)
    assert not cache.enforces_fences(ref)
    assert (await cache.read_log(ref)).data == commit(1, 1) + fence(2) + commit(1, 2)
