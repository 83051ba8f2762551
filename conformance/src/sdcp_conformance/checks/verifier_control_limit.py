"""The speculation limit m_cap (6.5.1, reduce in 6.5.2, D16)."""

from __future__ import annotations

import random

from sdcp_conformance.oracle.control import CONTINUE, REDUCE, SWITCH, is_low
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.escalation import Trace
from sdcp_conformance.worlds.verifier import VerifierWorld

BUSY = 50
"""At a load from here on a verifier may hold m_cap down for its own sake, and nobody can say how far."""


@check(
    "V-control-limit-range",
    "S6.5.1-m-cap-range",
    title="m_cap of every verdict is at least 1 and at most m_max",
)
async def limit_range(v: VerifierWorld) -> None:
    luck = random.Random(3)
    for m_max in (1, 3):
        trace = await Trace.begun(v, low_rounds=1, fallback=[REDUCE] * 40, m_max=m_max, m_init=m_max)
        for _ in range(14):
            await trace.round(0 if luck.random() < 0.4 else 3, 3)
            m_cap = trace.verdict["m_cap"]
            ensure(1 <= m_cap <= m_max, f"expected m_cap from 1 to {m_max}, came {m_cap} after {trace.actions}")


@check(
    "V-control-limit-m-init",
    "S6.2-m-range",
    "S6.9-problem-limit",
    title="before the first verdict m_init is the limit, and m_max where that is smaller",
)
async def first_limit(v: VerifierWorld) -> None:
    for m_init, m_max, limit in ((2, 4, 2), (9, 4, 4), (4, 4, 4), (1, 4, 1)):
        session = await v.begun(m_init=m_init, m_max=m_max)
        (await session.propose(session.next_tokens(limit + 1))).refused("sdcp-limit")
        await session.advance(session.next_tokens(limit))


@check(
    "V-control-limit-m-init-zero",
    title="an m_init of 0 is 1",
    profile="decisions",
    decisions=["D16"],
)
async def m_init_zero(v: VerifierWorld) -> None:
    session = await v.begun(m_init=0)
    (await session.propose(session.next_tokens(2))).refused("sdcp-limit")
    await session.advance(session.next_tokens(1))


@check(
    "V-control-reduce",
    "S6.5.2-reduce",
    "S6.5.1-lowered-under-load",
    title="reduce sets m_cap to half of it, rounded down, and never below 1",
)
async def reduce(v: VerifierWorld) -> None:
    for m_init, halves in ((11, [5, 2, 1, 1]), (6, [3, 1, 1])):
        trace = await Trace.begun(v, low_rounds=1, fallback=[REDUCE] * 5, m_max=11, m_init=m_init)
        trace.session.m_cap = m_init
        for half in halves:
            expect(await trace.low(), REDUCE, "action of a low round")
            m_cap = trace.verdict["m_cap"]
            ensure(
                m_cap == half or (m_cap < half and trace.verdict["load"] >= BUSY),
                f"expected m_cap {half} after {len(trace.actions)} times reduce from {m_init}, came {m_cap}",
            )


@check(
    "V-control-reduce-goes-on",
    "S6.5.2-reduce",
    "S6.5.2-continue",
    title="after reduce and continue the same drafter proceeds, within m_cap and no further",
)
async def goes_on(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=1, fallback=[REDUCE, REDUCE])
    await trace.low()
    session = trace.session
    (await session.propose(session.next_tokens(session.m_cap + 1))).refused("sdcp-limit")
    await session.advance(session.next_tokens(session.m_cap))


@check(
    "V-control-restored",
    "S6.5.1-restored-gradually",
    title="m_cap comes back by one with every round that is not low, up to m_max, and not with a low one",
    profile="decisions",
    decisions=["D16"],
)
async def restored(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[REDUCE] * 9, m_max=6, m_init=6)
    trace.session.m_cap = 6
    for right in (0, 0, 2, 0, 2, 0, 0, 2, 2, 2, 2, 2, 2, 2):
        before = trace.session.m_cap
        count = min(2, before)
        action = await trace.round(right, count)
        load, low = trace.verdict["load"], is_low(trace.verdict["accepted"], count, 0)
        wanted = max(1, before // 2) if action == REDUCE else before if low else min(before + 1, 6)
        if load >= BUSY and trace.verdict["m_cap"] != wanted:
            raise NotApplicable(f"the verifier is busy, its load is {load}")
        expect(trace.verdict["m_cap"], wanted, f"m_cap after {before}, action {action}, low {low}")


@check(
    "V-control-restored-at-all",
    "S6.5.1-restored-gradually",
    title="m_cap comes back when rounds are no longer low, and gradually (SHOULD)",
)
async def restored_at_all(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=1, fallback=[REDUCE] * 4, m_max=8, m_init=8)
    trace.session.m_cap = 8
    for _ in range(3):
        await trace.low()
    seen = [trace.session.m_cap]
    for _ in range(10):
        await trace.round(8, 8)
        seen.append(trace.session.m_cap)
    if max(seen) == seen[0] or (seen[0] < 4 and seen[1] == 8):
        raise NotApplicable(f"m_cap is not restored gradually, which is a SHOULD: {seen}")


@check(
    "V-control-limit-new-drafter",
    title="another drafter begins with its own m_init, the same one goes on with its m_cap",
    profile="decisions",
    decisions=["D16", "D28"],
)
async def new_drafter(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=1, fallback=[REDUCE, REDUCE, SWITCH])
    await trace.low()
    await trace.low()
    session = trace.session
    expect(session.m_cap, 1, "m_cap after two times reduce from 4")
    (await session.assign(m_init=3)).succeeded()  # the same drafter
    (await session.propose(session.next_tokens(2))).refused("sdcp-limit")
    expect(await trace.low(), SWITCH, "the third action")  # from here on the other one, with m_init 4
    session.m_cap = 4
    (await session.propose(session.next_tokens(5), who="other", drafter="https://other.test/d")).refused("sdcp-limit")
    expect(await trace.round(4, 4), CONTINUE, "action of a round of four tokens")
    expect(trace.verdict["accepted"], 4, "accepted of four tokens, as many as m_init permits")
