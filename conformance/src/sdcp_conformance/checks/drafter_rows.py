"""The rows of a drafter under rule 2 (5.2, 6.2, 6.4): their form, what is sampled from them, how long they are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sdcp_conformance.oracle.bigram import DRAFT
from sdcp_conformance.oracle.sampling import ACCEPTANCE, ADDITIONAL, draw, target_distribution, uniform
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld, Proposed

Row = Sequence[float]
SUM = 1e-3
"""How far a row's sum may be from 1: binary32 rounds each of V values."""
SIGMAS = 6.0
"""A right drafter is further off once in a billion runs."""
LEAST = 60
"""Tokens that a law is judged by."""


async def _sampled(session: DrafterSession, least: int = LEAST) -> list[tuple[Row, int, int, int]]:
    """Row, token, round and position (from 1) of so many proposed tokens; all are accepted. Ends the session."""
    found: list[tuple[Row, int, int, int]] = []
    while len(found) < least:
        proposal = await session.proposal()
        number = proposal.message["round"]
        pairs = zip(proposal.rows(), proposal.tokens, strict=True)
        found += [(row, token, number, at) for at, (row, token) in enumerate(pairs, start=1)]
        proposal.accept(len(proposal.tokens), number % 16, m_cap=session.contract["m_max"])
    await session.finish()
    return found


def _distributions(proposal: Proposed) -> None:
    """Its rows are finite, not negative, and sum to 1; no token has the probability 0 in its own row."""
    for at, (row, token) in enumerate(zip(proposal.rows(), proposal.tokens, strict=True), start=1):
        ensure(all(math.isfinite(each) and each >= 0 for each in row), f"row {at}: expected probabilities, came {row}")
        ensure(abs(math.fsum(row) - 1) < SUM, f"row {at}: expected a sum of 1, came {math.fsum(row):g}")
        ensure(row[token] > 0, f"row {at}: expected weight on the proposed token {token}, came none")


PROFILES: dict[str, dict[str, int]] = {
    "no member": {},
    "temperature 0": {"temperature_milli": 0},
    "top_k 1": {"top_k": 1},
    "top_k 2": {"top_k": 2, "temperature_milli": 3000},
    "top_p 0": {"top_p_milli": 0},
    "temperature 0.3": {"temperature_milli": 300},
    "a high temperature": {"temperature_milli": 100_000},
    "all": {"temperature_milli": 1500, "top_k": 9, "top_p_milli": 800, "seed": 7},
}


@check(
    "D-rows-profiles",
    "S5.2-q-rows-format",
    "S5.2-sampled-from-row",
    "S6.4-q-rows-carried",
    title="under every profile the rows are distributions that give weight to the tokens sampled from them",
)
async def profiles(d: DrafterWorld) -> None:
    for profile in PROFILES.values():
        session = await d.assigned(rule=2, m_init=4, sampling=profile)
        for _ in range(3):
            proposal = await session.proposal()
            _distributions(proposal)
            proposal.accept(len(proposal.tokens), 5, m_cap=4)
        await session.finish()


@check(
    "D-rows-per-round",
    "S5.2-q-rows-format",
    "S5.2-q-rows-order",
    "S6.4-q-rows-carried",
    title="each proposal has rows of its own, one for each of its tokens, whatever M is",
)
async def per_round(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2, m_init=4, m_max=8)
    refs: list[str] = []
    for m_cap in (1, 2, 8, 3, 1):
        proposal = await session.proposal()
        _distributions(proposal)
        refs.append(proposal.message["q_rows"])
        proposal.accept(len(proposal.tokens), m_cap, m_cap=m_cap)
    ensure(len(set(refs)) == len(refs), f"expected an object for each round, came {refs}")
    await session.finish()


@check(
    "D-rows-law",
    "S5.2-sampled-from-row",
    title="tokens are sampled from the very rows that are published: how surprising they are agrees with the entropy",
)
async def law(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2, m_init=4, max_new=1000)
    drawn = await _sampled(session)
    came = math.fsum(-math.log(row[token]) for row, token, _, _ in drawn)
    mean = math.fsum(_entropy(row) for row, _, _, _ in drawn)
    deviation = math.sqrt(math.fsum(_spread(row) for row, _, _, _ in drawn))
    ensure(
        abs(came - mean) <= SIGMAS * deviation + 1e-3,
        f"-ln q(x) summed over {len(drawn)} tokens: expected {mean:.1f} give or take {SIGMAS * deviation:.1f}, "
        f"came {came:.1f}",
    )


def _entropy(row: Row) -> float:
    return math.fsum(-q * math.log(q) for q in row if q > 0)


def _spread(row: Row) -> float:
    """The variance of -ln q(x)."""
    return max(math.fsum(q * math.log(q) ** 2 for q in row if q > 0) - _entropy(row) ** 2, 0.0)


@check(
    "D-rows-fresh",
    "S6.4-random-independent",
    "S5.2-sampled-from-row",
    title="sessions with the same contract and prompt are not drafted with the same random values",
)
async def fresh(d: DrafterWorld) -> None:
    profile = {"temperature_milli": 100_000, "seed": 11}
    tokens = []
    for _ in range(2):
        session = await d.assigned(rule=2, m_init=4, max_new=1000, sampling=profile)
        tokens.append([(token, max(row)) for row, token, _, _ in await _sampled(session, 24)][:24])
    if all(most < 0.5 for each in tokens for _, most in each):  # else its rows leave little to chance
        first, second = ([token for token, _ in each] for each in tokens)
        ensure(first != second, f"expected other tokens in another session, came {first} twice")


