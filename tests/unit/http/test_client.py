"""The client: deadlines, cancellation, trying again, servers that go away (6.9, D11, D27)."""

import asyncio
from collections.abc import AsyncIterator, Callable

import ngh2
import pytest

from sdcp.http.client import Answer, Client
from sdcp.http.exchange import Request, Response
from sdcp.http.faults import DeadlineExceeded, ProtocolFault, Unreachable
from sdcp.http.limits import ClientLimits, ServerLimits
from sdcp.http.server import Server


async def echo(request: Request) -> Response:
    return Response(200, (), await request.body(1 << 20))


class Pauses:
    """A clock and dice of which a test sees everything: no pause takes time."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self.slept: list[float] = []

    def uniform(self, low: float, high: float) -> float:
        assert low == 0.0
        self.bounds.append(high)
        return high / 2

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    @property
    def options(self) -> dict:
        return {"uniform": self.uniform, "sleep": self.sleep}


class Rude:
    """A server that speaks HTTP/2 by hand: `script(connection_number, rude)` says how."""

    def __init__(self, pki, act: Callable) -> None:
        self.act, self.requests, self.connections = act, 0, 0
        self._tls = pki.server

    async def __aenter__(self) -> "Rude":
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.base = f"https://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        h2 = ngh2.Connection(ngh2.Role.SERVER)
        h2.initiate_connection({})
        try:
            while not writer.is_closing():
                writer.write(h2.data_to_send())
                data = await reader.read(65536)
                if not data:
                    break
                h2.receive_data(data)
                for event in h2.events():
                    if isinstance(event, ngh2.RequestReceived):
                        self.requests += 1
                        self.act(self, h2, writer, event.stream_id)
        except (OSError, ngh2.NGH2Error):
            pass
        finally:
            writer.transport.abort()


def answer(h2: ngh2.Connection, stream: int) -> None:
    h2.send_response(stream, [(b":status", b"204")], end_stream=True)


# -- deadlines and cancellation ---------------------------------------------------------------------------------------


class Held:
    def __init__(self) -> None:
        self.entered, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(204)


async def test_a_deadline_ends_the_request_here_and_there(serving: Callable) -> None:
    held = Held()
    async with serving(held) as (_, client, base):
        with pytest.raises(DeadlineExceeded, match="deadline passed") as late:
            await client.request("POST", base, body=b"x", deadline_s=0.05, idempotent=True)
        assert late.value.maybe_processed
        await held.cancelled.wait()


async def test_a_deadline_covers_a_streamed_answer(serving: Callable) -> None:
    closed = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def handler(request: Request) -> Response:
        return Response(200, (), slow())

    async def read(client: Client, base: str) -> None:
        async with client.stream("GET", base, deadline_s=0.2) as reply:
            async for _ in reply.chunks():
                pass

    async with serving(handler) as (_, client, base):
        with pytest.raises(DeadlineExceeded):
            await read(client, base)
        await closed.wait()


async def test_a_cancelled_caller_cancels_the_handler(serving: Callable) -> None:
    held = Held()
    async with serving(held) as (server, client, base):
        task = asyncio.create_task(client.request("POST", base))
        await held.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await held.cancelled.wait()
        assert len(server.connections) == 1  # the connection goes on


async def test_a_timeout_of_the_callers_own_stays_his(serving: Callable) -> None:
    async with serving(Held()) as (_, client, base):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.request("GET", base)


async def test_leaving_a_streamed_answer_early_resets_it(serving: Callable) -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 10_000
        finally:
            closed.set()

    async def handler(request: Request) -> Response:
        return Response(200, (), endless())

    async with serving(handler) as (_, client, base):
        async with client.stream("GET", base) as reply:
            assert reply.status == 200
            async for _ in reply.chunks():
                break
        await closed.wait()


async def test_a_body_iterator_that_fails_fails_its_request_alone(serving: Callable) -> None:
    held = Held()

    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("disk")

    async def handler(request: Request) -> Response:
        return await held(request) if request.path == "/held" else await echo(request)

    async with serving(handler) as (_, client, base):
        with pytest.raises(RuntimeError, match="disk"):
            await client.request("PUT", f"{base}/held", body=broken())
        assert (await client.request("POST", base, body=b"x")).body == b"x"


async def test_an_early_answer_ends_the_upload(serving: Callable) -> None:
    async def refuse(request: Request) -> Response:
        return Response(403, (), b"no")

    asked = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield b"x" * 10_000

    async with serving(refuse) as (_, client, base):
        reply = await client.request("PUT", base, body=endless())
        assert (reply.status, reply.body) == (403, b"no")
        before = asked
        await client.request("GET", base)
        assert asked == before


# -- trying again -----------------------------------------------------------------------------------------------------


def lose(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
    writer.transport.abort()


async def test_a_lost_request_that_is_idempotent_is_repeated_with_growing_pauses(pki) -> None:
    pauses = Pauses()

    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        answer(h2, stream) if rude.requests == 4 else lose(rude, h2, writer, stream)

    async with Rude(pki, act) as rude, Client(pki.client, **pauses.options) as client:
        assert (await client.request("PUT", rude.base, body=b"x", idempotent=True)).status == 204
    assert (rude.requests, rude.connections) == (4, 4)
    assert pauses.bounds == [0.05, 0.1, 0.2]
    assert pauses.slept == [0.025, 0.05, 0.1]


async def test_tries_and_pauses_are_bounded(pki) -> None:
    pauses = Pauses()
    limits = ClientLimits(attempts=8, longest_pause_s=0.3)
    async with Rude(pki, lose) as rude, Client(pki.client, limits=limits, **pauses.options) as client:
        with pytest.raises(Unreachable) as failed:
            await client.request("PUT", rude.base, idempotent=True)
        assert failed.value.maybe_processed
    assert rude.requests == 8
    assert pauses.bounds == [0.05, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3]


async def test_a_lost_request_that_is_not_idempotent_is_not_repeated(pki) -> None:
    async with Rude(pki, lose) as rude, Client(pki.client) as client:
        with pytest.raises(Unreachable, match="connection was lost") as failed:
            await client.request("POST", rude.base, body=b"x")
        assert failed.value.maybe_processed
    assert rude.requests == 1


async def test_a_refused_request_is_repeated_at_once_whatever_it_is(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        h2.reset_stream(stream, ngh2.ErrorCode.REFUSED_STREAM) if rude.requests == 1 else answer(h2, stream)

    pauses = Pauses()
    async with Rude(pki, act) as rude, Client(pki.client, **pauses.options) as client:
        assert (await client.request("POST", rude.base, body=b"x")).status == 204
    assert rude.requests == 2
    assert not pauses.slept


async def test_a_request_refused_again_and_again_fails_without_doubt(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        h2.reset_stream(stream, ngh2.ErrorCode.REFUSED_STREAM)

    async with Rude(pki, act) as rude, Client(pki.client) as client:
        with pytest.raises(Unreachable, match="unprocessed") as failed:
            await client.request("POST", rude.base)
        assert not failed.value.maybe_processed
    assert rude.requests == 3


async def test_doubt_about_an_earlier_try_is_kept(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        if rude.requests == 1:
            lose(rude, h2, writer, stream)
        else:
            h2.reset_stream(stream, ngh2.ErrorCode.REFUSED_STREAM)

    async with Rude(pki, act) as rude, Client(pki.client, **Pauses().options) as client:
        with pytest.raises(Unreachable, match="an earlier try") as failed:
            await client.request("PUT", rude.base, idempotent=True)
        assert failed.value.maybe_processed


async def test_a_reset_by_the_server_is_told_with_its_code(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        h2.reset_stream(stream, ngh2.ErrorCode.INTERNAL_ERROR)

    async with Rude(pki, act) as rude, Client(pki.client) as client:
        with pytest.raises(Unreachable, match="HTTP/2 error 2") as failed:
            await client.request("POST", rude.base)
        assert failed.value.maybe_processed


async def test_an_iterator_that_has_been_begun_cannot_be_sent_again(pki) -> None:
    async def once() -> AsyncIterator[bytes]:
        yield b"x"

    async with Rude(pki, lose) as rude, Client(pki.client, **Pauses().options) as client:
        with pytest.raises(Unreachable):
            await client.request("PUT", rude.base, body=once(), idempotent=True)
        assert rude.requests == 1
        with pytest.raises(Unreachable):
            await client.request("PUT", rude.base, body=once, idempotent=True)
        assert rude.requests == 5  # a function makes the iterator anew


async def test_a_server_that_is_not_there(pki) -> None:
    pauses = Pauses()
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    listener.close()
    async with Client(pki.client, **pauses.options) as client:
        with pytest.raises(Unreachable, match="cannot be reached") as failed:
            await client.request("POST", url)
        assert not failed.value.maybe_processed
        assert not pauses.slept
        with pytest.raises(Unreachable):
            await client.request("PUT", url, idempotent=True)
        assert len(pauses.slept) == 3


async def test_pauses_end_with_the_deadline(pki) -> None:
    async def for_ever(seconds: float) -> None:
        await asyncio.Event().wait()

    async with Rude(pki, lose) as rude, Client(pki.client, sleep=for_ever) as client:
        with pytest.raises(DeadlineExceeded) as late:
            await client.request("PUT", rude.base, idempotent=True, deadline_s=0.2)
        assert late.value.maybe_processed


async def test_a_server_that_breaks_http2_is_named_as_such(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        writer.write(b"\x00\x00\x00\xff\xff" * 20)

    async with Rude(pki, act) as rude, Client(pki.client) as client:
        with pytest.raises((ProtocolFault, Unreachable)):
            await client.request("GET", rude.base, idempotent=True)


async def test_an_answer_shorter_than_announced_is_a_fault(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        h2.send_response(stream, [(b":status", b"200"), (b"content-length", b"5")])
        h2.send_data(stream, b"abc", end_stream=True)

    async with Rude(pki, act) as rude, Client(pki.client) as client:
        with pytest.raises(ProtocolFault):
            await client.request("GET", rude.base, idempotent=True)
    assert rude.requests == 1


@pytest.mark.decision("D11-redirects")
async def test_redirects_are_answers_like_any_other(serving: Callable) -> None:
    asked: list[str] = []

    async def elsewhere(request: Request) -> Response:
        asked.append(request.path)
        return Response(307, (("location", "/other"),))

    async with serving(elsewhere) as (_, client, base):
        reply = await client.request("GET", f"{base}/here", idempotent=True)
    assert (reply.status, reply.headers["location"], asked) == (307, "/other", ["/here"])


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "https:///x", "127.0.0.1", "file:///etc/passwd"])
async def test_only_https_is_spoken(pki, url: str) -> None:
    async with Client(pki.client) as client:
        with pytest.raises(ValueError, match="https"):
            await client.request("GET", url)


# -- servers that come and go -----------------------------------------------------------------------------------------


async def test_a_restarted_server_is_found_again(pki) -> None:
    async with Client(pki.client, **Pauses().options) as client:
        async with Server(echo, pki.server) as server:
            base = f"https://127.0.0.1:{server.port}"
            assert (await client.request("POST", base, body=b"1")).body == b"1"
        async with Server(echo, pki.server, port=server.port):
            assert (await client.request("POST", base, body=b"2")).body == b"2"


async def insist(client: Client, base: str, body: bytes) -> Answer:
    """Between two servers nobody listens: that, and that alone, is tried again here."""
    while True:
        try:
            return await client.request("POST", base, body=body)
        except Unreachable as error:
            if error.maybe_processed:
                raise


async def test_a_draining_server_loses_nothing(pki) -> None:
    """While one server drains and its successor listens, a crowd of requests, none idempotent, all arrive once."""
    done: list[bytes] = []

    async def handler(request: Request) -> Response:
        body = await request.body(100)
        done.append(body)
        return Response(200, (), body)

    async def caller(client: Client, base: str, name: int) -> None:
        for index in range(30):
            body = b"%d/%d" % (name, index)
            assert (await insist(client, base, body)).body == body

    async with asyncio.timeout(20), Client(pki.client) as client:
        old = Server(handler, pki.server)
        await old.start()
        base = f"https://127.0.0.1:{old.port}"
        await client.request("POST", base, body=b"first")
        callers = [asyncio.create_task(caller(client, base, name)) for name in range(8)]
        while len(done) < 50:
            await client.request("POST", base, body=b"more")
        draining = asyncio.create_task(old.drain(10))
        await old.draining.wait()
        async with Server(handler, pki.server, port=old.port):
            await asyncio.gather(*callers)
            assert await draining
    mine = [body for body in done if b"/" in body]
    assert len(mine) == len(set(mine)) == 240


async def test_goaway_cuts_off_what_was_not_processed_and_it_goes_elsewhere(pki) -> None:
    def act(rude: Rude, h2: ngh2.Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        if rude.connections == 1:
            h2.send_goaway(0, last_stream_id=0)
        else:
            answer(h2, stream)

    async with Rude(pki, act) as rude, Client(pki.client) as client:
        assert (await client.request("POST", rude.base, body=b"x")).status == 204
    assert (rude.requests, rude.connections) == (2, 2)


async def test_objects_travel_on_a_connection_of_their_own(serving: Callable) -> None:
    async with serving(echo) as (server, client, base):
        await client.request("POST", base, body=b"x")
        await client.request("POST", base, body=b"x", objects=True)
        await client.request("POST", base, body=b"x", objects=True)
        assert len(server.connections) == 2


async def test_many_first_requests_share_one_connection(serving: Callable) -> None:
    async with serving(echo) as (server, client, base):
        first = asyncio.create_task(client.request("POST", base, body=b"x"))
        second = asyncio.create_task(client.request("POST", base, body=b"y"))
        while not client._pool._connecting:
            await asyncio.sleep(0)
        first.cancel()  # does not take the connection away from the other
        assert (await second).body == b"y"
        assert len(server.connections) == 1


async def test_an_idle_connection_is_closed(serving: Callable) -> None:
    async with serving(echo, client={"limits": ClientLimits(idle_s=0.05)}) as (server, client, base):
        await client.request("POST", base, body=b"x")
        (connection,) = server.connections
        await connection.finished()
        assert (await client.request("POST", base, body=b"y")).body == b"y"


async def test_a_server_that_falls_silent_is_given_up(pki) -> None:
    deaf = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        h2 = ngh2.Connection(ngh2.Role.SERVER)
        h2.initiate_connection({})
        writer.write(h2.data_to_send())
        await deaf.wait()
        writer.transport.abort()

    listener = await asyncio.start_server(hold, "127.0.0.1", 0, ssl=pki.server)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener, Client(pki.client, limits=ClientLimits(silence_s=0.05)) as client:
        with pytest.raises(Unreachable, match="lost") as failed:
            await client.request("GET", url)
        assert failed.value.maybe_processed
        deaf.set()


async def test_a_long_wait_is_kept_alive_by_pings(serving: Callable) -> None:
    async def poll(request: Request) -> Response:
        await asyncio.sleep(0.3)  # not to wait for something: this is the long poll itself
        return Response(204)

    async with serving(poll, client={"limits": ClientLimits(silence_s=0.05)}) as (_, client, base):
        assert (await client.request("GET", base)).status == 204


async def test_closing_the_client_fails_what_is_under_way(serving: Callable, pki) -> None:
    held = Held()
    async with serving(held) as (_, _, base):
        client = Client(pki.client)
        task = asyncio.create_task(client.request("GET", base, idempotent=True))
        await held.entered.wait()
        await client.close()
        with pytest.raises(Unreachable):
            await task
        await held.cancelled.wait()
        with pytest.raises(Unreachable, match="closed"):
            await client.request("GET", base)


async def test_requests_that_wait_for_a_turn_can_be_cancelled(serving: Callable) -> None:
    held = Held()

    async def handler(request: Request) -> Response:
        return await held(request) if request.path == "/held" else Response(204)

    async with serving(handler, limits=ServerLimits(max_streams=1)) as (_, client, base):
        first = asyncio.create_task(client.request("GET", f"{base}/held"))
        await held.entered.wait()
        second = asyncio.create_task(client.request("GET", base))
        third = asyncio.create_task(client.request("GET", base))
        (connection,) = client._pool._all
        while len(connection._waiting) < 2:
            await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        assert (await third).status == 204
