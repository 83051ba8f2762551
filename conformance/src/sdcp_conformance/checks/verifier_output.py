"""Output delivery (6.7, D8): indices, waiting, the end, and who may read."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.net.client import Answer
from sdcp_conformance.oracle.control import FAIL, FINISH
from sdcp_conformance.outcome import Failed, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import OTHER

FAR = 10_000
"""An index that no session of these checks reaches."""


async def _ended(v: VerifierWorld, **given: Any) -> VerifierSession:
    """A session that has ended after some rounds."""
    session = await v.begun(**{"max_new": 5, **given})
    while len(session.output) < 5:
        await session.advance()
    return session


TRIES = 5
"""On a machine so busy that something at once takes longer than a whole wait, it is tried again."""


async def _woken(v: VerifierWorld, far: bool = False, **given: Any) -> tuple[VerifierSession, dict[str, Any]]:
    """A reader that waits at the end of a session's output, or `far` beyond it, while a round goes on: what it is told.

    Fails where the reader does not wait, or waits as long as one for whom nothing comes.
    """
    other = await v.begun()
    for _ in range(TRIES):
        session = await v.begun(**given)
        await session.advance()
        idle = v.background(other.read(FAR, wait_s=None))
        reader = v.background(session.read(FAR if far else len(session.output), wait_s=None))
        done, _ = await asyncio.wait({reader}, timeout=0.1)
        ensure(idle.done() or not done, "expected a reader at the end of the output to wait, it was answered at once")
        await session.advance()
        await asyncio.wait({reader, idle}, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            return session, (await reader).message
    raise Failed(f"expected a waiting reader to be told of a round, its wait went on to the end in {TRIES} sessions")


async def _at_once(v: VerifierWorld, session: VerifierSession, first: int, wait_s: int | None) -> dict[str, Any]:
    """What a reader is told that must not wait: it is answered before another one that began to wait earlier."""
    other = await v.begun()
    for _ in range(TRIES):
        idle = v.background(other.read(FAR, wait_s=None))
        await other.read(0)  # sent after it, and answered at once
        reader = v.background(session.read(first, wait_s=wait_s))
        await asyncio.wait({reader, idle}, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            return (await reader).message
    raise Failed(f"expected an answer from index {first} at once, it came with the end of a wait {TRIES} times")


async def _told(session: VerifierSession, reader: asyncio.Task[Answer], first: int) -> dict[str, Any]:
    """What a reader is told, or when its wait was over before there was anything, what is there now."""
    output = (await reader).message
    return output if output["tokens"] else (await session.read(first)).message


# -- what is returned --------------------------------------------------------------------------------------------------


@check(
    "V-output-from",
    "S6.7-from-index",
    "S5.1-get-output",
    "S5.2-output",
    title="output from index n has the tokens committed at n and later, and says n",
)
async def from_index(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    await session.advance(session.half_right(1, 2))
    ensure(len(session.output) == 5, "expected five tokens after a round of three and one of two")
    for first in range(5):
        output = (await session.read(first)).message
        wanted = (session.id, first, session.output[first:], False)
        came = tuple(output[key] for key in ("session", "from", "tokens", "final"))
        expect(came, wanted, f"session, from, tokens and final from index {first}")


@check(
    "V-output-from-absent",
    "S6.7-from-index",
    title="without `from` output begins at 0",
    profile="decisions",
    decisions=["D8"],
)
async def from_absent(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    output = (await session.read(None)).message
    expect((output["from"], output["tokens"]), (0, session.output), "from and tokens")


@check(
    "V-output-from-invalid",
    title="a `from` that is no decimal integer is 400",
    profile="decisions",
    decisions=["D3", "D8"],
)
async def from_invalid(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    for first in ("x", "-1", "1.5", "0x1", "%201", "1e3", "%2B1", "%D9%A1"):  # the last is a digit, but not of ours
        (await v.ask("front-end", "GET", f"{session.path}/output?from={first}")).refused(400)
    expect(await session.tokens(), session.output, "the output")


@check(
    "V-output-stable",
    "S6.7-stable-indices",
    title="the token at an index is the same in every answer, round after round",
)
async def stable(v: VerifierWorld) -> None:
    session = await v.begun(m_init=4)
    seen: dict[int, int] = {}
    for right, count in ((2, 3), (0, 2), (1, 1), (3, 3), (0, 1)):
        count = min(count, session.m_cap)
        await session.advance(session.half_right(min(right, count), count))
        for first in (0, len(session.output) // 2, len(session.output) - 1):
            tokens = (await session.read(first)).message["tokens"]
            for index, token in enumerate(tokens, start=first):
                expect(token, seen.setdefault(index, token), f"the token at index {index}, read again")
    expect([seen[index] for index in range(len(session.output))], session.output, "the tokens by their indices")


@check(
    "V-output-over-failover",
    "S6.7-stable-indices",
    "S6.7-epoch-carried",
    "S6.9-resume",
    title="after a failover the indices go on, and every output message has the new epoch",
)
async def over_failover(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    expect((await session.read()).message["epoch"], 1, "epoch of the output before the failover")
    (await session.fail_over()).succeeded()
    output = (await session.read(1)).message
    expect((output["epoch"], output["tokens"]), (2, session.output[1:]), "epoch and tokens from index 1 of epoch 2")
    (await session.assign()).succeeded()
    await session.advance()
    output = (await session.read(2)).message
    expect((output["epoch"], output["tokens"]), (2, session.output[2:]), "epoch and tokens from index 2 of epoch 2")


@check(
    "V-output-many",
    "S6.7-from-index",
    "S6.7-stable-indices",
    title="readers from many indices at once, before and after a round, are all told the same tokens",
)
async def many(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    readers = [v.background(session.read(first, wait_s=None)) for first in (*range(6), *range(6))]
    await session.advance()
    for first, reader in zip((*range(6), *range(6)), readers, strict=True):
        tokens = (await _told(session, reader, first))["tokens"]
        expect(tokens, session.output[first : first + len(tokens)], f"tokens from index {first}")
        ensure(tokens, f"expected a reader from index {first} to be told tokens, came none")


@check(
    "V-output-accounts",
    title="output tells passes, proposed and accepted of the session so far, also after a failover",
    profile="decisions",
    decisions=["D35", "D39"],
)
async def accounts(v: VerifierWorld) -> None:
    session = await v.begun(m_init=4)
    for right, count in ((2, 2), (0, 3), (1, 3)):
        await session.advance(session.half_right(right, count))
    for _ in range(2):
        output = (await session.read()).message
        came = tuple(output.get(key) for key in ("passes", "proposed", "accepted"))
        expect(came, (3, 8, 3), "passes, proposed and accepted")
        if session.epoch == 1:
            (await session.fail_over()).succeeded()


# -- waiting -----------------------------------------------------------------------------------------------------------


@check(
    "V-output-long-poll",
    "S6.7-long-poll",
    title="a reader at the end of the output waits, and is told the tokens as soon as they are committed",
)
async def long_poll(v: VerifierWorld) -> None:
    session, output = await _woken(v)
    expect((output["from"], output["tokens"]), (3, session.output[3:]), "from and tokens told to the reader")


@check(
    "V-output-long-poll-ahead",
    "S6.7-long-poll",
    "S6.7-from-index",
    title="a reader from an index that is not there yet waits, over rounds that do not reach it",
)
async def ahead(v: VerifierWorld) -> None:
    session = await v.begun()
    reader = v.background(session.read(4, wait_s=None))
    await session.advance(session.wrong_tokens())
    await session.advance(session.wrong_tokens(1))
    (done, _) = await asyncio.wait({reader}, timeout=0.1)
    if reader in done:  # only the end of the wait, on a very busy machine, may have answered it
        expect((await reader).message["tokens"], [], "tokens told to a reader from an index that is not there yet")
        reader = v.background(session.read(4, wait_s=None))
    await session.advance(session.next_tokens(2))
    output = await _told(session, reader, 4)
    expect((output["from"], output["tokens"]), (4, session.output[4:]), "from and tokens told to the reader")


@check(
    "V-output-wait-over",
    "S6.7-long-poll",
    title="a wait in which nothing is committed ends in an answer without tokens that is not final",
)
async def wait_over(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    output = (await session.read(len(session.output), wait_s=None)).message
    expect((output["tokens"], output["final"]), ([], False), "tokens and final")
    expect(output["from"], len(session.output), "from")


@check(
    "V-output-prefer",
    title="`Prefer: wait=0` is answered at once, with or without tokens",
    profile="decisions",
    decisions=["D8"],
)
async def prefer(v: VerifierWorld) -> None:
    session = await v.begun()
    output = await _at_once(v, session, 0, wait_s=0)
    expect((output["tokens"], output["final"]), ([], False), "tokens and final before the first round")
    await session.advance()
    expect((await _at_once(v, session, 0, wait_s=0))["tokens"], session.output, "tokens after it")


@check(
    "V-output-recorded-only",
    "S6.7-only-recorded",
    title="a waiting reader is not answered by a round whose record is not in the log yet",
)
async def recorded_only(v: VerifierWorld) -> None:
    session = await v.begun()
    hold = v.hold("PATCH", session.log_ref)
    round_ = v.background(session.advance())
    await hold.reached()
    reader = v.background(session.read(0, wait_s=None))
    (done, _) = await asyncio.wait({reader}, timeout=0.2)
    for early in done:
        expect(early.result().message["tokens"], [], "tokens before their record is in the log")
    hold.release()
    await round_
    expect(await session.tokens(), session.output, "the output after the round")
    if not done and not (await reader).message["tokens"]:  # its wait may have ended meanwhile
        reader = v.background(session.read(0, wait_s=None))
    if not done:
        expect((await reader).message["tokens"], session.output, "tokens told to the reader that waited")


# -- the end -----------------------------------------------------------------------------------------------------------


@check(
    "V-output-final",
    "S6.7-final",
    "S6.5.2-finish",
    title="after the end output is final with finish 4, from every index; before it, it is not",
)
async def final(v: VerifierWorld) -> None:
    session = await v.begun(max_new=5)
    while len(session.output) < 5:
        expect((await session.read()).message["final"], False, "final while the session lives")
        await session.advance()
    await session.read_to_the_end()
    for first in range(6):
        output = (await session.read(first, wait_s=None)).message
        came = (output["tokens"], output["final"], output.get("finish"))
        expect(came, (session.output[first:], True, FINISH), f"tokens, final and finish from index {first}")


@check(
    "V-output-failed",
    "S6.7-final",
    "S6.5.2-fail",
    title="after fail output is final with finish 5, and has the tokens of the last round",
)
async def failed(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[FAIL])
    await session.advance()
    await session.advance(session.wrong_tokens())
    await session.read_to_the_end()
    output = (await session.read()).message
    came = (output["tokens"], output["final"], output.get("finish"))
    expect(came, (session.output, True, FAIL), "tokens, final and finish")


@check(
    "V-output-end-told",
    "S6.7-final",
    "S6.7-long-poll",
    title="a waiting reader is told the last tokens and, with them or asking on, the end",
)
async def end_told(v: VerifierWorld) -> None:
    session, output = await _woken(v, max_new=5)
    expect((output["from"], output["tokens"]), (3, session.output[3:]), "from and tokens told to the reader")
    await session.read_to_the_end()
    output = (await session.read(len(session.output), wait_s=None)).message
    expect((output["tokens"], output["final"]), ([], True), "tokens and final after the last token")


@check(
    "V-output-end-wakes",
    title="the end wakes readers from indices that will never be: no tokens, final",
    profile="decisions",
    decisions=["D8"],
)
async def end_wakes(v: VerifierWorld) -> None:
    _, output = await _woken(v, far=True, max_new=5)
    expect((output["from"], output["tokens"], output["final"]), (FAR, [], True), "from, tokens and final")


@check(
    "V-output-beyond-end",
    title="after the end an index beyond the output is answered at once: no tokens, final",
    profile="decisions",
    decisions=["D8"],
)
async def beyond_end(v: VerifierWorld) -> None:
    session = await _ended(v)
    for first in (5, 6, FAR):
        output = await _at_once(v, session, first, wait_s=None)
        came = (output["from"], output["tokens"], output["final"])
        expect(came, (first, [], True), "from, tokens and final")


# -- who may read ------------------------------------------------------------------------------------------------------


def _readable(answer: Answer, who: str, session: VerifierSession) -> None:
    expect(answer.message["tokens"], session.output, f"tokens told to {who}")


@check(
    "V-output-readers",
    title="router, front end and the drafter of the latest assignment may read output; others are 403",
    profile="decisions",
    decisions=["D3", "D9a", "D10"],
)
async def readers(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    for who in ("front-end", "other-front-end", "router", "drafter"):
        _readable(await session.read(who=who), who, session)
    for who in ("other", "verifier", "nobody"):
        (await session.read(who=who)).refused(403)
    (await session.assign(drafter=OTHER)).succeeded()
    _readable(await session.read(who="other"), "the drafter of the latest assignment", session)
    (await session.read(who="drafter")).refused(403)


@check(
    "V-output-unknown",
    title="output of a session that is not there is 404",
    profile="decisions",
    decisions=["D3"],
)
async def unknown(v: VerifierWorld) -> None:
    (await v.session().read()).refused(404)
