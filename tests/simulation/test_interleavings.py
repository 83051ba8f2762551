"""All interleavings to depth 8 of those who contend for a commit log, against every kind of log store (6.3, 6.8, 6.9).

Not samples: `sdcp.testing.interleavings` says what a step is, what is followed further as one, and what is checked.
The counts are asserted, so that an exploration that silently became smaller is seen.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from obstore.store import MemoryStore as ObjectsInMemory

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.machines.reader import LogReader
from sdcp.messages.record import CommitRecord
from sdcp.ports import LogFencedError
from sdcp.roles.cache import CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.durable import DurableStore
from sdcp.stores.files import FileCache
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.remote import RemoteCache
from sdcp.stores.s3 import S3Cache
from sdcp.stores.s3_bucket import Bucket
from sdcp.stores.segments import Sizes
from sdcp.stores.valkey import ValkeyCache
from sdcp.testing.contenders import GREEDY
from sdcp.testing.interleavings import Cast, Coverage, explore
from sdcp.testing.log_stores import ModelStore
from tests.simulation.kept_logs import HandedOver, KeptLogs
from tests.unit.stores.s3_process import S3Process
from tests.unit.stores.valkey_process import ValkeyProcess, needs_server

DEPTH = 8
TINY = Sizes(segment=1 << 11, ahead=1 << 9)  # a log lies in several segments, among others

SENTENCES = pytest.mark.requirement(
    "S6.8-conditional-append",
    "S6.8-record-epoch",
    "S6.8-commit-record-follows",
    "S6.8-fence-record",
    "S6.8-fence-refuses-older",
    "S6.8-read-back",
    "S6.9-fence-first",
    "S6.9-resume",
    "S6.3-fenced-append",
    "S6.3-append-before-release",
    "S6.7-stable-indices",
)


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """Worlds by the ten thousand and no cycles among them: looking for some would take a fifth of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


def covers(coverage: Coverage, *, interleavings: int, states: int, logs: int, resumed: int) -> None:
    """At least so much was covered; what it is in all is printed (`pytest -s`)."""
    print(coverage)
    assert coverage.interleavings >= interleavings, coverage
    assert coverage.states >= states, coverage
    assert coverage.logs >= logs, coverage
    assert coverage.resumed >= resumed, coverage
    assert coverage.released >= coverage.resumed, coverage
    assert coverage.fenced, coverage


# ---- to depth 8 against each store -----------------------------------------------------------------------------------


@SENTENCES
@pytest.mark.decision("D19", "D20", "D27", "D34")
def test_in_memory(runner: asyncio.Runner) -> None:
    logs = KeptLogs(MemoryCache(), runner)
    covers(explore(logs, DEPTH), interleavings=600_000, states=28_000, logs=98, resumed=690)
    assert logs.histories >= 700, "each is carried out in a log of its own"


@SENTENCES
@pytest.mark.decision("D19", "D20", "D27", "D34")
@pytest.mark.parametrize("sizes", [TINY, Sizes()], ids=["small segments", "one segment"])
def test_in_files(runner: asyncio.Runner, tmp_path: Path, sizes: Sizes) -> None:
    """A folder of this machine; and what it acknowledged is there, and fenced, when it is opened again."""
    store = DurableStore(tmp_path, sizes=sizes)
    logs = KeptLogs(FileCache(store), runner)
    covers(explore(logs, DEPTH), interleavings=600_000, states=28_000, logs=98, resumed=690)
    runner.run(store.close())
    runner.run(reopened(FileCache(DurableStore(tmp_path, sizes=sizes)), logs.contents))


async def reopened(cache: LocalCache, contents: dict[str, bytes]) -> None:
    fenced = 0
    for ref, octets in contents.items():
        found = await cache.read_log(ref)
        assert found.data == octets
        reader = LogReader()
        reader.read(octets)
        if reader.fence > 1:
            fenced += 1
            with pytest.raises(LogFencedError):
                await cache.append(ref, stale(reader), found.etag)
    assert fenced > 100
    await cache.store.close()


def stale(reader: LogReader) -> bytes:
    return CommitRecord(epoch=reader.fence - 1, round=1, tokens=(1,), committed=1, digest=bytes(32)).encode()


@SENTENCES
@pytest.mark.decision("D19", "D20", "D27", "D34")
def test_behind_a_cache(runner: asyncio.Runner) -> None:
    """The remote store and the cache's role, all of both but the connection between them."""
    role = CacheRole(MemoryStore(), Metrics(), body_bytes=1 << 20)
    logs = KeptLogs(RemoteCache(HandedOver(role), "https://cache.test/"), runner)  # type: ignore[arg-type]
    covers(explore(logs, DEPTH), interleavings=600_000, states=28_000, logs=98, resumed=690)


@SENTENCES
def test_behind_a_cache_over_mutual_tls(runner: asyncio.Runner, tmp_path: Path) -> None:
    """The same with the connection, to a smaller depth: the least in which a new verifier commits is 5."""
    stack = AsyncExitStack()
    cache = runner.run(connected(stack, tmp_path))
    covers(explore(KeptLogs(cache, runner), 6), interleavings=21_000, states=3_600, logs=46, resumed=14)
    runner.run(stack.aclose())


