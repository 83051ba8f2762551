"""Sampling policy updates (6.6, D21).

Under rule 2 one proposed token tells by itself which profile ruled a round (`rows.takes_anything`).
"""

from __future__ import annotations

from typing import Any

from sdcp_conformance.oracle.rules import seeded, speculative
from sdcp_conformance.oracle.sampling import target_distribution
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.rows import FLAT, GREEDY, exact, sampled, spread, takes_anything
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import OTHER


async def _begun(v: VerifierWorld, **given: Any) -> VerifierSession:
    """A session of rule 2 under GREEDY that goes on whatever is rejected."""
    return await v.begun(**{"rule": 2, "sampling": GREEDY, "low_rounds": 1000, "max_new": 500, **given})


async def _ruled(session: VerifierSession, rounds: int) -> list[bool]:
    """For each of the next rounds whether FLAT ruled it."""
    return [await takes_anything(session) for _ in range(rounds)]


# -- when it applies ---------------------------------------------------------------------------------------------------


@check(
    "V-policy-next",
    "S6.6-applies-from-round",
    "S4.1-sampling-at-boundary",
    title="a profile from the next round on rules the next round and those after it",
)
async def next_round(v: VerifierWorld) -> None:
    session = await _begun(v)
    expect(await _ruled(session, 1), [False], "whether round 1 accepts anything, under temperature 0")
    (await session.set_policy(FLAT)).succeeded()
    expect(await _ruled(session, 3), [True] * 3, "whether rounds 2 to 4 accept anything, under a flat profile")


@check(
    "V-policy-future",
    "S6.6-applies-from-round",
    title="a profile from a later round on rules exactly from that round, none before it",
)
async def future(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await session.set_policy(FLAT, 4)).succeeded()
    expect(await _ruled(session, 5), [False, False, False, True, True], "whether rounds 1 to 5 accept anything")


@check(
    "V-policy-back",
    "S6.6-applies-from-round",
    title="several profiles for different rounds each rule from their own round on",
)
async def back(v: VerifierWorld) -> None:
    session = await _begun(v)
    for first, profile in ((2, FLAT), (4, GREEDY), (5, FLAT)):
        (await session.set_policy(profile, first)).succeeded()
    expect(await _ruled(session, 6), [False, True, True, False, True, True], "whether rounds 1 to 6 accept anything")


@check(
    "V-policy-last-wins",
    "S6.6-applies-from-round",
    title="of profiles for the same round the last received rules",
)
async def last_wins(v: VerifierWorld) -> None:
    session = await _begun(v)
    for profile in (FLAT, GREEDY, FLAT):
        (await session.set_policy(profile, 2)).succeeded()
    expect(await _ruled(session, 3), [False, True, True], "whether rounds 1 to 3 accept anything")


@check(
    "V-policy-last-received",
    title="of profiles with from_round up to k the last received rules round k, be its from_round the smaller",
    profile="decisions",
    decisions=["D21"],
)
async def last_received(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await session.set_policy(FLAT, 4)).succeeded()
    (await session.set_policy(GREEDY, 2)).succeeded()
    expect(await _ruled(session, 5), [False] * 5, "whether rounds 1 to 5 accept anything")


@check(
    "V-policy-new-drafter",
    "S6.6-applies-from-round",
    title="a profile that waits for its round is kept over a change of drafter, and one that rules goes on ruling",
)
async def new_drafter(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await session.set_policy(FLAT, 3)).succeeded()
    expect(await _ruled(session, 1), [False], "whether round 1 accepts anything")
    (await session.assign(drafter=OTHER)).succeeded()
    came = [await takes_anything(session, who="other", drafter=OTHER) for _ in range(2)]
    expect(came, [False, True], "whether rounds 2 and 3 accept anything")
    (await session.assign(sampling=FLAT)).succeeded()
    expect(await _ruled(session, 1), [True], "whether round 4 accepts anything")


@check(
    "V-policy-during-round",
    title="during a round that round is the current one: a policy from it on is 409, one from the next on applies",
    profile="decisions",
    decisions=["D3", "D21", "D27"],
)
async def during_round(v: VerifierWorld) -> None:
    session = await _begun(v)
    await takes_anything(session)
    token = session.wrong_tokens(1)[0]
    ref = session.put_rows([spread(token, 0.01)])
    hold = v.hold("GET", ref)
    round_ = v.background(session.propose([token], q_rows=ref))
    await hold.reached()
    (await session.set_policy(FLAT, session.round + 1)).refused(409)
    (await session.set_policy(FLAT, session.round + 2)).succeeded()
    hold.release()
    expect(session.learn(await round_)["accepted"], 0, "accepted in the round during which the policy came")
    expect(await _ruled(session, 1), [True], "whether the next round accepts anything")


