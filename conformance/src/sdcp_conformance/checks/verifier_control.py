"""Low rounds and the escalation ladder (6.5.2)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sdcp_conformance.oracle.control import CONTINUE, FAIL, REDUCE, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.escalation import Trace
from sdcp_conformance.worlds.verifier import VerifierWorld
from sdcp_conformance.worlds.world import MISSING


async def _lows(v: VerifierWorld, rounds: list[tuple[int, int]], **given: Any) -> list[int]:
    """`low` of each verdict of fresh sessions' first rounds with (a, M)."""

    async def one(right: int, count: int) -> int:
        trace = await Trace.begun(v, low_rounds=5, **given)
        await trace.round(right, count)
        return int(trace.verdict["low"])

    return await asyncio.gather(*(one(*each) for each in rounds))


# -- which rounds are low ----------------------------------------------------------------------------------------------


@check(
    "V-control-low-no-ratio",
    "S6.5.2-low-round-no-ratio",
    "S4.1-low-ratio-default",
    title="with low_ratio zero or absent a round is low if and only if a = 0",
)
async def no_ratio(v: VerifierWorld) -> None:
    rounds = [(0, 1), (1, 1), (0, 4), (1, 4), (3, 4)]
    for given in ({"low_ratio": 0}, {"low_ratio": MISSING}):
        expect(await _lows(v, rounds, **given), [1, 0, 1, 0, 0], f"low after rounds with (a, M) in {rounds}")


@check(
    "V-control-low-ratio",
    "S6.5.2-low-round",
    title="with a low_ratio a round is low if 100 a < low_ratio M, and not where both are equal",
)
async def ratio(v: VerifierWorld) -> None:
    for percent, rounds, lows in (
        (50, [(0, 2), (1, 2), (1, 3), (1, 4), (2, 4), (2, 3)], [1, 0, 1, 1, 0, 0]),
        (67, [(2, 3), (2, 4), (3, 4)], [1, 1, 0]),
        (66, [(2, 3), (1, 1)], [0, 0]),
        (100, [(3, 4), (4, 4), (0, 1), (1, 1)], [1, 0, 1, 0]),
        (1, [(0, 4), (1, 4)], [1, 0]),
    ):
        came = await _lows(v, rounds, low_ratio=percent)
        expect(came, lows, f"low with low_ratio {percent} after rounds with (a, M) in {rounds}")


@check(
    "V-control-low-counts",
    "S5.2-verdict-low",
    "S6.5.2-counters",
    "S6.5.2-after-low",
    title="`low` counts the consecutive low rounds, this one included, while no action is applied",
)
async def low_counts(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=10)
    lows = []
    for right in (0, 0, 0, 2, 0, 1, 1, 0, 0):
        await trace.round(right, 2)
        lows.append(trace.verdict["low"])
    expect(lows, [1, 2, 3, 0, 1, 0, 0, 1, 2], "low of nine verdicts")


@check(
    "V-control-low-after-action",
    "S5.2-verdict-low",
    title="`low` is 0 in a verdict that applies an action",
    profile="decisions",
    decisions=["D15"],
)
async def low_after_action(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[REDUCE, SWITCH])
    for wanted in (CONTINUE, REDUCE, CONTINUE, SWITCH):
        expect(await trace.low(), wanted, "the action")
        expect(trace.verdict["low"], 1 if wanted == CONTINUE else 0, f"low of a verdict with action {wanted}")


# -- when an entry is applied, and which -------------------------------------------------------------------------------


@check(
    "V-control-escalates",
    "S6.5.2-ladder-entry",
    "S6.5.2-otherwise-continue",
    title="the first entry is applied when R consecutive rounds were low, for R of 1, 2, 3 and 5",
)
async def escalates(v: VerifierWorld) -> None:
    async def one(rounds: int) -> None:
        trace = await Trace.begun(v, low_rounds=rounds, fallback=[REDUCE])
        await trace.good()
        for _ in range(rounds):
            await trace.low()
        expect(trace.actions, [*[CONTINUE] * rounds, REDUCE], f"actions with low_rounds {rounds}")

    await asyncio.gather(*(one(rounds) for rounds in (1, 2, 3, 5)))


