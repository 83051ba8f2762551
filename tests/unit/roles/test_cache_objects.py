"""Objects of the cache coded in zstd on the way, in either direction: octets, tags, parts and refusals (D46)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import numpy as np
import pytest

from sdcp.http.authority import issue
from sdcp.http.client import Answer, Client
from sdcp.http.codings import code
from sdcp.http.exchange import Request, Response
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.ports import StoreUnavailableError
from sdcp.roles.cache import CacheRole
from sdcp.roles.telemetry import Metrics
from sdcp.stores.memory import MemoryStore
from sdcp.stores.remote import RemoteCache

BODY_BYTES = 4 << 20
CODED = ("content-encoding", "zstd")
TAKES = ("accept-encoding", "zstd")


def sparse() -> bytes:
    """Eight rows of 49,152 values, fifty of each not zero."""
    luck = np.random.default_rng(1)
    rows = np.zeros((8, 49_152), np.float32)
    for row in rows:
        row[luck.choice(49_152, 50, replace=False)] = luck.exponential(size=50)
    return rows.tobytes()


SPARSE = sparse()
DENSE = os.urandom(len(SPARSE))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return {role: issue(folder, role, role, [f"https://{role}.test/"]) for role in ("cache", "drafter")}


class Site:
    """A cache behind a server, which notes what octets travelled."""

    def __init__(self, files: dict[str, TlsFiles], stack: AsyncExitStack) -> None:
        self.files, self._stack = files, stack
        self.metrics = Metrics()
        self.role = CacheRole(MemoryStore(), self.metrics, body_bytes=BODY_BYTES)
        self.answered: list[int] = []

    async def start(self, handler: Callable[[Request], Awaitable[Response]] | None = None) -> None:
        server = Server(handler or self._handle, server_context(self.files["cache"]))
        await self._stack.enter_async_context(server)
        self.client = await self._stack.enter_async_context(Client(client_context(self.files["drafter"])))
        self.base = f"https://127.0.0.1:{server.port}"
        self.remote = RemoteCache(self.client, self.base, host_memory=False)

    async def _handle(self, request: Request) -> Response:
        response = await self.role.handle(request)
        if isinstance(response.body, bytes | memoryview):
            self.answered.append(len(response.body))
        return response

    async def ask(self, method: str, *headers: tuple[str, str], body: bytes | None = None) -> Answer:
        url = f"{self.base}/objects/a"
        return await self.client.request(method, url, headers=headers, body=body, max_bytes=BODY_BYTES)

    def counted(self, event: str) -> int:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f'sdcp_events_total{{event="{event}"}}'):
                return round(float(line.split()[1]))
        return 0


@pytest.fixture
async def site(files: dict[str, TlsFiles]) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield Site(files, stack)


@pytest.mark.decision("D46-pays", "D40-metrics")
async def test_sparse_rows_travel_coded_and_dense_ones_as_they_are(site: Site) -> None:
    await site.start()
    for data in (SPARSE, DENSE):
        ref = await site.remote.create(data)
        assert await site.remote.fetch(ref, at_most=len(data)) == data
    assert site.answered[-1] == len(DENSE)
    assert site.answered[1] < len(SPARSE) // 100
    for way in ("tls", "tls_zstd"):
        assert site.counted(f"put_{way}_octets") == site.counted(f"get_{way}_octets") == len(SPARSE)


@pytest.mark.decision("D46-plain")
async def test_an_object_is_its_plain_octets_however_it_came(site: Site) -> None:
    await site.start()
    put = await site.ask("PUT", CODED, body=code(SPARSE))
    assert put.status == 201
    assert (await site.ask("PUT", body=SPARSE)).status == 200, "identical"
    assert (await site.ask("PUT", CODED, body=code(SPARSE[:-4]))).status == 412
    plain = await site.ask("GET")
    assert (plain.body, plain.headers["etag"]) == (SPARSE, put.headers["etag"])
    assert "content-encoding" not in plain.headers
    assert (await site.ask("HEAD", TAKES)).headers["content-length"] == str(len(SPARSE))


@pytest.mark.decision("D46-plain")
async def test_each_representation_has_its_own_tag(site: Site) -> None:
    await site.start()
    await site.ask("PUT", body=SPARSE)
    plain, coded = await site.ask("GET"), await site.ask("GET", TAKES)
    assert coded.headers["content-encoding"] == "zstd"
    assert coded.headers["etag"] != plain.headers["etag"]
    assert plain.headers["vary"] == coded.headers["vary"] == "accept-encoding"
    for each in (plain, coded):
        unchanged = await site.ask("GET", TAKES, ("if-none-match", each.headers["etag"]))
        assert (unchanged.status, unchanged.headers["etag"]) == (304, each.headers["etag"])


@pytest.mark.decision("D46-plain")
async def test_a_part_is_a_part_of_the_plain_octets(site: Site) -> None:
    await site.start()
    await site.ask("PUT", body=SPARSE)
    coded = await site.ask("GET", TAKES)
    part = await site.ask("GET", TAKES, ("range", "bytes=100000-199999"))
    assert (part.status, part.body) == (206, SPARSE[100_000:200_000])
    assert "content-encoding" not in part.headers
    whole = await site.ask("GET", TAKES, ("range", "bytes=0-9"), ("if-range", coded.headers["etag"]))
    assert (whole.status, whole.body) == (200, SPARSE), "no part of what is coded can be had"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ((CODED,), code(bytes(BODY_BYTES + 1)), 413),
        ((CODED,), code(SPARSE)[:-1], 400),
        ((CODED,), SPARSE, 400),
        ((("content-encoding", "gzip"),), SPARSE, 415),
        ((("content-encoding", "zstd, zstd"),), code(code(SPARSE)), 415),
    ],
    ids=["bomb", "cut off", "not coded", "gzip", "twice"],
)
@pytest.mark.decision("D46-bounds", "D46-plain")
async def test_what_is_coded_wrongly_is_refused_and_nothing_is_kept(
    site: Site, headers: tuple[tuple[str, str], ...], body: bytes, status: int
) -> None:
    await site.start()
    assert (await site.ask("PUT", *headers, body=body)).status == status
    assert (await site.ask("GET")).status == 404


@pytest.mark.decision("D46-refused")
async def test_a_cache_that_takes_no_coding_is_asked_once(site: Site) -> None:
    asked: list[str | None] = []

    async def plain_only(request: Request) -> Response:
        asked.append(request.headers.get("content-encoding"))
        return Response(415 if asked[-1] else 201)

    await site.start(plain_only)
    for _ in range(2):
        await site.remote.create(SPARSE)
    assert asked == ["zstd", None, None]


@pytest.mark.parametrize(
    ("coding", "body", "fault"),
    [
        ("zstd", code(bytes(len(SPARSE) + 1)), ValueError),
        ("zstd", code(SPARSE)[:-1], StoreUnavailableError),
        ("gzip", SPARSE, StoreUnavailableError),
    ],
    ids=["bomb", "cut off", "gzip"],
)
async def test_an_answer_that_is_coded_wrongly_is_no_object(
    site: Site, coding: str, body: bytes, fault: type[Exception]
) -> None:
    async def answer(request: Request) -> Response:
        return Response(200, (("content-encoding", coding),), body)

    await site.start(answer)
    with pytest.raises(fault):
        await site.remote.fetch(f"{site.base}/objects/a", at_most=len(SPARSE))
