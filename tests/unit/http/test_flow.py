"""Memory is bounded both ways, whatever the other side does (RFC 9113 section 5.2)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import ngh2
import pytest

from sdcp.http.connection import CHUNK, HIGH_WATER
from sdcp.http.exchange import Request, Response
from sdcp.http.faults import AnswerTooLarge
from sdcp.http.limits import ClientLimits, ServerLimits

MIB = 1 << 20
BIG = bytes(range(256)) * (8 * MIB // 256)
WINDOW = 256 * 1024
# What may be on the way beside the window: the queue, the transport's buffer, TLS's, and the sockets' in the kernel.
SLACK = HIGH_WATER + 2 * CHUNK + HIGH_WATER + 1 * MIB + 6 * MIB


async def echo(request: Request) -> Response:
    return Response(200, (), await request.body(16 * MIB))


async def pieces(data: bytes, size: int = CHUNK) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_large_bodies_both_ways(serving: Callable) -> None:
    async with serving(echo) as (_, client, base):
        answer = await client.request("POST", base, body=BIG)
        assert sha256(answer.body).digest() == sha256(BIG).digest()
        answer = await client.request("POST", base, body=memoryview(BIG))
        assert answer.body == BIG


async def test_large_bodies_as_iterators_both_ways(serving: Callable) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, (), request.chunks())

    async with serving(handler) as (_, client, base):
        answer = await client.request("POST", base, body=pieces(BIG, 100_001), objects=True)
        assert answer.body == BIG


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, HIGH_WATER, HIGH_WATER + 1, MIB + 1])
async def test_bodies_at_the_edges(serving: Callable, size: int) -> None:
    body = BIG[:size]
    async with serving(echo) as (_, client, base):
        assert (await client.request("POST", base, body=body)).body == body
        assert (await client.request("POST", base, body=pieces(body, 1000))).body == body


async def test_an_upload_stops_at_the_window_while_nobody_reads(serving: Callable, raw: Callable) -> None:
    go, entered = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        entered.set()
        await go.wait()
        return Response(200, (), str(len(await request.body(16 * MIB))).encode())

    async with serving(handler, limits=ServerLimits(stream_window=WINDOW)) as (server, _, _), raw(server) as client:
        await client.until(ngh2.SettingsReceived)
        stream = client.request()
        client.h2.send_data(stream, BIG[: 4 * MIB], end_stream=True)
        await client.flush()
        while client.h2.stream_remote_window_size(stream) > 0:
            await client.settle()
        await client.settle()
        (connection,) = server.connections
        assert connection.streams[stream].received.held == WINDOW
        assert client.h2.queued_body_size(stream) == 4 * MIB - WINDOW
        go.set()
        assert await client.status(stream) == 200
        assert (await client.until(ngh2.DataReceived, stream)).data == str(4 * MIB).encode()


async def test_a_stalled_upload_does_not_hold_up_other_requests(serving: Callable, raw: Callable) -> None:
    go = asyncio.Event()

    async def handler(request: Request) -> Response:
        if request.path == "/slow":
            await go.wait()
        return Response(200, (), str(len(await request.body(16 * MIB))).encode())

    async with serving(handler, limits=ServerLimits(stream_window=WINDOW)) as (_, client, base):
        slow = asyncio.create_task(client.request("POST", f"{base}/slow", body=BIG))
        assert (await client.request("POST", f"{base}/quick", body=b"x" * 300)).body == b"300"
        go.set()
        assert (await slow).body == str(len(BIG)).encode()


async def test_the_window_of_unread_bodies_is_given_back(serving: Callable) -> None:
    """Many refused uploads must not eat up the connection's window."""

    async def refuse(request: Request) -> Response:
        if request.method == "POST":
            return Response(403)
        return Response(200, (), str(len(await request.body(16 * MIB))).encode())

    limits = ServerLimits(stream_window=WINDOW, connection_window=WINDOW)
    async with serving(refuse, limits=limits) as (_, client, base):
        for _ in range(20):
            assert (await client.request("POST", base, body=BIG[: 2 * WINDOW])).status == 403
        assert (await client.request("PUT", base, body=BIG)).body == str(len(BIG)).encode()