@check(
    "V-policy-during-append",
    "S6.6-committed-unchanged",
    "S6.6-applies-from-round",
    title="a policy that comes while a round is appended changes nothing in that round",
)
async def during_append(v: VerifierWorld) -> None:
    session = await _begun(v)
    token, wanted = session.wrong_tokens(1)[0], session.next_tokens(1)
    hold = v.hold("PATCH", session.log_ref)
    ref = session.put_rows([spread(token, 0.01)])
    round_ = v.background(session.propose([token], q_rows=ref))
    await hold.reached()
    setting = v.background(session.set_policy(FLAT, session.round + 2))  # answered now or after the round
    hold.release()
    expect(session.learn(await round_)["emitted"], wanted, "emitted in the round during which the policy came")
    (await setting).succeeded()
    expect(await _ruled(session, 1), [True], "whether the next round accepts anything")


@check(
    "V-policy-resumed",
    "S6.6-applies-from-round",
    "S6.9-resume",
    title="after a failover the contract's profile rules until a policy is sent, before a drafter is assigned too",
)
async def resumed(v: VerifierWorld) -> None:
    for profile, wanted in ((None, False), (FLAT, True)):
        session = await _begun(v)
        await _ruled(session, 2)
        (await session.fail_over()).succeeded()
        if profile:
            (await session.set_policy(profile, session.round + 1)).succeeded()
        (await session.assign()).succeeded()
        expect(await _ruled(session, 2), [wanted] * 2, f"whether rounds after the failover accept anything, {profile}")


# -- what it changes, and what not -------------------------------------------------------------------------------------


@check(
    "V-policy-answer",
    "S5.1-post-policy",
    "S6.6-committed-unchanged",
    title="a policy is answered with the session-state, and committed output stays as it is",
)
async def answer(v: VerifierWorld) -> None:
    session = await _begun(v)
    await _ruled(session, 2)
    before = await session.everything()
    state = (await session.set_policy(FLAT)).message
    for key, value in session.state().items():
        expect(state.get(key), value, f"{key} of the session-state")
    expect(await session.everything(), before, "output and commit log after the policy")
    await _ruled(session, 2)
    expect((await session.tokens())[:2], before[0], "the first tokens, two rounds later")


@check(
    "V-policy-contract",
    "S4.1-contract-never-modified",
    "S4.1-digest-once",
    "S6.6-in-assignments",
    title="the contract and its digest are not changed by a policy: the chain goes on, assignments carry the old one",
)
async def contract(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await session.set_policy(FLAT)).succeeded()
    await _ruled(session, 1)  # its digest is checked against the contract as created
    (await session.assign(drafter=OTHER, sampling=FLAT)).succeeded()
    await takes_anything(session, who="other", drafter=OTHER)


@check(
    "V-policy-rule",
    "S6.6-rule-unchanged",
    "S4.1-contract-never-modified",
    title="a policy cannot change the acceptance rule",
)
async def rule(v: VerifierWorld) -> None:
    session = await v.begun()
    message = {"session": session.id, "from_round": 1, "sampling": {**FLAT, "seed": 1}, "rule": 2}
    (await v.ask("router", "POST", f"{session.path}/policy", message)).succeeded()
    for _ in range(3):
        await session.advance(session.half_right(1, 2))
    sampling = await _begun(v)
    message = {"session": sampling.id, "from_round": 1, "sampling": FLAT, "rule": 1}
    (await v.ask("router", "POST", f"{sampling.path}/policy", message)).succeeded()
    expect(await _ruled(sampling, 2), [True] * 2, "whether rule 2 still rules, under a flat profile")