@check(
    "D-rows-seed",
    "S6.4-drafter-derivation",
    "S6.4-random-independent",
    title="under a profile with a seed the tokens are not those that the verifier's derivation would draw",
)
async def seed(d: DrafterWorld) -> None:
    profile = {"temperature_milli": 3000, "seed": 424_242}
    session = await d.assigned(rule=2, m_init=4, max_new=1000, sampling=profile)
    drawn = await _sampled(session)
    for purpose in (ACCEPTANCE, ADDITIONAL):
        for shift in (0, -1):  # positions counted from 1, and from 0
            same, expected = 0, 0.0
            for row, token, number, at in drawn:
                value = uniform(profile["seed"], session.id, number, at + shift, purpose)
                same += token == draw(row, value)
                expected += math.fsum(q * q for q in row)
            if expected < 0.7 * len(drawn):  # else its rows leave little to chance
                ensure(same < len(drawn), f"all {same} tokens are those that the derivation (purpose {purpose}) draws")


@check(
    "D-rows-written-first",
    "S6.2-artifacts-written",
    "S6.2-leases-until-verdict",
    title="when a proposal comes its rows are in the cache, under a lease of the drafter that lasts until the verdict",
)
async def written_first(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2)
    for _ in range(3):
        proposal = await session.proposal()
        proposal.rows()
        ref = proposal.message["q_rows"]
        ensure(d.cache.leased(ref), "expected a lease on the rows when the proposal comes, there is none")
        await session.quiet("before the verdict")
        proposal.rows()
        ensure(d.cache.leased(ref), "expected a lease on the rows until the verdict, it was given up before")
        proposal.accept(0, 1)
    await session.finish()


@check(
    "D-rows-no-cache",
    "S6.4-q-rows-carried",
    "S6.2-artifacts-written",
    title="a drafter that cannot write its rows proposes nothing under rule 2, and goes on under rule 1",
)
async def no_cache(d: DrafterWorld) -> None:
    cut_off = DrafterWorld(d.town, await d.town.subject(cache={"prefixes": [d.town.elsewhere]}))
    try:
        session = await cut_off.session(rule=2)
        await session.assign()
        await session.quiet("whose rows could not be written")
        other = await cut_off.assigned(rule=1)
        (await other.proposal()).judge()
        await other.finish()
    finally:
        await cut_off.subject.stop()
        await cut_off.close()


@check(
    "D-rows-unchanged",
    "S5.2-sampled-from-row",
    "S6.2-artifacts-written",
    title="rows are not changed after the proposal that names them",
)
async def unchanged(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2)
    proposal = await session.proposal()
    rows = proposal.rows()
    (await session.assign()).succeeded()
    proposal.drop()
    again = await session.proposal()
    again.repeats(proposal)
    expect(again.rows(), rows, "rows when the proposal is sent again")
    again.judge()
    await session.finish()


# -- the reference model -----------------------------------------------------------------------------------------------


def _wanted(before: int, profile: dict[str, int]) -> tuple[Row, Row]:
    """The draft model's row after a token under a profile, and under none."""
    logits = DRAFT.rows[before]
    return target_distribution(logits, profile), target_distribution(logits, {})


def _close(row: Row, other: Row) -> bool:
    return all(abs(x - y) < 1e-4 for x, y in zip(row, other, strict=True))


def _follows(proposal: Proposed, profile: dict[str, int]) -> None:
    """Each row is the draft model's own after the tokens before it, under the profile or plain."""
    before = proposal.session.prefix[-1]
    for at, (row, token) in enumerate(zip(proposal.rows(), proposal.tokens, strict=True), start=1):
        fits = any(_close(row, wanted) for wanted in _wanted(before, profile))
        ensure(fits, f"row {at} (after token {before}): expected the draft model's under {profile}, came {row}")
        before = token


@check(
    "D-rows-model",
    "S5.2-q-rows-order",
    "S6.3-draft-state-discarded",
    title="rows are the reference model's under the contract's profile (or plain), in position order",
    profile="decisions",
    decisions=["D22", "D25"],
)
async def rows_of_model(d: DrafterWorld) -> None:
    for profile in PROFILES.values():
        session = await d.assigned(rule=2, m_init=4, sampling=profile)
        for turn in range(3):
            proposal = await session.proposal()
            _follows(proposal, profile)
            proposal.accept(min(turn, len(proposal.tokens)), 7 * turn % 16, m_cap=4)
        await session.finish()


@check(
    "D-rows-updated-profile",
    "S5.2-assignment-sampling",
    "S6.6-in-assignments",
    "S4.1-sampling-at-boundary",
    title="rows follow the assignment's profile, and that of a later assignment from the next round on (or are plain)",
    profile="decisions",
    decisions=["D21", "D22"],
)
async def updated_profile(d: DrafterWorld) -> None:
    first, second, third = {"top_k": 3}, {"temperature_milli": 400}, {"temperature_milli": 0}
    session = await d.session(rule=2, sampling=first)
    (await session.assign(sampling=second)).no_content()
    proposal = await session.proposal()
    _follows(proposal, second)
    (await session.assign(sampling=third)).no_content()
    proposal.accept(0, 1)
    for _ in range(2):
        proposal = await session.proposal()
        _follows(proposal, third)
        proposal.accept(0, 2)
    await session.finish()


@check(
    "D-rows-precise",
    "S5.2-q-rows-format",
    title="a row sums to 1 within 1e-4",
    profile="decisions",
    decisions=["D25"],
)
async def precise(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2, m_init=4)
    proposal = await session.proposal()
    for row in proposal.rows():
        ensure(abs(math.fsum(row) - 1) <= 1e-4, f"expected a sum of 1, came {math.fsum(row):.6f}")
    proposal.judge()
    await session.finish()
