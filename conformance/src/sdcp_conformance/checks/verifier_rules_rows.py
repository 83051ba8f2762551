"""What rule 2 must have before it draws (6.3 step 5, 6.4, D25): rows for every position, and no zero at a token."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from sdcp_conformance.net.client import Answer
from sdcp_conformance.net.server import Request, Response
from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.played.cache import answered
from sdcp_conformance.problems import Problem
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.rows import FLAT, GREEDY, Row, sampled, spread
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import MISSING

UNAVAILABLE = "sdcp-q-unavailable"


async def _begun(v: VerifierWorld, **given: Any) -> VerifierSession:
    return await v.begun(**{"rule": 2, "sampling": GREEDY, "m_init": 4, **given})


def _rows(tokens: Sequence[int]) -> list[Row]:
    return [spread(token, 0.5) for token in tokens]


def _octets(rows: Sequence[Sequence[float]]) -> bytes:
    return b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)


async def _refused(session: VerifierSession, tokens: Sequence[int], **given: Any) -> Answer:
    """Propose what must be refused; nothing may be committed, and the same round must be possible afterwards."""
    before = await session.everything()
    answer = await session.propose(tokens, **given)
    answer.problem  # noqa: B018  (fails unless it is a refusal)
    expect(await session.everything(), before, "output and commit log after the refusal")
    await _goes_on(session)
    return answer


async def _goes_on(session: VerifierSession) -> None:
    tokens = session.next_tokens(2)
    verdict = await sampled(session, tokens, _rows(tokens))
    expect(verdict["accepted"], 2, "accepted in the same round with sound rows")


async def _bad(session: VerifierSession, octets: bytes, kind: str | Sequence[int]) -> Problem:
    tokens = session.next_tokens(2)
    answer = await _refused(session, tokens, q_rows=session.world.put_object(octets))
    return answer.refused(kind)


# -- none at all, or not to be had -------------------------------------------------------------------------------------


@check("V-rule2-rows-required", "S6.4-q-rows-carried", title="a proposal without q_rows is refused under rule 2")
async def required(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await _refused(session, session.next_tokens(2), q_rows=MISSING)).rejected()


@check(
    "V-rule2-rows-required-type",
    "S6.4-q-rows-carried",
    title="a proposal without q_rows under rule 2 is 422 sdcp-bad-proposal",
    profile="decisions",
    decisions=["D12"],
)
async def required_type(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await session.propose()).refused("sdcp-bad-proposal")


@check(
    "V-rule2-unavailable",
    "S6.3-q-unavailable",
    "S6.9-problem-q-unavailable",
    title="without the object the round is 409 sdcp-q-unavailable, nothing is committed, and the round can come again",
)
async def unavailable(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await _refused(session, session.next_tokens(2), q_rows=v.town.new_ref("objects"))).refused(UNAVAILABLE)


@check(
    "V-rule2-unavailable-down",
    "S6.3-q-unavailable",
    title="a cache that nobody serves makes rows unavailable: 409 sdcp-q-unavailable",
)
async def down(v: VerifierWorld) -> None:
    session = await _begun(v)
    (await _refused(session, session.next_tokens(2), q_rows=f"{v.town.elsewhere}/objects/q")).refused(UNAVAILABLE)


@check(
    "V-rule2-unavailable-late",
    "S6.3-q-unavailable",
    "S6.3-rows-before-random",
    title="a cache that never answers makes rows unavailable: 409 sdcp-q-unavailable",
)
async def never_answered(v: VerifierWorld) -> None:
    session = await _begun(v)
    ref = session.put_rows(_rows(session.next_tokens(2)))
    for _ in range(8):  # as often as the subject likes to try
        v.hold("GET", ref)
    (await _refused(session, session.next_tokens(2), q_rows=ref)).refused(UNAVAILABLE)


@check(
    "V-rule2-unavailable-then-there",
    "S6.3-q-unavailable",
    title="the very same proposal is verified once its object is there",
)
async def then_there(v: VerifierWorld) -> None:
    session = await _begun(v)
    ref, tokens = v.town.new_ref("objects"), session.next_tokens(2)
    (await session.propose(tokens, q_rows=ref)).refused(UNAVAILABLE)
    v.cache.put(_octets(_rows(tokens)), v.cache.name_of(ref))
    verdict = session.learn(await session.propose(tokens, q_rows=ref))
    expect(verdict["accepted"], 2, "accepted once the rows are there")


@check(
    "V-rule2-unavailable-error",
    "S6.3-q-unavailable",
    title="a cache that answers with an error, and goes on doing so, makes rows unavailable",
)
async def error(v: VerifierWorld) -> None:
    session = await _begun(v)
    ref = session.put_rows(_rows(session.next_tokens(2)))
    v.cache.on("GET", ref, *(answered(500) for _ in range(100)))
    (await _refused(session, session.next_tokens(2), q_rows=ref)).refused(UNAVAILABLE)


@check(
    "V-rule2-nowhere-else",
    title="rows are fetched from the configured caches alone, and no redirect is followed",
    profile="decisions",
    decisions=["D11"],
)
async def nowhere_else(v: VerifierWorld) -> None:
    asked: list[str] = []

    async def elsewhere(request: Request) -> Response:
        asked.append(request.path)
        return Response(200, (("content-type", "application/octet-stream"),), _octets(_rows([1, 2])))

    base, _, _ = await v.serve(elsewhere, ["cache"])
    session = await _begun(v)
    tokens = session.next_tokens(2)
    (await session.propose(tokens, q_rows=f"{base}/objects/q")).refused(UNAVAILABLE)
    ref = session.put_rows(_rows(tokens))
    v.cache.on("GET", ref, *(answered(307, ("location", f"{base}/objects/q"), body=b"there") for _ in range(8)))
    (await session.propose(tokens, q_rows=ref)).refused(UNAVAILABLE)
    expect(asked, [], "what was asked of a server that is no configured cache")


@check(
    "V-rule2-waits-for-rows",
    "S6.3-rows-before-random",
    "S6.3-commit-record",
    title="nothing is committed while rows are on their way, and the verdict follows them",
)
async def waits(v: VerifierWorld) -> None:
    session = await _begun(v)
    tokens = session.next_tokens(2)
    ref = session.put_rows(_rows(tokens))
    hold = v.hold("GET", ref)
    round_ = v.background(session.propose(tokens, q_rows=ref))
    await hold.reached()
    ensure(not round_.done(), "expected no verdict before the rows are there, one came")
    expect((await session.tokens(), session.log.data), ([], b""), "output and commit log before the rows are there")
    hold.release()
    expect(session.learn(await round_)["accepted"], 2, "accepted")


# -- rows that will not do ---------------------------------------------------------------------------------------------


@check(
    "V-rule2-zero",
    "S6.4-zero-q-rejected",
    "S6.3-rows-before-random",
    "S6.9-problem-bad-proposal",
    title="q(x) = 0 at any position is sdcp-bad-proposal, and commits nothing",
)
async def zero(v: VerifierWorld) -> None:
    async def one(position: int) -> None:
        session = await _begun(v)
        tokens = session.next_tokens(3)
        rows = _rows(tokens)
        rows[position] = spread(tokens[position], 0.0)
        answer = await _refused(session, tokens, q_rows=session.put_rows(rows))
        answer.refused("sdcp-bad-proposal")

    await asyncio.gather(*(one(position) for position in range(3)))


@check(
    "V-rule2-zero-behind-rejection",
    "S6.4-zero-q-rejected",
    "S6.3-rows-before-random",
    title="q(x) = 0 is found before anything is drawn, even behind a position that is rejected for certain",
)
async def zero_behind(v: VerifierWorld) -> None:
    session = await _begun(v)
    tokens = session.wrong_tokens(2)
    rows = [spread(tokens[0], 0.5), spread(tokens[1], 0.0)]
    (await _refused(session, tokens, q_rows=session.put_rows(rows))).refused("sdcp-bad-proposal")


@check(
    "V-rule2-zero-negative",
    "S6.4-zero-q-rejected",
    title="a negative zero is zero too",
)
async def negative_zero(v: VerifierWorld) -> None:
    session = await _begun(v)
    tokens = session.next_tokens(1)
    row = spread(tokens[0], -0.0)
    (await _refused(session, tokens, q_rows=session.put_rows([row]))).refused("sdcp-bad-proposal")


@check(
    "V-rule2-rows-missing",
    "S6.3-rows-before-random",
    title="rows for fewer positions than were proposed do not do, even where the first would be rejected",
)
async def too_few(v: VerifierWorld) -> None:
    session = await _begun(v)
    tokens = session.wrong_tokens(3)
    ref = session.put_rows(_rows(tokens)[:2])
    (await _refused(session, tokens, q_rows=ref)).refused((409, 422))


@check(
    "V-rule2-length",
    "S5.2-q-rows-format",
    title="an object of another length than M V 4 octets is sdcp-bad-proposal",
    profile="decisions",
    decisions=["D25"],
)
async def length(v: VerifierWorld) -> None:
    good = _octets(_rows([1, 2]))
    session = await _begun(v)
    for octets in (good[:-1], good[:-4], good[: V * 4], good + bytes(4), good * 2, b""):
        await _bad(session, octets, "sdcp-bad-proposal")


@check(
    "V-rule2-not-finite",
    title="rows with a NaN or an infinity are sdcp-bad-proposal",
    profile="decisions",
    decisions=["D25"],
)
async def not_finite(v: VerifierWorld) -> None:
    session = await _begun(v)
    for value in (float("nan"), float("inf"), float("-inf")):
        tokens = session.next_tokens(2)
        rows = _rows(tokens)
        rows[1][(tokens[1] + 3) % V] = value
        await _bad(session, _octets(rows), "sdcp-bad-proposal")


@check(
    "V-rule2-negative",
    title="rows with a negative value are sdcp-bad-proposal, though they sum to 1",
    profile="decisions",
    decisions=["D25"],
)
async def negative(v: VerifierWorld) -> None:
    session = await _begun(v)
    tokens = session.next_tokens(2)
    rows = _rows(tokens)
    rows[1][(tokens[1] + 3) % V] -= 0.25
    rows[1][(tokens[1] + 4) % V] += 0.25
    await _bad(session, _octets(rows), "sdcp-bad-proposal")


@check(
    "V-rule2-sum",
    title="a row sums to 1 within 1e-4, or is sdcp-bad-proposal",
    profile="decisions",
    decisions=["D25"],
)
async def row_sum(v: VerifierWorld) -> None:
    session = await _begun(v)
    for factor in (0.5, 0.9998, 1.0002, 2.0):
        tokens = session.next_tokens(2)
        rows = [[factor * share for share in row] for row in _rows(tokens)]
        await _bad(session, _octets(rows), "sdcp-bad-proposal")
    for factor in (0.99995, 1.00005):
        tokens = session.next_tokens(2)
        await sampled(session, tokens, [[factor * share for share in row] for row in _rows(tokens)])


@check(
    "V-rule2-not-abandoned",
    title="a round that was drawn is committed as it was drawn, though its drafter has gone",
    profile="decisions",
    decisions=["D27"],
)
async def not_abandoned(v: VerifierWorld) -> None:
    session = await _begun(v, sampling=FLAT, max_new=200)
    tokens = session.wrong_tokens(3)
    ref = session.put_rows([spread(token, 0.3) for token in tokens])
    hold = v.hold("PATCH", session.log_ref)
    lost = v.background(session.propose(tokens, q_rows=ref))
    await hold.reached()
    v.client("drafter").cut()
    await asyncio.gather(lost, return_exceptions=True)
    hold.release()
    verdict = session.learn(await session.propose(tokens, q_rows=ref))
    expect([record["tokens"] for record in session.log.records], [verdict["emitted"]], "tokens in the commit log")