@check(
    "V-policy-whole",
    title="a profile replaces the one before it whole: what it leaves out is absent, also the seed",
    profile="decisions",
    decisions=["D21"],
)
async def whole(v: VerifierWorld) -> None:
    session = await _begun(v, sampling={"seed": 3, "temperature_milli": 1_000_000, "top_k": 1})
    (await session.set_policy(FLAT)).succeeded()
    alike = []
    for _ in range(8):
        token = session.wrong_tokens(1)[0]
        row = exact(spread(token, 0.01))
        value = seeded({"seed": 3}, session.id, session.round + 1)
        foretold = speculative(v.target.along(session.prefix, [token]), [row], [token], FLAT, value)
        verdict = await sampled(session, [token], [spread(token, 0.01)])
        expect(verdict["accepted"], 1, "accepted of a token that only the old top_k drops")
        alike.append(verdict["emitted"] == foretold[1])
    ensure(not all(alike), "expected draws without a seed, came those of the old seed in all of 8 rounds")


@check(
    "V-policy-seed",
    "S6.6-applies-from-round",
    title="a seed that a policy gives is used from its round on",
    profile="decisions",
    decisions=["D21", "D22", "D23", "D24"],
)
async def seed(v: VerifierWorld) -> None:
    first, second = {"seed": 31, "temperature_milli": 2000}, {"seed": 32, "temperature_milli": 1500, "top_k": 6}
    session = await _begun(v, sampling=first)
    (await session.set_policy(second, 4)).succeeded()
    for number in range(1, 8):
        tokens = session.next_tokens(2)
        rows = [target_distribution(each, {}) for each in v.target.along(session.prefix, tokens)[:2]]
        await session.advance_sampled(tokens, rows, second if number >= 4 else first)


# -- refused -----------------------------------------------------------------------------------------------------------


@check(
    "V-policy-past",
    "S6.6-from-round",
    title="a policy for the current round or an earlier one is 409, and changes nothing",
    profile="decisions",
    decisions=["D3", "D21"],
)
async def past(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await session.set_policy(FLAT, 0)).refused(409)
    await _ruled(session, 2)
    before = await session.everything()
    for first in (0, 1, 2):
        (await session.set_policy(FLAT, first)).refused(409)
    expect(await session.everything(), before, "output and commit log after the refusals")
    expect(await _ruled(session, 2), [False] * 2, "whether rounds after the refusals accept anything")


@check(
    "V-policy-past-harmless",
    "S6.6-committed-unchanged",
    title="a policy for rounds that are over changes no token of theirs",
)
async def past_harmless(v: VerifierWorld) -> None:
    session = await _begun(v)
    await _ruled(session, 3)
    before = await session.everything()
    await session.set_policy(FLAT, 1)  # refused, or taken from the next round on
    expect(await session.everything(), before, "output and commit log")
    await _ruled(session, 1)
    expect((await session.tokens())[:3], before[0], "the tokens of the first three rounds")


@check(
    "V-policy-unknown",
    title="a policy for a session that is not there is 404",
    profile="decisions",
    decisions=["D3"],
)
async def unknown(v: VerifierWorld) -> None:
    (await v.session().set_policy(FLAT)).refused(404)


@check(
    "V-policy-malformed",
    title="a policy that does not match its CDDL is 400, and changes nothing",
    profile="decisions",
    decisions=["D3"],
)
async def malformed(v: VerifierWorld) -> None:
    session = await _begun(v)
    for sampling in ({"top_p_milli": 1001}, {"temperature_milli": -1}, {"seed": "7"}, {"top_k": 1.0}):
        (await session.set_policy(sampling)).refused(400)
    expect(await _ruled(session, 1), [False], "whether the round after the refusals accepts anything")


@check(
    "V-policy-ended",
    "S6.9-problem-session-closed",
    title="a policy for a session that has ended is 410 sdcp-session-closed",
    profile="decisions",
    decisions=["D13"],
)
async def ended(v: VerifierWorld) -> None:
    session = await v.begun(max_new=1)
    await session.advance()
    before = await session.everything()
    (await session.set_policy(FLAT)).refused("sdcp-session-closed")
    expect(await session.everything(), before, "output and commit log after the refusal")


@check(
    "V-policy-roles",
    title="only a router may send a policy: 403",
    profile="decisions",
    decisions=["D3", "D10"],
)
async def roles(v: VerifierWorld) -> None:
    session = await _begun(v)
    for who in ("drafter", "front-end", "verifier"):
        (await session.set_policy(FLAT, who=who)).refused(403)
    expect(await _ruled(session, 1), [False], "whether the round after the refusals accepts anything")
