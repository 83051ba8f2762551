"""The cache that the kit plays, as docs/mlc.md describes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sdcp_conformance.encoding import encode
from sdcp_conformance.net.connection import Peer
from sdcp_conformance.net.server import NoAnswer, Request, Response
from sdcp_conformance.played.cache import Hold, PlayedCache, answered, lost_answer

BASE = "https://127.0.0.1:1/sdcp"
PEER = Peer()


async def ask(cache: PlayedCache, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return await cache.handle(Request(method, f"/sdcp/{path}", {}, fields, body, PEER))


def record(round_: int, epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "round": round_, "tokens": [], "committed": 0, "digest": bytes(32)}


async def append(cache: PlayedCache, item: dict[str, Any], tag: str | None) -> Response:
    condition = {"if_none_match": "*"} if tag is None else {"if_match": tag}
    return await ask(cache, "PATCH", "logs/l", encode(item), **condition)


def tag_of(response: Response) -> str:
    return dict(response.headers)["etag"]


async def test_objects() -> None:
    cache = PlayedCache(BASE)
    assert (await ask(cache, "GET", "objects/o")).status == 404
    assert (await ask(cache, "PUT", "objects/o", b"abc")).status == 201
    assert (await ask(cache, "PUT", "objects/o", b"abc")).status == 200
    assert (await ask(cache, "PUT", "objects/o", b"abd")).status == 412
    assert (await ask(cache, "GET", "objects/o")).body == b"abc"
    part = await ask(cache, "GET", "objects/o", range="bytes=1-1")
    assert (part.status, part.body, dict(part.headers)["content-range"]) == (206, b"b", "bytes 1-1/3")
    assert (await ask(cache, "HEAD", "objects/o")).body == b""
    assert (await ask(cache, "DELETE", "objects/o")).status == 204
    assert cache.get(f"{BASE}/objects/o") is None


async def test_leases() -> None:
    cache = PlayedCache(BASE)
    lease = encode({"objects": ["o"], "ttl_ms": 60_000})
    assert (await ask(cache, "PUT", "leases/l", lease)).status == 404
    ref = cache.put(b"x", "o")
    assert (await ask(cache, "PUT", "leases/l", lease)).status == 204
    assert cache.leased(ref)
    assert (await ask(cache, "DELETE", "objects/o")).status == 409
    assert (await ask(cache, "DELETE", "leases/l")).status == 204
    assert not cache.leased(ref)
    assert (await ask(cache, "PUT", "leases/l", b"\x01")).status == 400


async def test_appends_are_conditional() -> None:
    cache = PlayedCache(BASE)
    first = await append(cache, record(1), None)
    assert first.status == 201
    assert (await append(cache, record(2), None)).status == 412
    second = await append(cache, record(2), tag_of(first))
    assert second.status == 204
    assert (await append(cache, record(3), tag_of(first))).status == 412
    assert [each["round"] for each in cache.log(f"{BASE}/logs/l").records] == [1, 2]
    assert (await ask(cache, "GET", "logs/l")).body == encode(record(1)) + encode(record(2))
    assert (await ask(cache, "GET", "logs/l", range="bytes=1000-")).status == 416


async def test_fences_hold() -> None:
    cache = PlayedCache(BASE)
    tag = tag_of(await append(cache, record(1), None))
    tag = tag_of(await append(cache, {"epoch": 2}, tag))
    for item in (record(2), {"epoch": 2}, {"epoch": 1}):
        refused = await append(cache, item, tag)
        assert (refused.status, b"sdcp-stale-epoch" in refused.body) == (409, True)
    assert (await append(cache, record(2, 2), tag)).status == 204


@pytest.mark.parametrize("path", ["", "objects", "objects/a/b", "other/x"])
async def test_nothing_else_is_there(path: str) -> None:
    assert (await ask(PlayedCache(BASE), "GET", path)).status == 404


async def test_faults_are_for_one_request_each() -> None:
    cache = PlayedCache(BASE)
    cache.on("PATCH", f"{BASE}/logs/l", answered(503), lost_answer())
    assert (await append(cache, record(1), None)).status == 503
    with pytest.raises(NoAnswer):
        await append(cache, record(1), None)
    assert [each["round"] for each in cache.log("l").records] == [1]
    assert (await append(cache, record(1), None)).status == 412


async def test_an_append_that_is_held() -> None:
    cache, hold = PlayedCache(BASE), Hold(10)
    cache.on("PATCH", "l", hold)
    appending = asyncio.create_task(append(cache, record(1), None))
    await hold.reached()
    assert not cache.log("l").records
    hold.release()
    assert (await appending).status == 201
    assert await cache.until(lambda: cache.journal, 1)
    assert not await cache.until(lambda: len(cache.journal) > 1, 0.01)
