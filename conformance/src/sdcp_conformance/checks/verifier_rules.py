"""Rule 1, greedy (6.4), and truncation of what it emits (6.3 step 7)."""

from __future__ import annotations

import asyncio
import random

from sdcp_conformance.oracle.bigram import V, follow
from sdcp_conformance.oracle.control import FINISH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld


@check(
    "V-rule1-prefix",
    "S6.4-greedy-accept",
    "S6.3-acceptance",
    "S5.2-verdict-accepted",
    title="of M proposed tokens exactly the right ones before the first wrong one are accepted, for every M and a",
)
async def prefix(v: VerifierWorld) -> None:
    async def one(right: int, count: int) -> None:
        session = await v.begun(m_init=4)
        verdict = await session.advance(session.half_right(right, count))
        expect(verdict["accepted"], right, f"accepted of {count} tokens with {right} right ones before a wrong one")

    await asyncio.gather(*(one(right, count) for count in (1, 2, 4) for right in range(count + 1)))


@check(
    "V-rule1-stops",
    "S6.4-greedy-stops",
    "S6.4-in-order",
    title="no position after the first wrong one is accepted, even where its token is right again",
)
async def stops(v: VerifierWorld) -> None:
    session = await v.begun(m_init=4)
    right = session.next_tokens(4)
    wrong = (right[1] + 1) % V
    expect((await session.advance([right[0], wrong, *right[2:]]))["accepted"], 1, "accepted")
    session = await v.begun(m_init=4)
    wrong = (right[0] + 1) % V
    expect((await session.advance([wrong, follow(wrong), follow(follow(wrong))]))["accepted"], 0, "accepted")


@check(
    "V-rule1-additional",
    "S6.4-greedy-additional",
    title="the additional token is the argmax at position a+1, for every number a of accepted tokens",
)
async def additional(v: VerifierWorld) -> None:
    async def one(right: int) -> None:
        session = await v.begun(m_init=4)
        wanted = session.next_tokens(right + 1)
        verdict = session.learn(await session.propose(session.half_right(right, 4)))
        expect(verdict["emitted"], wanted, f"emitted after {right} of 4 right tokens")

    await asyncio.gather(*(one(right) for right in range(5)))


@check(
    "V-rule1-tie",
    "S6.4-greedy-accept",
    "S4.1-temperature-zero",
    title="of two equally probable tokens the smaller is the argmax, as proposed and as additional token",
)
async def tie(v: VerifierWorld) -> None:
    smaller = await v.begun(prompt=[3, 15])
    expect((await smaller.advance([14]))["accepted"], 1, "accepted of the smaller token of two equals")
    greater = await v.begun(prompt=[3, 15])
    verdict = greater.learn(await greater.propose([15]))
    expect((verdict["accepted"], verdict["emitted"]), (0, [14]), "accepted and emitted for the greater of two equals")
    inside = await v.begun(prompt=[3, 12])
    expect((await inside.advance([15, 15]))["accepted"], 1, "accepted with the greater of two equals second")


@check(
    "V-rule1-output",
    "S6.4-greedy-output",
    "S1.3-output-unaffected",
    title="whatever is proposed, the output is that of plain greedy decoding",
)
async def output(v: VerifierWorld) -> None:
    luck = random.Random(11)
    session = await v.begun(max_new=40, low_rounds=1000, m_init=4)
    wanted = session.next_tokens(40)
    while len(session.output) < 40:
        count = luck.randint(1, min(4, session.m_cap))
        guess = [token if luck.random() < 0.6 else luck.randrange(V) for token in session.next_tokens(count)]
        session.learn(await session.propose(guess))
        expect(session.output, wanted[: len(session.output)], f"the output after {guess} was proposed")
    expect(await session.tokens(), wanted, "the whole output")


@check(
    "V-rule1-many",
    "S6.4-greedy-output",
    "S6.3-scoring",
    "S6.3-batching",
    title="many sessions at once, of other prompts and lengths, are each scored by themselves",
)
async def many(v: VerifierWorld) -> None:
    async def one(number: int) -> None:
        session = await v.begun(prompt=[number, (3 * number) % V], m_init=4, low_rounds=1000)
        for turn in range(5):
            count = min(1 + (number + turn) % 4, session.m_cap)
            await session.advance(session.half_right((number * turn) % (count + 1), count))
        expect(await session.tokens(), session.output, f"the output after a prompt that ends in {(3 * number) % V}")

    await asyncio.gather(*(one(number) for number in range(V)))


@check(
    "V-rule1-profile",
    "S6.4-greedy-accept",
    "S4.1-profile-order",
    title="temperature, top-k and top-p do not change what rule 1 finds most probable",
)
async def profile(v: VerifierWorld) -> None:
    async def one(**sampling: int) -> None:
        session = await v.begun(sampling=sampling, m_init=4, prompt=[3, 6])
        await session.advance(session.half_right(2, 4))
        await session.advance(session.half_right(1, 2))

    await asyncio.gather(
        one(temperature_milli=0), one(temperature_milli=5000, top_p_milli=300, seed=1), one(top_k=1), one(top_p_milli=1)
    )


