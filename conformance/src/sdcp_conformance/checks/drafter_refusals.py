"""What a drafter makes of refusals (6.3, 6.9), of outputs that it reads after them, and the end of its sessions."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from sdcp_conformance.encoding import encode
from sdcp_conformance.net.server import Response
from sdcp_conformance.oracle.control import FAIL, FINISH
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.problems import MEDIA_TYPE
from sdcp_conformance.registry import check
from sdcp_conformance.watch import SDCP_CBOR
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld
from sdcp_conformance.worlds.world import path_id

RELEASED_S = 2.0


def _state(session: DrafterSession) -> dict[str, Any]:
    """The session-state of a problem (D2)."""
    names = {"session": session.path.removeprefix("sessions/"), "epoch": session.epoch, "round": session.round}
    return {"session-state": {**names, "committed": len(session.output), "digest": path_id(session.digest)}}


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
    "D-refused-stale-epoch",
    "S6.9-older-epoch-rejected",
    "S6.9-problem-stale-epoch",
    "S6.9-reassigned-after-resume",
    title="after sdcp-stale-epoch nothing is proposed until an assignment of the next epoch, which is taken",
    profile="decisions",
    decisions=["D28", "D30"],
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
    title="after sdcp-not-assigned (403) nothing is proposed",
)
async def not_assigned(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).refuse("sdcp-not-assigned")
    await session.quiet("after sdcp-not-assigned")


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
        await session.goes_on_if_at_all()

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
