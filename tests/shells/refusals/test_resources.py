"""D3 at every resource of every role: 403 by role (D10), 404, 405, 406, 413 and 415, each as Problem Details."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.processes import BODY_BYTES
from tests.shells.refusals.resources import RESOURCES, Resource
from tests.shells.refusals.session import Session, path_id
from tests.shells.refusals.town import SDCP_CBOR, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROLES = ("router", "verifier", "drafter", "front-end", "cache", "nobody")
PROCESSES = ("verifier", "drafter-process", "router-process", "cache")
every_resource = pytest.mark.parametrize("resource", RESOURCES, ids=str)


def rows(**wanted: bool) -> pytest.MarkDecorator:
    """The resources that take a body, or give one."""
    kept = [row for row in RESOURCES if all((getattr(row, key) is not None) == value for key, value in wanted.items())]
    return pytest.mark.parametrize("resource", kept, ids=str)


def caller(resource: Resource) -> str:
    """Somebody who may ask."""
    return min(resource.roles)


# -- 403 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-mutual-authentication")
@pytest.mark.decision("D3-403", "D9", "D10-router", "D10-drafter", "D10-verifier", "D10-front-end")
@every_resource
@pytest.mark.parametrize("who", ROLES)
async def test_only_the_roles_of_a_resource_may_ask(town: Town, resource: Resource, who: str) -> None:
    body = b"" if resource.method in ("POST", "PUT", "PATCH") else None
    answer = await town.ask(who, resource.method, resource.url(town.bases[resource.at]), body, media=resource.takes)
    if who in resource.roles:
        assert answer.status != 403, answer
    else:
        check_refused(answer, resource.refusal, "needs a certificate with the role")


@pytest.mark.decision("D3", "D10")
@pytest.mark.parametrize("at", PROCESSES)
async def test_metrics_are_for_peers_with_a_role(town: Town, at: str) -> None:
    check_refused(await town.ask("nobody", "GET", f"{town.bases[at]}/metrics"), 403, "certificate has a role")
    assert (await town.ask("front-end", "GET", f"{town.bases[at]}/metrics")).status == 200


# -- 404 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D3-404")
@pytest.mark.parametrize("at", PROCESSES)
@pytest.mark.parametrize("path", ["", "nothing", "sessions/", "proposals/", "./sessions/x", "%73essions", "Sessions"])
async def test_a_path_that_is_none_is_404(town: Town, at: str, path: str) -> None:
    for who in ("router", "nobody"):
        check_refused(await town.ask(who, "POST", f"{town.bases[at]}/{path}", b""), 404, "there is no resource")


@pytest.mark.requirement("S5.1-configured-base-uri")
@pytest.mark.decision("D3")
@every_resource
async def test_resources_are_below_the_base_uri_alone(town: Town, resource: Resource) -> None:
    base = town.bases[resource.at].removesuffix("/v1")
    for wrong in (base, f"{base}/v1/v1", f"{base}/v2", f"{base}/v1/"):
        check_refused(
            await town.ask(caller(resource), resource.method, resource.url(wrong)), 404, "there is no resource"
        )


BAD_IDS = {
    "15 octets": path_id(bytes(15)),
    "17 octets": path_id(bytes(17)),
    "padded": f"{path_id(bytes(16))}==",
    "base64": path_id(b"\xff" * 16).replace("_", "/"),
    "base64, escaped": path_id(b"\xff" * 16).replace("_", "%2F"),
    "not the only spelling": f"{path_id(bytes(16))[:-1]}B",
    "hex": bytes(16).hex(),
    "no letter of it": "!" * 22,
    "not ASCII": "%C3%A4" * 11,
    "empty": "",
}


@pytest.mark.requirement("S5.1-session-path-id")
@pytest.mark.decision("D3-404")
@pytest.mark.parametrize("resource", [row for row in RESOURCES if "{id}" in row.path], ids=str)
@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
async def test_an_identifier_that_is_none_is_404(town: Town, resource: Resource, bad: str) -> None:
    url = f"{town.bases[resource.at]}/{resource.path}".replace("{id}", bad)
    check_refused(
        await town.ask(caller(resource), resource.method, url, media=resource.takes), 404, "there is no resource"
    )


@pytest.mark.requirement("S5.1-session-path-id")
@pytest.mark.decision("D3-404")
async def test_an_unknown_session_is_404(town: Town) -> None:
    stranger = Session(town)
    check_refused(await stranger.assign(), 404, "no such session")
    check_refused(await stranger.propose(), 404, "no such session")
    check_refused(await stranger.set_policy(), 404, "no such session")
    for who in ("router", "front-end", "drafter"):
        check_refused(await stranger.read(who=who), 404, "no such session")


# -- 405 ---------------------------------------------------------------------------------------------------------------


def methods_at(resource: Resource) -> set[str]:
    """What the path can be asked with; HEAD wherever GET is."""
    methods = {row.method for row in RESOURCES if (row.at, row.path) == (resource.at, resource.path)}
    return methods | {"HEAD"} if "GET" in methods else methods


@pytest.mark.decision("D3-405")
@every_resource
async def test_another_method_is_405_with_allow(town: Town, resource: Resource) -> None:
    url, allowed = resource.url(town.bases[resource.at]), methods_at(resource)
    for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "QUERY"} - allowed:
        answer = await town.ask(caller(resource), method, url)
        check_refused(answer, 405, method)
        assert {name.strip() for name in answer.headers["allow"].split(",")} == allowed


# -- 406, 415 ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-media-type")
@pytest.mark.decision("D3-media-type")
@rows(gives=True)
@pytest.mark.parametrize("accept", ["text/html", "application/json", "application/problem+json", "{};q=0", "*/*;q=0"])
async def test_an_accept_that_takes_nothing_of_ours_is_406(town: Town, resource: Resource, accept: str) -> None:
    body = None if resource.takes is None else b""
    header = ("accept", accept.format(resource.gives))
    url = resource.url(town.bases[resource.at])
    check_refused(
        await town.ask(caller(resource), resource.method, url, body, header), 406, re.escape(str(resource.gives))
    )


@pytest.mark.requirement("S5.1-media-type")
@pytest.mark.decision("D3-media-type")
@rows(takes=True)
@pytest.mark.parametrize(
    "media",
    [None, "application/json", "text/plain", "application/octet-stream", "application/sdcp+cbor-seq", "cbor", ""],
)
async def test_a_body_of_another_media_type_is_415(town: Town, resource: Resource, media: str | None) -> None:
    url = resource.url(town.bases[resource.at])
    answer = await town.ask(caller(resource), resource.method, url, b"\xa0", media=media)
    check_refused(answer, 415, re.escape(str(resource.takes)))


@pytest.mark.requirement("S5.1-media-type")
@pytest.mark.decision("D3")
@pytest.mark.parametrize("media", ["application/sdcp+cbor; v=1", "APPLICATION/SDCP+CBOR", "application/sdcp+cbor ;a=b"])
@pytest.mark.parametrize("accept", [SDCP_CBOR, "*/*", "application/*", f"text/html, {SDCP_CBOR};q=0.1"])
async def test_other_spellings_of_our_media_type_are_taken(town: Town, media: str, accept: str) -> None:
    session = Session(town)
    url = f"{session.base}/sessions"
    answer = await town.ask("router", "POST", url, session.opening(), ("accept", accept), media=media)
    assert (answer.status, answer.headers["content-type"]) == (200, SDCP_CBOR)


# -- 413 ---------------------------------------------------------------------------------------------------------------


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body whose length is not announced."""
    for start in range(0, len(body), 16_384):
        yield body[start : start + 16_384]