@check(
    "V-rule1-rows-ignored",
    "S6.4-greedy-accept",
    title="rule 1 does not look at q_rows, even where they cannot be had",
    profile="decisions",
    decisions=["D25"],
)
async def rows_ignored(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance(q_rows=v.town.new_ref("objects"))


# -- truncation and the end --------------------------------------------------------------------------------------------


async def _ends(session: VerifierSession, tokens: list[int], wanted: list[int]) -> None:
    verdict = session.learn(await session.propose(tokens))
    expect(verdict["emitted"], wanted, f"emitted for {tokens}")
    expect(verdict["action"], FINISH, "action of the verdict")
    record = session.log.records[-1]
    expect(record["tokens"], wanted, "tokens of the commit record")
    await session.read_to_the_end()
    expect(await session.tokens(), session.output, "the whole output")


@check(
    "V-rule1-stop-accepted",
    "S6.3-truncation",
    "S6.5.2-finish",
    title="what follows an accepted stop token is cut off, the stop token is kept, and the session is finished",
)
async def stop_accepted(v: VerifierWorld) -> None:
    async def one(index: int) -> None:
        session = v.session(m_init=4)
        tokens = session.next_tokens(4)
        session.contract["stop"] = [tokens[index]]
        (await session.open()).succeeded()
        (await session.assign()).succeeded()
        await _ends(session, tokens, tokens[: index + 1])

    await asyncio.gather(*(one(index) for index in range(4)))


@check(
    "V-rule1-stop-additional",
    "S6.3-truncation",
    "S6.5.2-finish",
    title="an additional token that is a stop token is kept, and finishes the session",
)
async def stop_additional(v: VerifierWorld) -> None:
    for right in (0, 1, 2):
        session = v.session()
        tokens = session.half_right(right, 2)
        wanted = session.next_tokens(right + 1)
        session.contract["stop"] = [wanted[-1]]
        (await session.open()).succeeded()
        (await session.assign()).succeeded()
        await _ends(session, tokens, wanted)


@check(
    "V-rule1-first-stop",
    "S6.3-truncation",
    title="of several stop tokens the first in the output cuts; one that was proposed and rejected does not",
)
async def first_stop(v: VerifierWorld) -> None:
    session = v.session(m_init=4)
    tokens = session.next_tokens(4)
    wrong = next(token for token in range(V) if token not in tokens)
    session.contract["stop"] = [99, tokens[3], wrong, tokens[2]]
    (await session.open()).succeeded()
    (await session.assign()).succeeded()
    verdict = session.learn(await session.propose([tokens[0], wrong]))
    expect(verdict["emitted"], tokens[:2], "emitted where a stop token was proposed and rejected")
    ensure(verdict["action"] != FINISH, "expected the session to go on after a stop token that was rejected")
    await _ends(session, session.next_tokens(2), tokens[2:3])


@check(
    "V-rule1-prompt-stop",
    "S6.3-truncation",
    title="a stop token in the prompt stops nothing",
)
async def prompt_stop(v: VerifierWorld) -> None:
    session = await v.begun(prompt=[3, 4], stop=[3, 4])
    tokens = session.next_tokens(2)
    ensure(not {3, 4} & set(session.next_tokens(3)), "the kit's model begins with a stop token")
    expect(session.learn(await session.propose(tokens))["emitted"][:2], tokens, "the first emitted tokens")


@check(
    "V-rule1-max-new",
    "S6.3-truncation",
    "S6.5.2-finish",
    title="the output is cut at max_new, and the session is finished there, neither before nor after",
)
async def max_new(v: VerifierWorld) -> None:
    async def one(limit: int) -> None:
        session = await v.begun(max_new=limit, m_init=4)
        wanted = session.next_tokens(limit)
        while len(wanted) - len(session.output) > 3:
            verdict = await session.advance(session.half_right(1, 2))
            ensure(verdict["action"] != FINISH, f"expected no end at {len(session.output)} of {limit} tokens")
        rest = wanted[len(session.output) :]
        await _ends(session, session.next_tokens(min(4, session.m_cap)), rest)

    await asyncio.gather(*(one(limit) for limit in (1, 2, 3, 5, 6)))


@check(
    "V-rule1-accepted-whole",
    "S6.3-truncation",
    "S5.2-verdict-accepted",
    title="`accepted` counts before a stop token cuts",
    profile="decisions",
    decisions=["D14"],
)
async def accepted_whole(v: VerifierWorld) -> None:
    session = v.session(m_init=4)
    tokens = session.next_tokens(4)
    session.contract["stop"] = tokens[:1]
    (await session.open()).succeeded()
    (await session.assign()).succeeded()
    expect(session.learn(await session.propose(tokens))["accepted"], 4, "accepted where a stop token cuts after one")


@check(
    "V-rule1-finish-first",
    "S6.5.2-finish",
    title="finish outranks what the control step would have said",
    profile="decisions",
    decisions=["D15"],
)
async def finish_first(v: VerifierWorld) -> None:
    session = await v.begun(max_new=1, low_rounds=1)
    verdict = await session.advance(session.wrong_tokens())
    expect((verdict["action"], verdict["low"]), (FINISH, 0), "action and low of a last round that was low")