@check(
    "V-control-consecutive",
    "S6.5.2-after-not-low",
    title="a round that is not low begins the count anew",
)
async def consecutive(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[REDUCE])
    for right in (0, 2, 0, 2, 0, 0):
        await trace.round(right, 2)
    expect(trace.actions, [*[CONTINUE] * 5, REDUCE], "actions after low, good, low, good, low, low")


@check(
    "V-control-count-anew",
    "S6.5.2-c-reset",
    title="after an action R further low rounds lead to the next one",
)
async def count_anew(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=3, fallback=[REDUCE, REDUCE, REDUCE])
    for _ in range(9):
        await trace.low()
    expect(trace.actions, [CONTINUE, CONTINUE, REDUCE] * 3, "actions after nine low rounds with R = 3")


@check(
    "V-control-list",
    "S6.5.2-ladder-entry",
    "S6.5.2-ladder-skips",
    title="entries are applied in the order of the list, each once",
)
async def in_order(v: VerifierWorld) -> None:
    fallback = [SWITCH, REDUCE, SELF_DECODE, REDUCE, SWITCH, FAIL]
    trace = await Trace.begun(v, low_rounds=1, fallback=fallback, self_load=100, self_max=2)
    for _ in fallback:
        await trace.low()
    expect(trace.actions, fallback, "actions of six low rounds with R = 1")


@check(
    "V-control-restart",
    "S6.5.2-ladder-restarts",
    title="R consecutive rounds that are not low bring the list back to its first entry",
)
async def restart(v: VerifierWorld) -> None:
    async def one(good: int) -> None:
        trace = await Trace.begun(v, low_rounds=2, fallback=[SWITCH, REDUCE])
        for right in (0, 0, *[2] * good, 0, 0):
            await trace.round(right, 2)
        wanted = SWITCH if good >= 2 else REDUCE
        expect(trace.actions[-1], wanted, f"action of the second escalation after {good} rounds that were not low")

    await asyncio.gather(*(one(good) for good in (0, 1, 2, 3, 5)))


@check(
    "V-control-restart-consecutive",
    "S6.5.2-after-low",
    title="a low round between them keeps rounds that are not low from bringing the list back",
)
async def restart_consecutive(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[SWITCH, REDUCE])
    for right in (0, 0, 2, 0, 2, 0, 0):
        await trace.round(right, 2)
    expect(trace.actions[-1], REDUCE, "action after low, low, good, low, good, low, low with R = 2")


@check(
    "V-control-exhausted",
    "S6.5.2-ladder-exhausted",
    title="when no entry remains the action is fail",
)
async def exhausted(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=1, fallback=[REDUCE, REDUCE])
    for _ in range(3):
        await trace.low()
    expect(trace.actions, [REDUCE, REDUCE, FAIL], "actions of three low rounds with two entries")
    expect((await trace.session.read_to_the_end()).get("finish"), FAIL, "finish of the final output")
    expect(await trace.session.tokens(), trace.session.output, "the output, with the tokens of the last round")


@check(
    "V-control-skipped",
    "S6.5.2-self-decode-permitted",
    "S6.5.2-ladder-skips",
    title="self_decode without self_load in the contract is passed over, for good",
)
async def skipped(v: VerifierWorld) -> None:
    fallback = [SELF_DECODE, REDUCE, SELF_DECODE, SELF_DECODE, SWITCH, SELF_DECODE]
    trace = await Trace.begun(v, low_rounds=1, fallback=fallback, self_max=2)
    for _ in range(3):
        await trace.low()
    expect(trace.actions, [REDUCE, SWITCH, FAIL], "actions of three low rounds")


@check(
    "V-control-self-max-zero",
    title="self_decode with self_max 0 is not permitted, and passed over",
    profile="decisions",
    decisions=["D29"],
)
async def self_max_zero(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=1, fallback=[SELF_DECODE, REDUCE], self_load=100, self_max=0)
    expect(await trace.low(), REDUCE, "the action")


