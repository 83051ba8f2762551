"""Idempotency (6.3 steps 3 and 8, 6.9): repeats, repeats while the round is verified, many proposals at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from sdcp_conformance.net.client import Answer
from sdcp_conformance.net.connection import TransportFault
from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.oracle.control import FINISH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierWorld


@check(
    "V-proposal-repeat",
    "S6.3-idempotency",
    "S6.9-lost-verdict-retried",
    title="a repeated proposal gets the verdict that exists, unchanged, and commits nothing",
)
async def repeat(v: VerifierWorld) -> None:
    session = await v.begun()
    for tokens in (session.next_tokens, session.wrong_tokens):
        message = session.proposal_message(tokens(2))
        first = await v.ask("drafter", "POST", "proposals", message)
        session.learn(first)
        before = await session.everything()
        for _ in range(3):
            again = await v.ask("drafter", "POST", "proposals", message)
            expect(again.message, first.message, "the verdict of the repeated proposal")
        expect(await session.everything(), before, "output and commit log after the repeats")
    await session.advance()


@check(
    "V-proposal-repeat-older",
    "S6.3-idempotency",
    title="the verdict of every earlier round is given again, not only that of the last",
)
async def repeat_older(v: VerifierWorld) -> None:
    session = await v.begun(m_init=1)
    verdicts, messages = [], []
    for tokens in (session.next_tokens, session.wrong_tokens, session.next_tokens, session.wrong_tokens):
        messages.append(session.proposal_message(tokens(1)))
        verdicts.append(session.learn(await v.ask("drafter", "POST", "proposals", messages[-1])))
    before = await session.everything()
    for message, verdict in [*zip(messages, verdicts, strict=True)][::-1]:
        again = await v.ask("drafter", "POST", "proposals", message)
        expect(again.message, verdict, f"the verdict of round {verdict['round']} once more")
    expect(await session.everything(), before, "output and commit log after the repeats")
    await session.advance()


@check(
    "V-proposal-repeat-changed",
    "S6.3-idempotency",
    "S6.3-step-order",
    title="if a verdict for the round exists it is returned, whatever tokens, base or length are proposed now",
)
async def repeat_changed(v: VerifierWorld) -> None:
    session = await v.begun()
    verdict = await session.advance()
    before = await session.everything()
    changes: list[dict[str, Any]] = [{"tokens": [0]}, {"tokens": [1] * 40}, {"tokens": [V]}]
    changes += [{"base": 99}, {"base": 0, "base_digest": bytes(32)}, {"base": 0, "base_digest": session.digest_at(0)}]
    for change in changes:
        again = (await session.propose(round=1, **change)).message
        expect(again, verdict, f"the verdict of round 1 once more, for a proposal with {change!r:.60}")
    expect(await session.everything(), before, "output and commit log after the repeats")
    await session.advance()


@check(
    "V-proposal-repeat-ended",
    "S6.3-idempotency",
    "S6.9-lost-verdict-retried",
    title="the last verdict is given again when the session has ended",
)
async def repeat_ended(v: VerifierWorld) -> None:
    session = await v.begun(max_new=5)
    first, last = await session.advance(), await session.advance()
    expect(last["action"], FINISH, "action of the last verdict")
    for verdict in (last, first):
        again = await session.propose(session.output[:2], round=verdict["round"], base=0)
        expect(again.message, verdict, f"the verdict of round {verdict['round']} once more")


@check(
    "V-proposal-in-flight",
    "S6.3-idempotency-in-flight",
    "S6.3-commit-atomic",
    title="identical proposals during the verification wait for its verdict, and all get it",
)
async def in_flight(v: VerifierWorld) -> None:
    session = await v.begun()
    round_, message = v.hold("PATCH", session.log_ref), session.proposal_message(session.next_tokens(2))

    def sent() -> asyncio.Task[Answer]:
        return v.background(v.ask("drafter", "POST", "proposals", message))

    answers = [sent()]
    await round_.reached()
    answers += [sent() for _ in range(8)]
    await session.heard()
    ensure(not any(each.done() for each in answers), "expected all to wait for the verdict, one has its answer")
    round_.release()
    first, *others = [(await each).message for each in answers]
    for other in others:
        expect(other, first, "the verdict of an identical proposal")
    session.learn(await sent())
    expect([record["round"] for record in session.log.records], [1], "rounds in the commit log")
    await session.advance()


@check(
    "V-proposal-in-flight-status",
    "S6.3-idempotency-in-flight",
    title="a repeat with another status is identical; another proposal waits for the verdict and is given it too",
    profile="decisions",
    decisions=["D12"],
)
async def in_flight_changed(v: VerifierWorld) -> None:
    session = await v.begun()
    round_, tokens = v.hold("PATCH", session.log_ref), session.next_tokens(2)
    answers = [v.background(session.propose(tokens))]
    await round_.reached()
    status = {"instance": "elsewhere", "role": 1, "load": 99, "queue": 9, "ttl_ms": 1}
    answers += [v.background(session.propose(tokens, status=status))]
    answers += [v.background(session.propose(other)) for other in ([0], [V], [1] * 40)]
    answers += [v.background(session.propose(tokens, base=9))]
    await session.heard()
    ensure(not any(each.done() for each in answers), "expected all to wait for the verdict, one has its answer")
    round_.release()
    first, *others = [(await each).message for each in answers]
    for other_verdict in others:
        expect(other_verdict, first, "the verdict of another proposal for the round")
    session.learn(await session.propose(tokens), 2)


@check(
    "V-proposal-race",
    "S6.3-commit-atomic",
    "S6.3-idempotency",
    title="of many unequal proposals for one round at once exactly one is committed, and nobody is told otherwise",
)
async def race(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=100)
    for _ in range(4):
        proposals = [session.half_right(right, m) for m in (1, 2, 3) for right in range(m)] * 2
        answers = await asyncio.gather(*(session.propose(tokens) for tokens in proposals))
        for answer in answers:
            ensure(answer.status < 500, f"expected a verdict or a refusal, came {answer.summary}")
        verdicts = [answer for answer in answers if answer.status == 200]
        ensure(verdicts, f"expected one verdict at least, came {answers[0].summary}")
        for answer in verdicts:
            expect(
                answer.message, verdicts[0].message, f"the verdict of round {session.round + 1} for another proposal"
            )
        session.learn(verdicts[0])
        expect(await session.tokens(), session.output, "the output")
    expect([record["round"] for record in session.log.records], [1, 2, 3, 4], "rounds in the commit log")


@check(
    "V-proposal-sessions-apart",
    "S6.3-commit-updates",
    "S6.3-batching",
    title="rounds of many sessions at once, some of them slow, do not touch one another",
)
async def apart(v: VerifierWorld) -> None:
    slow, others = await v.begun(), [await v.begun(prompt=[token]) for token in range(8)]
    round_ = v.hold("PATCH", slow.log_ref)
    waiting = v.background(slow.advance())
    await round_.reached()
    for _ in range(2):
        await asyncio.gather(*(session.advance() for session in others))
    ensure(not waiting.done(), "expected the slow session to wait for its append")
    round_.release()
    await waiting
    for session in [slow, *others]:
        expect(await session.tokens(), session.output, "the output")


@check(
    "V-proposal-client-gone",
    "S6.3-idempotency",
    "S6.9-lost-verdict-retried",
    title="a drafter whose connection breaks during the verification gets the verdict when it asks again",
)
async def client_gone(v: VerifierWorld) -> None:
    session = await v.begun()
    round_, tokens = v.hold("PATCH", session.log_ref), session.next_tokens(2)
    first = v.background(session.propose(tokens))
    await round_.reached()
    v.client("drafter").cut()
    with suppress(TransportFault):
        await first
    again = v.background(session.propose(tokens))
    round_.release()
    session.learn(await again, 2, session.next_tokens(3))
    expect([record["round"] for record in session.log.records], [1], "rounds in the commit log")
    await session.advance()


@check(
    "V-proposal-client-gone-committed",
    title="a round is not abandoned when its client goes away: it commits without anybody asking",
    profile="decisions",
    decisions=["D27"],
)
async def commits_alone(v: VerifierWorld) -> None:
    session = await v.begun()
    round_, tokens = v.hold("PATCH", session.log_ref), session.next_tokens(2)
    first = v.background(session.propose(tokens))
    await round_.reached()
    v.client("drafter").cut()
    await asyncio.gather(first, return_exceptions=True)
    round_.release()
    output = (await session.read(wait_s=None)).message
    expect(output["tokens"], session.next_tokens(3), "the output that a reader waits for")
