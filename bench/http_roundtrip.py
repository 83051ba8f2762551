"""The round trip of a 300-byte message over HTTP/2 with mutual TLS 1.3, beside the floor of the same run.

The floor is an echo of 300 bytes over asyncio's TLS, with the same certificates, loop and processes: what no protocol
on top of it can beat. The two are measured in turns, so that a busy machine slows both. Times vary from machine to
machine; the ratio holds better.

    python bench/http_roundtrip.py [--requests 2000] [--rounds 5] [--streams 64] [--loop uvloop|asyncio]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.exchange import Request, Response
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context

MESSAGE = bytes(300)
WARM_UP = 200


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Asker(asyncio.Protocol):
    """Sends a message and waits until as many bytes have come back."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.missing = 0
        self.done: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.missing -= len(data)
        if self.missing <= 0 and self.done is not None:
            self.done.set_result(None)

    async def ask(self) -> None:
        self.missing = len(MESSAGE)
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(MESSAGE)
        await self.done


async def echo(request: Request) -> Response:
    return Response(200, (), await request.body(1 << 20))


async def serve(files: TlsFiles, ready: Connection) -> None:
    context = server_context(files)
    floor = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, ssl=context)
    async with Server(echo, context) as server:
        ready.send((floor.sockets[0].getsockname()[1], server.port))
        await asyncio.get_running_loop().run_in_executor(None, ready.recv)
    floor.close()


async def timed(ask: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Microseconds of each of `count` calls, one after another."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await ask()
        times.append((time.perf_counter() - begun) * 1e6)
    return times


async def rate(ask: Callable[[], Awaitable[object]], streams: int, count: int) -> float:
    """Calls per second with `streams` at a time."""

    async def caller() -> None:
        for _ in range(count // streams):
            await ask()

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(streams)))
    return count // streams * streams / (time.perf_counter() - begun)


async def measure(files: TlsFiles, ports: tuple[int, int], options: argparse.Namespace) -> None:
    context = client_context(files)
    floor_port, port = ports
    _, asker = await asyncio.get_running_loop().create_connection(
        Asker, "127.0.0.1", floor_port, ssl=context, server_hostname="127.0.0.1"
    )
    async with Client(context) as client:

        async def request() -> None:
            await client.request("POST", f"https://127.0.0.1:{port}/", body=MESSAGE)

        await timed(asker.ask, WARM_UP)
        await timed(request, WARM_UP)
        floor: list[float] = []
        ours: list[float] = []
        for _ in range(options.rounds):
            floor += await timed(asker.ask, options.requests)
            ours += await timed(request, options.requests)
        print_row("TLS echo (floor)", floor, floor)
        print_row("HTTP/2 request", ours, floor)
        per_second = await rate(request, options.streams, options.requests * 2)
        print(f"{options.streams} streams: {per_second:,.0f} requests/s")
    asker.transport.abort()


def print_row(name: str, times: list[float], floor: list[float]) -> None:
    median, slowest = statistics.median(times), statistics.quantiles(times, n=100)[98]
    ratio = median / statistics.median(floor)
    print(f"{name:18} p50 {median:7.1f} µs   p99 {slowest:7.1f} µs   p50/floor {ratio:5.2f}")


def run(main: Any, loop: str) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def serve_process(files: TlsFiles, ready: Connection, loop: str) -> None:
    run(serve(files, ready), loop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=2000, help="requests of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64, help="requests at a time, for the rate")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server_files, client_files = issue(folder, "server", "verifier"), issue(folder, "client", "drafter")
        ready, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve_process, args=(server_files, theirs, options.loop)
        )
        process.start()
        try:
            run(measure(client_files, ready.recv(), options), options.loop)
            ready.send("done")
        finally:
            process.join(10)
            process.kill()


if __name__ == "__main__":
    main()
