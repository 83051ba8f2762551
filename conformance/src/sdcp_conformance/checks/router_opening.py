"""A router opens sessions: what it sends, to whom, and that it stays the same (4.1, 5.2, 6.1)."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.encoding import encode
from sdcp_conformance.oracle.control import FINISH, SWITCH
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.town import ROUTER_CONTRACT
from sdcp_conformance.worlds.routed import (
    MOMENT_S,
    assigned,
    failed_over,
    object_tokens,
    opened_at,
    prompt_tokens,
    relatives,
)
from sdcp_conformance.worlds.router import RouterWorld


@check("R-open-sessions", "S5.2-session-id", title="each session has an identifier and a commit log of its own")
async def sessions(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    for _ in range(6):
        r.request()
    opened = await asyncio.gather(*(verifier.opened() for _ in range(6)))
    expect(len({each.session for each in opened}), 6, "different session identifiers of six requests")
    expect(len({each.message["commit_log"] for each in opened}), 6, "different commit logs of six requests")


@check(
    "R-open-digests",
    "S4.1-target-digest",
    "S4.1-tokenizer-digest",
    title="the contract names the verifier's target and tokenizer",
)
async def digests(r: RouterWorld) -> None:
    _, opened = await opened_at(r, await r.place.verifier())
    seat, contract = r.place.seat, opened.message["contract"]
    expect(contract["target"], seat.target, "target of the contract")
    expect(contract["tokenizer"], seat.tokenizer, "tokenizer of the contract")


@check(
    "R-open-target",
    "S4.1-target-digest",
    "S6.1-open-epoch-1",
    title="a session is opened at a verifier of its target, whatever others report",
)
async def target(r: RouterWorld) -> None:
    async with relatives(r, tokenizer=r.place.seat.tokenizer) as (ours, others):
        right, other = await ours.place.verifier(load=90, queue=5), await others.place.verifier()
        ours.request()
        await right.opened()
        await other.box("a session-open").none_within(MOMENT_S, "at a verifier of another target model")


@check(
    "R-open-contract-fixed",
    "S4.1-contract-fixed",
    "S4.1-contract-never-modified",
    "S4.1-digest-once",
    title="every message of a session has the same contract, over a switch and a failover too",
)
async def contract_fixed(r: RouterWorld) -> None:
    run = await r.running(sampling={"temperature_milli": 0})
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    later = [each.message for each in await assigned(run.verifier, other)]
    opened = await failed_over(r, run)
    opened.accept()
    later += [opened.message, (await opened.verifier.put()).message]
    found = {encode(each["contract"]) for each in (run.opened.message, run.assignment, *later)}
    expect(len(found), 1, "different contracts in the messages of one session")


@check(
    "R-open-prompt",
    "S5.2-session-open",
    "S5.2-assignment",
    title="verifier and drafter are given the prompt of the request",
)
async def prompt(r: RouterWorld) -> None:
    wanted = [3, 1, 4, 1, 5, 9]
    run = await r.running(prompt=wanted)
    expect(prompt_tokens(r, run.opened.message), wanted, "prompt of the session-open")
    expect(prompt_tokens(r, run.assignment), wanted, "prompt of the assignment")


@check(
    "R-open-long-prompt",
    title="the object of a long prompt is one array of tokens, leased until the session ends",
    profile="decisions",
    decisions=["D20"],
)
async def long_prompt(r: RouterWorld) -> None:
    wanted = [3, 1, 4, 1, 5] * 2000
    run = await r.running(prompt=wanted)
    ref = run.opened.message["prompt"]
    if not isinstance(ref, str):
        raise NotApplicable("a prompt of 10,000 tokens travels in the message")
    expect(object_tokens(r, ref, "prompt"), wanted, "content of the prompt's object")
    ensure(r.cache.leased(ref), "expected a lease on the prompt's object while the session lives, there is none")
    (await run.verifier.send_event(run.session, FINISH)).no_content()
    gone = await r.cache.until(lambda: not r.cache.leased(ref), r.patience_s)
    ensure(gone, "expected the lease on the prompt's object to be released after the session's end")


@check(
    "R-open-contract-request",
    title="rule, max_new, stop tokens and sampling of the contract are the request's",
    profile="decisions",
    decisions=["D33"],
)
async def contract_of_request(r: RouterWorld) -> None:
    wanted: dict[str, Any] = {"rule": 2, "max_new": 17, "stop": [5, 9]}
    wanted["sampling"] = {"temperature_milli": 700, "top_k": 4, "top_p_milli": 900, "seed": 11}
    _, opened = await opened_at(r, await r.place.verifier(), **wanted)
    contract = opened.message["contract"]
    for key, value in wanted.items():
        expect(contract.get(key), value, f"{key} of the contract")


@check(
    "R-open-contract-operator",
    title="the contract has the operator's limits, and begins with the operator's ladder",
    profile="decisions",
    decisions=["D33", "D36"],
)
async def contract_of_operator(r: RouterWorld) -> None:
    _, opened = await opened_at(r, await r.place.verifier())
    contract = opened.message["contract"]
    for key in ("m_max", "low_rounds", "self_load", "self_max"):
        expect(contract.get(key), ROUTER_CONTRACT[key], f"{key} of the contract")
    expect(contract["fallback"][:3], [1, 2, 5], "fallback of the contract")


@check(
    "R-open-late-verifier",
    title="a request waits for the first status of a verifier of its model",
    profile="decisions",
    decisions=["D33"],
)
async def late_verifier(r: RouterWorld) -> None:
    requested = r.request()
    await asyncio.sleep(0)  # the request is on its way first
    verifier = await r.place.verifier()
    opened = await verifier.opened()
    opened.accept()
    expect((await requested.location())["session"], opened.session, "session of the location")
