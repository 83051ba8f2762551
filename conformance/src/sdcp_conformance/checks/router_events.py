"""Events at a router: what they bring about, and what it does not believe (5.2, 6.5.2, 6.9, D10, D17)."""

from __future__ import annotations

from sdcp_conformance.oracle.control import CONTINUE, FAIL, FINISH, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import MOMENT_S, assigned, failed_over, lose
from sdcp_conformance.worlds.router import RouterWorld, Running

UNKNOWN = 17


async def not_assigned_again(r: RouterWorld, run: Running, because: str) -> None:
    """Whoever is lost now: the session has ended, and nobody gets it any more."""
    await r.place.drafter()
    await lose(run.drafter)
    await run.verifier.box("a PUT drafter").none_within(MOMENT_S, because)


@check(
    "R-event-no-content",
    "S5.1-post-events",
    title="an event of the session's verifier is answered 204",
)
async def no_content(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()


@check(
    "R-event-switch-state",
    "S6.5.2-switch-event",
    "S6.1-assignment-carries-state",
    title="after a switch the other drafter goes on from the committed prefix",
)
async def switch_state(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter(load=90, queue=9)
    facts = run.verifier.commit(run.session, [7, 8])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    _, assignment = await assigned(run.verifier, other)
    found = tuple(assignment.message[key] for key in ("round", "committed", "digest"))
    expect(found, (1, 2, facts.digest), "round, committed and digest of the other drafter's assignment")


@check(
    "R-event-switch-order",
    "S6.1-verifier-informed-first",
    "S6.5.2-switch-event",
    title="after a switch, too, the verifier is informed before the drafter",
)
async def switch_order(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    put = await run.verifier.put()
    await other.box("an assignment").none_within(MOMENT_S, "before PUT drafter is answered")
    put.accept()
    (await other.assignment()).accept()


@check(
    "R-event-switch-twice",
    "S6.5.2-switch-event",
    title="each switch brings another drafter than the one before",
)
async def switch_twice(r: RouterWorld) -> None:
    run = await r.running()
    second = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    await assigned(run.verifier, second)
    run.verifier.commit(run.session, [8])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    put = await run.verifier.put()
    expect(put.message["drafter"], run.drafter.base, "drafter after the second switch, of two")


@check(
    "R-event-self-decode-end",
    "S6.5.2-self-decode-event",
    title="the event at the end of a self-decoding period brings a drafter again",
)
async def self_decode_end(r: RouterWorld) -> None:
    run = await r.running()
    for token in (7, 8, 9):
        facts = run.verifier.commit(run.session, [token])
    (await run.verifier.send_event(run.session, SELF_DECODE)).no_content()
    _, assignment = await assigned(run.verifier, run.drafter)
    found = tuple(assignment.message[key] for key in ("round", "committed", "digest"))
    expect(found, (3, 3, facts.digest), "round, committed and digest of the assignment")


@check(
    "R-event-drafter-wanted",
    title="an event of kind continue brings a drafter",
    profile="decisions",
    decisions=["D17"],
)
async def drafter_wanted(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, CONTINUE)).no_content()
    await assigned(run.verifier, run.drafter)


@check(
    "R-event-unknown-kind",
    "S5.2-unknown-action",
    "S6.5.2-fail",
    title="an event of an unknown kind ends the session, as fail does",
)
async def unknown_kind(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, UNKNOWN)).no_content()
    await not_assigned_again(r, run, "after an event of an unknown kind, which means fail")


@check(
    "R-event-finish",
    "S6.5.2-finish",
    title="a session that has finished is not assigned again",
)
async def finish(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, list(range(8)))
    (await run.verifier.send_event(run.session, FINISH)).no_content()
    await not_assigned_again(r, run, "after the session has finished")


@check(
    "R-event-fail",
    "S6.5.2-fail",
    title="a session that has failed is not assigned again",
)
async def fail(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, FAIL)).no_content()
    await not_assigned_again(r, run, "after the session has failed")


