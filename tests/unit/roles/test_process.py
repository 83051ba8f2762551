"""What a process adds to its role: metrics below the base URI, and nowhere else."""

from __future__ import annotations

import pytest

from sdcp.errors import Forbidden
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import Peer
from sdcp.roles.process import with_metrics
from sdcp.roles.telemetry import CONTENT_TYPE, Metrics

SOMEBODY = Peer(frozenset(), frozenset(), frozenset(), frozenset({"router"}))
NOBODY = Peer(frozenset(), frozenset(), frozenset())


async def ask(method: str, path: str, base_path: str = "", peer: Peer = SOMEBODY) -> Response:
    async def role(_: Request) -> Response:
        return Response(418)

    request = Request(method, path, "", "r.example", {}, peer, None)  # type: ignore[arg-type]
    return await with_metrics(role, Metrics(), base_path)(request)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("path", "base_path"), [("/metrics", ""), ("/r/1/metrics", "/r/1"), ("/r/metrics", "/r/")])
async def test_metrics_are_below_the_base_uri(method: str, path: str, base_path: str) -> None:
    answer = await ask(method, path, base_path)
    assert (answer.status, answer.headers) == (200, (("content-type", CONTENT_TYPE),))


@pytest.mark.parametrize(
    ("method", "path", "base_path"),
    [
        ("GET", "/objects/metrics", ""),
        ("HEAD", "/objects/metrics", ""),
        ("GET", "/metrics", "/r"),
        ("GET", "/r/metrics/", "/r"),
        ("PUT", "/metrics", ""),
    ],
)
async def test_everything_else_is_the_role_s(method: str, path: str, base_path: str) -> None:
    """An object named `metrics` is an object."""
    assert (await ask(method, path, base_path)).status == 418


async def test_metrics_are_for_peers_with_a_role() -> None:
    with pytest.raises(Forbidden):
        await ask("GET", "/metrics", peer=NOBODY)
