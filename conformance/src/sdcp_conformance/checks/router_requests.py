"""Front ends at a router: D33, D34. The draft leaves them out of its scope, so all of this is a decision of ours."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.net.client import Answer
from sdcp_conformance.oracle.control import FAIL, FINISH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import (
    MOMENT_S,
    answer_states,
    behind_fence,
    failed_over,
    lose,
    opened_at,
)
from sdcp_conformance.worlds.router import RouterWorld


@check(
    "R-request-location", title="the answer says session, epoch and verifier", profile="decisions", decisions=["D33"]
)
async def location(r: RouterWorld) -> None:
    run = await r.running()
    found = await run.request.location()
    expect(found["session"], run.session, "session of the location")
    expect((found["epoch"], found["verifier"]), (1, run.verifier.base), "epoch and verifier of the location")
    ensure("ended" not in found and "tokens" not in found, f"expected neither ended nor tokens, came {found}")


@check(
    "R-request-after-opening",
    title="a request is answered when a verifier has opened the session, not before",
    profile="decisions",
    decisions=["D33"],
)
async def after_opening(r: RouterWorld) -> None:
    requested, opened = await opened_at(r, await r.place.verifier())
    asking = r.background(requested.answer())
    done, _ = await asyncio.wait([asking], timeout=MOMENT_S)
    ensure(not done, "expected no answer to the front end before the session is open")
    opened.accept()
    (await asking).succeeded()


@check(
    "R-request-repeated",
    title="the same request again gets the same session, and opens no other",
    profile="decisions",
    decisions=["D33"],
)
async def repeated(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    requested, opened = await opened_at(r, verifier)
    early = [r.background(r.ask("front-end", "POST", "requests", requested.message)) for _ in range(4)]
    await verifier.box("a session-open").none_within(MOMENT_S, "for a request that was repeated")
    opened.accept()
    late = await r.ask("front-end", "POST", "requests", requested.message)
    for answer in [await requested.answer(), *(await asyncio.gather(*early)), late]:
        expect(answer.message["session"], opened.session, "session of the location")


@check(
    "R-request-conflict",
    title="another request with the same identifier is 409",
    profile="decisions",
    decisions=["D33"],
)
async def conflict(r: RouterWorld) -> None:
    run = await r.running()
    for change in ({"max_new": 9}, {"prompt": [1]}, {"stop": [1]}, {"rule": 2}, {"sampling": {"seed": 1}}):
        (await r.ask("front-end", "POST", "requests", {**run.request.message, **change})).refused(409)


@check(
    "R-request-owner",
    title="a request belongs to the certificate that made it: others cannot find, change, end or repeat it",
    profile="decisions",
    decisions=["D33"],
)
async def owner(r: RouterWorld) -> None:
    run = await r.running()
    path, other = run.request.path, "other-front-end"
    (await r.ask(other, "GET", path)).refused(404)
    (await r.ask(other, "DELETE", path)).refused(404)
    (await r.ask(other, "POST", f"{path}/policy", {"sampling": {}})).refused(404)
    (await r.ask(other, "POST", "requests", run.request.message)).refused(409)
    expect((await run.request.locate()).message.get("ended"), None, "ended of the location")


@check(
    "R-request-roles",
    title="requests take a certificate with the role front-end",
    profile="decisions",
    decisions=["D10", "D33"],
)
async def roles(r: RouterWorld) -> None:
    run = await r.running()
    for who in ("router", "verifier", "drafter", "nobody"):
        (await r.ask(who, "POST", "requests", run.request.message)).refused(403)
        (await r.ask(who, "DELETE", run.request.path)).refused(403)


@check(
    "R-request-wrong",
    title="a request that lacks a member, or has one of another type, is refused and opens nothing",
    profile="decisions",
    decisions=["D33"],
)
async def wrong(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    right: dict[str, Any] = {"request": bytes(16), "prompt": [3], "max_new": 8, "stop": [], "rule": 1}
    right |= {"target": r.place.seat.target, "tokenizer": r.place.seat.tokenizer}
    changes: list[dict[str, Any]] = [{"request": bytes(15)}, {"prompt": [-1]}, {"prompt": "x"}, {"max_new": -1}]
    changes += [{"stop": 1}, {"rule": "1"}, {"target": bytes(31)}, {"tokenizer": 5}, {"sampling": {"top_k": -1}}]
    for change in changes:
        (await r.ask("front-end", "POST", "requests", {**right, **change})).rejected(f"{change}")
    for key in ("request", "prompt", "max_new", "stop", "rule"):
        less = {each: value for each, value in right.items() if each != key}
        (await r.ask("front-end", "POST", "requests", less)).rejected(f"a request without {key}")
    expect(len(verifier.box("a session-open").all), 0, "sessions opened for requests that are none")


@check(
    "R-request-unknown",
    title="a request that the router does not have is 404",
    profile="decisions",
    decisions=["D3", "D33"],
)
async def unknown(r: RouterWorld) -> None:
    path = "requests/AAAAAAAAAAAAAAAAAAAAAA"
    (await r.ask("front-end", "GET", path)).refused(404)
    (await r.ask("front-end", "DELETE", path)).refused(404)
    (await r.ask("front-end", "POST", f"{path}/policy", {"sampling": {}})).refused(404)


@check(
    "R-locate-failover",
    title="a front end whose epoch serves it no longer is told the next one as soon as there is one",
    profile="decisions",
    decisions=["D33"],
)
async def locate_failover(r: RouterWorld) -> None:
    run = await r.running()
    answer_states(run.verifier, run.facts, "a PUT drafter")
    run.verifier.commit(run.session, [7])
    asking: asyncio.Task[Answer] = r.background(run.request.locate("?epoch=1", wait_s=20))
    opened = await failed_over(r, run)
    ensure(not asking.done(), "expected no answer before the session is open in a higher epoch")
    opened.accept()
    found = (await asking).message
    expect((found["epoch"], found["verifier"]), (2, opened.verifier.base), "epoch and verifier of the location")


@check(
    "R-locate-wait",
    title="when the wait is over, the front end is told what is known",
    profile="decisions",
    decisions=["D33"],
)
async def locate_wait(r: RouterWorld) -> None:
    run = await r.running()
    answer_states(run.verifier, run.facts, "a PUT drafter")
    found = (await run.request.locate("?epoch=1", wait_s=0)).message
    expect((found["epoch"], found["verifier"]), (1, run.verifier.base), "epoch and verifier of the location")


@check(
    "R-locate-lost",
    title="the router asks the verifier whether it still has the session, and fences one that has not",
    profile="decisions",
    decisions=["D19", "D33"],
)
async def locate_lost(r: RouterWorld) -> None:
    run = await r.running()
    asking = r.background(run.request.locate("?epoch=1", wait_s=20))
    (await run.verifier.put()).refuse(404)
    opened = await run.verifier.opened()
    behind_fence(r, opened)
    opened.accept()
    expect((await asking).message["epoch"], opened.message["epoch"], "epoch of the location")


@check(
    "R-locate-ended",
    title="an end is told with all tokens to a front end that cannot have them from the verifier",
    profile="decisions",
    decisions=["D33"],
)
async def locate_ended(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7, 8, 9])
    run.verifier.commit(run.session, [1, 2, 3, 4, 5])
    (await run.verifier.send_event(run.session, FINISH)).no_content()
    await lose(run.verifier)
    found = (await run.request.locate("?epoch=1", wait_s=5)).message
    expect(found.get("ended"), FINISH, "ended of the location")
    expect(found.get("tokens"), [7, 8, 9, 1, 2, 3, 4, 5], "tokens of the location")


@check(
    "R-locate-bad-epoch",
    title="an epoch that is no decimal number is 400",
    profile="decisions",
    decisions=["D33"],
)
async def bad_epoch(r: RouterWorld) -> None:
    run = await r.running()
    for value in ("", "-1", "1.0", "one", "0x1"):
        (await run.request.locate(f"?epoch={value}")).refused(400)


@check(
    "R-withdraw-fenced",
    title="a request that is withdrawn is fenced, opened nowhere, and ends",
    profile="decisions",
    decisions=["D34"],
)
async def withdrawn(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    second = await r.place.verifier()
    (await run.request.withdraw()).no_content()
    log = r.cache.log(run.facts.log_ref)
    ensure(
        await r.cache.until(lambda: log.fence == 2, r.patience_s),
        f"expected a fence of epoch 2 in the log of a session that was withdrawn, its records are {log.records}",
    )
    for verifier in (run.verifier, second):
        await verifier.box("a session-open").none_within(MOMENT_S / 2, "for a session that was withdrawn")
    expect((await run.request.locate()).message.get("ended"), FAIL, "ended of the location")


@check(
    "R-withdraw-repeated",
    title="a request may be withdrawn again, and after its end",
    profile="decisions",
    decisions=["D33", "D34"],
)
async def withdrawn_again(r: RouterWorld) -> None:
    run = await r.running()
    for _ in range(3):
        (await run.request.withdraw()).no_content()
    other, opened = await opened_at(r, run.verifier)
    facts = opened.accept()
    await other.location()
    (await run.verifier.send_event(opened.session, FINISH)).no_content()
    (await other.withdraw()).no_content()
    expect(r.cache.log(facts.log_ref).fence, -1, "fences in the log of a session that had finished")


@check(
    "R-withdraw-opening",
    title="a request withdrawn while its session is being opened is fenced, whatever the verifier answers later",
    profile="decisions",
    decisions=["D34"],
)
async def withdrawn_opening(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    await r.place.drafter()
    requested, opened = await opened_at(r, verifier)
    (await requested.withdraw()).no_content()
    log = r.cache.log(opened.message["commit_log"])
    ensure(await r.cache.until(lambda: log.fence == 2, r.patience_s), "expected a fence of epoch 2 in the log")
    (await requested.answer()).rejected("a request that was withdrawn")
    opened.accept()
    await verifier.box("a PUT drafter").none_within(MOMENT_S, "for a session that was withdrawn")


@check(
    "R-request-too-many",
    title="a router with as many sessions as it may have answers 503 with Retry-After",
    profile="decisions",
    decisions=["D3"],
    limits={"sessions": 1},
)
async def too_many(r: RouterWorld) -> None:
    run = await r.running()
    answer = await r.request().answer()
    answer.refused(503)
    ensure("retry-after" in answer.headers, "expected Retry-After with 503, there is none")
    (await run.verifier.send_event(run.session, FINISH)).no_content()
    _, opened = await opened_at(r, run.verifier)
    opened.accept()
