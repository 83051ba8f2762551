"""Further assignments of a session that a drafter holds (6.2, 6.9, D21, D28): repeated, older, newer, other."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.net.server import Request, Response
from sdcp_conformance.outcome import ensure
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.drafter import QUIET_S, DrafterSession, DrafterWorld, Proposed


async def _one_waits(session: DrafterSession, first: Proposed) -> Proposed:
    """The only proposal that waits for a verdict: another one may have come only after the first was given up."""
    second = await session.perhaps(QUIET_S)
    if second is not None:
        ensure(first.incoming.gone, "expected one outstanding proposal, came a second while the first still waits")
    return second or first


@check(
    "D-assign-again",
    "S6.2-one-outstanding",
    title="an assignment that comes again leads to no second outstanding proposal",
)
async def again(d: DrafterWorld) -> None:
    session = await d.assigned()
    waiting = await session.proposal()
    for _ in range(3):
        await session.assign()
        waiting = await _one_waits(session, waiting)
    waiting.judge()
    await session.finish()


@check(
    "D-assign-concurrent",
    "S6.2-one-outstanding",
    title="the same assignment several times at once leads to one outstanding proposal",
)
async def concurrent(d: DrafterWorld) -> None:
    session = await d.session()
    answers = await asyncio.gather(*[session.assign() for _ in range(5)])
    ensure(any(answer.status == 204 for answer in answers), f"expected a 204, came {answers[0].summary}")
    (await _one_waits(session, await session.proposal())).judge()
    await session.finish()


@check(
    "D-assign-again-nothing",
    title="an assignment that comes again is answered 204 and changes nothing",
    profile="decisions",
    decisions=["D21", "D37"],
)
async def again_nothing(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    for _ in range(3):
        (await session.assign()).no_content()
    await session.quiet("while one is outstanding")
    ensure(not proposal.incoming.gone, "expected the outstanding proposal to wait on, the drafter gave it up")
    proposal.judge()
    await session.finish()


@check(
    "D-assign-again-late",
    "S6.2-proposal-base",
    "S6.2-proposal-round",
    title="an assignment that comes again late takes the drafter back to no earlier round, prefix or limit",
    profile="decisions",
    decisions=["D21"],
)
async def again_late(d: DrafterWorld) -> None:
    session = await d.session(m_init=4)
    message = session.assignment_message(session.verifier, d.base)
    (await d.ask("router", "POST", "assignments", message)).no_content()
    (await session.proposal()).judge(m_cap=2)
    proposal = await session.proposal()
    (await d.ask("router", "POST", "assignments", message)).succeeded()
    proposal.accept(len(proposal.tokens), 1)
    await session.goes_on()


@check(
    "D-assign-other-contract",
    "S4.1-contract-fixed",
    "S4.1-contract-never-modified",
    title="another contract for a session that is held is 422",
    profile="decisions",
    decisions=["D28"],
)
async def other_contract(d: DrafterWorld) -> None:
    session = await d.assigned()
    others: list[dict[str, Any]] = [{"m_max": 3}, {"rule": 2}, {"sampling": {}}, {"max_new": 61}]
    for members in others:
        (await session.assign(contract={**session.contract, **members})).refused(422)
    await session.goes_on()


@check(
    "D-assign-older-epoch",
    "S6.9-problem-stale-epoch",
    "S6.9-older-epoch-rejected",
    title="an assignment of a lower epoch is refused with sdcp-stale-epoch and changes nothing",
    profile="decisions",
    decisions=["D28"],
)
async def older_epoch(d: DrafterWorld) -> None:
    session = await d.session()
    session.epoch = 3
    (await session.assign()).no_content()
    for epoch in (0, 1, 2):
        (await session.assign(epoch=epoch)).refused("sdcp-stale-epoch")
    await session.goes_on()


@check(
    "D-assign-newer-epoch",
    "S6.9-reassigned-after-resume",
    "S6.9-new-drafter-starts",
    title="after an assignment of a higher epoch proposals go to its verifier, in its epoch",
)
async def newer_epoch(d: DrafterWorld) -> None:
    session = await d.assigned()
    waiting = await session.proposal()
    arrived: list[str] = []

    async def second(request: Request) -> Response:
        arrived.append(request.method)
        return await session.handle(request)

    session.verifier, _, _ = await d.serve(second, ["verifier"])
    session.epoch = 2
    asking = d.background(session.assign())
    waiting.drop(connection=True)  # the old verifier is gone
    (await asking).no_content()
    proposal = await session.proposal(check=False)
    while proposal.message.get("epoch") == 1:  # sent before the assignment was heard
        proposal.refuse("sdcp-stale-epoch")
        proposal = await session.proposal(check=False)
    proposal.check()
    ensure("POST" in arrived, "expected the proposal of the new epoch at its verifier, it came to the old one")
    proposal.judge()
    await session.finish()


@check(
    "D-assign-newer-epoch-at-once",
    "S6.9-reassigned-after-resume",
    title="an assignment of a higher epoch ends the wait for the outstanding proposal's verdict",
    profile="decisions",
    decisions=["D28"],
)
async def newer_epoch_at_once(d: DrafterWorld) -> None:
    session = await d.assigned()
    waiting = await session.proposal()
    session.epoch = 2
    (await session.assign()).no_content()
    proposal = await session.proposal()
    ensure(waiting.incoming.gone, "expected the drafter to give up the proposal of the lower epoch")
    proposal.judge()
    await session.finish()
