"""Opening a session (6.1, D19): the answer, its path, repeats and conflicts, how many, and what is passed over."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.oracle.control import FINISH
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import path_id

UNKNOWN: dict[Any, Any] = {"x-note": {"deep": [1, b"\x00", "t", None, True, 1.5]}, 7: [1], -1: "x", b"key": {}}
"""Members that no message has, with keys and values of every kind."""


@check(
    "V-open-path",
    "S5.1-session-path-id",
    "S5.1-post-sessions",
    "S5.1-configured-base-uri",
    "S5.2-session-id",
    title="below the base URI {id} is the base64url of the session, with `-` and `_` and without padding",
)
async def path(v: VerifierWorld) -> None:
    session = v.session()
    session.id = b"\xfb\xff\xbf" + session.id[3:]
    (await session.open()).succeeded()
    (await session.assign()).succeeded()
    await session.advance()
    expect(await session.tokens(), session.output, "the output")


@check(
    "V-open-path-spelling",
    "S5.1-session-path-id",
    title="another spelling of {id} is no session's path: 404",
    profile="decisions",
    decisions=["D3"],
)
async def spelling(v: VerifierWorld) -> None:
    session = v.session()
    session.id = b"\xfb\xff\xbf" + session.id[3:]
    (await session.open()).succeeded()
    right = path_id(session.id)
    unused_bits = right[:-1] + chr(ord(right[-1]) + 1)  # the last character carries four bits of nothing
    for other in (f"{right}==", unused_bits, right.replace("-", "+"), right[:-2], f"{right}A", session.id.hex()):
        (await v.ask("front-end", "GET", f"sessions/{other}/output?from=0")).refused(404)


@check(
    "V-open-unknown-keys",
    "S5.2-unknown-keys",
    title="unknown keys in session-open, assignment, proposal, its status, and policy are ignored",
)
async def unknown_keys(v: VerifierWorld) -> None:
    session = v.session()
    (await v.ask("router", "POST", "sessions", {**session.open_message(), **UNKNOWN})).succeeded()
    assignment = {**session.assignment_message(v.base), **UNKNOWN}
    (await v.ask("router", "PUT", f"{session.path}/drafter", assignment)).succeeded()
    policy = {"session": session.id, "from_round": 9, "sampling": {"top_k": 3}, **UNKNOWN}
    (await v.ask("router", "POST", f"{session.path}/policy", policy)).succeeded()
    proposal = session.proposal_message(session.next_tokens(2))
    proposal = {**proposal, "status": {**proposal["status"], **UNKNOWN}, **UNKNOWN}
    session.learn(await v.ask("drafter", "POST", "proposals", proposal), 2, session.next_tokens(3))


@check(
    "V-open-unknown-profile-key",
    "S5.2-unknown-keys",
    title="an unknown key in the profile of a policy or an assignment, outside the contract, is ignored",
    profile="decisions",
    decisions=["D4", "D6"],
)
async def unknown_profile_key(v: VerifierWorld) -> None:
    session = await v.opened()
    (await session.assign(sampling={"top_k": 3, "min_p": 1})).succeeded()
    (await session.set_policy({"top_k": 3, "min_p": 1})).succeeded()
    await session.advance()


@check(
    "V-open-state", title="session-state says 0 when the session opens", profile="decisions", decisions=["D18", "D19"]
)
async def state_number(v: VerifierWorld) -> None:
    expect((await v.session().open()).message.get("state"), 0, "state of the session-state")


# -- the epoch, repeats and conflicts ----------------------------------------------------------------------------------


@check(
    "V-open-epoch",
    "S6.1-open-epoch-1",
    title="without `resume` only epoch 1 opens a session: 409",
    profile="decisions",
    decisions=["D19"],
)
async def first_epoch(v: VerifierWorld) -> None:
    session = v.session()
    for epoch in (0, 2, 2**64 - 1):
        (await session.open(epoch=epoch)).refused(409)
    (await session.open()).succeeded()


@check(
    "V-open-repeat",
    title="the same session-open again is answered with the current state, and changes nothing",
    profile="decisions",
    decisions=["D19"],
)
async def repeat(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    await session.advance()
    before = await session.everything()
    again = (await session.open()).message
    for key, value in session.state().items():
        expect(again.get(key), value, f"{key} of the answer to the repeated session-open")
    expect(await session.everything(), before, "output and commit log after the repeat")
    await session.advance()


@check(
    "V-open-repeat-meanwhile",
    title="the same session-open many times at once opens one session",
    profile="decisions",
    decisions=["D19"],
)
async def repeats_meanwhile(v: VerifierWorld) -> None:
    session = v.session()
    answers = await asyncio.gather(*(session.open() for _ in range(8)))
    for answer in answers:
        expect(answer.message["digest"], session.digest, "digest of each answer")
    (await session.assign()).succeeded()
    await session.advance()


@check(
    "V-open-contract-fixed",
    "S4.1-contract-fixed",
    "S4.1-contract-never-modified",
    title="a second session-open with another contract does not change the contract of the session",
)
async def contract_fixed(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    stopped = {**session.contract, "stop": session.next_tokens(1)}
    await session.open(contract=stopped)  # refused or not: the draft does not say
    await session.advance()
    ensure(len(session.output) == 6, "expected the first contract's rounds to go on, the output was cut")
    expect(await session.tokens(), session.output, "the output under the first contract")


@check(
    "V-open-conflict",
    "S4.1-contract-fixed",
    title="the same epoch with another contract, prompt or commit log: 409, and the session goes on",
    profile="decisions",
    decisions=["D3", "D19"],
)
async def conflict(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    before = await session.everything()
    (await session.open(contract={**session.contract, "max_new": 61})).refused(409)
    (await session.open(contract={**session.contract, "rule": 2})).refused(409)
    (await session.open(prompt=[3, 5])).refused(409)
    (await session.open(prompt=[*session.prompt, *session.output])).refused(409)
    (await session.open(commit_log=v.town.new_ref("logs"))).refused(409)
    (await session.open(epoch=2)).refused(409)
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance()


@check(
    "V-open-log-used",
    title="a commit log that has commit records needs `resume`: 409",
    profile="decisions",
    decisions=["D19"],
)
async def log_used(v: VerifierWorld) -> None:
    session, other = await v.begun(), v.session()
    await session.advance()
    before = session.log.data
    (await other.open(commit_log=session.log_ref)).refused(409)
    (await other.read()).refused(404)
    expect(session.log.data, before, "the commit log")
    await session.advance()


@check(
    "V-open-log-fenced",
    "S6.8-fence-refuses-older",
    title="a commit log that is fenced above the epoch: 409 sdcp-stale-epoch",
    profile="decisions",
    decisions=["D19", "D20"],
)
async def log_fenced(v: VerifierWorld) -> None:
    session = v.session()
    session.fence(2)
    (await session.open()).refused("sdcp-stale-epoch")
    (await session.read()).refused(404)


# -- ends before it begins, and many -----------------------------------------------------------------------------------


@check(
    "V-open-nothing-to-do",
    "S6.5.2-finish",
    "S6.7-final",
    title="with max_new 0 the session is finished when it opens, and the router is told",
    profile="decisions",
    decisions=["D14", "D17"],
)
async def nothing_to_do(v: VerifierWorld) -> None:
    session = await v.opened(max_new=0)
    expect((await session.event()).message.get("kind"), FINISH, "kind of the event")
    output = (await session.read()).message
    expect((output["tokens"], output["final"], output.get("finish")), ([], True, FINISH), "tokens, final, finish")


@check(
    "V-open-full",
    title="one session more than the limit: 503 with Retry-After, and the others go on",
    profile="decisions",
    decisions=["D3"],
    limits={"sessions": 2},
)
async def full(v: VerifierWorld) -> None:
    held = [await v.begun(max_new=8), await v.begun()]
    answer = await v.session().open()
    if answer.status < 300:
        raise NotApplicable("the subject has no such limit")
    answer.refused(503)
    ensure(answer.headers.get("retry-after", "").isdecimal(), "expected Retry-After in seconds with the 503")
    for session in held:
        await session.advance()
    await _end(held[0])
    (await v.session().open()).succeeded()


async def _end(session: VerifierSession) -> None:
    """Let rounds come until the session is over."""
    while len(session.output) < session.contract["max_new"]:
        await session.advance()
