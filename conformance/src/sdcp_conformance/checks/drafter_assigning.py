"""Assignments at a drafter (4.1, 5.2, 6.1, 6.9): what it takes, what it refuses, what another one changes."""

from __future__ import annotations

from typing import Any

from sdcp_conformance.encoding import encode, encode_loosely
from sdcp_conformance.oracle.bigram import DRAFT, TARGET
from sdcp_conformance.oracle.control import CONTINUE, FINISH, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld
from sdcp_conformance.worlds.session import tokens_object
from sdcp_conformance.worlds.world import MISSING


def begun(session: DrafterSession, count: int = 3) -> None:
    """Let the verifier have committed some tokens, one in each round, before the drafter is assigned."""
    for token in session.next_tokens(count):
        session.commit([token])


# -- taken -------------------------------------------------------------------------------------------------------------


@check(
    "D-assign-taken",
    "S5.1-post-assignments",
    "S6.9-new-drafter-starts",
    title="an assignment is answered 204, and a proposal follows from where it says that the session stands",
)
async def taken(d: DrafterWorld) -> None:
    session = await d.session()
    (await session.assign()).no_content()
    await session.goes_on()


@check(
    "D-assign-unknown-keys",
    "S5.2-unknown-keys",
    title="unknown keys of an assignment, and of the profile that it carries, are ignored",
)
async def unknown_keys(d: DrafterWorld) -> None:
    session = await d.session()
    more: dict[Any, Any] = {"later": {"x": [1, None, 2.5]}, "sampling": {"temperature_milli": 700, "min_p": 3}}
    (await session.assign(**more)).no_content()
    await session.goes_on()


@check(
    "D-assign-contract-members",
    "S4.1-contract",
    "S4.1-drafters-absent",
    "S6.1-drafter-permitted",
    title="a contract with every optional member, this drafter's model among `drafters`, is taken",
)
async def every_member(d: DrafterWorld) -> None:
    session = await d.session(
        drafters=[bytes(32), DRAFT.digest],
        sampling={"temperature_milli": 800, "top_k": 8, "top_p_milli": 900, "seed": 2**64 - 1},
        low_ratio=100,
        self_load=100,
        self_max=5,
        scope=bytes(16),
        fallback=[1, 2, 3, 5],
        stop=[2, 2**32 - 1],
    )
    (await session.assign()).no_content()
    await session.goes_on()


@check(
    "D-assign-encoding",
    "S4.1-contract-digest",
    title="an assignment in any well-formed encoding is taken, its contract digest being that of the deterministic one",
    profile="decisions",
    decisions=["D4"],
)
async def encoding(d: DrafterWorld) -> None:
    session = await d.session(sampling={"temperature_milli": 500, "seed": 1})
    body = encode_loosely(session.assignment_message(session.verifier, d.base))
    (await d.ask("router", "POST", "assignments", body)).no_content()
    await session.goes_on()


@check(
    "D-assign-prompt-object",
    "S5.2-cache-ref",
    "S5.2-assignment",
    title="a prompt given as an object of the cache is fetched",
    profile="decisions",
    decisions=["D20"],
)
async def prompt_object(d: DrafterWorld) -> None:
    session = await d.session(prompt=[7, 1, 9])
    (await session.assign(prompt=d.put_object(tokens_object(session.prompt)))).no_content()
    proposal = await session.proposal()
    expect(proposal.tokens[0], DRAFT.next_tokens(session.prefix, 1)[0], "first token after the prompt")
    proposal.judge()
    await session.finish()


@check(
    "D-assign-committed",
    "S6.9-new-drafter-starts",
    "S5.2-assignment-round",
    "S6.2-own-kv-cache",
    title="a drafter that is given committed_tokens starts after them, in the next round",
    profile="decisions",
    decisions=["D20"],
)
async def committed(d: DrafterWorld) -> None:
    session = await d.session()
    begun(session)
    (await session.assign(committed_tokens=d.put_object(tokens_object(session.output)))).no_content()
    proposal = await session.proposal()
    expect(proposal.tokens[0], DRAFT.next_tokens(session.prefix, 1)[0], "first token after the committed output")
    proposal.judge()
    await session.finish()


@check(
    "D-assign-committed-read",
    "S6.9-new-drafter-starts",
    title="without committed_tokens the drafter gets the committed output from the verifier",
    profile="decisions",
    decisions=["D9a"],
)
async def committed_read(d: DrafterWorld) -> None:
    session = await d.session()
    begun(session)
    (await session.assign()).no_content()
    ensure(session.reads > 0, "expected a GET output for the committed tokens, none came")
    await session.goes_on()


# -- refused -----------------------------------------------------------------------------------------------------------


@check(
    "D-assign-unknown-contract-key",
    "S4.1-unknown-contract-key",
    "S6.9-problem-bad-contract",
    title="a contract with a key that is not defined is refused with sdcp-bad-contract",
)
async def unknown_contract_key(d: DrafterWorld) -> None:
    session = await d.session()
    for key, value in (("extra", 1), ("M_max", 4), ("seed", 1), (7, 1)):
        unknown: dict[Any, Any] = {**session.contract, key: value}
        (await session.assign(contract=unknown)).refused("sdcp-bad-contract")
    await session.quiet("under a contract that was refused")


@check(
    "D-assign-unknown-profile-key",
    "S4.1-unknown-contract-key",
    title="a contract whose sampling has a key that is not defined is refused with sdcp-bad-contract",
    profile="decisions",
    decisions=["D6"],
)
async def unknown_profile_key(d: DrafterWorld) -> None:
    session = await d.session(sampling={"temperature_milli": 1, "min_p": 1})
    (await session.assign()).refused("sdcp-bad-contract")


