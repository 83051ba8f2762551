"""Failover at a verifier (6.9, D19, D20): resume, what it is held against, and how the session goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sdcp_conformance.checks.verifier_open import UNKNOWN
from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.oracle.control import CONTINUE, FAIL, FINISH, REDUCE, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import expect
from sdcp_conformance.played.cache import answered
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.session import tokens_object
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import MISSING, OTHER


def _handed_over(
    v: VerifierWorld, *rounds: Sequence[int], more: dict[str, Any] | None = None, fence: int = 2, **contract: Any
) -> VerifierSession:
    """A session that another verifier has served so far: its log has these rounds, `more` in each, and the fence."""
    session = v.session(**contract)
    for tokens in rounds:
        v.cache.append(session.log_ref, {**session.commit(tokens), **(more or {})})
    if fence:
        session.fence(fence)
    session.epoch = 2
    ref = v.put_object(tokens_object(session.output))
    session.resume = {"round": session.round, "committed": len(session.output), "digest": session.digest}
    session.resume["committed_tokens"] = ref
    return session


async def _goes_on(session: VerifierSession, rounds: int = 2) -> None:
    """A drafter is assigned, rounds follow, and all the output is there."""
    (await session.assign()).succeeded()
    for _ in range(rounds):
        await session.advance()
    expect(await session.tokens(), session.output, "the whole output")


ROUNDS = ([7, 6, 1], [8])
"""Tokens after the kit's prompt, as the target wants them."""


# -- going on ----------------------------------------------------------------------------------------------------------


@check(
    "V-resume-state",
    "S6.9-resume",
    "S5.2-session-open",
    title="session-open with resume is answered with its epoch, round, committed length and digest",
    decisions=["D20"],
)
async def state(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS)
    answer = (await session.open()).message
    for key, value in session.state().items():
        expect(answer.get(key), value, f"{key} of the session-state")


@check(
    "V-resume-goes-on",
    "S6.9-resume",
    "S6.9-reassigned-after-resume",
    "S6.7-stable-indices",
    "S6.8-record-epoch",
    title="a session that another verifier served goes on from there, under the new epoch, and serves all indices",
    decisions=["D20"],
)
async def goes_on(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS)
    (await session.open()).succeeded()
    output = (await session.read()).message
    expect((output["tokens"], output["epoch"]), (session.output, 2), "tokens and epoch of the output")
    await _goes_on(session)
    expect([each["epoch"] for each in session.log.records], [1, 1, 2, 2, 2], "epochs of the records in the log")
    expect([each.get("round") for each in session.log.records], [1, 2, None, 3, 4], "rounds in the log")