@check(
    "R-event-ended-stays",
    title="a session that has ended is never failed over",
    profile="decisions",
    decisions=["D19"],
)
async def ended_stays(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, list(range(8)))
    (await run.verifier.send_event(run.session, FINISH)).no_content()
    second = await r.place.verifier()
    await lose(run.verifier)
    await second.box("a session-open").none_within(MOMENT_S, "after the session has ended")
    expect(r.cache.log(facts.log_ref).fence, -1, "the highest fence in the log of a session that has ended")


@check(
    "R-event-failed-told",
    "S5.2-unknown-action",
    title="the front end is told 5 of a session that failed, and of one that ended in an unknown way",
    profile="decisions",
    decisions=["D17", "D33"],
)
async def failed_told(r: RouterWorld) -> None:
    run = await r.running()
    (await run.verifier.send_event(run.session, FAIL)).no_content()
    expect((await run.request.locate()).message.get("ended"), FAIL, "ended of the location after kind 5")
    verifier = run.verifier
    again = r.request()
    opened = await verifier.opened()
    opened.accept()
    await again.location()
    (await verifier.send_event(opened.session, UNKNOWN)).no_content()
    expect((await again.locate()).message.get("ended"), FAIL, f"ended of the location after kind {UNKNOWN}")


@check(
    "R-event-unknown-keys",
    "S5.2-unknown-keys",
    title="unknown keys of an event are ignored",
)
async def unknown_keys(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    more = {"future": {"a": [1, None]}, "0": b"\x00"}
    (await run.verifier.send_event(run.session, SWITCH, **more)).no_content()
    await assigned(run.verifier, other)


@check(
    "R-event-foreign",
    title="an event of another verifier than the session's is refused with 403, and changes nothing",
    profile="decisions",
    decisions=["D10", "D17"],
)
async def foreign(r: RouterWorld) -> None:
    run = await r.running()
    second, _ = await r.place.verifier(), await r.place.drafter()
    facts = run.verifier.commit(run.session, [7])
    second.sessions[run.session] = facts
    for kind in (SWITCH, FINISH):
        (await second.send_event(run.session, kind)).refused(403)
    await run.verifier.box("a PUT drafter").none_within(MOMENT_S, "after a stranger's events")
    expect((await run.request.locate()).message.get("ended"), None, "ended of the location")


@check(
    "R-event-lower-epoch",
    title="an event of an epoch before is answered 204, and changes nothing",
    profile="decisions",
    decisions=["D17"],
)
async def lower_epoch(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    opened.accept()
    await assigned(opened.verifier, run.drafter)
    await r.place.drafter()
    for sender in (run.verifier, opened.verifier):
        for kind in (SWITCH, FINISH):
            (await sender.send_event(run.session, kind, epoch=1)).no_content()
    await opened.verifier.box("a PUT drafter").none_within(MOMENT_S, "after events of epoch 1")
    expect((await run.request.locate()).message.get("ended"), None, "ended of the location")


@check(
    "R-event-repeated",
    title="an event that is repeated is answered 204 and obeyed once",
    profile="decisions",
    decisions=["D17"],
)
async def repeated(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    await assigned(run.verifier, other)
    for _ in range(3):
        (await run.verifier.send_event(run.session, SWITCH)).no_content()
    await run.verifier.box("a PUT drafter").none_within(MOMENT_S, "for a repeated event")


@check(
    "R-event-repeated-end",
    title="the last event of a session may be repeated, and is answered 204",
    profile="decisions",
    decisions=["D17"],
)
async def repeated_end(r: RouterWorld) -> None:
    run = await r.running()
    for _ in range(3):
        (await run.verifier.send_event(run.session, FINISH)).no_content()


@check(
    "R-event-going-back",
    title="an event that says less than the router knows to be committed was sent before: it changes nothing",
    profile="decisions",
    decisions=["D17"],
)
async def going_back(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    facts = run.verifier.commit(run.session, [7, 8])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    await assigned(run.verifier, other)
    old = {"committed": 1, "digest": facts.digest_at(1)}
    (await run.verifier.send_event(run.session, SWITCH, **old)).no_content()
    await run.verifier.box("a PUT drafter").none_within(MOMENT_S, "for an event of before")


@check(
    "R-event-unknown-session",
    title="an event of a session that the router does not have is 404",
    profile="decisions",
    decisions=["D3"],
)
async def unknown_session(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    (await verifier.send_event(bytes(16), SWITCH)).refused(404)
