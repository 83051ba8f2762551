"""Self-decoding periods (self_decode in 6.5.2, D29)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sdcp_conformance.oracle.bigram import TARGET
from sdcp_conformance.oracle.control import FAIL, FINISH, REDUCE, SELF_DECODE
from sdcp_conformance.oracle.rules import self_decoded
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.rows import sampled, spread
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import OTHER

LADDER: dict[str, Any] = {"low_rounds": 1, "fallback": [SELF_DECODE, FAIL], "self_load": 100, "max_new": 500}


async def _begun(v: VerifierWorld, **given: Any) -> VerifierSession:
    return await v.begun(**{**LADDER, **given})


async def _low(session: VerifierSession) -> None:
    """The low round that begins a period."""
    verdict = await session.advance(session.wrong_tokens())
    expect(verdict["action"], SELF_DECODE, "action of the low round")


# -- its rounds --------------------------------------------------------------------------------------------------------


@check(
    "V-selfdecode-rounds",
    "S6.5.2-self-decode",
    "S6.5.2-self-decode-rounds",
    "S6.5.2-self-decode-one-by-one",
    title="each self-decoded token is a round and a commit record of its own, and the argmax under rule 1",
)
async def rounds(v: VerifierWorld) -> None:
    session = await _begun(v, self_max=5)
    await _low(session)
    first, wanted = session.round + 1, session.next_tokens(5)
    await session.event()
    records = session.log.records[first - 1 :]
    expect([record["round"] for record in records], list(range(first, first + 5)), "rounds of the commit records")
    expect([record["tokens"] for record in records], [[token] for token in wanted], "tokens of the commit records")
    expect(session.catch_up(), wanted, "the self-decoded tokens")
    expect(await session.tokens(), session.output, "the output")


@check(
    "V-selfdecode-self-max",
    "S6.5.2-self-decode-ends",
    title="a period has self_max tokens",
)
async def self_max(v: VerifierWorld) -> None:
    async def one(most: int) -> None:
        session = await _begun(v, self_max=most)
        await _low(session)
        await session.event()
        expect(len(session.catch_up()), most, f"number of self-decoded tokens with self_max {most}")
        await v.town.events_of(session.id).none_within(0.1, "after the end of the period")
        expect(session.catch_up(), [], "tokens decoded after the period")

    await asyncio.gather(*(one(most) for most in (1, 2, 7)))


@check(
    "V-selfdecode-event",
    "S6.5.2-self-decode-event",
    title="the end of a period sends an event with the epoch, committed length and digest of then",
)
async def event(v: VerifierWorld) -> None:
    session = await _begun(v, self_max=3)
    await _low(session)
    came = (await session.event()).message
    session.catch_up()
    for key in ("session", "epoch", "committed", "digest"):
        expect(came.get(key), session.state()[key], f"{key} of the event")


@check(
    "V-selfdecode-proceeds",
    "S6.5.2-self-decode-event",
    "S6.5.2-self-decode-rounds",
    title="after the period a drafter is assigned, and proposes for the round after the last self-decoded one",
)
async def proceeds(v: VerifierWorld) -> None:
    session = await _begun(v, self_max=3)
    await _low(session)
    await session.event()
    session.catch_up()
    state = (await session.assign(drafter=OTHER)).message
    expect((state["round"], state["committed"]), (session.round, len(session.output)), "round and committed")
    await session.advance(who="other", drafter=OTHER)
    expect(session.round, 5, "round of the verdict after a low round and three self-decoded tokens")


@check(
    "V-selfdecode-visible",
    "S6.5.2-self-decode-one-by-one",
    "S6.7-long-poll",
    title="tokens can be read while the period goes on",
)
async def visible(v: VerifierWorld) -> None:
    session = await _begun(v, self_max=4)
    held = v.hold("PATCH", session.log_ref, after=3)
    await _low(session)
    await held.reached()
    session.catch_up()
    expect(len(session.output), 3, "tokens in the commit log: one of the low round, two of the period")
    expect(await session.tokens(), session.output, "output in the midst of the period")
    held.release()
    await session.event()


@check(
    "V-selfdecode-recorded-only",
    "S6.7-only-recorded",
    "S6.3-append-before-release",
    title="no self-decoded token can be read, and none follows it, before its record is in the log",
)
async def recorded_only(v: VerifierWorld) -> None:
    session = await _begun(v, self_max=2)
    held = v.hold("PATCH", session.log_ref, after=1)
    await _low(session)
    await held.reached()
    expect(await session.tokens(), session.output, "output while the first token's append is under way")
    ensure(not v.town.events_of(session.id).all, "expected no event while the period goes on")
    held.release()
    await session.event()
    session.catch_up()
    expect(await session.tokens(), session.output, "output after the period")


@check(
    "V-selfdecode-max-new",
    "S6.5.2-self-decode-ends",
    "S6.5.2-finish",
    "S6.7-final",
    title="without self_max a period goes on to max_new, where the session is finished",
)
async def to_the_end(v: VerifierWorld) -> None:
    session = await _begun(v, max_new=9)
    await _low(session)
    await session.read_to_the_end()
    expect(len(session.output), 9, "number of tokens in the end")
    output = (await session.read()).message
    expect((output["final"], output.get("finish")), (True, FINISH), "final and finish of the output")


@check(
    "V-selfdecode-stop",
    "S6.5.2-finish",
    "S6.3-truncation",
    title="a self-decoded stop token finishes the session",
)
async def stop(v: VerifierWorld) -> None:
    session = v.session(**LADDER)
    session.contract["stop"] = [session.next_tokens(4)[-1]]
    (await session.open()).succeeded()
    (await session.assign()).succeeded()
    await _low(session)
    await session.read_to_the_end()
    expect(session.output[-1], session.contract["stop"][0], "the last token")
    expect(len(session.output), 4, "number of tokens in the end")


@check(
    "V-selfdecode-sampled",
    "S6.5.2-self-decode",
    "S6.4-seed-derivation",
    title="under rule 2 and a seed each token is drawn with i = 1 and purpose 1 of its own round",
    profile="decisions",
    decisions=["D22", "D23", "D24", "D29"],
)
async def drawn(v: VerifierWorld) -> None:
    async def one(**profile: int) -> None:
        session = await _begun(v, rule=2, sampling=profile, self_max=8)
        expect((await _rejected(session))["action"], SELF_DECODE, "action of the low round")
        wanted = _foretold(session, [profile] * 8)
        await session.event()
        expect(session.catch_up(), wanted, f"the self-decoded tokens under {profile}")

    await asyncio.gather(
        one(seed=1, top_k=1), one(seed=2, top_k=2, temperature_milli=3000), one(seed=3, top_p_milli=800)
    )


async def _rejected(session: VerifierSession) -> dict[str, Any]:
    """A round of rule 2 with one token that top-k or top-p has dropped: nothing is accepted."""
    logits = TARGET.after(session.prefix)
    token = logits.index(min(logits))
    verdict = await sampled(session, [token], [spread(token, 0.5)])
    expect(verdict["accepted"], 0, "accepted of a token with p = 0")
    return verdict


def _foretold(session: VerifierSession, profiles: Sequence[dict[str, int]]) -> list[int]:
    prefix, tokens = list(session.prefix), []
    for number, profile in enumerate(profiles, start=session.round + 1):
        tokens.append(self_decoded(TARGET.after(prefix), 2, profile, session.id, number))
        prefix.append(tokens[-1])
    return tokens


@check(
    "V-selfdecode-policy",
    "S6.6-applies-from-round",
    title="a policy applies to self-decoded rounds from its from_round",
    profile="decisions",
    decisions=["D21", "D22", "D23", "D24", "D29"],
)
async def policy(v: VerifierWorld) -> None:
    first = {"seed": 4, "temperature_milli": 2000, "top_k": 8}
    second = {"seed": 9, "temperature_milli": 2000, "top_k": 4}
    session = await _begun(v, rule=2, sampling=first, self_max=8, low_rounds=2)
    await _rejected(session)
    (await session.set_policy(second, session.round + 5)).succeeded()
    expect((await _rejected(session))["action"], SELF_DECODE, "action of the second low round")
    wanted = _foretold(session, [first] * 3 + [second] * 5)
    await session.event()
    expect(session.catch_up(), wanted, "self-decoded tokens, three before the policy applies and five after")


# -- proposals and assignments meanwhile -------------------------------------------------------------------------------


@check(
    "V-selfdecode-refuses",
    title="during a period the former drafter's new round is 403, and a round of the period 409 sdcp-stale-base",
    profile="decisions",
    decisions=["D13", "D29"],
)
async def refuses(v: VerifierWorld) -> None:
    session = await _begun(v, self_max=4)
    held = v.hold("PATCH", session.log_ref, after=3)
    await _low(session)
    decoded = session.round + 1
    await held.reached()
    session.catch_up()
    (await session.propose(round=decoded)).refused("sdcp-stale-base")
    (await session.propose(round=session.round + 2)).refused("sdcp-not-assigned")
    held.release()
    await session.event()
    session.catch_up()
    (await session.propose()).refused("sdcp-not-assigned")


@check(
    "V-selfdecode-assigned",
    title="an assignment ends a period at the next token, and the new drafter's first round follows that token",
    profile="decisions",
    decisions=["D28", "D29"],
)
async def assigned(v: VerifierWorld) -> None:
    session = await _begun(v)
    held = v.hold("PATCH", session.log_ref, after=3)
    await _low(session)
    await held.reached()
    session.catch_up()
    assigning = v.background(session.assign(drafter=OTHER))
    await _until_waiting(session)
    held.release()
    state = (await assigning).message
    session.catch_up()
    expect(state["round"], session.round, "round of the answer to the assignment")
    ensure(session.round < 50, f"expected the period to end soon after the assignment, came round {session.round}")
    await session.advance(who="other", drafter=OTHER)


async def _until_waiting(session: VerifierSession) -> None:
    """Two round trips: an assignment that was sent before has been received when they are over."""
    await session.world.ask("router", "GET", f"{session.path}/output?from=0", headers=[("prefer", "wait=0")])
    await session.world.ask("router", "GET", f"{session.path}/output?from=0", headers=[("prefer", "wait=0")])


@check(
    "V-selfdecode-counters",
    title="a period leaves m_cap alone: the same drafter goes on with what it had",
    profile="decisions",
    decisions=["D16", "D29"],
)
async def counters(v: VerifierWorld) -> None:
    session = await _begun(v, fallback=[REDUCE, REDUCE, SELF_DECODE], self_max=6, m_init=4)
    for _ in range(3):
        await session.advance(session.wrong_tokens(min(2, session.m_cap)))
    await session.event()
    session.catch_up()
    (await session.assign()).succeeded()
    (await session.propose(session.next_tokens(2))).refused("sdcp-limit")
    expect((await session.advance(session.next_tokens(1)))["m_cap"], 2, "m_cap after the period and a good round")
