"""Rule 2, speculative sampling (6.4): what it does whatever is drawn, and the law of its output."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from sdcp_conformance.oracle.bigram import TARGET, V, follow
from sdcp_conformance.oracle.control import FINISH
from sdcp_conformance.oracle.sampling import argmax, target_distribution
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.rows import FLAT, GREEDY, covering, leaning, profiled, sample, sampled, spread
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld

SHARP = {"temperature_milli": 250}
"""The least probable token has p < 1e-6, and the second most probable p < 0.003."""


@check(
    "V-rule2-temperature-zero",
    "S4.1-temperature-zero",
    "S6.4-speculative-accept",
    "S6.4-speculative-residual",
    title="at temperature 0 the output of rule 2 is the greedy one, ties included",
)
async def temperature_zero(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, sampling=GREEDY, prompt=[3, 12], m_init=4)  # 12 leads to the tie after 15
    for right, count in ((2, 2), (0, 2), (3, 3), (1, 3), (4, 4)):
        count = min(count, session.m_cap)
        tokens, wanted = session.half_right(min(right, count), count), session.next_tokens(min(right, count) + 1)
        verdict = await sampled(session, tokens, [spread(token, 0.6) for token in tokens])
        expect(verdict["emitted"], wanted, f"emitted for {tokens} at temperature 0")
    rejected = await v.begun(rule=2, sampling=GREEDY, prompt=[3, 15])
    expect((await sampled(rejected, [15], [spread(15, 0.9)]))["emitted"], [14], "emitted where two tokens tie")


@check(
    "V-rule2-certain",
    "S6.4-speculative-accept",
    title="a token with q(x) <= p(x) is accepted, whatever is drawn",
)
async def certain(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, m_init=4, max_new=200)
    for _ in range(8):
        tokens = session.next_tokens(min(4, session.m_cap))
        rows = [leaning(p, token, 1.001) for p, token in zip(profiled(session, tokens, {}), tokens, strict=True)]
        expect((await sampled(session, tokens, rows))["accepted"], len(tokens), "accepted where q is below p")


@check(
    "V-rule2-same",
    "S6.4-speculative-accept",
    "S5.2-q-rows-format",
    title="with q = p every token is accepted, probable or not, at any temperature",
)
async def same(v: VerifierWorld) -> None:
    async def one(**profile: int) -> None:
        luck = random.Random(5)
        session = await v.begun(rule=2, sampling=profile, m_init=4, max_new=200)
        for _ in range(4):
            tokens: list[int] = []
            for _ in range(min(4, session.m_cap)):
                p = target_distribution(TARGET.after([*session.prefix, *tokens]), profile)
                tokens.append(luck.choices(range(V), p)[0])
            verdict = await sampled(session, tokens, profiled(session, tokens, profile))
            expect(verdict["accepted"], len(tokens), f"accepted with q = p under {profile}")

    await asyncio.gather(one(), one(temperature_milli=3000), one(temperature_milli=400))


@check(
    "V-rule2-impossible",
    "S6.4-speculative-accept",
    "S6.4-speculative-residual",
    title="a token with p(x) = 0 is never accepted, and what comes instead has p > q",
)
async def impossible(v: VerifierWorld) -> None:
    async def one(**profile: int) -> None:
        session = await v.begun(rule=2, sampling=profile, m_init=4, low_rounds=1000, prompt=[3, 6])
        for _ in range(5):
            tokens = session.wrong_tokens(2)
            wanted = session.next_tokens(1)
            verdict = await sampled(session, tokens, [spread(token, 0.01) for token in tokens])
            expect(verdict["emitted"], wanted, f"emitted where only {wanted[0]} is possible, under {profile}")

    await asyncio.gather(one(top_k=1), one(top_p_milli=1), one(temperature_milli=0, top_k=5), one(seed=3, top_k=1))


@check(
    "V-rule2-order",
    "S6.4-in-order",
    "S6.4-speculative-accept",
    title="evaluation stops at the first rejected position",
)
async def order(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, sampling=GREEDY, m_init=4)
    right = session.next_tokens(4)
    wrong = (right[1] + 1) % V
    tokens = [right[0], wrong, follow(wrong), right[3]][: session.m_cap]
    verdict = await sampled(session, tokens, [spread(token, 0.5) for token in tokens])
    expect((verdict["accepted"], verdict["emitted"]), (1, right[:2]), "accepted and emitted")


@check(
    "V-rule2-residual",
    "S6.4-speculative-residual",
    title="after a rejection no token comes that q covers",
)
async def residual(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, sampling=SHARP, max_new=200, low_rounds=1000)
    for _ in range(10):
        logits = TARGET.after(session.prefix)
        p = target_distribution(logits, SHARP)
        least = min(range(V), key=lambda token: p[token])
        second = argmax([0.0 if token == argmax(logits) else logit for token, logit in enumerate(logits)])
        verdict = await sampled(session, [least], [covering(p, {second: 0.0}, least)])
        expect(verdict["emitted"], [second], "emitted where q covers all tokens but one")


@check(
    "V-rule2-residual-normalized",
    "S6.4-speculative-residual",
    title="the residual is normalized: its improbable last token comes seldom (wrong by chance once in a million runs)",
)
async def residual_normalized(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, sampling=SHARP, max_new=200, low_rounds=1000)
    seldom = 0
    for _ in range(8):
        p = target_distribution(TARGET.after(session.prefix), SHARP)
        best, least = max(range(V), key=lambda token: p[token]), min(range(V), key=lambda token: p[token])
        last = max(token for token in range(V) if token != least and p[token] < 0.003)
        row = covering(p, {best: p[best] - 0.3, last: 0.0}, least)  # residual: 0.3 and less than 0.003
        seldom += (await sampled(session, [least], [row]))["emitted"] == [last]
    ensure(
        seldom < 4, f"expected a token with less than 1/100 of the residual to come seldom, it did {seldom} times of 8"
    )


@check(
    "V-rule2-residual-support",
    "S6.4-speculative-residual",
    title="after a rejection the additional token is one of those with p > q, over many rounds",
)
async def residual_support(v: VerifierWorld) -> None:
    async def one() -> None:
        session = await v.begun(rule=2, max_new=300, low_rounds=1000)
        for _ in range(8):
            p = target_distribution(TARGET.after(session.prefix), {})
            ranked = sorted(range(V), key=lambda token: -p[token])
            half = math.fsum(p[token] for token in ranked[1::2])
            row = [p[token] / half if token in ranked[1::2] else 0.0 for token in range(V)]
            verdict = await sampled(session, [ranked[1]], [row])
            if not verdict["accepted"]:
                token = verdict["emitted"][0]
                ensure(p[token] > row[token], f"expected a token with p > q after the rejection, came {token}")

    await asyncio.gather(*(one() for _ in range(3)))


@check(
    "V-rule2-all-accepted",
    "S6.4-speculative-all-accepted",
    title="if all M tokens are accepted the additional one comes from the distribution after the last",
)
async def all_accepted(v: VerifierWorld) -> None:
    for count in (1, 2, 4):
        session = await v.begun(rule=2, sampling={"top_k": 1}, m_init=4, prompt=[3, 6])
        wanted = session.next_tokens(count + 1)
        verdict = await sampled(session, wanted[:-1], [spread(token, 0.5) for token in wanted[:-1]])
        expect(verdict["emitted"], wanted, f"emitted where all {count} tokens are accepted")


@check(
    "V-rule2-row-order",
    "S5.2-q-rows-order",
    "S5.2-q-rows-format",
    title="rows stand one after the other in position order, V little-endian binary32 values each",
)
async def row_order(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, sampling=GREEDY, m_init=4)
    tokens = session.next_tokens(3)
    ensure(len(set(tokens)) == 3, "the kit's model repeats itself")
    rows = [[0.0 if other in tokens and other != token else 1 / 14 for other in range(V)] for token in tokens]
    verdict = await sampled(session, tokens, rows)  # each row gives nothing to the tokens of the others
    expect(verdict["accepted"], 3, "accepted of three tokens, to each of which its own row alone gives something")


@check(
    "V-rule2-truncation",
    "S6.3-truncation",
    "S6.5.2-finish",
    title="under rule 2 too the output is cut after a stop token and at max_new",
)
async def truncation(v: VerifierWorld) -> None:
    for member, kept in (("max_new", 2), ("stop", 3)):
        session = v.session(rule=2, sampling=GREEDY, m_init=4)
        tokens = session.next_tokens(4)
        session.contract[member] = kept if member == "max_new" else [tokens[kept - 1]]
        (await session.open()).succeeded()
        (await session.assign()).succeeded()
        rows = [spread(token, 0.5) for token in tokens]
        verdict = session.learn(await session.propose(tokens, q_rows=session.put_rows(rows)))
        expect((verdict["emitted"], verdict["action"]), (tokens[:kept], FINISH), "emitted and action")


@check(
    "V-rule2-profile-order",
    "S4.1-profile-order",
    title="top-p takes the distribution after temperature: of one that temperature made flat it keeps several tokens",
)
async def profile_order(v: VerifierWorld) -> None:
    session = await v.begun(rule=2, sampling={**FLAT, "top_p_milli": 300}, max_new=200)
    for _ in range(5):
        logits = TARGET.after(session.prefix)
        second = logits.index(sorted(logits)[-2])  # with 1/16 each, 0.3 is reached by the fifth token
        verdict = await sampled(session, [second], [spread(second, 0.01)])
        expect(verdict["accepted"], 1, "accepted of the second most probable token")


@check(
    "V-rule2-dropped",
    "S4.1-profile-order",
    "S4.1-sampling",
    title="no token comes that top-k or top-p has dropped, beyond doubt of ties",
)
async def dropped(v: VerifierWorld) -> None:
    async def one(keeps: int, **profile: int) -> None:
        session = await v.begun(rule=2, sampling=profile, max_new=200, low_rounds=1000)
        for _ in range(12):
            logits = TARGET.after(session.prefix)
            least_kept = sorted(logits, reverse=True)[keeps - 1]
            least = min(range(V), key=lambda token: logits[token])
            verdict = await sampled(session, [least], [spread(least, 0.5)])
            token = verdict["emitted"][0]
            ensure(logits[token] >= least_kept, f"expected one of the {keeps} most probable tokens, came {token}")

    # at a temperature of 0.3 one token has more than 0.9, or two of the same probability have
    await asyncio.gather(
        one(3, top_k=3), one(5, top_k=5, temperature_milli=20_000), one(2, temperature_milli=300, top_p_milli=900)
    )


# -- the law -----------------------------------------------------------------------------------------------------------

TOKENS, FALSE_ALARM = 480, 1e-7
"""How many tokens are counted, and how often each of three counts may be off by chance."""


async def _speculated(session: VerifierSession, luck: random.Random, p_of: Callable[[int], list[float]]) -> None:
    """Fill a session with rounds whose tokens are sampled from rows far from p."""
    while len(session.output) < session.contract["max_new"]:
        tokens: list[int] = []
        rows = []
        for _ in range(min(4, session.m_cap)):
            p = p_of([*session.prefix, *tokens][-1])
            favourite = max(range(V), key=lambda token: p[token])
            rows.append([0.55 * (token == favourite) + 0.45 / V for token in range(V)])
            tokens.append(sample(rows[-1], luck))
        session.learn(await session.propose(tokens, q_rows=session.put_rows(rows)))


@check(
    "V-rule2-law",
    "S6.4-speculative-output",
    "S6.4-speculative-draw",
    "S6.4-random-independent",
    "S6.4-unseeded",
    title="without a seed the output has the distribution of the target model (wrong by chance once in 3 million runs)",
)
async def law(v: VerifierWorld) -> None:
    profile = {"temperature_milli": 1500}
    table = [target_distribution(TARGET.rows[token], profile) for token in range(V)]
    sessions = [
        await v.begun(rule=2, sampling=profile, max_new=TOKENS // 8, low_rounds=1000, m_init=4) for _ in range(8)
    ]
    luck = random.Random()  # q must be sampled afresh, or what follows is not the law
    await asyncio.gather(*(_speculated(session, luck, lambda token: table[token]) for session in sessions))
    favourite = [float(max(range(V), key=lambda token: p[token])) for p in table]
    _count("the most probable token", sessions, table, lambda t, x: x == favourite[t])
    _count("a token of even number", sessions, table, lambda t, x: x % 2 == 0)
    _count("one of the eight smallest tokens", sessions, table, lambda t, x: x < V // 2)


def _count(
    what: str,
    sessions: Sequence[VerifierSession],
    table: Sequence[Sequence[float]],
    counts: Callable[[int, int], bool],
) -> None:
    """Hold the number of tokens that count against its expectation, given each token's own predecessor.

    The difference is a sum of TOKENS martingale differences, each in a range of width 1 (Hoeffding, Azuma).
    """
    came = expected = 0.0
    for session in sessions:
        path = [session.prompt[-1], *session.output]
        for before, token in pairwise(path):
            came += counts(before, token)
            expected += sum(p for other, p in enumerate(table[before]) if counts(before, other))
    allowed = math.sqrt(TOKENS * math.log(2 / FALSE_ALARM) / 2)
    ensure(
        abs(came - expected) <= allowed,
        f"{what}: expected {expected:.0f} of {TOKENS} times, give or take {allowed:.0f}, came {came:.0f} times",
    )


@check(
    "V-rule2-unseeded",
    "S6.4-unseeded",
    title="without a seed two sessions, and two rounds of one, do not draw the same",
)
async def unseeded(v: VerifierWorld) -> None:
    async def one() -> list[int]:
        session = await v.begun(rule=2, sampling=FLAT, max_new=400, low_rounds=1000)
        drawn = []
        for _ in range(8):
            token = session.wrong_tokens(1)[0]
            drawn.append((await sampled(session, [token], [spread(token, 0.01)]))["emitted"][-1])
        return drawn

    first, second = await asyncio.gather(one(), one())
    ensure(first != second, f"expected different tokens in two sessions, came {first} in both")
    ensure(len(set(first)) > 1, f"expected different tokens in 8 rounds, came {first[0]} in all")
