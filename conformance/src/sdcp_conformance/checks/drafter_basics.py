"""A drafter: assignments, proposals, verdicts, retries."""

from __future__ import annotations

from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.drafter import DrafterWorld


@check("D-basic-propose", "S6.2-proposal-base", "S6.2-proposal-round", title="proposals extend the committed prefix")
async def propose(d: DrafterWorld) -> None:
    session = await d.assigned()
    for _ in range(4):
        (await session.proposal()).judge()
    await session.finish()


@check("D-basic-limit", "S6.2-m-range", "S6.2-m-cap-source", title="M stays within m_cap of the last verdict")
async def limit(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=1)
    for m_cap in (1, 2, 4, 1):
        (await session.proposal()).judge(m_cap=m_cap)
    await session.finish()


@check("D-basic-rows", "S5.2-q-rows-format", "S6.2-artifacts-written", title="rows under rule 2 are distributions")
async def rows(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2)
    proposal = await session.proposal()
    for row, token in zip(proposal.rows(), proposal.tokens, strict=True):
        expect(abs(sum(row) - 1) < 1e-3 and row[token] > 0, True, "a row sums to 1 and has weight on its token")
    proposal.judge()
    await session.finish()


@check("D-basic-retry", "S6.9-lost-verdict-retried", title="a proposal whose verdict was lost is sent again")
async def retry(d: DrafterWorld) -> None:
    session = await d.assigned()
    first = await session.proposal()
    first.drop()
    again = await session.proposal()
    expect(again.tokens, first.tokens, "tokens of the repeated proposal")
    again.judge()
    await session.finish()