async def connected(stack: AsyncExitStack, folder: Path) -> RemoteCache:
    files: dict[str, TlsFiles] = {
        role: issue(folder, role, role, [f"https://{role}.test/"]) for role in ("cache", "verifier")
    }
    role = CacheRole(MemoryStore(), Metrics(), body_bytes=1 << 20)
    server = await stack.enter_async_context(Server(role.handle, server_context(files["cache"])))
    client = await stack.enter_async_context(Client(client_context(files["verifier"])))
    return RemoteCache(client, f"https://127.0.0.1:{server.port}", deadline_s=60.0)


@SENTENCES
@needs_server
def test_in_a_valkey_server(runner: asyncio.Runner, tmp_path: Path) -> None:
    """The script, and all the way to it."""
    process = ValkeyProcess(tmp_path / "server")
    runner.run(process.start())
    try:
        cache = runner.run(ValkeyCache.open(process.uri, deadline_s=60.0))
        covers(explore(KeptLogs(cache, runner), 6), interleavings=21_000, states=3_600, logs=46, resumed=14)
        runner.run(cache.close())
    finally:
        runner.run(process.kill())


@SENTENCES
@pytest.mark.decision("D19", "D20", "D27", "D34")
def test_a_store_that_tells_a_stale_epoch_before_a_stale_tag() -> None:
    """As the simulated worlds' store does; ours tell the tag first."""
    covers(explore(ModelStore(), DEPTH), interleavings=600_000, states=28_000, logs=98, resumed=690)


@SENTENCES
@pytest.mark.decision("D19", "D20", "D27", "D34")
def test_a_store_that_takes_any_conditional_append() -> None:
    """Verifiers read back (6.8). Ours leave no void record even there: they have looked before they append."""
    coverage = explore(ModelStore(enforces_fences=False), DEPTH)
    covers(coverage, interleavings=500_000, states=12_000, logs=55, resumed=95)
    assert not coverage.void


@SENTENCES
@pytest.mark.decision("D20", "D27", "D34")
def test_the_same_store_and_a_verifier_that_leaves_void_records() -> None:
    """One of another make, which only reads back: no reader takes a void record for more, and writers get past it."""
    coverage = explore(ModelStore(enforces_fences=False), DEPTH, Cast(blind=True))
    covers(coverage, interleavings=560_000, states=8_000, logs=110, resumed=75)
    assert coverage.void >= 600


@SENTENCES
@pytest.mark.decision("D20", "D27", "D34", "D42-read-back")
@pytest.mark.parametrize("blind", [False, True], ids=["ours", "one that leaves void records"])
def test_in_a_store_that_speaks_s3(runner: asyncio.Runner, blind: bool) -> None:
    """All of our own, over the library's store in memory: it knows no fences, so who appends reads back."""
    memory = ObjectsInMemory()
    cache = S3Cache(Bucket(memory, memory, deadline_s=60.0), base="s3://bucket/sdcp")
    logs = KeptLogs(cache, runner)
    assert not logs.enforces_fences
    coverage = explore(logs, DEPTH, Cast(blind=blind))
    if blind:
        covers(coverage, interleavings=560_000, states=8_000, logs=110, resumed=75)
        assert coverage.void >= 600
    else:
        covers(coverage, interleavings=500_000, states=12_000, logs=55, resumed=95)
        assert not coverage.void
    runner.run(cache.close())


@SENTENCES
@pytest.mark.decision("D42-read-back")
def test_in_an_s3_server(runner: asyncio.Runner, s3: S3Process) -> None:
    """The same with a server, to a smaller depth."""
    cache = runner.run(S3Cache.open(s3.uri(s3.bucket()), deadline_s=60.0))
    covers(explore(KeptLogs(cache, runner), 7), interleavings=95_000, states=5_200, logs=44, resumed=13)
    runner.run(cache.close())


# ---- more contenders, less deep --------------------------------------------------------------------------------------


@SENTENCES
@pytest.mark.parametrize(("enforces", "resumed"), [(True, 36), (False, 2)], ids=["fences", "no fences"])
def test_two_routers_that_both_take_the_session(enforces: bool, resumed: int) -> None:
    coverage = explore(ModelStore(enforces_fences=enforces), 6, Cast(routers=2))
    covers(coverage, interleavings=157_000, states=11_000, logs=28, resumed=resumed)


@SENTENCES
@pytest.mark.decision("D19", "D27")
@pytest.mark.parametrize(("enforces", "resumed"), [(True, 150), (False, 16)], ids=["fences", "no fences"])
def test_verifiers_that_die_and_open_again_under_their_epoch(enforces: bool, resumed: int) -> None:
    """What they had sent arrives when it likes, and has the tokens and the digest of what they send now."""
    coverage = explore(ModelStore(enforces_fences=enforces), 7, Cast(restarts=1, spread=GREEDY))
    covers(coverage, interleavings=225_000, states=8_600, logs=65, resumed=resumed)


@SENTENCES
@pytest.mark.parametrize(("enforces", "resumed"), [(True, 14), (False, 1)], ids=["fences", "no fences"])
def test_greedy_sessions_whose_verifiers_all_commit_the_same(enforces: bool, resumed: int) -> None:
    coverage = explore(ModelStore(enforces_fences=enforces), 6, Cast(spread=GREEDY))
    covers(coverage, interleavings=18_000, states=2_000, logs=28, resumed=resumed)
