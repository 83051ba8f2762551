"""Proposals of a drafter (5.2, 6.2) and their repetition when no verdict comes (6.9)."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.encoding import encode
from sdcp_conformance.net.server import Response
from sdcp_conformance.oracle.control import REDUCE
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.problems import MEDIA_TYPE
from sdcp_conformance.registry import check
from sdcp_conformance.watch import SDCP_CBOR
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld, Proposed


@check(
    "D-propose-certificate",
    "S5.1-mutual-authentication",
    "S6.3-authorization",
    title="a drafter proposes with its own certificate, over HTTP/2 and TLS 1.3",
)
async def certificate(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    peer = proposal.incoming.request.peer
    ensure(d.base in peer.uris, f"expected a certificate with {d.base}, came one with {sorted(peer.uris)}")
    expect((peer.tls_version, peer.alpn), ("TLSv1.3", "h2"), "TLS and ALPN of the drafter's connection")
    proposal.judge()
    await session.finish()


@check(
    "D-propose-status",
    "S5.2-proposal",
    "S5.2-status",
    title="a proposal carries the status of this drafter, whose role is 1",
)
async def status(d: DrafterWorld) -> None:
    session = await d.assigned()
    proposal = await session.proposal()
    said = proposal.message["status"]
    expect(said["role"], 1, "role in the status of a proposal")
    ensure(said["ttl_ms"] > 0, f"expected a status that holds for a while, came ttl_ms {said['ttl_ms']}")
    proposal.judge()
    await session.finish()


@check(
    "D-propose-one-outstanding",
    "S6.2-one-outstanding",
    "S6.2-ahead-sent-when-confirmed",
    title="while no verdict has come there is no second proposal",
)
async def one_outstanding(d: DrafterWorld) -> None:
    session = await d.assigned()
    for _ in range(2):
        proposal = await session.proposal()
        await session.quiet("before the verdict")
        proposal.judge()
    await session.finish()


@check(
    "D-propose-many-sessions",
    "S6.2-one-outstanding",
    title="a session whose verdict takes long holds up no other session",
)
async def many_sessions(d: DrafterWorld) -> None:
    slow = await d.assigned()
    waiting = await slow.proposal()
    others = [await d.assigned() for _ in range(3)]
    for _ in range(3):
        for session in others:
            (await session.proposal()).judge()
    for session in others:
        await session.finish()
    waiting.judge()
    await slow.finish()


@check(
    "D-propose-m-init",
    "S6.2-m-cap-source",
    "S6.2-m-range",
    title="before the first verdict M is at most m_init, and at most m_max where m_init is greater",
)
async def m_init(d: DrafterWorld) -> None:
    for first, m_max in ((1, 8), (2, 8), (9, 2), (2**32, 1)):
        session = await d.assigned(m_init=first, m_max=m_max)
        (await session.proposal()).judge(m_cap=1)
        await session.finish()


@check(
    "D-propose-m-init-zero",
    "S6.2-m-range",
    title="with m_init 0 the drafter proposes one token",
    profile="decisions",
    decisions=["D16"],
)
async def m_init_zero(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=0)
    proposal = await session.proposal(check=False)
    expect(len(proposal.tokens), 1, "M with m_init 0")
    proposal.judge(m_cap=1)
    await session.finish()


@check(
    "D-propose-m-cap",
    "S6.2-m-cap-source",
    "S6.2-m-range",
    title="M is at most m_cap of the last verdict, down to one and up again, whether all or none are accepted",
)
async def m_cap(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=8, m_max=8)
    for limit in (1, 8, 2, 8, 1, 3):
        proposal = await session.proposal()
        proposal.accept(len(proposal.tokens) if limit % 2 else 0, 1, m_cap=limit)
    await session.finish()


@check(
    "D-propose-reduce",
    "S6.5.2-reduce",
    "S6.2-m-cap-source",
    title="after the action reduce the drafter goes on within the lower limit",
)
async def reduce(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=4)
    (await session.proposal()).accept(0, 1, m_cap=2, action=REDUCE)
    (await session.proposal()).accept(0, 1, m_cap=1, action=REDUCE)
    (await session.proposal()).accept(0, 1, m_cap=1, action=REDUCE, low=3)
    await session.finish()


@check(
    "D-propose-m-max",
    "S6.2-m-range",
    "S6.5.1-m-cap-range",
    title="a verdict whose m_cap is greater than m_max raises no proposal above m_max",
)
async def over_m_max(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=2, m_max=2)
    for _ in range(3):
        proposal = await session.proposal()
        proposal.accept(len(proposal.tokens), 1, m_cap=64)
    await session.finish()


@check(
    "D-propose-m-cap-zero",
    "S6.2-m-range",
    title="a verdict whose m_cap is 0 leads to no proposal without tokens, and to none of more than one",
)
async def no_m_cap(d: DrafterWorld) -> None:
    session = await d.assigned()
    (await session.proposal()).judge(m_cap=0)
    proposal = await session.perhaps(check=False)
    if proposal is not None:
        expect(len(proposal.tokens), 1, "M after a verdict with m_cap 0")
        proposal.refuse("sdcp-session-closed")


@check(
    "D-propose-digest-assigned",
    "S6.2-proposal-base",
    "S4.2-proposal-states-prefix",
    "S4.2-chain-step",
    title="base and base_digest follow the committed prefix over rounds that accept all, some and none",
)
async def prefix_followed(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=4, max_new=200)
    for turn in range(9):
        proposal = await session.proposal()
        proposal.accept(min(turn % 3, len(proposal.tokens)), turn, m_cap=4)
    await session.finish()


# -- no verdict (6.9) --------------------------------------------------------------------------------------------------


@check(
    "D-retry-same",
    "S6.9-lost-verdict-retried",
    "S6.2-one-outstanding",
    title="a proposal whose verdict is lost, with its stream or its connection, is sent again unchanged",
)
async def retry_same(d: DrafterWorld) -> None:
    for rule in (1, 2):
        session = await d.assigned(rule=rule)
        first = await session.proposal()
        first.drop()
        for connection in (True, False):
            again = await session.proposal()
            again.repeats(first)
            again.drop(connection=connection)
        (await session.proposal()).judge()
        await session.finish()


@check(
    "D-retry-rows-there",
    "S6.2-leases-until-verdict",
    "S6.2-artifacts-written",
    title="while a proposal is sent again its rows are still there and leased",
)
async def rows_there(d: DrafterWorld) -> None:
    session = await d.assigned(rule=2)
    first = await session.proposal()
    rows = first.rows()
    first.drop()
    again = await session.proposal()
    expect(again.rows(), rows, "rows of the proposal that is sent again")
    ensure(d.cache.leased(again.message["q_rows"]), "expected a lease on the rows, there is none")
    again.judge()
    await session.finish()


@check(
    "D-retry-unavailable",
    "S5.1-unlisted-status",
    "S6.9-lost-verdict-retried",
    title="a proposal answered 500, 502, 503 or 504 is sent again unchanged",
    profile="decisions",
    decisions=["D3"],
)
async def unavailable(d: DrafterWorld) -> None:
    session = await d.assigned()
    first = await session.proposal()
    fields = (("content-type", MEDIA_TYPE), ("retry-after", "0"))
    first.incoming.respond_raw(Response(503, fields, b'{"status":503}'))
    for code in (500, 502, 504, 503):
        again = await session.proposal()
        again.repeats(first)
        again.incoming.respond_raw(Response(code, (("content-type", "text/html"),), b"<p>not now</p>"))
    (await session.proposal()).judge()
    await session.finish()


async def _no_verdict(session: DrafterSession, response: Response) -> None:
    """What is no verdict moves the drafter nowhere: whatever it proposes next is for the same round, and the same."""
    first = await session.proposal()
    first.incoming.respond_raw(response)
    again = await session.perhaps()
    if again is not None:
        again.repeats(first)
        again.judge()
        await session.finish()


@check(
    "D-retry-malformed",
    "S6.2-proposal-round",
    "S5.2-verdict",
    title="an answer that is no verdict begins no next round",
)
async def malformed(d: DrafterWorld) -> None:
    verdict: dict[str, Any] = {"accepted": 1, "emitted": [1], "committed": 1, "digest": bytes(32), "action": 0}
    bodies = (b"", b"\xff", b"not cbor", encode([]), encode(verdict), encode({**verdict, "low": 0, "load": 101}))
    media = (("content-type", SDCP_CBOR),)
    await asyncio.gather(*[_no_verdict(await d.assigned(), Response(200, media, body)) for body in bodies])


@check(
    "D-retry-no-content",
    "S6.2-proposal-round",
    "S5.1-unlisted-status",
    title="a status without a verdict begins no next round",
)
async def other_status(d: DrafterWorld) -> None:
    others = (Response(204), Response(205), Response(302), Response(599))
    await asyncio.gather(*[_no_verdict(await d.assigned(), response) for response in others])


@check(
    "D-retry-redirect",
    "S6.2-proposal-round",
    title="a redirect begins no next round, and does not take the proposal to an http URI",
)
async def redirect(d: DrafterWorld) -> None:
    elsewhere = (("location", "http://127.0.0.1:1/elsewhere"),)
    codes = (301, 302, 303, 307, 308)
    await asyncio.gather(*[_no_verdict(await d.assigned(), Response(code, elsewhere)) for code in codes])


async def _wrong_verdict(session: DrafterSession, members: dict[str, Any]) -> None:
    """A verdict that answers something else moves the drafter nowhere."""
    first: Proposed = await session.proposal()
    token = session.next_tokens(1)[0]
    right = {"session": session.id, "epoch": 1, "round": 1, "accepted": 0, "emitted": [token], "committed": 1}
    digest = _after(session, token)
    rest = {"digest": digest, "action": 0, "m_cap": 3, "low": 0, "load": 0}
    first.incoming.respond(200, {**right, **rest, **members})
    again = await session.perhaps()
    if again is not None:
        again.repeats(first)
        again.judge()
        await session.finish()


def _after(session: DrafterSession, token: int) -> bytes:
    session.output.append(token)
    digest = session.digest
    session.output.pop()
    return digest


@check(
    "D-retry-other-verdict",
    "S6.2-proposal-round",
    "S5.2-verdict",
    title="a verdict of another round, epoch or session begins no next round",
)
async def other_verdict(d: DrafterWorld) -> None:
    wrong: list[dict[str, Any]] = [{"round": 2}, {"round": 0}, {"epoch": 2}, {"epoch": 0}, {"session": bytes(16)}]
    await asyncio.gather(*[_wrong_verdict(await d.assigned(), members) for members in wrong])


# -- a verifier that is none -------------------------------------------------------------------------------------------


@check(
    "D-verifier-foreign",
    "S5.1-mutual-authentication",
    title="nothing is proposed to a verifier whose certificate another authority has signed",
)
async def foreign(d: DrafterWorld) -> None:
    session = await d.session()
    session.verifier, _, _ = await d.serve(session.handle, ["verifier"], foreign=True)
    await session.assign()
    await session.quiet("to a server that is not to be trusted")


@check(
    "D-verifier-role",
    "S5.1-mutual-authentication",
    title="nothing is proposed to a server whose certificate lacks the role of a verifier",
    profile="decisions",
    decisions=["D9", "D10"],
)
async def no_verifier(d: DrafterWorld) -> None:
    session = await d.session()
    session.verifier, _, _ = await d.serve(session.handle, ["drafter"])
    await session.assign()
    await session.quiet("to a server that is no verifier")


@check(
    "D-verifier-http",
    "S5.1-tls13",
    title="an assignment whose verifier is no https URI is refused, or leads to no proposal",
)
async def no_https(d: DrafterWorld) -> None:
    session = await d.session()
    for verifier in (session.verifier.replace("https", "http"), "ftp://x.test", "nothing", ""):
        session.epoch += 1
        message = session.assignment_message(verifier, d.base)
        await d.ask("router", "POST", "assignments", message)
    await session.quiet("where no verifier is")
