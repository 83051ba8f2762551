"""A verifier: opening, committing, refusing, escalating."""

from __future__ import annotations

from sdcp_conformance.oracle.control import CONTINUE, SWITCH
from sdcp_conformance.oracle.sampling import target_distribution
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierWorld


@check("V-basic-open", "S6.1-open-answer", "S4.2-chain-start", title="session-open is answered with round 0 and d[0]")
async def open_answer(v: VerifierWorld) -> None:
    session = v.session()
    state = (await session.open()).message
    for key, value in session.state().items():
        expect(state.get(key), value, f"{key} of the session-state")


@check("V-basic-target", "S6.1-target-mismatch", title="a contract for another target model is refused")
async def other_target(v: VerifierWorld) -> None:
    (await v.session(target=bytes(32)).open()).refused("sdcp-bad-contract")


@check(
    "V-basic-greedy", "S6.4-greedy-accept", "S6.3-commit-record", title="rounds of rule 1, right, wrong and half right"
)
async def greedy_rounds(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    await session.advance(session.wrong_tokens())
    await session.advance(session.half_right(1, 2))
    expect(await session.tokens(), session.output, "the output")
    expect([record["round"] for record in session.log.records], [1, 2, 3], "rounds in the commit log")


@check(
    "V-basic-seed",
    "S6.4-seed-derivation",
    "S6.4-speculative-accept",
    title="a round of rule 2 with a seed draws as derived",
    profile="decisions",
    decisions=["D22", "D23", "D24"],
)
async def seeded_round(v: VerifierWorld) -> None:
    profile = {"seed": 7, "temperature_milli": 1500}
    session = await v.begun(rule=2, sampling=profile)
    for _ in range(4):
        tokens = session.next_tokens(2)
        rows = [target_distribution(each, {}) for each in v.draft.along(session.prefix, tokens)[:2]]
        await session.advance_sampled(tokens, rows, profile)


@check("V-basic-other-drafter", "S6.3-authorization", title="a proposal of another drafter is refused")
async def other_drafter(v: VerifierWorld) -> None:
    session = await v.begun()
    before = await session.everything()
    (await session.propose(who="other")).refused("sdcp-not-assigned")
    expect(await session.everything(), before, "output and commit log after the refusal")
    await session.advance()


@check("V-basic-durable", "S6.3-append-before-release", title="no verdict and no output before the append")
async def durable(v: VerifierWorld) -> None:
    session = await v.begun()
    hold = v.hold("PATCH", session.log_ref)
    round_ = v.background(session.advance())
    await hold.reached()
    expect(await session.tokens(), [], "output while the append is under way")
    ensure(not round_.done(), "expected no verdict before the append has succeeded, one came")
    hold.release()
    await round_
    expect(await session.tokens(), session.output, "output after the append")


@check(
    "V-basic-switch", "S6.5.2-switch-event", "S6.5.2-ladder-entry", title="R low rounds lead to switch and its event"
)
async def switch(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=2)
    expect((await session.advance(session.wrong_tokens()))["action"], CONTINUE, "action after one low round")
    expect((await session.advance(session.wrong_tokens()))["action"], SWITCH, "action after R low rounds")
    event = await session.event()
    expect(event.message["committed"], len(session.output), "committed of the event")
