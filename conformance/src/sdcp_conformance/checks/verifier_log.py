"""The commit log (6.3 step 8, 6.8, D20, D27, D30): what is in it, lost answers, other writers, fences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sdcp_conformance.net.server import NoAnswer, Request, Response
from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.oracle.control import REDUCE
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.played.cache import Fault, Proceed, answered, lost_answer, problem_type
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import OTHER


def _meanwhile(v: VerifierWorld, session: VerifierSession, *records: dict[str, Any], answer: Response | None) -> Fault:
    """Instead of the append others append; then `answer`, or None: the answer is lost."""

    async def fault(_: Request, proceed: Proceed) -> Response:
        for record in records:
            v.cache.append(session.log_ref, record)
        if answer is None:
            raise NoAnswer
        return answer

    return fault


# -- what is in it -----------------------------------------------------------------------------------------------------


@check(
    "V-log-record",
    "S6.3-commit-record",
    "S6.8-record-epoch",
    "S6.8-commit-record-follows",
    "S6.3-commit-updates",
    "S4.2-verifier-keeps-digest",
    title="each round is one record with its epoch, round, emitted tokens, n and d[n]",
    decisions=["D20"],
)
async def record(v: VerifierWorld) -> None:
    session = await v.begun()
    expected = _records(session)
    for tokens in (session.next_tokens, session.wrong_tokens, lambda m: session.half_right(1, m)):
        await session.advance(tokens(2))
        for key, value in next(expected).items():
            expect(session.log.records[-1].get(key), value, f"{key} of the record of round {session.round}")
        expect(len(session.log.records), session.round, "number of records")


def _records(session: VerifierSession) -> Iterator[dict[str, Any]]:
    """The records of rounds that the session has learnt, each when it is asked for."""
    before = 0
    while True:
        facts = {"epoch": session.epoch, "round": session.round, "tokens": session.output[before:]}
        before = len(session.output)
        yield {**facts, "committed": before, "digest": session.digest}


@check(
    "V-log-record-truncated",
    "S6.3-truncation",
    "S6.3-commit-record",
    title="a record has the tokens that are left after truncation, at a stop token and at max_new",
    decisions=["D20"],
)
async def truncated(v: VerifierWorld) -> None:
    first = v.session().next_tokens(3)
    for contract in ({"stop": [first[1]]}, {"max_new": 2}):
        session = await v.begun(**contract)
        await session.advance(first)
        last = session.log.records[-1]
        expect((last["tokens"], last["committed"]), (first[:2], 2), f"tokens and n of the record with {contract}")
        expect(last["digest"], session.digest, "digest of the record")


@check(
    "V-log-record-more",
    title="a record also has proposed, accepted, action, m_cap, low, load, g and j, as of the verdict",
    profile="decisions",
    decisions=["D20", "D39"],
)
async def record_more(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1, fallback=[REDUCE] * 3)
    for tokens, counters in ((session.wrong_tokens, (0, 1)), (session.next_tokens, (1, 0))):
        proposed = tokens(1)
        verdict = await session.advance(proposed)
        last = session.log.records[-1]
        for key in ("accepted", "action", "m_cap", "low", "load"):
            expect(last.get(key), verdict[key], f"{key} of the record")
        expect(last.get("proposed"), len(proposed), "proposed of the record")
        expect((last.get("g"), last.get("j")), counters, "g and j of the record")


@check(
    "V-log-refusals",
    "S6.3-commit-record",
    "S1.3-output-unaffected",
    title="refused proposals, assignments and policies leave no record",
)
async def refusals(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    before = session.log.data
    for changes in ({"epoch": 2}, {"base": 0}, {"round": 9}, {"base_digest": bytes(32)}):
        (await session.propose(None, **changes)).rejected("a proposal that is wrong")
    (await session.propose(who="other", drafter=OTHER)).rejected("another drafter")
    (await session.propose(session.next_tokens(9))).rejected("too many tokens")
    (await v.ask("drafter", "POST", "proposals", b"\xff")).rejected("no CBOR")
    expect(session.log.data, before, "the commit log")
    await session.advance()


# -- answers that do not come ------------------------------------------------------------------------------------------


@check(
    "V-log-lost-answer",
    "S6.3-append-before-release",
    "S6.8-conditional-append",
    "S6.9-lost-verdict-retried",
    title="when the answer to an append is lost, the round is in the log once, and its verdict is that record's",
)
async def lost(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    v.cache.on("PATCH", session.log_ref, lost_answer())
    tokens = session.next_tokens(2)
    answer = await session.propose(tokens)
    for _ in range(3):  # a verifier may want to be asked again
        answer = answer if answer.status < 500 else await session.propose(tokens)
    session.learn(answer, 2, session.next_tokens(3))
    expect([record["round"] for record in session.log.records], [1, 2], "rounds in the commit log")
    await session.advance()
    expect([record["round"] for record in session.log.records], [1, 2, 3], "rounds in the commit log")


@check(
    "V-log-unlisted-status",
    "S5.1-unlisted-status",
    "S6.3-append-before-release",
    title="statuses of the cache that the draft does not list count by class: 2xx is done, 5xx is not",
)
async def unlisted(v: VerifierWorld) -> None:
    session = await v.begun()
    for status in (299, 599):
        v.cache.on("PATCH", session.log_ref, _answered_by_class(status))
        tokens = session.next_tokens(2)
        answer = await session.propose(tokens)
        for _ in range(3):
            answer = answer if answer.status < 500 else await session.propose(tokens)
        session.learn(answer, 2, session.next_tokens(3))
        rounds = [record["round"] for record in session.log.records]
        expect(rounds, list(range(1, session.round + 1)), f"rounds in the commit log after an answer with {status}")


def _answered_by_class(status: int) -> Fault:
    """A 2xx when the append is done, with its ETag; any other status when it is not."""

    async def fault(_: Request, proceed: Proceed) -> Response:
        return Response(status, (await proceed()).headers) if status < 300 else Response(status)

    return fault


@check(
    "V-log-unanswered",
    title="an append that is lost, fails or is not answered is repeated until it is done, and the verdict comes then",
    profile="decisions",
    decisions=["D27"],
)
async def unanswered(v: VerifierWorld) -> None:
    session = await v.begun()
    for faults in ([lost_answer()], [answered(503)], [answered(500), answered(503), lost_answer()]):
        v.cache.on("PATCH", session.log_ref, *faults)
        await session.advance()
    v.cache.on("PATCH", session.log_ref, lost_answer())
    v.cache.on("GET", session.log_ref, answered(503))
    await session.advance()
    expect([record["round"] for record in session.log.records], [1, 2, 3, 4], "rounds in the commit log")
    appended = [done for done in v.cache.journal if done.name == v.cache.name_of(session.log_ref) and done.status < 300]
    appended = [done for done in appended if done.method == "PATCH"]
    expect(len(appended), 4, "appends that the log took")


@check(
    "V-log-moved-by-void",
    "S6.8-conditional-append",
    title="a log that has moved only by a void record of an older epoch is read, and the round appended after it",
    profile="decisions",
    decisions=["D20"],
)
async def moved_by_void(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    (await session.fail_over()).succeeded()
    (await session.assign()).succeeded()
    void = {"epoch": 1, "round": 2, "tokens": [0], "committed": len(session.output) + 1, "digest": bytes(32)}
    v.cache.append(session.log_ref, void)
    await session.advance()
    v.cache.append(session.log_ref, void)
    await session.advance()
    expect([each["epoch"] for each in session.log.records], [1, 2, 1, 2, 1, 2], "epochs of the records in the log")


# -- others write ------------------------------------------------------------------------------------------------------


async def _stopped(v: VerifierWorld, session: VerifierSession, released: list[int]) -> None:
    """The session is served no more, and nothing beyond `released` was given out."""
    answer = await session.read()
    shown = answer.message["tokens"] if answer.status < 300 else []
    ensure(shown in ([], released), f"expected no output of the discarded round, came {shown}")
    answer.rejected("the output of a session that is fenced")
    (await session.propose()).rejected("a session that is fenced")
    (await session.assign(drafter=OTHER)).rejected("a session that is fenced")
    (await session.set_policy({})).rejected("a session that is fenced")


@check(
    "V-log-fenced",
    "S6.3-fenced-append",
    "S6.8-fence-refuses-older",
    "S6.9-fence-first",
    title="an append that the fenced log refuses: no verdict, no output, and the session is served no more",
)
async def fenced(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    refused = _meanwhile(v, session, {"epoch": 2}, answer=problem_type("sdcp-stale-epoch"))
    v.cache.on("PATCH", session.log_ref, refused)
    (await session.propose()).rejected("a round whose append was fenced")
    await _stopped(v, session, session.output)
    expect([each["epoch"] for each in session.log.records], [1, 2], "epochs of the records in the log")


@check(
    "V-log-fenced-moved",
    "S6.3-fenced-append",
    "S6.8-conditional-append",
    "S6.9-fence-first",
    title="a fence that the verifier finds since the log has moved ends the session like a refusal",
)
async def fenced_moved(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    session.fence()
    (await session.propose()).rejected("a round on a log that is fenced")
    await _stopped(v, session, session.output)
    expect([each["epoch"] for each in session.log.records], [1, 2], "epochs of the records in the log")


@check(
    "V-log-fenced-lost",
    "S6.3-fenced-append",
    "S6.3-append-before-release",
    title="an append without an answer, and a fence in the log before it: the round is discarded",
)
async def fenced_lost(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    v.cache.on("PATCH", session.log_ref, _meanwhile(v, session, {"epoch": 2}, answer=None))
    (await session.propose()).rejected("a round that is not in the log")
    await _stopped(v, session, session.output)
    expect([each["epoch"] for each in session.log.records], [1, 2], "epochs of the records in the log")


@check(
    "V-log-fenced-says",
    "S6.9-problem-stale-epoch",
    title="once fenced, every request is told 409 sdcp-stale-epoch, those that waited too",
    profile="decisions",
    decisions=["D30"],
)
async def fenced_says(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    round_ = v.hold("PATCH", session.log_ref)
    waiting = [v.background(session.propose()), v.background(session.read(len(session.output), wait_s=None))]
    await round_.reached()
    waiting += [v.background(session.propose()), v.background(session.assign(drafter=OTHER))]
    await session.heard()
    await session.read(who="router")
    session.fence()
    round_.release()
    for each in waiting:
        (await each).refused("sdcp-stale-epoch")
    (await session.read()).refused("sdcp-stale-epoch")
    (await session.read(who="drafter")).refused("sdcp-stale-epoch")
    (await session.propose()).refused("sdcp-stale-epoch")
    (await session.assign()).refused("sdcp-stale-epoch")
    (await session.set_policy({})).refused("sdcp-stale-epoch")
    (await session.open()).refused("sdcp-stale-epoch")


@check(
    "V-log-fenced-after",
    "S6.3-append-before-release",
    "S6.8-fence-refuses-older",
    title="a record that is in the log before the fence counts, though its answer was lost: no other verdict comes",
)
async def fenced_after(v: VerifierWorld) -> None:
    session = await v.begun()

    async def done_then_fenced(_: Request, proceed: Proceed) -> Response:
        await proceed()
        session.fence()
        raise NoAnswer

    v.cache.on("PATCH", session.log_ref, done_then_fenced)
    tokens = session.next_tokens(2)
    answer = await session.propose(tokens)
    if answer.status == 200:
        session.learn(answer, 2, session.next_tokens(3))
    else:
        answer.rejected("a round whose session was fenced")
    expect([each.get("round") for each in session.log.records], [1, None], "rounds in the commit log")
    expect(session.log.records[0]["tokens"], v.session().next_tokens(3), "tokens of the record")


def _foreign(v: VerifierWorld, session: VerifierSession) -> dict[str, Any]:
    """A record of the next round as another life of the verifier would have written it."""
    twin = v.session(**session.contract)
    twin.round, twin.output = session.round, list(session.output)
    return twin.commit([(session.next_tokens(1)[0] + 1) % V])


@check(
    "V-log-foreign-record",
    "S1.3-sole-commit-authority",
    "S6.3-append-before-release",
    "S6.8-conditional-append",
    title="an append without an answer, and another record in the log: what is given out is what the log has",
)
async def foreign(v: VerifierWorld) -> None:
    session = await v.begun()
    v.cache.on("PATCH", session.log_ref, _meanwhile(v, session, _foreign(v, session), answer=None))
    answer = await session.propose()
    shown = await session.read()
    recorded = [record["tokens"] for record in session.log.records]
    if answer.status == 200:
        emitted = answer.message["emitted"]
        ensure(emitted in recorded, f"expected a verdict that is in the log, came {emitted}, the log has {recorded}")
    tokens = shown.message["tokens"] if shown.status < 300 else []
    ensure(tokens in ([], *recorded), f"expected output that is in the log, came {tokens}, the log has {recorded}")


@check(
    "V-log-foreign-stops",
    "S6.8-commit-record-follows",
    title="a record of its epoch that it did not send stops a verifier as a fence would: it appends nothing after it",
    profile="decisions",
    decisions=["D20", "D27"],
)
async def foreign_stops(v: VerifierWorld) -> None:
    lost, moved = await v.begun(), await v.begun()
    v.cache.on("PATCH", lost.log_ref, _meanwhile(v, lost, _foreign(v, lost), answer=None))
    await moved.advance()
    v.cache.append(moved.log_ref, _foreign(v, moved))
    for session, rounds in ((lost, [1]), (moved, [1, 2])):
        (await session.propose()).refused("sdcp-stale-epoch")
        (await session.read()).refused("sdcp-stale-epoch")
        expect([record["round"] for record in session.log.records], rounds, "rounds in the commit log")
