"""Statuses at a router: what is taken, and from whom (5.2, 6.1, D7, D10)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import MOMENT_S, opened_at
from sdcp_conformance.worlds.router import PlayedDrafter, RouterWorld

WRONG: list[dict[str, Any]] = [
    {"role": 0},
    {"role": 3},
    {"load": 101},
    {"load": -1},
    {"queue": -1},
    {"queue": "0"},
    {"ttl_ms": -1},
    {"ttl_ms": None},
    {"accept_milli": 1001},
    {"cache_mbps": -5},
    {"cache_mbps": 1.5},
]
"""Members of a status that 5.2 does not permit."""


@check("R-status-taken", "S5.1-put-status", "S5.2-status", title="a status is answered 204, with its optional members")
async def taken(r: RouterWorld) -> None:
    drafter, verifier = await r.place.drafter(), await r.place.verifier()
    for more in ({}, {"accept_milli": 1000, "cache_mbps": 0}, {"accept_milli": 0, "cache_mbps": 1 << 40}):
        (await drafter.report(**more)).no_content()
    (await verifier.report(load=100, queue=1 << 32)).no_content()


@check("R-status-unknown-keys", "S5.2-unknown-keys", title="unknown keys of a status are ignored")
async def unknown_keys(r: RouterWorld) -> None:
    verifier = await r.place.verifier(future={"a": [1, None]}, other=b"\x00")
    drafter = await r.place.drafter(future=-1)
    _, opened = await opened_at(r, verifier)
    opened.accept()
    expect((await verifier.put()).message["drafter"], drafter.base, "drafter of PUT drafter")


@check(
    "R-status-wrong",
    "S5.2-status",
    "S5.2-status-accept-milli",
    title="a status with a member out of its range is refused",
)
async def wrong(r: RouterWorld) -> None:
    drafter = await r.place.drafter()
    for change in WRONG:
        (await drafter.report(**change)).rejected(f"{change}")


@check("R-status-wrong-ignored", "S5.2-status", title="a status that is refused leaves the one before in force")
async def wrong_ignored(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    for change in WRONG:
        (await drafter.report(**change)).rejected(f"{change}")
    _, opened = await opened_at(r, verifier)
    opened.accept()
    expect((await verifier.put()).message["drafter"], drafter.base, "drafter of PUT drafter")


async def report_for(sender: PlayedDrafter, name: str, segment: str, **status: Any) -> Any:
    """PUT instances/{segment}/status by `sender` about the instance of this name."""
    message: dict[str, Any] = {"instance": name, "role": 1, "load": 0, "queue": 0, "ttl_ms": 60_000}
    url = f"{sender.world.base}/instances/{segment}/status"
    return await sender.client.request("PUT", url, {**message, **status})


@check(
    "R-status-foreign",
    title="a status about an instance is taken from its own certificate only",
    profile="decisions",
    decisions=["D10"],
)
async def foreign(r: RouterWorld) -> None:
    first, second = await r.place.drafter(), await r.place.drafter()
    segment = quote(first.name, safe="")
    (await report_for(second, first.name, segment, ttl_ms=1)).refused(403)
    (await report_for(second, first.name, segment, base=first.base)).refused(403)
    (await report_for(second, second.name, quote(second.name, safe=""), base=first.base)).refused(403)


@check(
    "R-status-foreign-harmless",
    title="nobody lets another's status expire",
    profile="decisions",
    decisions=["D10"],
)
async def foreign_harmless(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    await report_for(other, run.drafter.name, quote(run.drafter.name, safe=""), ttl_ms=1)
    await report_for(other, run.drafter.name, quote(run.drafter.name, safe=""), ttl_ms=1, base=other.base)
    await run.verifier.box("a PUT drafter").none_within(MOMENT_S, "after another's status about its drafter")


@check(
    "R-status-role",
    title="a status with another role than the certificate's is 403",
    profile="decisions",
    decisions=["D10"],
)
async def role(r: RouterWorld) -> None:
    drafter, verifier = await r.place.drafter(), await r.place.verifier()
    (await drafter.report(role=2)).refused(403)
    (await verifier.report(role=1)).refused(403)


@check(
    "R-status-path",
    title="a status whose instance is not the one in the path is refused",
    profile="decisions",
    decisions=["D7"],
)
async def path(r: RouterWorld) -> None:
    drafter = await r.place.drafter()
    (await report_for(drafter, f"{drafter.name}x", quote(drafter.name, safe=""))).rejected("another instance")


@check(
    "R-status-escaped",
    title="the instance is percent-encoded as one segment of the path",
    profile="decisions",
    decisions=["D7"],
)
async def escaped(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    facts = {"base": drafter.base, "model": drafter.model, "tokenizer": r.place.seat.tokenizer}
    for name in (f"a/b ?#%25 {drafter.name}", f"ä+~:@ {drafter.name}", drafter.base):
        (await report_for(drafter, name, quote(name, safe=""), **facts)).no_content()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    expect((await verifier.put()).message["drafter"], drafter.base, "drafter of PUT drafter")


@check(
    "R-status-media-type",
    title="a status of another media type is 415, another method 405",
    profile="decisions",
    decisions=["D3"],
)
async def media_type(r: RouterWorld) -> None:
    drafter = await r.place.drafter()
    url = f"{r.base}/instances/{quote(drafter.name, safe='')}/status"
    message = {"instance": drafter.name, "role": 1, "load": 0, "queue": 0, "ttl_ms": 60_000}
    (await drafter.client.request("PUT", url, message, media="application/json")).refused(415)
    (await drafter.client.request("POST", url, message)).refused(405)
    (await drafter.client.request("GET", url)).refused(405)
