"""q rows from a drafter's array to a verifier's: `python bench/rows.py [--repeat N]`.

Three processes as `sdcp up` starts them: `sdcp cache`, one that writes and one that reads. Rows of M = 8 tokens, dense
and cut to the 50 most probable, go by host memory (D40) and by TLS, where the sparse ones are coded in zstd (D46).
Columns: `write` is create, then `lease`; `read` is fetch; `check` is the verifier's own of every value (6.3 step 5).
Times are medians, in milliseconds.

The yardsticks of the same run are a plain TLS socket between two processes over loopback, and one large body over the
same HTTP/2 stack; a rate's share of each stands beside it. A busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.roles.process import new_event_loop
from sdcp.stores.remote import RemoteCache
from sdcp.wire.rows import check_rows, decode_rows, size

M = 8
WIDTHS = (49_152, 152_064)
TOP_K = 50
BULK = 64 << 20
PAUSE_S = 0.03  # between two rounds, as a target's pass takes

spawn = multiprocessing.get_context("spawn")


def rows_of(kind: str, width: int) -> NDArray[np.float32]:
    """Rows [M, width] that sum to 1; token 0 has a probability in each."""
    luck = np.random.default_rng(width)
    weights = luck.exponential(size=(M, width)).astype(np.float32) + np.float32(1e-3)
    if kind == "sparse":
        kept = np.zeros_like(weights)
        for row, source in zip(kept, weights, strict=True):
            chosen = np.append(luck.choice(np.arange(1, width), TOP_K - 1, replace=False), 0)
            row[chosen] = source[chosen]
        weights = kept
    return weights / weights.sum(axis=1, keepdims=True)


# -- the two roles ----------------------------------------------------------------------------------------------------


def role(base: str, files: TlsFiles, orders: Connection) -> None:
    """Do what is ordered, one thing after another, until there is no more."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_obey(base, files, orders))


async def _obey(base: str, files: TlsFiles, orders: Connection) -> None:
    async with Client(client_context(files)) as client:
        caches = {"host memory": RemoteCache(client, base), "TLS": RemoteCache(client, base, host_memory=False)}
        made: dict[tuple[str, int], NDArray[np.float32]] = {}
        while (order := await asyncio.to_thread(orders.recv)) is not None:
            what, way, *rest = order
            if what == "write":
                if tuple(rest) not in made:
                    made[rest[0], rest[1]] = rows_of(*rest)
                orders.send(await _write(caches[way], made[rest[0], rest[1]].data.cast("B")))
            elif what == "read":
                orders.send(await _read(caches[way], *rest))
            elif what == "bulk":
                orders.send(await _bulk(caches[way], *rest))
            else:
                await caches[way].release("bench")
                orders.send(await caches[way].delete(rest[0]))
        for cache in caches.values():
            await cache.close()


async def _write(cache: RemoteCache, data: memoryview) -> tuple[str, float, float]:
    begun = time.perf_counter()
    ref = await cache.create(data)
    created = time.perf_counter()
    await cache.lease("bench", [ref], 30_000)
    return ref, created - begun, time.perf_counter() - created


async def _read(cache: RemoteCache, ref: str, width: int) -> tuple[float, float]:
    begun = time.perf_counter()
    data = await cache.fetch(ref, at_most=size(M, width))
    fetched = time.perf_counter()
    check_rows(decode_rows(data, M, width), [0] * M)
    return fetched - begun, time.perf_counter() - fetched


async def _bulk(cache: RemoteCache, ref: str | None) -> tuple[str, float]:
    """Write, or read, one large body."""
    data = np.random.default_rng(1).bytes(BULK)
    begun = time.perf_counter()
    if ref is None:
        ref = await cache.create(data)
    else:
        await cache.fetch(ref, at_most=BULK)
    return ref, BULK / (time.perf_counter() - begun)


# -- a plain socket ---------------------------------------------------------------------------------------------------


def sink(files: TlsFiles, orders: Connection) -> None:
    """Read BULK octets over TLS, over and over, and say when they are all there."""
    context = server_context(files)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        orders.send(listening.getsockname()[1])
        connection, _ = listening.accept()
        with context.wrap_socket(connection, server_side=True) as taken:
            room = bytearray(256 << 10)
            missing = BULK
            while got := taken.recv_into(room):
                missing -= got
                if missing == 0:
                    missing = BULK
                    orders.send(None)


def tls_bulk(files: TlsFiles, sink_files: TlsFiles, repeat: int) -> float:
    """Octets a second of a blocking TLS socket over loopback, sent in one call."""
    orders, theirs = spawn.Pipe()
    process = spawn.Process(target=sink, args=(sink_files, theirs), daemon=True)
    process.start()
    context = client_context(files)
    context.check_hostname = False
    data = bytes(BULK)
    rates = []
    with context.wrap_socket(socket.create_connection(("127.0.0.1", orders.recv()))) as connection:
        for _ in range(repeat):
            begun = time.perf_counter()
            connection.sendall(data)
            orders.recv()
            rates.append(BULK / (time.perf_counter() - begun))
        with_suppressed_end(connection)
    process.join()
    return median(rates)


