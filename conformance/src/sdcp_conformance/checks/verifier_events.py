"""Events to the router (5.2, 6.5.2, D17)."""

from __future__ import annotations

from typing import Any

from sdcp_conformance.oracle.control import FAIL, FINISH, REDUCE, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.escalation import Trace
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld

SELF = {"low_rounds": 1, "fallback": [SELF_DECODE], "self_load": 100, "self_max": 2}


def _states(session: VerifierSession, event: dict[str, Any], kind: int) -> None:
    """The event tells the session's state as the kit has it."""
    expect(event.get("kind"), kind, "kind of the event")
    for key in ("session", "epoch", "committed", "digest"):
        expect(event.get(key), session.state()[key], f"{key} of the event")


@check(
    "V-event-switch",
    "S6.5.2-switch-event",
    "S5.2-event",
    "S5.1-post-events",
    title="switch sends an event of kind 2 with the committed length and digest after the round",
)
async def switch(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    await session.advance()
    await session.advance(session.wrong_tokens())
    _states(session, (await session.event()).message, SWITCH)


@check(
    "V-event-switch-again",
    "S6.5.2-switch-event",
    title="each switch of a session sends its event",
)
async def switch_again(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[SWITCH, SWITCH, SWITCH])
    for _ in range(6):
        await trace.low()  # waits for the event, and compares committed
    expect(len(v.town.events_of(trace.session.id).all), 3, "number of events")


@check(
    "V-event-after-append",
    "S6.3-append-before-release",
    "S6.5.2-switch-event",
    title="the event of a round is not sent before the round's record is in the log",
)
async def after_append(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    hold = v.hold("PATCH", session.log_ref)
    round_ = v.background(session.advance(session.wrong_tokens()))
    await hold.reached()
    events = v.town.events_of(session.id)
    await events.none_within(0.2, "while the append is under way")
    hold.release()
    await round_
    _states(session, (await session.event()).message, SWITCH)


@check(
    "V-event-epoch",
    "S5.2-event",
    "S6.9-resume",
    title="after a failover events carry the new epoch",
)
async def epoch(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    await session.advance()
    (await session.fail_over()).succeeded()
    (await session.assign()).succeeded()
    await session.advance(session.wrong_tokens())
    _states(session, (await session.event()).message, SWITCH)


@check(
    "V-event-self-decode",
    "S6.5.2-self-decode-event",
    title="the end of a self-decoding period is told by an event of kind 3, once, and its beginning by none",
    profile="decisions",
    decisions=["D17"],
)
async def self_decode(v: VerifierWorld) -> None:
    session = await v.begun(**SELF)
    await session.advance(session.wrong_tokens())
    event = (await session.event()).message
    session.catch_up()
    _states(session, event, SELF_DECODE)
    await v.town.events_of(session.id).none_within(0.1, "after that of the period's end")


@check(
    "V-event-finish",
    title="the end at max_new or a stop token is told by an event of kind 4, in self-decoding too",
    profile="decisions",
    decisions=["D17"],
)
async def finish(v: VerifierWorld) -> None:
    for given in ({"max_new": 2}, {"stop": list(range(16))}):
        session = await v.begun(**given)
        await session.advance(session.wrong_tokens())
        if not given.get("stop"):
            await session.advance()
        _states(session, (await session.event()).message, FINISH)
    session = await v.begun(**SELF, max_new=2)
    await session.advance(session.wrong_tokens())
    event = (await session.event()).message
    session.catch_up()
    _states(session, event, FINISH)


@check(
    "V-event-fail",
    title="the end by an exhausted list or by `fail` is told by an event of kind 5",
    profile="decisions",
    decisions=["D17"],
)
async def fail(v: VerifierWorld) -> None:
    for fallback in ([FAIL], [SELF_DECODE]):  # the second is passed over without self_load
        session = await v.begun(low_rounds=1, fallback=fallback)
        await session.advance(session.wrong_tokens())
        _states(session, (await session.event()).message, FAIL)


@check(
    "V-event-repeated",
    title="an event is repeated, word for word, until the router answers 204, and then no more",
    profile="decisions",
    decisions=["D17"],
)
async def repeated(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    events = v.town.events_of(session.id)
    events.auto = None
    await session.advance(session.wrong_tokens())
    first = await events.take()
    first.refuse(503)
    second = await events.take()
    second.drop()
    third = await events.take()
    third.refuse(409)
    last = await events.take()
    last.respond(204)
    for again in (second, third, last):
        expect(again.message, first.message, "an event that was not answered 204, sent again")
    await events.none_within(0.3, "after the 204")


@check(
    "V-event-unanswered",
    title="while the router does not answer an event the session goes on with whom it assigns",
    profile="decisions",
    decisions=["D17", "D28"],
)
async def unanswered(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    events = v.town.events_of(session.id)
    events.auto = None
    await session.advance(session.wrong_tokens())
    await events.take()
    (await session.assign(drafter="https://other.test/d")).succeeded()
    await session.advance(who="other", drafter="https://other.test/d")
    expect(await session.tokens(), session.output, "the output")


@check(
    "V-event-none",
    title="rounds that end in continue or reduce send no event",
    profile="decisions",
    decisions=["D17"],
)
async def none(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[REDUCE])
    for right in (2, 0, 0, 2):
        await trace.round(right, 2)
    ensure(REDUCE in trace.actions, "expected a reduce among the actions")
    await v.town.events_of(trace.session.id).none_within(0.2, "after continue and reduce")
