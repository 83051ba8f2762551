"""Appends to commit logs: `python bench/cache.py [--folder F] [--backends store,cache,…] [--seconds S] [--json]`.

For each backend, with 1, 16 and 256 sessions that each await their append before the next one, as a verifier's do:
appends a second, that rate as a multiple of the yardstick, how long an append takes, and what the process that serves
them spends: the share of one core, and the time of it that an append costs.

The yardsticks, in the same run and on the same disk: one thread that writes a commit record's octets to a file and
calls fdatasync, over and over, and one that inserts them into SQLite (WAL, synchronous=FULL), a commit for each.

    store    the durable store in this process        cache    `sdcp cache` as a process, over mutual TLS
    memory   a store without a disk                   file     a folder behind the port of roles
    valkey   Valkey or Redis, appendfsync always      s3       a server of S3's interface (moto), read-back fencing

Sessions and clients are of this process; servers are others, started here and stopped. `--folder` decides which disk is
measured (default: a temporary folder): the slower its fdatasync, the more sharing one is worth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

from sdcp.errors import ConfigurationError
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.tls import client_context
from sdcp.messages.record import CommitRecord
from sdcp.ports import Cache
from sdcp.roles.process import collect_seldom, new_event_loop
from sdcp.stores.durable import DurableStore
from sdcp.stores.opening import open_cache

RECORD = CommitRecord(
    epoch=1, round=100, tokens=(17, 2345, 678, 90123), committed=400, digest=bytes(32), accepted=3, low=0, load=50
).encode()
SESSIONS = (1, 16, 256)
WARM_UP = 5  # appends of each session before the clock starts
CONNECT_S = 10.0

Append = Callable[[str, object], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Backend:
    """`append(log, tag)` returns the log's new tag; `pid` is the process that serves."""

    append: Append
    pid: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One line. `cpu_share`: cores that the serving process keeps busy, clients of the same process included."""

    backend: str
    sessions: int
    appends_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_share: float
    cpu_us: float


@dataclass(slots=True)
class Results:
    """All of a run; `missing` says why a backend was not measured."""

    record_octets: int
    raw_per_s: float
    sqlite_per_s: float
    figures: list[Figures] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


# -- yardsticks --------------------------------------------------------------------------------------------------------


def raw(path: Path, seconds: float) -> float:
    """Appends a second of one thread that syncs each."""
    with open(path, "wb", buffering=0) as file:

        def append() -> None:
            file.write(RECORD)
            os.fdatasync(file.fileno())

        return _rate(append, seconds)


def sqlite(path: Path, seconds: float) -> float:
    """Inserts a second, each a transaction of its own."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE log (record BLOB)")
    rate = _rate(lambda: connection.execute("INSERT INTO log VALUES (?)", (RECORD,)), seconds)
    connection.close()
    return rate


def _rate(work: Callable[[], object], seconds: float) -> float:
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        work()
        done += 1
    return done / (time.perf_counter() - begun)


# -- backends ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def store(folder: Path) -> AsyncIterator[Backend]:
    durable = DurableStore(folder / "store")

    async def append(log: str, version: object) -> object:
        return (await durable.append(log, RECORD, version)).version  # type: ignore[arg-type]

    yield Backend(append, os.getpid())
    await durable.close()


@asynccontextmanager
async def opened(uri: str, pid: int | None = None, client: Client | None = None) -> AsyncIterator[Backend]:
    cache: Cache = await open_cache([uri], client=client)

    async def append(log: str, tag: object) -> object:
        return await cache.append(cache.ref_of("logs", log), RECORD, tag)  # type: ignore[arg-type]

    yield Backend(append, pid or os.getpid())
    await cache.close()


@asynccontextmanager
async def cache(folder: Path) -> AsyncIterator[Backend]:
    server = issue(folder, "cache", "cache")
    verifier = issue(folder, "verifier", "verifier", ["https://verifier.test/"])
    (folder / "cache.toml").write_text(
        f'[tls]\ncertificate = "{server.certificate}"\nkey = "{server.key}"\nca = "{server.ca}"\n'
        '[store]\ndirectory = "store"\n'
    )
    command = (sys.executable, "-c", "from sdcp.cli import main; main()", "cache", "--log-level", "error")
    async with (
        _process(*command, "--config", str(folder / "cache.toml")) as process,
        Client(client_context(verifier)) as client,
    ):
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode().split()
        if len(ready) != 2:
            raise ConfigurationError("`sdcp cache` did not start")
        async with opened(ready[1], process.pid, client) as backend:
            yield backend


@asynccontextmanager
async def valkey(folder: Path) -> AsyncIterator[Backend]:
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        raise ConfigurationError("needs valkey-server or redis-server: apt-get install redis-server")
    port = _free_port()
    options = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction")
    async with _process(program, "--port", str(port), "--dir", str(folder), *options) as process:
        await _listening(port)
        async with opened(f"valkey://127.0.0.1:{port}/0", process.pid) as backend:
            yield backend