@check(
    "V-control-switch-keeps-place",
    "S6.5.2-j-persists",
    title="a change of drafter does not bring the list back to its first entry",
)
async def switch_keeps(v: VerifierWorld) -> None:
    trace = await Trace.begun(v, low_rounds=2, fallback=[SWITCH, SWITCH, REDUCE])
    for right in (0, 0, 2, 0, 0, 0, 0):
        await trace.round(right, 2)
    expect([each for each in trace.actions if each], [SWITCH, SWITCH, REDUCE], "the actions but continue")


@check(
    "V-control-self-decode-keeps-place",
    "S6.5.2-j-persists",
    title="a self-decoding period does not bring the list back to its first entry",
)
async def self_decode_keeps(v: VerifierWorld) -> None:
    fallback = [SELF_DECODE, REDUCE]
    trace = await Trace.begun(v, low_rounds=2, fallback=fallback, self_load=100, self_max=6)
    for right in (0, 0, 2, 0, 0):
        await trace.round(right, 2)
    expect(trace.actions[-1], REDUCE, "action of the second escalation, after six self-decoded rounds")


@check(
    "V-control-histories",
    "S6.5.2-counters",
    "S6.5.2-ladder-entry",
    "S6.5.2-ladder-restarts",
    "S6.3-control",
    title="long random histories under random ladders, each round's action and low as the counters say",
)
async def histories(v: VerifierWorld) -> None:
    async def one(seed: int) -> None:
        luck = random.Random(seed)
        entries = [REDUCE, SWITCH, SELF_DECODE]
        contract: dict[str, Any] = {"low_rounds": luck.randint(1, 3), "low_ratio": luck.choice([0, 30, 50, 75, 100])}
        contract["fallback"] = [luck.choice(entries) for _ in range(luck.randint(2, 6))]
        if luck.random() < 0.7:
            contract |= {"self_load": 100, "self_max": luck.randint(1, 3)}
        trace = await Trace.begun(v, **contract)
        bad = luck.choice([0.3, 0.5, 0.8])
        for _ in range(20):
            count = luck.randint(1, 4)
            await trace.round(0 if luck.random() < bad else luck.randint(0, count), count)
            if trace.over:
                return

    await asyncio.gather(*(one(seed) for seed in range(10)))


# -- what an action does to the session --------------------------------------------------------------------------------


@check(
    "V-control-stops-drafter",
    title="after switch a new round of the former drafter is 403, its stored verdicts are replayed",
    profile="decisions",
    decisions=["D13"],
)
async def stops_drafter(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[SWITCH])
    message = session.proposal_message(session.wrong_tokens())
    verdict = await session.advance(session.wrong_tokens())
    before = await session.everything()
    (await session.propose()).refused("sdcp-not-assigned")
    expect(await session.everything(), before, "output and commit log after the refusal")
    expect((await v.ask("drafter", "POST", "proposals", message)).message, verdict, "the stored verdict, asked again")


@check(
    "V-control-closed",
    "S6.9-problem-session-closed",
    "S6.5.2-fail",
    "S6.5.2-finish",
    title="a new round for a session that has finished or failed is 410 sdcp-session-closed, and commits nothing",
)
async def closed(v: VerifierWorld) -> None:
    for given in ({"low_rounds": 1, "fallback": [FAIL]}, {"max_new": 1}):
        session = await v.begun(**given)
        await session.advance(session.wrong_tokens())
        before = await session.everything()
        (await session.propose()).refused("sdcp-session-closed")
        expect(await session.everything(), before, "output and commit log after the refusal")


@check(
    "V-control-closed-replay",
    "S6.3-idempotency",
    title="stored verdicts are returned unchanged when the session has ended, also that of the last round",
)
async def closed_replay(v: VerifierWorld) -> None:
    for given in ({"low_rounds": 2, "fallback": [FAIL]}, {"max_new": 2}):
        session = await v.begun(**given)
        told = []
        for _ in range(2):
            message = session.proposal_message(session.wrong_tokens())
            told.append((message, await session.advance(session.wrong_tokens())))
        ensure(told[-1][1]["action"] >= 4, "expected the session to have ended")
        for message, verdict in told:
            again = (await v.ask("drafter", "POST", "proposals", message)).message
            expect(again, verdict, f"the verdict of round {verdict['round']}, asked again")
