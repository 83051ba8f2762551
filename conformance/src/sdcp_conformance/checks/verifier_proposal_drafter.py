"""PUT drafter (6.1, D28): the latest assignment counts, rounds under way end first, repeats change nothing."""

from __future__ import annotations

from typing import Any

from sdcp_conformance.oracle.control import SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierWorld
from sdcp_conformance.worlds.world import MISSING, OTHER, changed


@check(
    "V-proposal-assign-answer",
    "S5.1-put-drafter",
    "S5.2-session-state",
    title="PUT drafter is answered with the current session-state",
)
async def answer(v: VerifierWorld) -> None:
    session = await v.opened()
    for _ in range(3):
        state = (await session.assign()).message
        for key, value in session.state().items():
            expect(state.get(key), value, f"{key} of the answer to PUT drafter after round {session.round}")
        await session.advance()


@check(
    "V-proposal-assign-latest",
    "S6.1-latest-assignment-only",
    "S6.9-failed-drafter-rejected",
    "S6.9-new-drafter-starts",
    title="only the drafter of the latest assignment may propose, new rounds and old ones",
)
async def latest(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    (await session.assign(drafter=OTHER)).succeeded()
    before = await session.everything()
    (await session.propose()).refused("sdcp-not-assigned")
    stored: dict[str, Any] = {"round": 1, "base": 0, "base_digest": session.digest_at(0)}
    (await session.propose(session.output[:2], **stored)).refused("sdcp-not-assigned")
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance(who="other", drafter=OTHER)
    (await session.assign()).succeeded()
    (await session.propose(who="other", drafter=OTHER)).refused("sdcp-not-assigned")
    await session.advance()


@check(
    "V-proposal-assign-new-asks",
    "S6.3-idempotency",
    title="the new drafter may ask for the verdicts of rounds that another one proposed",
)
async def new_asks(v: VerifierWorld) -> None:
    session = await v.begun()
    verdict = await session.advance()
    (await session.assign(drafter=OTHER)).succeeded()
    stored: dict[str, Any] = {"round": 1, "base": 0, "base_digest": session.digest_at(0)}
    again = await session.propose(session.output[:2], who="other", drafter=OTHER, **stored)
    expect(again.message, verdict, "the verdict of round 1")


@check(
    "V-proposal-assign-epoch",
    "S6.9-problem-stale-epoch",
    title="PUT drafter of another epoch is sdcp-stale-epoch, and the drafter stays",
    profile="decisions",
    decisions=["D28"],
)
async def epoch(v: VerifierWorld) -> None:
    session = await v.begun()
    for value in (0, 2):
        (await session.assign(drafter=OTHER, epoch=value)).refused("sdcp-stale-epoch")
    (await session.propose(who="other", drafter=OTHER)).refused("sdcp-not-assigned")
    await session.advance()


@check(
    "V-proposal-assign-contract",
    "S4.1-contract-never-modified",
    "S6.6-rule-unchanged",
    title="PUT drafter with another contract is sdcp-bad-contract, and the drafter stays",
    profile="decisions",
    decisions=["D28"],
)
async def other_contract(v: VerifierWorld) -> None:
    session = await v.begun(sampling={"top_k": 4})
    for changes in ({"rule": 2}, {"max_new": 3}, {"sampling": {"top_k": 5}}, {"low_ratio": 0}):
        contract = {**session.contract, **changes}
        (await session.assign(drafter=OTHER, contract=contract)).refused("sdcp-bad-contract")
    (await session.propose(who="other", drafter=OTHER)).refused("sdcp-not-assigned")
    await session.advance()


@check(
    "V-proposal-assign-members",
    "S5.2-assignment",
    title="an assignment that lacks a member, or has one of another type, is refused, and the drafter stays",
)
async def members(v: VerifierWorld) -> None:
    session = await v.begun()
    for key in session.assignment_message(v.base):
        for value in (MISSING, None, 1.5, -1):
            message = changed(session.assignment_message(v.base, OTHER), {key: value})
            what = f"an assignment {f'with {key} = {value}' if value is not MISSING else f'without {key}'}"
            (await v.ask("router", "PUT", f"{session.path}/drafter", message)).rejected(what)
    (await session.propose(who="other", drafter=OTHER)).refused("sdcp-not-assigned")
    await session.advance()


@check(
    "V-proposal-assign-meanwhile",
    "S6.1-latest-assignment-only",
    title="PUT drafter during a round is answered after its commit, with the state that follows it",
    profile="decisions",
    decisions=["D28"],
)
async def meanwhile(v: VerifierWorld) -> None:
    session = await v.begun()
    round_ = v.hold("PATCH", session.log_ref)
    former = v.background(session.advance())
    await round_.reached()
    assigning = v.background(session.assign(drafter=OTHER))
    await session.read(who="router")
    ensure(not assigning.done(), "expected PUT drafter to wait for the round, it has its answer")
    round_.release()
    state = (await assigning).message
    await former
    for key, value in session.state().items():
        expect(state.get(key), value, f"{key} of the answer to PUT drafter")
    (await session.propose()).refused("sdcp-not-assigned")
    await session.advance(who="other", drafter=OTHER)


@check(
    "V-proposal-assign-repeat",
    title="a repeat of the assignment in force changes nothing: not m_cap, and a stopped drafter stays stopped",
    profile="decisions",
    decisions=["D13", "D28"],
)
async def repeat(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    same = session.assignment_message(v.base)
    await session.advance()
    m_cap = session.m_cap
    expect(m_cap, 4, "m_cap after one round that was not low")
    (await v.ask("router", "PUT", f"{session.path}/drafter", same)).succeeded()
    await session.advance(session.next_tokens(m_cap))
    expect((await session.advance(session.wrong_tokens()))["action"], SWITCH, "action after a low round")
    (await v.ask("router", "PUT", f"{session.path}/drafter", same)).succeeded()
    (await session.propose()).refused("sdcp-not-assigned")
    (await session.assign()).succeeded()
    await session.advance()


@check(
    "V-proposal-assign-behind",
    title="an assignment whose round is behind is taken, and answered with the current state",
    profile="decisions",
    decisions=["D28"],
)
async def behind(v: VerifierWorld) -> None:
    session = await v.begun()
    old: dict[str, Any] = {"round": 0, "committed": 0, "digest": session.digest}
    await session.advance()
    state = (await session.assign(drafter=OTHER, **old)).message
    expect((state["round"], state["committed"]), (1, 3), "round and committed of the answer")
    await session.advance(who="other", drafter=OTHER)


@check(
    "V-proposal-assign-limit",
    "S6.2-m-cap-source",
    title="another drafter begins with its own m_init, at least 1 and at most m_max; the same one keeps its m_cap",
    profile="decisions",
    decisions=["D16"],
)
async def limit(v: VerifierWorld) -> None:
    session = await v.begun(m_init=3)
    for m_init, m_cap in ((1, 1), (0, 1), (2, 2), (99, 4)):
        (await session.assign(drafter=OTHER, m_init=m_init)).succeeded()
        longer = await session.propose(session.next_tokens(m_cap + 1), "other", OTHER)
        longer.refused("sdcp-limit")
        session.learn(await session.propose(session.next_tokens(m_cap), "other", OTHER), m_cap)
        (await session.assign(m_init=1)).succeeded()


@check(
    "V-proposal-assign-ended",
    "S6.9-problem-session-closed",
    title="a session that has ended gets no drafter: 410 sdcp-session-closed",
    profile="decisions",
    decisions=["D13"],
)
async def ended(v: VerifierWorld) -> None:
    session = await v.begun(max_new=3)
    await session.advance()
    (await session.assign(drafter=OTHER)).refused("sdcp-session-closed")
    (await session.propose(who="other", drafter=OTHER)).refused("sdcp-not-assigned")
