"""503 with Retry-After (D3): a process that is going down, or is full; and the cache's 507."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from sdcp.http.client import Answer
from sdcp.wire import cbor
from tests.shells.refusals.conftest import draft_settings, router_settings, target_settings
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.raw import RawClient
from tests.shells.refusals.requests import report_verifier, request_for, silent_verifier
from tests.shells.refusals.session import FINISH, Session, path_id
from tests.shells.refusals.town import CBOR_SEQ, SDCP_CBOR, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMES = {"verifier": "small-verifier", "drafter": "small-drafter", "router": "small-router", "cache": "small-cache"}


@pytest.fixture(scope="module")
def small(town: Town) -> Town:
    """One more process of each role, for one session at a time, that a test may send away."""
    bases = town.processes.new_bases(*NAMES.values())
    town.bases |= bases
    settings = {
        "verifier": target_settings(town.bases, sessions=1),
        "drafter": draft_settings(town.bases, sessions=1),
        "router": router_settings(town.bases, sessions=1),
        "cache": {"store": {"directory": "small-store", "disk_bytes": 4 << 20}},
    }
    for role, name in NAMES.items():
        town.files[name] = town.processes.launch(name, role, bases[name], settings[role])
    town.processes.ready(*NAMES.values())
    return town


# -- full --------------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D3-503")
async def test_a_verifier_that_is_full(small: Town) -> None:
    first = await Session(small, "small-verifier", max_new=6).begin()
    second = Session(small, "small-verifier", max_new=3)
    before = await first.everything()
    check_refused(await second.open(), 503, "takes no more")
    check_refused(await second.read(), 404)
    assert await first.everything() == before
    assert (await first.advance())["action"] == FINISH
    assert (await (await second.begin(rounds=0)).advance())["action"] == FINISH


@pytest.mark.decision("D3-503")
async def test_a_drafter_that_is_full(small: Town) -> None:
    async with silent_verifier(small) as verifier:
        first, second = Session(small), Session(small)
        places = {"verifier": verifier.base, "drafter": small.bases["small-drafter"]}
        url = f"{small.bases['small-drafter']}/assignments"
        assert (await small.ask("router", "POST", url, first.assignment(**places))).status == 204
        check_refused(await small.ask("router", "POST", url, second.assignment(**places)), 503, "takes no more")
        assert (await small.ask("router", "POST", url, first.assignment(**places))).status == 204
        await verifier.asked.wait()


@pytest.mark.decision("D3-503", "D33", "D34")
async def test_a_router_that_is_full(small: Town) -> None:
    await report_verifier(small, "small-router")
    url = f"{small.bases['small-router']}/requests"
    first, second = request_for(small), request_for(small)
    assert (await small.ask("front-end", "POST", url, first)).status == 200
    check_refused(await small.ask("front-end", "POST", url, second), 503, "takes no more")
    assert (await small.ask("front-end", "POST", url, first)).status == 200
    check_refused(await small.ask("front-end", "GET", f"{url}/{path_id(second['request'])}"), 404)
    assert (await small.ask("front-end", "DELETE", f"{url}/{path_id(first['request'])}")).status == 204


@pytest.mark.decision("D3")
async def test_a_cache_whose_objects_are_all_leased_has_no_room(small: Town) -> None:
    base, names, lease = small.bases["small-cache"], [], {"ttl_ms": 60_000}
    put = await small.ask("drafter", "PUT", f"{base}/objects/o0", bytes(1 << 20), media=None)
    while put.status == 201:
        names.append(f"o{len(names)}")
        body = {"objects": names, **lease}
        assert (await small.ask("drafter", "PUT", f"{base}/leases/all", body, media="application/cbor")).status == 204
        put = await small.ask("drafter", "PUT", f"{base}/objects/o{len(names)}", bytes(1 << 20), media=None)
        assert len(names) <= 4, "more is stored than the disk may hold"
    check_refused(put, 507, "no room")
    check_refused(await small.ask("drafter", "GET", f"{base}/objects/o{len(names)}"), 404)
    for name in names:
        assert (await small.ask("drafter", "GET", f"{base}/objects/{name}")).body == bytes(1 << 20)
    assert (await small.ask("drafter", "DELETE", f"{base}/leases/all")).status == 204
    assert (await small.ask("drafter", "PUT", f"{base}/objects/after", bytes(1 << 20), media=None)).status == 201


# -- going down --------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D3-503", "D27")
async def test_a_verifier_that_goes_down(small: Town) -> None:
    session = await Session(small, "small-verifier").begin()
    other = Session(small, "small-verifier")
    log = await small.read_log(session.log)
    proposal = ("drafter", "POST", "proposals", cbor.encode(session.proposal()), SDCP_CBOR)
    opening = ("router", "POST", "sessions", cbor.encode(other.opening()), SDCP_CBOR)
    await check_goes_down(small, "small-verifier", proposal, opening)
    assert await small.read_log(session.log) == log


@pytest.mark.decision("D3-503")
async def test_a_drafter_that_goes_down(small: Town) -> None:
    assignment = cbor.encode(Session(small).assignment(drafter=small.bases["small-drafter"]))
    await check_goes_down(small, "small-drafter", ("router", "POST", "assignments", assignment, SDCP_CBOR))


@pytest.mark.decision("D3-503", "D33")
async def test_a_router_that_goes_down(small: Town) -> None:
    request = cbor.encode(request_for(small))
    await check_goes_down(small, "small-router", ("front-end", "POST", "requests", request, SDCP_CBOR))


@pytest.mark.decision("D3")
async def test_a_cache_that_goes_down(small: Town) -> None:
    await check_goes_down(small, "small-cache", ("router", "PATCH", "logs/new", cbor.encode({"epoch": 1}), CBOR_SEQ))


async def check_goes_down(town: Town, name: str, *requests: tuple[str, str, str, bytes, str]) -> None:
    """End the process; each of `requests` meanwhile is answered 503, and it ends in good order."""
    # In a thread: our other connections to it must be able to say that they have heard its GOAWAY.
    for answer in await asyncio.to_thread(_meanwhile, town, name, requests):
        check_refused(answer, 503, "going down")


def _meanwhile(town: Town, name: str, requests: Iterable[tuple[str, str, str, bytes, str]]) -> list[Answer]:
    base, answers = town.bases[name], []
    with ExitStack() as stack:
        clients = []
        for who, method, path, body, media in requests:
            client = stack.enter_context(RawClient.to(base, town.files[who]))
            clients.append((client, *client.prepare(method, f"{base}/{path}", body, media)))
        town.processes.terminate(name)
        for client, stream, octets in clients:
            client.until_goaway()
            client.send(octets)
            answers.append(client.answer(stream))
    assert town.processes.wait(name) == 0
    return answers