@asynccontextmanager
async def s3(folder: Path) -> AsyncIterator[Backend]:
    port = _free_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "bench")
    os.environ.setdefault("AWS_REGION", "us-east-1")
    async with _process(sys.executable, "-m", "moto.server", "-p", str(port)) as process:
        await _listening(port)
        endpoint = f"http://127.0.0.1:{port}"
        await asyncio.to_thread(lambda: urlopen(Request(f"{endpoint}/bench", method="PUT")).close())
        async with opened(f"s3://bench/logs?endpoint={endpoint}", process.pid) as backend:
            yield backend


BACKENDS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Backend]]] = {
    "store": store,
    "cache": cache,
    "file": lambda folder: opened(f"file://{folder}/store"),
    "memory": lambda folder: opened("memory:/bench"),
    "valkey": valkey,
    "s3": s3,
}


@asynccontextmanager
async def _process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=nowhere)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.terminate()
        await process.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def _listening(port: int) -> None:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


# -- measuring ---------------------------------------------------------------------------------------------------------


async def measure(name: str, backend: Backend, sessions: int, seconds: float) -> Figures:
    """`sessions` writers, each on a log of its own."""
    tags: dict[str, object] = {f"{sessions}-{number}": None for number in range(sessions)}
    waits: list[float] = []

    async def append(log: str) -> None:
        begun = time.perf_counter()
        tags[log] = await backend.append(log, tags[log])
        waits.append(time.perf_counter() - begun)

    async def writer(log: str, goes_on: Callable[[int], bool]) -> None:
        done = 0
        while goes_on(done):
            await append(log)
            done += 1

    await asyncio.gather(*(writer(log, lambda done: done < WARM_UP) for log in tags))
    waits.clear()
    begun, spent = time.perf_counter(), _cpu(backend.pid)
    end = begun + seconds
    await asyncio.gather(*(writer(log, lambda done: time.perf_counter() < end) for log in tags))
    took, spent = time.perf_counter() - begun, _cpu(backend.pid) - spent
    waits.sort()
    return Figures(
        name,
        sessions,
        len(waits) / took,
        median(waits) * 1e3,
        waits[int(len(waits) * 0.99)] * 1e3,
        spent / took,
        spent / len(waits) * 1e6,
    )


def _cpu(pid: int) -> float:
    """Seconds of processor time of a process, all its threads together."""
    if pid == os.getpid():
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(folder: Path, backends: list[str], seconds: float, say: Callable[[str], None]) -> Results:
    collect_seldom()  # as every role's process does
    say(f"yardsticks, {len(RECORD)} octets a record")
    results = Results(len(RECORD), raw(folder / "raw", seconds), sqlite(folder / "sqlite", seconds))
    for name in backends:
        place = folder / name
        place.mkdir()
        try:
            async with BACKENDS[name](place) as backend:
                for sessions in SESSIONS:
                    say(f"{name}, {sessions} sessions")
                    results.figures.append(await measure(name, backend, sessions, seconds))
        except ConfigurationError as fault:
            results.missing[name] = str(fault)
    say("yardsticks once more: the better of the two counts")
    results.raw_per_s = max(results.raw_per_s, raw(folder / "raw-again", seconds))
    results.sqlite_per_s = max(results.sqlite_per_s, sqlite(folder / "sqlite-again", seconds))
    return results


def table(results: Results) -> str:
    """The results as a person reads them."""
    names = ("sessions", "appends/s", "x raw", "p50 ms", "p99 ms", "cores", "µs each")
    lines = ["{:8} {:>8} {:>10} {:>6} {:>8} {:>8} {:>5} {:>8}".format("", *names)]
    for label, rate in (("raw", results.raw_per_s), ("sqlite", results.sqlite_per_s)):
        lines.append(f"{label:8} {1:8} {rate:10.0f} {rate / results.raw_per_s:6.2f} {1e3 / rate:8.3f}")
    lines += [
        f"{each.backend:8} {each.sessions:8} {each.appends_per_s:10.0f} {each.appends_per_s / results.raw_per_s:6.2f} "
        f"{each.p50_ms:8.3f} {each.p99_ms:8.3f} {each.cpu_share:5.2f} {each.cpu_us:8.1f}"
        for each in results.figures
    ]
    lines += [f"{name:8} not measured: {why}" for name, why in results.missing.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", help="where the files go: which disk is measured")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    backends = given.backends.split(",")
    if unknown := set(backends) - set(BACKENDS):
        parser.error(f"no such backend: {', '.join(sorted(unknown))}; there are {', '.join(BACKENDS)}")
    say = partial(print, file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        results = runner.run(run(Path(folder), backends, given.seconds, say))
    print(json.dumps(asdict(results), indent=2) if given.json else table(results))


if __name__ == "__main__":
    main()