BAD_CONTRACTS: dict[str, dict[str, Any]] = {
    "m_max 65": {"m_max": 65},
    "low_rounds 0": {"low_rounds": 0},
    "low_ratio 101": {"low_ratio": 101},
    "self_load 101": {"self_load": 101},
    "no fallback entry": {"fallback": []},
    "finish in fallback": {"fallback": [FINISH]},
    "continue in fallback": {"fallback": [CONTINUE]},
    "an unknown action in fallback": {"fallback": [SWITCH, 6]},
    "a target of 31 octets": {"target": TARGET.digest[:31]},
    "drafters without one": {"drafters": []},
    "top_p_milli 1001": {"sampling": {"top_p_milli": 1001}},
    "no rule": {"rule": MISSING},
    "no stop": {"stop": MISSING},
    "max_new -1": {"max_new": -1},
}
"""What the CDDL of 4.1 does not permit."""


@check(
    "D-assign-bad-contract",
    "S4.1-contract",
    "S4.1-m-max",
    "S4.1-low-rounds-range",
    "S6.5.2-fallback-entries",
    "S4.1-sampling",
    title="a contract outside its CDDL is refused",
)
async def bad_contract(d: DrafterWorld) -> None:
    for what, members in BAD_CONTRACTS.items():
        session = await d.session(**members)
        (await session.assign()).rejected(f"a contract with {what}")


@check(
    "D-assign-bad-contract-type",
    "S6.9-problem-bad-contract",
    "S6.4-registered-rules",
    title="a contract outside its CDDL, with m_max 0 or a rule not registered, is refused with sdcp-bad-contract",
    profile="decisions",
    decisions=["D6"],
)
async def bad_contract_type(d: DrafterWorld) -> None:
    for members in (*BAD_CONTRACTS.values(), {"m_max": 0}, {"rule": 0}, {"rule": 99}):
        session = await d.session(**members)
        (await session.assign()).refused("sdcp-bad-contract")


@check(
    "D-assign-model",
    "S6.1-drafter-permitted",
    title="a contract that does not permit this drafter's model is 422",
    profile="decisions",
    decisions=["D20"],
)
async def model(d: DrafterWorld) -> None:
    session = await d.session(drafters=[bytes(32), TARGET.digest])
    (await session.assign()).refused(422)
    await session.quiet("under a contract that does not permit the drafter's model")


@check(
    "D-assign-digest",
    "S6.9-new-drafter-starts",
    title="prompt and committed output that do not have the assignment's digest are 422",
    profile="decisions",
    decisions=["D20"],
)
async def other_digest(d: DrafterWorld) -> None:
    session = await d.session()
    (await session.assign(digest=bytes(32))).refused(422)
    (await session.assign(prompt=[*session.prompt, 1])).refused(422)
    begun(session)
    right, wrong = session.output, [*session.output[:-1], (session.output[-1] + 1) % 16]
    for tokens in (wrong, right[:-1], [*right, 1], []):
        (await session.assign(committed_tokens=d.put_object(tokens_object(tokens)))).refused(422)
    await session.quiet("on a prefix that is not the assignment's")


@check(
    "D-assign-object-content",
    title="a prompt object that is no CBOR array of uint is 422, one that is not there 503",
    profile="decisions",
    decisions=["D20"],
)
async def object_content(d: DrafterWorld) -> None:
    session = await d.session()
    for data in (b"", b"\xff", encode({"a": 1}), encode([1, -1]), encode([3, "4"]), encode(session.prompt) + b"\0"):
        (await session.assign(prompt=d.put_object(data))).refused(422)
    (await session.assign(prompt=d.town.new_ref("objects"))).refused(503)
    (await session.assign(prompt=f"{d.town.elsewhere}/objects/prompt")).refused(503)


@check(
    "D-assign-object-elsewhere",
    title="an object outside the configured caches is not asked for",
    profile="decisions",
    decisions=["D11"],
)
async def object_elsewhere(d: DrafterWorld) -> None:
    session = await d.session()
    for ref in (f"{session.verifier}/objects/prompt", "http://127.0.0.1:1/objects/x", "file:///etc/hostname", "", "x"):
        (await session.assign(prompt=ref)).refused(range(400, 600))
    expect(session.strays, [], "requests to a server that is no cache")


@check(
    "D-assign-other-drafter",
    "S5.2-assignment",
    title="an assignment that names another drafter is refused",
    profile="decisions",
    decisions=["D9"],
)
async def other_drafter(d: DrafterWorld) -> None:
    session = await d.session()
    for drafter in ("https://other.test/d", f"{d.base}/x", d.base.replace("https", "http"), "nothing"):
        message = session.assignment_message(session.verifier, drafter)
        (await d.ask("router", "POST", "assignments", message)).rejected(f"an assignment for {drafter}")
    await session.quiet("in the name of another drafter")


@check(
    "D-assign-drafter-spelled",
    "S5.2-assignment",
    title="an assignment that spells this drafter's base URI otherwise is taken",
    profile="decisions",
    decisions=["D9"],
)
async def spelled(d: DrafterWorld) -> None:
    for drafter in (d.base.replace("https", "HTTPS"), d.base.replace("/sdcp", "/%73dcp")):
        session = await d.session()
        message = session.assignment_message(session.verifier, drafter)
        (await d.ask("router", "POST", "assignments", message)).no_content()
        (await session.proposal(check=False)).refuse("sdcp-session-closed")