LIMITS = {"cache": 1 << 20}
"""Of the cache: its `body_bytes` for objects, a megabyte for logs and leases."""


with_body = [row for row in RESOURCES if row.method in ("POST", "PUT", "PATCH") and "requests/" not in row.path]


@pytest.mark.decision("D3-413")
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "not-announced"])
@pytest.mark.parametrize("resource", with_body, ids=str)
async def test_a_body_over_the_limit_is_413(town: Town, resource: Resource, announced: bool) -> None:
    limit = LIMITS.get(resource.at, BODY_BYTES)
    session = await Session(town).begin(rounds=0)
    url = resource.url(town.bases[resource.at]).replace("A" * 22, path_id(session.id))
    for size in (limit + 1, 2 * limit):
        body = bytes(size) if announced else in_pieces(bytes(size))
        answer = await town.ask(caller(resource), resource.method, url, body, media=resource.takes)
        check_refused(answer, 413, str(limit))
    await session.advance()


@pytest.mark.decision("D3-413", "D4")
async def test_a_body_of_exactly_the_limit_is_taken(town: Town) -> None:
    session = Session(town)
    url, room = (
        f"{session.base}/sessions",
        BODY_BYTES - len(cbor.encode(session.opening(padding=bytes(1 << 15)))) + (1 << 15),
    )
    check_refused(await town.ask("router", "POST", url, session.opening(padding=bytes(room + 1))), 413)
    assert (await town.ask("router", "POST", url, session.opening(padding=bytes(room)))).status == 200


@pytest.mark.decision("D1")
@pytest.mark.parametrize("at", PROCESSES)
async def test_a_header_list_over_the_limit_is_431(town: Town, at: str) -> None:
    answer = await town.ask("router", "GET", f"{town.bases[at]}/metrics", None, ("x-padding", "x" * 20_000))
    check_refused(answer, 431, "header list")
