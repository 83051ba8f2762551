"""A proposal's way through the steps of 6.3: who, under which epoch, on which prefix, how long, in what order."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any

from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.oracle.control import FINISH
from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import DRAFTER, MISSING, OTHER, changed


async def _refused(session: VerifierSession, kind: str, cases: Mapping[str, dict[str, Any]]) -> None:
    """Each changed proposal is refused so, and leaves output and log as they are; a right one then goes on."""
    before = await session.everything()
    for name, changes in cases.items():
        answer = await session.propose(**changes)
        answer.refused(kind)
        expect(await session.everything(), before, f"output and commit log after a proposal with {name}")
    await session.advance()


# -- step 1: authorization ---------------------------------------------------------------------------------------------


@check(
    "V-proposal-unassigned",
    "S6.3-authorization",
    "S6.1-latest-assignment-only",
    title="before any assignment nobody may propose",
)
async def unassigned(v: VerifierWorld) -> None:
    session = await v.opened()
    for who, drafter in (("drafter", DRAFTER), ("other", OTHER)):
        (await session.propose(who=who, drafter=drafter)).refused("sdcp-not-assigned")
    expect(session.log.records, [], "the commit log")
    (await session.assign()).succeeded()
    await session.advance()


@check(
    "V-proposal-strangers",
    "S6.3-authorization",
    "S6.9-problem-not-assigned",
    title="whoever is not the assigned drafter is refused with sdcp-not-assigned, whatever the proposal says",
)
async def strangers(v: VerifierWorld) -> None:
    session = await v.begun()
    before = await session.everything()
    for who in ("other", "router", "front-end", "verifier"):
        for drafter in (DRAFTER, OTHER):
            (await session.propose(who=who, drafter=drafter)).refused("sdcp-not-assigned")
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance()


@check(
    "V-proposal-names-itself",
    "S6.3-authorization",
    title="the `drafter` of a proposal is its client, or it is refused with sdcp-not-assigned",
    profile="decisions",
    decisions=["D9"],
)
async def names_itself(v: VerifierWorld) -> None:
    session = await v.begun()
    for drafter in (OTHER, v.base, "", f"{DRAFTER}/x"):
        (await session.propose(drafter=drafter)).refused("sdcp-not-assigned")
    await session.advance()


@check(
    "V-proposal-same-uri",
    title="base URIs are compared after normalization: case, default port, escapes, dots",
    profile="decisions",
    decisions=["D9"],
)
async def same_uri(v: VerifierWorld) -> None:
    for drafter in ("HTTPS://Drafter.TEST:443/d", "https://drafter.test/%64", "https://drafter.test/x/../d"):
        session = await v.opened()
        (await session.assign(drafter=drafter)).succeeded()
        await session.advance()
    for drafter in ("https://drafter.test/D", "http://drafter.test/d", "https://drafter.test:444/d"):
        session = await v.opened()
        (await session.assign(drafter=drafter)).succeeded()
        (await session.propose(drafter=drafter)).refused("sdcp-not-assigned")


@check(
    "V-proposal-no-role",
    "S6.3-authorization",
    title="a certificate with the drafter's base URI but no role, or its host only, is not the drafter",
    profile="decisions",
    decisions=["D3", "D9", "D10"],
)
async def no_role(v: VerifierWorld) -> None:
    session = await v.begun()
    for who in ("nobody", "host"):
        (await session.propose(who=who)).refused("sdcp-not-assigned")
    await session.advance()


@check(
    "V-proposal-other-session",
    "S6.3-authorization",
    title="the drafter of one session may not propose for another one's",
)
async def other_session(v: VerifierWorld) -> None:
    mine, others = await v.begun(), await v.opened()
    (await others.assign(drafter=OTHER)).succeeded()
    (await others.propose()).refused("sdcp-not-assigned")
    (await mine.propose(who="other", drafter=OTHER)).refused("sdcp-not-assigned")
    await mine.advance()
    await others.advance(who="other", drafter=OTHER)


@check(
    "V-proposal-unknown-session",
    "S5.1-post-proposals",
    title="a proposal for a session that was never opened is refused",
)
async def unknown_session(v: VerifierWorld) -> None:
    (await v.session().propose()).rejected("a session that nobody opened")


# -- step 2: fencing ---------------------------------------------------------------------------------------------------


@check(
    "V-proposal-epoch",
    "S6.3-fencing",
    "S6.9-older-epoch-rejected",
    "S6.9-problem-stale-epoch",
    title="a proposal of another epoch, lower or higher, is refused with sdcp-stale-epoch",
)
async def epoch(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    cases = {f"epoch {value}": {"epoch": value} for value in (0, 2, 2**32 + 1)}
    await _refused(session, "sdcp-stale-epoch", cases)


# -- step 4: base and round --------------------------------------------------------------------------------------------


@check(
    "V-proposal-base",
    "S6.3-base-check",
    "S4.2-other-prefix-detected",
    "S6.9-problem-stale-base",
    title="a base that is not the committed length, or a digest that is not d[base], is sdcp-stale-base",
)
async def base(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    n, d = len(session.output), session.digest
    cases: dict[str, dict[str, Any]] = {
        "a shorter base and the digest of d[n]": {"base": n - 1},
        "a longer base and the digest of d[n]": {"base": n + 1},
        "base 0 and the digest of d[n]": {"base": 0},
        "a shorter base and its own digest": {"base": n - 1, "base_digest": session.digest_at(n - 1)},
        "the prompt alone": {"base": 0, "base_digest": session.digest_at(0)},
        "base n and the digest of a shorter one": {"base_digest": session.digest_at(n - 1)},
        "base n and another digest": {"base_digest": bytes(32)},
        "base n and a digest of one bit less": {"base_digest": bytes([d[0] ^ 1]) + d[1:]},
        "base n and a digest that ends otherwise": {"base_digest": d[:-1] + bytes([d[-1] ^ 1])},
    }
    await _refused(session, "sdcp-stale-base", cases)


@check(
    "V-proposal-base-of-forked",
    "S4.2-other-prefix-detected",
    "S4.2-chain-step",
    title="a proposal on other tokens of the same number is sdcp-stale-base",
)
async def forked(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    fork = v.session(**session.contract)
    fork.commit([*session.output[:-1], (session.output[-1] + 1) % V])
    (await session.propose(base_digest=fork.digest)).refused("sdcp-stale-base")
    await session.advance()


@check(
    "V-proposal-base-state",
    "S6.3-base-check",
    title="sdcp-stale-base has the current session-state as a member, octets in base64url",
    profile="decisions",
    decisions=["D2"],
)
async def base_state(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    for changes in ({"base": 0}, {"round": 7}, {"base_digest": bytes(32)}):
        state = (await session.propose(**changes)).refused("sdcp-stale-base").members.get("session-state")
        expect(_octets(state), {**session.state(), "state": 0}, "session-state of the problem")


def _octets(state: Any) -> Any:
    """A session-state of a problem as the message would have it."""
    if not isinstance(state, dict):
        return state
    texts = {key: urlsafe_b64decode(value + "==") for key, value in state.items() if isinstance(value, str)}
    return {**state, **texts}


@check(
    "V-proposal-round",
    "S6.3-round-check",
    title="a round that is not the last one plus one is refused with 409 sdcp-stale-base",
)
async def round_number(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    await session.advance()
    cases = {f"round {value}": {"round": value} for value in (0, 4, 5, 2**32 + 3)}
    await _refused(session, "sdcp-stale-base", cases)


# -- what is proposed --------------------------------------------------------------------------------------------------


@check(
    "V-proposal-limit",
    "S6.2-m-range",
    "S6.2-m-cap-source",
    "S6.9-problem-limit",
    title="before the first verdict m_init tokens are verified, and one more is sdcp-limit",
)
async def first_limit(v: VerifierWorld) -> None:
    for m_init in (1, 2, 4):
        session = await v.begun(m_init=m_init)
        before = await session.everything()
        for m in (m_init + 1, 40):
            (await session.propose(session.next_tokens(m))).refused("sdcp-limit")
        expect(await session.everything(), before, "output and commit log after the refusals")
        await session.advance(session.next_tokens(m_init))


@check(
    "V-proposal-limit-contract",
    "S6.2-m-range",
    "S4.1-m-max",
    title="m_max of the contract bounds M, whatever m_init says",
)
async def contract_limit(v: VerifierWorld) -> None:
    session = await v.begun(m_max=2, m_init=64)
    (await session.propose(session.next_tokens(3))).refused("sdcp-limit")
    await session.advance(session.next_tokens(2))


@check(
    "V-proposal-limit-verdict",
    "S6.2-m-cap-source",
    "S6.5.1-m-cap-range",
    title="after a verdict its m_cap bounds M: that many tokens are verified, one more is sdcp-limit",
)
async def verdict_limit(v: VerifierWorld) -> None:
    session = await v.begun(m_max=8, m_init=2, max_new=200)
    for tokens in (session.next_tokens, session.wrong_tokens, session.next_tokens, session.next_tokens):
        await session.advance(tokens(session.m_cap))
        (await session.propose(session.next_tokens(session.m_cap + 1))).refused("sdcp-limit")
    await session.advance(session.next_tokens(session.m_cap))


@check("V-proposal-empty", "S5.2-proposal", "S6.2-m-range", title="a proposal of no tokens is refused")
async def empty(v: VerifierWorld) -> None:
    session = await v.begun()
    (await session.propose([])).rejected("M = 0")
    await session.advance()


@check(
    "V-proposal-vocabulary",
    title="a proposed token that is not below V is sdcp-bad-proposal",
    profile="decisions",
    decisions=["D5"],
)
async def vocabulary(v: VerifierWorld) -> None:
    session = await v.begun()
    cases = {f"tokens {tokens}": {"tokens": tokens} for tokens in ([V], [1, V], [2**32 - 1], [2**32], [2**64 - 1])}
    await _refused(session, "sdcp-bad-proposal", cases)


@check(
    "V-proposal-members",
    "S5.2-proposal",
    title="a proposal that lacks a member, or has one of another type, is refused and changes nothing",
)
async def members(v: VerifierWorld) -> None:
    session = await v.begun()
    before = await session.everything()
    wrong: dict[str, tuple[Any, ...]] = dict.fromkeys(session.proposal_message([1]), (MISSING, None, 1.5, -1))
    wrong["status"] += tuple({**session.proposal_message([1])["status"], key: -1} for key in ("role", "load", "ttl_ms"))
    wrong["tokens"] += ([-1], ["1"], b"\x01")
    wrong["base_digest"] += (bytes(31), "x" * 32)
    wrong["session"] += (bytes(15), session.id.hex())
    for key, values in wrong.items():
        for value in values:
            message = changed(session.proposal_message(session.next_tokens(2)), {key: value})
            what = f"a proposal {f'with {key} = {value!r:.40}' if value is not MISSING else f'without {key}'}"
            (await v.ask("drafter", "POST", "proposals", message)).rejected(what)
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance()


# -- ended -------------------------------------------------------------------------------------------------------------


@check(
    "V-proposal-closed",
    "S6.9-problem-session-closed",
    "S6.5.2-finish",
    title="a new round for a session that has finished is sdcp-session-closed",
)
async def closed(v: VerifierWorld) -> None:
    session = await v.begun(max_new=3)
    expect((await session.advance())["action"], FINISH, "action of the last verdict")
    before = await session.everything()
    (await session.propose()).refused("sdcp-session-closed")
    expect(await session.everything(), before, "output and commit log after the refusal")


# -- the order of the steps --------------------------------------------------------------------------------------------

Case = Callable[[VerifierSession], dict[str, Any]]
WRONG: dict[str, Case] = {
    "epoch": lambda s: {"epoch": 9},
    "base": lambda s: {"base": 99, "base_digest": bytes(32)},
    "round": lambda s: {"round": 9},
    "length": lambda s: {"tokens": s.next_tokens(40)},
    "tokens": lambda s: {"tokens": [V]},
}


def _faulty(session: VerifierSession, *names: str) -> dict[str, Any]:
    """Changes that make a proposal wrong in each of these ways."""
    changes: dict[str, Any] = {}
    for name in names:
        changes |= WRONG[name](session)
    return changes


@check(
    "V-proposal-order-stranger",
    "S6.3-step-order",
    title="authorization is the first step: a stranger is told 403 whatever else is wrong",
)
async def stranger_first(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    for name in WRONG:
        (await session.propose(who="other", drafter=OTHER, **_faulty(session, name))).refused("sdcp-not-assigned")
    stored: dict[str, Any] = {"round": 1, "base": 0, "base_digest": session.digest_at(0)}
    (await session.propose(who="other", drafter=OTHER, **stored)).refused("sdcp-not-assigned")


@check(
    "V-proposal-order-epoch",
    "S6.3-step-order",
    title="fencing is the second step: another epoch is told so, be the base wrong or the verdict stored",
)
async def epoch_second(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    for name in WRONG:
        (await session.propose(**_faulty(session, name, "epoch"))).refused("sdcp-stale-epoch")
    for value in (0, 2):
        stored: dict[str, Any] = {"round": 1, "base": 0, "base_digest": session.digest_at(0)}
        (await session.propose(epoch=value, **stored)).refused("sdcp-stale-epoch")
    await session.advance()


@check(
    "V-proposal-order-base",
    "S6.3-step-order",
    title="a stale base or round outranks a length over the limit and tokens not below V",
    profile="decisions",
    decisions=["D12"],
)
async def base_before_limit(v: VerifierWorld) -> None:
    session = await v.begun()
    for stale in ("base", "round"):
        for other in ("length", "tokens"):
            (await session.propose(**_faulty(session, stale, other))).refused("sdcp-stale-base")
    await session.advance()


@check(
    "V-proposal-order-limit",
    title="a length over the limit outranks tokens not below V, and the end of the session outranks both",
    profile="decisions",
    decisions=["D12"],
)
async def limit_before_tokens(v: VerifierWorld) -> None:
    session = await v.begun(max_new=3)
    (await session.propose([V] * 40)).refused("sdcp-limit")
    await session.advance()
    for name in ("base", "round", "length", "tokens"):
        (await session.propose(**{"round": 2, **_faulty(session, name)})).refused("sdcp-session-closed")
