"""A router: opening, assigning, events, failover."""

from __future__ import annotations

from sdcp_conformance.oracle.control import FINISH, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.router import RouterWorld


@check("R-basic-open", "S6.1-open-epoch-1", title="a session is opened with epoch 1 and a commit log in the cache")
async def opens(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    r.request()
    opened = await verifier.opened()
    expect(opened.message.get("epoch"), 1, "epoch of the session-open")
    ensure(opened.message["commit_log"].startswith(r.cache.base), "expected commit_log under the configured prefix")
    opened.accept()


@check(
    "R-basic-order", "S6.1-verifier-informed-first", title="the verifier hears of the drafter before the drafter does"
)
async def order(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    r.request()
    (await verifier.opened()).accept()
    put = await verifier.put()
    await drafter.box("an assignment").none_within(0.3, "before PUT drafter is answered")
    put.accept()
    (await drafter.assignment()).accept()


@check("R-basic-switch", "S6.5.2-switch-event", title="an event of kind switch brings another drafter")
async def switch(r: RouterWorld) -> None:
    running = await r.running()
    other = await r.place.drafter()
    running.verifier.commit(running.session, [7])  # an event follows a round
    (await running.verifier.send_event(running.session, SWITCH)).no_content()
    put = await running.verifier.put()
    expect(put.message["drafter"], other.base, "drafter of the new assignment")
    put.accept()
    (await other.assignment()).accept()


@check("R-basic-failover", "S6.9-fence-first", "S6.9-resume", title="a verifier that expires is fenced, then replaced")
async def failover(r: RouterWorld) -> None:
    running = await r.running()
    facts = running.verifier.commit(running.session, [7, 8])
    second = await r.place.verifier()
    (await running.verifier.report(ttl_ms=1)).no_content()
    opened = await second.opened()
    expect(opened.message["epoch"], 2, "epoch of the new session-open")
    expect(r.cache.log(facts.log_ref).records[-1], {"epoch": 2}, "the last record of the commit log")
    resume = opened.message["resume"]
    expect((resume["round"], resume["committed"], resume["digest"]), (1, 2, facts.digest), "resume")
    opened.accept()
    (await second.put()).accept()


@check(
    "R-basic-finish",
    "S5.1-post-events",
    title="the end of a session reaches the front end",
    profile="decisions",
    decisions=["D17", "D33"],
)
async def finish(r: RouterWorld) -> None:
    running = await r.running()
    (await running.verifier.send_event(running.session, FINISH)).no_content()
    location = (await running.request.locate()).message
    expect(location.get("ended"), FINISH, "ended of the location")
