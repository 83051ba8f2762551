"""What a drafter makes of verdicts and refusals (6.3, 6.5.2), of those too that cannot be true."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from sdcp_conformance.encoding import encode, encode_loosely
from sdcp_conformance.net.server import Response
from sdcp_conformance.oracle.bigram import DRAFT, V
from sdcp_conformance.oracle.control import FAIL, FINISH, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.problems import MEDIA_TYPE
from sdcp_conformance.registry import check
from sdcp_conformance.watch import SDCP_CBOR
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld, Proposed
from sdcp_conformance.worlds.session import tokens_object
from sdcp_conformance.worlds.world import path_id

RELEASED_S = 2.0


def _state(session: DrafterSession) -> dict[str, Any]:
    """The session-state of a problem (D2)."""
    names = {"session": session.path.removeprefix("sessions/"), "epoch": session.epoch, "round": session.round}
    return {"session-state": {**names, "committed": len(session.output), "digest": path_id(session.digest)}}


async def _stops(session: DrafterSession, because: str) -> None:
    """No proposal comes any more, until the session is assigned anew, when one does."""
    await session.quiet(because)
    session.commit([1])  # the verifier went on by itself
    ref = session.world.put_object(tokens_object(session.output))
    (await session.assign(committed_tokens=ref)).no_content()
    (await session.proposal()).judge()
    await session.finish()


# -- actions (6.5.2) ---------------------------------------------------------------------------------------------------


@check(
    "D-action-switch",
    "S6.5.2-switch-stops-drafter",
    title="after the action switch the drafter stops proposing, until the session is assigned to it anew",
)
async def switch(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge()
    (await session.proposal()).judge(action=SWITCH)
    await _stops(session, "after the action switch")


@check(
    "D-action-self-decode",
    "S6.5.2-self-decode",
    title="after the action self_decode the drafter stops proposing, until the session is assigned to it anew",
)
async def self_decode(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge(action=SELF_DECODE)
    await _stops(session, "after the action self_decode")


@check(
    "D-action-finish",
    "S6.5.2-finish",
    title="after the action finish nothing more is proposed",
)
async def finish(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge(action=FINISH)
    await session.quiet("after the action finish")


@check(
    "D-action-fail",
    "S6.5.2-fail",
    title="after the action fail nothing more is proposed",
)
async def fail(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge(action=FAIL)
    await session.quiet("after the action fail")


@check(
    "D-action-unknown",
    "S5.2-unknown-action",
    title="an unknown action means fail: nothing more is proposed",
)
async def unknown_action(d: DrafterWorld) -> None:
    async def each(session: DrafterSession, action: int) -> None:
        (await session.proposal()).judge(action=action)
        await session.quiet(f"after the action {action}")

    await asyncio.gather(*[each(await d.assigned(), action) for action in (6, 23, 24, 255, 2**64 - 1)])


# -- verdicts ----------------------------------------------------------------------------------------------------------


@check(
    "D-verdict-unknown-keys",
    "S5.2-unknown-keys",
    title="unknown keys of a verdict are ignored",
)
async def unknown_keys(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge(more={"a": [None, b"x"]}, state=3, tokens="x")
    (await session.proposal()).judge(error=1)
    await session.finish()


@check(
    "D-verdict-emitted",
    "S1.3-sole-commit-authority",
    "S6.2-proposal-base",
    "S6.3-draft-state-discarded",
    title="the prefix grows by what the verdict emitted, even where it accepted other tokens than were proposed",
)
async def emitted(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=4)
    proposal: Proposed | None = await session.proposal()
    for accepted in (1, 2, 1):
        if proposal is None:  # it does not go on from such a verdict at all
            return
        _emit(proposal, min(accepted, len(proposal.tokens)), [(token + 1) % V for token in (*proposal.tokens, 0)])
        proposal = await session.perhaps()
    if proposal is not None:
        proposal.refuse("sdcp-session-closed")


def _emit(proposal: Proposed, accepted: int, tokens: list[int]) -> None:
    """Answer with a verdict that emits exactly these tokens. The session goes on from there."""
    session = proposal.session
    session.commit(tokens)
    verdict = {**session.state(), "accepted": accepted, "emitted": tokens}
    proposal.incoming.respond(200, {**verdict, "action": 0, "m_cap": session.m_cap, "low": 0, "load": 0})


@check(
    "D-verdict-encoding",
    "S5.2-verdict",
    title="a verdict in any well-formed encoding is taken",
    profile="decisions",
    decisions=["D4"],
)
async def loose(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    session.commit([9])
    verdict = {**session.state(), "accepted": 0, "emitted": [9], "action": 0, "m_cap": 3, "low": 0, "load": 0}
    proposal.incoming.respond_raw(_output(encode_loosely(verdict)))
    await session.finish()


@check(
    "D-verdict-continued",
    "S6.3-draft-state-discarded",
    "S6.3-accepted-kv-valid",
    title="the next proposal continues the committed tokens: the reference model's first token after them",
    profile="decisions",
    decisions=["D9a"],
)
async def continued(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=4, max_new=200)
    for turn in range(8):
        proposal = await session.proposal()
        expect(proposal.tokens, DRAFT.next_tokens(session.prefix, len(proposal.tokens)), "tokens under rule 1")
        proposal.accept(min(turn % 3, len(proposal.tokens)), (5 * turn) % V, m_cap=4)
    await session.finish()


async def _resynchronizes(session: DrafterSession) -> None:
    """What follows is on the true prefix; or nothing does."""
    proposal = await session.perhaps()
    if proposal is not None:
        proposal.judge()
        await session.finish()


@check(
    "D-verdict-wrong-digest",
    "S4.2-other-prefix-detected",
    title="a verdict whose digest does not follow from what it emitted is not gone on from",
    profile="decisions",
    decisions=["D9a"],
)
async def wrong_digest(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge()
    (await session.proposal()).judge(digest=bytes(32))
    await _resynchronizes(session)


@check(
    "D-verdict-wrong-tokens",
    "S4.2-other-prefix-detected",
    title="a verdict that emits other tokens, or another number, than its digest is over sends to the output",
    profile="decisions",
    decisions=["D9a"],
)
async def wrong_tokens(d: DrafterWorld) -> None:
    wrong: list[dict[str, Any]] = [{"emitted": [15, 15]}, {"emitted": []}, {"committed": 9}, {"committed": 0}]

    async def each(session: DrafterSession, members: dict[str, Any]) -> None:
        (await session.proposal()).accept(1, 1, **members)
        await _resynchronizes(session)

    await asyncio.gather(*[each(await d.assigned(), members) for members in wrong])


@check(
    "D-verdict-lost-tokens",
    "S1.3-sole-commit-authority",
    title="after a verdict whose tokens were damaged the drafter reads the output and goes on",
    profile="decisions",
    decisions=["D9a"],
)
async def lost_tokens(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge()
    (await session.proposal()).accept(1, 1, emitted=[15, 15, 15])
    (await session.proposal()).judge()
    await session.finish()
    ensure(session.reads > 0, "expected a GET output, none came")


# -- refusals ----------------------------------------------------------------------------------------------------------


@check(
    "D-refused-stale-base",
    "S6.3-base-check",
    "S6.9-problem-stale-base",
    title="after sdcp-stale-base the drafter reads the output and proposes from the state that it was told",
    profile="decisions",
    decisions=["D2", "D9a"],
)
async def stale_base(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge()
    for count in (1, 3):
        proposal = await session.proposal()
        for token in session.next_tokens(count):
            session.commit([token])
        proposal.refuse("sdcp-stale-base", **_state(session))
        (await session.proposal()).judge()
    await session.finish()


@check(
    "D-refused-stale-base-alone",
    "S6.3-base-check",
    title="sdcp-stale-base without a session-state sends to the output too",
    profile="decisions",
    decisions=["D2", "D9a"],
)
async def stale_base_alone(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    session.output += session.next_tokens(2)
    proposal.refuse("sdcp-stale-base")
    again = await session.proposal(check=False)
    where = (len(session.output), session.digest)
    expect((again.message["base"], again.message["base_digest"]), where, "base and base_digest after the output")
    again.refuse("sdcp-session-closed")


@check(
    "D-refused-suffix",
    "S5.1-problem-details",
    title="a problem type is known by its suffix, whatever stands before it",
    profile="decisions",
    decisions=["D1", "D9a"],
)
async def suffix(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    session.commit([1])
    problem = {"type": "https://example.test/types#sdcp-stale-base", "status": 409, **_state(session)}
    body = json.dumps(problem).encode()
    proposal.incoming.respond_raw(Response(409, (("content-type", MEDIA_TYPE),), body))
    (await session.proposal()).judge()
    await session.finish()


@check(
    "D-output-unavailable",
    "S5.1-unlisted-status",
    title="an output that cannot be had now is asked for again",
    profile="decisions",
    decisions=["D9a", "D3"],
)
async def output_unavailable(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    session.commit([1])
    session.read_answers = [Response(503, (("content-type", MEDIA_TYPE),), b"{}"), Response(500), _output(b"\xff")]
    proposal.refuse("sdcp-stale-base", **_state(session))
    (await session.proposal()).judge()
    await session.finish()


@check(
    "D-output-ended",
    "S6.7-final",
    title="a drafter that reads that the session is over, or has gone to a higher epoch, proposes nothing more",
    profile="decisions",
    decisions=["D9a", "D30"],
)
async def output_ended(d: DrafterWorld) -> None:
    async def each(session: DrafterSession, **members: Any) -> None:
        proposal = await session.proposal()
        session.commit([1])
        message = {"session": session.id, "epoch": 1, "from": 0, "tokens": [1], "final": False, **members}
        session.read_answers = [_output(encode(message))] * 3
        proposal.refuse("sdcp-stale-base", **_state(session))
        await session.quiet("after an output that says that there is nothing more to do")

    await each(await d.assigned(), final=True, finish=FINISH)
    await each(await d.assigned(), final=True, finish=FAIL)
    await each(await d.assigned(), epoch=2)


def _output(body: bytes) -> Response:
    return Response(200, (("content-type", SDCP_CBOR),), body)


@check(
    "D-refused-stale-base-honest",
    "S6.3-base-check",
    "S6.2-proposal-base",
    title="after sdcp-stale-base a drafter that goes on does so on the verifier's prefix, in its next round",
)
async def stale_base_honest(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    session.commit([1])
    session.commit([2])
    proposal.refuse("sdcp-stale-base", **_state(session))
    await _resynchronizes(session)


@check(
    "D-refused-stale-epoch",
    "S6.9-older-epoch-rejected",
    "S6.9-problem-stale-epoch",
    "S6.9-reassigned-after-resume",
    title="after sdcp-stale-epoch nothing is proposed until an assignment of the next epoch, which is taken",
)
async def stale_epoch(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).refuse("sdcp-stale-epoch")
    await session.quiet("after sdcp-stale-epoch")
    session.epoch = 2
    (await session.assign()).no_content()
    (await session.proposal()).judge()
    await session.finish()


@check(
    "D-refused-not-assigned",
    "S6.9-failed-drafter-rejected",
    "S6.9-problem-not-assigned",
    title="after sdcp-not-assigned nothing is proposed until the session is assigned anew",
)
async def not_assigned(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).refuse("sdcp-not-assigned")
    await _stops(session, "after sdcp-not-assigned")


@check(
    "D-refused-closed",
    "S6.9-problem-session-closed",
    title="after sdcp-session-closed nothing more is proposed",
)
async def closed(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge()
    (await session.proposal()).refuse("sdcp-session-closed")
    await session.quiet("after sdcp-session-closed")


@check(
    "D-refused-limit",
    "S6.9-problem-limit",
    title="after sdcp-limit the first token is proposed alone, with one row",
    profile="decisions",
    decisions=["D16", "D31"],
)
async def limit(d: DrafterWorld) -> None:
    for rule in (1, 2):
        session = await d.assigned(rule=rule, m_init=4)
        first = await session.proposal()
        ensure(len(first.tokens) > 1, "expected more than one token before anything is known of the session")
        row = first.rows()[:1] if rule == 2 else []
        first.refuse("sdcp-limit")
        second = await session.proposal()
        expect(second.tokens, first.tokens[:1], "tokens after sdcp-limit")
        if rule == 2:
            expect(second.rows(), row, "rows after sdcp-limit")
        second.judge()
        await session.finish()


@check(
    "D-refused-q-unavailable",
    "S6.9-problem-q-unavailable",
    "S6.2-artifacts-written",
    title="after sdcp-q-unavailable the same tokens are proposed again, with their rows in the cache",
    profile="decisions",
    decisions=["D12", "D31"],
)
async def q_unavailable(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2)
    first = await session.proposal()
    rows = first.rows()
    d.cache.objects.pop(d.cache.name_of(first.message["q_rows"]))
    first.refuse("sdcp-q-unavailable")
    again = await session.proposal()
    expect(again.tokens, first.tokens, "tokens proposed again")
    expect(again.rows(), rows, "rows written again")
    again.judge()
    await session.finish()


@check(
    "D-refused-round-kept",
    "S6.2-proposal-round",
    "S6.2-proposal-base",
    title="a refused proposal begins no next round: what follows is for the same round, on the same prefix",
)
async def round_kept(d: DrafterWorld) -> None:
    async def each(session: DrafterSession, kind: str | int) -> None:
        (await session.proposal()).judge()
        (await session.proposal()).refuse(kind)
        await _resynchronizes(session)

    kinds: tuple[str | int, ...] = ("sdcp-q-unavailable", "sdcp-bad-proposal", "sdcp-limit", 400, 403, 409, 422, 500)
    await asyncio.gather(*[each(await d.assigned(rule=1 + at % 2), kind) for at, kind in enumerate(kinds)])


@check(
    "D-refused-by-class",
    "S5.1-unlisted-status",
    "S5.1-problem-details",
    title="a refusal of a type that nobody knows, or of none, is taken by its class: the drafter lives on",
)
async def by_class(d: DrafterWorld) -> None:
    for status in (404, 418, 451):
        session = await d.assigned()
        (await session.proposal()).refuse(status)
    session = await d.assigned()
    (await session.proposal()).judge()
    await session.finish()


# -- the end -----------------------------------------------------------------------------------------------------------


@check(
    "D-end-rows-released",
    "S6.3-leases-released",
    "S6.9-problem-session-closed",
    title="when its session is over a drafter gives up the leases on its rows (a MAY)",
)
async def rows_released(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2)
    last = await session.proposal()
    ref = last.message["q_rows"]
    last.refuse("sdcp-session-closed")
    if not await d.cache.until(lambda: not d.cache.leased(ref), RELEASED_S):
        raise NotApplicable("the drafter lets its leases end by time")


@check(
    "D-end-room",
    title="a drafter with as many sessions as it may hold answers 503, and has room again when one is over",
    profile="decisions",
    decisions=["D3"],
    limits={"sessions": 2},
)
async def room(d: DrafterWorld) -> None:
    first, second = await d.assigned(), await d.assigned()
    (await (await d.session()).assign()).refused(503)
    (await first.proposal()).judge(action=FINISH)
    third = await d.session()
    await _taken(third)
    for session in (second, third):
        await session.finish()


async def _taken(session: DrafterSession) -> None:
    """Assign until it is taken: the drafter may still be at ending another session."""
    until = time.monotonic() + session.world.patience_s
    answer = await session.assign()
    while answer.status == 503 and time.monotonic() < until:
        await asyncio.sleep(0.05)
        answer = await session.assign()
    answer.no_content()