def with_suppressed_end(connection: ssl.SSLSocket) -> None:
    """Close a connection whose other end may do so first."""
    try:
        connection.unwrap()
    except OSError:
        return


# -- the whole --------------------------------------------------------------------------------------------------------


class Site:
    """`sdcp cache` and the two roles."""

    def __init__(self, folder: Path) -> None:
        files = {name: issue(folder / "ca", name, name, [f"https://{name}.test/"]) for name in ("drafter", "verifier")}
        own = issue(folder / "ca", "cache", "cache", ips=["127.0.0.1"])
        self.files = files
        settings = folder / "cache.toml"
        settings.write_text(
            '[server]\nlisten = "127.0.0.1:0"\n\n[store]\ndirectory = "store"\n\n'
            f'[tls]\ncertificate = "{own.certificate}"\nkey = "{own.key}"\nca = "{own.ca}"\nmatch_host = true\n'
        )
        command = [sys.executable, "-m", "sdcp.cli", "cache", "--config", str(settings), "--log-level", "warning"]
        self.cache = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.cache.stdout is not None
        base = self.cache.stdout.readline().split()[1]
        self.writer, self.reader = (self._role(base, files[name]) for name in ("drafter", "verifier"))

    @staticmethod
    def _role(base: str, files: TlsFiles) -> Connection:
        orders, theirs = spawn.Pipe()
        spawn.Process(target=role, args=(base, files, theirs), daemon=True).start()
        return orders

    def stop(self) -> None:
        """End the three processes."""
        for orders in (self.writer, self.reader):
            orders.send(None)
        self.cache.terminate()
        self.cache.wait()


def ask(orders: Connection, *order: Any) -> Any:
    """Give an order and wait until it is done."""
    orders.send(order)
    return orders.recv()


def http_bulk(site: Site, repeat: int) -> tuple[float, float]:
    """Median octets a second of one large PUT, and of one large GET."""
    rates = []
    for _ in range(repeat):
        ref, written = ask(site.writer, "bulk", "TLS", None)
        rates.append((written, ask(site.reader, "bulk", "TLS", ref)[1]))
        ask(site.writer, "drop", "TLS", ref)
    return median(rate for rate, _ in rates), median(rate for _, rate in rates)


def rounds(site: Site, way: str, kind: str, width: int, repeat: int) -> tuple[float, float, float, float]:
    """Median seconds of create, lease, fetch and check."""
    times = []
    for _ in range(repeat + 3):
        ref, create_s, lease_s = ask(site.writer, "write", way, kind, width)
        times.append((create_s, lease_s, *ask(site.reader, "read", way, ref, width)))
        ask(site.writer, "drop", way, ref)
        time.sleep(PAUSE_S)
    create_s, lease_s, fetch_s, check_s = (median(each) for each in zip(*times[3:], strict=True))
    return create_s, lease_s, fetch_s, check_s


def main(repeat: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        own = issue(Path(folder) / "ca", "cache", "cache", ips=["127.0.0.1"])
        plain = tls_bulk(site.files["verifier"], own, 5)
        write_rate, read_rate = http_bulk(site, 5)
        print(
            f"bulk over loopback: TLS socket {plain / 1e6:.0f} MB/s; {BULK >> 20} MiB in one body over HTTP/2: "
            f"PUT {write_rate / 1e6:.0f} MB/s, GET {read_rate / 1e6:.0f} MB/s\n"
        )
        print("rows      V  octets    way          write  lease   read  check  write+read    of socket  of HTTP/2")
        for width in WIDTHS:
            for kind in ("dense", "sparse"):
                for way in ("host memory", "TLS"):
                    create_s, lease_s, fetch_s, check_s = rounds(site, way, kind, width, repeat)
                    ideal_socket = 2 * size(M, width) / plain
                    ideal_http = size(M, width) / write_rate + size(M, width) / read_rate
                    both = create_s + fetch_s
                    print(
                        f"{kind:6} {width:6} {size(M, width) / 1e6:5.2f} M  {way:11} {create_s * 1e3:6.2f} "
                        f"{lease_s * 1e3:6.2f} {fetch_s * 1e3:6.2f} {check_s * 1e3:6.2f} {both * 1e3:11.2f} "
                        f"{ideal_socket / both:12.2f} {ideal_http / both:10.2f}"
                    )
        site.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=30, help="rounds of each case")
    main(parser.parse_args().repeat)
