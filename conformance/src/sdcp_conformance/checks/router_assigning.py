"""A router assigns drafters: whom, in which order, with what (5.2, 6.1, D20, D28)."""

from __future__ import annotations

import asyncio
import time

from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.town import ROUTER_CONTRACT
from sdcp_conformance.worlds.routed import (
    MOMENT_S,
    assigned,
    lose,
    object_tokens,
    opened_at,
    relatives,
)
from sdcp_conformance.worlds.router import RouterWorld
from sdcp_conformance.worlds.world import path_id


@check(
    "R-assign-path",
    "S5.1-put-drafter",
    "S5.1-session-path-id",
    "S5.1-configured-base-uri",
    title="PUT drafter goes below the verifier's base URI, the session in base64url without padding",
)
async def path(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    put = await verifier.put()
    base_path = "/" + verifier.base.removeprefix("https://").partition("/")[2]
    expect(opened.incoming.request.path, f"{base_path}/sessions", "path of the session-open")
    expect(put.incoming.request.path, f"{base_path}/sessions/{path_id(opened.session)}/drafter", "path of PUT drafter")


@check(
    "R-assign-names",
    "S5.2-assignment",
    "S5.1-post-assignments",
    title="both are told the same session, verifier and drafter, by their base URIs",
)
async def names(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    put, assignment = await assigned(verifier, drafter)
    for what, message in (("PUT drafter", put.message), ("assignment", assignment.message)):
        expect(message["session"], opened.session, f"session of the {what}")
        expect(message["epoch"], 1, f"epoch of the {what}")
        expect(message["verifier"], verifier.base, f"verifier of the {what}")
        expect(message["drafter"], drafter.base, f"drafter of the {what}")


@check(
    "R-assign-start",
    "S6.1-assignment-carries-state",
    "S4.2-chain-start",
    title="the first assignment is of round 0, committed 0 and d[0]",
)
async def start(r: RouterWorld) -> None:
    run = await r.running()
    found = tuple(run.assignment[key] for key in ("round", "committed", "digest"))
    expect(found, (0, 0, run.facts.digest_at(0)), "round, committed and digest of the first assignment")


@check(
    "R-assign-state",
    "S6.1-assignment-carries-state",
    "S5.2-assignment-round",
    decisions=["D28"],
    title="the assignment carries what the verifier answers to PUT drafter",
)
async def state(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    await lose(run.drafter)
    put = await run.verifier.put()
    facts = run.verifier.commit(run.session, [8, 9])  # the round that was under verification when PUT came
    put.accept()
    message = (await other.assignment()).message
    found = tuple(message[key] for key in ("round", "committed", "digest"))
    expect(found, (2, 3, facts.digest), "round, committed and digest of the assignment")


@check(
    "R-assign-informed-again",
    "S6.1-verifier-informed-first",
    title="a PUT drafter without an answer does not count: no drafter is told before one is answered",
)
async def informed_again(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    (await verifier.put()).drop()
    again = await verifier.put()
    await drafter.box("an assignment").none_within(MOMENT_S, "before PUT drafter is answered")
    again.accept()
    (await drafter.assignment()).accept()


@check(
    "R-assign-committed-tokens",
    title="an assignment with committed output names a leased object of exactly its tokens",
    profile="decisions",
    decisions=["D20"],
)
async def committed_tokens(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    run.verifier.commit(run.session, [8, 9])
    await lose(run.drafter)
    _, assignment = await assigned(run.verifier, other)
    ref = assignment.message.get("committed_tokens")
    expect(object_tokens(r, ref, "committed_tokens"), [7, 8, 9], "tokens of the object")
    ensure(r.cache.leased(str(ref)), "expected a lease on committed_tokens, there is none")


@check(
    "R-assign-no-tokens",
    title="an assignment without committed output names no object of it",
    profile="decisions",
    decisions=["D20"],
)
async def no_tokens(r: RouterWorld) -> None:
    run = await r.running()
    expect(run.assignment.get("committed_tokens"), None, "committed_tokens of the first assignment")


@check(
    "R-assign-m-init",
    title="m_init is the operator's",
    profile="decisions",
    decisions=["D16"],
)
async def m_init(r: RouterWorld) -> None:
    run = await r.running()
    expect(run.assignment["m_init"], ROUTER_CONTRACT["m_init"], "m_init of the assignment")


@check(
    "R-assign-expired",
    "S6.1-expired-status",
    title="a drafter whose status has expired is not assigned",
)
async def expired_drafter(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    gone = await r.place.drafter(ttl_ms=200)
    await asyncio.sleep(0.25)  # what is judged is that time has passed
    alive = await r.place.drafter(load=90, queue=20)
    _, opened = await opened_at(r, verifier)
    opened.accept()
    expect((await verifier.put()).message["drafter"], alive.base, "drafter, the other's status having expired")
    await gone.box("an assignment").none_within(0.05, "at a drafter whose status has expired")


@check(
    "R-assign-expired-verifier",
    "S6.1-expired-status",
    title="a verifier whose status has expired is not given a session",
)
async def expired_verifier(r: RouterWorld) -> None:
    gone = await r.place.verifier(ttl_ms=200)
    await asyncio.sleep(0.25)  # what is judged is that time has passed
    alive = await r.place.verifier(load=90, queue=20)
    r.request()
    await alive.opened()
    await gone.box("a session-open").none_within(0.05, "at a verifier whose status has expired")


@check(
    "R-assign-ttl-zero",
    "S6.1-expired-status",
    title="a status with ttl_ms 0 has expired when it comes",
)
async def ttl_zero(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    await r.place.drafter(ttl_ms=0)
    _, opened = await opened_at(r, verifier)
    opened.accept()
    await verifier.box("a PUT drafter").none_within(MOMENT_S, "while no drafter's status is in force")
    alive = await r.place.drafter(load=90)
    expect((await verifier.put()).message["drafter"], alive.base, "drafter of PUT drafter")


@check(
    "R-assign-renewed",
    title="the ttl counts from the last status: a drafter that goes on reporting keeps its sessions",
    profile="decisions",
    decisions=["D7"],
)
async def renewed(r: RouterWorld) -> None:
    run = await r.running()
    await r.place.drafter()
    began = time.monotonic()
    (await run.drafter.report(ttl_ms=1500)).no_content()
    (await run.drafter.report()).no_content()
    if time.monotonic() - began >= 1.5:
        raise NotApplicable("two statuses took longer than the ttl of the first")
    await asyncio.sleep(1.6)  # what is judged is that time has passed
    puts = [incoming.message["drafter"] for incoming in run.verifier.box("a PUT drafter").all]
    expect(set(puts), {run.drafter.base}, "drafters of the session, the first one having reported in time")


@check(
    "R-assign-load",
    "S6.1-drafter-selection",
    title="of two drafters the one with less load and queue is chosen",
    profile="decisions",
    decisions=["D7"],
)
async def load(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    await r.place.drafter(load=95, queue=9)
    idle = await r.place.drafter(load=1, queue=0)
    await r.place.drafter(load=60, queue=3)
    _, opened = await opened_at(r, verifier)
    opened.accept()
    expect((await verifier.put()).message["drafter"], idle.base, "drafter of PUT drafter")


@check(
    "R-assign-tokenizer",
    "S4.1-tokenizer-digest",
    "S6.1-drafter-permitted",
    title="a drafter of another tokenizer is not assigned",
)
async def tokenizer(r: RouterWorld) -> None:
    async with relatives(r, model=r.place.seat.model) as (ours, others):
        verifier = await ours.place.verifier()
        other, right = await others.place.drafter(), await ours.place.drafter(load=90, queue=5)
        _, opened = await opened_at(ours, verifier)
        opened.accept()
        expect((await verifier.put()).message["drafter"], right.base, "drafter of PUT drafter")
        expect(len(other.box("an assignment").all), 0, "assignments at a drafter of another tokenizer")
