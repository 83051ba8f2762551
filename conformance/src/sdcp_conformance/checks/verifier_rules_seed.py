"""The verifier's values under a seed (6.4), and what is drawn with them (D22 to D24)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.oracle.rules import seeded
from sdcp_conformance.oracle.sampling import ACCEPTANCE
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.rows import exact, leaning, profiled, sample, sampled
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld

SEEDS = (0, 1, 0x0102030405060708, 2**63, 2**64 - 1)


async def _accepted_as_derived(v: VerifierWorld, seed: int) -> dict[int, bool]:
    """Whether `accepted` of every round is as the derivation says, for positions counted from 0 and from 1."""
    profile = {"seed": seed, "temperature_milli": 1200}
    session = await v.begun(rule=2, sampling=profile, m_init=4, max_new=200, low_rounds=1000)
    luck, fits = random.Random(seed), {0: True, 1: True}
    for _ in range(8):
        tokens = session.next_tokens(min(4, session.m_cap))
        along = zip(profiled(session, tokens, profile), tokens, strict=True)
        rows = [leaning(p, token, max(0.5 + luck.random() / 2, p[token] + 0.01)) for p, token in along]
        foretold = {first: _accepted(session, tokens, rows, profile, first) for first in fits}
        came = (await sampled(session, tokens, rows))["accepted"]
        fits = {first: fits[first] and came == foretold[first] for first in fits}
    return fits


def _accepted(
    session: VerifierSession, tokens: list[int], rows: list[list[float]], profile: dict[str, int], first: int
) -> int:
    value = seeded(profile, session.id, session.round + 1)
    for index, (p, row, token) in enumerate(zip(profiled(session, tokens, profile), rows, tokens, strict=True)):
        if value(index + first, ACCEPTANCE) >= p[token] / exact(row)[token]:
            return index
    return len(tokens)


@check(
    "V-seed-acceptance",
    "S6.4-seed-derivation",
    "S6.4-seed-purpose",
    "S6.4-seed-53-bits",
    "S6.4-speculative-accept",
    title="under a seed the number of accepted tokens is as the HMAC says, be positions counted from 1 or from 0",
)
async def acceptance(v: VerifierWorld) -> None:
    results = await asyncio.gather(*(_accepted_as_derived(v, seed) for seed in SEEDS))
    ensure(
        any(all(fits[first] for fits in results) for first in (0, 1)),
        f"expected `accepted` of 8 rounds each to follow from the seeds {SEEDS}; as positions are counted from 0 and"
        f" from 1 it did so for these: {[[fits[first] for fits in results] for first in (0, 1)]}",
    )


async def _exact(v: VerifierWorld, rounds: int = 6, /, **profile: int) -> None:
    """Rounds under this profile, each verdict equal to the oracle's to the last token."""
    session = await v.begun(rule=2, sampling=profile, m_init=4, max_new=300, low_rounds=1000)
    luck = random.Random(repr(profile))
    for _ in range(rounds):
        tokens, rows = await _drafted(session, profile, luck)
        await session.advance_sampled(tokens, rows, profile)


async def _drafted(
    session: VerifierSession, profile: dict[str, int], luck: random.Random
) -> tuple[list[int], list[list[float]]]:
    """Tokens and rows of a drafter that is neither good nor bad: half of its rows are close to p."""
    tokens: list[int] = []
    rows: list[list[float]] = []
    for _ in range(luck.randint(1, min(4, session.m_cap))):
        close = profiled(session, [*tokens, 0], profile if luck.random() < 0.5 else {"temperature_milli": 2500})[-1]
        row = [0.8 * share + 0.2 / V for share in close]
        rows.append(row)
        tokens.append(sample(row, luck))
    return tokens, rows


def _seed_check(name: str, title: str, *profiles: dict[str, int], requirement: str = "S4.1-sampling") -> None:
    @check(f"V-seed-{name}", requirement, title=title, profile="decisions", decisions=["D22", "D23", "D24"])
    async def run(v: VerifierWorld) -> None:
        await asyncio.gather(*(_exact(v, **profile) for profile in profiles))


