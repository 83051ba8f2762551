"""Contracts (4.1, D6): what a verifier takes, what it refuses, and the digest over it."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.encoding import encode, encode_loosely
from sdcp_conformance.oracle.bigram import CONTEXT
from sdcp_conformance.oracle.control import FAIL, FINISH, REDUCE, SELF_DECODE, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.session import PROMPT
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import MISSING, changed

AT_ONCE = 8
NO_UINT = (-1, "1", 1.5, None)
FULL: dict[str, Any] = {
    "drafters": [bytes(32), bytes(range(32))],
    "sampling": {"temperature_milli": 0, "top_k": 24, "top_p_milli": 1000, "seed": 2**64 - 1},
    "low_ratio": 100,
    "self_load": 100,
    "self_max": 2**32,
    "scope": bytes(16),
}
"""Every optional member, at the ends of its range."""


async def _all_rejected(v: VerifierWorld, cases: dict[str, dict[str, Any]]) -> None:
    """Each change of the contract is refused; nothing stays behind: the same session opens with a right one."""
    session = v.session()

    async def rejected(name: str, changes: dict[str, Any]) -> None:
        answer = await session.open(contract=changed(session.contract, changes))
        answer.rejected(f"a contract with {name}")

    pending = list(cases.items())
    while pending:
        await asyncio.gather(*(rejected(*case) for case in pending[:AT_ONCE]))
        del pending[:AT_ONCE]
    expect((await session.open()).message.get("digest"), session.digest, "digest once the contract is right")


async def _digest_of(v: VerifierWorld, session: VerifierSession, body: Any = None) -> None:
    """The session opens, and d[0] is that of its contract."""
    message = session.open_message() if body is None else body
    state = (await v.ask("router", "POST", "sessions", message)).message
    expect(state.get("digest"), session.digest, "d[0], which has the contract digest in it")


# -- taken -------------------------------------------------------------------------------------------------------------


@check(
    "V-contract-digest",
    "S4.1-contract-digest",
    "S4.1-contract-digest-formula",
    "S4.2-chain-start",
    "S4.2-uint32-network-order",
    title="d[0] is over the whole contract, every optional member included, and over the prompt",
)
async def digest(v: VerifierWorld) -> None:
    await _digest_of(v, v.session())
    await _digest_of(v, v.session(**FULL))
    await _digest_of(v, v.session(sampling={}))
    for key, value in FULL.items():
        await _digest_of(v, v.session(**{key: value}))
    for prompt in ([15], [0, 0], list(range(16)) * 20):
        await _digest_of(v, v.session(prompt=prompt))


@check(
    "V-contract-numbers",
    "S4.1-contract-digest",
    "S4.1-m-max",
    "S4.1-low-rounds-range",
    "S6.5.2-fallback-entries",
    title="numbers at each length of their encoding, m_max 1 and 64, and every fallback are taken",
)
async def numbers(v: VerifierWorld) -> None:
    for value in (1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1):
        await _digest_of(v, v.session(low_rounds=value, stop=[value]))
    for m_max in (1, 64):
        await _digest_of(v, v.session(m_max=m_max))
    for fallback in ([REDUCE], [SWITCH], [SELF_DECODE], [FAIL], [REDUCE, REDUCE, SWITCH, SELF_DECODE] * 8):
        await _digest_of(v, v.session(fallback=fallback))


@check(
    "V-contract-key-order",
    "S4.1-contract-digest",
    "S4.1-digest-once",
    title="the contract digest does not depend on the order in which members came",
)
async def key_order(v: VerifierWorld) -> None:
    session = v.session(**FULL)
    body = bytearray([0xA0 + len(session.open_message())])
    for key, value in reversed(session.open_message().items()):
        body += encode(key) + (_backwards(value) if key == "contract" else encode(value))
    await _digest_of(v, session, bytes(body))


@check(
    "V-contract-encoding",
    "S4.1-contract-digest",
    title="the contract digest does not depend on lengths of numbers, chunks, or indefinite lengths",
    profile="decisions",
    decisions=["D4"],
)
async def other_encoding(v: VerifierWorld) -> None:
    session = v.session(**FULL)
    await _digest_of(v, session, encode_loosely(session.open_message()))


def _backwards(contract: dict[str, Any]) -> bytes:
    """A contract whose members stand in the opposite of deterministic order."""
    members = sorted((encode(key) + encode(value) for key, value in contract.items()), reverse=True)
    return bytes([0xA0 + len(members)]) + b"".join(members)


# -- refused -----------------------------------------------------------------------------------------------------------


@check(
    "V-contract-unknown-key",
    "S4.1-unknown-contract-key",
    "S6.9-problem-bad-contract",
    title="a contract with a key that is not defined is refused with sdcp-bad-contract",
)
async def unknown_key(v: VerifierWorld) -> None:
    for key, value in (("extra", 1), ("M_max", 4), ("seed", 1), ("draft", None), (7, 1), (b"rule", 1)):
        session = v.session()
        unknown: dict[Any, Any] = {**session.contract, key: value}
        (await session.open(contract=unknown)).refused("sdcp-bad-contract")
        (await session.open()).succeeded()


@check(
    "V-contract-unknown-profile-key",
    "S4.1-unknown-contract-key",
    title="a contract whose sampling has a key that is not defined is refused with sdcp-bad-contract",
    profile="decisions",
    decisions=["D6"],
)
async def unknown_profile_key(v: VerifierWorld) -> None:
    for sampling in ({"min_p": 1}, {"seed": 1, "Top_k": 1}, {1: 1}):
        (await v.session(sampling=sampling).open()).refused("sdcp-bad-contract")


@check(
    "V-contract-unknown-key-assigned",
    "S4.1-unknown-contract-key",
    "S4.1-contract-never-modified",
    title="an assignment whose contract has a key that is not defined is refused with sdcp-bad-contract",
)
async def unknown_key_assigned(v: VerifierWorld) -> None:
    session = await v.begun()
    (await session.assign(contract={**session.contract, "extra": 1})).refused("sdcp-bad-contract")
    await session.advance()


@check(
    "V-contract-members",
    "S4.1-contract",
    "S6.1-contract-validated",
    title="a contract that lacks a member is refused",
)
async def members(v: VerifierWorld) -> None:
    await _all_rejected(v, {f"no {key}": {key: MISSING} for key in v.session().contract})


@check(
    "V-contract-types",
    "S4.1-contract",
    "S4.1-target-digest",
    "S4.1-tokenizer-digest",
    title="a contract with a member of another type or size is refused",
)
async def types(v: VerifierWorld) -> None:
    numbers_ = ("rule", "m_max", "max_new", "low_rounds", "low_ratio", "self_load", "self_max")
    cases: dict[str, dict[str, Any]] = {f"{key} {value!r}": {key: value} for key in numbers_ for value in NO_UINT}
    for key in ("target", "tokenizer"):
        right = v.session().contract[key]
        cases |= {f"{key} {value!r}": {key: value} for value in (right[:31], right + b"\0", right.hex(), None)}
    cases |= {f"stop {value!r}": {"stop": value} for value in (1, [-1], ["1"], [1.5], None)}
    cases |= {f"scope {value!r}": {"scope": value} for value in (bytes(15), bytes(17), "x" * 16, None)}
    cases |= {f"drafters {value!r}": {"drafters": value} for value in ([], [bytes(31)], bytes(32), None)}
    await _all_rejected(v, cases)


@check(
    "V-contract-ranges",
    "S4.1-m-max",
    "S4.1-low-rounds-range",
    "S4.1-low-ratio-default",
    "S4.1-contract",
    title="m_max over 64, low_rounds 0, low_ratio or self_load over 100 are refused",
)
async def ranges(v: VerifierWorld) -> None:
    cases: dict[str, dict[str, Any]] = {f"m_max {value}": {"m_max": value} for value in (65, 256, 2**64 - 1)}
    cases |= {"low_rounds 0": {"low_rounds": 0}, "low_ratio 101": {"low_ratio": 101}}
    await _all_rejected(v, {**cases, "self_load 101": {"self_load": 101}})


@check(
    "V-contract-fallback",
    "S6.5.2-fallback-entries",
    "S4.1-actions",
    title="a fallback list with continue, finish or an unknown action, or with nothing, is refused",
)
async def fallback(v: VerifierWorld) -> None:
    lists: tuple[Any, ...] = ([], [0], [FINISH], [SWITCH, FINISH], [6], [SWITCH, 255], [-1], ["reduce"], SWITCH, None)
    await _all_rejected(v, {f"fallback {value}": {"fallback": value} for value in lists})


@check(
    "V-contract-sampling",
    "S4.1-sampling",
    "S6.1-contract-validated",
    title="a contract whose sampling is out of range or of another type is refused",
)
async def sampling(v: VerifierWorld) -> None:
    profiles: list[Any] = [{"top_p_milli": 1001}, [], 1, None]
    keys = ("temperature_milli", "top_k", "top_p_milli", "seed")
    profiles += [{key: value} for key in keys for value in (-1, "1", 1.5, None)]
    await _all_rejected(v, {f"sampling {profile}": {"sampling": profile} for profile in profiles})


@check(
    "V-contract-tokenizer",
    "S6.1-contract-validated",
    title="a contract for another tokenizer, or with a rule that is not registered, is refused",
    profile="decisions",
    decisions=["D6"],
)
async def not_supported(v: VerifierWorld) -> None:
    for changes in ({"tokenizer": bytes(32)}, {"rule": 0}, {"rule": 3}, {"rule": 2**32}):
        (await v.session(**changes).open()).refused("sdcp-bad-contract")


@check(
    "V-contract-m-max-zero",
    title="m_max 0, with which nothing could be proposed, is refused",
    profile="decisions",
    decisions=["D6"],
)
async def m_max_zero(v: VerifierWorld) -> None:
    (await v.session(m_max=0).open()).refused("sdcp-bad-contract")


@check(
    "V-contract-context",
    title="P + max_new may fill the model's context, and not exceed it",
    profile="decisions",
    decisions=["D6"],
)
async def context(v: VerifierWorld) -> None:
    (await v.session(max_new=CONTEXT - len(PROMPT) + 1).open()).refused("sdcp-bad-contract")
    (await v.session(max_new=2**64 - 1).open()).refused("sdcp-bad-contract")
    (await v.session(max_new=CONTEXT - len(PROMPT)).open()).succeeded()


@check(
    "V-contract-problem",
    "S6.9-problem-bad-contract",
    title="whatever is wrong with a contract, the refusal is 422 sdcp-bad-contract and names the member",
    profile="decisions",
    decisions=["D3", "D6"],
)
async def problem(v: VerifierWorld) -> None:
    wrong: dict[str, Any] = {
        "m_max": 65,
        "low_rounds": 0,
        "low_ratio": 101,
        "self_load": 101,
        "fallback": [0],
        "scope": b"",
        "stop": 1,
    }
    wrong |= {"target": bytes(32), "tokenizer": bytes(31), "rule": -1, "max_new": "1", "drafters": [], "extra": 1}
    for key, value in wrong.items():
        detail = (await v.session(**{key: value}).open()).refused("sdcp-bad-contract").detail
        ensure(key in detail, f"expected the detail of the refusal to name {key}, came {detail!r}")
