"""The server: limits, slow and rude peers, cancellation into the handler, draining (5.1, D3)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import ngh2
import pytest

from sdcp.errors import Overloaded, StaleEpoch
from sdcp.http.exchange import Request, Response
from sdcp.http.limits import ServerLimits
from sdcp.http.problems import problem_response


async def echo(request: Request) -> Response:
    return Response(200, (("content-type", "x/y"),), await request.body(1 << 20))


class Held:
    """A handler that waits until it is let go, and remembers whether it was cancelled."""

    def __init__(self) -> None:
        self.entered, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(200, (), b"done")


# -- answers ----------------------------------------------------------------------------------------------------------


async def test_echo(serving: Callable) -> None:
    async with serving(echo) as (_, client, base):
        answer = await client.request("POST", f"{base}/x", body=b"hello")
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.headers == {"content-type": "x/y", "content-length": "5"}


async def test_what_a_request_says(serving: Callable) -> None:
    seen: list[Request] = []

    async def look(request: Request) -> Response:
        seen.append(request)
        return Response(204)

    async with serving(look) as (_, client, base):
        headers = (("X-One", "1"), ("prefer", "wait=0"), ("prefer", "b"))
        assert (await client.request("GET", f"{base}/a%2Fb?from=7&x=", headers=headers)).body == b""
    (request,) = seen
    assert (request.method, request.path, request.query) == ("GET", "/a%2Fb", "from=7&x=")
    assert request.headers == {"x-one": "1", "prefer": "wait=0, b"}
    assert request.parameter("from") == "7"
    assert request.parameter("x") == ""
    assert request.parameter("y") is None
    assert request.authority == base.removeprefix("https://")


async def test_head_gives_the_head_of_get(serving: Callable) -> None:
    async with serving(echo) as (_, client, base):
        answer = await client.request("HEAD", base)
        assert answer.headers["content-length"] == "0"

    async def big(request: Request) -> Response:
        return Response(200, (), b"x" * 100)

    async with serving(big) as (_, client, base):
        answer = await client.request("HEAD", base)
        assert (answer.status, answer.headers["content-length"], answer.body) == (200, "100", b"")


async def test_a_problem_is_answered_as_such(serving: Callable) -> None:
    async def stale(request: Request) -> Response:
        raise StaleEpoch("the epoch is 3")

    async with serving(stale) as (_, client, base):
        answer = await client.request("POST", base, body=b"x")
    assert answer.status == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["type"].endswith("#sdcp-stale-epoch")


async def test_a_fault_of_ours_says_nothing_of_itself(serving: Callable) -> None:
    reported: list[tuple[str, BaseException]] = []

    async def broken(request: Request) -> Response:
        raise RuntimeError("secret")

    async with serving(broken, report=lambda *what: reported.append(what)) as (_, client, base):
        answer = await client.request("GET", f"{base}/p")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert json.loads(answer.body)["type"] == "about:blank"
    ((what, error),) = reported
    assert what == "GET /p: the handler failed"
    assert str(error) == "secret"


async def test_an_answer_that_breaks_off_is_never_taken_for_whole(serving: Callable) -> None:
    from sdcp.http.faults import Unreachable

    reported: list[str] = []

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("disk")

    async def handler(request: Request) -> Response:
        return Response(200, (), parts())

    async with serving(handler, report=lambda what, _: reported.append(what)) as (_, client, base):
        with pytest.raises(Unreachable) as failed:
            await client.request("GET", base)
    assert failed.value.maybe_processed
    assert reported == ["GET /: the answer broke off"]


async def test_headers_of_an_overload(serving: Callable) -> None:
    async def busy(request: Request) -> Response:
        return problem_response(Overloaded("busy", retry_after_s=7))

    async with serving(busy) as (_, client, base):
        answer = await client.request("GET", base)
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")


# -- bodies and limits ------------------------------------------------------------------------------------------------


@pytest.mark.decision("D3-413")
async def test_a_body_announced_too_long_is_413_unread(serving: Callable, raw: Callable) -> None:
    async def small(request: Request) -> Response:
        return Response(200, (), await request.body(1000))

    async with serving(small) as (server, _, _), raw(server) as client:
        stream = client.request("POST", "/", (b"content-length", b"1001"))
        assert await client.status(stream) == 413
        # The answer is complete: the server asks for the rest of the body not to be sent (RFC 9113 section 8.1).
        assert (await client.until(ngh2.StreamReset, stream)).error_code == 0


@pytest.mark.decision("D3-413")
async def test_a_body_that_turns_out_too_long_is_413(serving: Callable, raw: Callable) -> None:
    async def small(request: Request) -> Response:
        return Response(200, (), await request.body(1000))

    async with serving(small) as (server, _, _), raw(server) as client:
        stream = client.request()
        client.h2.send_data(stream, b"x" * 1001)
        assert await client.status(stream) == 413
        other = client.request()
        client.h2.send_data(other, b"x" * 1000, end_stream=True)
        assert await client.status(other) == 200


async def test_chunks_are_limited_too(serving: Callable) -> None:
    async def count(request: Request) -> Response:
        return Response(200, (), str(sum([len(chunk) async for chunk in request.chunks(10)])).encode())

    async def body(size: int) -> AsyncIterator[bytes]:
        yield b"x" * size

    async with serving(count) as (_, client, base):
        assert (await client.request("POST", base, body=body(10))).body == b"10"
        assert (await client.request("POST", base, body=body(11))).status == 413


async def test_a_body_that_stalls_is_408(serving: Callable, raw: Callable) -> None:
    async with serving(echo, limits=ServerLimits(patience_s=0.05)) as (server, _, _), raw(server) as client:
        stream = client.request()
        client.h2.send_data(stream, b"x")
        assert await client.status(stream) == 408
        assert (await client.until(ngh2.StreamReset, stream)).error_code == 0
        assert await client.status(client.request(end=True)) == 200


async def test_an_answer_that_nobody_reads_is_given_up(serving: Callable, raw: Callable) -> None:
    async def big(request: Request) -> Response:
        return Response(200, (), b"x" * (4 << 20))

    async with serving(big, limits=ServerLimits(patience_s=0.05, min_bytes_per_s=1e9)) as (server, _, _):
        async with raw(server) as client:
            stream = client.request(end=True)
            assert await client.status(stream) == 200
            assert (await client.until(ngh2.StreamReset, stream)).error_code == ngh2.ErrorCode.CANCEL
        assert server.requests == 0


async def test_a_small_answer_that_nobody_reads_is_given_up(serving: Callable, raw: Callable) -> None:
    """Its handler is long done; what remains is a stream and its queue."""

    async def small(request: Request) -> Response:
        return Response(200, (), b"x" * 100_000)

    limits = ServerLimits(patience_s=0.05, min_bytes_per_s=1e9)
    async with serving(small, limits=limits) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        assert (await client.until(ngh2.StreamReset, stream)).error_code == ngh2.ErrorCode.CANCEL
        (connection,) = server.connections
        assert not connection.streams


async def test_a_header_list_over_the_limit_is_431(serving: Callable, raw: Callable) -> None:
    async with serving(echo, limits=ServerLimits(max_header_list=2000)) as (server, _, _), raw(server) as client:
        stream = client.request("GET", "/", (b"x", b"y" * 2000), end=True)
        assert await client.status(stream) == 431
        assert await client.status(client.request("GET", end=True)) == 200


async def test_a_header_list_far_over_the_limit_ends_the_connection(serving: Callable, raw: Callable) -> None:
    async with serving(echo, limits=ServerLimits(max_header_list=2000)) as (server, _, _), raw(server) as client:
        client.request("GET", "/", (b"x", b"y" * 9000), end=True)
        await client.flush()
        await client.closed()


async def test_more_streams_than_announced_are_refused(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held, limits=ServerLimits(max_streams=2)) as (server, _, _), raw(server) as client:
        streams = [client.request(end=True) for _ in range(3)]  # sent before the server's SETTINGS are known
        refused = await client.until(ngh2.StreamReset, streams[2])
        assert refused.error_code == ngh2.ErrorCode.REFUSED_STREAM
        held.go.set()
        assert [await client.status(stream) for stream in streams[:2]] == [200, 200]


async def test_more_requests_than_the_server_bears_are_503(serving: Callable) -> None:
    held = Held()
    async with serving(held, limits=ServerLimits(max_requests=1)) as (_, client, base):
        first = asyncio.create_task(client.request("GET", base))
        await held.entered.wait()
        answer = await client.request("GET", base)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        held.go.set()
        assert (await first).status == 200


async def test_more_connections_than_the_server_bears_are_closed(serving: Callable, raw: Callable) -> None:
    async with serving(echo, limits=ServerLimits(max_connections=1)) as (server, _, _), raw(server) as client:
        await client.settle()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()
        assert await client.status(client.request(end=True)) == 200


async def test_a_connection_without_streams_is_closed_in_time(serving: Callable, raw: Callable) -> None:
    async with serving(echo, limits=ServerLimits(idle_s=0.05)) as (server, _, _), raw(server) as client:
        assert await client.status(client.request(end=True)) == 200
        assert (await client.until(ngh2.GoAwayReceived)).error_code == 0
        with pytest.raises(ConnectionResetError):
            await client.until(ngh2.ResponseReceived)


async def test_a_silent_peer_is_asked_and_then_given_up(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held, limits=ServerLimits(silence_s=0.05)) as (server, _, _), raw(server) as client:
        client.request(end=True)
        await client.until(ngh2.PingReceived)  # our answer to it keeps the connection; then we fall silent
        (connection,) = server.connections
        await held.cancelled.wait()
        await connection.finished()


async def test_a_client_that_never_sends_its_settings_is_dropped(serving: Callable, pki) -> None:
    async with serving(echo, limits=ServerLimits(handshake_s=0.2, silence_s=0.1)) as (server, _, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=pki.client, server_hostname="127.0.0.1"
        )
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1 << 20)
        writer.transport.abort()


async def test_bytes_that_are_no_http2_end_the_connection(serving: Callable, pki) -> None:
    async with serving(echo) as (server, _, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=pki.client, server_hostname="127.0.0.1"
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while await reader.read(1 << 16):
            pass
        writer.transport.abort()


async def test_rapid_resets_end_the_connection(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held, limits=ServerLimits(resets=(20, 1))) as (server, _, _), raw(server) as client:
        for _ in range(30):
            stream = client.request(end=True)
            await client.flush()
            client.h2.reset_stream(stream)
        assert (await client.until(ngh2.GoAwayReceived)).error_code != 0
        with pytest.raises(ConnectionResetError):
            await client.until(ngh2.ResponseReceived)


async def test_handlers_that_do_not_end_are_bounded_whatever_is_reset(serving: Callable, raw: Callable) -> None:
    """Each reset frees a place in HTTP/2, but a handler that is slow to end still costs: they are counted too."""
    stubborn, release = 0, asyncio.Event()

    async def handler(request: Request) -> Response:
        nonlocal stubborn
        stubborn += 1
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return Response(204)

    limits = ServerLimits(max_streams=2, resets=(1000, 1000))
    async with serving(handler, limits=limits) as (server, _, _), raw(server) as client:
        await client.settle()

        async def rush() -> None:
            for _ in range(50):
                stream = client.request(end=True)
                await client.settle()  # its handler has begun
                client.h2.reset_stream(stream)
                await client.settle()

        with pytest.raises((ConnectionResetError, ngh2.ConnectionClosingError)):
            await rush()
        release.set()
    assert stubborn == 4


# -- cancellation ------------------------------------------------------------------------------------------------------


async def test_a_reset_reaches_the_handler(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        await client.flush()
        await held.entered.wait()
        client.h2.reset_stream(stream)
        await client.flush()
        await held.cancelled.wait()
        await client.settle()
        assert server.requests == 0


async def test_a_lost_connection_reaches_the_handler(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held) as (server, _, _):
        async with raw(server) as client:
            client.request(end=True)
            await client.flush()
            await held.entered.wait()
        await held.cancelled.wait()


async def test_a_reset_reaches_a_handler_that_waits_for_the_body(serving: Callable, raw: Callable) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        entered.set()
        try:
            return Response(200, (), await request.body(1000))
        except BaseException:
            cancelled.set()
            raise

    async with serving(handler) as (server, _, _), raw(server) as client:
        stream = client.request()
        await client.flush()
        await entered.wait()
        client.h2.reset_stream(stream)
        await client.flush()
        await cancelled.wait()


async def test_a_reset_ends_a_streamed_answer(serving: Callable, raw: Callable) -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 50_000
        finally:
            closed.set()

    async def handler(request: Request) -> Response:
        return Response(200, (), endless())

    async with serving(handler) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        assert await client.status(stream) == 200
        client.h2.reset_stream(stream)
        await client.flush()
        await closed.wait()


# -- draining ----------------------------------------------------------------------------------------------------------


async def test_a_drain_finishes_what_is_under_way(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        await client.flush()
        await held.entered.wait()
        draining = asyncio.create_task(server.drain(10))
        notice = await client.until(ngh2.GoAwayReceived)
        assert notice.last_stream_id == 2**31 - 1  # the shutdown notice of RFC 9113 section 6.8
        final = await client.until(ngh2.GoAwayReceived)
        assert (final.last_stream_id, final.error_code) == (stream, 0)
        held.go.set()
        assert await client.status(stream) == 200
        assert (await client.until(ngh2.DataReceived, stream)).data == b"done"
        assert await draining
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the platform likes
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_request_that_crosses_the_notice_is_served(serving: Callable, raw: Callable) -> None:
    async with serving(echo) as (server, _, _), raw(server) as client:
        await client.settle()
        for connection in server.connections:
            connection.begin_drain()
        stream = client.request(end=True)  # written before the notice is read
        assert await client.status(stream) == 200
        assert (await client.until(ngh2.GoAwayReceived)).error_code == 0


async def test_a_drain_whose_grace_is_over_cancels(serving: Callable, raw: Callable) -> None:
    held = Held()
    async with serving(held) as (server, _, _), raw(server) as client:
        stream = client.request(end=True)
        await client.flush()
        await held.entered.wait()
        draining = asyncio.create_task(server.drain(0.01))
        assert (await client.until(ngh2.StreamReset, stream)).error_code == ngh2.ErrorCode.CANCEL
        assert not await draining
        assert held.cancelled.is_set()


async def test_draining_can_be_watched(serving: Callable) -> None:
    """A role answers its long polls early, so that a drain need not wait for them."""
    held = Held()
    async with serving(held) as (server, client, base):
        poll = asyncio.create_task(client.request("GET", base))
        await held.entered.wait()
        draining = asyncio.create_task(server.drain(10))
        await server.draining.wait()
        held.go.set()
        assert (await poll).status == 200
        assert await draining