@check(
    "V-resume-same-verifier",
    "S6.9-resume",
    "S6.9-older-epoch-rejected",
    "S6.9-older-output-discarded",
    "S6.7-epoch-carried",
    title="the same verifier may resume: proposals of the older epoch are sdcp-stale-epoch, output has the new one",
    decisions=["D20"],
)
async def same_verifier(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    await session.advance()
    (await session.fail_over()).succeeded()
    expect((await session.read()).message["epoch"], 2, "epoch of the output")
    (await session.assign()).succeeded()
    before = await session.everything()
    (await session.propose(epoch=1)).refused("sdcp-stale-epoch")
    expect(await session.everything(), before, "output and commit log after the refusal")
    await _goes_on(session)


@check(
    "V-resume-again",
    "S6.9-resume",
    "S6.8-record-epoch",
    title="failover after failover: each epoch goes on where the last one ended",
    decisions=["D20"],
)
async def again(v: VerifierWorld) -> None:
    session = await v.begun()
    for _ in range(3):
        await session.advance()
        (await session.fail_over()).succeeded()
        (await session.assign()).succeeded()
    await _goes_on(session)
    expect([each["epoch"] for each in session.log.records], [1, 2, 2, 3, 3, 4, 4, 4], "epochs of the records")


@check(
    "V-resume-unknown-keys",
    "S5.2-unknown-keys",
    title="unknown keys in `resume` and in records of the log are ignored",
    decisions=["D20"],
)
async def unknown_keys(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS, more={"x-note": {"deep": [1, b"\x00"]}})
    (await session.open(resume={**(session.resume or {}), **UNKNOWN})).succeeded()
    await _goes_on(session)


@check(
    "V-resume-nothing-committed",
    "S6.9-resume",
    title="a session of which nothing is committed is resumed at round 0",
    profile="decisions",
    decisions=["D19"],
)
async def nothing_committed(v: VerifierWorld) -> None:
    session = _handed_over(v)
    expect((await session.open()).message["digest"], session.digest_at(0), "digest of the session-state")
    await _goes_on(session)


@check(
    "V-resume-crash",
    "S6.9-resume",
    "S6.3-append-before-release",
    "S6.7-stable-indices",
    title="what was in the log when a verifier was killed is where the next one goes on",
    decisions=["D20"],
    own=True,
)
async def crash(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    v.subject.kill()
    await v.subject.wait()
    second = await v.town.subject()
    try:
        v.base = second.base
        (await session.fail_over()).succeeded()
        await _goes_on(session)
    finally:
        await second.stop()


# -- what it is held against -------------------------------------------------------------------------------------------


async def _conflicts(session: VerifierSession, cases: dict[str, dict[str, Any]], status: int = 409) -> None:
    """Each change of session-open is refused so; the right one opens the session after all."""
    for name, changes in cases.items():
        resume = {**(session.resume or {}), **changes.pop("resume", {})}
        answer = await session.open(**{"resume": resume, **changes})
        answer.refused(status)
        (await session.read()).refused(404)
        expect("round" in session.log.records[-1], False, f"a commit record at the end of the log, with {name}")
    (await session.open()).succeeded()
    await _goes_on(session, 1)


@check(
    "V-resume-contradicted",
    "S6.9-resume",
    title="a resume whose round, length, digest or tokens are not those of the log is 409",
    profile="decisions",
    decisions=["D19"],
)
async def contradicted(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS)

    def put(tokens: list[int]) -> str:
        return v.put_object(tokens_object(tokens))

    shorter = {"round": 1, "committed": 3, "digest": session.digest_at(3), "committed_tokens": put([7, 6, 1])}
    longer = v.session(**session.contract)
    longer.commit([*session.output, 11])
    beyond = {"round": 3, "committed": 5, "digest": longer.digest, "committed_tokens": put(longer.output)}
    cases: dict[str, dict[str, Any]] = {
        "a round ahead": {"resume": {"round": 3}},
        "a round behind": {"resume": {"round": 1}},
        "one token less": {"resume": {"committed": 3}},
        "another digest": {"resume": {"digest": bytes(32)}},
        "the last round left out": {"resume": shorter},
        "a round too many": {"resume": beyond},
        "other tokens": {"resume": {"committed_tokens": put([7, 6, 1, 9])}},
        "fewer tokens": {"resume": {"committed_tokens": put([7, 6, 1])}},
        "another prompt": {"prompt": [3, 5]},
        "another contract": {"contract": {**session.contract, "max_new": 61}},
    }
    await _conflicts(session, cases)


@check(
    "V-resume-fence",
    "S6.9-fence-first",
    title="a session is not resumed unless the last fence in its log is that of the epoch: 409",
    profile="decisions",
    decisions=["D19"],
)
async def needs_fence(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS, fence=0)
    (await session.open()).refused(409)
    session.fence(2)
    (await session.open(epoch=3)).refused(409)
    (await session.open(resume=MISSING)).refused(409)
    (await session.read()).refused(404)
    (await session.open()).succeeded()
    late = _handed_over(v, *ROUNDS, fence=3)
    (await late.open()).refused("sdcp-stale-epoch")
    (await late.read()).refused(404)


@check(
    "V-resume-lower-epoch",
    "S6.9-older-epoch-rejected",
    title="session-open with a lower epoch than was opened is sdcp-stale-epoch, with resume and without",
    profile="decisions",
    decisions=["D19"],
)
async def lower_epoch(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    for _ in range(2):
        (await session.fail_over()).succeeded()
    for epoch in (0, 1, 2):
        (await session.open(epoch=epoch)).refused("sdcp-stale-epoch")
        (await session.open(epoch=epoch, resume=MISSING)).refused("sdcp-stale-epoch")
    await _goes_on(session)


@check(
    "V-resume-refused-keeps",
    "S6.9-resume",
    title="a refused failover leaves the session as it is; a repeated one answers the current state",
    profile="decisions",
    decisions=["D19"],
)
async def refused_keeps(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    wrong = {"round": 9, "committed": 3, "digest": session.digest, "committed_tokens": v.town.new_ref("objects")}
    (await session.open(epoch=2, resume=wrong)).refused(409)
    await session.advance()
    (await session.fail_over()).succeeded()
    (await session.assign()).succeeded()
    await session.advance()
    again_ = (await session.open()).message
    for key, value in session.state().items():
        expect(again_.get(key), value, f"{key} of the answer to the repeated session-open")


@check(
    "V-resume-tokens-gone",
    title="committed_tokens that is not there now is 503, one that is no array of tokens or elsewhere 422",
    profile="decisions",
    decisions=["D3", "D11", "D20"],
)
async def tokens_gone(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS)
    right = session.resume or {}
    v.cache.on("GET", right["committed_tokens"], answered(500))
    (await session.open()).refused(503)
    for ref, status in (
        (v.town.new_ref("objects"), 503),
        (f"{v.town.elsewhere}/objects/x", 503),
        (v.put_object(b"\xff"), 422),
        ("https://cache.test/objects/x", 422),
    ):
        (await session.open(resume={**right, "committed_tokens": ref})).refused(status)
    (await session.read()).refused(404)
    (await session.open()).succeeded()


@check(
    "V-resume-impossible",
    "S6.3-truncation",
    title="an earlier stop token, more tokens than max_new, or a token not below V is 422",
    profile="decisions",
    decisions=["D5", "D19"],
)
async def impossible(v: VerifierWorld) -> None:
    for tokens, contract in (([7, 6, 1], {"stop": [6]}), ([7, 6, 1], {"max_new": 2}), ([7, V], {})):
        session = _handed_over(v, tokens, **contract)
        (await session.open()).refused(422)
        (await session.read()).refused(404)


@check(
    "V-resume-void",
    "S6.8-fence-refuses-older",
    title="a record of a lower epoch after a fence is void: the session goes on from the last valid one",
    profile="decisions",
    decisions=["D20"],
)
async def void(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS)
    twin = v.session(**session.contract)
    twin.commit([*session.output, 5])
    record = {"epoch": 1, "round": 3, "tokens": [5], "committed": 5, "digest": twin.digest}
    v.cache.append(session.log_ref, record)
    beyond = {"round": 3, "committed": 5, "digest": twin.digest}
    beyond |= {"committed_tokens": v.put_object(tokens_object(twin.output))}
    (await session.open(resume=beyond)).refused(409)
    (await session.open()).succeeded()
    await _goes_on(session)


# -- in which state ----------------------------------------------------------------------------------------------------


@check(
    "V-resume-finished",
    "S6.5.2-finish",
    "S6.7-final",
    title="a last token that is a stop token, or as many as max_new: it opens finished, and the router is told",
    profile="decisions",
    decisions=["D19"],
)
async def finished(v: VerifierWorld) -> None:
    for contract in ({"stop": [1]}, {"max_new": 3}):
        session = _handed_over(v, [7, 6, 1], **contract)
        (await session.open()).succeeded()
        event = (await session.event()).message
        found = (event["kind"], event["epoch"], event["committed"], event["digest"])
        expect(found, (FINISH, 2, 3, session.digest), f"kind, epoch, committed and digest of the event with {contract}")
        output = (await session.read()).message
        expect((output["tokens"], output["final"], output.get("finish")), ([7, 6, 1], True, FINISH), "the output")


@check(
    "V-resume-action",
    title="after a last round with switch or self_decode it waits for a drafter, after fail it opens failed",
    profile="decisions",
    decisions=["D18", "D20"],
)
async def by_action(v: VerifierWorld) -> None:
    for action, number in ((CONTINUE, 0), (REDUCE, 0), (SWITCH, 2), (SELF_DECODE, 2), (FAIL, 5)):
        session = _handed_over(v, *ROUNDS, more={"accepted": 0, "action": action, "m_cap": 2, "low": 0, "load": 0})
        expect((await session.open()).message.get("state"), number, f"state after a last round with action {action}")
        if action == FAIL:
            output = (await session.read()).message
            expect((output["final"], output.get("finish")), (True, FAIL), "final and finish of the output")
        else:
            await _goes_on(session, 1)


@check(
    "V-resume-counters",
    "S6.5.2-counters",
    "S6.5.2-j-persists",
    title="c, g and j go on where the log left them",
    profile="decisions",
    decisions=["D20"],
)
async def counters(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=2, fallback=[REDUCE, SWITCH])
    for _ in range(3):
        await session.advance(session.wrong_tokens(1))
    (await session.fail_over()).succeeded()
    (await session.assign()).succeeded()
    verdict = await session.advance(session.wrong_tokens(1))
    expect((verdict["action"], verdict["low"]), (SWITCH, 0), "action and low of the fourth low round")


@check(
    "V-resume-counters-absent",
    "S6.5.2-counters",
    title="a log whose records do not tell the counters: they start at zero",
    profile="decisions",
    decisions=["D20"],
)
async def counters_absent(v: VerifierWorld) -> None:
    session = _handed_over(v, *ROUNDS, low_rounds=2)
    (await session.open()).succeeded()
    (await session.assign()).succeeded()
    expect((await session.advance(session.wrong_tokens()))["low"], 1, "low of the first low round")
    expect((await session.advance(session.wrong_tokens()))["action"], SWITCH, "action of the second")


@check(
    "V-resume-verdicts",
    title="verdicts of earlier epochs are not given again: the drafter goes on from its assignment",
    profile="decisions",
    decisions=["D20"],
)
async def verdicts(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    (await session.fail_over()).succeeded()
    (await session.assign(drafter=OTHER)).succeeded()
    (await session.propose()).refused("sdcp-not-assigned")
    stored: dict[str, Any] = {"round": 1, "base": 0, "base_digest": session.digest_at(0)}
    (await session.propose(session.output[:2], "other", OTHER, **stored)).refused("sdcp-stale-base")
    await session.advance(who="other", drafter=OTHER)