async def test_a_download_stops_while_nobody_reads(serving: Callable, raw: Callable) -> None:
    produced = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal produced
        while True:
            produced += CHUNK
            yield BIG[:CHUNK]

    async def handler(request: Request) -> Response:
        return Response(200, (), endless())

    async with serving(handler) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        assert await client.status(stream) == 200
        (connection,) = server.connections
        while connection.streams[stream].writer is None:
            await client.settle()
        before = produced
        await client.settle()
        await client.settle()
        assert produced == before
        assert connection.queued(connection.streams[stream]) <= HIGH_WATER + CHUNK
        assert produced <= 65_535 + HIGH_WATER + 2 * CHUNK  # the default window of RFC 9113, and the queue


async def test_a_large_answer_of_bytes_is_not_copied_whole_into_the_queue(serving: Callable, raw: Callable) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, (), memoryview(BIG))

    async with serving(handler) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        assert await client.status(stream) == 200
        (connection,) = server.connections
        while connection.streams[stream].writer is None:
            await client.settle()
        assert connection.queued(connection.streams[stream]) <= HIGH_WATER + CHUNK


async def test_a_reader_that_takes_its_time_holds_the_server_back(serving: Callable) -> None:
    produced = consumed = lag = 0

    async def long() -> AsyncIterator[bytes]:
        nonlocal produced
        for _ in range(32 * MIB // CHUNK):
            produced += CHUNK
            yield BIG[:CHUNK]

    async def handler(request: Request) -> Response:
        return Response(200, (), long())

    options = {"limits": ClientLimits(stream_window=WINDOW)}
    async with serving(handler, client=options) as (_, client, base), client.stream("GET", base) as reply:
        async for chunk in reply.chunks():
            lag = max(lag, produced - consumed)
            consumed += len(chunk)
    assert consumed == 32 * MIB
    assert lag <= WINDOW + SLACK


async def test_a_body_iterator_is_asked_only_as_the_server_reads(serving: Callable) -> None:
    produced = consumed = lag = 0

    async def long() -> AsyncIterator[bytes]:
        nonlocal produced
        for _ in range(32 * MIB // CHUNK):
            produced += CHUNK
            yield BIG[:CHUNK]

    async def handler(request: Request) -> Response:
        nonlocal consumed, lag
        async for chunk in request.chunks():
            lag = max(lag, produced - consumed)
            consumed += len(chunk)
        return Response(204)

    async with serving(handler, limits=ServerLimits(stream_window=WINDOW)) as (_, client, base):
        assert (await client.request("PUT", base, body=long())).status == 204
    assert consumed == 32 * MIB
    assert lag <= WINDOW + SLACK


@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_longer_than_allowed_is_refused(serving: Callable, announced: bool) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, (), BIG if announced else pieces(BIG))

    async with serving(handler) as (_, client, base):
        with pytest.raises(AnswerTooLarge):
            await client.request("GET", base, max_bytes=1000, idempotent=True)
        assert len((await client.request("GET", base, max_bytes=len(BIG))).body) == len(BIG)


async def test_abandoned_answers_give_the_window_back(serving: Callable) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, (), pieces(BIG))

    options = {"limits": ClientLimits(stream_window=WINDOW, connection_window=WINDOW)}
    async with serving(handler, client=options) as (_, client, base):
        for _ in range(10):
            async with client.stream("GET", base) as reply:
                assert await anext(reply.chunks())
        assert len((await client.request("GET", base)).body) == len(BIG)


async def test_sixty_four_streams_at_once(serving: Callable) -> None:
    together, inside = asyncio.Event(), 0

    async def handler(request: Request) -> Response:
        nonlocal inside
        inside += 1
        if inside == 64:
            together.set()
        await together.wait()
        return Response(200, (), await request.body(1000))

    async with serving(handler) as (server, client, base):
        bodies = [str(index).encode() for index in range(64)]
        answers = await asyncio.gather(*(client.request("POST", base, body=body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert len(server.connections) == 1


async def test_more_requests_than_the_server_takes_wait_their_turn(serving: Callable) -> None:
    inside = most = 0

    async def handler(request: Request) -> Response:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        body = await request.body(1000)
        inside -= 1
        return Response(200, (), body)

    async with serving(handler, limits=ServerLimits(max_streams=4)) as (server, client, base):
        bodies = [str(index).encode() for index in range(100)]
        answers = await asyncio.gather(*(client.request("POST", base, body=body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert most <= 4
        assert len(server.connections) == 1
