"""What a drafter makes of verdicts (6.3, 6.5.2), of those too that cannot be true."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.encoding import encode_loosely
from sdcp_conformance.net.server import Response
from sdcp_conformance.oracle.bigram import DRAFT, V
from sdcp_conformance.oracle.control import FAIL, FINISH, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.watch import SDCP_CBOR
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld, Proposed
from sdcp_conformance.worlds.session import tokens_object

# -- actions (6.5.2) ---------------------------------------------------------------------------------------------------


@check(
    "D-action-switch",
    "S6.5.2-switch-stops-drafter",
    title="after the action switch the drafter stops proposing",
)
async def switch(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge()
    (await session.proposal()).judge(action=SWITCH)
    await session.quiet("after the action switch")


@check(
    "D-action-self-decode",
    "S6.5.2-self-decode",
    title="after the action self_decode the drafter stops proposing",
)
async def self_decode(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge(action=SELF_DECODE)
    await session.quiet("after the action self_decode")


@check(
    "D-action-assigned-anew",
    "S6.5.2-switch-event",
    "S6.5.2-self-decode-event",
    "S6.9-new-drafter-starts",
    title="a drafter that was stopped takes the session up again when it is assigned anew in the same epoch",
    profile="decisions",
    decisions=["D13", "D20"],
)
async def assigned_anew(d: DrafterWorld) -> None:
    async def anew(session: DrafterSession) -> None:
        await session.quiet("before the session is assigned anew")
        session.commit([1])  # the verifier went on by itself, or with another drafter
        ref = d.put_object(tokens_object(session.output))
        (await session.assign(committed_tokens=ref)).no_content()
        (await session.proposal()).judge()
        await session.finish()

    stopped = [await d.assigned() for _ in range(3)]
    (await stopped[0].proposal()).judge(action=SWITCH)
    (await stopped[1].proposal()).judge(action=SELF_DECODE)
    (await stopped[2].proposal()).refuse("sdcp-not-assigned")
    await asyncio.gather(*map(anew, stopped))


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
    body = encode_loosely(verdict)
    proposal.incoming.respond_raw(Response(200, (("content-type", SDCP_CBOR),), body))
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
    await session.goes_on_if_at_all()


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
        await session.goes_on_if_at_all()

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