_seed_check(
    "values",
    "every value of the derivation: seeds small and great, several sessions, many rounds",
    *({"seed": seed} for seed in SEEDS),
    requirement="S6.4-seed-derivation",
)
_seed_check(
    "temperature",
    "draws at temperatures of 0.3, 1, 2 and 40",
    *({"seed": 5, "temperature_milli": each} for each in (300, 1000, 2000, 40_000)),
)
_seed_check(
    "temperature-zero",
    "draws at temperature 0, whatever top-k and top-p say",
    {"seed": 6, "temperature_milli": 0},
    {"seed": 6, "temperature_milli": 0, "top_k": 4, "top_p_milli": 700},
    requirement="S4.1-temperature-zero",
)
_seed_check(
    "top-k",
    "top-k keeps exactly k tokens, of equals the smaller ones",
    *({"seed": 7, "top_k": each, "temperature_milli": 1500} for each in (1, 2, 3, 7)),
)
_seed_check(
    "top-p",
    "top-p keeps the shortest prefix that reaches it",
    *({"seed": 8, "top_p_milli": each} for each in (1, 400, 650, 900, 999)),
)
_seed_check(
    "order",
    "temperature, top-k and top-p are applied in this order, each on what the one before has left",
    {"seed": 9, "temperature_milli": 2500, "top_k": 5, "top_p_milli": 700},
    {"seed": 10, "temperature_milli": 500, "top_k": 3, "top_p_milli": 900},
    {"seed": 11, "temperature_milli": 3000, "top_p_milli": 600},
    {"seed": 12, "top_k": 8, "top_p_milli": 800},
    requirement="S4.1-profile-order",
)
_seed_check(
    "off",
    "top_k 0 or above V and top_p_milli 1000 leave all tokens, top_p_milli 0 one",
    {"seed": 13, "top_k": 0},
    {"seed": 13, "top_k": 1000},
    {"seed": 13, "top_p_milli": 1000},
    {"seed": 13, "top_p_milli": 0},
)


@check(
    "V-seed-session",
    "S6.4-seed-derivation",
    title="sessions with one seed do not draw alike, and neither do the rounds of one",
)
async def session_matters(v: VerifierWorld) -> None:
    profile: dict[str, Any] = {"seed": 77, "temperature_milli": 1_000_000}

    async def one() -> list[int]:
        session = await v.begun(rule=2, sampling=profile, max_new=200, low_rounds=1000)
        drawn = []
        for _ in range(8):
            tokens = session.next_tokens(1)
            row = [0.01 if token == tokens[0] else 0.99 / (V - 1) for token in range(V)]
            drawn.append((await sampled(session, tokens, [row]))["emitted"][-1])
        return drawn

    first, second = await asyncio.gather(one(), one())
    ensure(first != second, f"expected different tokens in two sessions of one seed, came {first} in both")
    ensure(len(set(first)) > 1, f"expected different tokens in 8 rounds of one seed, came {first[0]} in all")


@check(
    "V-seed-after-refusal",
    "S6.3-rows-before-random",
    title="a refused proposal takes no value from the round that follows it",
    profile="decisions",
    decisions=["D23", "D24"],
)
async def after_refusal(v: VerifierWorld) -> None:
    profile = {"seed": 21, "temperature_milli": 2000}
    session = await v.begun(rule=2, sampling=profile, m_init=4)
    for _ in range(3):
        tokens = session.next_tokens(2)
        zero = [0.0 if token == tokens[1] else 1 / (V - 1) for token in range(V)]
        rows = profiled(session, tokens, {"temperature_milli": 500})
        (await session.propose(tokens, q_rows=session.put_rows([rows[0], zero]))).refused("sdcp-bad-proposal")
        (await session.propose(tokens, q_rows=v.town.new_ref("objects"))).refused("sdcp-q-unavailable")
        await session.advance_sampled(tokens, rows, profile)
    expect(session.round, 3, "the round")
